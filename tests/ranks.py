"""Ranks: runs a program under mpirun, in bounded time, as the tests of groups over MPI need it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 120.0  # seconds
# On one machine nothing leaves it.  The settings are for MPICH and for Open MPI, which ignore each
# other's: where the launcher listens, that ranks may be more than cores, that root may start them.
_LOCAL = {
    "HYDRA_IFACE": "lo",
    "FI_TCP_IFACE": "lo",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def launcher() -> str:
    """The mpirun of the MPI library that mpi4py uses here; without one the test is skipped."""
    pytest.importorskip("mpi4py", reason="the extra mpi is not installed")
    beside = Path(sys.executable).parent / "mpirun"  # of the wheel
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("there is no mpirun")
    return found


def start(
    count: int, words: Sequence[str | os.PathLike[str]], more: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start Python with these words as `count` ranks of one thread each."""
    environment = {**os.environ, **_LOCAL, "EDGEGRAD_THREADS": "1", **(more or {})}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.Popen(
        [launcher(), "-n", str(count), sys.executable, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for the end of what `start` has started; it is ended where it takes too long."""
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(
    count: int, *words: str | os.PathLike[str], more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words as `count` ranks of one thread each."""
    return finish(start(count, words, more))
