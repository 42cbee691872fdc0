"""Half floats are rounded alike wherever a kernel stores or packs them: over all their patterns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.base.aliases import Array
from engine.kernels.loops.gemm import lower_gemm
from engine.kernels.loops.map import map as map_kernel
from engine.kernels.loops.map import map_words
from engine.kernels.machine.levels import list_levels
from engine.kernels.machine.target import Target, detect_host
from engine.plan.plan import KernelSpec
from tests.support.product_calls import Calls, get_array_type, load_as, store_as

TARGETS = [detect_host(), *(level.make_target() for level in list_levels()[1:])]
LEAST = {"bf16": 2.0**-126, "f16": 2.0**-149}  # what x86's instruction for bf16 takes for 0 is less


def patterns() -> Array:
    """Every upper half of a float32, with lower halves at and beside what rounds, and some more."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, np.uint32)
    actual: Array = np.concatenate([(upper[:, None] | lower).ravel(), drawn]).view(np.float32)
    return actual


def convert(target: Target, x: Array, S: str, T: str) -> Array:
    """Return elements of type S as a map stores them as T."""
    program = f"a:{S}[] -> y:{T}[] = a"
    made = np.zeros(x.shape, get_array_type(T))
    words = map_words(program, 0).pack(dims=(), steps=(), rows=1, n=x.size, by_columns=0)
    held = np.array([x.ctypes.data, made.ctypes.data, *words.values], np.int64)
    Calls(target, 1, "f32").enter(KernelSpec(*map_kernel(program, 0)))(held.ctypes.data, 0, 1)
    return made


def assert_same(made: Array, expected: Array, T: str) -> None:
    """Equal bits, except for the sign of 0 and the payload of NaN."""
    x, y = load_as(made, T), load_as(expected, T)
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("T", ["bf16", "f16"])
def test_a_map_and_a_product_round_alike(target: Target, T: str) -> None:
    x = patterns()
    stored = convert(target, x, "f32", T)
    calls: Any = Calls(target, 1, T)
    nil, bias = calls.put("a", np.zeros((1, 1), np.uint16), T), calls.put("bias", x, "f32")
    row = calls.put("b", np.zeros((1, x.size), np.float32), "f32")
    y = calls.put("y", np.zeros((1, x.size), get_array_type(T)), T)
    lower_gemm(calls, nil, row, y, mnk=(1, x.size, 1), bias=bias)
    assert_same(calls.get("y", (x.size,)), stored, T)
    if T in target.products:
        a, one = calls.put("x", x[:, None], "f32"), calls.put("one", np.ones((1, 1), "f4"), "f32")
        made = calls.put("made", np.zeros((x.size, 1), "f4"), "f32")
        lower_gemm(calls, a, one, made, mnk=(x.size, 1, 1))
        np.testing.assert_array_equal(calls.get("made", x.shape), load_as(stored, T))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("T", ["bf16", "f16"])
def test_what_is_stored_is_the_nearest(target: Target, T: str) -> None:
    x = patterns()
    made = convert(target, x, "f32", T)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = store_as(x, T)
        if T in target.products:
            expected[np.abs(x) < LEAST[T]] = 0
    finite = ~np.isnan(x)
    assert_same(made[finite], expected[finite], T)
    assert np.isnan(load_as(made[~finite], T)).all()


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("T", ["bf16", "f16"])
def test_all_that_is_stored_is_read_exactly(target: Target, T: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).view(get_array_type(T))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(convert(target, bits, T, "f32"), load_as(bits, T))
