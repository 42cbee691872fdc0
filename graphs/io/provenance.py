"""Provenance: changes that PyTorch's exporters have made to a module, by the notes in the model.

An exporter that optimises for inference computes weights from others.  Such a model computes the
same as the module, but trains differently: a batch normalisation that has become part of a
convolution no longer normalises, and a parametrisation that was computed once no longer holds.

The exporter by torch.export (`dynamo=True`) writes the names of all parameters into the metadata of
the graph, and into the metadata of each node the call it was made from and the rules that rewrote
it.  The tracing exporter (`dynamo=False`) gives a computed tensor a number as its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.base.aliases import Array
from engine.base.errors import join_names
from engine.graphs.io.module_paths import find_paths
from engine.system.paths import Paths

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_CALL = "pkg.torch.onnx.fx_node"
_RULE = "pkg.onnxscript.rewriter.rule_name"
_ENTRY = re.compile(r"^(\w+): ([A-Z_]+) target='([^']*)'", re.MULTILINE)
_NUMBER = re.compile(r"val_\d+|scalar_tensor_default(_\d+)?|\w+_cast")
_COMPUTED = re.compile(r"onnx::(Conv|ConvTranspose|Gemm)_\d+")

EXPORT_NEW = "torch.onnx.export(..., dynamo=True, optimize=False)"
EXPORT_OLD = (
    "torch.onnx.export(..., dynamo=False, training=torch.onnx.TrainingMode.TRAINING, "
    "do_constant_folding=False)"
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Facts about the module from which a model was exported.

    gone: its parameters that are not initializers of the model.
    notes: sentences on folded nodes, and on options of the exporter that prevent it.
    parameters: its parameters that are initializers of the model; empty if the file does not list
        them.
    buffers: its other tensors that are initializers.
    paths: the places of its tensors and nodes in the module.
    """

    gone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    paths: Paths = field(default_factory=Paths)


@dataclass(frozen=True, slots=True)
class _TracedNode:
    """Node, the arguments of the call from which it was made, and the rules that rewrote it."""

    node: Any
    arguments: frozenset[str]
    rules: str

    @classmethod
    def of(cls, node: Any) -> _TracedNode:
        notes = _read_metadata(node)
        if not notes:
            return cls(node, frozenset(), "")
        arguments = frozenset(re.findall(r"%(\w+)", notes.get(_CALL, "")))
        return cls(node, arguments, notes.get(_RULE, ""))

    @property
    def is_folded_norm(self) -> bool:
        """True if it has absorbed a batch normalisation."""
        return "FuseBatchNorm" in self.rules

    def list_strangers(self, parameters: Mapping[str, str]) -> Sequence[str]:
        """Return the inputs of the node, unless one may be a parameter of the call in another
        layout.

        parameters: the argument of each parameter in calls.
        """
        passed = {name for name, argument in parameters.items() if argument in self.arguments}
        return () if passed - set(self.node.input) else self.node.input

    def swaps(self, parameters: Mapping[str, str]) -> bool:
        """Return whether the node reads a parameter that the call did not take."""
        others = [parameters[i] for i in self.node.input if i in parameters]
        return not self.is_folded_norm and any(a not in self.arguments for a in others)


def read_provenance(graph: Any, producer: str, constants: Mapping[str, Array]) -> Provenance:
    """Return the facts that the notes of the exporter tell about the module.

    graph: the message of the graph.
    constants: the values of its initializers.
    """
    entries = _ENTRY.findall(_read_metadata(graph).get(_SIGNATURE, ""))
    calls = [_TracedNode.of(node) for node in graph.node]
    norms = [call for call in calls if call.is_folded_norm]
    parameters = {target: name for name, kind, target in entries if kind == "PARAMETER"}
    tensors = {target for *_, target in entries}
    taken = [call.arguments for call in calls]
    paths = find_paths(graph, taken, parameters, tensors, constants, producer)
    if not entries and not norms:
        return replace(_read_traced(graph) if producer == "pytorch" else Provenance(), paths=paths)
    gone = [name for name in parameters if name not in constants]
    asked = {name: [c for c in calls if parameters[name] in c.arguments] for name in gone}
    notes = []
    if norms:
        notes.append(f"{_list(_title(c.node) for c in norms)} took over batch normalisation")
    lost = [name for name, callers in asked.items() if not callers]
    made = {i for c in calls for i in c.list_strangers(parameters) if i in constants} - tensors
    if lost and any(_is_computed(i, constants[i]) for i in made):
        notes.append(f"parameters were folded into other weights: {_list(lost)}")
    merged = [n for n, callers in asked.items() if any(c.swaps(parameters) for c in callers)]
    if merged:
        notes.append(f"parameters that were equal are stored as one: {_list(merged)}")
    buffers = {target: name for name, kind, target in entries if kind == "BUFFER"}
    kept, others = (tuple(n for n in part if n in constants) for part in (parameters, buffers))
    sentences = tuple(_note(text, EXPORT_NEW) for text in notes)
    return Provenance(tuple(gone), sentences, kept, others, paths)


def _read_traced(graph: Any) -> Provenance:
    """Do as `read_provenance` for the tracing exporter."""
    computed = [
        node
        for node in graph.node
        if node.op_type in ("Conv", "ConvTranspose", "Gemm")
        and len(node.input) > 1
        and _COMPUTED.fullmatch(node.input[1])
    ]
    if not computed:
        return Provenance()
    layers = _list(map(_title, computed))
    text = f"the weights of {layers} were computed, as with a folded batch norm"
    return Provenance((), (_note(text, EXPORT_OLD),))


def describe_dropped(names: Sequence[str]) -> str:
    """Return the text of an error for parameters of the module that the model lacks."""
    return (
        f"the module had {_list(names)}, which the exporter has folded into other weights, stored "
        f"as one with equal or shared ones, or left out as unused: {EXPORT_NEW} folds nothing"
    )


def _note(text: str, export: str) -> str:
    return (
        f"the exporter has changed the trainable parameters: {text}; to train the original ones, "
        f"export with {export}"
    )


def _read_metadata(message: Any) -> dict[str, str]:
    """Return the text metadata of a node or graph; onnx before 1.16 has none."""
    entries = getattr(message, "metadata_props", ())
    if not entries:
        return {}
    return {entry.key: entry.value for entry in entries if isinstance(entry.value, str)}


def _is_computed(name: str, value: Array) -> bool:
    """Return whether a constant that is not a tensor of the module may be computed from parameters.

    Numbers in the module's code are scalars, which the exporter names.
    """
    return value.dtype.kind == "f" and (value.size > 1 or not _NUMBER.fullmatch(name))


def _title(node: Any) -> str:
    return f"{node.op_type} {node.name!r}"


def _list(names: Iterable[str]) -> str:
    return join_names(names, quoted=False)
