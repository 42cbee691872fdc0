"""Gradient descent for parameters that are stored as integers, without float masters.

Step      q = clip(q + floor(u - r d)), d = k g + wd q, u uniform in [0, 1): rounded by chance, with
          the mean q - r d.  Rounding to nearest would lose every step of less than half an integer,
          as nearly all are
Gradient  g is dL/dw / s of w = s (q - z): graphs/offline/integer_training.py
Random    u is Philox2x32-10 of the element, the step and the node, as in noise.py: the same with
          any number of threads
Limits    the ends of the type, but -127 for i8, as in quantised files; a -128 in one may stay
Nibbles   integers of 4 bits lie two to a byte, the first in the lower half: from -7 to 7 in i8, 0
          to 15 in u8; g has an element for each, twice as many along its last axis as p has bytes
Error     r d has one rounding of float32, of float64 for i32; u has 24 bits.  An element whose
          gradient is not a number stays
Source    Lin et al., "On-device training under 256KB memory", NeurIPS 2022; Gupta et al., "Deep
          learning with limited numerical precision", ICML 2015
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from engine.base.element_types import NUMPY, TRAINED_INTEGERS
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.clipping import LINE
from engine.kernels.ops.optimizer.node import OptimizerNode
from engine.kernels.ops.optimizer.ranges import TABLE, TABLES, find_ends, part, ranges_reach
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    Body,
    Intrinsic,
    imin,
    kernel,
    off,
    share_blocks,
)
from engine.kernels.vocabulary.row_program import loop

TILE = 256  # bytes whose nibbles are updated at a time
_HALF = 8  # of the values of a nibble


@kernel(
    f"""
    lr: f32[1]   step: i64[1]   p: update T[...]   g: f32[...]   clip: f64[1] if clips
    signal: b1[1] if signalled   {TABLE}
    count, total: i64   block: i64 where block >= 1   clips, signalled: i64   scale: f64
    decay: f64   node: any i64
    """,
    words=TABLES,
    reach=ranges_reach,
    T=TRAINED_INTEGERS,
)
def integer_sgd(target: Target, T: str) -> Body:
    """p = clip(p + floor(u - lr (g + decay p))), u random; do nothing where the signal is false."""
    # A bias of 32 bits has more digits than float32.
    real, limits = "f64" if T == "i32" else "f32", np.iinfo(NUMPY[T])
    low, high = max(int(limits.min), -int(limits.max)), int(limits.max)
    update = loop(
        real,
        f"""element:u32.. step:u32 key:u32 rate k decay p:{T}[] g:f32[] ->
        u = cast({real}, philox0(element, step, key) >> 8) * 5.9604644775390625e-08;
        q = cast({real}, p); d = rate * (cast({real}, g) * k + decay * q);
        moved = q + where(isnan(d), 0.0, floor(u - d));
        p:{T}[] = cast({T}, max(min(moved, {high}.0), min({low}.0, q)))""",
    )

    def body(
        lr, step, p, g, clip, signal, ranges, count, total, block, clips, signalled, scale, decay,
        node, tid, nthreads,
    ):  # fmt: skip
        if signalled == 0 or signal[0] != 0:
            k = clip[0] if clips != 0 else 1.0
            rate = lr[0] * scale
            first, last = share_blocks(total, block, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += off(ranges.ranges, r).size
                if n > 0:
                    update(i, step[0], node, rate, k, decay, off(p, i), off(g, i), off(p, i), n)

    return body


def _nibble_reach(c: KernelCall) -> Reach:
    end, _ = find_ends(c)
    return {"p": end, "g": 2 * end}


@kernel(
    f"""
    lr: f32[1]   step: i64[1]   p: update u8|i8[...]   g: T[...]   clip: f64[1] if clips
    signal: b1[1] if signalled   {TABLE}   work: scratch T[threads, {2 * TILE}]
    halves: scratch u8[threads, {2 * TILE}]
    count, total: i64   block: i64 where block >= 1   clips, signalled: i64   scale: f64
    decay: f64   node: any i64   flip: i64 where flip <= {_HALF}
    """,
    words=TABLES,
    reach=_nibble_reach,
    T=("f32",),
)
def nibble_sgd(target: Target, T: str) -> Body:
    """p = clip(p + floor(u - lr (g + decay p))) of the nibbles of p, u random; do nothing where the
    signal is false.

    flip: 8 where they are signed, from -7 to 7; 0: from 0 to 15.  Ranges are of bytes.
    """
    unpack, real = Intrinsic("unpack", (T, 4)), Intrinsic("cast", (T, "i64"))
    update = loop(
        T,
        f"""element:u32.. step:u32 key:u32 rate k decay low high q[] g[] ->
        u = cast({T}, philox0(element, step, key) >> 8) * 5.9604644775390625e-08;
        d = rate * (g * k + decay * q);
        moved = q + where(isnan(d), 0.0, floor(u - d));
        kept = max(min(moved, high), min(low, q));
        half:u8[] = cast(u8, where(kept < 0.0, kept + 16.0, kept))""",
    )

    def body(
        lr, step, p, g, clip, signal, ranges, work, halves, count, total, block, clips, signalled,
        scale, decay, node, flip, tid, nthreads,
    ):  # fmt: skip
        if signalled == 0 or signal[0] != 0:
            k = clip[0] if clips != 0 else 1.0
            rate = lr[0] * scale
            low, high = (-7, 7) if flip != 0 else (0, 15)
            q, made = off(work, tid * (2 * TILE)), off(halves, tid * (2 * TILE))
            first, last = share_blocks(total, block, tid, nthreads)
            at = 0
            for r in range(count):
                begin, n = part(ranges, r, at, first, last)
                at += off(ranges.ranges, r).size
                i = 0
                while i < n:
                    size, place = imin(n - i, TILE), begin + i
                    unpack(off(p, place), 0, q, 2 * size, flip, real(flip), real(1))
                    update(
                        2 * place, step[0], node, rate, k, decay, real(low), real(high), q,
                        off(g, 2 * place), made, 2 * size,
                    )  # fmt: skip
                    for j in range(size):
                        p[place + j] = made[2 * j] | made[2 * j + 1] << 4
                    i += size

    return body


def update_integers(node: OptimizerNode) -> None:
    """Call the kernel for the parameters of a node, which are integers of 4 bits or more."""
    ranges, (clips, signalled), lowering = node.merge_ranges(), node.flags, node.lowering
    given: dict[str, Any] = {}
    if node.g.type.size == node.p.type.size:
        chosen = integer_sgd(node.T)
    else:
        chosen, tiles = nibble_sgd("f32"), (lowering.threads, 2 * TILE)
        given = {"work": lowering.temp("f32", tiles), "halves": lowering.temp("u8", tiles)}
        given["flip"] = _HALF if node.T == "i8" else 0
    lowering.call(
        chosen, lr=node.lr, step=node.step, p=node.p, g=node.g, clip=node.clip,
        signal=node.signal, ranges=node.pack_ranges(ranges), count=len(ranges),
        total=sum(n for _, n in ranges), block=LINE, clips=clips, signalled=signalled,
        scale=node.scale, decay=node.real("weight_decay"),
        node=zlib.crc32(lowering.site.name.encode()), **given,
    )  # fmt: skip
