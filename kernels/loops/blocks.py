"""Blocks that kernels on flat tensors are cut into, each found by its number.

A kernel that updates a parameter walks its elements and its gradient's in one order.  Told
tile i of n it works on block i, and the last block may be shorter than the others:

    adam(block=64)(p, g, m, v)    cut into n tiles    adam(block=b)(p, g, m, v) of [i b, (i + 1) b)

The pointers stay on the whole, also where a thread keeps one block of an operand alone:
that pointer moves back by a block from tile to tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.vocabulary.tiling import Tiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks(Tiling):
    """A call that is cut into blocks of units; its `rows` are the units, the last may be shorter.

    unit: elements of a unit; a block has whole ones.
    at: the position of the number that says how long a block is; the kernel shares its work by
        `share_blocks` of this length.
    per: that number for a block of one unit.
    """

    unit: int
    at: int
    per: int = 1
