"""Teams of threads whose others sleep, and stay asleep."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from engine.runtime.program import Team


@contextmanager
def asleep(team: Team) -> Iterator[None]:
    """Let no call wake the threads of a team, once all but thread 0 sleep.

    No run waits for them, not even one that trains.
    """
    words, end = team._words, time.monotonic() + 10
    while words["sleepers"] < team.threads - 1:
        assert time.monotonic() < end
        time.sleep(0.001)
    wake, generation = int(words["wake"]), int(words["generation"])
    words["wake"] = words["give"]
    run = team.run
    try:
        with mock.patch.object(team, "run", lambda *given, waits: run(*given, waits=False)):
            yield
        assert words["sleepers"] == team.threads - 1
        assert words["generation"] == generation
    finally:
        words["wake"] = wake
