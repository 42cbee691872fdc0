"""Progress messages for slow work: silent for one second, then one bar or log line.

On a terminal that is a bar, elsewhere a line of the logger `edgegrad`.  Both are of level WARNING,
since the waiting user has configured nothing;
`logging.getLogger("edgegrad").setLevel(logging.ERROR)` silences them.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import Logger

PATIENCE = 1.0  # seconds of work that nothing is said of


def get_logger() -> Logger:
    """Return the logger `edgegrad`; a start that says nothing does not import logging for it."""
    import logging

    return logging.getLogger("edgegrad")


def _is_silenced() -> bool:
    import logging

    return not get_logger().isEnabledFor(logging.WARNING)


def _is_terminal() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


class WorkProgress:
    """Counts what is done of some work: a context in which `count` is called again and again.

    text: what is said, in which `{count}` stands for `done/total`, for example
        "compiling {count} kernels (once; kept in /home/me/.cache/edgegrad)".
    """

    def __init__(self, text: str, total: int) -> None:
        self._text, self._total = text, total
        self._done = 0
        self._start = time.monotonic()
        self._bar: Any = None
        self._said = False

    def __enter__(self) -> WorkProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def count(self, done: int = 0) -> None:
        """Count `done` more, and say so if it is time to."""
        self._done += done
        if self._bar is not None:
            self._bar.update(done)
            return
        waited = time.monotonic() - self._start
        if self._said or waited < PATIENCE or self._done >= self._total:
            return
        self._said = True
        if _is_silenced():
            return
        if not _is_terminal():
            get_logger().warning(self._text.replace("{count}", f"{self._done}/{self._total}"))
            return
        from tqdm import tqdm

        before, after = (
            part.replace("{", "{{").replace("}", "}}") for part in self._text.split("{count}")
        )
        self._bar = tqdm(
            total=self._total,
            initial=self._done,
            bar_format=f"{before}{{n_fmt}}/{{total_fmt}}{after} |{{bar:20}}| {{elapsed}}",
            mininterval=0,
        )
        self._bar.start_t -= waited


@contextlib.contextmanager
def announced(text: str) -> Iterator[None]:
    """On a terminal, print what goes on in this context once it lasts; it cannot be counted."""
    if not _is_terminal() or _is_silenced():
        yield
        return
    timer = threading.Timer(PATIENCE, print, (text,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # the system gives no thread
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
