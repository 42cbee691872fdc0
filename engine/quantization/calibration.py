"""Calibration: the ranges of a model's activations on data.

minmax      the least and the largest value
percentile  the range without (100 - p) / 2 percent of the values on each side
entropy     the range [max(low, -t), min(high, t)] whose t minimises KL(P || Q), where P is the
            distribution of the values, clipped to the range, and Q is P in 128 steps

The last two count the values in bins of equal width between the least and the largest one.  They
read the data twice, and their result does not depend on the order of the data.

Source      Migacz, "8-bit inference with TensorRT", GTC 2017
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError
from engine.data import batches
from engine.data.loader import Batches
from engine.kernels.vocabulary.op import TensorType
from engine.quantization.options import Quantization
from engine.training.inference import Session

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph

BINS = 2048  # of a histogram
LEVELS = 128  # steps of entropy's distribution Q: int8 has as many on one side of 0
BATCH = 8  # samples, unless the model fixes their number


class Calibrator:
    """Runs of a model on data, and the ranges of its values.

    graph: a float model; it is not changed.
    data: anything that `engine.data.batches` accepts; the first arrays of a sample are the inputs.
    """

    def __init__(self, graph: Graph, data: Any, options: Quantization) -> None:
        self.graph, self.options = graph, options
        self.inputs = list(graph.inputs)
        self.data = self._make_batches(data)

    def _make_batches(self, data: Any) -> Batches:
        """Return the data in batches of the size that the model takes."""
        first = {t.shape[0] for t in self.graph.inputs.values() if t.shape}
        (fixed,) = first if len(first) == 1 else (None,)
        size, given = self.options.batch_size, fixed if isinstance(fixed, int) else None
        if given is not None and size not in (None, given):
            raise InputError(
                f"batch_size={size}, but the file of the model fixes its first dimension at {given}"
            )
        return batches(
            data,
            batch_size=size or given or BATCH,
            drop_last=given not in (None, 1) and not isinstance(data, Batches),
            names=self.inputs,
        )

    def find_ranges(self, values: Sequence[str]) -> dict[str, tuple[float, float]]:
        """Return the range of each value.

        Raises:
            InputError: there are no data, they are constant, or a value is not finite or always 0.
            EngineError: the data do not fit the model.
        """
        extremes = self._find_extremes(values)
        self._check_extremes(extremes)
        if self.options.method == "minmax":
            return extremes
        counts = self._count_values(extremes)
        if self.options.method == "percentile":
            return {
                name: _cut_tails(counts[name], *extremes[name], self.options.percentile)
                for name in values
            }
        return {name: _keep_entropy(counts[name], *extremes[name]) for name in values}

    def _read_varied(self, measured: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the batches as soon as each of these inputs has had two values, mostly at once.

        Data that measure nothing are refused before a model is planned, compiled or run.
        """
        left: dict[str, Any] = dict.fromkeys(measured)  # the first element of each
        held = list[dict[str, Any]]()
        rest = self._read_batches()
        for batch in rest:
            for name in list(left):
                array = np.asarray(batch[name])
                if left[name] is None and array.size:
                    left[name] = array.flat[0]
                if (array != left[name]).any():
                    del left[name]
                else:  # which takes no memory, however many batches are alike
                    batch[name] = np.broadcast_to(left[name], array.shape)
            held.append(batch)
            if not left:
                break
        if not held:
            raise InputError("calibration data: there is no batch, so nothing can be measured")
        for name, value in left.items():
            of, what = f"of the input {name!r}", "expected data such as the model will get"
            if value is None:
                raise InputError(f"calibration data: the arrays {of} are empty; {what}")
            raise InputError(f"calibration data: every element {of} is {value:g}; {what}")
        yield from held
        yield from rest

    def _read_batches(self) -> Iterator[dict[str, Any]]:
        """Yield the inputs of the model, by name, for each batch."""
        for batch in self.data.epoch():
            arrays = list(batch.values()) if isinstance(batch, dict) else list(batch)
            if len(arrays) < len(self.inputs):
                raise InputError(
                    f"calibration data: a sample has {len(arrays)} arrays, and the model takes "
                    f"{len(self.inputs)}: {self.inputs}"
                )
            yield dict(zip(self.inputs, arrays, strict=False))

    def _run(self, graph: Graph, inputs: Iterable[dict[str, Any]]) -> Iterator[list[Array]]:
        """Yield the outputs of a graph for each batch of inputs."""
        from engine.graphs.io import onnx_io

        session = None
        for batch in inputs:
            if session is None:  # not before there is a batch that it can run on
                session = Session(onnx_io.to_bytes(graph), threads=self.options.threads)
            yield session.run(None, batch)

    def _find_extremes(self, values: Sequence[str]) -> dict[str, tuple[float, float]]:
        """Return the least and the largest element of each value."""
        lows = np.full(len(values), np.inf)
        highs = np.full(len(values), -np.inf)
        varied = self._read_varied([name for name in values if name in self.graph.inputs])
        for number, outputs in enumerate(self._run(_reduce(self.graph, values), varied)):
            low, high = (np.array(outputs[k::2], np.float64) for k in (0, 1))
            bad = np.flatnonzero(~np.isfinite(low) | ~np.isfinite(high))
            if bad.size:
                self._refuse(values[bad[0]], f"is not finite in batch {number} of the data")
            lows, highs = np.minimum(lows, low), np.maximum(highs, high)
        return {
            name: (float(low), float(high))
            for name, low, high in zip(values, lows, highs, strict=True)
        }

    def _check_extremes(self, extremes: Mapping[str, tuple[float, float]]) -> None:
        for name, (low, high) in extremes.items():
            if low == high == 0:
                self._refuse(
                    name,
                    "is 0 for all calibration data, so it has no range; give data that reach it, "
                    "or let the nodes that read it stay float (keep_float)",
                )

    def _refuse(self, name: str, problem: str) -> None:
        maker = self.graph.find_producers().get(name)
        place = f"the input {name!r}" if maker is None else f"{maker.op} {maker.name!r}: {name!r}"
        raise InputError(f"{place} {problem}")

    def _count_values(self, extremes: Mapping[str, tuple[float, float]]) -> dict[str, Array]:
        """Return the number of elements of each value in bins between its extremes."""
        counts = {name: np.zeros(BINS, np.int64) for name in extremes}
        for outputs in self._run(_select(self.graph, list(extremes)), self._read_batches()):
            for (name, bounds), array in zip(extremes.items(), outputs, strict=True):
                counts[name] += np.histogram(array, BINS, bounds)[0]
        return counts


def _select(graph: Graph, values: Sequence[str]) -> Graph:
    """Return a copy of a graph whose outputs are these values."""
    from engine.graphs.ir.graph import Names, Node
    from engine.graphs.passes.simplify import prune

    made, names = graph.copy(), Names(graph)
    made.outputs = []
    for name in values:
        output = name
        if name in graph.inputs:  # an input cannot be an output itself
            output = names.take_fresh(f"{name}_copy")
            made.nodes.append(Node("Identity", (name,), (output,), name=f"{output}/Identity"))
            made.types[output] = graph.inputs[name]
        made.outputs.append(output)
    return prune(made)


def _reduce(graph: Graph, values: Sequence[str]) -> Graph:
    """Return a copy of a graph whose outputs are the least and the largest element of values."""
    from engine.graphs.ir.graph import Names, Node
    from engine.graphs.passes.simplify import prune

    made, names = graph.copy(), Names(graph)
    made.outputs = []
    for name in values:
        for op in ("ReduceMin", "ReduceMax"):
            output = names.take_fresh(f"{name}_{op}")
            made.nodes.append(Node(op, (name,), (output,), {"keepdims": 0}, name=f"{output}/{op}"))
            made.types[output] = TensorType("f32", ())
            made.outputs.append(output)
    return prune(made)


def _cut_tails(counts: Array, low: float, high: float, percentile: float) -> tuple[float, float]:
    """Return the range that contains a percentage of the values, with equal tails left out.

    It ends at edges of bins, so it never contains less than that.
    """
    if low == high:
        return low, high
    total = np.cumsum(counts)
    left_out = total[-1] * (100 - percentile) / 200
    first = int(np.searchsorted(total, left_out, "right"))
    last = int(np.searchsorted(total, total[-1] - left_out, "left"))
    edges = np.linspace(low, high, len(counts) + 1)
    return float(edges[first]), float(edges[last + 1])


def _keep_entropy(counts: Array, low: float, high: float) -> tuple[float, float]:
    """Return the range whose integers preserve the distribution best."""
    if low == high:
        return low, high
    edges = np.linspace(low, high, len(counts) + 1)
    centres = np.abs((edges[1:] + edges[:-1]) / 2)
    reach = max(abs(low), abs(high))
    # Magnitudes in bins of equal width from 0 on: a range is a number of these bins.
    heights, _ = np.histogram(centres, BINS, (0, reach), weights=counts)
    heights[0] = heights[1]  # 0 is an integer in every range, so its frequency decides nothing
    losses = {
        stop: _measure_divergence(heights, stop) for stop in range(LEVELS, BINS + 1, LEVELS // 8)
    }
    bound = reach * min(losses, key=lambda stop: (losses[stop], -stop)) / BINS
    return max(low, -bound), min(high, bound)


def _measure_divergence(heights: Array, stop: int) -> float:
    """Return KL(P || Q) for the first `stop` bins; values beyond count in the last one."""
    kept = heights[:stop].astype(np.float64)
    clipped = kept.copy()
    clipped[-1] += heights[stop:].sum()
    # Q: the values in LEVELS steps, each spread evenly over its bins that are not empty.
    steps = np.minimum(np.arange(stop) * LEVELS // stop, LEVELS - 1)
    filled = kept > 0
    sums = np.bincount(steps, kept, LEVELS)
    sizes = np.maximum(np.bincount(steps, filled, LEVELS), 1)
    spread = np.where(filled, (sums / sizes)[steps], 0.0)
    total, all_kept = clipped.sum(), spread.sum()
    if not all_kept:
        return np.inf
    p, q = clipped / total, spread / all_kept
    lost = (p > 0) & (q == 0)
    if lost.any():
        q = np.where(lost, 1e-9, q)
    held = p > 0
    return float(np.sum(p[held] * np.log(p[held] / q[held])))
