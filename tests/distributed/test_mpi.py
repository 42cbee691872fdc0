"""Groups over MPI: what ranks exchange, how one that ends takes the others with it, launchers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from engine.distributed import launchers, world
from engine.distributed.launchers import Launched, find_launcher
from engine.errors import MissingPackageError
from tests.support import ranks
from tests.support.places import SUPPORT

PROGRAM = SUPPORT / "mpi_ranks.py"


def test_ranks_exchange_arrays_and_values(tmp_path: Path) -> None:
    done = ranks.run(tmp_path, 3, PROGRAM, "well")
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"done (\d)", done.stdout)) == ["0", "1", "2"]


def test_an_exception_of_one_rank_ends_all_and_is_told_with_the_rank(tmp_path: Path) -> None:
    done = ranks.run(tmp_path, 2, PROGRAM, "raise")
    assert done.returncode != 0
    assert "edgegrad: rank 1 of 2 on " in done.stderr
    assert "ValueError: a bad sample" in done.stderr
    assert "done" not in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows stops no process")
def test_a_rank_that_does_not_answer_is_named(tmp_path: Path) -> None:
    done = ranks.run(tmp_path, 2, PROGRAM, "stop")
    assert done.returncode != 0
    assert re.search(r"rank 1 did not answer for \d+ s", done.stderr), done.stderr


def test_a_rank_that_leaves_for_another_call_is_named(tmp_path: Path) -> None:
    """Its sum is not the length of a message, which would be 4 EiB."""
    done = ranks.run(tmp_path, 3, PROGRAM, "leave")
    assert done.returncode != 0
    assert "rank 1 did not answer, and its last message belongs to another call" in done.stderr
    assert "Unable to allocate" not in done.stderr


def test_launchers_are_known_by_their_environment() -> None:
    assert find_launcher({"PATH": "/bin", "SLURM_NTASKS": "4"}) is None
    launcher = find_launcher({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"})
    assert launcher == Launched("PMI_SIZE", 1, 4, 2)
    launcher = find_launcher(
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}
    )
    assert launcher == Launched("OMPI_COMM_WORLD_SIZE", 0, 2, None)
    assert find_launcher({"PMIX_RANK": "3"}) == Launched("PMIX_RANK", 3, None, None)


def test_one_process_needs_no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engine.distributed.mpi", None)
    monkeypatch.setattr(launchers, "_worlds", [])
    assert world() is None
    monkeypatch.setattr(launchers, "_worlds", [])
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(MissingPackageError, match=r"PMI_SIZE is set.*edgegrad\[mpi\]"):
        world()
