"""Models of Keras and JAX against these: three steps of SGD, and the trained model elsewhere.

A row for each model of scripts/keras_models.py or scripts/jax_models.py, which the Python of
EDGEGRAD_BENCH_PEERS exports and trains.  The columns are the largest differences: between the
outputs, relative to the largest one if that is above 1; between the losses, relative to each; and
between the outputs of the engine after training and of its inference model in stock onnxruntime.
A row is WRONG if one of them exceeds the tolerance, or if the engine refuses a model.  `--page`
puts the rows into docs/keras.md.
"""

from __future__ import annotations

import subprocess
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.measuring import ROOT
from bench.processes import find_peer_python
from bench.recipes import measure_relative
from bench.rows import WRONG, Bench, Cells
from bench.tables import format_cell, make_markdown
from engine import SGD, Trainer
from engine.base.aliases import Array
from engine.errors import EngineError

TOLERANCE, RATE = 1e-5, 0.01
SUBJECTS = {"keras": "keras_models", "jax": "jax_models"}
COLUMNS = ("model", "outputs:.0e", "losses:.0e", "inference:.0e", "remark")


def export_models(script: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Have the models written by the peers' Python; yield names, and why one cannot be written."""
    command = [find_peer_python(), "-m", f"bench.scripts.{script}", folder]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [*map(str, command)], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            name, _, reason = line.rstrip("\n").partition("\t")
            yield name, reason
        if process.wait():
            errors.seek(0)
            raise EngineError(f"{script} ended with {process.returncode}: {errors.read()[-500:]}")


def run_elsewhere(model: Path, inputs: Sequence[Array]) -> Array:
    """Return the first output of a model by stock onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    given = {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=True)}
    return np.asarray(session.run(None, given)[0])


def compare(path: Path) -> Cells:
    """Return the cells of a model after its name."""
    with np.load(path.with_suffix(".npz")) as file:
        data = dict(file)
    inputs = tuple(data[f"x{k}"] for k in range(len(data)) if f"x{k}" in data)
    remark = str(data["remark"])
    trainer = Trainer.from_onnx(path, "mse", SGD(), frozen_batch_norm=True)
    trainer.learning_rate = RATE
    outputs = measure_relative(np.asarray(trainer.predict(inputs)), data["output"])
    losses = np.array([float(trainer.step(*inputs, data["y"])) for _ in data["losses"]])
    off = np.abs(losses / data["losses"] - 1)[: 1 if remark else None].max()
    exported = path.with_suffix(".trained.onnx")
    trainer.export(exported)
    ours = np.asarray(trainer.predict(inputs))
    inference = measure_relative(run_elsewhere(exported, inputs), ours)
    if not max(outputs, off, inference) <= TOLERANCE:
        remark = f"{WRONG}: more than {TOLERANCE:.0e}"
    return outputs, float(off), inference, remark


def measure(script: str, _: Namespace) -> Iterator[Cells]:
    """Yield the rows of an exporter."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, reason in export_models(script, Path(folder)):
            if reason:
                yield name, None, None, None, f"exporter: {reason}"
                continue
            try:
                yield name, *compare(Path(folder) / f"{name}.onnx")
            except EngineError as error:
                yield name, None, None, None, f"{WRONG}: {error}"


def write_page(found: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Put tables into the page; other exporters keep theirs."""
    text = path.read_text("utf-8")
    titles, formats = zip(*((c + ":").split(":")[:2] for c in COLUMNS), strict=True)
    for name, rows in found.items():
        shown = [[*map(format_cell, cells, formats)] for cells in rows]
        before, mark, rest = text.partition(f"<!-- compared: {name} -->\n")
        _, end, after = rest.partition("\n<!-- end -->\n")
        table = "\n".join(["", *make_markdown(titles, shown), ""])
        text = "".join([before, mark, table, end, after])
    path.write_text(text, "utf-8")


BENCHES = (
    Bench(
        "exporters",
        "models of Keras and JAX, exported to ONNX, against these",
        SUBJECTS,
        COLUMNS,
        measure,
        page=write_page,
        document="docs/keras.md",
    ),
)
