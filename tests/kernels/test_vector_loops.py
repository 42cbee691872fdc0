"""Vector loops: what LLVM makes of them, and the elements that fill no vector."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from engine.kernels.binaries.load import get_linker
from engine.kernels.compiler import emit, lower
from engine.kernels.loops import map as maps
from engine.kernels.machine.levels import LEVELS, Level
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.vocabulary.kernel import Body, Template, kernel
from engine.kernels.vocabulary.row_program import loop

HOST = detect_host()
WITHOUT_MASKS = replace(HOST, masks=False)
FORMULA = "exp(x) / (1.0 + x * x) - where(x > w, tanh(w), log(x * x + w))"
TRAINED = "a:f32[] b:f32[] -> y:f32[] = where(gt(a,0),b,0)"  # the gradient of Relu


@kernel("x, w, y: update T[n]  n: i64", T=("f32", "f64"))
def compute_formula(target: Target, T: str) -> Body:
    """y = formula(x, w); for these tests."""
    run = loop(T, f"x[] w[] -> y[] = {FORMULA}")

    def body(x: Any, w: Any, y: Any, n: int, tid: int, nthreads: int) -> None:
        run(x, w, y, n)

    return body


@kernel("x, w, y: update T[n]  n: i64", T=("i32",))
def divide_whole(target: Target, T: str) -> Body:
    """y = x / w of integers, whose lanes outside an array would divide by 0; for these tests."""
    run = loop(T, "x[] w[] -> y[] = x / w")

    def body(x: Any, w: Any, y: Any, n: int, tid: int, nthreads: int) -> None:
        run(x, w, y, n)

    return body


def optimize(template: Template, params: tuple[str | int, ...], target: Target) -> bytes:
    texts = lower.lower(template, params, template.name, target)
    return emit.optimize(texts, template.name, target)


def count_writes(bitcode: bytes) -> list[str]:
    """The instructions of a kernel that write memory: of elements, vectors, parts of vectors."""
    module = llvm.parse_bitcode(bitcode, llvm.create_context())
    lines = [
        str(i) for f in module.functions for b in f.blocks for i in b.instructions
        if i.opcode == "store" or "@llvm.masked.store" in str(i)
    ]  # fmt: skip
    return sorted("part" if "masked" in x else "vector" if "store <" in x else "one" for x in lines)


@pytest.mark.parametrize("level", [level for level in LEVELS if level.make_target("linux").masks])
def test_a_map_writes_vectors_and_parts_of_them(level: Level) -> None:
    """Of a loop over single elements LLVM would make three loops."""
    target = level.make_target("linux")
    assert count_writes(optimize(maps.map, (TRAINED, 0), target)) == ["part", "vector"]


@pytest.mark.parametrize("T", ["f32", "f64", "i32"])
def test_the_last_elements_are_the_same_bits_with_and_without_masks(T: str) -> None:
    template = divide_whole if T == "i32" else compute_formula
    runs = []
    for target in (HOST, WITHOUT_MASKS):
        code = emit.emit_object(optimize(template, (T,), target), target)
        address = get_linker(target).add(template.name, code)
        runs.append(ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(address))
    random = np.random.default_rng(0)
    for n in range(70):
        x, w = (random.normal(1, 3, n + 1).astype(T.replace("i", "int").replace("f", "float"))
                for _ in range(2))  # fmt: skip
        if T == "i32":
            x, w = np.arange(n + 1, dtype=np.int32) * 7, np.full(n + 1, 3, np.int32)
        made = []
        for run in runs:
            y = np.full_like(x, 77)
            words = np.array([x.ctypes.data, w.ctypes.data, y.ctypes.data, n])
            run(words.ctypes.data, 0, 1)
            assert y[n] == 77
            made.append(y.tobytes())
        assert made[0] == made[1]
        if T == "i32":
            assert made[0] == np.append(x[:n] // 3, np.int32(77)).tobytes()


@kernel("x: T[n]  y: out T[n]  n: i64", T=("f32",))
def add_one(target: Target, T: str) -> Body:
    """y = x + 1 in a loop over elements; for these tests."""

    def body(x: Any, y: Any, n: int, tid: int, nthreads: int) -> None:
        for i in range(n):
            y[i] = x[i] + 1

    return body


def test_a_loop_over_elements_is_made_one_over_vectors() -> None:
    assert "vector" in count_writes(optimize(add_one, ("f32",), HOST))
