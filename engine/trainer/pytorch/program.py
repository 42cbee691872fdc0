"""A module of PyTorch as a program of ONNX, by torch's own exporter with the options it needs."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import os
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from engine.base.errors import EngineError, UnsupportedOpError
from engine.kernels.vocabulary.op import OURS
from engine.trainer.pytorch import autograd as torch_autograd
from engine.trainer.pytorch import ctc
from engine.trainer.pytorch.attention import read_no_masked_key
from engine.trainer.pytorch.functions import write_out_calls
from engine.trainer.pytorch.module_call import ModuleCall, tensors_of
from engine.trainer.pytorch.packing import without_values
from engine.trainer.pytorch.selections import read_by_places
from engine.trainer.pytorch.tracing import (
    with_open_lengths,
    without_guesses,
    without_moves,
    without_validation,
)

_LACKING = re.compile(r"No ONNX function found for <OpOverload\(op='(.*?)'")
# Packages whose frames are not the module's code.
_EXPORTERS = frozenset({"engine", "torch", "onnxscript", "onnx_ir", "onnx", "sympy", "numpy"})
_TRACE = "pkg.torch.onnx.stack_trace"  # names files of the machine that exports

# Mixtures of experts of transformers select the matrices of each token by index, which becomes a
# SegmentMatMul.  Their other implementations loop over the values of tensors, or call operators
# that torch.onnx cannot export.
_EXPERTS = "batched_mm"


@contextlib.contextmanager
def in_mode(module: Any, trains: bool) -> Iterator[None]:
    """Put the module in training or evaluation mode, without caches; restore it afterwards.

    So are its buffers, which some modules change while they run forward.  If it trains already, its
    submodules keep the modes that they are in.
    """
    before = list_modes(module)
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        if not (trains and module.training):
            module.train(trains)
        with configured(module, "use_cache", False):
            yield
    finally:
        restore_modes(module, before)
        for buffer, value in buffers:
            if not buffer.equal(value):  # one that is equal may be of a read-only file
                buffer.detach().copy_(value)


def list_modes(module: Any) -> dict[Any, bool]:
    """Return whether the module and each of its submodules is in training mode."""
    return {part: part.training for part in module.modules()}


def restore_modes(module: Any, modes: Mapping[Any, bool]) -> None:
    """Put the module and its submodules back into these modes, and let it drop what it has cached.

    Some attentions keep the biases that they have computed of their parameters in evaluation mode,
    until `train()` is called: they would answer with these whatever the parameters become.
    """
    module.train()
    if not modes[module]:
        module.eval()
    for part, trains in modes.items():
        part.training = trains


@contextlib.contextmanager
def configured(module: Any, option: str, value: Any) -> Iterator[None]:
    """Set an option of transformers' configurations in a module that have it; restore it after."""
    configs = [getattr(part, "config", None) for part in module.modules()]
    before = [
        (config, getattr(config, option))
        for config in {id(config): config for config in configs}.values()
        if hasattr(config, option)
    ]
    try:
        for config, _ in before:
            setattr(config, option, value)
        yield
    finally:
        for config, given in reversed(before):  # some set the options of their parts, too
            setattr(config, option, given)


@contextlib.contextmanager
def silently(torch: Any) -> Iterator[None]:
    """Suspend gradients and the exporter's output, and keep the state of torch's random numbers."""
    level = logging.root.manager.disable
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)


def program_of(
    torch: Any, module: Any, call: ModuleCall, opset: int
) -> tuple[Any, list[str], list[str]]:
    """Export a module: return the ONNX model, and the names of outputs and of moved buffers.

    Moved buffers are of floats, and `forward` changes them; in training, the model does so, too.

    Raises:
        UnsupportedOpError: torch cannot export it.
    """
    names: list[str] = []
    changed: list[str] = []
    hooks = torch_autograd.list_hooks(module)
    notes = torch_autograd.Notes(torch, module)

    def flatten_arguments(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        with torch_autograd.recording(notes):
            notes.kept.clear()
            notes.note_parameter_hooks(hooks)
            results = dict(tensors_of(torch, module.forward(*args, **kwargs), ""))
            results = {name: calls.finish(value) for name, value in results.items()}
        names[:] = results
        buffers = (module.get_buffer(name).clone() for name in changed)
        return (*results.values(), *buffers, *notes.kept)

    # A shallow copy shares all parameters with the module; only what it returns is another.
    flat, calls = copy.copy(module), write_out_calls(torch)
    flat.forward = functools.wraps(module.forward)(flatten_arguments)
    args, kwargs = call.resized(max(call.rows, 2))  # torch takes a batch of one row for a constant
    try:
        with (
            torch.enable_grad(),
            configured(module, "_experts_implementation", _EXPERTS),
            torch_autograd.without_hooks(flat),
            calls,
            with_open_lengths(torch),
            without_guesses(torch),
            without_moves(torch),
            without_validation(torch),
            without_values(torch),
        ):
            # The exporter drops new values of buffers which nothing reads, so that a module that
            # changes some is traced once more, with these values as outputs.
            for _ in range(2):
                traced = torch.export.export(
                    flat, args, kwargs, dynamic_shapes=call.dynamic(), strict=False
                )
                traced._guards_code = []  # for calls of the trace; torch cannot write all of them
                read_by_places(torch, traced)
                moved = torch_autograd.stop(torch, traced, len(notes.kept))
                if moved == changed:
                    break
                changed[:] = moved
        program = torch.onnx.export(
            traced, dynamo=True, optimize=False, opset_version=opset, verbose=False,
            custom_translation_table={
                **torch_autograd.list_translations(torch), **ctc.list_translations(torch)
            },
        )  # fmt: skip
    except EngineError:
        raise
    except Exception as error:  # of many classes, most of them private
        raise UnsupportedOpError(
            f"torch cannot export {type(module).__name__}: {_find_reason(error)}{_advise(error)}"
        ) from error
    graph = program.model.graph
    _let_drop(graph)
    read_no_masked_key(graph)
    del graph.outputs[len(names) :]  # values of buffers and values with hooks
    _copy_shared_outputs(graph)
    if changed and module.training:
        _move_buffers(torch, module, call, program, changed)
    for node in graph:
        node.metadata_props.pop(_TRACE, None)
    _name_axes(graph, call.axis_names())
    _name_inputs(graph)
    return program, _name_outputs(graph, names), changed


def _move_buffers(
    torch: Any, module: Any, call: ModuleCall, program: Any, changed: Sequence[str]
) -> None:
    """Write a MovedBuffer for each buffer that a program changes.

    Readers of the new value in training read the old one in evaluation mode, unless the module
    changes the buffer there as well.

    changed: the buffers that are changed in place.

    Raises:
        UnsupportedOpError: torch's exporter does not write the new value of one.
    """
    import onnx_ir

    graph = program.model.graph
    own = dict(module.named_buffers(remove_duplicate=False))
    values = {value.name: value for node in graph for value in node.outputs}
    moved = program.exported_program.graph_signature.buffers_to_mutate
    made = {name: values[value] for value, name in moved.items() if value in values}
    moves_always = _list_changed(torch, module, call)
    for name in changed:
        if name not in made:
            raise UnsupportedOpError(
                f"{type(module).__name__} changes its buffer {name!r} while it runs forward, and "
                "torch's exporter does not write the new value; compute it outside of the module"
            )
        new = made[name]
        old = graph.initializers.get(name) or _add_initializer(graph, name, own[name])
        node = onnx_ir.node(
            "MovedBuffer", inputs=[old, new], domain=OURS, name=f"{name}/MovedBuffer"
        )
        (value,) = node.outputs
        value.name, value.type, value.shape = f"{name}_moved", new.type, new.shape
        if name not in moves_always:
            new.replace_all_uses_with(value, replace_graph_outputs=True)
            node.replace_input_with(1, new)
        maker = new.producer()
        graph.insert_after(maker, node)
    program.model.opset_imports.setdefault(OURS, 1)


def _add_initializer(graph: Any, name: str, buffer: Any) -> Any:
    """Add a buffer that nothing reads before it changes, which the exporter leaves out."""
    import onnx_ir

    tensor = onnx_ir.tensor(buffer.detach().numpy().copy(), name=name)
    value = onnx_ir.Value(
        name=name, type=onnx_ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _list_changed(torch: Any, module: Any, call: ModuleCall) -> set[str]:
    """Return the buffers that a module changes while it runs forward in evaluation mode."""
    args, kwargs = call.resized(call.rows)
    before = {n: b.clone() for n, b in module.named_buffers(remove_duplicate=False)}
    with in_mode(module, trains=False), silently(torch):
        module(*args, **kwargs)
        after = dict(module.named_buffers(remove_duplicate=False))
        return {name for name, value in before.items() if not after[name].equal(value)}


def _let_drop(graph: Any) -> None:
    """Let every dropout drop: the exporter writes dropouts of attention as if they were off.

    A dropout that is off in the module is not in the program, or its ratio is 0.
    """
    import onnx_ir

    for node in list(graph):
        if node.op_type == "Dropout" and not node.domain and len(node.inputs) == 2:
            on = onnx_ir.tensor(np.array(True), name=f"{node.outputs[0].name}_on")
            constant = onnx_ir.node("Constant", inputs=[], attributes={"value": on})
            constant.outputs[0].name = on.name
            graph.insert_before(node, constant)
            node.resize_inputs(3)
            node.replace_input_with(2, constant.outputs[0])


def _copy_shared_outputs(graph: Any) -> None:
    """Let every output be a value of its own.

    A module may return a tensor under two names, or an argument or a parameter as it is.
    """
    import onnx_ir

    taken = {id(value) for value in (*graph.inputs, *graph.initializers.values())}
    for i, value in enumerate(graph.outputs):
        if id(value) in taken:
            node = onnx_ir.node("Identity", inputs=[value], name=f"{value.name}/Identity{i}")
            (copied,) = node.outputs
            copied.name = f"{value.name}_copy{i}"
            copied.type, copied.shape = value.type, value.shape
            graph.append(node)
            graph.outputs[i] = copied
        taken.add(id(value))


def _name_axes(graph: Any, names: Sequence[Mapping[int, str]]) -> None:
    """Name the axes of the inputs that may have any size, and all axes of the same size."""
    new = {
        str(value.shape[axis]): name
        for value, axes in zip(graph.inputs, names, strict=True)
        for axis, name in axes.items()
    }
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        for axis, size in enumerate(value.shape or ()):
            if str(size) in new and not isinstance(size, int):
                value.shape[axis] = new[str(size)]


def _name_inputs(graph: Any) -> None:
    """Name the inputs of a graph otherwise that have the name of a parameter or a buffer.

    These keep their names, by which they go back into the module.
    """
    taken = {*graph.initializers, *(value.name for value in graph.inputs)}
    for value in graph.inputs:
        if value.name in graph.initializers:
            name = f"{value.name}_input"
            while name in taken:
                name += "_"
            taken.add(name)
            value.name = name


def _name_outputs(graph: Any, names: Sequence[str]) -> list[str]:
    """Name the outputs of a graph; inputs and parameters keep their names, other values make way.

    Returns the names, with `_output` appended where an input or a parameter has the name.
    """
    kept = {*graph.initializers, *(value.name for value in graph.inputs)}
    outputs = [f"{name}_output" if name in kept else name for name in names]
    inner = {value.name: value for node in graph for value in node.outputs}
    for name in (kept | set(outputs)) & set(inner):  # torch calls a mean `mean`, and a buffer too
        inner[name].name = f"{name}_value"
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name
    return outputs


def _find_reason(error: BaseException) -> str:
    """Return the first line of what the first cause of an error says, and where it arose."""
    place = _find_place(error)
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    if lacking := _LACKING.match(first):
        return f"its exporter has no ONNX function for {lacking[1]}{place}"
    return f"{type(error).__name__}: {first}{place}"


def _find_place(error: BaseException) -> str:
    """Return the line of the module's code that an error is about, as " (model.py, line 3)".

    It made the node that the exporter was writing, or torch was tracing it; "" if neither is known.
    """
    place = ""
    cause: BaseException | None = error
    while cause is not None:
        for frame, line in traceback.walk_tb(cause.__traceback__):
            node = frame.f_locals.get("node")
            is_node = type(node).__module__ == "torch.fx.node"
            if is_node and (written := torch_autograd.find_line(node)):
                return written
            if frame.f_globals.get("__name__", "").partition(".")[0] not in _EXPORTERS:
                place = f" ({os.path.basename(frame.f_code.co_filename)}, line {line})"
        cause = cause.__cause__
    return place


def _advise(error: BaseException) -> str:
    """Return advice on an error of torch's, as far as it is known."""
    said = str(error)
    if _LACKING.search(said):
        return (
            "; write that line by other functions of torch, or compute it outside of the module "
            "and pass it as an argument"
        )
    if "data-dependent" in said or "DataDependent" in type(error).__name__:
        return (
            "; the module decides by values of tensors: write it with torch.where, or compute the "
            "decision before and pass it as an argument that is not a tensor"
        )
    if "specialized" in said or "onstraint" in said:
        return (
            "; is axis 0 of the example the batch? An example is [batch, ...], and the module may "
            "not depend on how many rows there are"
        )
    return ""
