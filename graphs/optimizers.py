"""The graphs of optimizers: nodes over the sequences of all parameters and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine import arguments
from engine.errors import InputError
from engine.graphs.ir import Graph, Names, Node
from engine.kernels._op import MS, TensorType

OPTIMIZER_IR = 10  # onnxruntime-training's
FIRST, SECOND = "first_order_moments", "second_order_moments"


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer's op with its hyperparameters.

    moments: inputs of the model that keep its state; the op reads `reads` of them.
    """

    op: str
    attrs: Mapping[str, Any]
    moments: tuple[str, ...]
    reads: int
    domain: str = MS
    has_step: bool = True


def build(opset: int, dtype: str, rule: Rule, clip_grad: float | None) -> Graph:
    """The optimizer model of a rule for parameters of an element type."""
    graph = Graph("optimizer", {}, [], {}, [], {MS: 1, "": opset}, ir_version=OPTIMIZER_IR)
    declare(graph, rule, dtype)
    graph.outputs = [append(graph, rule, clip(graph, clip_grad))]
    return graph.check()


def declare(graph: Graph, rule: Rule, dtype: str) -> None:
    """Add the inputs."""
    many = TensorType(f"seq({dtype})", ())
    graph.inputs["learning_rate"] = TensorType("f32", (1,))
    graph.inputs["step"] = TensorType("i64", (1,))
    graph.inputs |= dict.fromkeys(("params", "gradients", *rule.moments), many)


def clip(graph: Graph, max_norm: float | None, gradients: str = "gradients") -> str:
    """The gradients, or those scaled to a norm of at most `max_norm` over all of them."""
    if max_norm is None:
        return gradients
    if not arguments.real("clip_grad", max_norm) > 0:
        raise InputError(f"clip_grad={max_norm}; expected a positive norm or None")
    names = Names(graph)
    clipped, title = names.fresh("clipped_gradients"), names.fresh("ClipGradNorm")
    attrs = {"max_norm": float(max_norm), "norm_type": "fro"}
    graph.nodes.append(Node("InplaceClipGradNorm", (gradients,), (clipped,), attrs, MS, title))
    known = graph.inputs.get(gradients) or graph.types.get(gradients)
    graph.types[clipped] = known or TensorType("seq(f32)", ())
    return clipped


def append(graph: Graph, rule: Rule, gradients: str) -> str:
    """Append the optimizer's node; returns the flag that says it has run."""
    names = Names(graph)
    flag = names.fresh("updated_flag" if rule.has_step else "update_completed")
    scalars = ("learning_rate", "step") if rule.has_step else ("learning_rate",)
    inputs = (*scalars, "params", gradients, *rule.moments[: rule.reads])
    title = names.fresh(rule.op)
    graph.nodes.append(Node(rule.op, inputs, (flag,), dict(rule.attrs), rule.domain, title))
    graph.types[flag] = TensorType("b1", (1,))
    return flag


def adamw(
    betas: tuple[float, float], eps: float, weight_decay: float, bias_correction: bool,
    adam_mode: int,
) -> Rule:  # fmt: skip
    """AdamWOptimizer; mode 0 is torch's, 1 Hugging Face's."""
    if arguments.count("adam_mode", adam_mode) not in (0, 1):
        raise InputError(f"adam_mode={adam_mode}; expected 0 (as torch) or 1 (as Hugging Face)")
    if adam_mode == 0 and not arguments.flag("bias_correction", bias_correction):
        raise InputError("adam_mode=0 always corrects the bias; bias_correction=False needs mode 1")
    alpha, beta = _betas(betas)
    attrs = {
        "adam_mode": int(adam_mode),
        "alpha": alpha,
        "beta": beta,
        "correct_bias": int(arguments.flag("bias_correction", bias_correction)),
        "epsilon": at_least_0("eps", eps),
        "weight_decay": arguments.real("weight_decay", weight_decay),
    }
    return Rule("AdamWOptimizer", attrs, (FIRST, SECOND), 2)


def sgd() -> Rule:
    """SGDOptimizerV2; its moments are there for the format alone."""
    return Rule("SGDOptimizerV2", {}, (FIRST,), 0, has_step=False)


def _betas(betas: tuple[float, float]) -> tuple[float, float]:
    try:
        alpha, beta = (arguments.real("betas", b) for b in betas)
    except (TypeError, ValueError):
        raise InputError(f"betas={betas!r}; expected two numbers") from None
    if not (0 <= alpha < 1 and 0 <= beta < 1):
        raise InputError(f"betas={betas!r}; expected numbers from 0 to below 1")
    return alpha, beta


def at_least_0(what: str, value: float) -> float:
    """A number that is not negative."""
    if not arguments.real(what, value) >= 0:
        raise InputError(f"{what}={value!r}; expected at least 0")
    return float(value)
