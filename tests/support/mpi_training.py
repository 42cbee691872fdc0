"""Program for mpirun: trainings of several ranks, compared with trainings of one process.

Rank 0 does each training once more by itself and compares.  test_mpi_training.py runs it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.artifacts import SGD, AdamW, CrossEntropyLoss, MSELoss
from engine.data import Arrays
from engine.distributed import world
from engine.distributed.group import RankGroup
from engine.errors import GroupError, LabelError, NonFiniteError
from engine.trainer import Callback, EarlyStopping, Trainer
from engine.trainer.fit import Fit
from engine.trainer.metrics import Accuracy
from engine.trainer.ranks import Ranks
from engine.trainer.schedules import Cosine
from tests.support.tiny import DROPPING, LABELS, NORMED, PLAIN, X, make_trainer

IGNORING = np.where(np.arange(20) % 3 == 0, -100, LABELS)
HALF = np.where(np.arange(20) >= 10, -100, LABELS)  # so that a share has no label that counts
WEIGHTS = np.array([0.5, 1.0, 3.0], np.float32)
TARGETS = np.random.default_rng(5).standard_normal((20, 3)).astype(np.float32)
LOSSES: list[tuple[Any, Any]] = [
    (CrossEntropyLoss(), LABELS),
    (CrossEntropyLoss(reduction="sum"), LABELS),
    (CrossEntropyLoss(ignore_index=-100), HALF),
    (CrossEntropyLoss(ignore_index=-100, weight=WEIGHTS), IGNORING),
    (MSELoss(), TARGETS),
]


def close(one: Trainer, two: Trainer) -> None:
    """Parameters and moments are equal within the rounding of another order of sums."""
    for name in ("param", "state"):
        a, b = (t.state.regions[name].view(np.float32) for t in (one, two))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


def check_steps(group: RankGroup) -> None:
    """Uneven and empty shares, ignored labels, weights, sums, accumulated batches, clipping."""
    for loss, target in LOSSES:
        optimizer = SGD(0.05, momentum=0.9, clip_grad=0.5)
        several, one = (
            make_trainer(PLAIN, loss=loss, optimizer=optimizer, group=g) for g in (group, None)
        )
        for count in (20, 7, 1):
            x, y = X[:count], target[:count]
            assert several.step(x, y) == pytest.approx(one.step(x, y), rel=1e-5)
            for trainer in (several, one):
                trainer.accumulate(x, y)
                trainer.accumulate(X[5:6], target[5:6])
                trainer.update()
        close(several, one)
    several = make_trainer(PLAIN, optimizer=SGD(0.05), micro_batches=3, group=group)
    one = make_trainer(PLAIN, optimizer=SGD(0.05))
    for count in (20, 7, 1):
        assert several.step(X[:count], LABELS[:count]) == pytest.approx(
            one.step(X[:count], LABELS[:count]), rel=1e-5
        )
    close(several, one)


def get_ranks(trainer: Trainer) -> Ranks:
    """The ranks of a trainer that has some."""
    assert trainer.ranks is not None
    return trainer.ranks


class _Mine(Accuracy):
    """A metric that cannot be counted in parts."""

    def partial(self) -> Any:
        return None


class _Seen(Callback):
    """Notes at which ranks its hooks are called."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_epoch_end(self, fit: Fit) -> None:
        self.epochs.append(fit.epoch)


OPTIONS: dict[str, Any] = {
    "validation": (X[:7], LABELS[:7]), "batch_size": 3, "progress": False,
    "metrics": ["accuracy", "f1", _Mine("mine")], "schedule": Cosine(warmup=2),
}  # fmt: skip


def check_fits(group: RankGroup, folder: Path) -> None:
    """Epochs with a smaller last batch, validations, checkpoints; resumed by one process."""
    seen = _Seen()
    several = make_trainer(PLAIN, optimizer=AdamW(0.05), group=group)
    history = several.fit(Arrays((X, LABELS)), epochs=2, folder=folder, callbacks=[seen], **OPTIONS)
    assert seen.epochs == ([] if group.rank else [0, 1])
    assert (folder / "report.html").exists()
    one = make_trainer(PLAIN, optimizer=AdamW(0.05))
    wanted = one.fit((X, LABELS), epochs=2, **OPTIONS)
    for mine, other in zip(history.rows, wanted.rows, strict=True):
        names = [name for name in other if name.startswith(("loss", "val_", "lr"))]
        assert [mine[n] for n in names] == pytest.approx([other[n] for n in names], rel=1e-4)
    close(several, one)
    counted: dict[str, Any] = {**OPTIONS, "metrics": ["accuracy", "f1", "auroc"]}
    rows = [
        make_trainer(PLAIN, group=g).fit((X, LABELS), epochs=2, train_metrics=True, **counted).rows
        for g in (group, None)
    ]
    for mine, other in zip(*rows, strict=True):
        names = ["accuracy", "f1", "auroc", "val_accuracy", "val_f1", "val_auroc"]
        assert [mine[n] for n in names] == pytest.approx([other[n] for n in names], rel=1e-5)
    stopping = EarlyStopping("val_loss", patience=1, min_delta=10.0)
    stopped = several.fit((X, LABELS), epochs=9, callbacks=[stopping], **OPTIONS)
    assert len(stopped.rows) == 2, "rank 0 decides for all"


class _Interrupting(Callback):
    """Presses Ctrl-C at the fourth batch, at rank 0, where callbacks are called."""

    def on_batch_end(self, fit: Fit) -> None:
        if fit.batch == 4:
            os.kill(os.getpid(), signal.SIGINT)


def check_ends(group: RankGroup, folder: Path) -> None:
    """Check that an error of one rank, or Ctrl-C, ends all ranks, which continue afterwards."""
    trainer = make_trainer(PLAIN, group=group)
    labels = LABELS.copy()
    labels[19] = 3  # in the share of the last rank
    with pytest.raises(LabelError, match=rf"rank {group.size - 1}: .*label 3 at position \d"):
        trainer.fit(
            (X, labels), shuffle=False, batch_size=20, folder=folder / "label", progress=False
        )
    bad = X.copy()
    bad[19, 2] = np.nan
    with pytest.raises(
        NonFiniteError, match=rf"rank {group.size - 1}: .*input 'x' has NaN at \[\d+, 2\]"
    ):
        trainer.fit(
            Arrays((bad, LABELS), allow_nan=True), shuffle=False, batch_size=20, progress=False
        )
    history = trainer.fit(
        (X, LABELS), batch_size=4, epochs=3, folder=folder / "stopped",
        callbacks=[_Interrupting()], progress=False,
    )  # fmt: skip
    assert (history.stop_reason, trainer.steps) == ("interrupted", 4)
    resumed = make_trainer(PLAIN, group=group)
    resumed.fit(
        (X, LABELS), batch_size=4, epochs=3, folder=folder / "stopped", resume=True, progress=False
    )
    assert resumed.steps == 15
    if group.rank == 1:
        trainer.state.parameters["head.bias"].data[0] += 1e-3
    with pytest.raises(GroupError, match=r"rank 1 and rank 0 have trained to different param"):
        trainer.save(folder / "other")
    with pytest.raises(GroupError, match=r"and rank 0 differ in the number of samples .*: 1[0-9] "):
        trainer.fit((X[group.rank :], LABELS[group.rank :]), progress=False)


def check_norms(group: RankGroup) -> None:
    """Batch normalisations: by joint statistics, or by their own, whose mean checkpoints have."""
    several, one = (make_trainer(NORMED, optimizer=SGD(0.05), group=each) for each in (group, None))
    for count in (20, 7):
        assert several.step(X[:count], LABELS[:count]) == pytest.approx(
            one.step(X[:count], LABELS[:count]), rel=1e-4
        )
    for trainer in (several, one):
        trainer.accumulate(X, LABELS)
        trainer.accumulate(X[:9], LABELS[:9])
        trainer.update()
    close(several, one)
    trainer = make_trainer(NORMED, group=group, own_statistics=True)
    trainer.step(X, LABELS)
    own = trainer.state.parameters["norm.mean"].data.copy()
    array = np.asarray([own], np.float64)
    group.sum(array)
    get_ranks(trainer).average_moved()
    mean = trainer.state.parameters["norm.mean"].data
    np.testing.assert_allclose(mean, array[0] / group.size, rtol=1e-6)
    assert not np.array_equal(mean, own)
    get_ranks(trainer).check_same()


def check_draws(group: RankGroup) -> None:
    """Ranks draw other numbers for dropout, and count them alike."""
    trainer = make_trainer(DROPPING, group=group)
    trainer.step(X, LABELS)
    trainer.step(X[:1], LABELS[:1])
    assert trainer.state.draws == 2
    seeds = group.gather(trainer.learner.session.seed)
    assert seeds is None or len(set(seeds)) == group.size
    get_ranks(trainer).check_same()


def main(folder: Path) -> None:
    """Do all, and tell."""
    group = world(patience=30.0)
    assert group is not None
    check_steps(group)
    check_fits(group, folder / "fit")
    check_ends(group, folder)
    check_norms(group)
    check_draws(group)
    print("equal", group.rank, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
