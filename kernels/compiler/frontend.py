"""numba's front end, reduced to what kernels need: integers, floats, pointers, tuples, loops.

Seven changes make it several times faster than numba's own:

- Its contexts know only the builtins of the language.  Loading and searching numba's definitions
  for arrays, lists, strings and NumPy takes longer than compiling most kernels.
- Its pipeline has only the passes that affect a kernel.  There is no reference counting, so no
  variable is ever deleted, and no lifetimes are computed.
- Variables are renamed to SSA form at their places (`ssa.py`); numba rewrites all of a
  function for each variable.
- Variables that need no memory are registers from the start, and only the result of a call is
  read, so LLVM has a fifth less to read.
- Type inference makes no list of warnings for each statement, and code generation none of errors.
- A function that a kernel calls is a `Callee`, which is typed and emitted without a search.  It is
  compiled once per process for the types of its arguments, and LLVM inlines it or not, as it is
  marked.  numba's own `inline="always"` copies its statements to every call and types them there.
- A `Library` is the text of one function, which LLVM reads once for each kernel.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types as pytypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from numba import types
from numba.core import (
    cgutils,
    codegen,
    compiler,
    fastmathpass,
    imputils,
    interpreter,
    ir,
    lowering,
    transforms,
    typed_passes,
    typeinfer,
    typing,
    untyped_passes,
)
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.cpu import CPUContext
from numba.core.errors import NumbaError, NumbaTypeError, TypingError
from numba.core.ir_utils import build_definitions
from numba.core.rewrites import rewrite_registry
from numba.core.typing import templates
from numba.extending import models, register_model, typeof_impl

from engine.kernels.compiler.ssa import assign_once, find_values
from engine.kernels.vector_ir.vectors import reserve

# Never nnan or ninf: NaN and infinity keep their meaning.
FASTMATH = {"contract", "nsz", "arcp", "reassoc"}

# Operations with a meaning of their own for an operand that is known, as it is written.
_POWERS = (operator.pow, operator.ipow)

Emit = Callable[[Any, Any, Any, Any], Any]  # (context, builder, signature, values): the result


class Callee:
    """Something that a kernel can call: an intrinsic, or an `inline` or `outline` function.

    `resolve(typing context, *types of the arguments)` returns the signature of the call and the
    function that emits its code.

    Arguments are passed by position, or by `names`, which may hold a name twice: both places get
    the argument.  `ignores`: arguments by other names are left out, so that one call can serve
    programs of different operands.
    """

    def __init__(
        self,
        name: str,
        resolve: Callable[..., tuple[Any, Emit]],
        names: Sequence[str] = (),
        *,
        ignores: bool = False,
    ) -> None:
        self.name, self.resolve, self.names, self.ignores = name, resolve, tuple(names), ignores

    def order(self, count: int, keywords: Sequence[str]) -> list[int]:
        """Return which argument of a call goes to each place: `count` by position, then keywords.

        Raises:
            NumbaTypeError: a name is unknown, given twice, or missing.
        """
        rest = self.names[count:]
        given = {name: count + i for i, name in enumerate(keywords)}
        missing = [name for name in rest if name not in given]
        unknown = [name for name in given if name not in rest]
        if missing or (unknown and not self.ignores):
            raise NumbaTypeError(
                f"{self.name}({', '.join(self.names)}) is called with {count} arguments by "
                f"position; missing: {missing}, not taken by name: {unknown}"
            )
        return [*range(count), *(given[name] for name in rest)]


class CalleeType(types.Callable, types.Opaque):
    """The type of one `Callee`: numba finds what a call means by the type of what is called."""

    def __init__(self, callee: Callee) -> None:
        self.callee = callee
        self.emitters: dict[Any, Emit] = {}  # by signature of a call
        super().__init__(f"Callee({callee.name} at {id(callee):#x})")

    def get_call_type(self, context: Any, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        """Return the signature of a call with arguments of these types."""
        if kws:
            return self._resolve_by_name(context, args, kws)
        signature, emit = self.callee.resolve(context, *map(types.unliteral, args))
        self.emitters[signature] = emit
        return signature

    def _resolve_by_name(self, context: Any, args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        """Return the signature of a call by name, which has the arguments in the call's order.

        numba evaluates arguments in that order, so a call by name is the same code as one by
        position whose arguments are written in the same order.
        """
        names, order = [*self.callee.names[: len(args)], *kws], self.callee.order(len(args), [*kws])
        given = [types.unliteral(kind) for kind in (*args, *kws.values())]
        inner, emit = self.callee.resolve(context, *(given[i] for i in order))
        for place, kind in zip(order, inner.args, strict=True):
            given[place] = kind  # what the callee takes, to which numba casts the argument
        named = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        signature = typing.signature(inner.return_type, *given)
        signature = signature.replace(pysig=inspect.Signature(named))
        self.emitters[signature] = lambda code, b, _, values: emit(
            code, b, inner, [values[i] for i in order]
        )
        return signature

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        """Return no signatures: none are known before a call."""
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        """Return the type itself, which holds the emitters."""
        return self


register_model(CalleeType)(models.OpaqueModel)


@typeof_impl.register(Callee)
@functools.cache
def _type_of(callee: Callee, _: Any) -> CalleeType:
    return CalleeType(callee)


# Where what kernels use of the language is declared; the rest of numba is left out.
_DECLARED = {
    "numba.core.typing.builtins",
    "engine.kernels.compiler.arguments",
    "engine.kernels.compiler.words",
}


def _is_declared(template: Any) -> bool:
    """Return whether a class that types calls or attributes comes from the modules named above."""
    return any(base.__module__ in _DECLARED for base in template.__mro__)


class _TypingContext(typing.BaseContext):
    """Types of the builtins that kernels use."""

    def __init__(self) -> None:
        self._resolved: dict[tuple[Any, Any], Any] = {}
        self._operations: dict[Any, Any] = {}
        super().__init__()

    @functools.cached_property
    def _builtins(self) -> Any:
        from numba.core.typing import builtins  # noqa: F401  # it registers

        registry, known = templates.Registry(), templates.builtin_registry
        registry.functions = [t for t in known.functions if _is_declared(t)]
        registry.attributes = [t for t in known.attributes if _is_declared(t)]
        registry.globals = [
            (value, kind)
            for value, kind in known.globals
            if not isinstance(kind, types.Function) or all(map(_is_declared, kind.templates))
        ]
        return registry

    def _load_builtins(self) -> None:
        self.install_registry(self._builtins)

    def resolve_value_type(self, val: Any) -> Any:
        """Return the type of a value, an operation's once: numba finds it by errors."""
        if not isinstance(val, pytypes.BuiltinFunctionType):
            return super().resolve_value_type(val)
        if val not in self._operations:
            self._operations[val] = super().resolve_value_type(val)
        return self._operations[val]

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call; equal calls by position are resolved once."""
        if kws:
            return super().resolve_function_type(func, args, kws)
        key = func, args
        if key not in self._resolved:
            self._resolved[key] = super().resolve_function_type(func, args, kws)
        return self._resolved[key]


class _CodeContext(CPUContext):
    """Code of the builtins that kernels use."""

    def __init__(self, typing_context: Any, target: str) -> None:
        self._sizes: dict[str, int] = {}
        self._operations: dict[tuple[Any, Any], Callable[[Any, Sequence[Any]], Any]] = {}
        super().__init__(typing_context, target)

    def get_operation(self, op: Any, kinds: Any) -> Callable[[Any, Sequence[Any]], Any]:
        """Return the function that emits an operation on values of these types.

        It serves all functions of the process, whose contexts differ in nothing that it reads.
        """
        if (op, kinds) not in self._operations:
            kind = self.typing_context.resolve_value_type(op)
            signature = kind.get_call_type(self.typing_context, kinds, {})
            self._operations[op, kinds] = self.get_function(kind, signature)
        return self._operations[op, kinds]

    def refresh(self) -> None:
        """Install what the imported modules implement."""
        from numba.cpython import builtins, numbers, rangeobj, tupleobj  # noqa: F401  # they register

        self.install_registry(imputils.builtin_registry)

    def post_lowering(self, mod: Any, library: Any) -> None:
        """Fast-math flags; numba's runtime is not linked in, as kernels allocate nothing."""
        if self.fastmath:
            fastmathpass.rewrite_module(mod, self.fastmath)

    def mangler(self, name: str, types: Any, *, abi_tags: Any = (), uid: int = 0) -> str:
        """Return the name of a function: with the types in it, names would be most of a text."""
        return f"{name}.{uid}"

    def declare_env_global(self, module: Any, envname: str) -> None:
        """Declare nothing: kernels have no Python environment."""

    def get_abi_sizeof(self, ty: Any) -> int:
        """Return the size of a type, for which numba makes a module each time."""
        key = str(ty)
        if key not in self._sizes:
            self._sizes[key] = super().get_abi_sizeof(ty)
        return self._sizes[key]

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """Return the function that emits a call: callees know it themselves."""
        if isinstance(fn, CalleeType):
            emit = fn.emitters[sig]
            return lambda builder, args, loc=None: emit(self, builder, sig, args)
        return super().get_function(fn, sig, _firstcall)


class Library(codegen.AOTCodeLibrary):
    """The IR of one function as it was written, and the libraries of the functions that it calls.

    LLVM sees it once for each kernel, for the real target: numba's own would parse, check and
    copy all that a function calls into every caller.
    """

    def __init__(self, owner: Any, name: str) -> None:
        codegen.CodeLibrary.__init__(self, owner, name)  # without an LLVM module
        self._called: dict[Library, None] = {}
        self._module: Any = None

    def add_ir_module(self, ir_module: Any) -> None:
        """Take the module of the function."""
        self._module = ir_module

    def add_linking_library(self, library: Library) -> None:
        """Take note of a function that this one calls."""
        self._called[library] = None

    def finalize(self) -> None:
        """Do nothing: all is there."""

    def get_function(self, name: str) -> Any:
        """Return a function of the module, to which attributes can be added."""
        return self._module.get_global(name)

    @functools.cached_property
    def text(self) -> str:
        """The module as text."""
        written: str = cgutils.normalize_ir_text(str(self._module))
        return written

    def list_texts(self) -> list[str]:
        """Return the text of this function, and of all that it calls, directly or not."""
        seen: dict[Library, None] = {}
        queue = [self]
        while queue:
            library = queue.pop()
            if library not in seen:
                seen[library] = None
                queue += reversed(library._called)
        return [library.text for library in seen]


class _Codegen(codegen.AOTCPUCodegen):
    _library_class = Library


# Rewritings of what kernels do not use; each searches all of a function.
_FOREIGN = (interpreter.peep_hole_delete_with_exit, interpreter.peep_hole_fuse_dict_add_updates)


def _rewrite(_: Any, rewritings: Sequence[Callable[[Any], Any]], func_ir: Any) -> Any:
    """Apply the rewritings of sequences of instructions that kernels use."""
    for rewrite in rewritings:
        if rewrite not in _FOREIGN:
            func_ir = rewrite(func_ir)
    return func_ir


class _Interpreter(interpreter.Interpreter):
    """Numba's reader of bytecode, which looks for neither `with` nor dictionaries."""

    post_process = _rewrite


@register_pass(mutates_CFG=True, analysis_only=False)
class _Bytecode(untyped_passes.TranslateByteCode):
    """Numba's pass with `_Interpreter`."""

    def run_pass(self, state: Any) -> bool:
        state.func_ir = _Interpreter(state.func_id).interpret(state.bc)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Rewrites(untyped_passes.GenericRewrites):
    """Numba's pass without the lifetimes of variables, which nothing reads."""

    def run_pass(self, state: Any) -> bool:
        blocks = state.func_ir.blocks
        for rewrite_class in rewrite_registry.rewrites["before-inference"]:
            rewrite, waiting = rewrite_class(state), [*blocks.items()]
            while waiting:
                label, block = waiting.pop()
                if rewrite.match(state.func_ir, block, state.typemap, state.calltypes):
                    blocks[label] = rewrite.apply()
                    waiting.append((label, blocks[label]))
        state.func_ir.blocks = transforms.canonicalize_cfg(blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _SingleAssignments(untyped_passes.ReconstructSSA):
    """Numba's pass by `assign_once`, and without the lifetimes of variables."""

    def run_pass(self, state: Any) -> bool:
        assign_once(state.func_ir.blocks)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


class _Constraints(typeinfer.ConstraintNetwork):
    """The constraints of a function's types, which give no warnings."""

    def propagate(self, inference: Any) -> list[Any]:
        """Apply each constraint once; returns the errors."""
        errors = []
        for constraint in self.constraints:
            try:
                constraint(inference)
            except TypingError as error:
                again = TypingError(str(error), loc=constraint.loc, highlighting=False)
                again.__cause__ = error
                errors.append(again)
        return errors


@register_pass(mutates_CFG=True, analysis_only=False)
class _Types(typed_passes.NopythonTypeInference):
    """Numba's pass with `_Constraints`; kernels neither recur nor return functions."""

    def run_pass(self, state: Any) -> bool:
        context, graph = state.typingctx, state.func_ir
        inference = typeinfer.TypeInferer(context, graph, None)
        inference.constraints = _Constraints()
        for i, (name, kind) in enumerate(zip(graph.arg_names, state.args, strict=True)):
            inference.seed_argument(name, i, kind)
        if state.return_type is not None:
            inference.seed_return(state.return_type)
        with context.callstack.register(
            state.targetctx.target, inference, graph.func_id, state.args
        ):
            inference.build_constraint()
            inference.propagate()
            state.typemap, state.return_type, state.calltypes = inference.unify()
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _StripPhis(typed_passes.PreLowerStripPhis):
    """Numba's pass, without the lifetimes of variables either."""

    def run_pass(self, state: Any) -> bool:
        state.func_ir = self._strip_phi_nodes(state.func_ir)
        state.func_ir.blocks = transforms.canonicalize_cfg(state.func_ir.blocks)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


class _CodeWriter(lowering.Lower):
    """Numba's writer of code, without debug information: most of its time goes to assignments."""

    def _find_singly_assigned_variable(self) -> None:
        """Find the variables that are registers, in which blocks they are used besides.

        numba has a place in memory for each that several blocks use, and leaves it to LLVM to find
        that it needs none.
        """
        self._singly_assigned_vars = find_values(self.func_ir.blocks)
        self._blk_local_varmap: dict[str, Any] = {}

    def lower_block(self, block: Any) -> None:
        """Write the code of a block."""
        self.pre_block(block)
        for statement in block.body:
            self.loc = statement.loc
            try:
                self.lower_inst(statement)
            except NumbaError as error:
                error.add_context(f'lowering "{statement}" at {statement.loc}')
                raise
        self.post_block(block)

    def lower_inst(self, statement: Any) -> Any:
        """Write the code of a statement."""
        if not isinstance(statement, ir.Assign):
            return super().lower_inst(statement)
        name = statement.target.name
        self.storevar(self.lower_assign(self.typeof(name), statement), name)
        return None

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        """Write the code of an operation on two values.

        Only a power means something else with an operand that is known: for all others numba asks
        three times for such a meaning, and most of its time goes to the errors that say there is
        none.
        """
        if op in _POWERS:
            return super().lower_binop(resty, expr, op)
        context, signature = self.context, self.fndesc.calltypes[expr]
        operands = [
            context.cast(self.builder, self.loadvar(v.name), self.typeof(v.name), kind)
            for v, kind in zip((expr.lhs, expr.rhs), signature.args, strict=True)
        ]
        result = context.get_operation(op, signature.args)(self.builder, operands)
        return context.cast(self.builder, result, signature.return_type, resty)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        """Assign a value to a variable, which holds no reference to release."""
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    lowering_class = _CodeWriter


class _Passes(PassManager):
    """Passes that run one after the other, with no record of their times."""

    def run(self, state: Any) -> None:
        """Run all of them on a function."""
        for kind, _ in self.passes:
            step = kind()
            step.analysis = self._analysis
            step.run_pass(state)


class _Pipeline(compiler.CompilerBase):
    """From bytecode to unoptimised LLVM IR."""

    def define_pipelines(self) -> list[Any]:
        """Return one pipeline."""
        manager = _Passes("kernel")
        for step in (
            _Bytecode,
            untyped_passes.FixupArgs,
            untyped_passes.RewriteSemanticConstants,
            untyped_passes.DeadBranchPrune,
            _Rewrites,
            _SingleAssignments,
            _Types,
            _StripPhis,
            typed_passes.AnnotateTypes,
            _Lowering,
            typed_passes.NoPythonBackend,
        ):
            manager.add_pass(step, step.__name__)
        manager.finalize()
        return [manager]


@functools.cache
def _make_contexts() -> tuple[Any, Any]:
    """Return the contexts of types and of code of all kernels of this process."""
    of_types = _TypingContext()
    of_types.refresh()
    of_code = _CodeContext(of_types, "cpu")
    of_code.refresh()
    return of_types, of_code.subtarget(_internal_codegen=_Codegen("kernels"), aot_mode=True)


def compile_function(
    fn: Callable[..., Any], args: tuple[Any, ...], name: str, returns: Any, *, inline: bool
) -> Any:
    """Compile a bound function to unoptimised IR: numba's result, in a library of its own.

    `returns` is its type, or None to find it.  The caller must hold numba's compiler lock.
    """
    flags = compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.nrt = False
    flags.error_model = "numpy"
    flags.fastmath = FASTMATH
    flags.forceinline = inline
    of_types, of_code = _make_contexts()
    library = of_code.codegen().create_library(name)
    return compiler.compile_extra(
        of_types,
        of_code,
        fn,
        args,
        returns,
        flags,
        {},
        library=library,
        pipeline_class=_Pipeline,
    )


def _write_call(context: Any, builder: Any, callee: Any, signature: Any, values: Any) -> Any:
    """Write a call of a compiled function, and return the value that it returns.

    A kernel raises nothing, so the status of a call is not read, and exceptions have the place that
    the caller has got for its own.
    """
    function = context.declare_function(builder.module, callee)
    packed = context.get_arg_packer(signature.args).as_arguments(builder, values)
    returned = reserve(builder, function.args[0].type.pointee)
    builder.call(function, [returned, builder.function.args[1], *packed])
    loaded = builder.load(returned)
    return context.get_returned_value(builder, signature.return_type, loaded)


def get_callee(fn: Callable[..., Any], *, inline: bool) -> Callee:
    """Return a bound function as a callee: compiled once for each row of types in a call."""
    done: dict[tuple[Any, ...], Any] = {}

    def resolve(context: Any, *args: Any) -> tuple[Any, Emit]:
        if args not in done:
            result = done[args] = compile_function(fn, args, fn.__name__, None, inline=inline)
            if not inline:
                code = result.library.get_function(result.fndesc.llvm_func_name)
                code.attributes.add("noinline")
        result = done[args]

        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            context.active_code_library.add_linking_library(result.library)
            return _write_call(context, builder, result.fndesc, signature, values)

        return result.signature, emit

    return Callee(fn.__name__, resolve, [*inspect.signature(fn).parameters])


def make_key(value: Any) -> Hashable:
    """Make a key, equal for equal values and for equal code that closes over equal values."""
    if isinstance(value, pytypes.FunctionType):
        cells = tuple(make_key(cell.cell_contents) for cell in value.__closure__ or ())
        return value.__module__, value.__code__, value.__defaults__, cells
    return type(value), value
