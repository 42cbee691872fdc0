"""Replacement of nodes that only onnxruntime-training writes by nodes of our own ops."""

from __future__ import annotations

from engine.graphs.ir.graph import Graph, Names
from engine.graphs.passes.may_add import add_by_table
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import MS, OURS


def give_pool_grads_input(graph: Graph) -> Graph:
    """Give pool gradients made by onnxruntime-training the input of their pool.

    Such a node reads only dy, which does not always determine the shape of x: windows may leave a
    border of x uncovered.

    Before   y, i = MaxPool(x); dx = MaxPoolGrad(dy, i)
    After    y, i = MaxPool(x); dx = engine::MaxPoolGrad(dy, i, x)
    """
    makers = graph.find_producers()
    named = {n.name: n for n in graph.nodes if n.name}
    for node in graph.nodes:
        if node.domain or node.op not in ("MaxPoolGrad", "AveragePoolGrad"):
            continue
        if node.op == "MaxPoolGrad" and len(node.inputs) > 1:
            pool = makers.get(node.inputs[1])
        else:  # the gradient of the pool "p" is named "p_Grad/..."
            pool = named.get(node.name.split("_Grad/")[0])
        if pool is not None and pool.op == list_ops()["", node.op].gradient_of:
            node.domain, node.inputs = OURS, (*node.inputs, pool.inputs[0])
    return graph


def give_lstm_grads_peepholes(graph: Graph) -> Graph:
    """Give LSTM gradients made by onnxruntime-training the peephole weights.

    Such a node does not read them, so it would omit the gradient through the peepholes.

    Before   y, h, c, cells, gates = LSTMTraining(x, ..., p); dx, ..., dp = LSTMGrad(x, ..., dc)
    After    y, ... = engine::LSTMTraining(x, ..., p); dx, ... = engine::LSTMGrad(x, ..., dc, p)
    """
    makers = graph.find_producers()
    for node in graph.nodes:
        if (node.domain, node.op) != (MS, "LSTMGrad") or len(node.inputs) < 9:
            continue
        maker = makers.get(node.inputs[8])
        if maker is None or maker.op != "LSTMTraining" or not "".join(maker.inputs[7:]):
            continue
        node.inputs = (*node.inputs, *[""] * (12 - len(node.inputs)), maker.inputs[7])
        maker.domain = node.domain = OURS
    return graph


def give_gru_grads_inner_products(graph: Graph) -> Graph:
    """Give gradients of GRUs that apply the reset gate after the product all values R_n h + b.

    No output of onnxruntime-training's operator holds them, and computing them again is a twelfth
    of the work of both passes.

    Before   y, h, gates = GRUTraining(x, ...); dx, ... = GRUGrad(x, ..., gates, dy, dh)
    After    y, h, gates, q = GRUTraining(x, ...); dx, ... = GRUGrad(x, ..., gates, dy, dh, q)
    """
    makers, names = graph.find_producers(), Names(graph)
    for node in graph.nodes:
        if node.op != "GRUGrad" or not node.attrs.get("linear_before_reset"):
            continue
        maker = makers.get(node.inputs[7]) if len(node.inputs) in (9, 10) else None
        if maker is None or maker.op != "GRUTraining" or len(maker.outputs) != 3:
            continue
        inner = names.take_fresh(f"{maker.outputs[2]}_inner")
        maker.outputs = (*maker.outputs, inner)
        node.inputs = (*node.inputs, *[""] * (10 - len(node.inputs)), inner)
    return graph


POOLS_MAY_ADD = add_by_table(
    {f"{name}PoolGrad": f"{OURS}::{name}PoolGrad" for name in ("Max", "Average")}
)
LSTMS_MAY_ADD = add_by_table(
    {f"{MS}::{name}": f"{OURS}::{name}" for name in ("LSTMGrad", "LSTMTraining")}
)
