"""Calls that signals interrupt."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from engine.errors import StateError

FILES = {"lock.py", "program.py", "module.py", "optimizer.py", "session.py", "backend.py"}


def interrupt_call(
    call: Callable[[], object], handler: Callable[[], object], files: Collection[str] = FILES
) -> set[str]:
    """Make a call, and run a handler between all of its lines that are the engine's.

    files: the names of the files whose lines count.

    Returns what the handler's StateErrors said.  Python runs handlers of signals in this way: in
    the main thread, between two lines.
    """
    said = set[str]()

    def handle(*_: object) -> None:
        try:
            handler()
        except StateError as error:
            said.add(str(error))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if os.path.basename(frame.f_code.co_filename) not in files:
            return None
        if event == "line":
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)
            sys.settrace(trace)
        return trace

    before, tracing = signal.signal(signal.SIGUSR1, handle), sys.gettrace()
    try:
        sys.settrace(trace)
        call()
    finally:
        sys.settrace(tracing)
        signal.signal(signal.SIGUSR1, before)
    return said
