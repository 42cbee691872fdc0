"""The machine's other limit: memory, read and written in place by one thread."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from engine.kernels.compiler import emit
from engine.kernels.compiler.load import linker
from engine.kernels.target import Target, host

_UNROLL = 4  # vectors an iteration


def _source(target: Target) -> str:
    lanes = target.lanes(4)
    v, body = f"<{lanes} x float>", []
    for u in range(_UNROLL):
        body.append(f"""
  %o{u} = add i64 %i, {u * lanes}
  %p{u} = getelementptr float, ptr %x, i64 %o{u}
  %q{u} = getelementptr float, ptr %y, i64 %o{u}
  %a{u} = load {v}, ptr %p{u}, align 64
  %b{u} = load {v}, ptr %q{u}, align 64
  %s{u} = fadd {v} %a{u}, %b{u}
  store {v} %s{u}, ptr %q{u}, align 64""")
    return f"""
define void @stream(ptr %x, ptr %y, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{"".join(body)}
  %j = add i64 %i, {_UNROLL * lanes}
  %c = icmp slt i64 %j, %n
  br i1 %c, label %loop, label %done
done:
  ret void
}}"""


def measure(nbytes: int) -> float:
    """GB/s of y = y + x on float32 arrays of `nbytes` together; the best of several runs.

    Two reads and a write are counted; whether the data stays in a cache is decided by its size.
    """
    target = host()
    address = linker(target).add("stream", emit.emit((_source(target),), "stream", target))
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    step = _UNROLL * target.lanes(4)
    n = max(nbytes // 8 // step, 1) * step
    memory = np.zeros(2 * n + 32, np.float32)
    x = -(-memory.ctypes.data // 64) * 64
    best = float("inf")
    for _ in range(max(10, min(1000, (1 << 30) // (12 * n)))):
        start = time.perf_counter()
        run(x, x + 4 * (-(-n // 16) * 16), n)
        best = min(best, time.perf_counter() - start)
    return 12 * n / best / 1e9
