"""Comparisons of one model, computed in several ways, which must agree."""

from __future__ import annotations

import random
from collections.abc import Container, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import onnxruntime

from engine.base.aliases import Array
from engine.errors import EngineError, InternalError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.training import RESET
from engine.graphs.passes import attention_match, recompute
from engine.graphs.passes.control import unroll
from engine.graphs.planner import tile
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import MS
from tests.random_graphs.check import Check, distance, find_scale, replaced
from tests.random_graphs.derived import accumulated, backward, with_buffers
from tests.random_graphs.plans import compare_plans, compare_shapes
from tests.random_graphs.report import DifferentError, Report
from tests.random_graphs.sketch import Model
from tests.random_graphs.trainings import RANDOM, parts, steps

STRAIGHT = {
    *("QuantizeLinear", "DynamicQuantizeLinear"),
    *(f"{MS}::QuantizeLinear", f"{MS}::FakeQuant", "engine::QuantizeDequantize"),
    *("engine::RoundWeights", "engine::RoundBias", "engine::LearnedScale", "engine::Redirect"),
}
COMPILED = 0.08  # of the graphs: to compile formulas takes longer than all other comparisons
TRAININGS = 0.04  # of the graphs that have gradients
STOCK = 0.3  # of the graphs are computed by onnxruntime, too
OTHERS = 1e-4  # of the largest element: what it may differ, whose functions are less exact
UNLIKE = {"QuantizeLinear", "DynamicQuantizeLinear"}  # a unit of rounding there is a step
STEP = 1e-5  # of central differences
SLOPE = 1e-5  # what these may differ from the gradient, of all that they are made of
SMALL: tuple[tuple[Any, str, Any], ...] = (
    (attention_match, "FEW", 0),
    (recompute, "LARGE", 256),
    (recompute, "NEAR", 0),
    (recompute, "FEW", 1),
    (tile, "LEAST", 2),
)


def however_few() -> AbstractContextManager[None]:
    """Inside, what the planner does for large values alone it does for small ones, too."""
    return replaced(*SMALL)


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
            actual_gradients = backward(model, report)
        except EngineError as error:
            if isinstance(error, InternalError):
                raise
            report.refused.append(("gradient", str(error)))
            return report
        if actual_gradients is not None:
            gradients(model, *actual_gradients, report, rng, open_too)
            if open_too and rng.random() < TRAININGS:
                steps(model, *actual_gradients, report, rng)
            parts(model, actual_gradients[1], report)
    return report


def forward(model: Model, report: Report, rng: random.Random, open_too: bool) -> None:
    """The comparisons of the forward graph."""
    check = _check(model.graph, model.fed, report, "forward")
    if check is None:
        return
    if model.alone:
        check.agrees("forward, node by node", {**check.wanted, **model.alone})
    if rng.random() < STOCK:
        stock(model, check)
    compare_plans(check, "forward", rng, open_too and rng.random() < COMPILED)
    compare_shapes(check, rng)


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
        outcome = session.run(None, model.fed)
    except Exception as error:  # its own classes have no common one
        check.report.refused.append(("onnxruntime", str(error)))
        return
    check.report.done["forward, onnxruntime"] += 1
    for name, got in zip(model.graph.outputs, outcome, strict=True):
        want, bound = check.wanted[name], check.bounds[name]
        if bound is None:
            continue
        wide = bound + OTHERS * find_scale(want) if want.dtype.kind == "f" else bound
        far = distance(got, want)
        if (got.shape, got.dtype) != (want.shape, want.dtype) or not far <= wide:
            raise DifferentError(
                "forward, onnxruntime", f"{name} {got.dtype}{got.shape} is {far:.3g} off, "
                f"{want.dtype}{want.shape} of {find_scale(want):.3g}"
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
    compare_plans(check, "gradients", rng, open_too and rng.random() < COMPILED)
    training = accumulated(graph, names)
    kept = _check(
        training, with_buffers(training, model.fed, rng.randrange(100)), report, "training"
    )
    if kept is not None:
        if not any(n.op in RANDOM for n in graph.nodes):
            report.done["training, gradients"] += 1
            added(check, kept, names)
        compare_plans(kept, "training", rng, open_too and rng.random() < COMPILED)


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

    actual = [(loss(h) - loss(-h)) / (2 * h) for h in (STEP, STEP / 2, 2 * STEP)]
    here = float(check.wanted["loss"])
    sides = [(loss(STEP) - here) / STEP, (here - loss(-STEP)) / STEP]
    scale = size + abs(here) + 1
    spread = max(actual) - min(actual) + abs(sides[0] - sides[1])
    if not np.isfinite(spread) or spread > 1e-3 * scale:
        return  # a kink is near, or the loss is too steep
    report.done["differences"] += 1
    if abs(actual[0] - slope) > max(SLOPE * scale, 10 * (max(actual) - min(actual))):
        raise DifferentError(
            "differences",
            f"the gradient is {slope:.8g}, differences {actual[0]:.8g}, of {scale:.3g}",
        )
