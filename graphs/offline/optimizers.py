"""The graphs of optimizers: nodes over the sequences of all parameters and their gradients.

One node updates all parameters, as onnxruntime-training has it.  With groups there is one node of
the domain `engine` for each, which names its parameters in the attribute `parameters` and has its
own `lr_scale` and `weight_decay`; all read the same sequences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from engine.graphs.passes.infer import infer
from engine.kernels.ops.optimizer.method import Group, Rule, at_least_0
from engine.kernels.registry import ops
from engine.kernels.vocabulary.op import MS, OURS, TensorType
from engine.runtime.states import MOST_STATES, Layout, Shape, State

OPTIMIZER_IR = 10  # the IR version of onnxruntime-training's optimizer models
SIGNAL = (OURS, "GradientSignal")
FIXED = ("learning_rate", "step", "params", "gradients")  # inputs of every optimizer model


@dataclass(frozen=True, slots=True)
class Part:
    """A group of parameters that one node updates.

    parameters: their names.  attrs: the attributes in which the node differs from the others.
    """

    parameters: tuple[str, ...]
    attrs: Mapping[str, Any]


# --- building


def build(
    opset: int,
    dtype: str,
    rule: Rule,
    clip_grad: float | None,
    parts: Sequence[Part],
    skip_nonfinite: bool = False,
) -> Graph:
    """The optimizer model of a rule.

    opset: of ONNX's operators.  dtype: the element type of the parameters, f32 or f64.
    clip_grad: the norm to which gradients are scaled down; None leaves them as they are.
    parts: the groups of parameters; none means one node for all parameters.
    skip_nonfinite: whether nothing is updated where a gradient is NaN or infinite, see `guard`.

    Raises:
        InputError: `clip_grad` is no positive number.
    """
    graph = Graph("optimizer", {}, [], {}, [], {MS: 1, "": opset}, ir_version=OPTIMIZER_IR)
    if rule.domain == OURS:
        graph.opsets[OURS] = 1
    declare(graph, rule, dtype)
    graph.outputs = [append(graph, rule, clip(graph, clip_grad), parts)]
    if skip_nonfinite:
        guard(graph)
    return graph.check()


def split(groups: Sequence[Group], parameters: Sequence[str]) -> list[Part]:
    """Assign each parameter to the first group that matches it, the rest to one more group.

    Raises:
        NameNotFoundError: a name or pattern of a group matches no parameter.
        InputError: no parameter is left for a group.
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
        attrs = {"lr_scale": at_least_0("lr_scale", group.lr_scale)}
        if group.weight_decay is not None:
            attrs["weight_decay"] = arguments.real("weight_decay", group.weight_decay)
        out.append(Part(names, attrs))
    rest = tuple(n for n in parameters if n not in taken)
    return [Part(rest, {}), *out] if rest and groups else out


def declare(graph: Graph, rule: Rule, dtype: str) -> None:
    """Add the inputs of an optimizer model to a graph, for parameters of an element type."""
    graph.inputs["learning_rate"] = TensorType("f32", (1,))
    graph.inputs["step"] = TensorType("i64", (1,))
    kinds = {"params": dtype, "gradients": dtype}
    kinds |= {state.name: state.dtype or dtype for state in (*rule.states, *rule.unread)}
    graph.inputs |= {name: TensorType(f"seq({kind})", ()) for name, kind in kinds.items()}


def clip(graph: Graph, max_norm: float | None, gradients: str = "gradients") -> str:
    """Append a node that scales the gradients down to the norm `max_norm`; return its output.

    The norm is taken over all gradients together.  None appends nothing and returns `gradients`.

    Raises:
        InputError: `max_norm` is no positive number.
    """
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
    """Append one node for each group; return the output of the last, a flag that it has run."""
    names, flag = Names(graph), ""
    scalars = ("learning_rate", "step") if rule.has_step else ("learning_rate",)
    inputs = (*scalars, "params", gradients, *(state.name for state in rule.states))
    for part in parts or (Part((), {}),):
        flag = names.fresh("updated_flag" if rule.has_step else "update_completed")
        attrs = {**rule.attrs, **part.attrs}
        if part.parameters:
            attrs["parameters"] = list(part.parameters)
        graph.nodes.append(Node(rule.op, inputs, (flag,), attrs, rule.domain, names.fresh(rule.op)))
        graph.types[flag] = TensorType("b1", (1,))
    return flag


def guard(graph: Graph) -> None:
    """Let an optimizer model update nothing where a gradient is NaN or infinite, in place.

    Before   flag = AdamWOptimizer(lr, step, params, gradients, m, v)
    After    finite = GradientSignal("", gradients);
             flag = AdamWOptimizer(lr, step, params, gradients, m, v, finite)

    A model that does so stays as it is.  A signal that its nodes read already must hold, too.

    Raises:
        ModelError: its nodes read signals of several origins.
    """
    if signals_of(graph):
        return
    names, found = Names(graph), updates(graph)
    before = {"".join(node.inputs[_signal_place(graph, node) :][:1]) for node in found}
    if len(before) > 1:
        raise ModelError(f"the optimizer model has updates with several signals: {sorted(before)}")
    finite, title = names.fresh("gradients_are_finite"), names.fresh("GradientSignal")
    signal = Node("GradientSignal", (before.pop(), "gradients"), (finite,), {}, OURS, title)
    graph.nodes.insert(graph.nodes.index(found[0]), signal)
    for node in found:
        at = _signal_place(graph, node)
        inputs = [*node.inputs, *[""] * (at + 1 - len(node.inputs))]
        inputs[at] = finite
        node.inputs = tuple(inputs)
    graph.opsets[OURS] = 1
    graph.types[finite] = TensorType("b1", (1,))


def _signal_place(graph: Graph, node: Node) -> int:
    """The place of the signal among the inputs of an optimizer node; the factor stands behind."""
    op = declaration(graph, node)
    assert op.optimizer is not None, f"{node.op} is no optimizer"
    return 3 + op.optimizer.has_step + len(op.optimizer.states({**op.attrs, **node.attrs}))


# --- models of any origin


def signals_of(graph: Graph) -> set[str]:
    """The signals by which an optimizer model skips updates whose gradients are not finite."""
    return {n.outputs[0] for n in graph.nodes if (n.domain, n.op) == SIGNAL}


def updates(graph: Graph) -> list[Node]:
    """The optimizer nodes of a model, at least one.

    Raises:
        ModelError: there is none.
        UnsupportedOpError: the op of a node is not known.
    """
    found = [n for n in graph.nodes if declaration(graph, n).optimizer is not None]
    if not found:
        known = sorted({name for (_, name), op in ops().items() if op.optimizer is not None})
        raise ModelError(f"the model has no optimizer node: expected one of {', '.join(known)}")
    return found


def states_of(graph: Graph, dtype: str, trainable: Sequence[str]) -> tuple[State, ...]:
    """The table of states of an optimizer model: one row for each input that keeps a state.

    The model of plain gradient descent has such an input that no node reads; it gets the shapes of
    the parameters.

    dtype: the element type of the parameters.  trainable: their names.

    Raises:
        ModelError, DTypeError: the model does not fit these parameters.
        ShapeError, UnsupportedOpError: no step could do what a node says.
    """
    nodes = updates(graph)
    _check_parts(nodes, trainable)
    types = dict.fromkeys(("params", "gradients"), f"seq({dtype})")
    types = {"learning_rate": "f32[1]", "step": "i64[1]", **types}
    missing = [n for n in types if n not in graph.inputs]
    if missing:
        raise ModelError(
            f"the optimizer model has inputs {sorted(graph.inputs)}, expected also {missing}"
        )
    names = tuple(n for n in graph.inputs if n not in FIXED)
    rows: dict[str, State] = {}
    for node in nodes:
        for state in _check_inputs(graph, node, names):
            if rows.setdefault(state.name, state) != state:
                raise ModelError(
                    f"the optimizer model keeps {state.name!r} in two forms: {rows[state.name]} "
                    f"and, for {node.op} {node.name!r}, {state}"
                )
    states = tuple(rows.get(name, State(name)) for name in names)
    if len(states) > MOST_STATES:
        raise ModelError(
            f"the optimizer model keeps {len(states)} states; supported: up to {MOST_STATES}"
        )
    types |= {state.name: f"seq({state.dtype or dtype})" for state in states}
    for name, t in graph.inputs.items():
        if (t.dtype if t.dtype.startswith("seq") else str(t)) != types[name]:
            raise DTypeError(
                f"the optimizer model has the input {name!r} as {t}, expected {types[name]}"
            )
    _check_rules(graph, nodes, dtype, states)
    return states


def _check_rules(graph: Graph, nodes: Sequence[Node], dtype: str, states: Sequence[State]) -> None:
    """Ask the shape rules of all nodes, so that what no step could do is refused at once.

    They also check the values of attributes, and the types of signals.  Only `nodes`, which
    update, may touch parameters and states.
    """
    for node in graph.nodes:
        touched = sorted((set(node.reads()) & set(graph.inputs)) - {"gradients"})
        if touched and node not in nodes:
            raise ModelError(
                f"the optimizer model: {node.op} {node.name!r} reads {touched}; expected that "
                "only optimizer nodes do, and others gradients alone"
            )
    flat, size = graph.copy(), (1,)  # as plans have them, of a parameter of one element
    kinds = dict.fromkeys(("params", "gradients", "learning_rate"), dtype)
    kinds |= {state.name: state.dtype or dtype for state in states}
    flat.inputs |= {name: TensorType(kind, size) for name, kind in kinds.items()}
    infer(flat)


def _check_parts(nodes: Sequence[Node], trainable: Sequence[str]) -> None:
    """Check that exactly one node updates each parameter."""
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
    for what, names in (
        ("more than once", twice),
        ("that are not trained", strange),
        ("never, of those that are trained", missing),
    ):
        if names:
            raise ModelError(f"the optimizer model updates parameters {what}: {names}")


def _check_inputs(graph: Graph, node: Node, names: Sequence[str]) -> list[State]:
    """Check that a node reads the inputs of the model in the right order; return its states.

    names: the inputs that may keep states.
    """
    op = declaration(graph, node)
    update = op.optimizer
    assert update is not None, f"{node.op} is no optimizer"
    wanted = (*FIXED[: 1 + update.has_step], "params", "gradients")
    if len(node.inputs) < len(wanted):
        raise ModelError(f"{node.op} {node.name!r} reads {list(node.inputs)}; expected {wanted}")
    for want, got in zip(wanted, node.inputs, strict=False):
        # gradients may have been clipped on the way
        if got != want and (want != "gradients" or not got or got in graph.inputs):
            raise ModelError(f"{node.op} {node.name!r} reads {got!r} in the place of {want!r}")
    rows = update.states({**op.attrs, **node.attrs})
    kept = node.inputs[len(wanted) : len(wanted) + len(rows)]
    wrong = [n for n in kept if n not in names]
    if wrong or len(set(kept)) < len(kept):
        raise ModelError(
            f"{node.op} {node.name!r} keeps its state in {list(kept)}; expected of {list(names)}"
        )
    if not node.outputs or not node.outputs[0]:
        raise ModelError(f"{node.op} {node.name!r} has no output that says it has run")
    return [replace(row, name=name) for row, name in zip(rows, kept, strict=False)]


def clip_in_steps(graph: Graph) -> None:
    """Let steps multiply the gradients that they read; a pass over all of them before is saved.

    Before   c = InplaceClipGradNorm(gradients); flag = AdamWOptimizer(.., c, m, v)
    After    c, f = InplaceClipGradNorm(gradients); flag = AdamWOptimizer(.., c, m, v, "", f)

    The gradients then stay as they are.  A clipping that anything else reads is left alone.  A
    signal of gradients that are clipped reads their norm.
    """
    readers, names, known = graph.consumers(), Names(graph), updates(graph)
    _signal_by_norm(graph, names)
    for clipping in [n for n in graph.nodes if n.op == "InplaceClipGradNorm"]:
        clipped, *norm = clipping.outputs
        steps = readers.get(clipped, [])
        if clipped in graph.outputs or any(n not in known for n in steps):
            continue
        factor = names.fresh("clip_factor")
        clipping.outputs = (clipped, factor, *norm[1:])
        for node in steps:
            absent = _signal_place(graph, node) + 1 - len(node.inputs)
            node.inputs = (*node.inputs, *[""] * absent, factor)


def _signal_by_norm(graph: Graph, names: Names) -> None:
    """Let the signal of gradients that are clipped read their norm, and stand behind that.

    Before   go = GradientSignal("", gradients); c = InplaceClipGradNorm(gradients)
    After    c, _, n = InplaceClipGradNorm(gradients); go = GradientSignal("", n)
    """
    clipping = next((n for n in graph.nodes if n.op == "InplaceClipGradNorm"), None)
    if clipping is None or clipping.inputs[0] != "gradients":
        return
    for signal in [n for n in graph.nodes if (n.domain, n.op) == SIGNAL]:
        norm = names.fresh("gradient_norm")
        clipping.outputs = (clipping.outputs[0], "", norm)
        signal.inputs = (signal.inputs[0], norm)
        graph.nodes.remove(signal)
        graph.nodes.insert(graph.nodes.index(clipping) + 1, signal)


def place(graph: Graph, begins: Mapping[str, tuple[int, Shape]], layout: Layout) -> None:
    """Write into nodes where their parameters and states begin: clipping, and domain `engine`.

    begins: for each trainable parameter, in order, its first element in the flat tensor of all
        parameters, and its shape.
    layout: where the states are.
    """
    rows = {state.name: k for k, state in enumerate(layout.states)}
    for node in graph.nodes:
        if node.op == "InplaceClipGradNorm":
            node.attrs["begins"] = [begin for begin, _ in begins.values()]
            node.attrs["sizes"] = [math.prod(shape) for _, shape in begins.values()]
    for node in updates(graph):
        if node.domain != OURS:
            continue
        names = node.attrs.get("parameters") or list(begins)
        chosen = [name for name in begins if name in names]
        read = [rows[i] for i in node.inputs if i in rows]
        node.attrs["begins"] = [begins[n][0] for n in chosen]
        node.attrs["dims"] = [d for n in chosen for d in (len(begins[n][1]), *begins[n][1])]
        node.attrs["state_begins"] = [layout.begin(k, n) for n in chosen for k in read]
