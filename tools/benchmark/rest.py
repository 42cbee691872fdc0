"""Rest between turns: threads that still spin take a core from the process whose turn is next."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

LOOK = 0.005  # seconds between two looks at the threads of a process
# Seconds that threads of a peer spin after their work, at most: 2^20 pauses of 1000 cycles in
# onnxruntime 1.32, 200 ms in LLVM's OpenMP, 300,000 turns in GCC's.
SPIN = 0.5


def await_rest(pid: int) -> None:
    """Wait, 2 `SPIN` at most, until two looks in a row find no thread that runs or wants to.

    Threads of a pool spin for a while after their work.  The process whose turn is next would share
    a core with them, and seem slow on as many threads as there are cores.
    """
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.exists():  # the system does not tell
        time.sleep(SPIN)
        return
    end, quiet = time.perf_counter() + 2 * SPIN, 0
    while quiet < 2 and time.perf_counter() < end:
        time.sleep(LOOK)
        quiet = 0 if "R" in _list_states(tasks) else quiet + 1


def _list_states(tasks: Path) -> list[str]:
    """Return the states of the threads of a process; "R": it runs or wants to."""
    states = []
    for task in tasks.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            states.append((task / "stat").read_text("utf-8").rpartition(") ")[2][0])
    return states
