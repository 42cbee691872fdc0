"""The graphs of optimizers: nodes over the sequences of all parameters and their gradients.

One node updates all parameters, as onnxruntime-training has it.  With groups there is one node of
the domain `engine` for each, which names its parameters in the attribute `parameters` and has its
own `lr_scale` and `weight_decay`; all read the same sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from engine import arguments
from engine.errors import (
    DTypeError,
    InputError,
    ModelError,
    NameNotFoundError,
    nearest,
)
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import declaration
from engine.kernels.registry import ops
from engine.kernels.vocabulary.op import MS, OURS, TensorType

OPTIMIZER_IR = 10  # onnxruntime-training's
FIRST, SECOND = "first_order_moments", "second_order_moments"
FIXED = ("learning_rate", "step", "params", "gradients")  # inputs of every optimizer model


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer's op with its hyperparameters.

    moments: inputs of the model that keep its state; the op reads `reads` of them, or all.
    """

    op: str
    attrs: Mapping[str, Any]
    moments: tuple[str, ...]
    domain: str = OURS
    has_step: bool = True
    reads: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A group of parameters, by names, and how it differs from the others."""

    parameters: tuple[str, ...]
    attrs: Mapping[str, Any]


# --- building


def build(
    opset: int, dtype: str, rule: Rule, clip_grad: float | None, parts: Sequence[Part]
) -> Graph:
    """The optimizer model of a rule for parameters of an element type."""
    graph = Graph("optimizer", {}, [], {}, [], {MS: 1, "": opset}, ir_version=OPTIMIZER_IR)
    if rule.domain == OURS:
        graph.opsets[OURS] = 1
    declare(graph, rule, dtype)
    graph.outputs = [append(graph, rule, clip(graph, clip_grad), parts)]
    return graph.check()


def split(groups: Sequence[Any], parameters: Sequence[str]) -> list[Part]:
    """Each parameter to the first group that matches it, the others to one of their own.

    Raises:
        NameNotFoundError: a name or pattern of a group matches no parameter.
        InputError: a group is left without any.
    """
    taken: dict[str, int] = {}
    for at, group in enumerate(groups):
        for pattern in arguments.names("match", group.match):
            found = [n for n in parameters if n == pattern or fnmatchcase(n, pattern)]
            if not found:
                raise NameNotFoundError(
                    f"match: no trainable parameter {pattern!r}{nearest(pattern, parameters)}"
                )
            for name in found:
                taken.setdefault(name, at)
    out = []
    for at, group in enumerate(groups):
        names = tuple(n for n in parameters if taken.get(n) == at)
        if not names:
            raise InputError(f"group {at} has no parameter that earlier groups do not have")
        attrs = {"lr_scale": _at_least_0("lr_scale", group.lr_scale)}
        if group.weight_decay is not None:
            attrs["weight_decay"] = arguments.real("weight_decay", group.weight_decay)
        out.append(Part(names, attrs))
    rest = tuple(n for n in parameters if n not in taken)
    return [Part(rest, {}), *out] if rest and groups else out


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


def append(graph: Graph, rule: Rule, gradients: str, parts: Sequence[Part] = ()) -> str:
    """Append the optimizer's nodes; returns the flag that says the last has run."""
    names, flag = Names(graph), ""
    scalars = ("learning_rate", "step") if rule.has_step else ("learning_rate",)
    inputs = (*scalars, "params", gradients, *rule.moments[: rule.reads])
    for part in parts or (Part((), {}),):
        flag = names.fresh("updated_flag" if rule.has_step else "update_completed")
        attrs = {**rule.attrs, **part.attrs}
        if part.parameters:
            attrs["parameters"] = list(part.parameters)
        graph.nodes.append(Node(rule.op, inputs, (flag,), attrs, rule.domain, names.fresh(rule.op)))
        graph.types[flag] = TensorType("b1", (1,))
    return flag


# --- rules


def adamw(
    betas: tuple[float, float], eps: float, weight_decay: float, bias_correction: bool,
    adam_mode: int, *, grouped: bool = False,
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
        "epsilon": _at_least_0("eps", eps),
        "weight_decay": arguments.real("weight_decay", weight_decay),
    }
    return Rule("AdamWOptimizer", attrs, (FIRST, SECOND), OURS if grouped else MS)


def adam(op: str, betas: tuple[float, float], eps: float, weight_decay: float) -> Rule:
    """AdamOptimizer or LambOptimizer."""
    alpha, beta = _betas(betas)
    attrs = {
        "alpha": alpha,
        "beta": beta,
        "epsilon": _at_least_0("eps", eps),
        "weight_decay": arguments.real("weight_decay", weight_decay),
    }
    return Rule(op, attrs, (FIRST, SECOND))


def sgd(
    momentum: float, dampening: float, nesterov: bool, weight_decay: float, *, grouped: bool
) -> Rule:
    """SGDOptimizer; the plain one is onnxruntime's, whose moments are for the format alone."""
    attrs = {
        "momentum": _at_least_0("momentum", momentum),
        "dampening": arguments.real("dampening", dampening),
        "nesterov": int(arguments.flag("nesterov", nesterov)),
        "weight_decay": arguments.real("weight_decay", weight_decay),
    }
    if nesterov and not (momentum and not dampening):
        raise InputError("nesterov=True needs a momentum and no dampening")
    if not (grouped or momentum or weight_decay):
        return Rule("SGDOptimizerV2", {}, (FIRST,), MS, has_step=False, reads=0)
    return Rule("SGDOptimizer", attrs, (FIRST,) if momentum else ())


def rmsprop(alpha: float, eps: float, weight_decay: float, momentum: float, centered: bool) -> Rule:
    """RMSpropOptimizer."""
    attrs = {
        "alpha": _below_1("alpha", alpha),
        "epsilon": _at_least_0("eps", eps),
        "weight_decay": arguments.real("weight_decay", weight_decay),
        "momentum": _at_least_0("momentum", momentum),
        "centered": int(arguments.flag("centered", centered)),
    }
    moments = (SECOND, "gradient_averages") if centered else (SECOND,)
    return Rule("RMSpropOptimizer", attrs, (*moments, "momentums") if momentum else moments)


def adagrad(lr_decay: float, weight_decay: float, initial: float, eps: float) -> Rule:
    """AdagradOptimizer."""
    attrs = {
        "lr_decay": _at_least_0("lr_decay", lr_decay),
        "weight_decay": arguments.real("weight_decay", weight_decay),
        "initial_accumulator_value": _at_least_0("initial_accumulator_value", initial),
        "epsilon": _at_least_0("eps", eps),
    }
    return Rule("AdagradOptimizer", attrs, ("square_sums",))


def lion(betas: tuple[float, float], weight_decay: float) -> Rule:
    """LionOptimizer."""
    alpha, beta = _betas(betas)
    decay = arguments.real("weight_decay", weight_decay)
    return Rule("LionOptimizer", {"alpha": alpha, "beta": beta, "weight_decay": decay}, (FIRST,))


def _betas(betas: tuple[float, float]) -> tuple[float, float]:
    try:
        alpha, beta = (arguments.real("betas", b) for b in betas)
    except (TypeError, ValueError):
        raise InputError(f"betas={betas!r}; expected two numbers") from None
    if not (0 <= alpha < 1 and 0 <= beta < 1):
        raise InputError(f"betas={betas!r}; expected numbers from 0 to below 1")
    return alpha, beta


def _at_least_0(what: str, value: float) -> float:
    if not arguments.real(what, value) >= 0:
        raise InputError(f"{what}={value!r}; expected at least 0")
    return float(value)


def _below_1(what: str, value: float) -> float:
    if not 0 <= arguments.real(what, value) < 1:
        raise InputError(f"{what}={value!r}; expected a number from 0 to below 1")
    return float(value)


# --- models of any origin


def updates(graph: Graph) -> list[Node]:
    """The optimizer nodes of a model; there is at least one.

    Raises:
        ModelError: there is none.
        UnsupportedOpError: a node is of no known op.
    """
    found = [n for n in graph.nodes if declaration(graph, n).optimizer]
    if not found:
        known = sorted({name for (_, name), op in ops().items() if op.optimizer})
        raise ModelError(f"the model has no optimizer node: expected one of {', '.join(known)}")
    return found


def moments_of(graph: Graph, dtype: str, trainable: Sequence[str]) -> tuple[str, ...]:
    """The inputs that keep an optimizer model's state, in order.

    Raises:
        ModelError, DTypeError: it is no model over parameters `trainable` of an element type.
    """
    nodes = updates(graph)
    _check_parts(nodes, trainable)
    sequence = f"seq({dtype})"
    types = {"learning_rate": "f32[1]", "step": "i64[1]", "params": sequence, "gradients": sequence}
    missing = [n for n in types if n not in graph.inputs]
    if missing:
        raise ModelError(
            f"the optimizer model has inputs {sorted(graph.inputs)}, expected also {missing}"
        )
    for name, t in graph.inputs.items():
        expected = types.get(name, sequence)
        if (t.dtype if t.dtype.startswith("seq") else str(t)) != expected:
            raise DTypeError(
                f"the optimizer model has the input {name!r} as {t}, expected {expected}"
            )
    moments = tuple(n for n in graph.inputs if n not in FIXED)
    for node in nodes:
        _check_inputs(graph, node, moments)
    return moments


def _check_parts(nodes: Sequence[Node], trainable: Sequence[str]) -> None:
    """Check that every parameter is updated by one node."""
    lists = [n.attrs.get("parameters") for n in nodes]
    if len(nodes) > 1 and not all(lists):
        raise ModelError(
            f"the optimizer model has {len(nodes)} optimizer nodes: exactly one, or one a group "
            "that lists its `parameters`, is supported"
        )
    if not any(lists):
        return
    seen: list[str] = [name for names in lists for name in names or ()]
    twice = sorted({n for n in seen if seen.count(n) > 1})
    strange = sorted(set(seen) - set(trainable))
    missing = sorted(set(trainable) - set(seen))
    for what, names in (("more than once", twice), ("that are not trained", strange),
                        ("never, of those that are trained", missing)):  # fmt: skip
        if names:
            raise ModelError(f"the optimizer model updates parameters {what}: {names}")


def _check_inputs(graph: Graph, node: Node, moments: Sequence[str]) -> None:
    """Check that a node reads the model's inputs in the places of their names."""
    scalars = FIXED[:1] if (node.domain, node.op) == (MS, "SGDOptimizerV2") else FIXED[:2]
    wanted = (*scalars, "params", "gradients")
    if len(node.inputs) < len(wanted):
        raise ModelError(f"{node.op} {node.name!r} reads {list(node.inputs)}; expected {wanted}")
    state = node.inputs[len(wanted) : len(wanted) + len(moments)]
    for want, got in zip(wanted, node.inputs, strict=False):
        # gradients may have been clipped on the way
        if got != want and (want != "gradients" or not got or got in graph.inputs):
            raise ModelError(f"{node.op} {node.name!r} reads {got!r} in the place of {want!r}")
    wrong = [n for n in state if n not in moments]
    if wrong or len(set(state)) < len(state):
        raise ModelError(
            f"{node.op} {node.name!r} keeps its state in {list(state)}; expected of {list(moments)}"
        )
    if not node.outputs or not node.outputs[0]:
        raise ModelError(f"{node.op} {node.name!r} has no output that says it has run")


def place(graph: Graph, places: Mapping[str, tuple[int, int]]) -> None:
    """Tell nodes of the domain `engine` where in the flat tensors their parameters are.

    places: begin and size of each trainable parameter, in elements, in order.
    """
    for node in updates(graph):
        if node.domain == OURS:
            chosen = node.attrs.get("parameters") or list(places)
            found = [at for name, at in places.items() if name in chosen]
            node.attrs["ranges"] = [n for at in found for n in at]
