"""Teams of threads whose others sleep, and stay asleep."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.runtime.team import Team


@contextmanager
def asleep(team: Team) -> Iterator[None]:
    """Let all threads of a team but thread 0 sleep, and no run wake them.

    They announce themselves while they hold the mutex, and need it to wake: all of them sleep while
    this thread holds it.
    """
    words, end = team._words, time.monotonic() + 10
    lock, unlock = (
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(int(words[name]))
        for name in ("lock", "unlock")
    )
    mutex = int(words["mutex"])
    lock(mutex)
    while words["sleepers"] < team.threads - 1:
        unlock(mutex)
        assert time.monotonic() < end
        time.sleep(0.001)
        lock(mutex)
    functions = {name: int(words[name]) for name in ("lock", "wake", "unlock")}
    for name in functions:
        words[name] = words["give"]
    try:
        yield
        assert words["sleepers"] == team.threads - 1
    finally:
        for name, address in functions.items():
            words[name] = address
        unlock(mutex)
