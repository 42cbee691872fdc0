"""From a forward graph to the graphs of the artifacts: training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from engine.element_types import FLOATS
from engine.errors import DTypeError, InputError, ModelError, NameNotFoundError, nearest
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import inference_mode, name_nodes, parameters_to_inputs, rename
from engine.graphs.passes.batchnorm import choose_trained, own_statistics, training_form
from engine.graphs.passes.infer import infer
from engine.graphs.passes.patterns import fuse_patterns
from engine.graphs.passes.simplify import prune
from engine.kernels.vocabulary.op import MS, Array, TensorType

RESET = "lazy_reset_grad"
LOSS = "loss"

BuildLoss = Callable[[Graph], str]
"""Appends a loss to a graph and returns its name."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do with a model's initializers: names, each a parameter of the artifacts.

    `inputs` are graph inputs whose gradient is accumulated, too.
    """

    trainable: tuple[str, ...]
    frozen: tuple[str, ...]
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The graphs, without the parameters' values, and these: in the order of the model."""

    training: Graph
    evaluation: Graph
    trainable: dict[str, Array]
    frozen: dict[str, Array]


def choose(
    graph: Graph, requires_grad: Sequence[str] | None, frozen: Sequence[str] | None
) -> Choice:
    """Sort the initializers.  Those in neither list stay constants of the graphs.

    If both lists are empty, all floating-point initializers are frozen parameters.

    Raises:
        InputError: a name is in both lists.
        NameNotFoundError: a name is no initializer (and, of those to train, no input either).
        DTypeError: a name to train is not of float32 or float64.
    """
    train, freeze = list(requires_grad or ()), list(frozen or ())
    both = sorted(set(train) & set(freeze))
    if both:
        raise InputError(f"both in requires_grad and in frozen_params: {', '.join(both)}")
    if not train and not freeze:
        floats = [n for n, a in graph.initializers.items() if a.dtype.kind == "f"]
        return Choice((), tuple(floats))
    for title, names, known in (
        ("requires_grad", train, [*graph.initializers, *graph.inputs]),
        ("frozen_params", freeze, list(graph.initializers)),
    ):
        lost = [n for n in names if n not in known]
        if lost:
            raise NameNotFoundError(
                f"{title}: the model has no initializer "
                + ", ".join(f"{n!r}{nearest(n, known)}" for n in lost)
            )
    return Choice(
        trainable=tuple(n for n in graph.initializers if n in train),
        frozen=tuple(n for n in graph.initializers if n in freeze),
        inputs=tuple(n for n in graph.inputs if n in train),
    )


def make_artifacts(
    forward: Graph,
    choice: Choice,
    build_loss: BuildLoss | None,
    additional_outputs: Sequence[str],
    frozen_norms: bool | Sequence[str] | None = None,
) -> Artifacts:
    """Make the training and the evaluation graph of a forward graph, which is used up.

    build_loss: None if the model's outputs are the outputs, and the first of them the loss.
    frozen_norms: see `batchnorm.choose_trained`.  Statistics that training moves are parameters.

    Before   inputs x; initializers w; y = MatMul(x, w); output y
    After    evaluation   inputs x, target, w;                      ...; outputs loss
             training     inputs x, target, w, w_grad.accumulation.buffer, lazy_reset_grad; ...;
                          outputs loss, w_grad.accumulation.out

    Raises:
        ModelError and others: see `differentiate`, `infer`; names of the artifacts are taken.
    """
    users = dict(forward.inputs)
    name_nodes(forward)
    moving = choose_trained(forward, choice.trainable, frozen_norms)
    choice = _with_statistics(forward, choice, own_statistics(forward, moving))
    parameters = parameters_to_inputs(forward, (*choice.trainable, *choice.frozen))
    for name in (*choice.trainable, *choice.inputs):
        t = forward.inputs[name]
        if t.dtype not in FLOATS:
            raise DTypeError(f"requires_grad: {name!r} is {t}; supported: f32, f64")
    infer(forward)
    outputs = [*forward.outputs]
    if build_loss is not None:
        outputs = [_append_loss(forward, build_loss)]
    _find(forward, additional_outputs)
    forward.outputs = list(dict.fromkeys((*outputs, *additional_outputs)))
    new = {n: t for n, t in forward.inputs.items() if n not in users and n not in parameters}
    mine = {n: forward.inputs[n] for n in parameters}
    forward.inputs = {**users, **new, **mine}
    infer(name_nodes(forward))  # again, for the loss
    evaluation = inference_mode(forward.copy())  # in the ops it came in: it is exported
    training_form(forward, moving)
    fuse_patterns(forward, infer(forward))
    training = _training(forward, choice, infer(forward).types)
    for graph in (training, evaluation):
        used = {i for n in graph.nodes for i in n.reads()} | set(graph.outputs)
        graph.initializers = {n: a for n, a in graph.initializers.items() if n in used}
        graph.sort().check()
    return Artifacts(
        training,
        evaluation,
        {n: a for n, a in parameters.items() if n in choice.trainable},
        {n: a for n, a in parameters.items() if n in choice.frozen},
    )


def _with_statistics(graph: Graph, choice: Choice, names: Sequence[str]) -> Choice:
    """The choice with these initializers frozen, and without what nothing reads any more."""
    frozen = {*choice.frozen, *names}
    read = {i for n in graph.nodes for i in n.reads()} | set(graph.outputs)
    lost = {n for n in choice.frozen if n not in read} if names else set()
    kept = tuple(n for n in graph.initializers if n in frozen - lost)
    return replace(choice, frozen=kept)


def make_room(graph: Graph) -> None:
    """Rename a value inside the model that is called `loss`; nothing else may have that name."""
    if LOSS in graph.inputs or LOSS in graph.initializers or LOSS in graph.outputs:
        raise ModelError(
            f"{graph.name}: the model has an input, initializer or output {LOSS!r}, which is the "
            f"name of the artifacts' loss; rename it"
        )
    if LOSS in graph.values():
        rename(graph, LOSS, Names(graph).fresh(LOSS))


def name_loss(graph: Graph, made: str, before: Container[str]) -> str:
    """Call a loss `loss`, unless it is a value of the model as it was `before`."""
    if made not in set(graph.values()):
        raise NameNotFoundError(f"the loss returned {made!r}, which is no value of the graph")
    if made in before:
        return made
    rename(graph, made, LOSS)
    return LOSS


def _append_loss(graph: Graph, build: BuildLoss) -> str:
    """Append the loss, and name its value `loss`."""
    make_room(graph)
    before = set(graph.values())
    return name_loss(graph, build(graph), before)


def _find(graph: Graph, names: Sequence[str]) -> None:
    known = list(graph.values())
    lost = [n for n in names if n not in known]
    if lost:
        raise NameNotFoundError(
            "additional_output_names: the model has no value "
            + ", ".join(f"{n!r}{nearest(n, known)}" for n in lost)
        )


def _training(graph: Graph, choice: Choice, types: dict[str, TensorType]) -> Graph:
    """Append the gradients and their accumulation."""
    names = [n for n in graph.inputs if n in (*choice.trainable, *choice.inputs)]
    if not names:
        return prune(graph)
    reserved = [
        RESET,
        *(f"{n}_grad.accumulation.{end}" for n in names for end in ("buffer", "out")),
    ]
    taken = sorted(set(reserved) & set(graph.values()))
    if taken:
        raise ModelError(f"{graph.name}: the model has values named as the artifacts': {taken}")
    gradients = differentiate(graph, graph.outputs[0], names, types)
    for name in names:
        graph.inputs[f"{name}_grad.accumulation.buffer"] = types[name]
    graph.inputs[RESET] = TensorType("b1", (1,))
    for i, name in enumerate(names, 1):
        inputs = (f"{name}_grad.accumulation.buffer", gradients[name], RESET)
        done = f"{name}_grad.accumulation.out"
        title = f"GradientAccumulator{i}"
        graph.nodes.append(Node("InPlaceAccumulatorV2", inputs, (done,), {}, MS, title))
        graph.types[done] = TensorType("b1", (1,))
        graph.outputs.append(done)
    graph.opsets.setdefault(MS, 1)
    return prune(graph)
