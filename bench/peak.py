"""The machine's own limit: multiply-adds on registers alone, one thread."""

from __future__ import annotations

import ctypes
import time

from engine.kernels.compiler import emit
from engine.kernels.compiler.load import linker
from engine.kernels.target import Target, host

_ACCUMULATORS = 12  # latency times throughput of every core we know, with room


def _source(target: Target) -> str:
    lanes = target.lanes(4)
    v = f"<{lanes} x float>"
    phis = "\n".join(
        f"  %a{i} = phi {v} [ zeroinitializer, %entry ], [ %b{i}, %loop ]"
        for i in range(_ACCUMULATORS)
    )
    fmas = "\n".join(
        f"  %b{i} = call {v} @llvm.fma.v{lanes}f32({v} %a{i}, {v} %x, {v} %x)"
        for i in range(_ACCUMULATORS)
    )
    adds, last = [], "%b0"
    for i in range(1, _ACCUMULATORS):
        adds.append(f"  %s{i} = fadd {v} {last}, %b{i}")
        last = f"%s{i}"
    return f"""
declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})
define void @peak(ptr %p, i64 %n) {{
entry:
  %x = load {v}, ptr %p, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{phis}
{fmas}
  %j = add i64 %i, 1
  %c = icmp slt i64 %j, %n
  br i1 %c, label %loop, label %done
done:
{chr(10).join(adds)}
  store {v} {last}, ptr %p, align 4
  ret void
}}"""


def measure() -> float:
    """GFLOP/s of one thread on float32 multiply-adds; the best of several short runs."""
    target = host()
    code = emit.emit((_source(target),), "peak", target)
    address = linker(target).add("peak", code)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)
    data = (ctypes.c_float * 16)(*[0.5] * 16)
    count = 2_000_000
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        run(ctypes.addressof(data), count)
        best = min(best, time.perf_counter() - start)
    return 2 * target.lanes(4) * _ACCUMULATORS * count / best / 1e9
