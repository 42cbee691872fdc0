"""Processes that take steps, or answer, whenever they are asked to: peers, and other checkouts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import ceil
from pathlib import Path
from typing import IO

from bench.measuring import time_call, time_in_turns
from engine.errors import EngineError, InputError
from engine.system.config import switch
from engine.tools.benchmark.rest import await_rest

# Seconds that the runs of a turn take at least.  The first ones wake the threads, and a system may
# take 60 ms to give each a core of its own.
SECONDS = 0.3
LEAST = 5  # runs of a turn
SCRIPTS = Path(__file__).resolve().parent / "scripts"


class Worker:
    """Process that reads numbers of steps from standard input, and answers each by `done`.

    Another answer says why it ends.
    """

    def __init__(self, name: str, pid: int, ask: IO[str], answers: IO[str]) -> None:
        self._name, self._ask, self._answers = name, ask, answers
        self._pid = pid

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
            why = f": {answer.strip()}" if answer.strip() else ""
            raise EngineError(f"the process of {self._name} ended before its steps did{why}")

    def await_rest(self) -> None:
        """Wait until no thread of the process works or spins."""
        await_rest(self._pid)

    def train(self, steps: int) -> list[float]:
        """Take so many steps, then rest; return the seconds of all steps divided among them."""
        took = time_call(lambda: self.run(steps))
        self.await_rest()
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


def time_workers(
    commands: Mapping[str, Sequence[object]],
    turns: int,
    folder: Path | None = None,
    *,
    count: int = 0,
    seconds: float = SECONDS,
    most: int | None = None,
) -> dict[str, list[float]]:
    """Return the seconds of a run of each command, turn by turn; the workers take turns.

    A turn begins when the threads of the turn before are at rest.

    commands: by name.  folder: that they run in.
    count: how many runs a turn has; 0: as many as take the fastest worker so many seconds, `LEAST`
        at least, `most` at most.
    """
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(worker(command, name, folder))
            for name, command in commands.items()
        }
        for made in workers.values():
            made.run(2)  # plans, and wakes the threads
        if not count:
            took = min(time_call(made.run) for made in workers.values())
            count = max(LEAST, ceil(seconds / took))
            count = count if most is None else min(count, most)
        runs = {name: partial(made.run, count) for name, made in workers.items()}
        rests = {name: made.await_rest for name, made in workers.items()}
        times = time_in_turns(runs, turns, rests=rests)
    return {name: [each / count for each in values] for name, values in times.items()}


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
