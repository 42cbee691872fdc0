"""Targets whose plans multiply factors of 16 bits by the portable variants, on any CPU."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np

from engine.kernels.machine.target import FACTORS, Target

PAIRED = [  # targets with an instruction for products of pairs
    Target("x86_64-unknown-linux-gnu", "znver4", "+avx512bf16", 64, 6, 4),
    Target(
        "aarch64-unknown-linux-gnu", "neoverse-n2", "+bf16", 16, 8, 2, masks=False, by_lane=True
    ),
]


class FactorTarget(Target):
    """A CPU as planners see it: it multiplies factors of 16 bits, with or without instructions.

    Kernels of such plans are compiled for the CPU itself.
    """

    @property
    def products(self) -> tuple[str, ...]:
        return tuple(FACTORS)


def with_factors(target: Target) -> FactorTarget:
    """Return a target whose plans multiply factors of 16 bits."""
    return FactorTarget(**{f.name: getattr(target, f.name) for f in fields(target)})


def count_dots(code: bytes, arch: str) -> int:
    """Count the instructions of an object that sum products of pairs of bf16."""
    if arch == "x86_64":  # vdpbf16ps: EVEX, map 0F38, prefix F3, opcode 52
        matches = re.findall(rb"\x62(.)(.).\x52", code, re.DOTALL)
        return sum(p[0] & 7 == 2 and q[0] & 0x87 == 6 for p, q in matches)
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4")
    by_vector, by_lane = words & 0xFFE0FC00 == 0x6E40FC00, words & 0xFFC0F400 == 0x4F40F000
    return int((by_vector | by_lane).sum() + count_squares(code))


def count_squares(code: bytes) -> int:
    """Count the instructions `bfmmla` of an object for 64-bit Arm."""
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4")
    return int((words & 0xFFE0FC00 == 0x6E40EC00).sum())


def count_half_multiply_adds(code: bytes) -> int:
    """Count the instructions `fmla` of vectors of f16 of an object for 64-bit Arm."""
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4")
    by_vector, by_lane = words & 0xBFE0FC00 == 0x0E400C00, words & 0xBFC0F400 == 0x0F001000
    return int((by_vector | by_lane).sum())


def count_tile_products(code: bytes) -> dict[str, int]:
    """Count the instructions of an object for x86 that configure, multiply and release tiles.

    They are of VEX with 128 bits and map 0F38: the opcodes 49 without and 5C with prefix F3.
    """
    patterns = {
        "ldtilecfg": rb"\xc4[\x42\x62\xc2\xe2]\x78\x49[^\xc0]",
        "tdpbf16ps": rb"\xc4\xe2[\x42\x4a\x52\x5a\x62\x6a\x72\x7a]\x5c",
        "tilerelease": rb"\xc4\xe2\x78\x49\xc0",
    }
    return {name: len(re.findall(pattern, code, re.DOTALL)) for name, pattern in patterns.items()}
