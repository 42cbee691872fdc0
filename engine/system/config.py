"""The one table of environment switches, EDGEGRAD_*.  A name that it lacks is an error."""

from __future__ import annotations

import os
import platform
import sys

from engine.base import limits
from engine.base.arguments import count, parse_digits
from engine.base.errors import EngineError
from engine.base.plan_options import MAX_THREADS

PREFIX = "EDGEGRAD_"

SWITCHES = {
    "THREADS": "worker threads of a Module that is not given threads=; default: all cores",
    "KERNELS": "native: compile every kernel for this CPU; shipped: use only the wheel's kernels; "
    "auto: use the wheel's kernels, and compile missing ones; default auto",
    "LEVEL": "instruction-set level that kernels of this CPU stay within, such as x86-64-v3; "
    "default: all that the CPU has",
    "CACHE_DIR": "folder of compiled kernels and plans; default: the user's cache folder /edgegrad",
    "PLAN_MEMORY": "MiB for the plans that a module keeps, one per input shape, in addition to "
    "what they share; the least recently used are dropped; default 64",
    "CHECK_FINITE": "1: a NaN or infinite loss raises NonFiniteError; default 0",
    "CONVOLUTION": "direct: do not use Winograd's algorithm, whose rounding errors are "
    "a few times larger; auto: use it where it is faster; default auto",
    "REUSE": "0: every buffer gets its own bytes, to isolate planner defects; default 1",
    "DEBUG": "1: plan summaries on stderr; 2: also the graph after every pass; default 0",
    "BENCH_PEERS": "path of a Python with onnxruntime-training-cpu and torch, for the benchmarks",
    **{
        f"MAX_{name}": f"most {limit.unit} of {limit.meaning}; default {limit.describe()}"
        for name, limit in limits.LIMITS.items()
    },
}
_VALUES = {  # of switches that have few
    "KERNELS": ("native", "shipped", "auto"),
    "CHECK_FINITE": ("0", "1"),
    "CONVOLUTION": ("direct", "auto"),
    "REUSE": ("0", "1"),
    "DEBUG": ("0", "1", "2"),
}


def switch(name: str) -> str:
    """Return the value of `EDGEGRAD_<name>`; empty if it is not set.

    Raises:
        EngineError: the environment holds an EDGEGRAD_ name that is not in `SWITCHES`, or this
            switch has a value that means nothing.
    """
    limits.refuse_unknown(PREFIX, SWITCHES)
    assert name in SWITCHES, name
    value = os.environ.get(PREFIX + name, "")
    if value and value not in _VALUES.get(name, (value,)):
        raise EngineError(f"{PREFIX}{name}={value!r}: expected one of {', '.join(_VALUES[name])}")
    return value


PLAN_MEMORY = 64  # MiB


def plan_bytes() -> int:
    """Return the bytes for a module's plans: EDGEGRAD_PLAN_MEMORY MiB, or `PLAN_MEMORY`.

    Raises:
        EngineError: the value is not a whole number from 1 on.
    """
    text = switch("PLAN_MEMORY") or str(PLAN_MEMORY)
    return parse_digits(f"{PREFIX}PLAN_MEMORY (MiB)", text, 1, 1 << 40) << 20


def count_cores() -> int:
    """Return the number of cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def choose_threads(requested: object = None) -> int:
    """Return the number of worker threads: argument, EDGEGRAD_THREADS, or all usable cores.

    Raises:
        DTypeError, EngineError: it is not a whole number from 1 to `MAX_THREADS`.
    """
    title, text = "threads", switch("THREADS")
    if requested is None and text:
        title = PREFIX + "THREADS"
        requested = parse_digits(title, text, 1, MAX_THREADS)
    if requested is None:
        return min(count_cores(), MAX_THREADS)
    number = count(title, requested)
    if not 1 <= number <= MAX_THREADS:
        raise EngineError(f"{title}={number}: expected 1 to {MAX_THREADS}")
    return number


def require_64_bit() -> None:
    """Refuse a 32-bit process: numba and LLVM, which compile kernels, exist for 64 bits only.

    Raises:
        EngineError: this is a 32-bit process; the message says what to do.
    """
    if sys.maxsize < 1 << 32:
        raise EngineError(
            f"this is a 32-bit Python ({platform.machine()}): compiling kernels needs a "
            "64-bit system, such as 64-bit Raspberry Pi OS on a Pi 3, 4, 5 or Zero 2. A trimmed "
            "build, made elsewhere by `edgegrad build --target armv7`, runs here: "
            "docs/raspberry-pi.md"
        )
