"""Graphs of optimizers: nodes over the sequences of all parameters and their gradients.

One node updates all parameters, as in onnxruntime-training.  With groups there is one node of the
domain `engine` for each, which names its parameters in the attribute `parameters` and has its own
`lr_scale` and `weight_decay`; all read the same sequences.

A sequence holds tensors of one element type.  Each further type has sequences of its own: `params`,
`gradients` and so on hold the first type, `params.f64`, `gradients.f64` the parameters of f64.
Then there is one node for each group and type, and ClipFactor takes one norm over all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from engine.base import arguments
from engine.base.element_types import FLOATS, ITEMSIZE, TRAINED_INTEGERS, find_gradient_type
from engine.base.errors import (
    DTypeError,
    InputError,
    ModelError,
    NameNotFoundError,
    suggest_nearest,
)
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import get_declaration
from engine.graphs.passes.infer import infer
from engine.kernels.ops.optimizer.method import Group, OptimizerRule
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import MS, OURS, TensorType
from engine.plan.states import MOST_STATES, Shape, State, StateLayout

OPTIMIZER_IR = 10  # the IR version of onnxruntime-training's optimizer models
SIGNAL = (OURS, "GradientSignal")
CLIPPING = "InplaceClipGradNorm"
FACTOR = (OURS, "ClipFactor")
SCALARS = ("learning_rate", "step")  # inputs of every optimizer model
LISTS = ("params", "gradients")  # the others, for each element type
# Of the names of inputs, by element type.
ENDINGS = ("", *(f".{dtype}" for dtype in sorted((*FLOATS, *TRAINED_INTEGERS))))


@dataclass(frozen=True, slots=True)
class NodeParameters:
    """Group of parameters that one node updates.

    parameters: their names; empty: all parameters.
    attrs: the attributes in which the node differs from the others.
    ending: the ending of the names of the inputs that it reads.
    """

    parameters: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    ending: str = ""


# --- building


def build(
    opset: int,
    kinds: Mapping[str, str],
    rule: OptimizerRule,
    clip_grad: float | None,
    parts: Sequence[NodeParameters],
    skip_nonfinite: bool = False,
) -> Graph:
    """Return the optimizer model of a rule.

    opset: the opset of ONNX.  kinds: the element types of the parameters, f32 or f64, by name.
    clip_grad: the norm to which gradients are scaled down; None leaves them as they are.
    parts: the parameters that each node updates, see `split`.
    skip_nonfinite: whether to update nothing if a gradient is NaN or infinite, see `guard`.

    Raises:
        InputError: `clip_grad` is not a positive number.
    """
    graph = Graph("optimizer", {}, [], {}, [], {MS: 1, "": opset}, ir_version=OPTIMIZER_IR)
    declare(graph, rule, kinds)
    gradients = list_inputs(graph, "gradients")
    clipped, factor = clip(graph, clip_grad, gradients)
    graph.outputs = [append(graph, rule, dict(zip(gradients, clipped, strict=True)), parts, factor)]
    if any(node.domain == OURS for node in graph.nodes):
        graph.opsets[OURS] = 1
    if skip_nonfinite:
        guard(graph)
    return graph.check()


def group_by_type(kinds: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the parameters of each element type, in the order of types."""
    return {T: [n for n in kinds if kinds[n] == T] for T in sorted(set(kinds.values()))}


def list_endings(kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the ending of the names of the inputs for each element type, in their order.

    kinds: the element types of the parameters.
    """
    first, *others = sorted(set(kinds.values())) or ["f32"]
    return {first: "", **{dtype: f".{dtype}" for dtype in others}}


def list_inputs(graph: Graph, name: str) -> list[str]:
    """Return the inputs of an optimizer model that are `name`, for each of its element types."""
    return [name + ending for ending in ENDINGS if name + ending in graph.inputs]


def _list_types(dtype: str) -> dict[str, str]:
    """Return the element types of the inputs `LISTS` for parameters of a type."""
    return dict(zip(LISTS, (dtype, find_gradient_type(dtype)), strict=True))


def is_divided(groups: Sequence[Group], kinds: Mapping[str, str]) -> bool:
    """Return whether a node of the domain `engine` names the parameters that it updates, as some of
    these, or integers; kinds: the element types of the parameters.
    """
    several = len(set(kinds.values())) > 1
    return bool(groups) or several or not {*kinds.values()}.isdisjoint(TRAINED_INTEGERS)


def split(groups: Sequence[Group], kinds: Mapping[str, str]) -> list[NodeParameters]:
    """Return the parts that nodes update: the parameters of a group that have one element type.

    Each parameter belongs to the first group that matches it, and the remaining ones form another
    group.

    Raises:
        NameNotFoundError: a name or pattern of a group matches no parameter.
        InputError: no parameter is left for a group.
    """
    if not is_divided(groups, kinds):
        return [NodeParameters()]
    parameters = list(kinds)
    taken: dict[str, int] = {}
    for at, group in enumerate(groups):
        for pattern in arguments.check_names("match", group.match):
            matches = [n for n in parameters if n == pattern or fnmatchcase(n, pattern)]
            if not matches:
                raise NameNotFoundError(
                    "match: no trainable parameter "
                    f"{pattern!r}{suggest_nearest(pattern, parameters)}"
                )
            for name in matches:
                taken.setdefault(name, at)
    out = []
    for at, group in enumerate(groups):
        names = tuple(n for n in parameters if taken.get(n) == at)
        if not names:
            raise InputError(f"group {at} has no parameter that earlier groups do not have")
        attrs = {"lr_scale": float(group.lr_scale)}
        if group.weight_decay is not None:
            attrs["weight_decay"] = float(group.weight_decay)
        out.append(NodeParameters(names, attrs))
    rest = tuple(n for n in parameters if n not in taken)
    parts = list[NodeParameters]()
    for part in [NodeParameters(rest), *out] if rest else out:
        for dtype, ending in list_endings(kinds).items():
            mine = tuple(n for n in part.parameters if kinds[n] == dtype)
            if mine:
                parts.append(replace(part, parameters=mine, ending=ending))
    return parts


def declare(graph: Graph, rule: OptimizerRule, kinds: Mapping[str, str]) -> None:
    """Add the inputs of an optimizer model to a graph, for parameters of these element types."""
    graph.inputs["learning_rate"] = TensorType("f32", (1,))
    graph.inputs["step"] = TensorType("i64", (1,))
    for dtype, ending in list_endings(kinds).items():
        types = _list_types(dtype)
        types |= {state.name: state.dtype or dtype for state in (*rule.states, *rule.unread)}
        graph.inputs |= {n + ending: TensorType(f"seq({T})", ()) for n, T in types.items()}


def clip(
    graph: Graph, max_norm: float | None, gradients: Sequence[str]
) -> tuple[Sequence[str], str]:
    """Append a node that takes the norm over all gradients, to scale them down to `max_norm`.

    Return the new gradients, and the factor with which steps multiply them, or "".  Gradients of
    one element type are scaled in place, as in onnxruntime-training.  None appends nothing.

    Raises:
        InputError: `max_norm` is not a positive number.
    """
    if max_norm is None:
        return gradients, ""
    if not arguments.check_real("clip_grad", max_norm) > 0:
        raise InputError(f"clip_grad={max_norm}; expected a positive norm or None")
    names = Names(graph)
    title = names.take_fresh("ClipGradNorm")
    attrs = {"max_norm": float(max_norm), "norm_type": "fro"}
    if len(gradients) > 1:
        factor = names.take_fresh("clip_factor")
        graph.nodes.append(Node(FACTOR[1], tuple(gradients), (factor,), attrs, OURS, title))
        graph.opsets[OURS] = 1
        graph.types[factor] = TensorType("f64", (1,))
        return gradients, factor
    clipped = names.take_fresh("clipped_gradients")
    graph.nodes.append(Node(CLIPPING, tuple(gradients), (clipped,), attrs, MS, title))
    known = graph.inputs.get(gradients[0]) or graph.types.get(gradients[0])
    graph.types[clipped] = known or TensorType("seq(f32)", ())
    return [clipped], ""


def append(
    graph: Graph,
    rule: OptimizerRule,
    gradients: Mapping[str, str],
    parts: Sequence[NodeParameters],
    factor: str = "",
) -> str:
    """Append one node for each part; return the output of the last, a flag that it has run.

    gradients: the value that replaces each input of gradients. factor: the factor with which steps
        multiply them, or "".
    """
    names, flag = Names(graph), ""
    scalars = SCALARS if rule.has_step else SCALARS[:1]
    for part in parts:
        states = (state.name + part.ending for state in rule.states)
        given = (f"params{part.ending}", gradients[f"gradients{part.ending}"], *states)
        inputs = (*scalars, *given, *(["", factor] if factor else []))
        flag = names.take_fresh("updated_flag" if rule.has_step else "update_completed")
        attrs = {**rule.attrs, **part.attrs}
        if part.parameters:
            attrs["parameters"] = list(part.parameters)
        graph.nodes.append(
            Node(rule.op, inputs, (flag,), attrs, rule.domain, names.take_fresh(rule.op))
        )
        graph.types[flag] = TensorType("b1", (1,))
    return flag


def guard(graph: Graph) -> None:
    """Let an optimizer model skip updates if a gradient is NaN or infinite, in place.

    Before   flag = AdamWOptimizer(lr, step, params, gradients, m, v)
    After    finite = GradientSignal("", gradients);
             flag = AdamWOptimizer(lr, step, params, gradients, m, v, finite)

    A model that already does so stays as it is.  If its nodes already read a signal, that signal
    must allow the update too.

    Raises:
        ModelError: its nodes read several signals.
    """
    if find_signals(graph):
        return
    names, nodes = Names(graph), list_updates(graph)
    before = {"".join(node.inputs[_signal_place(graph, node) :][:1]) for node in nodes}
    if len(before) > 1:
        raise ModelError(
            f"the optimizer model's updates read several signals: {sorted(before)}; expected one"
        )
    finite, title = names.take_fresh("gradients_are_finite"), names.take_fresh("GradientSignal")
    inputs = (before.pop(), *list_inputs(graph, "gradients"))
    signal = Node("GradientSignal", inputs, (finite,), {}, OURS, title)
    graph.nodes.insert(graph.nodes.index(nodes[0]), signal)
    for node in nodes:
        at = _signal_place(graph, node)
        given = [*node.inputs, *[""] * (at + 1 - len(node.inputs))]
        given[at] = finite
        node.inputs = tuple(given)
    graph.opsets[OURS] = 1
    graph.types[finite] = TensorType("b1", (1,))


def _signal_place(graph: Graph, node: Node) -> int:
    """Return the index of the signal among the inputs of an optimizer node; the factor follows
    it.
    """
    op = get_declaration(graph, node)
    assert op.optimizer is not None, f"{node.op} is not an optimizer"
    return 3 + op.optimizer.has_step + len(op.optimizer.states({**op.attrs, **node.attrs}))


# --- models of any origin


def find_signals(graph: Graph) -> set[str]:
    """Return the signals by which an optimizer model skips updates if gradients are not finite."""
    return {n.outputs[0] for n in graph.nodes if (n.domain, n.op) == SIGNAL}


def list_updates(graph: Graph) -> list[Node]:
    """Return the optimizer nodes of a model; there is at least one.

    Raises:
        ModelError: there is none.
        UnsupportedOpError: the op of a node is not known.
    """
    nodes = [n for n in graph.nodes if get_declaration(graph, n).optimizer is not None]
    if not nodes:
        known = sorted({name for (_, name), op in list_ops().items() if op.optimizer is not None})
        raise ModelError(f"the model has no optimizer node: expected one of {', '.join(known)}")
    return nodes


def list_states(graph: Graph, kinds: Mapping[str, str]) -> tuple[State, ...]:
    """Return the table of states of an optimizer model: one row for each input that keeps a state.

    Inputs that keep the same state for parameters of several element types are one row.  The model
    of plain gradient descent has such an input that no node reads; it gets the shapes of the
    parameters.

    kinds: the element types of the trained parameters, by name.

    Raises:
        ModelError, DTypeError: the model does not fit these parameters.
        ShapeError, UnsupportedOpError: no step could perform a node.
    """
    nodes, ends = list_updates(graph), list_endings(kinds)
    fixed = {"learning_rate": "f32[1]", "step": "i64[1]"}
    fixed |= {
        name + end: f"seq({T})" for dtype, end in ends.items()
        for name, T in _list_types(dtype).items()
    }  # fmt: skip
    missing = [n for n in fixed if n not in graph.inputs]
    if missing:
        raise ModelError(
            f"the optimizer model lacks the inputs {missing}; it has {sorted(graph.inputs)}"
        )
    _check_parts(nodes, kinds)
    others = [n for n in graph.inputs if n not in fixed]
    keeping = {end: _strip_ending(others, end, list(ends.values())) for end in ends.values()}
    names = keeping[""]
    if any(each != names for each in keeping.values()):
        raise ModelError(f"the optimizer model keeps different states by element type: {keeping}")
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
    types = fixed | {
        state.name + end: f"seq({state.dtype or dtype})"
        for dtype, end in ends.items()
        for state in states
    }
    for name, t in graph.inputs.items():
        if (t.dtype if t.dtype.startswith("seq") else str(t)) != types[name]:
            raise DTypeError(
                f"the optimizer model has the input {name!r} as {t}, expected {types[name]}"
            )
    _check_rules(graph, nodes, kinds, states)
    return states


def _strip_ending(names: Sequence[str], ending: str, others: Sequence[str]) -> list[str]:
    """Return the names of the inputs with an ending, without the ending; others: all endings."""
    longer = tuple(other for other in others if other and other != ending)
    return [
        name.removesuffix(ending)
        for name in names
        if name.endswith(ending) and not (longer and name.endswith(longer))
    ]


def _find_ending(node: Node) -> str:
    """Return the ending of the input names that hold the parameters of an optimizer node."""
    read = (name for name in node.inputs if name.startswith("params"))
    return next((end for name in read for end in ENDINGS if name == "params" + end), "")


def _check_rules(
    graph: Graph, nodes: Sequence[Node], kinds: Mapping[str, str], states: Sequence[State]
) -> None:
    """Run the shape rules of all nodes, to refuse impossible steps at once.

    They also check the values of attributes, and the types of signals.  Only `nodes`, which
    update, may touch parameters and states.
    """
    gradients = set(list_inputs(graph, "gradients"))
    for node in graph.nodes:
        touched = sorted((set(node.list_reads()) & set(graph.inputs)) - gradients)
        if touched and node not in nodes:
            raise ModelError(
                f"the optimizer model: {node.op} {node.name!r} reads {touched}; expected only "
                "gradients, as it is not an optimizer node"
            )
    flat, size = graph.copy(), (1,)  # as in plans, for a parameter of one element
    for dtype, end in list_endings(kinds).items():
        types = _list_types(dtype) | {s.name: s.dtype or dtype for s in states}
        flat.inputs |= {name + end: TensorType(T, size) for name, T in types.items()}
    infer(flat)


def _check_parts(nodes: Sequence[Node], kinds: Mapping[str, str]) -> None:
    """Check that exactly one node updates each parameter, and is of its element type."""
    lists = [n.attrs.get("parameters") for n in nodes]
    if len(nodes) > 1 and not all(lists):
        raise ModelError(
            f"the optimizer model has {len(nodes)} optimizer nodes; supported: one, or one per "
            "group, which lists its `parameters`"
        )
    types = {end: dtype for dtype, end in list_endings(kinds).items()}
    for node, names in zip(nodes, lists, strict=True):
        dtype = types.get(_find_ending(node), "")
        wrong = sorted(n for n in names or kinds if kinds.get(n, dtype) != dtype)
        if wrong:
            raise ModelError(
                f"{node.op} {node.name!r} updates parameters of {dtype}, but lists others: {wrong}"
            )
    if not any(lists):
        return
    seen: list[str] = [name for names in lists for name in names or ()]
    twice = sorted({n for n in seen if seen.count(n) > 1})
    strange = sorted(set(seen) - set(kinds))
    missing = sorted(set(kinds) - set(seen))
    for what, names in (
        ("updates parameters more than once", twice),
        ("updates parameters that are not trained", strange),
        ("does not update trained parameters", missing),
    ):
        if names:
            raise ModelError(f"the optimizer model {what}: {names}")


def _check_inputs(graph: Graph, node: Node, names: Sequence[str]) -> list[State]:
    """Check that a node reads the inputs of the model in the right order; return its states.

    names: the inputs that may keep states, without the ending of an element type.
    """
    op = get_declaration(graph, node)
    update, end = op.optimizer, _find_ending(node)
    assert update is not None, f"{node.op} is not an optimizer"
    gradients = f"gradients{end}"
    wanted = (*SCALARS[: 1 + update.has_step], f"params{end}", gradients)
    if len(node.inputs) < len(wanted):
        raise ModelError(f"{node.op} {node.name!r} reads {list(node.inputs)}; expected {wanted}")
    for want, got in zip(wanted, node.inputs, strict=False):
        # gradients may have been clipped on the way
        if got != want and (want != gradients or not got or got in graph.inputs):
            raise ModelError(f"{node.op} {node.name!r} reads {got!r}; expected {want!r}")
    rows = update.states({**op.attrs, **node.attrs})
    kept = node.inputs[len(wanted) : len(wanted) + len(rows)]
    known = [name + end for name in names]
    if any(n not in known for n in kept) or len(set(kept)) < len(kept):
        raise ModelError(
            f"{node.op} {node.name!r} keeps its state in {list(kept)}; expected different "
            f"inputs of {known}"
        )
    if not node.outputs or not node.outputs[0]:
        raise ModelError(
            f"{node.op} {node.name!r} lacks its first output, which tells whether it has run"
        )
    titles = [name.removesuffix(end) for name in kept]
    return [replace(row, name=name) for row, name in zip(rows, titles, strict=False)]


def count_apart(graph: Graph, kinds: Mapping[str, str], steps_before: Mapping[str, int]) -> None:
    """Let nodes count the steps of parameters that were not updated in the first ones, in place.

    Before   flag = AdamWOptimizer(lr, step, params, gradients, m, v)
    After    early = AdamWOptimizer(lr, step, ..., parameters=[w]);
             flag = AdamWOptimizer(lr, step, ..., parameters=[b], steps_before=30)

    kinds: the element type of each trained parameter.
    steps_before: the steps that were done before the first one of a parameter; 0 if absent.
    """
    if not any(steps_before.values()):
        return
    names = Names(graph)
    for node in list_updates(graph):
        op = get_declaration(graph, node)
        assert op.optimizer is not None, f"{node.op} is not an optimizer"
        if not op.optimizer.has_step:
            continue
        mine: dict[int, list[str]] = {}
        for name in node.attrs.get("parameters") or kinds:
            mine.setdefault(steps_before.get(name, 0), []).append(name)
        made = []
        for before, parameters in sorted(mine.items()):
            attrs = {**op.attrs, **node.attrs, "steps_before": before, "parameters": parameters}
            title, flag = names.take_fresh(node.name or node.op), names.take_fresh(node.outputs[0])
            made.append(replace(node, domain=OURS, name=title, attrs=attrs, outputs=(flag,)))
        made[-1].name, made[-1].outputs = node.name, node.outputs
        at = graph.nodes.index(node)
        graph.nodes[at : at + 1] = made
        graph.opsets[OURS] = 1


def clip_in_steps(graph: Graph) -> None:
    """Let steps multiply the gradients that they read, which saves a pass over all gradients.

    Before   c = InplaceClipGradNorm(gradients); flag = AdamWOptimizer(.., c, m, v)
    After    f = ClipFactor(gradients); flag = AdamWOptimizer(.., gradients, m, v, "", f)

    The gradients then stay unchanged.  A clipping that anything else reads is left alone.  If the
    norm of gradients is computed, their signal reads it:

    Before   go = GradientSignal("", gradients); f = ClipFactor(gradients)
    After    f, n = ClipFactor(gradients); go = GradientSignal("", n)
    """
    readers, names, known = graph.find_consumers(), Names(graph), list_updates(graph)
    for clipping in [n for n in graph.nodes if n.op == CLIPPING]:
        clipped, gradients = clipping.outputs[0], clipping.inputs[0]
        steps = readers.get(clipped, [])
        if clipped in graph.outputs or any(n not in known for n in steps):
            continue
        factor = names.take_fresh("clip_factor")
        clipping.op, clipping.domain = FACTOR[1], FACTOR[0]
        clipping.outputs = (factor,)
        graph.opsets[OURS] = 1
        for node in steps:
            absent = _signal_place(graph, node) + 1 - len(node.inputs)
            inputs = (gradients if name == clipped else name for name in node.inputs)
            node.inputs = (*inputs, *[""] * absent, factor)
    _signal_by_norm(graph, names)


def _signal_by_norm(graph: Graph, names: Names) -> None:
    """Let the signal of gradients read their norm, if it is computed, and place it after the
    norm.
    """
    every = tuple(list_inputs(graph, "gradients"))
    taking = next((n for n in graph.nodes if (n.domain, n.op) == FACTOR), None)
    if taking is None or taking.inputs != every:
        return
    for signal in [n for n in graph.nodes if (n.domain, n.op) == SIGNAL]:
        norm = names.take_fresh("gradient_norm")
        taking.outputs = (taking.outputs[0], norm)
        signal.inputs = (signal.inputs[0], norm)
        graph.nodes.remove(signal)
        graph.nodes.insert(graph.nodes.index(taking) + 1, signal)


def place(
    graph: Graph,
    kinds: Mapping[str, str],
    begins: Mapping[str, tuple[int, Shape]],
    layout: StateLayout,
) -> None:
    """Write the offsets of parameters and states into nodes: clipping, and the domain `engine`.

    kinds: the element type of each trained parameter, in the order in which they lie.
    begins: the first element of each in the flat tensor of all parameters of its type, and its
        shape.
    layout: where the states are, and which parameters count steps of their own.
    """
    count_apart(graph, kinds, layout.steps_before)
    ends, named = list_endings(kinds), group_by_type(kinds)
    gradients = {f"gradients{ends[T]}": names for T, names in named.items()}
    flat = {
        state.name + ends[T]: (layout.tensors[k], layout.join_states(k, names).offset)
        for T, names in named.items()
        for k, state in enumerate(layout.states)
    }
    for node in graph.nodes:
        if node.op in (CLIPPING, FACTOR[1]):
            chosen = [gradients[name] for name in node.inputs]
            gradients |= zip(node.outputs, chosen, strict=False)  # these are clipped again
            each = [begins[name] for names in chosen for name in names]
            node.attrs["begins"] = [begin for begin, _ in each]
            node.attrs["sizes"] = [math.prod(shape) for _, shape in each]
            node.attrs["counts"] = [len(names) for names in chosen]
    for node in list_updates(graph):
        if node.domain != OURS:
            continue
        listed = node.attrs.get("parameters") or list(kinds)
        mine = [name for name in kinds if name in listed]
        read = [flat[name] for name in node.inputs if name in flat]
        node.attrs["begins"] = [begins[n][0] for n in mine]
        node.attrs["dims"] = [d for n in mine for d in (len(begins[n][1]), *begins[n][1])]
        node.attrs["state_begins"] = [
            (kept[name].offset - first) // ITEMSIZE[kept[name].dtype]
            for name in mine
            for kept, first in read
        ]
