"""Products of 8-bit integers: how their weights are packed, and what a target multiplies.

Weights are packed once, when a graph is planned, and alike for every target.
"""

from __future__ import annotations

import numpy as np

from engine.base.aliases import Array
from engine.kernels.machine.target import Target

PANEL = 16  # columns of a panel
GROUP = 4  # steps along the sum whose factors lie together
SQUARE = 8  # steps along the sum that an instruction for squares of two rows by two columns takes
REGISTERS = 24, 12  # for sums: of targets with 32 vector registers, and with 16


def pack_panels(weights: Array) -> Array:
    """Return weights [depth, columns] in panels: [panels, groups, PANEL, GROUP], filled with 0."""
    depth, columns = weights.shape
    groups, panels = -(-depth // GROUP), -(-columns // PANEL)
    padded = np.zeros((groups * GROUP, panels * PANEL), np.int8)
    padded[:depth, :columns] = weights
    return np.ascontiguousarray(padded.reshape(groups, GROUP, panels, PANEL).transpose(2, 0, 3, 1))


def fill_panels(values: Array) -> Array:
    """Return a vector with a value for each column, up to a whole panel with 0 after the last."""
    (columns,) = values.shape
    return np.pad(values, (0, -columns % PANEL))


def find_sign(target: Target, X: str) -> str:
    """Return the type as which a target multiplies activations of the type X by int8 weights."""
    if target.dots:
        return {"vpdpbusd": "u8", "sdot": "i8", "smmla": X}[target.dots]
    return "i8" if target.by_lane else X


def find_offset(target: Target, X: str) -> int:
    """Return how much larger activations of the type X are as they are multiplied."""
    return 0 if find_sign(target, X) == X else 128 if X == "i8" else -128


def _count_registers(target: Target) -> tuple[int, int]:
    """Return the registers for sums, and those that the sums of a panel take."""
    registers = REGISTERS[0] if target.mr * target.nv > 12 else REGISTERS[1]
    return registers, PANEL * (1 if target.dots else 2) // target.lanes(4)


def count_turned(groups: int, channels: int) -> int:
    """Return the bytes that windows over each channel read: weights, starts and factors.

    They are of whole panels, and of one more for last channels that fill none.
    """
    panels = -(-channels // PANEL) + 1
    return panels * PANEL * (GROUP * groups + 8)


def takes_squares(target: Target, rows: int, k: int) -> bool:
    """Return whether a target multiplies so many rows by squares, in sums of k products.

    The panels are turned for that (`turn_panel` of vector_ir/integer_dots.py), which takes about as
    long as the products of one tile of rows.
    """
    return target.dots == "smmla" and rows >= find_shape(target)[0] and k >= SQUARE


def find_shape(target: Target) -> tuple[int, int]:
    """Return the rows and the panels of the largest register tile."""
    registers, vectors = _count_registers(target)
    panels = max(1, min(4, registers // (6 * vectors)))
    return max(1, registers // (panels * vectors)), panels
