"""The comparisons: one model computed in several ways, which must agree.

The reference is the *plain* plan: no pass that may be left out, no groups, formulas interpreted,
one thread.  How far rounding may go is measured for each value: everything that is fed and every
result of a node that rounds is moved by a few units in the last place, and the plain plan shows
what that does to each output.  An output that moves by much, as where it turns an `argmax`,
measures nothing and is left out.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime

from engine import Trainer
from engine.artifacts import SGD, AdamW, MSELoss
from engine.base.element_types import NUMPY
from engine.errors import BudgetError, EngineError, InternalError, ModelError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.offline.sample_flow import find_loss
from engine.graphs.offline.sample_values import MixedError
from engine.graphs.offline.training import RESET
from engine.graphs.passes import attention_match, pipeline, recompute
from engine.graphs.passes.control import unroll
from engine.graphs.passes.infer import bind, infer
from engine.graphs.passes.pipeline import OPTIONAL, PASSES, Pass, PassState
from engine.graphs.passes.simplify import is_acting, prune
from engine.graphs.planner import planner, tile
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.planner import Planner, make_plan
from engine.graphs.planner.updates import settle_updates
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Movement
from engine.kernels.vocabulary.op import MS, TensorType
from engine.plan.plan import Plan
from engine.tools.dev import case_graphs
from engine.tools.trimmed.build import Options, build
from engine.tools.trimmed.targets import resolve
from tests.random_graphs.sketch import Array, Model
from tests.support import builds, harness

MOVES = 3  # times that inputs are moved to see what rounding does
ULPS = 4.0  # by so many units in the last place
ROUNDING = 50.0  # times what that does to an output: what a way may differ
# Ops whose results are elements of their inputs, or whole numbers: they do not round.
EXACT = {
    *("Max", "Min", "ReduceMax", "ReduceMin", "Relu", "Abs", "Neg", "Clip", "Sign", "Round"),
    *("Floor", "Ceil", "MaxPool", "GlobalMaxPool", "TopK", "Where", "Cast", "CastLike", "Unique"),
    *("Scatter", "ScatterElements", "ScatterND", "MaxUnpool", "Compress", "Hardmax", "OneHot"),
}
UNSTABLE = {
    "f64": 1e-5,
    "f32": 1e-3,
}  # of the largest element: outputs that move by more say nothing
STRAIGHT = {
    *("QuantizeLinear", "DynamicQuantizeLinear"),
    *(f"{MS}::QuantizeLinear", f"{MS}::FakeQuant", "engine::QuantizeDequantize"),
    "engine::Redirect",
}
COMPILED = 0.08  # of the graphs: to compile formulas takes longer than all other comparisons
TRAINED = 0.8  # of the real inputs: others have no gradient, as frozen parameters
TRAININGS = 0.04  # of the graphs that have gradients
APART = 12  # values of a graph, at most, that are tried for one that keeps samples apart
BUILT = 0.1  # of these trainings: they are built as C libraries
STOCK = 0.3  # of the graphs are computed by onnxruntime, too
OTHERS = 1e-4  # of the largest element: what it may differ, whose functions are less exact
UNLIKE = {"QuantizeLinear", "DynamicQuantizeLinear"}  # a unit of rounding there is a step
RANDOM = {"Dropout", "Bernoulli", "RandomMask"}
STEP = 1e-5  # of central differences
SLOPE = 1e-5  # what these may differ from the gradient, of all that they are made of


class DifferentError(AssertionError):
    """Two ways of computing a model do not agree.

    way: which one is not as the plain plan, in a few words.
    """

    def __init__(self, way: str, text: str) -> None:
        super().__init__(f"{way}: {text}")
        self.way = way


@dataclass
class Report:
    """Results of the comparisons of a model.

    done: how often each was made.  refused: the reasons of refusals, by comparison.
    changed: the passes that changed a graph.  unstable: outputs that were left out.
    """

    done: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str]] = field(default_factory=list)
    changed: Counter[str] = field(default_factory=Counter)
    unstable: int = 0


SMALL: tuple[tuple[Any, str, Any], ...] = (
    (attention_match, "FEW", 0),
    (recompute, "LARGE", 256),
    (recompute, "NEAR", 0),
    (recompute, "FEW", 1),
    (tile, "LEAST", 2),
)


@contextmanager
def replaced(*others: tuple[Any, str, Any]) -> Iterator[None]:
    """Inside, names of modules mean something else: (module, name, value)."""
    before = [(module, name, getattr(module, name)) for module, name, _ in others]
    try:
        for module, name, value in others:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def however_few() -> AbstractContextManager[None]:
    """Inside, what the planner does for large values alone it does for small ones, too."""
    return replaced(*SMALL)


# --- ways of computing


def plain_plan(graph: Graph) -> Plan:
    """The plan with nothing fused, joined or grouped, whose formulas are interpreted."""

    def alone(draft: Draft, target: Target, threads: int) -> None:
        settle_updates(draft)

    with replaced((planner, "group", alone)):
        return make_plan(
            graph.copy(), {}, target=detect_host(), threads=1, closed=True, without=OPTIONAL
        )


def runner(plan: Plan) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Return a function that runs a plan: its outputs, and the inputs that it changes."""
    run = harness.make_runner(plan)

    def quiet(fed: Mapping[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            return run(fed, True)

    return quiet


def numbers(plan: Plan, fed: Mapping[str, Array]) -> dict[str, Array]:
    """Return the results of a plan for its inputs."""
    return runner(plan)(fed)


class Check:
    """One graph, the numbers of its plain plan, and how far others may be from them.

    Raises:
        EngineError: the graph is refused.
    """

    def __init__(self, graph: Graph, fed: Mapping[str, Array], report: Report) -> None:
        self.graph, self.fed, self.report = graph, dict(fed), report
        self.plain = runner(plain_plan(graph))
        self.wanted = self.plain(fed)
        self.bounds = self._bounds()

    def _bounds(self) -> dict[str, float | None]:
        """For each value how far others may be from it; None where nothing can be said."""
        rng = np.random.default_rng(7)
        moved: dict[str, float] = dict.fromkeys(self.wanted, 0.0)
        graph, noise = rounded(self.graph)
        run = runner(plain_plan(graph)) if noise else self.plain
        for _ in range(MOVES):
            fed = {n: _moved(a, rng) for n, a in self.fed.items()}
            fed |= {n: _moved(np.ones(t.dims, NUMPY[t.dtype]), rng) for n, t in noise.items()}
            found = run(fed)
            for name, want in self.wanted.items():
                moved[name] = max(moved[name], distance(found[name], want))
        bounds: dict[str, float | None] = {}
        arrays = [a for a in (*self.fed.values(), *self.wanted.values()) if a.dtype.kind == "f"]
        largest = max((_scale(a) for a in arrays), default=0.0)  # what is 0 may be a sum of these
        for name, want in self.wanted.items():
            if want.dtype.kind != "f":
                bounds[name] = 0.0 if moved[name] == 0 else None
                continue
            own = float(np.finfo(want.dtype).eps) * _scale(want)
            bound = ROUNDING * (moved[name] + own) + float(np.finfo(want.dtype).tiny)
            kind = "f64" if want.dtype == np.float64 else "f32"
            bounds[name] = bound if bound <= UNSTABLE[kind] * largest else None
            if not np.isfinite(want).all():
                bounds[name] = None
        self.report.unstable += sum(b is None for b in bounds.values())
        return bounds

    def agrees(self, way: str, found: Mapping[str, Array]) -> None:
        """Compare what another way has made.

        Raises:
            DifferentError: it differs by more than rounding.
        """
        self.report.done[way] += 1
        for name, want in self.wanted.items():
            bound, got = self.bounds[name], found[name]
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                raise DifferentError(way, f"{name} is {got.dtype}{got.shape}, plain {want.dtype}"
                                          f"{want.shape}")  # fmt: skip
            if bound is None:
                continue
            far = distance(got, want)
            if not far <= bound:
                scale = float(np.max(np.abs(want), initial=0))
                raise DifferentError(
                    way, f"{name} is {far:.3g} off, of {scale:.3g}; rounding: {bound:.2g}"
                )

    def equals(self, way: str, found: Mapping[str, Array], other: Mapping[str, Array]) -> None:
        """Compare two ways that promise the same bits.

        Raises:
            DifferentError: a bit differs.
        """
        self.report.done[way] += 1
        for name, want in other.items():
            if found[name].tobytes() != want.tobytes():
                far = distance(found[name], want)
                raise DifferentError(way, f"{name} is not the same to the last bit: {far:.3g} off")


def distance(a: Array, b: Array) -> float:
    """The largest difference; NaN where one alone is NaN."""
    if a.shape != b.shape:
        return float("inf")
    if a.dtype.kind != "f":
        return float(np.count_nonzero(a != b))
    with np.errstate(all="ignore"):
        far = np.abs(a.astype(np.float64) - b.astype(np.float64))
    far = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, far)
    return float(np.max(far, initial=0.0))


def _scale(array: Array) -> float:
    """The magnitude of the largest finite element."""
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))


def _moved(array: Array, rng: np.random.Generator) -> Array:
    """Numbers some units in the last place beside the given ones; whole numbers as they are."""
    if array.dtype.kind != "f":
        return array
    noise = rng.uniform(-ULPS, ULPS, array.shape) * np.finfo(array.dtype).eps
    moved: Array = (array * (1 + noise)).astype(array.dtype)
    return moved


# --- graphs made of a model


def rounded(graph: Graph) -> tuple[Graph, dict[str, TensorType]]:
    """Return a graph whose nodes round otherwise, and the inputs that say how.

    The results of nodes that round are multiplied with these; outputs of the graph are not.
    """
    made = unroll(graph.copy())
    types, names, noise = infer(made.copy()).types, Names(made), dict[str, TensorType]()
    nodes, made.nodes = made.nodes, []
    instead: dict[str, str] = {}
    for node in nodes:
        node.inputs = tuple(instead.get(name, name) for name in node.inputs)
        made.nodes.append(node)
        op = list_ops().get((node.domain, node.op))
        if (
            op is None
            or op.movement is not Movement.COMPUTED
            or node.op in EXACT
            or is_acting(node)
        ):
            continue
        for name in filter(None, node.outputs):
            t = types[name]
            if t.dtype in ("f32", "f64") and t.size:
                by, instead[name] = (
                    names.take_fresh(f"{name}_noise"),
                    names.take_fresh(f"{name}_rounded"),
                )
                noise[by] = made.inputs[by] = t
                title = names.take_fresh(f"round_{name}")
                made.nodes.append(Node("Mul", (name, by), (instead[name],), {}, "", title))
    return made, noise


def weighted(graph: Graph, types: Mapping[str, TensorType], seed: int) -> Graph:
    """The graph with the loss: the sum of all real outputs times random numbers."""
    rng = np.random.default_rng(seed)
    floats = {o: types[o] for o in graph.outputs if types[o].dtype in ("f32", "f64")}
    weights = {o: rng.standard_normal(t.dims).astype(NUMPY[t.dtype]) for o, t in floats.items()}
    return case_graphs.with_loss(graph, weights)


def backward(model: Model, report: Report) -> tuple[Graph, dict[str, str]] | None:
    """The graph with the loss and the gradients of all real inputs that have one.

    Returns None where no gradient can be made.
    """
    plain = name_nodes(unroll(model.graph.copy()))
    types = infer(plain.copy()).types
    kinds = {types[o].dtype for o in plain.outputs} & {"f32", "f64"}
    wrt = [n for n, t in plain.inputs.items() if t.dtype in ("f32", "f64") and t.size]
    if len(kinds) != 1:
        return None
    rng = random.Random(model.seed)
    trained = [n for n in wrt if rng.random() < TRAINED]
    wrt = trained or wrt
    while wrt:
        graph = weighted(plain, types, abs(model.seed))
        try:
            names = differentiate(graph, "loss", wrt, infer(graph.copy()).types)
        except ModelError as error:
            lost = set(re.findall(r"'(\w+)'", str(error).rpartition("respect to")[2]))
            if not lost & set(wrt):
                raise
            wrt = [n for n in wrt if n not in lost]
            continue
        except UnsupportedOpError as error:
            report.refused.append(("gradient", str(error)))
            return None
        return graph, names
    return None


def accumulated(graph: Graph, names: Mapping[str, str]) -> Graph:
    """A training graph: each gradient is added to a buffer; the loss is the one output."""
    made = graph.copy()
    made.outputs = ["loss"]
    made.inputs[RESET] = TensorType("b1", (1,))
    for k, (name, gradient) in enumerate(names.items()):
        buffer, done = f"{name}_grad.accumulation.buffer", f"{name}_grad.accumulation.out"
        made.inputs[buffer] = made.inputs[name]
        made.nodes.append(
            Node("InPlaceAccumulatorV2", (buffer, gradient, RESET), (done,), {}, MS, f"keep{k}")
        )
    return made


def with_buffers(graph: Graph, fed: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Return the inputs of a training graph: the model's inputs, the flag, and buffers."""
    rng = np.random.default_rng(seed)
    found = dict(fed)
    for name, t in graph.inputs.items():
        if name == RESET:
            found[name] = np.array([seed % 2 == 0])
        elif name not in found:
            found[name] = rng.standard_normal(t.dims).astype(NUMPY[t.dtype])
    return found


def trimmed(model: Model, ends: Sequence[str]) -> Model:
    """A model with other outputs, without what these do not need."""
    made = model.copy()
    made.graph.outputs = list(ends)
    graph = prune(made.graph)
    read = {i for n in graph.nodes for i in n.list_reads()} | set(ends)
    graph.inputs = {n: t for n, t in graph.inputs.items() if n in read}
    made.fed = {n: a for n, a in made.fed.items() if n in read}
    return made


# --- all of them


def compare(model: Model, open_too: bool = True) -> Report:
    """Compute a model in all ways.

    open_too: also by plans whose formulas become kernels of their own, which must be compiled.

    Raises:
        DifferentError: two ways do not agree.
        InternalError, and any error other than EngineError: a defect.
    """
    report, rng = Report(), random.Random(model.seed)
    with however_few():
        forward(model, report, rng, open_too)
        try:
            found = backward(model, report)
        except EngineError as error:
            if isinstance(error, InternalError):
                raise
            report.refused.append(("gradient", str(error)))
            return report
        if found is not None:
            gradients(model, *found, report, rng, open_too)
            if open_too and rng.random() < TRAININGS:
                steps(model, *found, report, rng)
            parts(model, found[1], report)
    return report


def parts(model: Model, names: Mapping[str, str], report: Report) -> None:
    """Compare gradients of micro-batches with gradients of the whole batch.

    Taken is the last value of the model that keeps the samples of some inputs apart.
    """
    found = _apart(model, names, report)
    if found is None:
        return
    made, trained, samples = found
    for name in trained:
        del made.graph.inputs[name]
        made.graph.initializers[name] = made.fed.pop(name)
    (end,) = made.graph.outputs
    target = np.random.default_rng(3).standard_normal(
        made.graph.types[end].but([samples, *made.graph.types[end].shape[1:]]).dims
    )
    fed = {**made.fed, "target": target.astype(NUMPY[made.graph.types[end].dtype])}
    try:
        one, two, three = (
            Trainer.from_onnx(
                onnx_io.to_proto(made.graph), MSELoss(), optimizer=SGD(1.0), train=trained,
                threads=1, seed=7, micro_batches=count,
            )
            for count in (1, 2, samples)
        )  # fmt: skip
        training = bind(one.module.session.training.graph, {n: fed[n].shape for n in one.inputs})
        values = {n: one.state.parameters[n].data for n in one.module.session.training.parameters}
        training.outputs = training.outputs[:1]
        known = Check(training, with_buffers(training, {**fed, **values}, 0), report)
        batch = [fed[name] for name in one.inputs]
        for trainer in (two, three):
            trainer.training_steps.compute_gradients(batch)
    except InternalError:
        raise
    except EngineError as error:
        report.refused.append(("micro-batches", str(error)))
        return
    # A gradient that is zero by its formula, as of the bias of keys, is the rounding of others.
    largest = max(_scale(known.wanted[f"{name}_grad.accumulation.buffer"]) for name in trained)
    noise = 64 * float(np.finfo(fed["target"].dtype).eps) * largest
    for trainer, way in ((two, "micro-batches, two"), (three, "micro-batches of one sample")):
        report.done[way] += 1
        for name in trained:
            buffer = f"{name}_grad.accumulation.buffer"
            far, bound = np.inf, known.bounds[buffer]
            if bound is None:
                continue
            gradient = trainer.state.parameters[name].grad
            if gradient is not None:
                far = distance(gradient, known.wanted[buffer])
            if not far <= bound + noise:
                scale = _scale(known.wanted[buffer])
                raise DifferentError(
                    way, f"the gradient of {name} is {far:.3g} off, of {scale:.3g}; "
                    f"rounding: {bound:.2g}"
                )  # fmt: skip


def _apart(
    model: Model, names: Container[str], report: Report
) -> tuple[Model, list[str], int] | None:
    """Return a part of a model that keeps samples apart, its parameters, and how many samples.

    They are on the first axis of its inputs and of its output, whose size is left open.
    """
    types = infer(unroll(model.graph.copy())).types
    if any(node.op in RANDOM for node in model.graph.nodes):
        return None
    sizes = Counter(a.shape[0] for a in model.fed.values() if a.ndim and a.shape[0] > 1)
    ends = [o for n in reversed(model.graph.nodes) for o in n.outputs if o in types]
    tries = [
        (size, end)
        for size, _ in sizes.most_common(2)
        for end in ends
        if types[end].dtype in ("f32", "f64") and types[end].dims[:1] == (size,) and types[end].size
    ]
    for samples, end in tries[:APART]:
        made = trimmed(model, [end])
        rows = {n: 1 for n, a in made.fed.items() if a.ndim and a.shape[0] == samples}
        trained = [n for n in made.fed if n in names and n not in rows]
        if not rows or not trained:
            continue
        graph = made.graph
        graph.inputs |= {n: t.but(["n", *t.dims[1:]]) for n, t in graph.inputs.items() if n in rows}
        mean = graph.copy()
        mean.outputs = ["mean"]
        mean.nodes.append(Node("ReduceMean", (end,), ("mean",), {"keepdims": 0}, "", "mean"))
        try:
            graph.types = infer(unroll(graph.copy())).types
            find_loss(mean, {n: a.shape for n, a in made.fed.items()}, rows)
        except InternalError:
            raise
        except (EngineError, MixedError) as error:
            report.refused.append(("samples", str(error)))
            continue
        return made, trained, samples
    return None


def built(made: Model, trained: Sequence[str], batch: Sequence[Array], report: Report) -> None:
    """Compare two steps of a C library with the engine's, to the last bit."""
    with TemporaryDirectory() as folder:
        artifacts, out = Path(folder, "artifacts"), Path(folder, "out")
        one = Trainer.from_onnx(
            onnx_io.to_proto(made.graph), MSELoss(), optimizer=AdamW(0.01), train=trained,
            threads=1, folder=artifacts,
        )  # fmt: skip
        samples = batch[-1].shape[0] if batch[-1].ndim else 1
        build(artifacts, out, Options("mnist", resolve("native"), [samples], 1))
        two = builds.load(out).Trainer(artifacts / "checkpoint")
        report.done["steps, built"] += 1
        for _ in range(2):
            losses = one.step(*batch), two.step(*batch)
            if distance(*map(np.asarray, losses)):
                raise DifferentError("steps, built", f"losses {losses}")
        for name in trained:
            a, b = (t.state.parameters[name].data for t in (one, two))
            if a.tobytes() != b.tobytes():
                raise DifferentError("steps, built", f"{name} is {distance(a, b):.3g} off")


def steps(
    model: Model,
    graph: Graph,
    names: Mapping[str, str],
    report: Report,
    rng: random.Random,
) -> None:
    """Train graphs with gradients: one plan and two calls must give the same steps."""
    ends = [o for o in model.graph.outputs if any(n.name == f"mul_{o}" for n in graph.nodes)]
    made = max(
        (trimmed(model, [end]) for end in ends),
        key=lambda part: len(part.fed.keys() & names.keys()),
    )
    end = made.graph.outputs[0]
    trained = [n for n in names if n in made.fed]
    for name in trained:
        del made.graph.inputs[name]
        made.graph.initializers[name] = made.fed.pop(name)
    made.graph.types = infer(unroll(made.graph.copy())).types
    target = np.random.default_rng(3).standard_normal(made.graph.types[end].dims)
    batch = [*made.fed.values(), target.astype(NUMPY[made.graph.types[end].dtype])]
    text = onnx_io.to_bytes(made.graph)
    trainers = []
    try:
        for _ in range(2):
            trainers.append(
                Trainer.from_onnx(
                    onnx.load_from_string(text), MSELoss(), optimizer=AdamW(0.01), train=trained,
                    threads=1, seed=7,
                )
            )  # fmt: skip
        one, two = trainers
        losses = []
        for _ in range(2):
            losses.append((one.step(*batch), two.accumulate(*batch)))
            two.update()
        if rng.random() < BUILT and shutil.which("cc"):
            built(made, trained, batch, report)
    except InternalError:
        raise
    except EngineError as error:
        report.refused.append(("steps", str(error)))
        return
    report.done["steps, joined"] += 1
    if any(a != b and not (np.isnan(a) and np.isnan(b)) for a, b in losses):
        raise DifferentError("steps, joined", f"losses {losses}")
    for region in ("param", "state"):
        found, wanted = (t.state.regions[region] for t in (one, two))
        if found.tobytes() != wanted.tobytes():
            raise DifferentError(
                "steps, joined", f"region {region} differs from the region of two calls"
            )


def forward(model: Model, report: Report, rng: random.Random, open_too: bool) -> None:
    """The comparisons of the forward graph."""
    check = _check(model.graph, model.fed, report, "forward")
    if check is None:
        return
    if model.alone:
        check.agrees("forward, node by node", {**check.wanted, **model.alone})
    if rng.random() < STOCK:
        stock(model, check)
    _ways(check, "forward", rng, open_too and rng.random() < COMPILED)
    _shapes(check, rng)


def stock(model: Model, check: Check) -> None:
    """Compare the forward graph with stock onnxruntime, where it can run it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if any(n.domain or n.op in UNLIKE for n in model.graph.nodes) or has_edges(model):
        return
    if any(n.op == "TopK" and not n.attrs.get("sorted", 1) for n in model.graph.nodes):
        return  # which may be in any order
    try:
        session = onnxruntime.InferenceSession(
            onnx_io.to_bytes(model.graph), options, providers=["CPUExecutionProvider"]
        )
        found = session.run(None, model.fed)
    except Exception as error:  # its own classes have no common one
        check.report.refused.append(("onnxruntime", str(error)))
        return
    check.report.done["forward, onnxruntime"] += 1
    for name, got in zip(model.graph.outputs, found, strict=True):
        want, bound = check.wanted[name], check.bounds[name]
        if bound is None:
            continue
        wide = bound + OTHERS * _scale(want) if want.dtype.kind == "f" else bound
        far = distance(got, want)
        if (got.shape, got.dtype) != (want.shape, want.dtype) or not far <= wide:
            raise DifferentError(
                "forward, onnxruntime", f"{name} {got.dtype}{got.shape} is {far:.3g} off, "
                f"{want.dtype}{want.shape} of {_scale(want):.3g}"
            )  # fmt: skip


def has_edges(model: Model) -> bool:
    """Return whether a model has a node at which onnxruntime ends, or differs.

    MaxPool of no images ends its process, and so does a Split with an output that is left out; a
    sequence of no steps ends with zeros, not with the state that it began with; a mean of no labels
    is NaN, not 0; indices of MaxUnpool count in the shape that is given, not in the one that ONNX
    infers; a Squeeze of no axes removes all of length 1, as if the axes were left out.
    """
    values = {**model.fed, **model.graph.initializers, **model.alone}
    for node in model.graph.nodes:
        known = [values[name] for name in node.inputs if name in values]
        if node.op == "MaxPool" and any(not a.size for a in known):
            return True
        if node.op == "Split" and "" in node.outputs:
            return True
        axes = values.get(node.inputs[-1]) if len(node.inputs) > 1 else node.attrs.get("axes")
        if node.op == "Squeeze" and axes is not None and not len(axes):
            return True
        lengths = values.get(node.inputs[4]) if len(node.inputs) > 4 else None
        if node.op in ("RNN", "GRU", "LSTM") and lengths is not None and not np.all(lengths):
            return True
        if "ignore_index" in node.attrs or (node.op == "MaxUnpool" and len(node.inputs) > 2):
            return True
    return False


def gradients(
    model: Model,
    graph: Graph,
    names: Mapping[str, str],
    report: Report,
    rng: random.Random,
    open_too: bool,
) -> None:
    """The comparisons of the gradients: as outputs, and as a training graph keeps them."""
    ends = graph.copy()
    ends.outputs = [*names.values(), "loss"]
    if rng.random() < 0.3:
        ends.outputs += [o for o in model.graph.outputs if o not in ends.outputs]
    ends.outputs = list(dict.fromkeys(ends.outputs))
    check = _check(ends, model.fed, report, "gradients")
    if check is None:
        return
    if not stops(model, names):
        slopes(check, names, report, rng)
    _ways(check, "gradients", rng, open_too and rng.random() < COMPILED)
    training = accumulated(graph, names)
    kept = _check(
        training, with_buffers(training, model.fed, rng.randrange(100)), report, "training"
    )
    if kept is not None:
        if not any(n.op in RANDOM for n in graph.nodes):
            report.done["training, gradients"] += 1
            added(check, kept, names)
        _ways(kept, "training", rng, open_too and rng.random() < COMPILED)


def added(check: Check, kept: Check, names: Mapping[str, str]) -> None:
    """Compare what a training graph leaves in its buffers with the gradients as outputs.

    Raises:
        DifferentError: a buffer holds another number than its gradient, or their sum.
    """
    for name, gradient in names.items():
        buffer = f"{name}_grad.accumulation.buffer"
        bounds = check.bounds[gradient], kept.bounds[buffer]
        if bounds[0] is None or bounds[1] is None:
            continue
        before = 0 if kept.fed[RESET][0] else kept.fed[buffer]
        far = distance(kept.wanted[buffer], check.wanted[gradient] + before)
        if not far <= sum(b for b in bounds if b is not None):
            raise DifferentError("training, gradients", f"{buffer} is {far:.3g} off")


def _check(graph: Graph, fed: Mapping[str, Array], report: Report, what: str) -> Check | None:
    """The check of a graph; None if the graph is refused."""
    try:
        return Check(graph, fed, report)
    except InternalError:
        raise
    except EngineError as error:
        report.refused.append((what, str(error)))
        return None


def _ways(check: Check, what: str, rng: random.Random, open_too: bool) -> None:
    """All passes, by one thread and two, with formulas interpreted and compiled, in less memory."""

    def plan(name: str, **options: Any) -> Plan:
        with _naming(f"{what}, {name}"):
            options = {"threads": 1, "closed": True} | options
            return make_plan(check.graph.copy(), {}, target=detect_host(), **options)

    with counting(check.report.changed):
        usual = plan("all passes")
    found = numbers(usual, check.fed)
    try:
        check.agrees(f"{what}, all passes", found)
    except DifferentError as error:
        raise DifferentError(error.way, f"{error}; {_first_pass(check)}") from error
    two = runner(plan("two threads", threads=2))
    found = two(check.fed)
    check.agrees(f"{what}, two threads", found)
    check.equals(f"{what}, two threads again", two(check.fed), found)
    if open_too:
        threads = rng.choice((1, 2))
        made = plan("compiled", closed=False, threads=threads)
        check.agrees(f"{what}, compiled", numbers(made, check.fed))
    if rng.random() < 0.25:
        least = _least_plan(check, usual)
        if least is not None:
            check.agrees(f"{what}, least memory", numbers(least, check.fed))


def _first_pass(check: Check) -> str:
    """A sentence on the first of the passes, added one by one, with which numbers differ."""
    left = [step.name for step in PASSES if not step.needed]
    options: dict[str, Any] = {"target": detect_host(), "threads": 1, "closed": True}
    for added_last in ["", *left]:
        if added_last:
            left.remove(added_last)
        plan = make_plan(check.graph.copy(), {}, without=tuple(left), **options)
        try:
            check.agrees("bisection", numbers(plan, check.fed))
        except DifferentError:
            return (
                f"first with the pass {added_last!r}" if added_last else "with no pass but groups"
            )
    return "with no pass alone"


def _least_plan(check: Check, usual: Plan) -> Plan | None:
    """The plan of the least budget; None where the usual one has it already."""

    def plan(budget: int) -> Plan:
        return make_plan(
            check.graph.copy(), {}, target=detect_host(), threads=1, closed=True, budget=budget
        )

    try:
        plan(0)
    except BudgetError as error:
        return plan(error.least) if error.least < usual.nbytes else None
    return None


@contextmanager
def _naming(way: str) -> Iterator[None]:
    """A refusal inside is a defect: the plain plan was not refused."""
    try:
        yield
    except InternalError:
        raise
    except EngineError as error:
        raise DifferentError(way, f"refused, the plain plan is not: {error}") from error


def counting(counts: Counter[str]) -> AbstractContextManager[None]:
    """Inside, the passes are counted that change a graph."""

    state: list[object] = [None]

    def counted(step: Pass) -> Pass:
        def run(work: PassState) -> None:
            step.run(work)
            last = [n for n, t in work.types.items() if t.last]
            before, state[:] = state[0], [(str(work.graph), last)]
            counts[step.name] += before is not None and before != state[0]

        return replace(step, run=run)

    return replaced((pipeline, "PASSES", tuple(map(counted, PASSES))))


def stops(model: Model, names: Container[str]) -> bool:
    """Return whether an op between inputs and outputs stops a gradient that would exist.

    These are inputs that ops declare, and quantisers, which pass gradients straight through.
    """
    graph = unroll(model.graph.copy())
    moved = {n for n in graph.inputs if n in names}
    for node in graph.nodes:
        op = list_ops().get((node.domain, node.op))
        at = [k for k, name in enumerate(node.inputs) if name in moved]
        if at and (op is None or op.title in STRAIGHT or op.no_gradient.intersection(at)):
            return True
        moved.update(o for o in node.outputs if o and at)
    return False


def slopes(check: Check, names: Mapping[str, str], report: Report, rng: random.Random) -> None:
    """Compare gradients in float64 with central differences along a random direction."""
    if any(check.fed[n].dtype != np.float64 for n in names):
        return
    made = np.random.default_rng(rng.randrange(1 << 30))
    directions = {n: made.standard_normal(check.fed[n].shape) for n in names}
    slope = sum(float(np.sum(check.wanted[g] * directions[n])) for n, g in names.items())
    size = sum(float(np.sum(np.abs(check.wanted[g] * directions[n]))) for n, g in names.items())

    def loss(step: float) -> float:
        fed = {n: a + step * directions[n] if n in directions else a for n, a in check.fed.items()}
        return float(check.plain(fed)["loss"])

    found = [(loss(h) - loss(-h)) / (2 * h) for h in (STEP, STEP / 2, 2 * STEP)]
    here = float(check.wanted["loss"])
    sides = [(loss(STEP) - here) / STEP, (here - loss(-STEP)) / STEP]
    scale = size + abs(here) + 1
    spread = max(found) - min(found) + abs(sides[0] - sides[1])
    if not np.isfinite(spread) or spread > 1e-3 * scale:
        return  # a kink is near, or the loss is too steep
    report.done["differences"] += 1
    if abs(found[0] - slope) > max(SLOPE * scale, 10 * (max(found) - min(found))):
        raise DifferentError(
            "differences",
            f"the gradient is {slope:.8g}, differences {found[0]:.8g}, of {scale:.3g}",
        )


def _shapes(check: Check, rng: random.Random) -> None:
    """Plan for another size of a dimension first: the next plan must equal a new planner's."""
    sizes = sorted({d for t in check.graph.inputs.values() for d in t.dims})
    if not sizes:
        return
    size = rng.choice(sizes)
    graph = check.graph.copy()
    graph.types = {
        o: t.but([f"{o}_{k}" for k in range(t.rank)])
        for o, t in graph.types.items()
        if o in graph.outputs
    }
    for name, t in graph.inputs.items():
        graph.inputs[name] = t.but(["n" if d == size else d for d in t.shape])
    shapes = {n: a.shape for n, a in check.fed.items()}
    other = rng.choice([d for d in (0, 1, 2, 3, 5, 7, 16, size + 1) if d != size])
    others = {n: [other if d == size else d for d in shape] for n, shape in shapes.items()}
    options: dict[str, Any] = {"target": detect_host(), "threads": 1, "closed": True}
    both, fresh = Planner(graph.copy(), **options), Planner(graph.copy(), **options)
    try:
        first = both.plan(others)
    except InternalError:
        raise
    except EngineError as error:
        check.report.refused.append(("another size", str(error)))
        first = None
    with _naming("shapes, symbolic"):
        again, plan = both.plan(shapes), fresh.plan(shapes)
    if str(again) != str(plan):
        raise DifferentError(
            "shapes, replanned", f"another plan after one for n={other}, not {size}"
        )
    check.agrees("shapes, symbolic", numbers(plan, check.fed))
    if first is not None:
        check.report.done["shapes, replanned"] += 1
        if str(fresh.plan(others)) != str(first):
            raise DifferentError("shapes, back", f"another plan for n={other} after one for {size}")
