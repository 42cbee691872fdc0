"""Export of an evaluation graph with its parameters inside, which any ONNX runtime can run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import (
    DTypeError,
    InputError,
    NameNotFoundError,
    ShapeError,
    UnsupportedOpError,
    suggest_nearest,
)
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, find_type
from engine.graphs.offline.integer_weights import is_rounded, is_rounded_to_nibbles, store_weights
from engine.graphs.offline.lora import keep_note
from engine.graphs.offline.nibbles import NIBBLE_OPSET, store_nibbles
from engine.graphs.offline.normalize import set_inference_mode
from engine.graphs.offline.packed_weights import unpack_weights
from engine.graphs.offline.precision import narrow_graph
from engine.graphs.offline.residuals import round_residuals
from engine.graphs.offline.sparse import join_parts
from engine.graphs.offline.ties import untie
from engine.graphs.passes.infer import infer
from engine.graphs.passes.quantised import PACKED_WEIGHTS
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import OURS
from engine.system.files import NOTE
from engine.system.paths import METADATA, Paths


def make_inference_model(
    eval_model: Graph | onnx_io.Model,
    parameters: Mapping[str, Array],
    output_names: Sequence[str],
    *,
    tied_apart: bool = True,
    keeps_roundings: bool = False,
) -> Graph:
    """Return the inference model of an evaluation model.

    Its outputs are the values `output_names`.  Its parameters are initializers with the values
    `parameters`.  Everything that the outputs do not need is left out: the loss, the labels, unread
    parameters.  Partly trained weights are whole again, copies of tied parameters are separate if
    `tied_apart`, and weights that training has rounded are integers, unless `keeps_roundings`; in
    4 bits they are stored as `store_nibbles` says, and so are weights that a file had in 4 bits.
    Nodes are in their inference form: the batch normalisations in evaluation models of
    onnxruntime-training have outputs for training, which ONNX forbids.  The evaluation model is not
    changed.

    Before   inputs x, labels, w;  y = MatMul(x, w); loss = ...(y, labels);  outputs loss
    After    inputs x; initializers w;  y = MatMul(x, w);                    outputs y

    Raises:
        InputError: there are no output names.
        NameNotFoundError: the model has no value with one of the names.
        ShapeError, DTypeError: a parameter does not fit the model.
        UnsupportedOpError: the outputs need operators that exist only for training.
    """
    source = eval_model if isinstance(eval_model, Graph) else onnx_io.load(eval_model)
    graph = set_inference_mode(select(source, output_names))
    graph.metadata = {k: text for k, text in graph.metadata.items() if not k.startswith(NOTE)}
    _embed(graph, parameters)
    unpack_weights(graph)
    round_residuals(graph)
    join_parts(graph)
    if tied_apart:
        untie(graph)
    # Weights that a file had in 4 bits are bytes in graphs; their opset tells that a runtime has
    # such types.
    has_nibbles = is_rounded_to_nibbles(graph) or graph.opsets.get("", 1) >= NIBBLE_OPSET
    if not keeps_roundings:
        store_weights(graph)
    keep_note(graph, source)
    paths = Paths.of(source.metadata).select(graph.initializers, (n.name for n in graph.nodes))
    if paths != Paths():
        graph.metadata[METADATA] = paths.write()
    if not (keeps_roundings and is_rounded(graph)):
        _refuse_training_ops(graph)
    graph.types = infer(graph.copy()).types  # the types in the eval model may be wrong
    graph.opsets = {d: v for d, v in graph.opsets.items() if d in {"", *_list_domains(graph)}}
    graph.check()
    return store_nibbles(graph) if has_nibbles and not keeps_roundings else graph


def _make_stored(
    source: Graph | onnx_io.Model, parameters: Mapping[str, Array], output_names: Sequence[str]
) -> Graph:
    """Return the inference model with weights of the type that the forward model had."""
    source = source if isinstance(source, Graph) else onnx_io.load(source)
    return narrow_graph(make_inference_model(source, parameters, output_names), source)


def select(eval_model: Graph, output_names: Sequence[str]) -> Graph:
    """Return a copy of an evaluation model with these outputs, and only the nodes that they need.

    Before   inputs x, labels, w;  y = MatMul(x, w); loss = ...(y, labels);  outputs loss
    After    inputs x, w;          y = MatMul(x, w);                         outputs y

    Raises:
        InputError: there are no output names.
        NameNotFoundError: the model has no value with one of the names.
    """
    graph = eval_model.copy()
    names = (
        [] if isinstance(output_names, str) else arguments.check_names("output names", output_names)
    )
    if not names:
        raise InputError(f"output names: expected a list of at least one, got {output_names!r}")
    known = set(graph.list_values())
    for name in names:
        if name not in known:
            raise NameNotFoundError(
                f"the output {name!r} could not be found in the eval model. Please regenerate the "
                f"eval graph, or name another value{suggest_nearest(name, known)}"
            )
    graph.outputs = list(dict.fromkeys(names))
    return _prune(graph)


def list_model_outputs(eval_model: Graph, target: str) -> list[str]:
    """Return the outputs of the forward model from which an evaluation model was made.

    They are the values that do not depend on the input `target`, but are operands of nodes that do.
    Constants, parameters and inputs do not count.

    Before   y = MatMul(x, w); loss = SoftmaxCrossEntropyLoss(y, labels)
    After    for "labels": y
    """
    depends, made = {target}, dict[str, None]()
    for node in eval_model.nodes:
        if not depends.isdisjoint(node.list_reads()):
            depends.update(node.outputs)
    given = set(eval_model.inputs) - {target}
    for node in eval_model.nodes:
        if not given.isdisjoint(node.list_reads()):
            given.update(node.outputs)
            made |= dict.fromkeys(node.outputs)
    read = {
        name for node in eval_model.nodes if depends & {*node.outputs} for name in node.list_reads()
    }
    return [name for name in made if name in read and name not in depends]


def make_inference_model_bytes(
    eval_model: Graph | onnx_io.Model,
    parameters: Mapping[str, Array],
    output_names: Sequence[str],
) -> bytes:
    """Return the inference model as bytes, see `make_inference_model`.

    Its weights are of the type that the forward model had.

    Raises:
        ModelError: it would exceed the 2 GiB of one message; otherwise as `make_inference_model`.
    """
    return onnx_io.to_bytes(_make_stored(eval_model, parameters, output_names))


def save_inference_model(
    eval_model: Graph | onnx_io.Model,
    parameters: Mapping[str, Array],
    output_names: Sequence[str],
    path: str | os.PathLike[str],
) -> None:
    """Write the inference model to a file; beyond about 2 GiB, also `<path>.data` beside it.

    Its weights are of the type that the forward model had.

    Raises:
        FileError: it cannot be written; otherwise as `make_inference_model`.
    """
    onnx_io.save(_make_stored(eval_model, parameters, output_names), path)


def _list_domains(graph: Graph) -> set[str]:
    return {n.domain for n in graph.nodes}


def _prune(graph: Graph) -> Graph:
    """Keep the nodes, initializers and inputs that the outputs need; return the graph."""
    wanted, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if any(o in wanted for o in node.outputs):
            wanted.update(node.list_reads())
            kept.append(node)
    graph.nodes = kept[::-1]
    graph.inputs = {n: t for n, t in graph.inputs.items() if n in wanted}
    graph.initializers = {n: a for n, a in graph.initializers.items() if n in wanted}
    return graph


def _embed(graph: Graph, parameters: Mapping[str, Array]) -> None:
    """Turn the inputs with the names of parameters into initializers."""
    for name, array in parameters.items():
        declared = graph.inputs.pop(name, None)
        if declared is None:
            continue
        t = find_type(array)
        if t.dtype != declared.dtype:
            raise DTypeError(f"parameter {name!r} is {t}; the model has {declared}")
        if t.shape != declared.shape:
            raise ShapeError(f"parameter {name!r} is {t}; the model has {declared}")
        graph.initializers[name] = array


def _refuse_training_ops(graph: Graph) -> None:
    operators = [
        f"{n.op} {n.name!r}"
        for n in graph.nodes
        if (op := list_ops().get((n.domain, n.op)))
        and (n.domain == OURS or op.is_for_training)
        and (n.domain, n.op) != PACKED_WEIGHTS  # of parameters without values, for plans
    ]
    if operators:
        raise UnsupportedOpError(
            f"{graph.name}: cannot make an inference model; operators for training only: "
            + ", ".join(operators)
        )
