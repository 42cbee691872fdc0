"""Tiles of rows that kernel calls are cut into: declared by kernels, used by the planner.

A call walks rows in the order in which they lie in memory, so an even part of the rows is an even
part of the bytes of each operand that has them.  The call for one of `n` tiles is the same kernel
with pointers that have moved to the tile and with other numbers:

    map(rows=25088)(x, mean, y)    cut into 56 tiles    map(rows=448)(x + i X, mean, y + i Y)

A kernel that needs to know where in the image a row is, because it reads its neighbours, is called
with the pointers and the numbers of the whole, and the number of the tile instead of a thread's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tiling:
    """The cut of the rows of one call.

    rows: how many there are; each tile has an equal part.
    steps: of each pointer the bytes from row to row; 0 where all rows use the same, and for scratch
        memory, which is the same for each thread.
    counts: the positions of the numbers of the call that are as many times smaller for a tile.
    fixed: the numbers that are others for a tile, by position.
    numbered: whether tiles are found by their number, see above; nothing is counted then.
    parts: the pointer to partial results, one from each tile, and the bytes of one.
    sums: the pointer to sums to which each tile adds; each thread has its own, of so many bytes.
    clears: the numbers of the call, by position, that makes these sums 0 before; those that are
        None are multiplied by the number of threads.
    """

    rows: int
    steps: tuple[int, ...]
    counts: tuple[int, ...] = ()
    fixed: Mapping[int, int] = field(default_factory=dict)
    numbered: bool = False
    parts: tuple[int, int] | None = None
    sums: tuple[int, int] | None = None
    clears: Mapping[int, int | None] = field(default_factory=dict)
