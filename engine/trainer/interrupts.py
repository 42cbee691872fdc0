"""Interrupts: Ctrl-C and SIGTERM end a run at the next step, not in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Inside the `with` block, the first SIGINT or SIGTERM sets `requested`.

    The second one raises KeyboardInterrupt.  After the block, the signals have their earlier
    handlers again.  Nothing changes outside of the main thread, where Python allows no handlers,
    for a signal that is ignored, and where another program than Python has set the handler.
    """

    def __init__(self) -> None:
        self.requested = False
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
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
