"""Calls that convolve: forward, and back to the images.

A convolution reads images x with weights w[Co, Ci/groups, taps...] into y; `convolve_back` makes of
dy the dx, which is what a transposed convolution computes forward.  Depthwise convolutions, few
filters and Winograd's algorithm have kernels of their own; all others are matrix products.

dX by phases: input pixel i = r (mod s) sees only the taps with k d = r + p (mod s), so for each of
the s residues r it is a convolution of dY, stride 1, with these taps reversed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.base import limits
from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.contract import count_in_row
from engine.kernels.loops.window import Axes, Axis, count_parts, round_up
from engine.kernels.ops.conv import patches
from engine.kernels.ops.conv.depthwise import (
    WINDOW_KERNELS,
    channels_repeat,
    channels_sum,
    lower_depthwise,
)
from engine.kernels.ops.conv.few_channels import FEW_KERNELS, is_few, lower_few
from engine.kernels.ops.conv.filter_panels import PACK_WORDS, PANEL, conv_pack
from engine.kernels.ops.conv.patch_product import CONV_WORDS, conv
from engine.kernels.ops.conv.patches import Job
from engine.kernels.ops.conv.winograd_calls import (
    WINOGRAD_KERNELS,
    backward,
    choose_tiles,
    lower_winograd,
    may_fit,
)
from engine.kernels.vocabulary.kernel import BIAS
from engine.kernels.vocabulary.op import (
    Dim,
    Lowering,
    Operand,
    find_each_stored,
    find_stored,
    get_factors,
)

# --- jobs


def _split(m: int, n: int, mr: int, width: int, threads: int) -> tuple[int, int]:
    """Return the threads along rows and columns that leave the busiest thread the least to do.

    Gathering a block of P costs a thread as much as some 8 columns of the product.
    """

    def busiest(nt: int) -> int:
        # The time of a thread: the product of its rows and columns, and the gathering of its rows.
        rows = count_parts(count_parts(m, mr), threads // nt) * mr
        return rows * (min(count_parts(count_parts(n, width), nt) * width, n) + 8)

    nt = min(range(1, threads + 1), key=busiest)
    return threads // nt, nt


def choose_factors(lowering: Lowering, x: Operand, channels: int = 0) -> str:
    """Return the type that factors are rounded to, as P of `conv` and `conv_dw`.

    channels: of a group, where a word holds factors of two of them; an odd one would have no other.
    """
    # The factors of a word lie side by side in a pixel, so images are read as they are stored.
    return "" if channels % 2 else get_factors(lowering, find_stored(x)[0])


def get_pairs(lowering: Lowering, x: Operand) -> str:
    """Return the type that factors are rounded to, if words have two of them."""
    P = get_factors(lowering, find_stored(x)[0])
    return P if count_in_row(P) == 2 else ""


def _choose_blocks(lowering: Lowering, j: Job, T: str, P: str) -> Job:
    """Choose threads and cache blocks of a job."""
    each = 2 if P else 1  # factors of a word
    width = lowering.target.nv * lowering.target.lanes(ITEMSIZE[T])
    mt, nt = _split(j.rows, j.columns, lowering.target.mr, width, lowering.threads)
    # Blocks of K of equal length: a short last block would reload Y for little work.  Up to 1.5
    # times the target's length, so that a K just beyond it is not cut.
    kc = count_parts(j.depth, max(1, count_parts(j.depth, each * lowering.target.kc * 3 // 2)))
    run = j.unit * j.channels
    # Whole runs of taps: a run is gathered by one copy.
    kc = round_up(kc, math.lcm(run, each) if 0 < run <= kc else each)
    rows = count_parts(count_parts(j.rows, lowering.target.mr), mt) * lowering.target.mr
    return replace(j, mt=mt, nt=nt, kc=kc, mc=min(lowering.target.mc, rows))


def _lay_panels(
    lowering: Lowering, jobs: Sequence[Job], groups: int, T: str, P: str
) -> tuple[list[Job], int]:
    """Lay out the panels of B of all jobs; returns the jobs and the number of elements."""
    lanes = lowering.target.lanes(ITEMSIZE[T])
    width = lowering.target.nv * lanes
    out, at = [], 0
    for j in jobs:
        # Jobs of fewer columns than a panel has store narrower panels, of whole vectors.
        stored = min(round_up(j.columns, lanes), width)
        size = count_parts(j.columns, width) * stored * (count_parts(j.depth, 2) if P else j.depth)
        placed = _choose_blocks(lowering, j, T, P)
        out.append(replace(placed, panel=stored, b_at=at, b_group=size))
        at += size * groups
    return out, at


def _pack(
    lowering: Lowering,
    w: Operand,
    jobs: Sequence[tuple[Job, list[int]]],
    groups: int,
    steps: tuple[int, int],
    P: str,
) -> tuple[list[Job], Operand]:
    """Pack weights; beside each job its first tap and its steps from tap to tap."""
    T = w.type.dtype
    placed, size = _lay_panels(lowering, [j for j, _ in jobs], groups, T, P)
    b = lowering.temp(T, (max(size, 1),))
    panels = [
        PANEL.pack(
            b_at=j.b_at,
            b_group=j.b_group,
            channels=j.channels,
            taps=j.taps,
            first=first,
            step=step,
        )
        for j, (_, (first, *step)) in zip(placed, jobs, strict=True)
    ]
    words = PACK_WORDS.pack(
        count=len(jobs),
        groups=groups,
        columns=placed[0].columns,
        panel=placed[0].panel,
        group=w.type.size // groups,
        c_step=steps[0],
        j_step=steps[1],
        panels=panels,
    )
    work = lowering.temp(T, (2 * lowering.threads * lowering.target.lanes(ITEMSIZE[T]) ** 2,))
    lowering.call(conv_pack(T, P) if P else conv_pack(T), w=w, b=b, work=work, g=words)
    return placed, b


def _run(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand, Operand | None],
    jobs: Sequence[Job],
    groups: int,
    P: str,
    mode: int = 0,
) -> None:
    """Convolve x with the panels b into y; operands are x, b, y and bias."""
    x, b, y, bias = operands
    T, kinds = find_each_stored(x, y)
    if P:
        kinds = x.type.dtype, y.type.dtype, P
    # A register tile reads factors and writes float32: what is stored otherwise is converted on its
    # way through the cache, by the copies that gather patches and spread rows anyway.
    if x.type.dtype != (P or T):
        jobs = [patches.gather_job(j) for j in jobs]
    if y.type.dtype != T:
        jobs = [patches.scatter_job(j) for j in jobs]
    each = 2 if P else 1
    room = round_up(max(j.mc * (j.kc // each + j.scatter * j.columns) for j in jobs), 16)
    words = CONV_WORDS.pack(
        count=len(jobs), groups=groups, mode=mode, room=room, jobs=[j.words() for j in jobs]
    )
    work = lowering.temp(T, (room * lowering.threads,))
    lowering.call(conv(T, *kinds), x=x, b=b, y=y, bias=bias, work=work, g=words)


def _split_phases(a: Axis) -> Iterator[tuple[int, Axis, int, int]]:
    """Yield the convolutions of dY that make dX along one axis.

    Yields the residue r of its pixels, its window, its first tap and the step between taps.
    """
    # Forward: output o reads input i = o stride - pad + k dilation.  So dx[i] sums dy[o] w[k] over
    # the k for which i + pad - k dilation is a multiple of the stride: these taps depend on the
    # residue of i alone.  Each residue is a convolution of stride 1 with every step-th tap.
    common = math.gcd(a.dilation, a.stride)
    step, dilation = a.stride // common, a.dilation // common
    for r in range(min(a.stride, a.size)):
        first = next(
            (k for k in range(min(step, a.taps)) if (k * a.dilation - r - a.pad) % a.stride == 0),
            a.taps,
        )
        taps = len(range(first, a.taps, step))
        shift = (r + a.pad - first * a.dilation) // a.stride
        pad = (taps - 1) * dilation - shift
        window = Axis(a.out, count_parts(a.size - r, a.stride), taps, 1, dilation, pad)
        yield r, window, first + (taps - 1) * step, -step


def _list_input_jobs(
    axes: Axes, images: int, ci: int, co: int, groups: int
) -> list[tuple[Job, list[int]]]:
    """Return the jobs that make dX, with their taps."""
    _, h, w = axes
    row, plane = w.size * ci, h.size * w.size * ci
    pixel = (plane, row, ci)
    strided = any(a.stride > 1 for a in axes)
    y_step = (axes[0].size * plane, *(a.stride * p for a, p in zip(axes, pixel, strict=True)))
    tap = _find_tap_steps(axes)
    out = []
    # One job for each residue along each axis; their outputs interleave in dX.
    for residues in itertools.product(*(_split_phases(a) for a in axes)):
        at = sum(r * p for (r, *_), p in zip(residues, pixel, strict=True))
        first = sum(f[2] * t for f, t in zip(residues, tap, strict=True))
        steps = [f[3] * t for f, t in zip(residues, tap, strict=True)]
        d, h, w = (f[1] for f in residues)
        j = patches.make_job(
            (d, h, w),
            images,
            co // groups,
            co,
            ci // groups,
            scatter=int(strided),
            ldy=ci,
            y_at=at,
            y_step=y_step,
        )
        out.append((j, [first, *steps]))
    return out


def _find_tap_steps(axes: Axes) -> list[int]:
    """Return the steps between neighbouring taps of a filter along depth, height and width."""
    return [axes[1].taps * axes[2].taps, axes[2].taps, 1]


# --- calls


def is_depthwise(w: Operand, groups: int) -> bool:
    """Return whether each filter reads one channel of several."""
    return w.type.dims[1] == 1 and groups > 1


def takes_curves(dims: Sequence[Dim], strides: Sequence[int], groups: int) -> bool:
    """Return whether `convolve` applies curves other than ReLU.

    dims: of the weights.  The kernels of few filters do not, nor does Winograd's algorithm.
    """
    co, ci, *taps = dims
    # `convolve` will choose, but the target and the images are not known yet: a convolution that
    # another kernel may compute keeps its map.
    if ci == 1 and groups > 1:
        return True
    if not isinstance(co, int) or not isinstance(ci, int) or is_few(ci, co, groups):
        return False
    return not may_fit(taps, strides, groups)


def convolve(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand, Operand | None],
    axes: Axes,
    groups: int,
    curve: int = 0,
) -> None:
    """Append the calls for y = conv(x, w) + bias; curve: bits of what is applied to it."""
    x, w, y, bias = operands
    co, ci = w.type.dims[:2]
    volume, taps = math.prod(a.taps for a in axes), [0, *_find_tap_steps(axes)]
    mode = (BIAS if bias else 0) | curve
    images = x.type.dims[0]
    # The special cases first; a matrix product does everything, but not as fast.
    if is_depthwise(w, groups):
        lower_depthwise(lowering, operands, axes, curve=curve)
        return
    if is_few(ci, co, groups):
        lower_few(lowering, operands, axes, relu=bool(curve))
        return
    P = choose_factors(lowering, x, ci)
    # Between taps of all channels, words may have factors of two taps.
    own = P if P or groups > 1 or volume == 1 else get_pairs(lowering, x)
    form = choose_tiles(lowering.target, find_stored(x)[0], images, axes, ci, co, groups, P)
    if form:
        lower_winograd(lowering, operands, axes, mode, form)
        return
    j = patches.make_job(axes, images, ci, x.type.dims[1], co // groups, ldy=co)
    jobs, b = _pack(lowering, w, [(j, taps)], groups, (volume, ci * volume), own)
    _run(lowering, (x, b, y, bias), jobs, groups, own, mode)


def convolve_back(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand, Operand | None],
    axes: Axes,
    groups: int,
) -> None:
    """Add calls for dx = the transpose of conv(., w) applied to dy, plus a bias."""
    dy, w, dx, bias = operands
    images, ci = dx.type.dims[:2]
    co, volume = w.type.dims[0], math.prod(a.taps for a in axes)
    mode = BIAS if bias else 0
    if is_depthwise(w, groups) and (bias is None or co == groups):
        lower_depthwise(lowering, operands, axes, back=True)
        return
    if is_few(co, ci, groups):
        lower_few(lowering, operands, axes, back=True)
        return
    # With a stride dX is several convolutions, of other windows.
    whole = all(a.stride == 1 for a in axes)
    P = choose_factors(lowering, dy, co // groups)
    T, turned = find_stored(dy)[0], backward(axes)
    form = choose_tiles(lowering.target, T, images, turned, co, ci, groups, P) if whole else None
    if form:
        lower_winograd(lowering, operands, turned, mode, form, back=True)
        return
    # A stride asks for as many convolutions as it has residues, so a large one is refused.
    phases = math.prod(min(a.stride, a.size) for a in axes)
    limits.check("NODES", phases, lowering.site.where, "as convolutions of stride 1 it is")
    unpacked = _list_input_jobs(axes, images, ci, co, groups)
    jobs, b = _pack(lowering, w, unpacked, groups, (ci // groups * volume, volume), P)
    _run(lowering, (dy, b, dx, bias), jobs, groups, P, mode)


CONVOLVE_KERNELS = (
    conv,
    conv_pack,
    *WINDOW_KERNELS,
    *FEW_KERNELS,
    channels_repeat,
    *WINOGRAD_KERNELS,
)  # what `convolve` calls
CONVOLVE_BACK_KERNELS = (
    conv,
    conv_pack,
    *WINDOW_KERNELS,
    *FEW_KERNELS,
    channels_sum,
    *WINOGRAD_KERNELS,
)  # what `convolve_back` calls
