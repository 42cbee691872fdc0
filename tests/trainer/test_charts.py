"""Parts of reports: pictures, traces, axes and charts."""

from __future__ import annotations

import itertools
import json
import math
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.drawing.axes import make_axis
from engine.drawing.charts import Line, draw_line_chart, scatter
from engine.trainer.reports import png
from engine.trainer.reports.trace import MAX_POINTS, Point, Trace
from tests.support.report_runs import Array


def decode(data: bytes) -> Array:
    """The pixels of a PNG file of 8 bits whose rows are not filtered; checks every checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size) == (zlib.crc32(kind + content),)
        parts[kind] = content
        at += 12 + size
    width, height, depth, colour = struct.unpack_from(">IIBB", parts[b"IHDR"])
    assert depth == 8
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, {0: 1, 2: 3, 6: 4}[colour])


@pytest.mark.parametrize("shape", [(8, 9, 1), (5, 4, 3), (4, 4, 4)])
def test_pictures_are_png_files(shape: tuple[int, int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    assert np.array_equal(decode(png.encode(picture)), picture)


def test_what_looks_like_a_picture_is_one() -> None:
    image = np.linspace(-2, 3, 3 * 8 * 10, dtype=np.float32).reshape(3, 8, 10)
    pixels = png.make_pixels(image)
    assert pixels is not None
    assert pixels.shape == (8, 10, 3)
    assert (pixels.min(), pixels.max()) == (0, 255)
    last = png.make_pixels(np.moveaxis(image, 0, -1))
    assert last is not None
    assert np.array_equal(last, pixels)
    assert png.make_pixels(np.zeros((5, 8, 8))) is None, "five channels"
    assert png.make_pixels(np.zeros((1, 2, 8))) is None, "two rows"
    assert png.make_pixels(np.zeros(64)) is None
    octets = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    same = png.make_pixels(octets)
    assert same is not None
    assert np.array_equal(same, octets)
    assert same.base is None, "the batch that it is of is not kept"
    large = png.make_pixels(np.zeros((1, 500, 200)))
    assert large is not None
    assert max(large.shape) <= png.MAX_SIDE


def test_what_is_left_of_an_epoch_is_no_point_of_its_own() -> None:
    trace = Trace()
    trace.add(Point(9, 0.1, 90, 1.0, 900.0, 1e-3, 0))
    trace.add(Point(10, 0.101, 10, 5.0, 900.0, 1e-3, 0), is_rest=True)
    trace.add(Point(19, 0.201, 60, 2.0, 900.0, 1e-3, 0), is_rest=True)
    assert [(p.samples, p.loss) for p in trace.points] == [(100, 1.4), (60, 2.0)]


def test_a_trace_keeps_sums_when_points_are_joined() -> None:
    trace = Trace()
    for n in range(5 * MAX_POINTS + 1):
        trace.add(Point(n, n * 0.1, 8, float(n), 80.0, 1e-3, n))
    points = trace.points
    assert len(points) < MAX_POINTS
    count = sum(p.samples for p in points)
    assert count == 8 * (5 * MAX_POINTS + 1)
    mean = sum(p.loss * p.samples for p in points) / count
    assert mean == pytest.approx(5 * MAX_POINTS / 2)
    assert points[-1].step == 5 * MAX_POINTS
    assert all(p.rate == pytest.approx(80.0) for p in points)
    again = Trace()
    again.restore(json.loads(json.dumps(trace.make_state())))
    assert [p.step for p in again.points] == [p.step for p in points]
    assert again.seconds == trace.seconds


@pytest.mark.parametrize("first", [0.0, 1.0, 1e6, 123456789.0])
@pytest.mark.parametrize("span", [3e-4, 0.01, 0.5, 7.0, 90.0, 4000.0, 1e6])
@pytest.mark.parametrize("kind", ["count", "seconds"])
def test_names_of_ticks_have_room(first: float, span: float, kind: Any) -> None:
    """On the axis across, in letters as wide as they are where windows are narrow."""
    x = [first, first + (span if kind == "seconds" else math.ceil(span))]
    drawn = draw_line_chart("title", "x", [Line("line", x, [1.0, 2.0])], x_kind=kind)
    ticks = re.findall(r'<text class="tick x" x="([\d.]+)"[^>]*>([^<]+)<', drawn)
    assert ticks
    ends = [(float(at) - 4 * len(name), float(at) + 4 * len(name)) for at, name in ticks]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ends)), ticks


@pytest.mark.parametrize("values", [(12345.678, 12345.679), (-1e-7, 0.0), (123456.5, 123457.5)])
def test_names_at_the_side_have_room(values: tuple[float, float]) -> None:
    lines = [Line("line", [1.0, 2.0], values)]
    for drawn in (draw_line_chart("t", "x", lines), scatter("t", "x", "y", [values])):
        names = re.findall(r'<text class="tick y" x="([\d.]+)"[^>]*>([^<]+)<', drawn)
        assert names
        assert all(float(at) >= 8 * len(name) for at, name in names)


@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5),
    st.sampled_from(["number", "share", "bytes", "seconds", "count"]),
    st.booleans(),
    st.booleans(),
)
def test_axes_hold_all_values_and_name_each_tick_once(
    values: list[float], kind: Any, may_be_log: bool, is_tight: bool
) -> None:
    if kind in ("bytes", "seconds"):
        values = [float(round(abs(v))) for v in values]
    may_be_log = may_be_log and kind == "number"
    axis = make_axis(values, 0, 100, kind=kind, may_be_log=may_be_log, is_tight=is_tight)
    assert all(-0.01 <= axis.place(v) <= 100.01 for v in values)
    assert (kind not in ("count", "bytes")) + 1 <= len(axis.ticks) <= 12
    places = [axis.place(t) for t in axis.ticks]
    assert places == sorted(places)
    if max(values) - min(values) > 1e-3 * max(map(abs, values)) > 1e-6:
        assert len({axis.label_tick(t) for t in axis.ticks}) == len(axis.ticks)
