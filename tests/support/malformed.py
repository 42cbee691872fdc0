"""Case rows with one thing wrong: what is mutated, and what becomes of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from engine.base.element_types import FLOATS
from engine.errors import EngineError
from engine.graphs.io import onnx_io, schemas
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.passes.control import unroll
from engine.graphs.passes.infer import infer
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.tools.dev.case_graphs import OneNode
from engine.tools.dev.cases.case import Case

NUMBERS = (0, 1, -1, 2, 3, -2, 5, 17, -7, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63))
REALS = (0.0, -1.0, 0.5, 3.0, 1e30, -1e30, float("inf"), float("nan"))
TEXTS = ("", "?", "linear", "sum", "SAME_UPPER", "VALID", "reverse", "bidirectional", "ii->", "é")
ELEMENTS = (1, 2, 3, 6, 7, 9, 10, 11)
OPSETS = (13, 14, 17, 18, 20, 21, 22, 24, 28)


def make_model(case: Case) -> ModelProto:
    """The model of one node that a case row describes."""
    one = OneNode(case)
    graph = one.graph
    proto = onnx.GraphProto(name=case.op)
    proto.node.append(onnx_io.make_node(one.node, graph.opsets))
    for name, array in one.inputs.items():
        code = helper.np_dtype_to_tensor_dtype(array.dtype)
        proto.input.append(helper.make_tensor_value_info(name, code, array.shape))
    for name, array in graph.initializers.items():
        proto.initializer.append(numpy_helper.from_array(array, name))
    proto.output.extend(onnx.ValueInfoProto(name=name) for name in one.outputs)
    imports = [helper.make_opsetid(d, v) for d, v in graph.opsets.items()]
    return helper.make_model(proto, opset_imports=imports, ir_version=8)


# --- mutations: each changes one thing, and returns what it was


def _draw_number(value: int, rng: random.Random) -> int:
    return rng.choice((*NUMBERS, max(value - 1, -(2**63)), min(value + 1, 2**63 - 1)))


def _list(items: list[Any], fresh: Callable[[Any], Any], rng: random.Random) -> list[Any]:
    match rng.randrange(5):
        case 0:
            return items[:-1]
        case 1:
            return [*items, fresh(items[0] if items else 0)]
        case 2:
            return []
        case 3 if items:
            return items[:1] * len(items)
    if not items:
        return [fresh(0)]
    at = rng.randrange(len(items))
    return [*items[:at], fresh(items[at]), *items[at + 1 :]]


def change_attribute(model: ModelProto, rng: random.Random) -> None:
    """Another value of the same type."""
    node = model.graph.node[0]
    if not node.attribute:
        add_attribute(model, rng)
        return
    a = rng.choice(node.attribute)
    match a.type:
        case AttributeProto.INT:
            a.i = _draw_number(a.i, rng)
        case AttributeProto.FLOAT:
            a.f = rng.choice(REALS)
        case AttributeProto.STRING:
            a.s = rng.choice(TEXTS).encode()
        case AttributeProto.INTS:
            a.ints[:] = _list(list(a.ints), lambda v: _draw_number(v, rng), rng)
        case AttributeProto.FLOATS:
            a.floats[:] = _list(list(a.floats), lambda v: rng.choice(REALS), rng)
        case AttributeProto.STRINGS:
            a.strings[:] = _list(list(a.strings), lambda v: rng.choice(TEXTS).encode(), rng)
        case AttributeProto.TENSOR:
            a.t.CopyFrom(_make_constant(numpy_helper.to_array(a.t), a.t.name, rng))


def add_attribute(model: ModelProto, rng: random.Random) -> None:
    """Add an attribute of the op that the node left out, of any value, otherwise an unknown one."""
    node = model.graph.node[0]
    plain = Node(node.op_type, (), (), {}, node.domain)
    opsets = {o.domain: o.version for o in model.opset_import}
    known = schemas.list_attribute_codes(plain, opsets)
    free = sorted(known.keys() - {a.name for a in node.attribute})
    if not free or rng.random() < 0.1:
        node.attribute.append(helper.make_attribute("unheard_of", rng.choice((1, 0.5, "x", [1]))))
        return
    name = rng.choice(free)
    numbers = [rng.choice(NUMBERS) for _ in range(rng.randrange(5))]
    reals = [rng.choice(REALS) for _ in range(rng.randrange(4))]
    values: dict[int, Any] = {
        AttributeProto.INT: rng.choice(NUMBERS), AttributeProto.FLOAT: rng.choice(REALS),
        AttributeProto.STRING: rng.choice(TEXTS), AttributeProto.INTS: numbers,
        AttributeProto.FLOATS: reals, AttributeProto.STRINGS: [rng.choice(TEXTS)],
        AttributeProto.TENSOR: numpy_helper.from_array(np.array(reals, np.float32)),
    }  # fmt: skip
    value = values.get(known[name], 1)
    node.attribute.append(helper.make_attribute(name, value, attr_type=known[name]))


def change_attribute_type(model: ModelProto, rng: random.Random) -> None:
    """One of another type, or none, or twice."""
    node = model.graph.node[0]
    if not node.attribute:
        add_attribute(model, rng)
        return
    a = rng.choice(node.attribute)
    match rng.randrange(3):
        case 0:
            node.attribute.remove(a)
        case 1:
            node.attribute.append(a)
        case _:
            a.type = rng.choice((0, 1, 2, 3, 4, 6, 7, 8))


def change_operands(model: ModelProto, rng: random.Random) -> None:
    """Too few inputs or outputs, too many, absent ones, or in another order."""
    node, names = model.graph.node[0], model.graph.node[0].input
    known = [v.name for v in (*model.graph.input, *model.graph.initializer)]
    match rng.randrange(7):
        case 0 if names:
            names.pop()
        case 1 if names:
            names[rng.randrange(len(names))] = ""
        case 2 if known:
            names.append(rng.choice(known))
        case 3 if names and known:
            names[rng.randrange(len(names))] = rng.choice(known)
        case 4:
            shuffled = list(names)
            rng.shuffle(shuffled)
            names[:] = shuffled
        case 5:
            node.output.append(f"more_{len(node.output)}")
        case _:
            gone = node.output.pop()
            for value in [v for v in model.graph.output if v.name == gone]:
                model.graph.output.remove(value)


def change_input(model: ModelProto, rng: random.Random) -> None:
    """An input of another element type, rank or size."""
    if not model.graph.input:
        change_constant(model, rng)
        return
    t = rng.choice(model.graph.input).type.tensor_type
    dims = [d.dim_value for d in t.shape.dim]
    match rng.randrange(4):
        case 0:
            t.elem_type = rng.choice(ELEMENTS)
            return
        case 1:
            dims = dims[1:]
        case 2:
            dims.insert(rng.randrange(len(dims) + 1), rng.choice((0, 1, 2)))
        case _ if dims:
            dims[rng.randrange(len(dims))] = rng.choice((0, 1, 2, 3, 7, 64))
    del t.shape.dim[:]
    for d in dims:
        t.shape.dim.add(dim_value=d)


def change_constant(model: ModelProto, rng: random.Random) -> None:
    """A constant input of other values, rank, size or element type; or no constant any more."""
    if not model.graph.initializer:
        change_operands(model, rng)
        return
    t = rng.choice(model.graph.initializer)
    if rng.random() < 0.15:
        model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
        model.graph.initializer.remove(t)
        return
    t.CopyFrom(_make_constant(numpy_helper.to_array(t), t.name, rng))


def _make_constant(array: Any, name: str, rng: random.Random) -> TensorProto:
    array = np.array(array)
    with np.errstate(all="ignore"):
        match rng.randrange(5):
            case 0 if array.size:
                value = rng.choice(REALS if array.dtype.kind == "f" else NUMBERS)
                array.reshape(-1)[rng.randrange(array.size)] = np.array(value).astype(array.dtype)
            case 1:
                array = array.reshape(-1)[:-1]
            case 2:
                array = np.concatenate([array.reshape(-1), array.reshape(-1)[:1]])
            case 3:
                array = array[None]
            case _:
                kinds = (np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_)
                array = array.astype(rng.choice(kinds))
    return numpy_helper.from_array(array, name)


def change_opset(model: ModelProto, rng: random.Random) -> None:
    """Another version of the operators."""
    next(o for o in model.opset_import if not o.domain).version = rng.choice(OPSETS)


MUTATIONS = (
    change_attribute, change_attribute, add_attribute, change_attribute_type, change_operands,
    change_input, change_input, change_constant, change_constant, change_opset,
)  # fmt: skip


# --- what becomes of it


LARGE = 1 << 24  # elements of all inputs; a model with more is not planned here


def find_outcome(model: ModelProto) -> str:
    """ "fine", or the name of the error by which a model or its gradient is refused."""
    try:
        graph = onnx_io.load(model)
        size = sum(t.size for t in graph.inputs.values())
        if size > LARGE:
            return "large"
        make_plan(graph, {}, target=detect_host(), threads=2)
        plan_gradient(graph)
    except EngineError as error:
        return type(error).__name__
    return "fine"


def plan_gradient(graph: Graph) -> None:
    """Plan the gradients of the sum of all outputs."""
    graph = name_nodes(unroll(graph.copy()))
    types = infer(graph.copy()).types
    floats = [o for o in graph.outputs if types[o].dtype in FLOATS]
    wrt = [i for i, t in graph.inputs.items() if t.dtype in FLOATS]
    if not floats or not wrt or len({types[n].dtype for n in floats}) > 1:
        return
    for name in floats:
        node = Node("ReduceSum", (name,), (f"sum_{name}",), {"keepdims": 0}, "", f"sum_{name}")
        graph.nodes.append(node)
    sums = tuple(f"sum_{name}" for name in floats)
    graph.nodes.append(Node("Sum", sums, ("loss",), {}, "", "loss"))
    made = differentiate(graph, "loss", wrt[:1], infer(graph.copy()).types)
    graph.outputs = list(made.values())
    make_plan(graph, {}, target=detect_host(), threads=2)
