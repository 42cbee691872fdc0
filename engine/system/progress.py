"""Progress messages for slow work: silent for one second, then a bar, or lines of a log.

On a terminal that is a bar, elsewhere two lines of the logger `edgegrad`, one when the work takes
long and one when it is done.  All are of level WARNING, since the waiting user has configured
nothing;
`logging.getLogger("edgegrad").setLevel(logging.ERROR)` silences them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import Logger

PATIENCE = 1.0  # seconds of work that nothing is said of
ENOUGH = 0.1  # share of the work by whose time the rest is estimated; less is mostly its start


def get_logger() -> Logger:
    """Return the logger `edgegrad`; a start that says nothing does not import logging for it."""
    import logging

    return logging.getLogger("edgegrad")


def _is_silenced() -> bool:
    import logging

    return not get_logger().isEnabledFor(logging.WARNING)


def _is_terminal() -> bool:
    """Return whether stderr is a terminal; one without a size, as in a container, shows no bar."""
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    try:
        return 0 not in os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # a window of a program, not a file
        return True


class WorkProgress:
    """Counts what is done of some work: a context in which `count` is called again and again.

    text: what is done, in which `{count}` stands for `done/total`, for example
        "compiling {count} kernels for this CPU".
    note: what else a waiting user may want to know, for example
        "once, kept in /home/me/.cache/edgegrad".
    """

    def __init__(self, text: str, total: int, note: str = "") -> None:
        self._text, self._total, self._note = text, total, note
        self._done = 0
        self._share = 0.0
        self._start = time.monotonic()
        self._bar: Any = None
        self._said = self._logged = False

    def __enter__(self) -> WorkProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._logged and self._done >= self._total:
            self._log(f": done in {self._measure():.0f} s")

    def count(self, done: int = 0, share: float | None = None) -> None:
        """Count `done` more, and say so if it is time to.

        share: this part's share of the total time; by default all parts take equally long.
        """
        self._done += done
        self._share += done / self._total if share is None else share
        if self._bar is not None:
            self._bar.set_postfix_str(self._estimate(), refresh=False)
            self._bar.update(done)
            return
        if self._said or self._measure() < PATIENCE or self._done >= self._total:
            return
        is_terminal = _is_terminal()
        if not (self._estimate() or is_terminal) and self._measure() < 3 * PATIENCE:
            return  # a line is said once, so it waits for something to estimate by
        self._said = True
        if _is_silenced():
            return
        if not is_terminal:
            self._logged = True
            left = self._estimate()
            self._log((left and f": {left}") + (self._note and f"; {self._note}"))
            return
        from tqdm import tqdm

        before, after = (
            part.replace("{", "{{").replace("}", "}}") for part in self._text.split("{count}")
        )
        note = self._note.replace("{", "{{").replace("}", "}}")
        self._bar = tqdm(
            total=self._total,
            initial=self._done,
            bar_format=(
                f"{before}{{n_fmt}}/{{total_fmt}}{after} |{{bar:20}}| {{elapsed}}"
                f"{{postfix}}{note and f'; {note}'}"
            ),
            postfix=self._estimate(),
            mininterval=0,
        )
        self._bar.start_t -= self._measure()

    def _measure(self) -> float:
        """Return the seconds since the work began."""
        return time.monotonic() - self._start

    def _estimate(self) -> str:
        """Return how long the rest will take, once enough of the work is done to tell."""
        if self._share < ENOUGH or self._done >= self._total:
            return ""
        left = self._measure() * (1 - self._share) / self._share
        return f"about {max(left, 1):.0f} s left"

    def _log(self, rest: str) -> None:
        get_logger().warning(self._text.replace("{count}", f"{self._done}/{self._total}") + rest)


@contextlib.contextmanager
def announced(text: str) -> Iterator[None]:
    """Print the text on a terminal if the block takes long; its work cannot be counted."""
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
