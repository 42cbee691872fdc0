"""Precision: how models with 16-bit floats or integers as weights can be trained.

16-bit floats       every value becomes float32: weights, inputs and outputs; see `widen_graph`.
                    An exported model is float16 or bfloat16 again where it was, see `narrow_graph`
integer products    no gradient flows through them: nodes before them stay as they are
integer weights     of DequantizeLinear and MatMulNBits: they are frozen, adapters train beside them
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from engine.base.errors import DTypeError, ModelWarning, join_names, warn_user
from engine.graphs.ir.graph import Graph, Names
from engine.graphs.ir.sites import find_product, is_dequantiser, is_reversible_move
from engine.graphs.passes.half import (
    cast_ends,
    convert_array,
    convert_attribute,
    has_halves,
    widen_halves,
)
from engine.kernels.vocabulary.facts import Factors
from engine.kernels.vocabulary.op import TensorType
from engine.system.files import BFLOATS, NOTE

# Metadata of a model that has weights of 16-bit floats: what is float32 in it, and their type.
_SINGLE, _HALF = NOTE + "single", NOTE + "half"
_HALVES = NOTE + "halves"  # its constants of these
_INSIDE = NOTE + "inside"  # only its inputs and outputs become 16-bit floats again
_OWN = {_SINGLE, _HALF, _HALVES, _INSIDE}
_NAMES = {"f16": "float16", "bf16": "bfloat16"}
_LARGEST = {"f16": 65504.0, "bf16": (2 - 2.0**-7) * 2.0**127}
_KINDS = {Factors.DYNAMIC: "dynamically quantised", Factors.STATIC: "statically quantised"}
_ADVICE = (
    "train its last layer as floats (train='head'), give it adapters (lora='.'), which train "
    "beside integer weights"
)
_FLOAT = "train the float model that it was made from, and quantise that again"


def tell(graph: Graph, parameters: Sequence[str]) -> str:
    """Return a text on a model with integer weights and its trainable parameters; "" for other
    models.

    parameters: the trainable parameters of the model, see `parameters` of parameters.py.
    """
    products = [(n, p.factors) for n in graph.nodes if (p := find_product(n)) is not None]
    weights = _find_integer_weights(graph)
    packed = [n for n, factors in products if factors is Factors.PACKED]
    of_floats = [n for n, factors in products if factors is Factors.FLOATS]
    reads = sum(not weights.isdisjoint(n.inputs) for n in of_floats)
    integer = len(products) - len(of_floats) + reads
    if not integer:
        return ""
    told = [f"{integer} of {len(products)} products are integer"]
    kinds = {factors for _, factors in products}
    told += [f"it is {kind} int8" for factors, kind in _KINDS.items() if factors in kinds]
    if reads:
        told.append("its weights are integers before DequantizeLinear (QDQ)")
    if packed:
        bits = sorted({str(n.attrs.get("bits", 4)) for n in packed})
        told.append(f"its weights have {' and '.join(bits)} bits ({packed[0].op})")
    rest = join_names(parameters, 3)
    left = (
        f"of its parameters {rest} can be trained" if parameters else "it has no float parameters"
    )
    return f"{', '.join(told)}; {left}: {_ADVICE}, or {_FLOAT}"


def trains_no_product(graph: Graph, trained: Iterable[str]) -> bool:
    """Return whether products of integers, which pass no gradient on, leave no weight to train.

    trained: the parameters that are trained; without a weight they are biases and the like.
    """
    known = graph.initializers
    products = filter(None, map(find_product, graph.nodes))
    has_integers = any(product.factors.are_integers for product in products)
    return has_integers and not any(n in known and known[n].ndim > 1 for n in trained)


def describe_halves(half: str) -> str:
    """Return a text on a model whose weights are 16-bit floats of a type."""
    return (
        f"the weights of the model are {_NAMES[half]}: they are trained as float32, and so are all "
        f"values, inputs and outputs included; an exported model is {_NAMES[half]} again"
    )


def widen_weights(graph: Graph) -> Graph:
    """Convert a graph whose weights are 16-bit floats to float32, in place, and warn that it is
    trained so.
    """
    half = find_half_weights(graph)
    if not half:
        return graph
    warn_user(describe_halves(half), ModelWarning)
    return widen_graph(graph)


def widen_graph(graph: Graph) -> Graph:
    """Convert a graph from float16 to float32, inputs and outputs included, in place.

    Values that were bfloat16 in the file are float32 already.

    Before   x: f16; w: f16; y = MatMul(x, w); z = Cast(y) to f16
    After    x: f32; w: f32; y = MatMul(x, w); z = Cast(y) to f32
    """
    bfloats = set(json.loads(graph.metadata.pop(BFLOATS, "[]")))
    if bfloats:
        if has_halves(graph):
            raise DTypeError("the model has both float16 and bfloat16; supported: one of them")
        graph.metadata[_HALF] = "bf16"
        graph.metadata[_SINGLE] = json.dumps(sorted({*_list_single(graph)} - bfloats))
        graph.metadata[_HALVES] = json.dumps(sorted(bfloats & {*graph.initializers}))
        return graph
    if not has_halves(graph):
        return graph
    graph.metadata[_HALF] = "f16"
    graph.metadata[_SINGLE] = json.dumps(sorted(_list_single(graph)))
    halves = (n for n, a in graph.initializers.items() if a.dtype == np.float16)
    graph.metadata[_HALVES] = json.dumps(sorted(halves))
    graph.inputs = {
        n: t.but(dtype="f32") if t.dtype == "f16" else t for n, t in graph.inputs.items()
    }
    return widen_halves(graph)


def keep_inside(graph: Graph) -> None:
    """Let `narrow_graph` change only inputs and outputs, since float16 would lose small scales of
    quantised values.
    """
    if _SINGLE in graph.metadata:
        graph.metadata[_INSIDE] = "float32"


def narrow_graph(graph: Graph, source: Graph) -> Graph:
    """Convert an inference graph back to 16-bit floats where the file had them that it comes from,
    in place.

    A graph stays float32, and a warning says so, if their type cannot hold a parameter.  After
    `keep_inside` only inputs and outputs change.  New constants, such as adapters, stay float32
    where they meet float32 alone: a file may have float16 in some places, such as scales.

    source: the evaluation graph, which knows what `widen_graph` has found.

    Before   x: f32; w: f32; y = MatMul(x, w); z = Cast(y) to f32
    After    x: f16; w: f16; y = MatMul(x, w); z = Cast(y) to f16
    """
    if _SINGLE not in source.metadata:
        return graph
    single, half = set(json.loads(source.metadata[_SINGLE])), source.metadata.get(_HALF, "f16")
    only_ends = _INSIDE in source.metadata
    # Artifacts of earlier versions do not list them: there, all constants that are not single are.
    known = source.metadata.get(_HALVES)
    halves = {*graph.initializers} if known is None else {*json.loads(known)}
    graph.metadata = {k: t for k, t in graph.metadata.items() if k not in _OWN}
    if only_ends:
        inputs = [n for n, t in graph.inputs.items() if t.dtype == "f32" and n not in single]
        made = [n for n in graph.outputs if graph.types[n].dtype == "f32" and n not in single]
        _narrow_ends(graph, single, half)
        return cast_ends(graph, half, inputs, made)
    single |= _find_beside_singles(graph, single, halves)
    chosen = {n for n, a in graph.initializers.items() if a.dtype == np.float32} - single
    for name in sorted(chosen):
        most = np.abs(graph.initializers[name]).max(initial=0)
        if most > _LARGEST[half]:
            warn_user(
                f"the model is written as float32: {name!r} has {most:g}, and {_NAMES[half]} ends "
                f"at {_LARGEST[half]:.6g}",
                ModelWarning,
            )
            return graph
    for name in chosen:
        graph.initializers[name] = convert_array(graph.initializers[name], "f32", half)
    for node in graph.nodes:
        if node.outputs[0] not in single:
            node.attrs = {k: convert_attribute(k, v, "f32", half) for k, v in node.attrs.items()}
    _narrow_ends(graph, single, half)
    return graph


def _find_beside_singles(
    graph: Graph, single: Collection[str], halves: Collection[str]
) -> set[str]:
    """Return the constants that the file does not have and that are read beside float32 alone, and
    the outputs that are made of it.

    If nodes of both types read a new constant, the ones of the second type get a copy, in place.

    single, halves: the names in the file that are float32, and its constants of 16 bits.
    """
    kinds = {name: name in single for name, t in graph.inputs.items() if t.dtype == "f32"}
    floats = {name for name, array in graph.initializers.items() if array.dtype == np.float32}
    kinds |= {name: name in single for name in floats if name in single or name in halves}
    new, names = floats - kinds.keys(), Names(graph)
    roots = {name: name for name in new}  # of new constants, also of what is made of them alone
    copies: dict[str, str] = {}
    for node in graph.nodes:
        read = node.inputs[1:2] if is_dequantiser(node) else node.inputs
        known = {kinds[name] for name in read if name in kinds and name not in new}
        mine = [roots[name] for name in read if name in roots]
        if known:
            is_single = known == {True}
            kinds |= {name: is_single for name in mine if name not in kinds}
            for name in [n for n in node.inputs if n in new and kinds[n] != is_single]:
                if name not in copies:
                    made = graph.add_constant(f"{name}_copy", graph.initializers[name], names)
                    copies[name] = made
                    kinds[made] = is_single
                node.inputs = tuple(copies.get(i, i) if i == name else i for i in node.inputs)
        elif mine and mine[0] in kinds:
            known = {kinds[mine[0]]}
        elif mine:
            roots |= dict.fromkeys(node.outputs, mine[0])
        attrs = node.attrs.items()
        if any(convert_attribute(k, v, "f32", "f16") is not v for k, v in attrs):
            known = {node.outputs[0] in single}
        if known:
            kinds |= dict.fromkeys(node.outputs, known == {True})
    return {name for name in (*new, *copies.values(), *graph.outputs) if kinds.get(name)}


def _narrow_ends(graph: Graph, single: Collection[str], half: str) -> None:
    """Let inputs and outputs be 16-bit floats, except for these names; forget all other types."""
    graph.inputs = {n: t if n in single else _narrow(t, half) for n, t in graph.inputs.items()}
    kinds = {n: graph.types[n] for n in graph.outputs}
    graph.types = {n: t if n in single else _narrow(t, half) for n, t in kinds.items()}


def _narrow(t: TensorType, half: str) -> TensorType:
    return t.but(dtype=half) if t.dtype == "f32" else t


def _list_single(graph: Graph) -> Iterator[str]:
    """Yield the names that are float32 in a graph: constants, inputs, outputs, and the first
    outputs of nodes that have it as an attribute.
    """
    yield from (n for n, a in graph.initializers.items() if a.dtype == np.float32)
    yield from (n for n, t in graph.inputs.items() if t.dtype == "f32")
    yield from (n for n in graph.outputs if n in graph.types and graph.types[n].dtype == "f32")
    for node in graph.nodes:
        if any(convert_attribute(k, v, "f32", "f16") is not v for k, v in node.attrs.items()):
            yield node.outputs[0]


def find_half_weights(graph: Graph) -> str:
    """Return the type of the 16-bit floats that a model has in its file; "" if none.

    Of float16 only weights count: a graph may compute with it.
    """
    if any(a.dtype == np.float16 and a.ndim for a in graph.initializers.values()):
        return "f16"
    return "bf16" if BFLOATS in graph.metadata else ""


def _find_integer_weights(graph: Graph) -> set[str]:
    """Return the dequantised integer constants, and their transposes."""
    names: set[str] = set()
    for node in graph.nodes:
        is_weight = is_dequantiser(node) and node.inputs[0] in graph.initializers
        if is_weight or (is_reversible_move(node) and node.inputs[0] in names):
            names.add(node.outputs[0])
    return names
