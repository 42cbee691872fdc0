"""numba's front end, cut down to what kernels need: integers, floats, pointers, tuples, loops.

Three things make it several times faster than numba as it comes:

- its contexts know the builtins of the language.  Those of arrays, lists, strings and NumPy take
  longer to load and to search than most kernels take to compile.
- its pipeline has only the passes that do something to a kernel.
- what a kernel calls is a `Callee`, which is typed and emitted without a search.  A function is
  compiled once for the types it is called with, for all kernels of the process, and LLVM inlines
  it or does not, as it is marked.  numba's own `inline="always"` copies its statements to every
  call and types them there.
"""

from __future__ import annotations

import functools
import types as pytypes
from collections.abc import Callable, Hashable
from typing import Any

from numba import types
from numba.core import (
    codegen,
    compiler,
    fastmathpass,
    imputils,
    typed_passes,
    typing,
    untyped_passes,
)
from numba.core.compiler_machinery import PassManager
from numba.core.cpu import CPUContext
from numba.core.errors import NumbaTypeError
from numba.core.typing import templates
from numba.extending import models, register_model, typeof_impl

# Never nnan or ninf: NaN and infinity keep their meaning.
FASTMATH = {"contract", "nsz", "arcp", "reassoc"}

Emit = Callable[[Any, Any, Any, Any], Any]  # (context, builder, signature, values): the result


class Callee:
    """What a kernel can call: a native operation, or a function marked `inline` or `outline`.

    `resolve(typing context, *types of the arguments)` returns the signature of the call and what
    emits its code.  Arguments are passed by position.
    """

    def __init__(self, name: str, resolve: Callable[..., tuple[Any, Emit]]) -> None:
        self.name, self.resolve = name, resolve


class CalleeType(types.Callable, types.Opaque):
    """The type of one `Callee`: numba finds what a call means by the type of what is called."""

    def __init__(self, callee: Callee) -> None:
        self.callee = callee
        self.emitters: dict[tuple[Any, ...], Emit] = {}
        super().__init__(f"Callee({callee.name} at {id(callee):#x})")

    def get_call_type(self, context: Any, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        """The signature of a call with arguments of these types."""
        if kws:
            raise NumbaTypeError(f"{self.callee.name} takes its arguments by position")
        signature, emit = self.callee.resolve(context, *map(types.unliteral, args))
        self.emitters[signature.args] = emit
        return signature

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        """No signatures are known before a call."""
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        """The type stands for its emitters."""
        return self


register_model(CalleeType)(models.OpaqueModel)


@typeof_impl.register(Callee)
@functools.cache
def _type_of(callee: Callee, _: Any) -> CalleeType:
    return CalleeType(callee)


# Where what kernels use of the language is declared; all else of numba is left out.
_DECLARED = {"numba.core.typing.builtins", "engine.kernels.compiler.words"}


def _is_declared(template: Any) -> bool:
    """Whether a class that types calls or attributes comes from the modules named above."""
    return any(base.__module__ in _DECLARED for base in template.__mro__)


class _TypingContext(typing.BaseContext):
    """Types of the builtins that kernels use."""

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


class _CodeContext(CPUContext):
    """Code of the builtins that kernels use."""

    def refresh(self) -> None:
        """Install what the imported modules implement."""
        from numba.cpython import builtins, numbers, rangeobj, tupleobj  # noqa: F401  # they register

        self.install_registry(imputils.builtin_registry)

    def post_lowering(self, mod: Any, library: Any) -> None:
        """Fast-math flags; numba's runtime is not linked in, as kernels allocate nothing."""
        if self.fastmath:
            fastmathpass.rewrite_module(mod, self.fastmath)

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """What emits a call: callees know it themselves."""
        if isinstance(fn, CalleeType):
            emit = fn.emitters[sig.args]
            return lambda builder, args, loc=None: emit(self, builder, sig, args)
        return super().get_function(fn, sig, _firstcall)


class _Library(codegen.AOTCodeLibrary):
    """Leaves IR as it was written: a kernel is optimised once, for the real target."""

    def _optimize_functions(self, ll_module: Any) -> None: ...
    def _optimize_final_module(self) -> None: ...


class _Codegen(codegen.AOTCPUCodegen):
    _library_class = _Library


class _Pipeline(compiler.CompilerBase):
    """From bytecode to unoptimised LLVM IR."""

    def define_pipelines(self) -> list[Any]:
        """One pipeline."""
        manager = PassManager("kernel")
        for step in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            untyped_passes.IRProcessing,
            untyped_passes.RewriteSemanticConstants,
            untyped_passes.DeadBranchPrune,
            untyped_passes.GenericRewrites,
            untyped_passes.ReconstructSSA,
            typed_passes.NopythonTypeInference,
            typed_passes.PreLowerStripPhis,
            typed_passes.IRLegalization,
            typed_passes.AnnotateTypes,
            typed_passes.NativeLowering,
            typed_passes.NoPythonBackend,
        ):
            manager.add_pass(step, step.__name__)
        manager.finalize()
        return [manager]


@functools.cache
def _contexts() -> tuple[Any, Any]:
    """The contexts of types and of code of all kernels of this process."""
    of_types = _TypingContext()
    of_types.refresh()
    of_code = _CodeContext(of_types, "cpu")
    of_code.refresh()
    return of_types, of_code.subtarget(_internal_codegen=_Codegen("kernels"), aot_mode=True)


def compile_function(
    fn: Callable[..., Any], args: tuple[Any, ...], name: str, returns: Any, *, inline: bool
) -> Any:
    """Compile a bound function to unoptimised IR: numba's result, in a library of its own.

    `returns` is its type, or None to find it.  Who calls holds numba's compiler lock.
    """
    flags = compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.nrt = False
    flags.error_model = "numpy"
    flags.fastmath = FASTMATH
    flags.forceinline = inline
    of_types, of_code = _contexts()
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


def called_function(fn: Callable[..., Any], *, inline: bool) -> Callee:
    """A bound function as a callee: compiled once for each row of types it is called with."""
    done: dict[tuple[Any, ...], Any] = {}

    def resolve(context: Any, *args: Any) -> tuple[Any, Emit]:
        if args not in done:
            found = done[args] = compile_function(fn, args, fn.__name__, None, inline=inline)
            if not inline:
                code = found.library.get_function(found.fndesc.llvm_func_name)
                code.add_function_attribute("noinline")
        result = done[args]

        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            context.active_code_library.add_linking_library(result.library)
            _, returned = context.call_internal_no_propagate(
                builder, result.fndesc, signature, values
            )
            return returned

        return result.signature, emit

    return Callee(fn.__name__, resolve)


def key(value: Any) -> Hashable:
    """Equal for functions of equal code that close over equal values, and for equal values."""
    if isinstance(value, pytypes.FunctionType):
        cells = tuple(key(cell.cell_contents) for cell in value.__closure__ or ())
        return value.__module__, value.__code__, value.__defaults__, cells
    return type(value), value
