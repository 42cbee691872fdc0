"""Lock for runs: one thread at a time, and an error where a thread would wait for itself.

Python runs a signal handler in the main thread between any two lines.  If the handler starts a run
while the main thread is inside another one, a plain lock never comes free, and a re-entrant one
lets the second run destroy the memory of the first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from engine.base.errors import StateError


class RunLock:
    """Held by one thread at a time; other threads wait for it, its holder gets an error."""

    def __init__(self, what: str) -> None:
        """Name what the holder does, for messages."""
        self._what = what
        self.renew()

    def renew(self) -> None:
        """Forget who holds it: for a forked child, where other threads do not exist."""
        self._lock, self._taken = threading.RLock(), False

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Wait for the lock, hold it inside the `with` block, and give it back.

        Raises:
            StateError: this thread has it already.
        """
        with self._lock:
            if self._taken:
                raise StateError(
                    f"{self._what} has begun on this thread and is not done: a signal handler, or "
                    "another function that Python calls meanwhile, cannot start one. Let it set a "
                    "flag that the loop looks at"
                )
            try:
                self._taken = True
                yield
            finally:
                self._taken = False
