"""Results of optimised code: fixed before a library reduces kernels to the calls of its plans."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from engine.kernels.binaries.load import BITCODE, get_codes
from engine.kernels.compiler import emit, lower
from engine.kernels.compiler.calls import Address, Calls, Kind, RecordField
from engine.kernels.compiler.results import fix_results
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.vocabulary.kernel import Body, Intrinsic, kernel
from engine.plan.plan import KernelSpec
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.plans import list_artifacts, make_plans
from engine.tools.trimmed.records import encode_word
from engine.tools.trimmed.targets import resolve
from tests.support.builds import compile_c, needs_cc
from tests.support.places import GOLDENS

BEFORE = """\
define float @f(float %a, float %b, <2 x float> %v, ptr %p) {
  %1 = fmul reassoc nsz arcp contract float %a, %b
  %2 = fadd reassoc nsz arcp contract float %1, %a
  %3 = fmul contract float %a, %2
  %4 = fsub contract float %b, %3
  %5 = fmul contract float %a, %4
  %6 = fsub contract float %5, %b
  %7 = fmul contract <2 x float> %v, <float 1.0, float 2.0>
  %8 = fadd contract <2 x float> <float 3.0, float 4.0>, %7
  %9 = call reassoc nsz arcp contract float @llvm.vector.reduce.fadd.v2f32(float %6, <2 x float> %8)
  %10 = fmul contract float %9, %a
  %11 = fadd contract float %10, %10
  %12 = fmul contract float %11, %b
  br label %next

next:
  %13 = fadd contract float %12, %a
  %14 = fdiv arcp contract float %13, 3.0
  ret float %14
}

declare float @llvm.vector.reduce.fadd.v2f32(float, <2 x float>)
"""
V2 = "<2 x float>"
AFTER = f"""\
define float @f(float %a, float %b, {V2} %v, ptr %p) {{
  %1 = fmul float %a, %b
  %2 = call float @llvm.fma.f32(float %a, float %b, float %a)
  %3 = fmul float %a, %2
  %less.4 = fneg float %a
  %4 = call float @llvm.fma.f32(float %less.4, float %2, float %b)
  %5 = fmul float %a, %4
  %less.6 = fneg float %b
  %6 = call float @llvm.fma.f32(float %a, float %4, float %less.6)
  %7 = fmul {V2} %v, <float 1.0, float 2.0>
  %8 = call {V2} @llvm.fma.v2f32({V2} %v, {V2} <float 1.0, float 2.0>, {V2} <float 3.0, float 4.0>)
  %9 = call reassoc nsz arcp contract float @llvm.vector.reduce.fadd.v2f32(float %6, {V2} %8)
  %10 = fmul float %9, %a
  %11 = fadd float %10, %10
  %12 = fmul float %11, %b
  br label %next

next:
  %13 = fadd float %12, %a
  %14 = fdiv float %13, 3.0
  ret float %14
}}

declare float @llvm.vector.reduce.fadd.v2f32(float, {V2})

declare float @llvm.fma.f32(float, float, float)
declare {V2} @llvm.fma.v2f32({V2}, {V2}, {V2})
"""


def test_flags_become_what_the_code_generator_makes_of_them() -> None:
    after = fix_results(BEFORE, ["f32"])
    assert after.split() == AFTER.split()
    llvm.parse_assembly(after, llvm.create_context()).verify()


def test_without_an_instruction_for_both_only_contract_is_left() -> None:
    after = fix_results(BEFORE, [])
    sums = [line for line in after.split("\n") if "vector.reduce" not in line]
    assert not any(flag in "\n".join(sums) for flag in ("reassoc", "arcp", "nsz"))
    assert after.count(" contract ") == BEFORE.count(" contract ")
    assert "llvm.fma" not in after


def test_a_type_without_such_an_instruction_is_not_fused() -> None:
    wide = BEFORE.replace("float", "double").replace("v2f32", "v2f64")
    assert "llvm.fma.f64" in fix_results(wide, resolve("raspberrypi4").target.fused)
    assert "llvm.fma" not in fix_results(wide, resolve("rv32imafc").target.fused)


@pytest.mark.parametrize("target", ["native", "raspberrypi4"])
def test_nothing_in_the_kernels_of_a_build_has_a_free_order(target: str) -> None:
    """Of an operation that passes may reorder when they reduce kernels to calls, none is left."""
    chip = resolve(target).target
    planned = make_plans(list_artifacts(GOLDENS / "cnn"), chip, PlanRequest([2]))
    codes = get_codes(planned.list_kernels(), chip, BITCODE)
    assert len(codes) > 5
    for symbol, code in codes.items():
        text = str(llvm.parse_bitcode(code, llvm.create_context()))
        free = [
            line
            for line in text.split("\n")
            if any(f" {flag} " in line for flag in ("reassoc", "nsz", "arcp", "contract", "fast"))
            and "@llvm.vector.reduce." not in line
        ]
        assert not free, (symbol, free[:3])


@kernel("x: T[3]  y: out T[2]  divisor: i64  mode: i64", T=("f32",))
def shares(target: Target, T: str) -> Body:
    """y = x[0] / divisor, and x[1] x[2], to which mode 1 adds x[0]; for this test."""
    cast = Intrinsic("cast", (T, "i64"))

    def body(x, y, divisor, mode, tid, nthreads):
        y[0] = x[0] / cast(divisor)
        product = x[1] * x[2]
        if mode == 1:
            product += x[0]
        y[1] = product

    return body


SHIM = """
typedef void (*kernel)(const void *words, long long tid, long long n);
extern const kernel table[] __attribute__((visibility("hidden")));
void shares(const void *words, long long tid, long long n);
void run_engine(const void *words) { shares(words, 0, 1); }
void run_library(const void *words) { table[0](words, 0, 1); }
"""


def make_calls(
    symbol: str, pointers: int, words: int, known: Mapping[int, int | float]
) -> list[Calls]:
    """Calls whose records have 8 bytes for each word that is not known, in order."""
    zero, places = RecordField(), iter(range(0, 8 * words, 8))
    called: list[RecordField | Address] = []
    for i in range(words):
        value = known.get(i)
        if value is None:
            field = RecordField(0, 1, 8, next(places))
        else:
            field = RecordField(encode_word(value))
        kinds: tuple[Kind, ...] = ("memory",) if value is None else ("none",)
        called.append(Address(kinds, zero, field, zero, zero) if i < pointers else field)
    return [Calls(symbol, f"{symbol}.called", called, next(places, 8 * words), alone=True)]


def test_attention_is_reduced_to_its_calls() -> None:
    """With the words of MiniLM at batch 1, for a Pi 4: a pass of LLVM ended the process."""
    target = resolve("raspberrypi4").target
    spec = KernelSpec("attention", ("f32",))
    known: dict[int, int | float] = dict.fromkeys(range(38, 79), 0)
    known |= {56: -(1 << 40), 57: 1 << 40, 58: 1, 72: 64, 73: 128}
    known |= {9: 0.1767766922712326, 10: 0.0, 11: -math.inf, 12: 0.0, 13: 1, 14: 12, 15: 12}
    known |= {16: 128, 17: 128, 18: 32, 19: 32, 74: 1, 79: 28928, 35: 49152, 3: 0, 4: 0, 5: 0}
    for first in range(20, 33, 3):
        known |= {first: 49152, first + 1: 32, first + 2: 384}
    del known[33], known[34]
    calls = make_calls(spec.symbol, 9, 80, known)
    codes = get_codes([spec], target, BITCODE)
    assert emit.emit_library(codes, "table", {}, target, calls=calls, has_threads=False)


@needs_cc
def test_a_kernel_reduced_to_its_calls_computes_the_same_bits(tmp_path: Path) -> None:
    """Words that a library knows would make quotients products, and fuse sums across blocks."""
    host = detect_host()
    texts = lower.lower(shares, ("f32",), "shares", host)
    code = emit.optimize(texts, "shares", host)
    calls = make_calls("shares", 2, 4, {2: 49, 3: 1})
    (tmp_path / "engine.o").write_bytes(emit.emit_object(code, host))
    (tmp_path / "library.o").write_bytes(
        emit.emit_library({"shares": code}, "table", {}, host, calls=calls)
    )
    (tmp_path / "shim.c").write_text(SHIM)
    objects = [tmp_path / name for name in ("shim.c", "engine.o", "library.o")]
    made = ctypes.CDLL(str(compile_c(tmp_path / "both.so", "-shared", "-fPIC", *objects)))
    x = np.random.default_rng(0).standard_normal((100, 3)).astype(np.float32)
    results = np.zeros((2, len(x), 2), np.float32)
    for run, rows in zip((made.run_engine, made.run_library), results, strict=True):
        for row, y in zip(x, rows, strict=True):
            words = np.array([row.ctypes.data, y.ctypes.data, 49, 1])
            call = np.array([0, words.ctypes.data, 0, 0])  # base, record, tile, thread
            given = call if run is made.run_library else words
            run(given.ctypes.data_as(ctypes.c_void_p))
    assert results[0].all()
    assert results[0].tobytes() == results[1].tobytes()
