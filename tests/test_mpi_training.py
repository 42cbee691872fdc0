"""Trainings of several ranks under mpirun: as one process, whatever ends one ends all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import ranks
from tests.mpi_training import OPTIONS
from tests.tiny import LABELS, PLAIN, X, made

PROGRAM = Path(__file__).parent / "mpi_training.py"


def test_ranks_train_as_one_process_does(tmp_path: Path) -> None:
    """All of tests/mpi_training.py; then one process goes on with what two have begun."""
    done = ranks.run(2, PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"equal (\d)", done.stdout)) == ["0", "1"]
    made(PLAIN).fit((X, LABELS), epochs=2, folder=tmp_path / "alone", **OPTIONS)
    losses = [
        made(PLAIN).fit((X, LABELS), epochs=3, folder=tmp_path / name, resume=True, **OPTIONS)
        for name in ("fit", "alone")
    ]
    assert losses[0]["val_loss"] == pytest.approx(losses[1]["val_loss"], rel=1e-4)
    assert losses[0]["epoch"] == [0, 1, 2]
