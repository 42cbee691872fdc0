"""Trainings for tests of reports: told to a report as `Trainer.fit` would, and real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import parser

from engine import Trainer
from engine.artifacts import AdamW, CrossEntropyLoss
from engine.data.arrays import Arrays
from engine.plan.plan import Plan
from engine.reports import HtmlReport
from engine.trainer.evaluation import EvaluationBatch
from engine.trainer.fit import Fit
from engine.trainer.history import History
from engine.trainer.reports.sections import SECTIONS

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,1,8,8] image, float[64,16] w1, float[16] b1, float[16,4] w2) => (float[N,4] scores) {
    flat = Flatten(image)
    h = MatMul(flat, w1)
    b = Add(h, b1)
    r = Relu(b)
    scores = MatMul(r, w2)
}"""
CLASSES = ("north & south", "<script>alert(1)</script>", "east", "west")
EPOCHS, BATCHES, BATCH = 6, 10, 16
NAMES = [section.name for section in SECTIONS]

Array = np.ndarray[Any, Any]


def forward() -> onnx.ModelProto:
    """Two linear layers over pictures of 8 x 8."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(MODEL)
    for name, shape in (("w1", (64, 16)), ("b1", (16,)), ("w2", (16, 4))):
        values = rng.standard_normal(shape).astype(np.float32) / 8
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    kept = [value for value in model.graph.input if value.name == "image"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


def make_samples(count: int, seed: int = 0) -> tuple[Array, Array]:
    """Pictures whose brighter half is the class, with noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    images = rng.standard_normal((count, 1, 8, 8)).astype(np.float32)
    for image, label in zip(images[:, 0], labels, strict=True):
        np.split(image, 2, axis=label // 2)[label % 2][...] += 0.6
    return images, labels


class Run:
    """Training as `Trainer.fit` would report it, epoch by epoch."""

    def __init__(self, report: HtmlReport, trainer: Any = None, **more: Any) -> None:
        self.report = report
        module = SimpleNamespace(plans=list[Plan])  # that has none
        self.trainer = trainer or SimpleNamespace(
            features=["x"],
            inputs=["x", "labels"],
            outputs=["y"],
            threshold=None,
            learner=SimpleNamespace(compared=("y", "labels")),
            module=module,
        )
        known = {"epochs": EPOCHS, "batches": BATCHES, "batch_size": BATCH, "monitor": "val_loss"}
        self.fit = Fit(trainer=self.trainer, **known | more)  # type: ignore[arg-type]  # of any kind
        report.on_fit_begin(self.fit)

    def epoch(self, losses: Sequence[float], batches: Sequence[Any] = (), **row: float) -> None:
        """An epoch with these losses, and a validation of `batches`: inputs and outputs by name."""
        fit, report = self.fit, self.report
        fit.batch = fit.samples = 0
        fit.logs = {"lr": 1e-3}
        report.on_epoch_begin(fit)
        for loss in losses:
            before = fit.logs.get("loss", 0.0) * fit.batch
            fit.batch, fit.samples = fit.batch + 1, fit.samples + BATCH
            fit.samples_total, fit.step = fit.samples_total + BATCH, fit.step + 1
            fit.logs["loss"] = (before + loss) / fit.batch
            report.on_step_end(fit)
        if batches:
            report.on_evaluate_begin(fit)
            for n, (inputs, outputs) in enumerate(batches):
                fit.evaluation = EvaluationBatch(n, len(batches), inputs, outputs, 1.0)
                report.on_evaluate_batch_end(fit)
            fit.evaluation = None
            report.on_evaluate_end(fit)
        loss = fit.logs["loss"]
        fit.history.rows.append({"epoch": fit.epoch, "loss": loss, **row})
        report.on_epoch_end(fit)
        fit.epoch += 1

    def end(self, error: BaseException | None = None) -> str:
        """The page, after the training has ended."""
        self.fit.error = error
        self.report.on_fit_end(self.fit)
        return self.report._path.read_text("utf-8")


def fit(folder: Path, epochs: int, **more: Any) -> History:
    """Train the model of pictures by `Trainer.fit`, with a validation."""
    trainer = Trainer.from_onnx(forward(), CrossEntropyLoss(), AdamW(3e-3), seed=0)
    source = Arrays(make_samples(BATCHES * BATCH), classes=CLASSES)
    return trainer.fit(
        source, validation=make_samples(64, seed=1), epochs=epochs, batch_size=BATCH, folder=folder,
        metrics="accuracy", **more,
    )  # fmt: skip
