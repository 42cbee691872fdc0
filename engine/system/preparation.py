"""Time that a thread spends on preparing: planning, compiling and loading programs.

A program is prepared once and then run many times, so rates of training are measured by a clock
that stands still meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Preparation(threading.local):
    """Seconds of a thread.

    spent: in blocks that are over.  since: when the block began that goes on; None outside.
    """

    spent = 0.0
    since: float | None = None


_own = _Preparation()


@contextmanager
def preparing() -> Iterator[None]:
    """Stop this thread's clock during the block; a block inside another changes nothing."""
    if _own.since is not None:
        yield
        return
    _own.since = time.perf_counter()
    try:
        yield
    finally:
        _own.spent += time.perf_counter() - _own.since
        _own.since = None


def read_clock() -> float:
    """Return the seconds of this thread's clock, which stands still while the thread prepares."""
    now = time.perf_counter() if _own.since is None else _own.since
    return now - _own.spent
