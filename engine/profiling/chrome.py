"""Profiles as traces for Chrome: a track for each thread, a box for each step.

Source: "Trace Event Format", Google, 2016; complete events (`ph` X), times in microseconds.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from engine.base import arguments
from engine.system import files

if TYPE_CHECKING:
    from engine.profiling.times import Times

_PROCESS = 1


def make_events(profile: Times) -> dict[str, Any]:
    """Return the trace of the fastest run."""
    named = [_make_name("process_name", 0, profile.title)]
    named += [_make_name("thread_name", t, f"thread {t}") for t in range(profile.threads)]
    boxes = [
        {
            "name": step.kernel,
            "cat": step.phase,
            "ph": "X",
            "pid": _PROCESS,
            "tid": thread,
            "ts": 1e6 * begin,
            "dur": 1e6 * (end - begin),
            "args": {
                "node": step.shown,
                "plan": step.plan,
                "step": step.number,
                "flops": step.flops,
                "bytes": step.nbytes,
            },
        }
        for step in profile.steps
        for thread, (begin, end) in enumerate(step.spans)
    ]
    return {"traceEvents": [*named, *boxes], "displayTimeUnit": "ms"}


def _make_name(kind: str, thread: int, name: str) -> dict[str, Any]:
    """Return the event that names the process or a thread."""
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def write(profile: Times, path: str | os.PathLike[str]) -> None:
    """Write the trace as a file.

    Raises:
        FileError: it cannot be written.
    """
    content = json.dumps(make_events(profile), allow_nan=False).encode()
    files.write(arguments.check_path("trace", path), [content])
