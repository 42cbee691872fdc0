"""Rewritings of models by other tools: optimisers, converters, functions, names.

A rewriting takes a model and gives another that computes the same.  Those of packages need onnxslim
and onnxsim, which are not dependencies of this project; the others need onnx and onnxruntime.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import compose, helper, numpy_helper, version_converter

Rewrite = Callable[[onnx.ModelProto], onnx.ModelProto]
DOMAIN = "rewritten"
OLD = tuple(range(9, 14))  # to which the converter lowers next to nothing
NEWEST = 24


def run_onnxslim(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return what onnxslim makes of a model."""
    import onnxslim

    slim: onnx.ModelProto | None = onnxslim.slim(copy.deepcopy(model))
    if slim is None:
        raise RuntimeError("onnxslim gave no model")
    return slim


def run_onnxsim(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return what onnxsim makes of a model."""
    import onnxsim

    simplified: tuple[onnx.ModelProto, bool] = onnxsim.simplify(copy.deepcopy(model))
    return simplified[0]


def run_onnxruntime(model: onnx.ModelProto, level: str) -> onnx.ModelProto:
    """Return the model that onnxruntime saves after optimising for a level."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # it warns of models for this machine alone
        options.intra_op_num_threads = 1
        options.graph_optimization_level = getattr(
            onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}"
        )
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return onnx.load(path)


def to_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return what ONNX's version converter makes of a model."""
    return version_converter.convert_version(model, opset)


def declare_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return the nodes of a model under an older opset, in which they must mean the same."""
    out = copy.deepcopy(model)
    for known in out.opset_import:
        if known.domain in ("", "ai.onnx"):
            known.version = opset
    return out


def raise_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return what ONNX's version converter makes of the nodes of an older opset."""
    return version_converter.convert_version(declare_opset(model, opset), NEWEST)


def list_imported(model: onnx.ModelProto) -> list[onnx.OperatorSetIdProto]:
    """Return the opsets of a model and one for functions of `DOMAIN`."""
    return [*model.opset_import, helper.make_opsetid(DOMAIN, 1)]


def make_function(
    name: str, graph: onnx.GraphProto, nodes: list[onnx.NodeProto], opsets: Any
) -> tuple[onnx.FunctionProto, onnx.NodeProto]:
    """Make a function of nodes of a graph, and the node that calls it."""
    made = {value for node in nodes for value in node.output if value}
    read = list(dict.fromkeys(v for node in nodes for v in list_reads(node) if v not in made))
    others = [n for n in graph.node if not any(n is own for own in nodes)]
    wanted = {o.name for o in graph.output} | {v for n in others for v in list_reads(n)}
    given = [v for node in nodes for v in node.output if v in wanted]
    body = helper.make_function(DOMAIN, name, read, given, nodes, opsets)
    return body, helper.make_node(name, read, given, name=f"call_{name}", domain=DOMAIN)


def list_reads(node: onnx.NodeProto) -> list[str]:
    """Return the values that a node reads, and those that its subgraphs take from outside."""
    read = [v for v in node.input if v]
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            own = {i.name for i in (*graph.input, *graph.initializer)}
            own |= {v for n in graph.node for v in n.output}
            read += [v for n in graph.node for v in list_reads(n) if v not in own]
            read += [o.name for o in graph.output if o.name not in own]
    return read


def with_functions(model: onnx.ModelProto, parts: int) -> onnx.ModelProto:
    """Return a model whose nodes stand in `parts` functions, which it calls one after another."""
    out = copy.deepcopy(model)
    nodes = list(out.graph.node)
    size = -(-len(nodes) // parts)
    functions, calls = [], []
    for i in range(0, len(nodes), size):
        body, call = make_function(
            f"part_{i}", model.graph, list(model.graph.node)[i : i + size], list_imported(model)
        )
        functions.append(body)
        calls.append(call)
    del out.graph.node[:], out.graph.value_info[:]
    out.graph.node.extend(calls)
    out.functions.extend(functions)
    out.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return out


def nest_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of one function that calls another, which holds the nodes."""
    out = with_functions(model, 1)
    (inner,) = out.functions[len(model.functions) :]
    (call,) = out.graph.node
    outer, node = make_function("whole", out.graph, [call], list_imported(model))
    assert list(inner.output) == list(outer.output)
    del out.graph.node[:]
    out.graph.node.append(node)
    out.functions.append(outer)
    return out


def walk(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the subgraphs of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from walk(inner)


def without_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without names of nodes, types of values, or anything written for people."""
    out = copy.deepcopy(model)
    for graph in walk(out.graph):
        del graph.value_info[:], graph.metadata_props[:]
        for node in graph.node:
            for field in ("name", "doc_string"):
                node.ClearField(field)
            del node.metadata_props[:]
    return out


def with_numbers_for_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose values between nodes are called 1, 2, 3."""
    kept = {v.name for v in (*model.graph.input, *model.graph.output, *model.graph.initializer)}
    made = [v for n in model.graph.node for v in n.output if v and v not in kept]
    numbers = {name: str(i) for i, name in enumerate(made, 1)}
    out = copy.deepcopy(model)
    del out.graph.value_info[:]
    for graph in walk(out.graph):
        for node in graph.node:
            node.input[:] = [numbers.get(v, v) for v in node.input]
            node.output[:] = [numbers.get(v, v) for v in node.output]
        for value in graph.output:
            value.name = numbers.get(value.name, value.name)
    return out


def with_prefix(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with a common prefix of all names except inputs and outputs."""
    edges = [v.name for v in (*model.graph.input, *model.graph.output)]
    out = compose.add_prefix(model, "left/", rename_inputs=False, rename_outputs=False)
    assert edges == [v.name for v in (*out.graph.input, *out.graph.output)]
    return out


def with_initializers_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that lists its initializers among its inputs, as all did before IR 4."""
    out = copy.deepcopy(model)
    for tensor in out.graph.initializer:
        out.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    return out


def with_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose integer and scalar initializers are nodes."""
    out = copy.deepcopy(model)
    moved = [t for t in out.graph.initializer if t.data_type == onnx.TensorProto.INT64]
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in moved]
    for tensor in moved:
        out.graph.initializer.remove(tensor)
    for i, node in enumerate(nodes):
        out.graph.node.insert(i, node)
    return out


def with_typed_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose initializers are lists of numbers instead of bytes."""
    out = copy.deepcopy(model)
    for tensor in out.graph.initializer:
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(
            helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, values.ravel().tolist())
        )
    return out


def with_unknown_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose inputs say nothing but their ranks, and whose values say nothing."""
    out = copy.deepcopy(model)
    del out.graph.value_info[:]
    for value in out.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    for value in out.graph.output:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    return out


def with_external_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that was saved with its weights in a file of their own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(
            copy.deepcopy(model), path, save_as_external_data=True, size_threshold=0,
            location="weights.bin",
        )  # fmt: skip
        return onnx.load(path)


def with_passes_of_onnx_ir(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return what onnxscript's optimiser makes of a model."""
    from onnxscript import optimizer

    out: onnx.ModelProto = optimizer.optimize(copy.deepcopy(model))
    return out


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A way of rewriting, and its title for readers; one that `is_ours` may not fail."""

    rewrite: Rewrite
    title: str
    is_ours: bool = False


REWRITINGS: dict[str, Rewriting] = {
    "onnxslim": Rewriting(run_onnxslim, "onnxslim"),
    "onnxsim": Rewriting(run_onnxsim, "onnxsim"),
    "onnxscript": Rewriting(with_passes_of_onnx_ir, "onnxscript's optimiser"),
    **{
        f"onnxruntime-{level.lower()}": Rewriting(
            partial(run_onnxruntime, level=level), f"onnxruntime, level {level.lower()}"
        )
        for level in ("BASIC", "EXTENDED", "ALL")
    },
    "function": Rewriting(
        partial(with_functions, parts=1), "the whole graph is a function", is_ours=True
    ),
    "functions": Rewriting(partial(with_functions, parts=4), "four functions", is_ours=True),
    "nested": Rewriting(nest_functions, "a function in a function", is_ours=True),
    "nameless": Rewriting(without_names, "nodes without names, values without types", is_ours=True),
    "numbers": Rewriting(with_numbers_for_names, "numbers for names", is_ours=True),
    "prefix": Rewriting(with_prefix, "a prefix for all names, by onnx.compose"),
    "inputs": Rewriting(with_initializers_as_inputs, "initializers among the inputs", is_ours=True),
    "constants": Rewriting(with_constant_nodes, "integers as Constant nodes", is_ours=True),
    "typed": Rewriting(with_typed_data, "weights as lists of numbers", is_ours=True),
    "unknown": Rewriting(with_unknown_sizes, "every axis symbolic", is_ours=True),
    "external": Rewriting(with_external_data, "weights in a file of their own", is_ours=True),
    **{
        f"opset-{opset}": Rewriting(
            partial(to_opset, opset=opset), f"opset {opset} by onnx.version_converter"
        )
        for opset in range(14, NEWEST + 1)
    },
    **{
        f"declared-{opset}": Rewriting(
            partial(declare_opset, opset=opset), f"declared as opset {opset}, where that is valid"
        )
        for opset in OLD
    },
    **{
        f"raised-{opset}": Rewriting(
            partial(raise_opset, opset=opset), f"from opset {opset} to {NEWEST} by the converter"
        )
        for opset in OLD
    },
}
