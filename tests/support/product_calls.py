"""Calls of lowerings that run at once on arrays, for products whose types no graph has yet."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import ITEMSIZE, NUMPY
from engine.kernels.binaries.load import Linker, get_object
from engine.kernels.machine.target import Target
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.call import KernelCall, Machine, reach_into
from engine.kernels.vocabulary.op import Operand, TensorType
from engine.plan.plan import KernelSpec
from engine.plan.words import Packed
from tests.support.tile_unit import TileTarget, emit_emulated

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_LINKERS: dict[Target, Linker] = {}
_ADDRESSES: dict[tuple[KernelSpec, Target], int] = {}
MARGIN = 64  # elements after an array that must stay as they are


def store_as(x: Array, T: str) -> Array:
    """Return floats as they are stored as T, rounded to nearest, ties to even: bf16 as integers."""
    if T != "bf16":
        with np.errstate(over="ignore"):  # to infinity
            return x.astype(NUMPY[T])
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def get_array_type(T: str) -> type[np.generic]:
    """Return the type of arrays that hold elements T, of bf16 their bits."""
    kind: type[np.generic] = np.uint16 if T == "bf16" else NUMPY[T]
    return kind


def load_as(x: Array, T: str) -> Array:
    """Return the float64 of what is stored as T."""
    if T == "bf16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


class Calls:
    """A lowering of one node whose calls run when they are made, thread after thread."""

    def __init__(self, target: Target, threads: int, precision: str) -> None:
        self.target, self.threads, self.precision = target, threads, precision
        self.arrays: dict[str, Array] = {}
        self.kernels: list[KernelSpec] = []

    def put(self, name: str, x: Array, T: str) -> Operand:
        """Return an operand of this content; after it no memory is read or changed unseen."""
        self.arrays[name] = self._make_room(x.size, T)
        self.arrays[name][: x.size] = x.reshape(-1)
        return Operand(name, TensorType(T, x.shape))

    def get(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return the content of an operand, whose margin nobody has touched."""
        arrays, size = self.arrays[name], int(np.prod(shape))
        fresh = self._make_room(0, "f32").view(np.uint8)[: MARGIN * arrays.itemsize]
        np.testing.assert_array_equal(arrays[size:].view(np.uint8), fresh)
        return arrays[:size].reshape(shape)

    def _make_room(self, size: int, T: str) -> Array:
        """Return memory whose every bit is set: NaN in each type."""
        return np.full((size + MARGIN) * ITEMSIZE[T], 0xFF, np.uint8).view(get_array_type(T))

    def keeps(self, operand: Operand, *, forever: bool = False) -> bool:
        return False

    def temp(self, dtype: str, shape: tuple[int, ...]) -> Operand:
        return self.put(
            f"temp {len(self.arrays)}", np.full(shape, np.nan, get_array_type(dtype)), dtype
        )

    def call(self, kernel: Any, **named: Operand | int | Packed | None) -> None:
        spec, template = KernelSpec(*kernel), list_templates()[kernel[0]]
        self.kernels.append(spec)
        values = {n: list(v.values) if isinstance(v, Packed) else v for n, v in named.items()}
        words: list[int] = []
        for p in template.parameters:
            value = values[p.name]
            if isinstance(value, Operand):
                words.append(self.arrays[value.name].ctypes.data)
            else:
                words += value if isinstance(value, list) else [int(value or 0)]
        numbers = words[len(template.order.pointers) :]
        self._check(spec, named, numbers)
        held = np.array(words, np.int64)
        entry = self.enter(spec)
        for tid in range(self.threads):
            entry(held.ctypes.data, tid, self.threads)

    def _check(self, spec: KernelSpec, named: dict[str, Any], numbers: list[int]) -> None:
        """Compare what the kernel declares to touch with what there is."""
        machine, template = Machine.of(self.target), list_templates()[spec.template]
        actual = KernelCall(template, spec.params, numbers, self.threads, machine).reach()
        takes = dict(zip((p.name for p in template.order.pointers), template.takes(*spec.params),
                         strict=False))  # fmt: skip
        for p in template.order.pointers:
            operand = named[p.name]
            size = operand.type.size if operand else 0
            assert reach_into(actual, p.name) <= size, p.name
            assert operand is None or takes[p.name] == f"{operand.type.dtype}*"

    def enter(self, spec: KernelSpec) -> Callable[[int, int, int], None]:
        """Return a kernel: it takes the address of its words, tid and nthreads."""
        key = spec, self.target
        if key not in _ADDRESSES:
            linker = _LINKERS.setdefault(self.target, Linker(self.target))
            make = emit_emulated if isinstance(self.target, TileTarget) else get_object
            _ADDRESSES[key] = linker.add(spec.symbol, make(spec, self.target))
        return _ENTRY(_ADDRESSES[key])
