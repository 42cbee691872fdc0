"""Models with adapters: making them, merging adapters into weights, and leaving them open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from engine.base.aliases import Array, StrPath
from engine.base.errors import InputError
from engine.base.signatures import check_arguments
from engine.graphs.io.writable_model import Model, WritableModel
from engine.lora.adapter_options import Lora

if TYPE_CHECKING:
    from engine.graphs.io.note import Note
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline.lora import AdapterSummary


@check_arguments
@dataclass(frozen=True, slots=True)
class Adapted(WritableModel):
    """A model with new adapters, which prints as a summary of them."""

    graph: Graph
    summary: AdapterSummary

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON types."""
        summary = self.summary
        note = {k: v for k, v in asdict(summary.note).items() if k != "layers"}
        rows = {key: [asdict(row) for row in getattr(summary, key)] for key in ("layers", "left")}
        return {**note, "scale": summary.note.scale, "added": summary.added,
                "values": summary.values, **rows}  # fmt: skip

    def __str__(self) -> str:
        return str(self.summary)

    __repr__ = __str__  # in a notebook


@check_arguments
def adapt(model: Model, lora: Lora | str | Sequence[str]) -> Adapted:
    """Add adapters to layers of a forward model; the given file or message is not changed.

    Layers are MatMul, Gemm and Conv with a weight that depends only on constants, possibly
    through Transpose, Reshape or DequantizeLinear, and MatMulNBits.  Products of integers, as
    onnxruntime's quantisers write them, become such layers, also in QAttention; their weights stay
    integers.  At first the results of the model do not change, up to roundings, since B is zero.
    `Trainer.from_onnx` and `edgegrad artifacts` train only the adapters of such a model; everything
    else stays a constant of the artifacts.

    Args:
        model: A path, bytes or `ModelProto`.
        lora: The layers, and the kind of adapters; patterns stand for `Lora(patterns)`.

    Raises:
        FileError, ModelError: the model cannot be read, or already has adapters.
        NameNotFoundError: a pattern occurs in no name; the message lists similar ones.
        UnsupportedOpError: none of the named layers can have an adapter; the message says why.
        InputError, DTypeError: an option is not allowed.
    """
    from engine.graphs.offline.lora import adapt as adapt_graph
    from engine.graphs.offline.precision import widen_weights

    options = lora if isinstance(lora, Lora) else Lora(lora)
    graph = widen_weights(_load(model))
    summary = adapt_graph(
        graph,
        options.patterns,
        rank=options.rank,
        alpha=2.0 * options.rank if options.alpha is None else options.alpha,
        dropout=options.dropout,
        rank_stabilised=options.rank_stabilised,
        seed=options.seed,
    )
    return Adapted(graph, summary)


@check_arguments
def parameters(model: Model) -> list[str]:
    """Return the names of the adapters' parameters in a model, for `requires_grad`.

    Raises:
        InputError: the model has no adapters.
    """
    return _read_note(_load(model)).list_parameters()


@check_arguments
def merge(model: Model, path: StrPath, *, dequantise: bool = False) -> list[str]:
    """Merge adapters into the weights: write the model with W + scale B A instead of W.

    Args:
        model: One whose adapters have values, as `Trainer.export` writes it.
        path: The file to write.
        dequantise: Also merge into quantised weights, which become weights of float32.  By default
            their layers keep their adapters, as nodes of plain ONNX.

    Returns the names of the layers that keep their adapters.

    Raises:
        InputError: the model has no adapters.
        FileError, ModelError: the model cannot be read or written.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.offline.lora_merge import merge as merge_graph
    from engine.graphs.offline.precision import narrow_graph, widen_graph

    graph = widen_graph(_load(model))
    _read_note(graph)
    kept = merge_graph(graph, dequantise)
    onnx_io.save(narrow_graph(graph, graph), path)
    return kept


@check_arguments
def open_inputs(model: Model, path: StrPath) -> list[str]:
    """Write the model with its adapters as inputs, which each run can set.

    The adapters' parameters become inputs with the present values as defaults: onnxruntime replaces
    them by the values of an `.onnx_adapter`, so several adapters can run on one base.

    Returns the names of these inputs.

    Raises:
        InputError: the model has no adapters.
        FileError, ModelError: the model cannot be read or written.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.offline.precision import narrow_graph, widen_graph

    graph = widen_graph(_load(model))
    names = _read_note(graph).list_parameters()
    onnx_io.save(narrow_graph(graph, graph), path, defaults=names)
    return names


def read_values(model: Model) -> tuple[Note, dict[str, Array]]:
    """Return the note of a model on its adapters, and the values of their parameters.

    Raises:
        InputError: the model has no adapters, or they have no values.
    """
    graph = _load(model)
    note = _read_note(graph)
    lost = [name for name in note.list_parameters() if name not in graph.initializers]
    if lost:
        raise InputError(
            f"{graph.name}: the adapter's parameter {lost[0]!r} is an input without a value; give "
            "the model that Trainer.export writes"
        )
    return note, {name: graph.initializers[name] for name in note.list_parameters()}


def _load(model: Model) -> Graph:
    from engine.graphs.io import onnx_io
    from engine.graphs.ir.graph import Graph

    return model.copy() if isinstance(model, Graph) else onnx_io.load(model)


def _read_note(graph: Graph) -> Note:
    from engine.graphs.offline.lora import note_of

    note = note_of(graph)
    if note is None:
        raise InputError(f"{graph.name}: the model has no adapters; lora.adapt gives it some")
    return note
