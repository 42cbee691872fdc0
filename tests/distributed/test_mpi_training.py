"""Trainings of several ranks under mpirun: as one process, whatever ends one ends all."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.api import CheckpointState
from engine.trainer.runs import RunFolder
from tests.support import ranks
from tests.support.mpi_training import OPTIONS
from tests.support.places import SUPPORT
from tests.support.run_models import write_regressor, write_table
from tests.support.tiny import LABELS, PLAIN, X, make_trainer

PROGRAM = SUPPORT / "mpi_training.py"


def test_ranks_train_as_one_process_does(tmp_path: Path) -> None:
    """All of tests/support/mpi_training.py; then one process continues what two have begun."""
    done = ranks.run(tmp_path, 2, PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"equal (\d)", done.stdout)) == ["0", "1"]
    make_trainer(PLAIN).fit((X, LABELS), epochs=2, folder=tmp_path / "alone", **OPTIONS)
    losses = [
        make_trainer(PLAIN).fit(
            (X, LABELS), epochs=3, folder=tmp_path / name, resume=True, **OPTIONS
        )
        for name in ("fit", "alone")
    ]
    assert losses[0]["val_loss"] == pytest.approx(losses[1]["val_loss"], rel=1e-4)
    assert losses[0]["epoch"] == [0, 1, 2]


def test_a_command_under_mpirun_ends_as_a_whole(tmp_path: Path) -> None:
    """Ctrl-C saves; the death of one rank ends all, and the last checkpoint is whole."""
    model = write_regressor(tmp_path / "model.onnx")
    table, run = write_table(tmp_path / "table.csv", "area"), tmp_path / "run"
    words = ["-m", "engine.tools.cli", "train", "--model", str(model), "--data", str(table)]
    words += ["--label", "area", "--validation", "0", "-o", str(run), "--epochs", "100000"]
    stopped = _ended(words, run, lambda process, ids: process.send_signal(signal.SIGINT))
    assert "to continue: edgegrad train --resume" in stopped.stderr
    assert stopped.returncode == 130
    before = RunFolder(run).last
    dead = _ended([*words, "--resume"], run, lambda process, ids: os.kill(ids[1], signal.SIGKILL))
    assert dead.returncode not in (0, 130)
    last = RunFolder(run).last
    assert last != before
    assert last is not None
    state = CheckpointState.load_checkpoint(last / "checkpoint")
    assert all(np.isfinite(p.data).all() for _, p in state.parameters)


def _ended(
    words: list[str], run: Path, end: Callable[[subprocess.Popen[str], list[int]], None]
) -> subprocess.CompletedProcess[str]:
    """Start two ranks, and end them after a checkpoint; `end` gets their process numbers."""
    before = RunFolder(run).last
    started = ranks.start(run.parent, 2, words)
    try:
        line = started.wait_for_line("ranks: ")
        ids = [int(match) for match in re.findall(r"process (\d+)", line)]
        while RunFolder(run).last == before and started.process.poll() is None:
            time.sleep(0.05)
        end(started.process, ids)
    finally:
        done = ranks.finish(started)
    return done
