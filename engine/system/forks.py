"""Forks: a child has one thread, and what the others of its parent were in the middle of is lost.

Locks and threads of this package are made again in a child (lock.py, team.py, ...).  That cannot
be done for the compiler, whose data may be half-written and whose locks are not ours.  A child that
needs it would wait for a thread that does not exist.  It gets an error instead; what does not need
it, as steps, works.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from engine.base.errors import StateError

_compiling: dict[int, None] = {}  # identifiers of threads
_lost = ""  # what another thread was doing when this process was forked


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Let this thread compile kernels within the block.

    Raises:
        StateError: as `require_whole`.
    """
    require_whole()
    thread = threading.get_ident()
    if thread in _compiling:
        yield
        return
    _compiling[thread] = None
    try:
        yield
    finally:
        _compiling.pop(thread, None)


def require_whole() -> None:
    """Refuse to plan or compile in a process in which that could wait for ever.

    Raises:
        StateError: it was forked while another thread of its parent compiled.
    """
    if _lost:
        raise StateError(
            f"this process was forked while another thread of its parent was {_lost}, so that "
            "thread's locks stay locked here and nothing can be planned or compiled. Fork earlier "
            "or later, or spawn processes instead; shapes that were planned before the fork still "
            "run"
        )


def _look() -> None:
    """Note, in a forked child, what other threads of the parent were doing."""
    global _lost
    mine = threading.get_ident()
    if any(thread != mine for thread in _compiling):
        _lost = "compiling kernels"
    _compiling.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_look)
