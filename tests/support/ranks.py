"""Ranks: runs a program under mpirun, in bounded time, as the tests of groups over MPI need it.

Every rank writes into files of its own.  MPICH's launcher loses what ranks write into its pipes now
and then, when a machine is busy.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.places import ROOT

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
# A command with its output in files of the folder $0, named after the rank.
_WRITE = 'rank=${PMI_RANK-$OMPI_COMM_WORLD_RANK}; exec "$@" >"$0/$rank.out" 2>"$0/$rank.err"'


def find_launcher() -> str:
    """The mpirun of the MPI library that mpi4py uses here; without one the test is skipped."""
    pytest.importorskip("mpi4py", reason="the extra mpi is not installed")
    beside = Path(sys.executable).parent / "mpirun"  # of the wheel
    text = str(beside) if beside.exists() else shutil.which("mpirun")
    if text is None:
        pytest.skip("there is no mpirun")
    return text


@dataclass(frozen=True)
class Started:
    """Ranks that run: their launcher, and the folder of their files `N.out` and `N.err`."""

    process: subprocess.Popen[str]
    folder: Path

    def read_output(self, kind: str) -> str:
        """Return the output of the ranks so far, one after the other; kind: out or err."""
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"*.{kind}")))

    def wait_for_line(self, begin: str) -> str:
        """The first whole line with this beginning, once a rank has written it.

        Raises:
            AssertionError: the ranks have ended or time is over, and there is none.
        """
        until = time.monotonic() + LIMIT
        while True:
            ended = self.process.poll() is not None or time.monotonic() > until
            for line in self.read_output("out").splitlines(keepends=True):
                if line.startswith(begin) and line.endswith("\n"):
                    return line
            assert not ended, f"no line begins with {begin!r}: {self.read_output('err')}"
            time.sleep(0.02)


def start(
    folder: Path,
    count: int,
    words: Sequence[str | os.PathLike[str]],
    more: Mapping[str, str] | None = None,
) -> Started:
    """Start Python with these words as `count` ranks of one thread each, writing in a folder."""
    environment = {**os.environ, **_LOCAL, "EDGEGRAD_THREADS": "1", **(more or {})}
    environment["PYTHONPATH"] = str(ROOT)
    written = Path(tempfile.mkdtemp(prefix="written", dir=folder))
    process = subprocess.Popen(
        [find_launcher(), "-n", str(count), "sh", "-c", _WRITE, written, sys.executable, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Started(process, written)


def finish(started: Started) -> subprocess.CompletedProcess[str]:
    """Wait for the end of the process that `start` has started; end it if it takes too long.

    The output is the ranks' output, and then the launcher's.
    """
    process = started.process
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return subprocess.CompletedProcess(
        process.args,
        process.returncode,
        started.read_output("out") + out,
        started.read_output("err") + err,
    )


def run(
    folder: Path,
    count: int,
    *words: str | os.PathLike[str],
    more: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words as `count` ranks of one thread each, writing in a folder."""
    return finish(start(folder, count, words, more))
