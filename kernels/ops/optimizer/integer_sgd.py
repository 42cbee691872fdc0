"""Gradient descent for parameters that are stored as integers, without float masters.

Step      q = clip(q + floor(u - r d)), d = k g + wd q, u uniform in [0, 1): rounded by chance, with
          the mean q - r d.  Rounding to nearest would lose every step of less than half an integer,
          as nearly all are
Gradient  g is dL/dw / s of w = s (q - z): graphs/offline/integer_training.py
Random    u is Philox2x32-10 of the element, the step and the node, as in noise.py: the same with
          any number of threads
Limits    the ends of the type, but -127 for i8, as in quantised files; a -128 in one may stay
Error     r d has one rounding of float32, of float64 for i32; u has 24 bits.  An element whose
          gradient is not a number stays
Source    Lin et al., "On-device training under 256KB memory", NeurIPS 2022; Gupta et al., "Deep
          learning with limited numerical precision", ICML 2015
"""

from __future__ import annotations

import zlib

import numpy as np

from engine.base.element_types import NUMPY, TRAINED_INTEGERS
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.clipping import LINE
from engine.kernels.ops.optimizer.node import OptimizerNode
from engine.kernels.ops.optimizer.ranges import TABLE, TABLES, part, ranges_reach
from engine.kernels.vocabulary.kernel import Body, kernel, off, share_blocks
from engine.kernels.vocabulary.row_program import loop


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


def update_integers(node: OptimizerNode) -> None:
    """Call the kernel for the parameters of a node, which are integers."""
    ranges, (clips, signalled) = node.merge_ranges(), node.flags
    node.lowering.call(
        integer_sgd(node.T), lr=node.lr, step=node.step, p=node.p, g=node.g, clip=node.clip,
        signal=node.signal, ranges=node.pack_ranges(ranges), count=len(ranges),
        total=sum(n for _, n in ranges), block=LINE, clips=clips, signalled=signalled,
        scale=node.scale, decay=node.real("weight_decay"),
        node=zlib.crc32(node.lowering.site.name.encode()),
    )  # fmt: skip
