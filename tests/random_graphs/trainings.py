"""Comparisons of trainings: micro-batches, steps in one plan and in two, C libraries."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from engine import Trainer
from engine.artifacts import SGD, AdamW, MSELoss
from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.errors import EngineError, InternalError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.sample_flow import find_loss
from engine.graphs.offline.sample_values import MixedError
from engine.graphs.passes.control import unroll
from engine.graphs.passes.infer import bind, infer
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.random_graphs.check import Check, distance, find_scale
from tests.random_graphs.derived import trimmed, with_buffers
from tests.random_graphs.report import DifferentError, Report
from tests.random_graphs.sketch import Model
from tests.support import builds

RANDOM = {"Dropout", "Bernoulli", "RandomMask"}
APART = 12  # values of a graph, at most, that are tried for one that keeps samples apart
BUILT = 0.1  # of these trainings: they are built as C libraries


def parts(model: Model, names: Mapping[str, str], report: Report) -> None:
    """Compare gradients of micro-batches with gradients of the whole batch.

    The last value of the model that keeps the samples of some inputs apart is split off.
    """
    apart = _apart(model, names, report)
    if apart is None:
        return
    made, trained, samples = apart
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
    largest = max(find_scale(known.wanted[f"{name}_grad.accumulation.buffer"]) for name in trained)
    eps = float(np.finfo(fed["target"].dtype).eps)
    loss = abs(float(known.wanted[training.outputs[0]].item()))
    if largest < eps * loss:  # all of them are, as before the mean of a Softmax
        largest = loss
    noise = 64 * eps * largest
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
                scale = find_scale(known.wanted[buffer])
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
        if graph.types[end].shape[0] == "n":  # otherwise its samples are on another axis
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
        build(artifacts, out, Options("mnist", resolve("native"), PlanRequest([samples])))
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
        regions, wanted = (t.state.regions[region] for t in (one, two))
        if regions.tobytes() != wanted.tobytes():
            raise DifferentError(
                "steps, joined", f"region {region} differs from the region of two calls"
            )
