"""Post-training quantisation of files: the data that calibrate it, and what it loses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import FileError, InputError
from engine.data import batches
from engine.data.dataset import Dataset
from engine.data.folders import TEST, TRAIN, VALIDATION, split_of
from engine.data.places import check_sample
from engine.data.samples import find_columns
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.quantization import Quantization, Quantized, quantize
from engine.tools.actions import run_data, runs
from engine.tools.actions.run_config import DataTable
from engine.trainer.metrics import metrics_of
from engine.trainer.runs import INFERENCE
from engine.trainer.sizes import BATCH_SIZE
from engine.training.inference import Session


@dataclass(frozen=True, slots=True)
class Outcome:
    """A quantised model beside the float one.

    measured: the data of the measurements, in words.
    samples: how many they are.
    metrics: the values of each metric for the float and the quantised model; empty without targets.
    decibels: the strength of the first output over its change by quantisation.
    """

    made: Quantized
    measured: str
    samples: int
    metrics: Mapping[str, tuple[float, float]]
    decibels: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        pairs = {
            name: dict(zip(("float", "quantised"), pair, strict=True))
            for name, pair in self.metrics.items()
        }
        return {**self.made.to_dict(), "measured": self.measured, "samples": self.samples,
                "metrics": pairs, "decibels": self.decibels}  # fmt: skip


def quantise_file(
    source: Path,
    out: Path,
    table: DataTable,
    validation: str | None,
    samples: int | None,
    metrics: Sequence[str],
    options: Quantization,
) -> Outcome:
    """Quantise a model, write it, and measure it beside the float one.

    source: an ONNX file, or the folder of a run, whose data are prepared as in its training.
    table: the data that calibrate; without a path the run's data.
    validation: the data to measure with; None for those that calibrate.
    samples: the number of samples to calibrate with, taken evenly; None for all.
    metrics: to measure; by default as in the run, or accuracy where samples have classes.

    Raises:
        EngineError: see `engine.quantization.quantize`; nothing is written then.
    """
    is_run = source.is_dir()
    model = source / INFERENCE if is_run else source
    if not model.is_file():
        raise FileError(f"{source}: expected an ONNX file, or the folder of a run with {INFERENCE}")
    if not is_run and not table.path:
        raise InputError(f"{source} does not say which data calibrate it: give --calibrate PATH")
    if is_run:
        config = runs.read_config(source)
        path = table.path or config.data.path
        given = {"path": path, "options": {**config.data.options, **table.options}}
        learned: Mapping[str, Any] = run_data.read_learned(config.data, source)
        settled = config.change("data", **given).data
        metrics = metrics or runs.choose_metrics(config)
    else:
        graph = onnx_io.load(model)
        settled = run_data.settle(table, next(iter(graph.inputs.values())), {})
        learned = {}
    data = run_data.open_data(settled, Path(split_of(settled.path, TRAIN)), learned)
    graph = onnx_io.load(model)
    check_sample(data, *next(iter(graph.inputs.items())))
    if not is_run:
        learned = run_data.get_learned(settled, data)
    held_out = data
    if validation is not None:
        place = Path(split_of(validation, VALIDATION, TEST))
        held_out = run_data.open_data(settled, place, learned)
    chosen = data if samples is None else data.subset(_spread(len(data), samples))
    made = quantize(model, chosen, options)
    made.save(out)
    size = options.batch_size or _find_batch(graph)
    sessions = [Session(str(path), threads=options.threads) for path in (model, out)]
    measured, decibels = measure_models(sessions, held_out, size, metrics)
    values = {name: (before, after) for name, (before, after) in measured.items()}
    told = f"{settled.path} (the calibration data)" if validation is None else validation
    return Outcome(made, told, len(held_out), values, decibels)


def _spread(total: int, samples: int) -> list[int]:
    """Return indices of so many of `total` samples, at equal distances."""
    if samples > total:
        raise InputError(f"--samples {samples}: the data have {total}")
    return [total * k // samples for k in range(samples)]


def _find_batch(graph: Graph) -> int:
    """Return the number of samples that a model takes at a time."""
    shape = next(iter(graph.inputs.values())).shape
    return shape[0] if shape and isinstance(shape[0], int) else BATCH_SIZE


def measure_models(
    sessions: Sequence[Session], data: Dataset, batch_size: int, names: Sequence[str]
) -> tuple[dict[str, tuple[float, ...]], float]:
    """Return the metrics of each model, and the decibels of the first one's output over its
    difference to the last one's.

    names: the metrics; none for those that fit the data.
    """
    inputs = [each.name for each in sessions[0].get_inputs()]
    halves = {each.name for each in sessions[0].get_inputs() if each.type == "tensor(float16)"}
    output = sessions[0].get_outputs()
    metrics: list[list[Any]] = []
    strength = change = 0.0
    for arrays in _read_batches(data, inputs, batch_size):
        feed = dict(zip(inputs, arrays, strict=False))
        feed |= {name: feed[name].astype(np.float16) for name in halves}
        results = [session.run(None, feed) for session in sessions]
        first, last = (result[0].astype(np.float64) for result in (results[0], results[-1]))
        strength += float(np.square(first).sum())
        change += float(np.square(first - last).sum())
        if len(arrays) == len(inputs):
            continue
        if not metrics:
            chosen = names or _choose_metrics(arrays[-1], first)
            metrics = [metrics_of(chosen) for _ in sessions]
        targets = {**feed, "target": arrays[-1]}
        for group, result in zip(metrics, results, strict=True):
            outputs = dict(zip([each.name for each in output], result, strict=True))
            for metric in group:
                metric.update(outputs, targets, math.nan, len(arrays[-1]))
    values = {
        group[0].name: tuple(metric.result() for metric in group)
        for group in zip(*metrics, strict=True)
    }
    return values, 10 * math.log10(strength / change) if change and strength else math.inf


def _read_batches(data: Dataset, inputs: Sequence[str], size: int) -> Iterator[list[Array]]:
    """Yield the arrays of each batch: the model's inputs, then what else a sample has."""
    names = None
    if data.names is not None:
        columns = find_columns(inputs, data.names, "the data")
        names = [*columns, *(name for name in data.names if name not in columns)]
    for batch in batches(data, batch_size=size, names=names).epoch():
        yield list(batch.values()) if isinstance(batch, dict) else list(batch)


def _choose_metrics(targets: Array, scores: Array) -> Sequence[str]:
    """Return the metrics that fit targets: of classes accuracy, otherwise none."""
    is_class = targets.dtype.kind in "iu" and scores.ndim == targets.ndim + 1
    return ("accuracy",) if is_class else ()
