"""Processes that take training steps whenever they are asked to: peers, and other checkouts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from bench.measuring import time_call
from engine.errors import EngineError, InputError
from engine.system.config import switch

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LOOK = 0.005  # seconds between two looks at the threads of a process
# Seconds that threads of a peer spin after their work, at most: 2^20 pauses of 1000 cycles in
# onnxruntime 1.32, 200 ms in LLVM's OpenMP, 300,000 turns in GCC's.
SPIN = 0.5


class Worker:
    """Process that reads numbers of steps from standard input, and answers each by `done`."""

    def __init__(self, name: str, pid: int, ask: IO[str], answers: IO[str]) -> None:
        self._name, self._ask, self._answers = name, ask, answers
        self._tasks = Path(f"/proc/{pid}/task")

    def run(self, steps: int = 1) -> None:
        """Take so many steps.

        Raises:
            EngineError: the process has ended.
        """
        try:
            print(steps, file=self._ask, flush=True)
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = ""
        if answer != "done\n":
            raise EngineError(f"the process of {self._name} ended before its steps did")

    def rest(self) -> None:
        """Wait, 2 `SPIN` at most, until two looks in a row find no thread that runs or wants to.

        Threads of a pool spin for a while after their work.  The process whose turn is next would
        share a core with them, and seem slow on as many threads as there are cores.
        """
        if not self._tasks.exists():  # the system does not tell
            time.sleep(SPIN)
            return
        end, quiet = time.perf_counter() + 2 * SPIN, 0
        while quiet < 2 and time.perf_counter() < end:
            time.sleep(LOOK)
            quiet = 0 if "R" in self._list_states() else quiet + 1

    def _list_states(self) -> list[str]:
        """Return the states of the threads of the process, of those that run or want to "R"."""
        states = []
        for task in self._tasks.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                states.append((task / "stat").read_text("utf-8").rpartition(") ")[2][0])
        return states

    def train(self, steps: int) -> list[float]:
        """Take so many steps, then rest; return the seconds of all steps divided among them."""
        took = time_call(lambda: self.run(steps))
        self.rest()
        return [took / steps] * steps


@contextmanager
def worker(
    words: Sequence[object], name: str, cwd: Path | None = None, **env: str
) -> Iterator[Worker]:
    """Run a command as a worker."""
    with subprocess.Popen(
        [*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr,
        text=True, cwd=cwd, env={**os.environ, **env},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        yield Worker(name, process.pid, process.stdin, process.stdout)
        process.stdin.close()


def find_peer_python() -> str:
    """Return the Python of EDGEGRAD_BENCH_PEERS.

    Raises:
        InputError: it is not set.
    """
    if not (python := switch("BENCH_PEERS")):
        raise InputError("set EDGEGRAD_BENCH_PEERS to a Python with the packages of the peers")
    return python


@contextmanager
def peer(script: str, *words: object) -> Iterator[Worker]:
    """Run a program of scripts/ by the Python of the peers, as a worker."""
    with worker([find_peer_python(), SCRIPTS / f"{script}.py", *words], script) as made:
        yield made
