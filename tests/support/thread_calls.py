"""Calls in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_in_threads(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=w) for w in works]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
