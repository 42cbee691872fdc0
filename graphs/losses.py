"""Losses as ONNX nodes at the end of a graph, and the graphs of the optimizers.

MSE             mean((x - t)^2)
L1              mean(|x - t|)
cross entropy   SoftmaxCrossEntropyLoss: classes on axis 1, as ONNX has it
BCE             mean(w ((1 - t) x + (1 + (p - 1) t) Softplus(-x))), x logits, p the weight of
                positives: finite for every finite x, and so is its gradient, which has Sigmoid(-x)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine import arguments
from engine.errors import DTypeError, InputError, ModelError, ShapeError
from engine.graphs.ir import Graph, Names, Node, type_of
from engine.kernels._expr import FLOATS, NUMPY
from engine.kernels._op import MS, Array, TensorType

REDUCTIONS = {"none": None, "mean": "ReduceMean", "sum": "ReduceSum"}


class _Nodes:
    """Appends nodes to a graph, named after what they are for."""

    def __init__(self, graph: Graph, prefix: str) -> None:
        self.graph, self.prefix, self.names = graph, prefix, Names(graph)

    def add(self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attrs: Any) -> str:
        """Append a node and return its first output."""
        title = self.names.fresh(f"{self.prefix}/{op}")
        results = [self.names.fresh(f"{title}_output_{k}") for k in range(outputs)]
        self.graph.nodes.append(Node(op, inputs, tuple(results), attrs, domain, title))
        return results[0]

    def constant(self, what: str, value: Any, dtype: str) -> str:
        """Add an initializer."""
        name = self.names.fresh(f"{self.prefix}/{what}")
        self.graph.initializers[name] = arguments.cast(what, value, np.dtype(NUMPY[dtype]))
        return name

    def reduce(self, x: str, reduction: str) -> str:
        """x itself, or its mean or sum as a scalar."""
        op = REDUCTIONS[check_reduction(reduction)]
        return self.add(op, x, keepdims=0) if op else x


def check_reduction(reduction: str) -> str:
    """Refuse what is no reduction."""
    if str(reduction) not in REDUCTIONS:
        raise InputError(f"reduction={reduction!r}; expected one of {', '.join(REDUCTIONS)}")
    return reduction


def _float_type(graph: Graph, name: str) -> TensorType:
    """The type of a value that a loss is taken of."""
    t = graph.types.get(name) or graph.inputs.get(name)
    if t is None:
        raise ModelError(f"{graph.name}: no value {name!r} with a known type to take a loss of")
    if t.dtype not in FLOATS:
        raise DTypeError(f"{graph.name}: the loss is taken of {name!r}, {t}; expected f32 or f64")
    return t


def _target(graph: Graph, name: str, t: TensorType) -> str:
    """The input of that name, added if it is new; a value of the model may be the target, too."""
    known = graph.inputs.get(name) or graph.types.get(name)
    if known is None and name in graph.initializers:
        known = type_of(graph.initializers[name])
    if known is None:
        graph.inputs[name] = t
    elif known.dtype != t.dtype or known.rank != t.rank:
        raise ModelError(
            f"{graph.name}: the loss needs {name!r} as {t}, but the model has one that is {known}; "
            f"name another by loss_input_names"
        )
    return name


def squared_error(graph: Graph, x: str, target: str, reduction: str) -> str:
    """Mean, sum or all of (x - t)^2."""
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, x)
    difference = nodes.add("Sub", x, _target(graph, target, t))
    two = nodes.constant("exponent", 2, t.dtype)
    return nodes.reduce(nodes.add("Pow", difference, two), reduction)


def absolute_error(graph: Graph, x: str, target: str, reduction: str) -> str:
    """Mean, sum or all of |x - t|."""
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, x)
    difference = nodes.add("Sub", x, _target(graph, target, t))
    return nodes.reduce(nodes.add("Abs", difference), reduction)


def cross_entropy(
    graph: Graph,
    scores: str,
    labels: str,
    reduction: str,
    weight: Array | None,
    ignore_index: int | None,
) -> str:
    """-log softmax(scores)[label] along axis 1, weighted by class; labels lack that axis."""
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, scores)
    if t.rank < 2:
        raise ShapeError(f"{graph.name}: scores {scores!r} are {t}; expected [batch, classes, ...]")
    inputs = [scores, _target(graph, labels, TensorType("i64", (t.shape[0], *t.shape[2:])))]
    if weight is not None:
        given = arguments.array("weight", weight)
        classes = t.shape[1]
        if given.ndim != 1 or (isinstance(classes, int) and len(given) != classes):
            raise ShapeError(f"weight has shape {list(given.shape)}; expected [{classes}]")
        inputs.append(nodes.constant("weight", given, t.dtype))
    attrs: dict[str, Any] = {"reduction": check_reduction(reduction)}
    if ignore_index is not None:
        attrs["ignore_index"] = arguments.count("ignore_index", ignore_index)
    return nodes.add("SoftmaxCrossEntropyLoss", *inputs, outputs=2, **attrs)


def binary_cross_entropy(
    graph: Graph,
    x: str,
    target: str,
    reduction: str,
    weight: Array | None,
    pos_weight: Array | None,
) -> str:
    """The cross entropy of sigmoid(x) and targets in [0, 1], from logits."""
    nodes, t = _Nodes(graph, "loss"), _float_type(graph, x)
    y = _target(graph, target, t)
    one = nodes.constant("one", 1, t.dtype)
    below = nodes.add("Mul", nodes.add("Sub", one, y), x)
    above = nodes.add("Softplus", nodes.add("Neg", x))
    if pos_weight is not None:
        given = arguments.cast("pos_weight", pos_weight, np.dtype(np.float64))
        excess = nodes.constant("pos_weight_minus_one", given - 1.0, t.dtype)
        above = nodes.add("Mul", nodes.add("Add", nodes.add("Mul", excess, y), one), above)
    each = nodes.add("Add", below, above)
    if weight is not None:
        each = nodes.add("Mul", each, nodes.constant("weight", weight, t.dtype))
    return nodes.reduce(each, reduction)


# --- optimizers

OPTIMIZER_IR = 10  # onnxruntime-training's


def _optimizer_graph(opset: int, dtype: str, moments: Sequence[str]) -> Graph:
    many = TensorType(f"seq({dtype})", ())
    inputs = {
        "learning_rate": TensorType("f32", (1,)),
        "step": TensorType("i64", (1,)),
        **dict.fromkeys(("params", "gradients", *moments), many),
    }
    return Graph("optimizer", inputs, [], {}, [], {MS: 1, "": opset}, ir_version=OPTIMIZER_IR)


def _clip(graph: Graph, max_norm: float | None) -> str:
    """The gradients, or those scaled to a norm of at most `max_norm` over all of them."""
    if max_norm is None:
        return "gradients"
    if not arguments.real("clip_grad", max_norm) > 0:
        raise InputError(f"clip_grad={max_norm}; expected a positive norm or None")
    inputs, outputs = ("gradients",), ("clipped_gradients",)
    attrs = {"max_norm": float(max_norm), "norm_type": "fro"}
    graph.nodes.append(Node("InplaceClipGradNorm", inputs, outputs, attrs, MS, "ClipGradNorm"))
    graph.types["clipped_gradients"] = graph.inputs["gradients"]
    return "clipped_gradients"


def _finish(
    graph: Graph, op: str, inputs: Sequence[str], flag: str, attrs: dict[str, Any]
) -> Graph:
    graph.nodes.append(Node(op, tuple(inputs), (flag,), attrs, MS, op))
    graph.outputs, graph.types[flag] = [flag], TensorType("b1", (1,))
    return graph.check()


def adamw(
    opset: int,
    dtype: str,
    *,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    bias_correction: bool,
    adam_mode: int,
    clip_grad: float | None,
) -> Graph:
    """One AdamWOptimizer over all parameters; mode 0 is torch's, 1 Hugging Face's."""
    if arguments.count("adam_mode", adam_mode) not in (0, 1):
        raise InputError(f"adam_mode={adam_mode}; expected 0 (as torch) or 1 (as Hugging Face)")
    if adam_mode == 0 and not arguments.flag("bias_correction", bias_correction):
        raise InputError("adam_mode=0 always corrects the bias; bias_correction=False needs mode 1")
    try:
        alpha, beta = (arguments.real("betas", b) for b in betas)
    except (TypeError, ValueError):
        raise InputError(f"betas={betas!r}; expected two numbers") from None
    if not (0 <= alpha < 1 and 0 <= beta < 1):
        raise InputError(f"betas={betas!r}; expected numbers from 0 to below 1")
    if not arguments.real("eps", eps) >= 0:
        raise InputError(f"eps={eps!r}; expected at least 0")
    graph = _optimizer_graph(opset, dtype, ("first_order_moments", "second_order_moments"))
    inputs = ("learning_rate", "step", "params", _clip(graph, clip_grad))
    attrs = {
        "adam_mode": int(adam_mode),
        "alpha": alpha,
        "beta": beta,
        "correct_bias": int(arguments.flag("bias_correction", bias_correction)),
        "epsilon": float(eps),
        "weight_decay": arguments.real("weight_decay", weight_decay),
    }
    moments = ("first_order_moments", "second_order_moments")
    return _finish(graph, "AdamWOptimizer", (*inputs, *moments), "updated_flag", attrs)


def sgd(opset: int, dtype: str, *, clip_grad: float | None) -> Graph:
    """One SGDOptimizerV2 over all parameters; its moments are there for the format alone."""
    graph = _optimizer_graph(opset, dtype, ("first_order_moments",))
    inputs = ("learning_rate", "params", _clip(graph, clip_grad))
    return _finish(graph, "SGDOptimizerV2", inputs, "update_completed", {})
