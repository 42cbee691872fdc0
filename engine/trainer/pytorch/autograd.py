"""The autograd rules of a module, as nodes of the exported program.

An export of torch's computes what the module computes, and keeps nothing of where gradients stop.
So the module is traced with gradients on, and what it says to autograd becomes an op:

    x.detach(), x.data, no_grad(), inference_mode()     edgegrad::stop_gradient
    an autograd.Function, a hook of a tensor            edgegrad::redirect of a stopped output,
                                                        and what makes its gradient of a cotangent

which the exporter writes as the ops of kernels/ops/gradient_flow.py.

    notes = Notes(torch, module)
    with torch.enable_grad():
        traced = torch.export.export(...)  # which runs `with recording(notes): module.forward()`
    stop(torch, traced, len(notes.kept))
    torch.onnx.export(traced, custom_translation_table=translations(torch))
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from engine.base.errors import UnsupportedOpError
from engine.kernels.vocabulary.op import OURS

LIBRARY = "edgegrad"  # of torch's operators
# The op of ours for each of the library's, and the names of its inputs; the first is the output.
_OPS = {
    "stop_gradient": ("StopGradient", ("y",)),
    "cotangent": ("Cotangent", ("y",)),
    "redirect": ("Redirect", ("y", "dy", "x", "dx")),
}
_REGIONS = ("wrap_with_set_grad_enabled",)
_DETACH, _DETACH_IN_PLACE = "aten::detach", "aten::detach_"


# --- the ops


@functools.cache
def _make_library(torch: Any) -> Any:
    """Return the operators, which torch knows from the first export on."""
    made = torch.library.Library(LIBRARY, "FRAGMENT")
    for name, (_, inputs) in _OPS.items():
        made.define(f"{name}({', '.join(f'Tensor {i}' for i in inputs)}) -> Tensor")
        made.impl(name, lambda y, *_: y.clone(), "CompositeExplicitAutograd")
        batched = functools.partial(_run_batched, torch, f"{LIBRARY}::{name}")
        torch.library.register_vmap(f"{LIBRARY}::{name}", batched, lib=made)
    return made


def _run_batched(torch: Any, name: str, info: Any, dims: Sequence[int | None], *given: Any) -> Any:
    """Return what an operator of ours makes of tensors that `vmap` has joined, and their axis.

    dims: for each tensor, the axis along which it is joined; None if it is one for all.
    """
    first = [t.movedim(d, 0) if d else t for t, d in zip(given, dims, strict=True)]
    if len(first) == 4:  # redirect of y, dy, x, dx
        y, dy, x, dx = first
        if dims[0] is None:
            raise UnsupportedOpError(
                "torch.vmap over an autograd.Function of a value that is the same for the whole "
                "batch is not exported; call it outside of vmap"
            )
        if dims[3] is None:
            dx = dx.expand(info.batch_size, *dx.shape)
        if dims[2] is None:  # one x for all: its gradient is the sum
            dx = dx.sum(0)
        first = [y, dy, x, dx]
    made = _get_op(torch, name.partition("::")[2])(*first)
    return made, None if dims[0] is None else 0


def _get_op(torch: Any, name: str) -> Any:
    _make_library(torch)
    return getattr(getattr(torch.ops, LIBRARY), name).default


def list_translations(torch: Any) -> dict[Any, Callable[..., Any]]:
    """Return the translations by which `torch.onnx.export` writes the operators."""
    import onnxscript

    from engine.graphs.io.convert import make_schema

    opset = onnxscript.values.Opset(OURS, 1)

    def make_translation(name: str, inputs: Sequence[str]) -> Callable[..., Any]:
        op = onnxscript.values.Op(opset, name, make_schema(OURS, name, inputs))
        return lambda *given: op(*given)

    return {_get_op(torch, own): make_translation(*row) for own, row in _OPS.items()}


# --- while the module is traced


class _Context:
    """The `ctx` of an `autograd.Function` whose forward and backward are traced at once."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self._without_gradient: list[Any] = []
        self._materializes = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Do nothing: no derivatives are taken in forward mode."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self._without_gradient.extend(tensors)

    def mark_dirty(self, *tensors: Any) -> None:
        """Do nothing: only the output is changed in place, and it is made again."""

    def set_materialize_grads(self, value: bool) -> None:
        self._materializes = value


class Notes:
    """The findings of a trace.

    kept: tensors that replace values with a hook.  They are outputs of the trace, after the
        module's own, so that nothing drops them.
    """

    def __init__(self, torch: Any, module: Any) -> None:
        self.torch, self.module = torch, module
        self.kept: list[Any] = []
        self.places = {part: name for name, part in module.named_modules()}

    def place(self) -> str:
        """Return the submodule that is being run, for messages."""
        frame = sys._getframe(1)
        while frame is not None:
            part = frame.f_locals.get("self")
            if isinstance(part, self.torch.nn.Module) and part in self.places:
                path = self.places[part]
                return f"{type(part).__name__} {path!r}" if path else type(part).__name__
            frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
        return "the module"

    def is_float(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor) and value.is_floating_point()

    # --- functions that users write

    def apply(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an `autograd.Function`, forward and backward."""
        torch = self.torch
        if function is torch.utils.checkpoint.CheckpointFunction:
            run, _, *given = args  # its gradient is the gradient of the function that it runs
            return run(*given)
        has_setup = _has_setup(torch, function)
        if has_setup:
            bound = inspect.signature(function.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        ctx = _Context(tuple(self.is_float(a) for a in args))
        with torch.no_grad():
            if has_setup:
                result = function.forward(*args, **kwargs)
                function.setup_context(ctx, args, result)
            else:
                result = function.forward(ctx, *args, **kwargs)
        outputs = result if isinstance(result, tuple) else (result,)
        if not torch.is_grad_enabled():
            return result
        unmarked = {id(t) for t in ctx._without_gradient}
        flows = [self.is_float(y) and id(y) not in unmarked for y in outputs]
        stopped = [_get_op(torch, "stop_gradient")(y) if self.is_float(y) else y for y in outputs]
        made = self._redirect(function, ctx, args, stopped, flows) if any(flows) else stopped
        return tuple(made) if isinstance(result, tuple) else made[0]

    def _redirect(
        self,
        function: Any,
        ctx: _Context,
        args: Sequence[Any],
        outputs: Sequence[Any],
        flows: Sequence[bool],
    ) -> list[Any]:
        """Return the outputs with the gradients that the function's backward computes.

        Of several outputs one is made, so that there is one gradient to begin with.
        """
        torch = self.torch
        own = [y for y, is_own in zip(outputs, flows, strict=True) if is_own]
        whole = own[0] if len(own) == 1 else _join(torch, own)
        cotangent = _get_op(torch, "cotangent")(whole)
        parts = iter([cotangent] if len(own) == 1 else _split(cotangent, own))
        dys = [
            next(parts) if is_own
            else torch.zeros_like(y) if isinstance(y, torch.Tensor) and ctx._materializes
            else None
            for y, is_own in zip(outputs, flows, strict=True)
        ]  # fmt: skip
        backward = function.backward
        if backward is torch.autograd.Function.backward:
            backward = function.vjp
        with torch.no_grad(), self._explaining("the backward of the autograd.Function", function):
            returned = backward(ctx, *dys)
        gradients = returned if isinstance(returned, tuple) else (returned,)
        for x, dx in zip(args, gradients, strict=False):
            if dx is not None and self.is_float(x):
                if tuple(dx.shape) != tuple(x.shape):
                    dx = dx.sum_to_size(x.shape)
                whole = _get_op(torch, "redirect")(whole, cotangent, x, dx.to(x.dtype))
        wholes = iter([whole] if len(own) == 1 else _split(whole, own))
        return [next(wholes) if is_own else y for y, is_own in zip(outputs, flows, strict=True)]

    @contextlib.contextmanager
    def _explaining(self, what: str, of: Any) -> Iterator[None]:
        """Say of an error in code that makes a gradient whose it is, and what to do."""
        name = f"{getattr(of, '__module__', '?')}.{getattr(of, '__qualname__', repr(of))}"
        try:
            yield
        except Exception as error:  # of whatever class: the code is not ours
            raise UnsupportedOpError(
                f"{what} {name}, which {self.place()} calls, cannot be traced: "
                f"{type(error).__name__}: {_cut_first_line(error)}; write it with torch's "
                "operations "
                "on tensors alone, or the forward so that torch's own gradient is right, as "
                "x + (y - x).detach() for a value y with the gradient of x"
            ) from error

    # --- hooks

    def note_hook(self, tensor: Any, change: Any, *_: Any, **__: Any) -> Any:
        """Note what a hook makes of the gradient of a tensor; `stop` lets readers see it."""
        cotangent = _get_op(self.torch, "cotangent")(tensor)
        with self.torch.no_grad(), self._explaining("the hook", change):
            dx = change(cotangent)
        if dx is not None:
            stopped = _get_op(self.torch, "stop_gradient")(tensor)
            self.kept.append(_get_op(self.torch, "redirect")(stopped, cotangent, tensor, dx))
        return contextlib.nullcontext()  # in the place of a handle

    def note_parameter_hooks(self, hooks: Mapping[str, Sequence[Any]]) -> None:
        """Note what hooks make of the gradients of parameters, by their names."""
        for name, changes in hooks.items():
            for change in changes:
                self.note_hook(self.module.get_parameter(name), change)

    def refuse_gradient(self, *_: Any, **__: Any) -> Any:
        """Refuse gradients that the forward pass computes."""
        raise UnsupportedOpError(
            f"{self.place()} computes gradients by torch.autograd while it runs forward, and "
            "gradients of gradients are not exported; write the derivative out"
        )

    def refuse_branch(self, *_: Any, **__: Any) -> Any:
        """Refuse branches by values, whose gradients torch cannot compute under fixed draws."""
        raise UnsupportedOpError(
            f"{self.place()} calls torch.cond, whose gradient is not exported; compute both "
            "branches, and choose by torch.where(condition, a, b)"
        )


def _join(torch: Any, tensors: Sequence[Any]) -> Any:
    """Join tensors to a matrix with a row for each of their rows, or to a vector."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    first = tensors[0]
    if all(y.ndim and statically_known_true(y.shape[0] == first.shape[0]) for y in tensors):
        return torch.cat([y.reshape(y.shape[0], math.prod(y.shape[1:])) for y in tensors], 1)
    return torch.cat([y.reshape(-1) for y in tensors])


def _split(whole: Any, like: Sequence[Any]) -> list[Any]:
    """Take what `_join` has made of tensors of these shapes apart."""
    parts, begin = [], 0
    for y in like:
        end = begin + math.prod(y.shape[whole.ndim - 1 :])
        parts.append(whole[..., begin:end].reshape(y.shape))
        begin = end
    return parts


def _has_setup(torch: Any, function: Any) -> bool:
    """Return whether the context is set up apart from the forward."""
    base = torch.autograd.function._SingleLevelFunction
    return function.setup_context is not base.setup_context


def list_hooks(module: Any) -> dict[str, list[Any]]:
    """Return the hooks of the parameters of a module, which change their gradients, by name.

    Raises:
        UnsupportedOpError: a parameter has hooks that run once its gradient is there.
    """
    hooks = {}
    for name, parameter in module.named_parameters():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise UnsupportedOpError(
                f"the parameter {name!r} has a hook of register_post_accumulate_grad_hook, which "
                "is not exported; remove it, or use register_hook, which changes a gradient alone"
            )
        if parameter._backward_hooks:
            hooks[name] = list(parameter._backward_hooks.values())
    return hooks


@contextlib.contextmanager
def without_hooks(module: Any) -> Iterator[None]:
    """Take the backward hooks of submodules off while a module is traced.

    The comparison of gradients shows if they change one.
    """
    names = ("_backward_hooks", "_backward_pre_hooks")
    before = [(part, name, getattr(part, name)) for part in module.modules() for name in names]
    try:
        for part, name, hooks in before:
            setattr(part, name, type(hooks)())
        yield
    finally:
        for part, name, hooks in before:
            setattr(part, name, hooks)


@contextlib.contextmanager
def recording(notes: Notes) -> Iterator[None]:
    """Note what a module tells autograd while it runs forward in a trace.

    Nothing but the module should run meanwhile: torch keeps tables of its own functions.
    """
    torch = notes.torch
    tensor, guard = torch.Tensor, torch.autograd.grad_mode.inference_mode
    data = torch._C.TensorBase.data

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return notes.apply(cls, *args, **kwargs)

    def enter(self: Any) -> None:
        self._guard = torch.set_grad_enabled(torch.is_grad_enabled() and not self.mode)
        self._guard.__enter__()

    def leave(self: Any, *error: Any) -> None:
        self._guard.__exit__(*error)

    changed: list[tuple[Any, str, Any]] = [
        (torch.autograd.Function, "apply", classmethod(apply)),
        (tensor, "data", property(lambda self: self.detach(), data.__set__)),
        (tensor, "register_hook", lambda self, change: notes.note_hook(self, change)),
        (guard, "__enter__", enter),
        (guard, "__exit__", leave),
        (torch.autograd, "_engine_run_backward", notes.refuse_gradient),
        (torch, "cond", notes.refuse_branch),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in changed:
            _replace(stack, owner, name, value)
        yield


def _replace(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Give an owner another attribute until the stack is left."""
    absent = object()
    before = vars(owner).get(name, absent)
    setattr(owner, name, value)
    if before is absent:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, before)


# --- what was traced


def stop(torch: Any, traced: Any, kept: int = 0) -> list[str]:
    """Write what stops gradients into an exported program, in place, before it is made functional.

    `detach` becomes `stop_gradient`; so does what a region without gradients hands on, or, where
    such a region changes values in place, what it takes.  Values on which no parameter has a
    gradient are left alone.

    kept: how many outputs, the last ones, take the place of values with hooks.

    Returns the names of the buffers of floats that the program changes.

    Raises:
        UnsupportedOpError: a value is changed in place where a copy of it is needed.
    """
    graph, signature = traced.graph_module.graph, traced.graph_signature
    has_gradient = {n for n in graph.nodes if n.name in signature.inputs_to_parameters}
    job = _Stops(torch, traced.graph_module, has_gradient)
    if kept:
        job.redirect_hooked(kept)
    job.run()
    for old, new in job.renamed.items():
        signature.replace_all_uses(old, new)
    for part in traced.graph_module.modules():
        part.recompile()
    buffers = {
        n: signature.inputs_to_buffers[n.name]
        for n in graph.nodes
        if n.name in signature.inputs_to_buffers and n.meta["val"].is_floating_point()
    }
    return [name for n, name in buffers.items() if not job.families[n].isdisjoint(job.written)]


class _Stops:
    """The walk over one graph of a program.

    flows: the nodes on which parameters have gradients.
    families: for each node, the nodes that may share its memory, one set for all of them.
    renamed: old and new names of nodes that outputs of the graph read.
    """

    def __init__(self, torch: Any, module: Any, flows: set[Any]) -> None:
        self.torch, self.module, self.graph = torch, module, module.graph
        self.flows = flows
        self.families: dict[Any, set[Any]] = {n: {n} for n in self.graph.nodes}
        self.renamed: dict[str, str] = {}
        self.places = {n: i for i, n in enumerate(self.graph.nodes)}
        self.changes: list[tuple[Any, Any]] = []  # nodes that write, and what they write
        self.written: set[Any] = set()  # written by them and by nodes of regions
        for node in self.graph.nodes:
            self._relate(node)

    def run(self) -> None:
        """Stop what is to be stopped."""
        for node in list(self.graph.nodes):
            if node.op == "call_function":
                self._visit(node)

    def _visit(self, node: Any) -> None:
        name = _name(node)
        takes = [n for n in node.all_input_nodes if n in self.flows]
        if name in (_DETACH, _DETACH_IN_PLACE):
            if takes:
                self._check_alone(node, takes[0])
                node.target = _get_op(self.torch, "stop_gradient")
                if name == _DETACH_IN_PLACE:
                    takes[0].replace_all_uses_with(node, lambda user: self.is_after(user, node))
            return
        inner = [getattr(self.module, n.target) for n in node.all_input_nodes if n.op == "get_attr"]
        bodies = [part for part in inner if isinstance(part, self.torch.fx.GraphModule)]
        if name in _REGIONS and not node.args[0]:
            self._stop_region(node, bodies[0])
            return
        for body in bodies:
            inputs = {n for n in body.graph.nodes if n.op == "placeholder"}
            _Stops(self.torch, body, inputs).run()
        if takes and name != f"{LIBRARY}::stop_gradient":
            self.flows.add(node)
            for written in _list_written(node):
                self.flows |= self.families[written]

    def _stop_region(self, node: Any, body: Any) -> None:
        """Stop what a region without gradients hands on, or what it takes if it writes to that."""
        inside = _Stops(self.torch, body, set())
        inputs = [n for n in body.graph.nodes if n.op == "placeholder"]
        given = dict(zip(inputs, node.args[2:], strict=True))
        for inner, written in inside.changes:
            for outer in (given[n] for n in inside.families[written] if n in given):
                self.written.add(outer)
                if outer in self.flows:
                    raise UnsupportedOpError(
                        "a value with a gradient is changed in place under no_grad"
                        f"{find_line(inner)}; make a new value: x = x + change.detach()"
                    )
        if not self.flows.intersection(node.all_input_nodes):
            return
        if any(n in given for _, written in inside.changes for n in inside.families[written]):
            with self.graph.inserting_before(node):
                for outer in dict.fromkeys(n for n in node.args[2:] if n in self.flows):
                    node.replace_input_with(outer, self._stop_value(outer))
            return
        for user in list(node.users):
            if user.users:
                with self.graph.inserting_after(user):
                    made = self._stop_value(user)
                user.replace_all_uses_with(made, lambda reader, made=made: reader is not made)
                self.renamed[user.name] = made.name

    def _stop_value(self, node: Any) -> Any:
        """Return a node that stops the gradient of a value, if that is of floats."""
        made = self.graph.call_function(_get_op(self.torch, "stop_gradient"), (node,))
        made.meta = dict(node.meta)
        self.families[made] = {made}
        return made

    def redirect_hooked(self, count: int) -> None:
        """Let what reads a value with a hook read what takes its place."""
        (end,) = (n for n in self.graph.nodes if n.op == "output")
        for made in end.args[0][-count:]:
            stopped, cotangent, value, _ = made.args
            early = [n for n in value.users if not self.is_after(n, made)]
            early = [n for n in early if n not in (stopped, cotangent, made)]
            if early:
                raise UnsupportedOpError(
                    f"register_hook{find_line(made)} on a value that was read before"
                    f"{find_line(early[0])}; register the hook where the value is made"
                )
            value.replace_all_uses_with(made, lambda user, made=made: self.is_after(user, made))

    # --- memory that is shared

    def _relate(self, node: Any) -> None:
        """Note what memory a node shares with what it reads, and what it writes."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return
        given = _list_arguments(node)
        for argument in schema.arguments:
            value, alias = given.get(argument.name), argument.alias_info
            if alias is None or value not in self.families:
                continue
            if any(r.alias_info is not None for r in schema.returns):
                self._unite(node, value)
            if alias.is_write:
                self.changes.append((node, value))
                self.written.add(value)

    def _unite(self, a: Any, b: Any) -> None:
        joined = self.families[a] | self.families[b]
        for node in joined:
            self.families[node] = joined

    def is_after(self, node: Any, other: Any) -> bool:
        return bool(self.places.get(node, -1) > self.places[other])

    def _check_alone(self, node: Any, value: Any) -> None:
        """Refuse a `detach` whose memory is written to later, and read by the other name.

        A copy takes its place, which would not see that.
        """
        mine = self._list_views(node)
        others = self.families[node] - mine
        for change, written in self.changes:
            if change in self.families[node] and self.is_after(change, node):
                rest = others if written in mine else mine
                if any(self.is_after(user, change) for n in rest - {change} for user in n.users):
                    raise UnsupportedOpError(
                        f"a value and its detach(){find_line(node)} share memory that is "
                        "changed in "
                        f"place{find_line(change)}; write detach().clone()"
                    )

    def _list_views(self, node: Any) -> set[Any]:
        """Return the nodes of a family that were made of this one."""
        users = {node}
        for other in self.graph.nodes:
            if other in self.families[node] and not users.isdisjoint(other.all_input_nodes):
                users.add(other)
        return users


def _name(node: Any) -> str:
    """Return the name of the operator of a node: `aten::add`, or a higher-order one."""
    schema = getattr(node.target, "_schema", None)
    return str(schema.name if schema is not None else getattr(node.target, "__name__", ""))


def _list_arguments(node: Any) -> dict[str, Any]:
    """Return the arguments of a node by their names."""
    names = [argument.name for argument in node.target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _list_written(node: Any) -> list[Any]:
    """Return the arguments that a node writes to."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    given = _list_arguments(node)
    aliases = [a for a in schema.arguments if a.alias_info is not None]
    written = [given.get(a.name) for a in aliases if a.alias_info.is_write]
    return [value for value in written if hasattr(value, "users")]


def find_line(node: Any) -> str:
    """Return where in the module's code a node is from, as " (file.py, line 3)"."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f" ({os.path.basename(frames[-1][0])}, line {frames[-1][1]})" if frames else ""


def _cut_first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
