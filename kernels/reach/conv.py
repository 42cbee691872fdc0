"""Reaches of the kernels of convolutions by Winograd's algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.kernels.loops.contract import panels_reach
from engine.kernels.ops.conv.winograd import APART, IMAGE, IN, OUT, PRODUCTS, TAPS, TILES
from engine.kernels.reach.call import Call, Reach, Table, if_, reach, up
from engine.kernels.vocabulary.kernel import BIAS, RELU

TABLE: Table = {}
panels = panels_reach
MODES = BIAS | RELU

Job = Mapping[str, Any]


# --- by Winograd's algorithm


def image(c: Call, name: str, count: int, channels: int) -> tuple[int, Job]:
    """The reach into some channels of images, and their words."""
    (g,) = c.records(name, IMAGE, 1)
    if channels > g["ld"]:
        c.refuse(f"{channels} channels of pixels {g['ld']} apart")
    pixels = count * g["height"] * g["width"]
    return if_(pixels, (pixels - 1) * g["ld"] + channels), g


def tiles_of(c: Call) -> tuple[Job, int]:
    """The tiles of a call, and how many there are."""
    (g,) = c.records("tiles", TILES, 1)
    if min(g["down"], g["across"], g["span"], g["block"]) < 1:
        c.refuse(f"tiles of {dict(g)}")
    return g, g["images"] * g["down"] * g["across"]


def columns_of(c: Call) -> int:
    """The most columns that one of the threads along them has."""
    panels = -(-c.columns // c.tile_columns)
    return int(min(c.columns, -(-panels // c.nt) * c.tile_columns))


@reach(TABLE, "winograd_filters", writes="u work")
def _winograd_filters(c: Call) -> Reach:
    c.at_most("turned", 1)
    n, channels = c.columns, c.channels
    if not n * channels:
        return {}
    last = (n - 1) // c.tile_columns * c.tile_columns
    ends = [
        last * channels + n - last,
        *([last * channels - c.tile_columns * channels + c.tile_columns] if last else []),
    ]
    room = (TAPS * TAPS * c.lanes + IN * TAPS) * c.tile_columns
    return {
        "w": c.span(c.first * c.j_step, (n, c.j_step), (channels, c.c_step), (TAPS * TAPS, 1)),
        "u": max(ends) + (channels - 1) * c.panel + (PRODUCTS - 1) * c.plane,
        "work": c.scratch(room, room),
    }


@reach(TABLE, "winograd", writes="y work")
def _winograd(c: Call) -> Reach:
    c.positive("mt", "nt", "kc")
    c.at_most("mode", MODES)
    tiles, count = tiles_of(c)
    n, channels = c.columns, c.channels
    x, _ = image(c, "x", tiles["images"], channels)
    y, _ = image(c, "y", tiles["images"], c.first + n)
    if not count * n:
        return {}
    block, span, own = tiles["block"], tiles["span"], columns_of(c)
    most = min(up(block, c.tile_rows), count)
    v_step, m_step = block * channels + APART, block * own + APART
    lines = c.line + APART + own
    reading = (IN + 1) * (OUT * span + 2) * channels
    writing = IN * OUT * span * own + own
    used = max(
        (PRODUCTS - 1) * v_step + most * channels,
        PRODUCTS * v_step + (PRODUCTS - 1) * m_step + most * own,
        lines + max(reading, writing),
    )
    return {
        "x": x,
        "u": if_(channels, (PRODUCTS - 1) * c.plane + panels_reach(c, n, channels, c.panel)),
        "y": y,
        "bias": if_(c.mode & BIAS, c.first + n),
        "work": c.scratch(c.room, used, c.mt * c.nt),
    }


@reach(TABLE, "winograd_dw", writes="part work")
def _winograd_dw(c: Call) -> Reach:
    c.positive("mt", "nt")
    tiles, _ = tiles_of(c)
    n, channels = c.columns, c.channels
    x, _ = image(c, "x", tiles["images"], channels)
    dy, _ = image(c, "y", tiles["images"], c.first + n)
    if not n:
        return {}
    own, wide = columns_of(c), OUT * tiles["span"] + 2
    block, ld = tiles["block"], up(own, c.lanes)
    v_step, s_step = block * channels + APART, block * ld + APART
    used = max(
        PRODUCTS * v_step + (PRODUCTS - 1) * s_step + block * ld,
        c.line + (IN + 1) * wide * max(channels, own),
    )
    return {
        "x": x,
        "dy": dy,
        "part": c.mt * PRODUCTS * channels * n,
        "work": c.scratch(c.room, used, c.mt * c.nt),
    }


@reach(TABLE, "winograd_fold", writes="part dw work")
def _winograd_fold(c: Call) -> Reach:
    plane = c.channels * c.columns
    room = (TAPS * TAPS * c.lanes + IN * TAPS) * c.tile_columns + c.lanes**2
    return {
        "part": max(c.parts, 1) * PRODUCTS * plane,
        "dw": if_(plane, (c.first + c.columns) * c.channels * TAPS * TAPS),
        "keep": if_(c.adds, 1),
        "work": if_(plane, c.scratch(room, room)),
    }
