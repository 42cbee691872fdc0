"""Reaches of the kernels of convolutions, direct ones and Winograd's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.kernels.ops.conv.convolution import PANEL
from engine.kernels.ops.conv.patches import JOB
from engine.kernels.ops.conv.winograd import APART, IMAGE, IN, OUT, PRODUCTS, TAPS, TILES
from engine.kernels.reach.call import Call, Reach, Table, if_, reach, up
from engine.kernels.vocabulary.kernel import BIAS, RELU

TABLE: Table = {}
MODES = BIAS | RELU

Job = Mapping[str, Any]


def job_of(c: Call, q: Job) -> Job:
    """A job whose divisors are not 0; without taps it reads nothing."""
    divisors = "out", "stride", "dilation", "mt", "nt", "mc"
    for name in (*divisors, *(("taps", "unit", "channels", "kc") if q["depth"] else ())):
        found = q[name]
        if (min(found) if isinstance(found, tuple) else found) < 1:
            c.refuse(f"{name} of a job is {found}; expected 1 at least")
    if q["depth"] and q["unit"] > q["taps"][2]:
        c.refuse(f"runs of {q['unit']} taps in a line of {q['taps'][2]}")
    return q


def images(q: Job, lines: bool = False) -> int:
    """How many images the rows, or the lines, of a job are of."""
    rows = q["rows"] // q["out"][2] if lines else q["rows"]
    return -int(-rows // (math.prod(q["out"][:2]) * (1 if lines else q["out"][2])))


def read(c: Call, q: Job, groups: int, lines: bool = False) -> int:
    """The reach into the images that a window slides over, of which taps outside are not read."""
    channels = q["ldx"] if lines else q["channels"]
    apart = q["channels"] > q["ldx"] or (q["unit"] > 1 and q["channels"] != q["ldx"])
    if apart and not lines:
        c.refuse(f"{q['channels']} channels of pixels {q['ldx']} apart")
    pixels = images(q, lines) * math.prod(q["size"])
    return if_(pixels, (pixels - 1) * q["ldx"] + channels * groups)


def panels(c: Call, n: int, depth: int, panel: int) -> int:
    """The reach into panels of B as products read them: vectors, whole."""
    if not n * depth:
        return 0
    last = (n - 1) // c.tile_columns * c.tile_columns
    ends = [last * depth + (depth - 1) * panel + up(n - last, c.lanes)]
    if last:
        ends.append((last - c.tile_columns) * depth + (depth - 1) * panel + c.tile_columns)
    return max(ends)


@reach(TABLE, "conv", writes="y work", signed="pad")
def _conv(c: Call) -> Reach:
    c.at_most("mode", MODES)
    x = b = y = work = bias = 0
    for q in c.records("jobs", JOB, c.count):
        job_of(c, q)
        rows, n, depth, mc = q["rows"], q["columns"], q["depth"], q["mc"]
        if not rows * n * c.groups:
            continue
        if depth and q["direct"]:
            x = max(x, c.span(0, (rows, q["ldx"]), (c.groups, q["channels"]), (depth, 1)))
        elif depth:
            x = max(x, read(c, q, c.groups))
            work = max(work, min(mc, rows) * min(q["kc"], depth))
        b = max(
            b,
            if_(depth, q["b_at"] + (c.groups - 1) * q["b_group"] + panels(c, n, depth, q["panel"])),
        )
        last = (c.groups - 1) * n + n
        if q["scatter"]:
            walks = zip((images(q), *q["out"]), q["y_step"], strict=True)
            y = max(y, c.span(q["y_at"], *walks) + last - 1)
            work = max(work, mc * q["kc"] + min(mc, rows) * n)
        else:
            y = max(y, if_(depth, (rows - 1) * q["ldy"] + last))
        bias = max(bias, if_(c.mode & BIAS, last))
    return {"x": x, "b": b, "y": y, "bias": bias, "work": c.scratch(c.room, work)}


@reach(TABLE, "conv_pack", writes="b work", signed="step c_step j_step first")
def _conv_pack(c: Call) -> Reach:
    n, width = c.columns, c.tile_columns
    w = b = 0
    for q in c.records("panels", PANEL, c.count):
        taps = math.prod(q["taps"])
        depth = taps * q["channels"]
        if not depth * n * c.groups:
            continue
        walks = ((c.groups, c.group), (n, c.j_step))
        steps = zip(q["taps"], q["step"], strict=True)
        w = max(w, c.span(q["first"], *walks, (q["channels"], c.c_step), *steps))
        if c.j_step == depth and q["first"] == 0 and q["step"][2] == 1:
            w = max(w, c.span(0, *walks, (depth, 1)))
        last = (n - 1) // width * width
        ends = [last * depth + (depth - 1) * c.panel + n - last]
        if last:
            ends.append((last - width) * depth + (depth - 1) * c.panel + width)
        b = max(b, q["b_at"] + (c.groups - 1) * q["b_group"] + max(ends))
    square = c.lanes**2
    return {"w": w, "b": b, "work": if_(b, c.scratch(square, square))}


# --- channel by channel


def window(c: Call, q: Job, kw: int, sw: int) -> tuple[Job, int, int]:
    """A job of lines, how many there are, and the taps; kw, sw: what is compiled, or 0."""
    job_of(c, q)
    lines = q["rows"] // q["out"][2]
    if lines < 1 or not q["ldx"]:
        c.refuse(f"{q['rows']} pixels of {q['ldx']} channels, lines of {q['out'][2]}")
    found = q["taps"][2], q["stride"][2], q["dilation"][2]
    if kw and found != (kw, sw, 1):
        c.refuse(f"taps, stride and dilation {found} of a line; compiled for {(kw, sw, 1)}")
    return q, lines, math.prod(q["taps"])


def by_channels(c: Call, q: Job, lines: int, taps: int) -> dict[str, int]:
    """The reaches of what depthwise kernels read and write, and of their filters."""
    return {
        "x": read(c, q, 1, lines=True),
        "y": lines * q["out"][2] * q["ldx"],
        "w": up(q["ldx"], c.lanes) * taps,
    }


@reach(TABLE, "depthwise", writes="y", signed="pad")
def _depthwise(c: Call) -> Reach:
    c.at_most("mode", MODES)
    (q,) = c.records("job", JOB, 1)
    q, lines, taps = window(c, q, c.flag(1), c.flag(2))
    return {**by_channels(c, q, lines, taps), "bias": if_(c.mode & BIAS, q["ldx"])}


@reach(TABLE, "depthwise_dw", writes="part", signed="pad")
def _depthwise_dw(c: Call) -> Reach:
    q, lines, taps = window(c, c.numbers, c.flag(1), c.flag(2))
    found = by_channels(c, q, lines, taps)
    return {"x": found["x"], "dy": found["y"], "part": q["mt"] * found["w"]}


@reach(TABLE, "depthwise_pack", writes="b")
def _depthwise_pack(c: Call) -> Reach:
    size = c.filters * up(c.c, c.lanes) * c.taps
    walks = ((c.filters, c.f_step), (c.c, c.c_step), (c.taps, 1))
    return {"w": if_(size, c.span(0, *walks)), "b": size}


@reach(TABLE, "depthwise_fold", writes="dw")
def _depthwise_fold(c: Call) -> Reach:
    size = c.filters * up(c.c, c.lanes) * c.taps
    dw = c.filters * c.c * c.taps
    return {"part": max(c.parts, 1) * size, "dw": dw, "keep": if_(c.adds, 1)}


@reach(TABLE, "channels_repeat", writes="y")
def _channels_repeat(c: Call) -> Reach:
    return {"x": if_(c.times, c.n), "y": c.n * c.times}


@reach(TABLE, "channels_sum", writes="y")
def _channels_sum(c: Call) -> Reach:
    return {"x": if_(c.n, (c.n - 1) * c.times + max(c.times, 1)), "y": c.n}


@reach(TABLE, "conv_few", writes="y", signed="pad")
def _conv_few(c: Call) -> Reach:
    c.at_most("mode", MODES)
    (q,) = c.records("job", JOB, 1)
    q, lines, taps = window(c, q, 0, 0)
    found = by_channels(c, q, lines, taps)
    return {
        "x": found["x"],
        "w": c.filters * found["w"],
        "y": lines * q["out"][2] * c.filters,
        "bias": if_(c.mode & BIAS, c.filters),
    }


@reach(TABLE, "conv_few_dw", writes="part", signed="pad")
def _conv_few_dw(c: Call) -> Reach:
    (q,) = c.records("job", JOB, 1)
    q, lines, taps = window(c, q, 0, 0)
    found = by_channels(c, q, lines, taps)
    return {
        "x": found["x"],
        "dy": lines * q["out"][2] * c.filters,
        "part": q["mt"] * c.filters * found["w"],
    }


# --- gradients of weights


@reach(TABLE, "conv_dw", writes="dw db work", signed="pad")
def _conv_dw(c: Call) -> Reach:
    (q,) = c.records("job", JOB, 1)
    job_of(c, q)
    c.at_most("has_w", 1)
    c.at_most("has_b", 1)
    rows, n, mt, per = q["rows"], q["columns"], q["mt"], c.per_group
    x = dy = dw = work = 0
    if c.has_w and n * per * c.groups:
        if c.block < 1 or c.block % c.lanes:
            c.refuse(f"blocks of {c.block} columns; expected a multiple of {c.lanes}")
        beside = up(n, c.lanes)
        if q["direct"]:
            x = c.span(0, (rows, q["ldx"]), (c.groups, q["channels"]), (n, 1))
            x += if_(x and not c.crossed, beside - n)
        else:
            x = read(c, q, c.groups)
            work = min(q["mc"], rows) * up(min(c.block, n), c.lanes)
        dy = c.span(0, (rows, c.co), (c.groups, per), (up(per, c.lanes) if c.crossed else per, 1))
        dw = mt * c.groups * per * n
        if not rows:
            dw = max(dw, c.co * n)
    if c.has_b:
        dy, work = max(dy, rows * c.co), max(work, if_(rows, c.co))
    return {
        "x": x,
        "dy": dy,
        "dw": dw,
        "db": if_(c.has_b, mt * c.co),
        "keep_w": if_(c.adds_w not in (0, 2), 1),
        "keep_b": if_(c.has_b and c.adds_b, 1),
        "work": c.scratch(c.room, work),
    }


@reach(TABLE, "conv_fold", writes="part dw db")
def _conv_fold(c: Call) -> Reach:
    c.at_most("has_w", 1)
    c.at_most("has_b", 1)
    n, parts = c.channels * c.taps, max(c.parts, 1)
    first = up(c.co, c.per_group) if c.per_group else c.co
    return {
        "part": if_(c.has_w and n * c.co, (parts - 1) * c.co * n + first * n),
        "dbs": if_(c.has_b, parts * c.co),
        "dw": if_(c.has_w, c.co * n),
        "db": if_(c.has_b, c.co),
        "keep_w": if_(c.adds_w, 1),
        "keep_b": if_(c.has_b and c.adds_b, 1),
    }


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
        "u": if_(channels, (PRODUCTS - 1) * c.plane + panels(c, n, channels, c.panel)),
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
