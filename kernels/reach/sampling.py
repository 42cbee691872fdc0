"""Reaches of the kernels of pools, resizing, sampling and regions of interest."""

from __future__ import annotations

import math

import numpy as np

from engine.kernels.ops.sampling.taps import SCRATCH
from engine.kernels.reach.call import Call, Reach, Table, if_, reach
from engine.kernels.reach.index import STATUS

TABLE: Table = {}
_PADS = "pad pad_end"


def _pool(c: Call) -> tuple[int, int]:
    """The elements of the images that windows slide over, and of the outputs."""
    c.positive("chunk", "stride", "dilation")
    per = c.images * c.channels
    return per * math.prod(c.size), per * math.prod(c.out)


@reach(TABLE, "pool_max", writes="y index", signed=_PADS)
def _pool_max(c: Call) -> Reach:
    x, y = _pool(c)
    return {"x": x, "y": y, "index": if_(c.flag(1), y)}


@reach(TABLE, "pool_max_taps", writes="y index", signed=_PADS)
def _pool_max_taps(c: Call) -> Reach:
    x, y = _pool(c)
    return {"x": x, "y": y, "index": y}


@reach(TABLE, "pool_max_grad", writes="dx", signed=_PADS)
def _pool_max_grad(c: Call) -> Reach:
    x, y = _pool(c)
    return {"dy": y, "index": y, "dx": x}


@reach(TABLE, "pool_max_taps_grad", writes="dx", signed=_PADS)
def _pool_max_taps_grad(c: Call) -> Reach:
    return _pool_max_grad(c)


@reach(TABLE, "pool_mean", writes="y", signed=_PADS)
def _pool_mean(c: Call) -> Reach:
    x, y = _pool(c)
    return {"x": x, "y": y}


@reach(TABLE, "pool_mean_grad", writes="dx", signed=_PADS)
def _pool_mean_grad(c: Call) -> Reach:
    x, y = _pool(c)
    return {"dy": y, "dx": x}


@reach(TABLE, "resample", writes="y work")
def _resample(c: Call) -> Reach:
    table = c.content("table")
    a_size, a_out, _, a_plain = c.a
    b_size, b_out, _, b_plain = c.b
    begin = a_out + b_out + 2
    if not c.outer * a_out * c.inner:
        return {}
    if begin > len(table):
        c.refuse(f"rows of {a_out} and {b_out} outputs in a table of {len(table)}")
    ends = [
        _entries(c, table[:first][-out - 1 :], table[begin:], at, size, bool(plain))
        for first, (size, out, at, plain) in ((a_out + 1, c.a), (begin, c.b))
    ]
    line = b_size * c.inner
    y = (c.outer * a_out - 1) * b_out * c.inner + max(b_out, b_size if b_plain else 0) * c.inner
    return {
        "x": ((c.outer - 1) * a_size + max(a_size, a_out if a_plain else 0)) * line,
        "y": y if b_out else if_(b_plain, y),
        "table": begin + max(ends),
        "weight": max(ends),
        "work": if_(not a_plain and not b_plain, c.scratch(line, line)),
    }


def _entries(
    c: Call, rows: np.ndarray, index: np.ndarray, at: int, size: int, is_plain: bool
) -> int:
    """The end of the entries of a table of one axis, whose rows and indices are checked."""
    if is_plain:
        return 0
    if len(rows) and (rows[0] < 0 or (np.diff(rows) < 0).any()):
        c.refuse("rows of a table that do not follow each other")
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, 0)
    if at + last > len(index):
        c.refuse(f"{last} entries behind entry {at} of {len(index)}")
    named = index[at + first : at + last]
    if named.size and not 0 <= named.min() <= named.max() < size:
        c.refuse(f"a table that names places {named.min()} to {named.max()} of {size}")
    return at + last


def _points(c: Call) -> tuple[int, int]:
    """The elements of images and of points, each with all channels."""
    c.positive("size", "chunk")
    if c.rank not in (2, 3) or c.taps not in (1, 2, 4):
        c.refuse(f"{c.taps} taps along each of {c.rank} axes")
    return c.images * math.prod(c.size) * c.channels, c.images * c.points * c.channels


def _grid(c: Call) -> dict[str, int]:
    count = c.images * c.points
    used = if_(count, c.scratch(SCRATCH, SCRATCH))
    return {"grid": count * c.rank, "work": used, "places": used}


@reach(TABLE, "sample", writes="y work places")
def _sample(c: Call) -> Reach:
    x, y = _points(c)
    return {**_grid(c), "x": x, "y": y}


@reach(TABLE, "sample_dx", writes="dx work places")
def _sample_dx(c: Call) -> Reach:
    x, y = _points(c)
    return {**_grid(c), "dy": y, "dx": x}


@reach(TABLE, "sample_dgrid", writes="dgrid work places")
def _sample_dgrid(c: Call) -> Reach:
    x, y = _points(c)
    return {**_grid(c), "dy": y, "x": x, "dgrid": c.images * c.points * c.rank}


def _regions(c: Call) -> tuple[int, int]:
    """The elements of the images, and of all bins."""
    bins = c.regions * c.rows * c.columns
    if bins:
        c.positive("height", "width")
    return c.images * c.height * c.numbers["width"] * c.channels, bins * c.channels


@reach(TABLE, "roi_align", writes="y fault")
def _roi_align(c: Call) -> Reach:
    x, y = _regions(c)
    return {"x": x, "rois": 4 * c.regions, "batch": c.regions, "y": y, "fault": STATUS}


@reach(TABLE, "roi_align_grad", writes="dx fault")
def _roi_align_grad(c: Call) -> Reach:
    x, y = _regions(c)
    used = if_(c.flag(1), x)
    return {"dy": y, "x": used, "rois": 4 * c.regions, "batch": c.regions, "dx": x, "fault": STATUS}


@reach(TABLE, "roi_max", writes="y index fault")
def _roi_max(c: Call) -> Reach:
    x, y = _regions(c)
    return {"x": x, "rois": 5 * c.regions, "y": y, "index": y, "fault": STATUS}


@reach(TABLE, "roi_max_grad", writes="dx")
def _roi_max_grad(c: Call) -> Reach:
    x, y = _regions(c)
    return {"dy": y, "index": y, "dx": x}
