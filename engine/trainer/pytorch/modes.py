"""Modules that compute something else in evaluation mode, as a model of both.

    Before   program y = x + 0.1 RandomNormalLike(x)       of training mode
             program y = x                                 of evaluation mode
    After    y = engine.ModeChoice(x, x + 0.1 RandomNormalLike(x))

Noise in training alone, batch normalisations that are written by hand and other branches by
`self.training` need it; dropouts and torch's own normalisations do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.base.errors import UnsupportedOpError
from engine.kernels.vocabulary.op import OURS

PREFIX = "evaluation/"  # of the names of values and nodes that only evaluation has


def join_programs(program: Any, evaluated: Any, chosen: Mapping[str, str], kept: set[str]) -> None:
    """Let outputs of a program be the ones of another in evaluation mode, in place.

    evaluated: the program of the same module in evaluation mode, which is taken apart.
    chosen: the outputs that differ, as their names in both.
    kept: the parameters and buffers of the module, which both programs share.

    Raises:
        UnsupportedOpError: the programs have other inputs.
    """
    import onnx_ir

    graph, other = program.model.graph, evaluated.model.graph
    if len(graph.inputs) != len(other.inputs):
        raise UnsupportedOpError(
            f"the module reads {len(graph.inputs)} inputs in training mode and "
            f"{len(other.inputs)} in evaluation mode; supported: equally many"
        )
    outputs = {value.name: value for value in other.outputs}
    shared = dict(zip(other.inputs, graph.inputs, strict=True))
    for name, value in list(other.initializers.items()):
        if name in kept and name in graph.initializers:
            shared[value] = graph.initializers[name]
        else:
            del other.initializers[name]
            value.name = name if name in kept else f"{PREFIX}{name}"
            graph.register_initializer(value)
    for node in other.all_nodes():
        node.name = f"{PREFIX}{node.name}"
        for value in (*node.outputs, *_list_body_inputs(node)):
            value.name = f"{PREFIX}{value.name}"
    ends = {name: shared.get(value, value) for name, value in outputs.items()}
    for mine, theirs in shared.items():
        mine.replace_all_uses_with(theirs, replace_graph_outputs=True)
    nodes = list(other)
    other.outputs.clear()
    other.remove(nodes)
    graph.extend(nodes)
    for place, trained in enumerate(list(graph.outputs)):
        if trained.name not in chosen:
            continue
        name = trained.name
        node = onnx_ir.node(
            "ModeChoice", inputs=[ends[chosen[name]], trained], domain=OURS, name=f"{name}/Mode"
        )
        trained.name = f"{name}_in_training"
        (value,) = node.outputs
        value.name, value.type, value.shape = name, trained.type, trained.shape
        graph.append(node)
        graph.outputs[place] = value
    program.model.opset_imports.setdefault(OURS, 1)


def _list_body_inputs(node: Any) -> list[Any]:
    """Return the inputs of the graphs inside of a node: bodies of loops, for example."""
    import onnx_ir

    made = []
    for attribute in node.attributes.values():
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            made += attribute.value.inputs
    return made
