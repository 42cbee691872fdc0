"""Training: making the training graph and the evaluation graph of a forward graph."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace

from engine.base.aliases import Array
from engine.base.element_types import FLOATS, OF_NUMPY, TRAINED_INTEGERS, find_gradient_type
from engine.base.errors import (
    DTypeError,
    InputError,
    ModelError,
    NameNotFoundError,
    suggest_nearest,
)
from engine.graphs.io.provenance import describe_dropped
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.offline.buffers import list_moved, move_buffers, move_last
from engine.graphs.offline.differentiate import differentiate, find_dependent
from engine.graphs.offline.integer_layers import write_layers
from engine.graphs.offline.integer_training import find_resident, list_units, scale_gradient
from engine.graphs.offline.modes import EvaluationPart
from engine.graphs.offline.normalize import (
    name_nodes,
    pass_on,
    rename,
    set_inference_mode,
    turn_into_inputs,
)
from engine.graphs.offline.packed_weights import pack_weights, read_packed_products
from engine.graphs.offline.proximal import hold, make_anchors
from engine.graphs.offline.quantize import list_tracked, track_ranges
from engine.graphs.passes.batchnorm import choose_trained, give_own_statistics, set_training_form
from engine.graphs.passes.infer import infer
from engine.graphs.passes.patterns import fuse_patterns
from engine.graphs.passes.simplify import prune
from engine.kernels.vocabulary.op import MS, TensorType

RESET = "lazy_reset_grad"
LOSS = "loss"

BuildLoss = Callable[[Graph], str]
"""Appends a loss to a graph and returns its name."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Names of the initializers of a model that become parameters of the artifacts.

    trainable: the trained ones. frozen: the ones in the checkpoint that are not trained. inputs:
        inputs of the graph whose gradients are accumulated, too.
    """

    trainable: tuple[str, ...]
    frozen: tuple[str, ...]
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Two graphs, whose parameters are inputs, and the values of the parameters, in order."""

    training: Graph
    evaluation: Graph
    trainable: dict[str, Array]
    frozen: dict[str, Array]


def choose(
    graph: Graph, requires_grad: Sequence[str] | None, frozen: Sequence[str] | None
) -> Choice:
    """Choose the parameters.  Initializers in neither list stay constants of the graphs.

    If both lists are empty, all floating-point initializers are frozen parameters.

    Raises:
        InputError: a name is in both lists.
        NameNotFoundError: a name is not an initializer (nor, for training, an input).
        DTypeError: a parameter to train is neither float32, float64 nor a quantised integer.
    """
    train, freeze = list(requires_grad or ()), list(frozen or ())
    both = sorted(set(train) & set(freeze))
    if both:
        raise InputError(f"both in requires_grad and in frozen_params: {', '.join(both)}")
    if not train and not freeze:
        floats = [n for n, a in graph.initializers.items() if a.dtype.kind == "f"]
        return Choice((), tuple(floats))
    for title, names, known in (
        ("requires_grad", train, {**graph.initializers, **graph.inputs}),
        ("frozen_params", freeze, graph.initializers),
    ):
        lost = [n for n in names if n not in known]
        if lost:
            gone = [n for n in lost if n in graph.gone]
            raise NameNotFoundError(
                f"{title}: the model has no initializer "
                + ", ".join(f"{n!r}{suggest_nearest(n, known)}" for n in lost)
                + (f"; {describe_dropped(gone)}" if gone else "")
            )
    trained, held = set(train), set(freeze)
    return Choice(
        trainable=tuple(n for n in graph.initializers if n in trained),
        frozen=tuple(n for n in graph.initializers if n in held),
        inputs=tuple(n for n in graph.inputs if n in trained),
    )


def make_artifacts(
    forward: Graph,
    choice: Choice,
    build_loss: BuildLoss | None,
    additional_outputs: Sequence[str],
    frozen_norms: bool | Sequence[str] | None = None,
    *,
    proximal: bool = False,
) -> Artifacts:
    """Make the training and the evaluation graph of a forward graph, which is modified.

    build_loss: appends the loss.  None: the first output of the graph is the loss.
    additional_outputs: names of values that are outputs of both graphs, after the loss.
    frozen_norms: see `batchnorm.choose_trained`; with True, ranges of rounded values are frozen,
        too, and so are buffers.  Statistics, ranges and buffers that training moves become frozen
        parameters.
    proximal: whether gradients have a pull to anchors, see graphs/offline/proximal.py.

    Before   inputs x; initializers w; y = MatMul(x, w); output y
    After    evaluation   inputs x, target, w;                      ...; outputs loss
             training     inputs x, target, w, w_grad.accumulation.buffer, lazy_reset_grad; ...;
                          outputs loss, w_grad.accumulation.out

    Raises:
        ModelError: the model uses a name that the artifacts need; see also `differentiate` and
            `infer`.
        NameNotFoundError: an additional output is not a value of the graph.
        DTypeError: a parameter to train is neither f32, f64 nor integers that are dequantised.
    """
    users = dict(forward.inputs)
    name_nodes(forward)
    evaluated = EvaluationPart(forward)
    _refuse_taken(forward, _list_fixed_names((*choice.trainable, *choice.inputs)))
    moving = choose_trained(forward, choice.trainable, choice.frozen, frozen_norms)
    is_still = frozen_norms is True or not choice.trainable
    tracked, moved = ([], []) if is_still else (list_tracked(forward), list_moved(forward))
    held = [*(node.inputs[1] for node in tracked), *(node.inputs[0] for node in moved)]
    choice = _with_statistics(forward, choice, [*give_own_statistics(forward, moving), *held])
    units = list_units(forward, choice.trainable)
    choice = replace(choice, frozen=tuple(n for n in choice.frozen if n not in units))
    pack_weights(forward, choice.trainable)
    parameters = turn_into_inputs(forward, (*choice.trainable, *choice.frozen))
    for name in (*choice.trainable, *choice.inputs):
        t = forward.inputs[name]
        if t.dtype not in (*FLOATS, *TRAINED_INTEGERS):
            raise DTypeError(
                f"requires_grad: {name!r} is {t}; supported: f32, f64, and i8, u8 and i32 that "
                "DequantizeLinear or MatMulNBits reads"
            )
    infer(forward)
    before, outputs = set(forward.list_values()), [*forward.outputs]
    made = outputs if build_loss is None else [build_loss(forward)]
    _find(forward, additional_outputs)
    forward.outputs = list(dict.fromkeys((*made, *additional_outputs)))
    if build_loss is not None:
        name_loss(forward, made[0], before, outputs)
    new = {n: t for n, t in forward.inputs.items() if n not in users and n not in parameters}
    mine = {n: forward.inputs[n] for n in parameters}
    chosen, kept = set(choice.trainable), set(choice.frozen)
    trainable = {n: a for n, a in parameters.items() if n in chosen}
    anchors = make_anchors(trainable) if proximal else {}
    _refuse_taken(forward, anchors)
    pulls = {n: TensorType(OF_NUMPY[a.dtype], a.shape) for n, a in anchors.items()}
    forward.inputs = {**users, **new, **mine, **pulls}
    infer(name_nodes(forward))  # again, for the loss
    evaluation = set_inference_mode(evaluated.join(forward))  # with the original ops, before fusion
    _let_gradients_through(forward, choice)
    if read_packed_products(forward, choice.trainable):
        name_nodes(forward)
    track_ranges(set_training_form(forward, moving), list_tracked(forward) if tracked else [])
    move_buffers(forward, list_moved(forward) if moved else [])
    fuse_patterns(forward, infer(forward))
    training = _append_gradients(forward, choice, infer(forward).types, is_held=proximal)
    move_last(training)
    for graph in (training, evaluation):
        used = {i for n in graph.nodes for i in n.list_reads()} | set(graph.outputs)
        graph.initializers = {n: a for n, a in graph.initializers.items() if n in used}
        graph.sort().check()
    return Artifacts(
        training,
        evaluation,
        trainable,
        {n: a for n, a in parameters.items() if n in kept} | anchors,
    )


def _let_gradients_through(graph: Graph, choice: Choice) -> None:
    """Write layers of integers after what is trained with floats, in place.

    They have no gradient otherwise.  Layers in front of it stay as they are, and so do all layers
    of the graph that answers.
    """
    whole = graph.copy()
    if write_layers(whole):
        write_layers(graph, find_dependent(whole, (*choice.trainable, *choice.inputs)))
        name_nodes(graph)


def _with_statistics(graph: Graph, choice: Choice, names: Sequence[str]) -> Choice:
    """Return the choice with these initializers also frozen, without unread ones."""
    frozen = {*choice.frozen, *names}
    read = {i for n in graph.nodes for i in n.list_reads()} | set(graph.outputs)
    lost = {n for n in choice.frozen if n not in read} if names else set()
    kept = tuple(n for n in graph.initializers if n in frozen - lost)
    return replace(choice, frozen=kept)


def name_loss(graph: Graph, made: str, before: Container[str], outputs: Container[str]) -> None:
    """Rename the value of a loss to `loss`, in the outputs, too.

    If a node of the model makes a value named `loss`, that value becomes `loss_1`.  If it is an
    input, an initializer or an output, the loss gets the fresh name instead.

    before: the values of the model without the loss.  A loss among them keeps its name. outputs:
        the outputs of the model without the loss.

    Raises:
        NameNotFoundError: there is no such value.
    """
    known = set(graph.list_values())
    if made not in known:
        raise NameNotFoundError(f"the loss returned {made!r}, which is not a value of the graph")
    if made in before or made == LOSS:
        return
    name = LOSS
    if LOSS in known:
        fresh = Names(graph).take_fresh(LOSS)
        if LOSS in graph.inputs or LOSS in graph.initializers or LOSS in outputs:
            name = fresh
        else:
            rename(graph, LOSS, fresh)
    rename(graph, made, name)


def _find(graph: Graph, names: Sequence[str]) -> None:
    known = dict.fromkeys(graph.list_values())
    lost = [n for n in names if n not in known]
    if lost:
        raise NameNotFoundError(
            "additional_output_names: the model has no value "
            + ", ".join(f"{n!r}{suggest_nearest(n, known)}" for n in lost)
        )


def _list_fixed_names(names: Sequence[str]) -> list[str]:
    """Return the names in a training model of these parameters that onnxruntime-training fixes."""
    ends = ("buffer", "out")
    return (
        [RESET, *(f"{n}_grad.accumulation.{end}" for n in names for end in ends)] if names else []
    )


def _refuse_taken(graph: Graph, names: Iterable[str]) -> None:
    """Refuse a graph with values whose names the format of the artifacts fixes.

    Raises:
        ModelError: the graph has such values.
    """
    taken = sorted(set(names) & set(graph.list_values()))
    if taken:
        raise ModelError(
            f"{graph.name}: the model uses names that the format of the "
            f"artifacts reserves: {', '.join(map(repr, taken))}; rename them"
        )


def _append_gradients(
    graph: Graph, choice: Choice, types: dict[str, TensorType], *, is_held: bool
) -> Graph:
    """Append the gradients, and the nodes that add them to their buffers.

    is_held: whether gradients include a pull to anchors, which are inputs of the graph.
    """
    chosen = {*choice.trainable, *choice.inputs}
    names = [n for n in graph.inputs if n in chosen]
    if not names:
        return prune(graph)
    resident = find_resident(graph, names, types)
    wrt = [value for n in names for value in (resident[n].values if n in resident else [n])]
    gradients = differentiate(graph, graph.outputs[0], wrt, types)
    if is_held:
        if resident:
            raise InputError(
                f"proximal=True: {next(iter(resident))!r} is integers; floats are held"
            )
        gradients = hold(graph, choice.trainable, gradients)
    gradients |= {name: scale_gradient(graph, each, gradients) for name, each in resident.items()}
    for name in names:
        buffer = types[name].but(dtype=find_gradient_type(types[name].dtype))
        packed = resident[name].packed if name in resident else None
        if packed is not None:
            buffer = buffer.but(packed.gradient)
        graph.inputs[f"{name}_grad.accumulation.buffer"] = buffer
    graph.inputs[RESET] = TensorType("b1", (1,))
    titles = Names(graph)
    for i, name in enumerate(names, 1):
        inputs = (f"{name}_grad.accumulation.buffer", gradients[name], RESET)
        done = f"{name}_grad.accumulation.out"
        title = titles.take_fresh(f"GradientAccumulator{i}")
        graph.nodes.append(Node("InPlaceAccumulatorV2", inputs, (done,), {}, MS, title))
        graph.types[done] = TensorType("b1", (1,))
        graph.outputs.append(done)
    graph.opsets.setdefault(MS, 1)
    return prune(pass_on(graph))
