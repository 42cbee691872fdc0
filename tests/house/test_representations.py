"""Representations of objects: none shows an address."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any, is_typeddict

import numpy as np
import pytest

import edgegrad as eg
from engine import onnxblock
from engine.base.representation import represent
from engine.checking import Check
from engine.lora import Adapted
from engine.profiling.times import Times
from engine.trainer.fit import Fit
from engine.trainer.runs import RunFolder
from engine.training.nonfinite import NonFinite
from tests.support.places import ALIAS
from tests.support.report_runs import forward, make_samples


def public_classes() -> dict[str, type]:
    """Return the classes that the modules with a stub offer, by their full names."""
    classes = {}
    root = ALIAS / "edgegrad"
    for stub in sorted(root.rglob("*.pyi")):
        parts = stub.relative_to(root).with_suffix("").parts
        name = ".".join(("engine", *parts)).removesuffix(".__init__")
        if "tools" in parts or "flower" in parts:
            continue  # import packages that warn
        module = import_module(name)
        for each in getattr(module, "__all__", ()):
            value = getattr(module, each)
            if inspect.isclass(value) and value.__module__.startswith("engine."):
                classes[f"{name}.{each}"] = value
    return classes


def test_no_public_class_has_the_representation_of_object() -> None:
    """A protocol has no objects of its own."""
    classes = public_classes()
    assert {"engine.trainer.Trainer", "engine.data.Images", "engine.reports.HtmlReport"} <= {
        *classes
    }
    assert len(classes) > 100
    default: Any = object.__repr__
    wrong = [
        name
        for name, each in classes.items()
        if each.__repr__ is default
        and not getattr(each, "_is_protocol", False)
        and not is_typeddict(each)
    ]
    assert not wrong


def test_what_prints_as_a_text_is_shown_as_it_in_a_notebook() -> None:
    """Otherwise a notebook shows all fields of a dataclass, thousands of letters."""
    kinds = {Check, Times, NonFinite, Adapted}
    assert not [k for k in kinds if k.__repr__ is not k.__str__]
    assert repr(RunFolder("run")) == "RunFolder(path='run')"


class Squares(eg.Dataset):
    """A dataset of a user's own, which is not ready."""

    def __len__(self) -> int:
        raise RuntimeError("no file yet")

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


class Quiet(eg.Callback):
    """A callback of a user's own."""

    def __init__(self, level: int = 1, names: tuple[str, ...] = (), table: Any = None) -> None:
        self._level, self.names, self.table = level, names, table


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (eg.Cosine(warmup=0.1), "Cosine(warmup=0.1)"),
        (eg.Step(every=10), "Step(every=10.0)"),
        (eg.EarlyStopping(patience=3), "EarlyStopping(patience=3, mode='min')"),
        (eg.Progress(), "Progress()"),
        (eg.HtmlReport(Path("run/report.html")), "HtmlReport(path='run/report.html', title='run')"),
        (Quiet(2, ("a", "b"), {}), "Quiet(level=2, names=('a', 'b'))"),
        (Quiet(names=("a" * 99,)), "Quiet()"),
        (eg.Arrays(make_samples(12), classes=["a", "b"]), "Arrays(12 samples, 2 classes: a, b)"),
        (Squares(), "Squares()"),
        (
            eg.batches((np.zeros((20, 2)), np.zeros(20)), batch_size=8),
            "DatasetBatches(20 samples in batches of 8)",
        ),
        (eg.ByteTokenizer(), "ByteTokenizer()"),
        (onnxblock.blocks.Add(), "Add()"),
        (eg.Accuracy(), "Accuracy('accuracy')"),
    ],
)  # fmt: skip
def test_an_object_is_shown_by_its_arguments(made: Any, shown: str) -> None:
    assert repr(made) == shown


def test_by_arguments_leaves_out_what_is_not_kept() -> None:
    class Slotted:
        __slots__ = ("size",)
        __repr__ = represent

        def __init__(self, size: int) -> None:
            self.size = size

    assert repr(Slotted(3)) == "Slotted()"


def test_what_a_trainer_is_made_of(tmp_path: Path) -> None:
    trainer = eg.Trainer.from_onnx(forward(), "cross_entropy", eg.AdamW(lr=0.5), folder=tmp_path)
    images, labels = make_samples(8)
    trainer.step(images, labels)
    assert repr(trainer.module).startswith("Module(image f32[N,1,8,8], labels i64[")
    assert repr(trainer.module).endswith(
        f"; 3 parameters, training mode, threads {trainer.module.threads})"
    )
    assert repr(trainer.optimizer) == "Optimizer(1 steps done, learning rate 0.5)"
    assert repr(trainer.state) == "CheckpointState(3 parameters of 1,104 values, 1,104 trained)"
    assert trainer.optimizer is not None
    scheduler = eg.LinearLRScheduler(trainer.optimizer, 2, 10, 0.1)
    assert "total_step_count=10" in repr(scheduler)
    seen: list[str] = []
    trainer.evaluate((images, labels), each=lambda batch: seen.append(repr(batch)))
    assert re.fullmatch(
        r"EvaluationBatch\(1 of 1, loss [\d.]+: image \[8, 1, 8, 8\], labels \[8\], "
        r"scores \[8, 4\]\)",
        seen[0],
    )
    running = Fit(trainer=trainer, epochs=3, batches=7, logs={"loss": 0.5})
    assert repr(running) == "Fit(epoch 1 of 3, batch 0 of 7, step 0, loss 0.5)"


def test_a_prepared_model_shows_what_it_takes() -> None:
    session = eg.backend.prepare(forward())
    assert re.fullmatch(r"Session\(.+ -> .+\)", repr(session))
