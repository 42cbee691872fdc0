"""Interrupts: Ctrl-C and SIGTERM end a run at the next step, not in the middle of one."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STDERR = 2
_NOTICE = b"\nstopping after this step; Ctrl-C again stops at once\n"


class Interrupts:
    """Inside the `with` block, the first SIGINT or SIGTERM sets `requested`.

    The second one raises KeyboardInterrupt, and so does a SIGINT before anything `has_begun`: the
    first step plans and compiles, and there is nothing to keep yet.  After the block, the signals
    have their earlier handlers again.  Nothing changes outside of the main thread, where Python
    allows no handlers, for a signal that is ignored, and where another program than Python has set
    the handler.
    """

    def __init__(self) -> None:
        self.requested = False
        self.has_begun = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                if signal.getsignal(each) not in (signal.SIG_IGN, None):
                    self._before[each] = signal.signal(each, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        self._before = {}

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.requested or (number == signal.SIGINT and not self.has_begun):
            raise KeyboardInterrupt
        self.requested = True
        if number == signal.SIGINT:
            with contextlib.suppress(OSError):
                if os.isatty(_STDERR):  # by the system: the stream may be busy, as with a bar
                    os.write(_STDERR, _NOTICE)
