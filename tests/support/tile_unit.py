"""An emulated unit of tile registers (AMX), for kernels on CPUs that have none.

Kernels are made for a target with tile registers, and then functions of this file take the place of
LLVM's intrinsics.  So the order of instructions, the shapes, addresses and strides are the kernel's
own, and any CPU can run them.

Source: Intel, "Architectures Software Developer's Manual", volume 2: LDTILECFG, TDPBF16PS,
TILELOADD and TILESTORED, with the exceptions that they raise.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, field, replace
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from engine.base.aliases import Array
from engine.kernels.binaries.load import get_bitcode
from engine.kernels.compiler import emit
from engine.kernels.machine.levels import list_levels
from engine.kernels.machine.target import Target
from engine.plan.plan import KernelSpec
from tests.support.pairs import FactorTarget

MOST_ROWS, MOST_BYTES, COUNT = 16, 64, 8
SMALLEST = np.float32(2.0**-126)
BYTE, ADDRESS, STRIDE = ctypes.c_uint8, ctypes.c_void_p, ctypes.c_int64


class TileTarget(FactorTarget):
    """A CPU as kernels for tile registers see it; the rest of them is compiled for this one."""

    @property
    def has_tile_registers(self) -> bool:
        return True


def make_tile_target(kc: int) -> TileTarget:
    """Return a target with short blocks of K, whose vectors LLVM splits if they are too wide."""
    host = list_levels()[-1].make_target()
    facts = replace(host, vector=64, nv=4, kc=kc, masks=True)
    return TileTarget(**{name: getattr(facts, name) for name in Target.__dataclass_fields__})


def emit_emulated(spec: KernelSpec, target: Target) -> bytes:
    """Return the object of a kernel that calls `UNIT` where it has instructions for tiles."""
    text = str(llvm.parse_bitcode(get_bitcode(spec, target), llvm.create_context()))
    for name, entry in list_entries().items():
        llvm.add_symbol(f"emulated_{name}", ctypes.cast(entry, ADDRESS).value)
        text = text.replace(f"@llvm.x86.{name}(", f"@emulated_{name}(")
    text = text.replace("i8 immarg", "i8")
    return emit.emit_object(llvm.parse_assembly(text, llvm.create_context()).as_bitcode(), target)


@dataclass
class TileUnit:
    """Eight tile registers, and a count of products.

    tallest: the rows of the first register, in any configuration so far.
    faults: why a CPU would have stopped the program.
    """

    shapes: list[tuple[int, int]] | None = None
    registers: dict[int, Array] = field(default_factory=dict)
    products: int = 0
    tallest: int = 0
    faults: list[str] = field(default_factory=list)

    def configure(self, at: int) -> None:
        raw = ctypes.string_at(at, MOST_BYTES)
        widths, heights = np.frombuffer(raw, "<u2", 16, 16).tolist(), raw[48:64]
        self._require(raw[0] == 1, "the palette is 1")
        self._require(not any(raw[1:16]), "reserved bytes are 0")
        self._require(not any((*widths[COUNT:], *heights[COUNT:])), "there are eight registers")
        self.shapes = list(zip(heights[:COUNT], widths[:COUNT], strict=True))
        for rows, width in self.shapes:
            self._require(rows <= MOST_ROWS and width <= MOST_BYTES, "a register has 16 x 64 bytes")
            self._require((rows == 0) == (width == 0), "both sizes are 0, or none is")
        self.tallest = max(self.tallest, heights[0])
        self.registers = {n: np.zeros(shape, np.uint8) for n, shape in enumerate(self.shapes)}

    def release(self) -> None:
        self.shapes, self.registers = None, {}

    def clear(self, n: int) -> None:
        self._find(n)[:] = 0

    def load(self, n: int, at: int, stride: int) -> None:
        for r, row in enumerate(self._find(n)):
            row[:] = np.frombuffer(ctypes.string_at(at + r * stride, len(row)), np.uint8)

    def store(self, n: int, at: int, stride: int) -> None:
        for r, row in enumerate(self._find(n)):
            ctypes.memmove(at + r * stride, row.tobytes(), len(row))

    def multiply(self, c: int, a: int, b: int) -> None:
        sums, left, right = (self._find(n) for n in (c, a, b))
        self._require(len({a, b, c}) == 3, "three registers")
        self._require(len(sums) == len(left), "C and A have as many rows")
        self._require(sums.shape[1] == right.shape[1], "C and B have rows of a length")
        self._require(left.shape[1] == 4 * len(right), "A has a word for each row of B")
        x = _widen(left).reshape(len(left), -1, 2)
        y = _widen(right).reshape(len(right), -1, 2)
        halves = np.zeros((2, len(sums), sums.shape[1] // 4), np.float32)
        with np.errstate(all="ignore"):
            for p in range(len(right)):  # a product of bf16 is exact in float32
                for half in (0, 1):
                    more = np.outer(x[:, p, half], y[p, :, half])
                    halves[half] = _flush(halves[half] + more)
            total = _flush(sums.view(np.float32) + _flush(halves[0] + halves[1]))
        sums[:] = total.view(np.uint8)
        self.products += 1

    def _find(self, n: int) -> Array:
        self._require(self.shapes is not None, "there is a configuration")
        return self.registers[n]

    def _require(self, holds: bool, rule: str) -> None:
        if not holds:
            self.faults.append(rule)
            raise ValueError(rule)


def _widen(words: Array) -> Array:
    """Return the float32 of factors; subnormal ones count as 0."""
    return _flush((words.view("<u2").astype(np.uint32) << 16).view(np.float32))


def _flush(x: Array) -> Array:
    return np.where(np.abs(x) < SMALLEST, np.float32(0), x)


UNIT = TileUnit()


@functools.cache
def list_entries() -> dict[str, Any]:
    """Return the instructions of `UNIT` by their names, as functions that machine code can call."""
    rows: dict[str, tuple[Any, ...]] = {
        "ldtilecfg": (UNIT.configure, ADDRESS),
        "tilerelease": (UNIT.release,),
        "tilezero": (UNIT.clear, BYTE),
        "tileloadd64": (UNIT.load, BYTE, ADDRESS, STRIDE),
        "tilestored64": (UNIT.store, BYTE, ADDRESS, STRIDE),
        "tdpbf16ps": (UNIT.multiply, BYTE, BYTE, BYTE),
    }
    return {name: ctypes.CFUNCTYPE(None, *kinds)(run) for name, (run, *kinds) in rows.items()}
