"""Lock for runs: one thread at a time, and an error where a thread would wait for itself.

Python runs a signal handler in the main thread between any two lines.  If the handler starts a run
while the main thread is inside another one, a plain lock never comes free, and a re-entrant one
lets the second run destroy the memory of the first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from engine.base.errors import StateError

Result = TypeVar("Result")


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
            self._refuse_again()
            try:
                self._taken = True
                yield
            finally:
                self._taken = False

    def hold(self, work: Callable[..., Result], *given: Any) -> Result:
        """Return work(*given), called inside the lock: as `take` does it, in a fifth of the time.

        Raises:
            StateError: this thread has it already.
        """
        with self._lock:
            self._refuse_again()
            try:
                self._taken = True
                return work(*given)
            finally:
                self._taken = False

    def _refuse_again(self) -> None:
        if self._taken:
            raise StateError(
                f"{self._what} is already running on this thread: a signal handler, or another "
                "function that Python calls in between, cannot start a second one. Let it set a "
                "flag that your loop checks"
            )
