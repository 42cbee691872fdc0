"""Module paths (engine/system/paths.py), as exporters record them.

PyTorch, by torch.export    metadata of nodes: the scopes, and the call with its arguments
PyTorch, by tracing         names of nodes: /encoder/layer.0/fc/MatMul
TensorFlow, by tf2onnx      names of nodes: StatefulPartitionedCall/model/fc/MatMul

If an exporter has made up the name of a weight, its path is the parameter of its call that is
missing from the model; if no calls are recorded, its path is the submodule that reads it and its
role there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Role, Scaling
from engine.system.paths import Paths

KERAS = "tf2onnx"
SCOPES = "pkg.torch.onnx.name_scopes"
_NONE = "_empty_nn_module_stack_from_metadata_hook"  # the exporter's name for no submodule
_MADE_UP = re.compile(r"onnx::|_?v(al)?_?\d+$|\d+$|node_|.*ReadVariableOp|.*__\d+$|const_fold")
_CALLED = re.compile(r"(Stateful)?PartitionedCall(_\d+)?")
# The names that PyTorch has for inputs of a role.
_NAMES = {
    Role.WEIGHT: "weight", Role.TABLE: "weight", Role.RECURRENT_WEIGHT: "weight_hh",
    Role.SCALE: "weight", Role.BIAS: "bias", Role.SHIFT: "bias",
    Role.MEAN: "running_mean", Role.VARIANCE: "running_var",
}  # fmt: skip
_OF_KERAS = {
    "weight": "kernel", "weight_ih": "kernel", "weight_hh": "recurrent_kernel",
    "running_mean": "moving_mean", "running_var": "moving_variance",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _TensorReader:
    """Node that reads a tensor, the index of the input, and the submodule of the node."""

    node: Any
    place: int
    scope: str


def find_paths(
    graph: Any, calls: Sequence[frozenset[str]], parameters: Mapping[str, str],
    known: Iterable[str], constants: Mapping[str, Array], producer: str,
) -> Paths:  # fmt: skip
    """Return the paths that a model records.

    graph: the message of the graph.
    calls: for each node, the arguments of the call from which it was made.
    parameters: for each parameter of the module, its argument in calls.
    known: the tensors of the module by name; empty if the file does not list them.
    constants: the values of the initializers of the model.
    producer: the exporter.
    """
    own = set(known)
    scopes = [find_scope(node, producer == KERAS) for node in graph.node]
    nodes = {n.name: s for n, s in zip(graph.node, scopes, strict=True) if n.name and s}
    readers: dict[str, list[_TensorReader]] = {}
    for node, scope in zip(graph.node, scopes, strict=True):
        for place, name in enumerate(node.input):
            readers.setdefault(name, []).append(_TensorReader(node, place, scope))
    called = {id(node): names for node, names in zip(graph.node, calls, strict=True)}
    gone = {argument: name for name, argument in parameters.items() if name not in constants}
    values: dict[str, str] = {}
    for name, array in constants.items():
        if name in own or array.ndim == 0 or array.size == 1 or not _is_weight(array):
            continue
        if own or _MADE_UP.match(name):
            path = _find_path(name, _find_user(name, readers), called, gone, bool(own))
            if path:
                values[name] = path
    again = _find_called_again(values, constants)
    return Paths(
        {name: again.get(path, path) for name, path in values.items()},
        {name: _rename_scope(scope, again) for name, scope in nodes.items()},
    )


def _find_called_again(values: Mapping[str, str], constants: Mapping[str, Array]) -> dict[str, str]:
    """Return the paths of weights of repeated calls, with the paths of the first calls.

    The tracing exporter numbers the calls of a submodule, `/fc_1/MatMul`, and transposes its weight
    for each of them.  So two weights are the same if they are equal, and their paths differ in the
    number only.
    """
    first: dict[str, str] = {}
    for name, path in values.items():
        first.setdefault(path, name)
    plain_paths = {}
    for name, path in values.items():
        plain = re.sub(r"_\d+(?=\.)", "", path)
        copied = plain != path and plain in first
        if copied and np.array_equal(constants[first[plain]], constants[name]):
            plain_paths[path] = plain
    return plain_paths


def _rename_scope(scope: str, again: Mapping[str, str]) -> str:
    """Return the submodule of a node, which may belong to a repeated call."""
    paths = (f"{scope}.{role}" for role in ("weight", "kernel"))
    return next((again[p].rpartition(".")[0] for p in paths if p in again), scope)


def _is_weight(array: Array) -> bool:
    """Return whether the array may be a weight, possibly quantised."""
    kind = array.dtype.kind  # V: bfloat16 and the types of 8 and 4 bits that NumPy has not
    return kind in "fV" or (kind in "iu" and array.dtype.itemsize == 1)


def _passes_on(node: Any) -> bool:
    """Return whether a node only moves its first input, or converts it to floats."""
    op = list_ops().get((node.domain, node.op_type))
    return op is not None and (
        op.keeps_elements or op.movement.is_reversible or op.scaling is Scaling.DEQUANTISES
    )


def _find_user(name: str, readers: Mapping[str, Sequence[_TensorReader]]) -> _TensorReader | None:
    """Return the first node that computes with a tensor, after those that only move it."""
    reader: _TensorReader | None = None
    for _ in range(len(readers) + 1):
        using = readers.get(name)
        if not using:
            return reader
        reader = next((r for r in using if not _passes_on(r.node)), using[0])
        if not _passes_on(reader.node) or reader.place or not reader.node.output:
            return reader
        name = reader.node.output[0]
    return reader


def _find_path(
    name: str,
    reader: _TensorReader | None,
    called: Mapping[int, frozenset[str]],
    gone: Mapping[str, str],
    is_told: bool,
) -> str:
    """Return the path of a tensor with a made-up name, or "".

    gone: parameters that the model lacks, by their argument in calls.
    is_told: whether the file lists the tensors of the module.
    """
    if reader is None:
        return ""
    taken = [path for argument, path in gone.items() if argument in called[id(reader.node)]]
    role = "bias" if reader.node.name.endswith("/BiasAdd") else _find_role(reader)
    if taken:
        fits = [path for path in taken if role and path.rpartition(".")[2].startswith(role)]
        return (fits or taken)[0]
    if not reader.scope:
        return ""
    if role and not is_told:
        is_keras = not reader.node.name.startswith("/")
        return f"{reader.scope}.{_OF_KERAS.get(role, role) if is_keras else role}"
    return f"{reader.scope}.{name.rpartition('::')[2].rpartition('/')[2]}"


def _find_role(reader: _TensorReader) -> str:
    """Return PyTorch's name for what a node reads; "" if its op does not say what it is."""
    node = reader.node
    op = list_ops().get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
    role = op.roles.get(reader.place) if op is not None else None
    if op is None or role is None:
        return ""
    is_recurrent = Role.RECURRENT_WEIGHT in op.roles.values()
    return "weight_ih" if is_recurrent and role is Role.WEIGHT else _NAMES[role]


def find_scope(node: Any, is_keras: bool) -> str:
    """Return the submodule of a node; "" if it is unknown, or the module itself."""
    for entry in getattr(node, "metadata_props", ()):  # onnx before 1.16 has none
        if entry.key == SCOPES:
            names = [name.strip(" '\"") for name in entry.value.strip("[]").split(",")]
            scope = names[-2] if len(names) > 1 else ""
            return "" if scope == _NONE else scope
    *parts, _ = node.name.strip("/").split("/")
    if not node.name.startswith("/"):
        return ".".join(p for p in parts if not _CALLED.fullmatch(p)) if is_keras else ""
    scopes: list[str] = []
    for part in parts:  # /mlp/mlp.0/MatMul: children of containers repeat its name
        if scopes and part.startswith(f"{scopes[-1]}."):
            scopes.pop()
        scopes.append(part)
    return ".".join(scopes)
