"""A process of the peers' Python that takes a step whenever it is asked to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.runtime.config import switch


@contextmanager
def peer(script: str, *words: object) -> Iterator[Callable[[], None]]:
    """Run a script of this folder with these words; a call asks it for a step and waits for it.

    The script reads lines from standard input and answers each by the line `done`.
    """
    path = Path(__file__).parent / script
    with subprocess.Popen(
        [switch("BENCH_PEERS"), str(path), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ask, answers = process.stdin, process.stdout

        def step() -> None:
            print("step", file=ask, flush=True)
            assert answers.readline() == "done\n"

        yield step
        ask.close()
