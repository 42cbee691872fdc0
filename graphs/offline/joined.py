"""Joined graphs: training graphs that update each parameter themselves, as the optimizer would.

Every trained parameter gets a node of the optimizer's op for itself alone, which reads the gradient
when it is made, so no gradient is kept for an optimizer model that runs later.

    Before   training   ...; dw = Gemm(dy, x); InPlaceAccumulatorV2(w_grad.accumulation.buffer, dw)
             optimizer  flag = AdamWOptimizer(lr, step, params, gradients, m, v)
    After    ...; dw = Gemm(dy, x); go = UpdateSignal(loss, check);
             AdamWOptimizer(lr, step, w, dw, w.m, w.v, go)

If gradients are scaled down to a norm over all of them, that norm must be known first:

    After    ...; go = UpdateSignal(loss, check); factor = ClipFactor(dw, db, ...);
             AdamWOptimizer(lr, step, w, dw, w.m, w.v, go, factor); ...

If the optimizer model skips updates whose gradients are not finite, all gradients must be known as
well; for clipped gradients their norm suffices:

    After    ...; kept = UpdateSignal(loss, check); go = GradientSignal(kept, dw, db, ...);
             AdamWOptimizer(lr, step, w, dw, w.m, w.v, go); ...

If the loss is scaled and gradients are not clipped, the updates divide by its scale
(loss_scale.py).

All updates are appended, so no node of the training graph reads a parameter after its update,
whatever the passes do.  `graphs/planner/updates.py` moves the calls forward.  The running
statistics of batch normalisations also move after the signal:

    Before   y, m', v', mean, inv = BatchNormInternal(x, s, b, m, v), which also moves m and v
    After    y, mean, var, mean, inv = BatchNormHeld(x, s, b, m, v); ...;
             MoveStatistic(m, mean, go); MoveStatistic(v, var, go)

and so do statistics that the training graph moves by such nodes without a signal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import get_declaration
from engine.graphs.offline.loss_scale import divide_in_updates
from engine.graphs.offline.optimizers import (
    CLIPPING,
    FACTOR,
    SIGNAL,
    clip_in_steps,
    count_apart,
    find_signals,
    list_inputs,
    list_updates,
)
from engine.kernels.ops.norm.batchnorm import ATTRS
from engine.kernels.ops.norm.joint import HELD
from engine.kernels.ops.optimizer.clipping import CLIP
from engine.kernels.vocabulary.op import MS, OURS, TensorType, Update
from engine.plan.plan import CHECK, COUNT, DONE, RATE
from engine.plan.states import StateLayout, StateTensor

_UNUSED = ("parameters", "begins", "dims", "state_begins")  # attributes of nodes over flat tensors


@dataclass(frozen=True, slots=True)
class Joined:
    """Joined graph, whose inputs and output for the update are the ports of plan/plan.py.

    states: the place of each input that is a state of the optimizer.
    """

    graph: Graph
    states: Mapping[str, StateTensor]


def find_obstacle(training: Graph, optimizer: Graph) -> str:
    """Return the reason why two models cannot be joined, as part of a sentence, or "".

    An optimizer model can be joined if it only updates parameters from gradients, clipped or not,
    skipped or not.
    """
    taken = {RATE, COUNT, CHECK, DONE} & set(training.list_values())
    if taken:
        return f"the training model has values with the names {sorted(taken)}"
    known, signals = list_updates(optimizer), find_signals(optimizer)
    every = tuple(list_inputs(optimizer, "gradients"))
    factors = {n.outputs[0] for n in optimizer.nodes if (n.domain, n.op) == FACTOR}
    for node in optimizer.nodes:
        if node in known or ((node.domain, node.op) == SIGNAL and node.inputs == ("", *every)):
            continue
        if node.op not in (CLIPPING, FACTOR[1]) or node.inputs != every:
            return f"the optimizer model computes {node.op} {node.name!r}"
    for node, update, count in _list_updates(optimizer):
        if any(set(filter(None, node.inputs[3 + update.has_step + count :])) - signals - factors):
            return f"{node.op} {node.name!r} of the optimizer model has a signal of its own"
    return ""


def join(
    training: Graph,
    optimizer: Graph,
    gradients: Mapping[str, str],
    layout: StateLayout,
) -> Joined:
    """Make one graph of a training graph and an optimizer graph, without changing these.

    gradients: the accumulation buffer of each trained parameter, by the name of the parameter, in
        the order in which they are placed.
    layout: the places of the optimizer's states, and which parameters count steps of their own.

    *Requires* that `find_obstacle` returns "".
    """
    optimizer = optimizer.copy()
    clip_in_steps(optimizer)
    count_apart(optimizer, dict.fromkeys(gradients, ""), layout.steps_before)
    graph = training.copy()
    made = _take_gradients(graph, gradients)
    clips = any((n.domain, n.op) == FACTOR for n in optimizer.nodes)
    inverse = "" if clips else divide_in_updates(graph, made)
    names = Names(graph)
    graph.inputs[RATE] = TensorType("f32", (1,))
    graph.inputs[CHECK] = TensorType("b1", (1,))
    title = names.take_fresh("UpdateSignal")
    loss = graph.outputs[0]
    at = next((n for n, node in enumerate(graph.nodes) if loss in node.outputs), -1) + 1
    skips = bool(find_signals(optimizer))
    first = names.take_fresh("loss_signal") if skips else DONE
    graph.nodes.insert(at, Node("UpdateSignal", (loss, CHECK), (first,), {}, OURS, title))
    graph.outputs.append(DONE)
    graph.opsets |= {OURS: 1, MS: 1}
    looked = tuple(made[name] for name in gradients)  # by the signal of gradients
    factors: dict[str, str] = {}  # of clipped gradients, by their name in the optimizer model
    for node in (n for n in optimizer.nodes if (n.domain, n.op) == FACTOR):
        factor = factors[node.outputs[0]] = names.take_fresh("clip_factor")
        every, title = (
            tuple(made[name] for name in gradients),
            names.take_fresh(node.name or node.op),
        )
        made_here = (factor, names.take_fresh("gradient_norm")) if skips else (factor,)
        graph.nodes.append(
            Node("ClipFactor", every, made_here, {**CLIP, **node.attrs}, OURS, title)
        )
        looked = made_here[1:]
    if skips:
        title = names.take_fresh("GradientSignal")
        graph.nodes.append(Node("GradientSignal", (first, *looked), (DONE,), {}, OURS, title))
    _hold_statistics(graph, names)
    rows = {state.name: k for k, state in enumerate(layout.states)}
    states: dict[str, StateTensor] = {}
    for node, update, count in _list_updates(optimizer):
        begin = 3 + update.has_step
        end = node.inputs[begin - 2].removeprefix("params")
        kept = [rows[name.removesuffix(end)] for name in node.inputs[begin : begin + count]]
        if update.has_step:
            graph.inputs[COUNT] = TensorType("i64", (1,))
        attrs = {k: v for k, v in node.attrs.items() if k not in _UNUSED}
        chosen = node.attrs.get("parameters") or list(gradients)
        for name in (n for n in gradients if n in chosen):
            mine = []
            for k in kept:
                tensor = layout.tensors[k][name]
                mine.append(names.take_fresh(f"{name}.{layout.states[k].name}"))
                states[mine[-1]] = tensor
                graph.inputs[mine[-1]] = TensorType(tensor.dtype, tensor.shape)
            scalars = (RATE, COUNT) if update.has_step else (RATE,)
            scaling = [factors[n] for n in node.inputs[begin + count + 1 :] if n in factors]
            scaling += [inverse] if inverse else []
            read = (*scalars, name, made[name], *mine, DONE, *scaling)
            title = names.take_fresh(f"{node.name or node.op}/{name}")
            flag = names.take_fresh(f"{title}_flag")
            graph.nodes.append(Node(node.op, read, (flag,), dict(attrs), node.domain, title))
    return Joined(graph, states)


def _take_gradients(graph: Graph, buffers: Mapping[str, str]) -> dict[str, str]:
    """Drop the accumulation of these gradients; return their values by parameter."""
    owners = {buffer: name for name, buffer in buffers.items()}
    gradients: dict[str, str] = {}
    kept: list[Node] = []
    resets = set[str]()
    for node in graph.nodes:
        if node.op == "InPlaceAccumulatorV2" and node.inputs[0] in owners:
            gradients[owners[node.inputs[0]]] = node.inputs[1]
            resets.update(node.inputs[2:3])
        else:
            kept.append(node)
    graph.nodes = kept
    read = {name for node in kept for name in node.list_reads()}
    for name in (*owners, *(resets - read)):
        graph.inputs.pop(name, None)
    known = set(graph.list_values())
    graph.outputs = [name for name in graph.outputs if name in known]
    return gradients


def _hold_statistics(graph: Graph, names: Names) -> None:
    """Move running statistics only if the signal says that the step counts.

    Statistics that are read after they have moved still move in the forward pass.
    """
    moving: list[Node] = []
    read = {*graph.outputs, *(name for node in graph.nodes for name in node.list_reads())}
    for node in graph.nodes:
        if (node.domain, node.op) == (OURS, "MoveStatistic"):
            moving.append(replace(node, inputs=(*node.inputs[:2], DONE)))
    graph.nodes = [n for n in graph.nodes if (n.domain, n.op) != (OURS, "MoveStatistic")]
    for at, node in enumerate(graph.nodes):
        held = HELD.get((node.domain, node.op))
        if held is None or read & set(filter(None, node.outputs[1:3])):
            continue
        outputs = [*node.outputs, *[""] * 5][:5]
        momentum = node.attrs.get("momentum", ATTRS["momentum"])
        for k, statistic in ((1, node.inputs[3]), (2, node.inputs[4])):
            if statistic in graph.initializers or not node.attrs.get("training_mode", 1):
                continue
            outputs[k] = moment = outputs[k] or names.take_fresh(f"{statistic}_batch")
            flag, title = (
                names.take_fresh(f"{statistic}_flag"),
                names.take_fresh(f"{node.name}/{statistic}"),
            )
            ins, attrs = (statistic, moment, DONE), {"momentum": momentum}
            moving.append(Node("MoveStatistic", ins, (flag,), attrs, OURS, title))
        graph.nodes[at] = replace(node, op=held, domain=OURS, outputs=tuple(outputs))
    graph.nodes += moving


def _list_updates(optimizer: Graph) -> Iterator[tuple[Node, Update, int]]:
    """Yield the optimizer nodes of a model, their kinds of update, and the number of states they
    read.
    """
    for node in list_updates(optimizer):
        op = get_declaration(optimizer, node)
        assert op.optimizer is not None, f"{node.op} is not an optimizer"
        yield node, op.optimizer, len(op.optimizer.states({**op.attrs, **node.attrs}))
