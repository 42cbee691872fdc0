"""Winograd's convolution: right on every target, within its error bound, chosen where it pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.base.plan_options import PlanOptions
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.planner.draft import Place
from engine.graphs.planner.planner import make_plan
from engine.kernels.analysis.flops import measure_work
from engine.kernels.binaries.load import get_linker, get_object
from engine.kernels.loops.window import Axis, count_parts
from engine.kernels.machine.levels import list_levels
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.conv import convolution, weight_gradient, winograd_calls
from engine.kernels.ops.conv.winograd_tiles import LARGE, SMALL, TAPS, TileForm
from engine.kernels.vocabulary.op import TensorType
from engine.kernels.vocabulary.row_program import Program as Rows
from engine.plan.plan import align
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram
from tests.support.halves import round_to_half
from tests.support.harness import execute, run
from tests.support.pairs import with_factors
from tests.support.targets import OTHERS, list_runnable

DIRECT, WINOGRAD = False, True
WHAT = ("Y", "bias", "dX", "dW")
OPSETS = {"": 17, "com.microsoft": 1, "engine": 1}

# (images, channels, height, width), filters, pads, threads: what each row is for stands beside it.
LAYERS: tuple[tuple[tuple[int, ...], int, list[int], int], ...] = (
    ((2, 16, 8, 8), 16, [0, 0, 0, 0], 1),  # tiles that the images do not fill
    ((2, 17, 9, 7), 35, [1, 1, 1, 1], 2),  # channels that vectors do not fill
    ((1, 32, 12, 13), 64, [2, 1, 0, 2], 3),  # uneven padding, three threads
    ((3, 40, 3, 4), 130, [1, 1, 1, 1], 4),  # threads along columns
    ((2, 3, 21, 70), 5, [1, 1, 1, 1], 2),  # few channels; tiles of a row in spans
    ((1, 16, 1, 1), 16, [1, 1, 1, 1], 2),  # one pixel
    ((1, 5, 2, 3), 6, [4, 4, 3, 4], 1),  # windows wholly in padding
    ((2, 410, 5, 5), 16, [1, 2, 1, 2], 2),  # channels in two blocks
    ((1, 600, 4, 5), 150, [1, 1, 1, 1], 1),  # filters in pieces, of Y, dX and dW
    ((0, 16, 8, 8), 16, [1, 1, 1, 1], 2),  # no image
)  # fmt: skip


def graph(given: dict[str, np.ndarray], pads: list[int], what: str) -> Graph:
    """Y of a convolution, "bias": with bias and Relu; or dX or dW."""
    kind = "f64" if given["x"].dtype == np.float64 else "f32"
    inputs = {name: TensorType(kind, a.shape) for name, a in given.items()}
    attrs: dict[str, Any] = {"pads": pads}
    if what == "bias":
        attrs["activation"] = "Relu"
    domain = "" if what == "Y" else "com.microsoft"
    op = {"Y": "Conv", "bias": "FusedConv"}.get(what, "ConvGrad")
    ins = ["dy"] * ("dy" in given) + ["x", "w"] + ["bias"] * ("bias" in given)
    outs = ("", "y", "") if what == "dW" else ("y",)
    node = Node(op, tuple(ins), outs, attrs, domain, "layer")
    return Graph("layer", inputs, ["y"], {}, [node], OPSETS)


def choose(monkeypatch: pytest.MonkeyPatch, is_winograd: bool) -> None:
    """From here on, plans have one of the two algorithms wherever there is a choice."""
    for module in (convolution, weight_gradient):
        monkeypatch.setattr(module, "choose_tiles", lambda *_: LARGE if is_winograd else None)


def values(
    monkeypatch: pytest.MonkeyPatch,
    is_winograd: bool,
    given: dict[str, np.ndarray],
    pads: list[int],
    what: str,
    threads: int = 1,
    target: Target | None = None,
) -> np.ndarray:
    """Y, dX or dW, by one of the two algorithms."""
    choose(monkeypatch, is_winograd)
    made = graph(given, pads, what)
    plan = make_plan(made, {}, target=target or detect_host(), threads=threads)
    has = any(s.template in ("winograd", "winograd_dw") for s in plan.specs)
    assert has == (is_winograd and bool(plan.steps))
    return run(made, given, threads=threads, target=target)["y"]


@pytest.mark.parametrize("what", ["Y", "dX", "dW"])
def test_strided_layers_are_direct(what: str) -> None:
    """Wide ones too, in all directions, and so is dX of float64."""
    given = layer(((1, 64, 18, 18), 64, [1, 1, 1, 1], 1), "Y", np.float32)
    given["dy"] = given["x"][:, :, :9, :9].copy()
    if what == "Y":
        del given["dy"]
    made = graph(given, [1, 1, 1, 1], what)
    made.nodes[0].attrs["strides"] = [2, 2]
    specs = make_plan(made, {}, target=detect_host(), threads=1).specs
    assert not [s.template for s in specs if s.template.startswith("winograd")]
    double = {name: a.astype(np.float64) for name, a in given.items()}
    wide = graph(double, [1, 1, 1, 1], what)
    wide.nodes[0].attrs["strides"] = [2, 2]
    want = run(wide, double)["y"]
    np.testing.assert_allclose(run(made, given)["y"], want, atol=1e-5 * np.abs(want).max())


def layer(row: Any, what: str, dtype: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of a layer."""
    (n, ci, h, w), co, pads, _ = row
    rng = np.random.default_rng(seed)
    given = {"x": rng.standard_normal((n, ci, h, w)), "w": rng.standard_normal((co, ci, 3, 3))}
    if what == "bias":
        given["bias"] = rng.standard_normal(co)
    if what in ("dX", "dW"):
        out = (h + pads[0] + pads[2] - 2, w + pads[1] + pads[3] - 2)
        given["dy"] = rng.standard_normal((n, co, *out))
    return {name: a.astype(dtype) for name, a in given.items()}


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("row", LAYERS, ids=lambda r: "x".join(map(str, (*r[0], r[1]))))
def test_it_computes_what_the_direct_kernel_does(
    monkeypatch: pytest.MonkeyPatch, row: Any, what: str
) -> None:
    """In double precision, where rounding hides nothing."""
    given = layer(row, what, np.float64)
    direct = values(monkeypatch, DIRECT, given, row[2], what)
    actual_values = values(monkeypatch, WINOGRAD, given, row[2], what, row[3])
    atol = 1e-13 * np.max(np.abs(direct), initial=1)
    np.testing.assert_allclose(actual_values, direct, rtol=0, atol=atol)


@pytest.mark.parametrize("what", ["Y", "dX", "dW"])
def test_both_algorithms_count_as_the_same_work(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A rate of operations counts the operation, so the two can be compared."""
    given, counts = layer(LAYERS[1], what, np.float32), []
    for is_winograd in (DIRECT, WINOGRAD):
        choose(monkeypatch, is_winograd)
        plan = make_plan(graph(given, LAYERS[1][2], what), {}, target=detect_host(), threads=1)
        counts.append(sum(step.flops for step in measure_work(plan)))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("threads", [1, 3])
def test_gradients_are_added_to_their_buffer(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Unless the flag says that the first one overwrites what is there."""
    row = LAYERS[1]
    given, pads = layer(row, "dW", np.float64), row[2]
    want = values(monkeypatch, WINOGRAD, given, pads, "dW", threads)
    inputs = {name: TensorType("f64", a.shape) for name, a in given.items()}
    inputs |= {"sum": TensorType("f64", want.shape), "reset": TensorType("b1", (1,))}
    nodes = [
        Node("ConvGrad", ("dy", "x", "w"), ("y", "g"), {"pads": pads}, "com.microsoft", "layer"),
        Node("InPlaceAccumulatorV2", ("sum", "g", "reset"), ("done",), {}, "com.microsoft", "add"),
    ]
    made = Graph("layer", inputs, ["y"], {}, nodes, OPSETS)
    plan = make_plan(
        made, {}, target=detect_host(), threads=threads, places={"sum": Place("grad", 0)},
        region_bytes={"grad": align(want.nbytes)},
    )  # fmt: skip
    assert any(s.template == "winograd_fold" for s in plan.specs)
    total = allocate(align(want.nbytes))
    regions = {"work": allocate(plan.compute_region_bytes("work")), "grad": total}
    program = BoundProgram(plan, get_linker(detect_host()).get_addresses, regions)
    for name, array in given.items():
        np.copyto(program.inputs[name], array)
    total.view(np.float64)[...] = np.nan
    for times, reset in ((1, True), (2, False), (1, True)):
        program.inputs["reset"][...] = reset
        program.run()
        actual = total.view(np.float64)[: want.size].reshape(want.shape)
        np.testing.assert_array_equal(actual, times * want)


@pytest.mark.parametrize("threads", [1, 2, 5, 16])
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Each output is the same sum, whoever computes it: to the last bit."""
    row = ((2, 24, 13, 17), 80, [1, 1, 1, 1], 1)
    for what in ("bias", "dX"):
        given = layer(row, what, np.float32)
        alone = values(monkeypatch, WINOGRAD, given, row[2], what)
        actual_values = values(monkeypatch, WINOGRAD, given, row[2], what, threads)
        np.testing.assert_array_equal(actual_values, alone)


@pytest.mark.parametrize("threads", [4, 16])
def test_sums_over_tiles_are_the_same_in_every_run(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """The parts of dW are added in order, whichever thread is done first."""
    row = ((2, 24, 13, 17), 80, [1, 1, 1, 1], 1)
    given = layer(row, "dW", np.float32)
    first = values(monkeypatch, WINOGRAD, given, row[2], "dW", threads)
    for _ in range(3):
        again = values(monkeypatch, WINOGRAD, given, row[2], "dW", threads)
        np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("name", list_runnable())
def test_plainer_variants_agree(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for what in WHAT:
        given = layer(LAYERS[1], what, np.float32)
        own = values(monkeypatch, WINOGRAD, given, LAYERS[1][2], what)
        actual_values = values(
            monkeypatch, WINOGRAD, given, LAYERS[1][2], what, 2, list_runnable()[name]
        )
        np.testing.assert_allclose(actual_values, own, rtol=0, atol=4e-6 * np.max(np.abs(own)))


def test_what_is_not_a_number_stays_in_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN and infinity reach every output whose tile reads them, through Relu, and no other."""
    row = ((1, 16, 16, 16), 16, [1, 1, 1, 1], 1)
    given = layer(row, "bias", np.float32)
    given["x"][0, 3, 2, 2] = np.nan
    actual_values = values(monkeypatch, WINOGRAD, given, row[2], "bias")
    assert np.isnan(actual_values[0, :, 1:4, 1:4]).all()
    assert np.isfinite(actual_values[0, :, 8:, :]).all()
    assert np.isfinite(actual_values[0, :, :, 8:]).all()


KINDS = {
    "normal": lambda rng, x, w: (x, w),
    "relu": lambda rng, x, w: (np.maximum(x, 0), w),
    "sparse": lambda rng, x, w: (x * (rng.random(x.shape) < 0.05), w),
    "wide": lambda rng, x, w: (x * 10 ** rng.uniform(-3, 3, x.shape), w),
    "positive": lambda rng, x, w: (np.abs(x), np.abs(w)),
}


def errors(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, np.ndarray], what: str
) -> tuple[float, dict[str, np.ndarray]]:
    """The largest error of an algorithm against float64, and the inputs in float64."""
    pads = [1, 1, 1, 1]
    exact = {n: a.astype(np.float64) for n, a in given.items()}
    right = values(monkeypatch, DIRECT, exact, pads, what)
    actual_values = values(monkeypatch, WINOGRAD, given, pads, what)
    return float(np.max(np.abs(actual_values - right))), exact


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [16, 64, 256, 1024])
def test_the_error_is_within_its_bound(
    monkeypatch: pytest.MonkeyPatch, channels: int, kind: str
) -> None:
    """The bound that the docstring of kernels/ops/conv/winograd.py states, against float64."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x, w = rng.standard_normal((2, channels, 9, 10)), rng.standard_normal((32, channels, 3, 3))
        x, w = (a.astype(np.float32) for a in KINDS[kind](rng, x, w))
        error, exact = errors(monkeypatch, {"x": x, "w": w}, "Y")
        squares = np.pad((exact["x"] ** 2).sum(1), ((0, 0), (1, 1), (1, 1)))
        windows = sum(squares[:, i : i + 9, j : j + 10] for i in range(3) for j in range(3))
        scale = np.sqrt(np.max(windows) * np.max((exact["w"] ** 2).sum((1, 2, 3))))
        assert error <= (8 + np.sqrt(channels)) * 2.0**-24 * scale


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("images", "size"), [(1, 6), (4, 14), (8, 40)])
def test_the_error_of_weights_is_within_its_bound(
    monkeypatch: pytest.MonkeyPatch, images: int, size: int, kind: str
) -> None:
    """The bound that the docstring of kernels/ops/conv/winograd_weights.py states."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, images, 32, size, size))
    x, dy = (a.astype(np.float32) for a in KINDS[kind](rng, x, dy))
    given = {"x": x, "w": np.zeros((32, 32, 3, 3), np.float32), "dy": dy}
    error, exact = errors(monkeypatch, given, "dW")
    x2, dy2 = (np.max((exact[n] ** 2).sum((0, 2, 3))) for n in ("x", "dy"))
    assert error <= 12 * 2.0**-24 * np.sqrt(x2 * dy2)


# images, size, padding, channels, filters; then whether Y and dX are by Winograd's algorithm on
# vectors of 16 and of 4 elements.  ResNet-50's last layer of 512 channels has 4 tiles an image: one
# image does not pay for the transform of its filters.
CHOICES = (
    ("cnn, first", 64, 28, 0, 1, 32, (False, True), (False, False)),
    ("cnn, second", 64, 26, 0, 32, 64, (True, True), (True, True)),
    ("resnet, 56", 8, 56, 1, 64, 64, (True, True), (True, True)),
    ("resnet, 28", 8, 28, 1, 128, 128, (True, True), (True, True)),
    ("resnet, 14", 8, 14, 1, 256, 256, (True, True), (True, True)),
    ("resnet, 7", 8, 7, 1, 512, 512, (True, True), (True, True)),
    ("resnet, 7, alone", 1, 7, 1, 512, 512, (False, False), (False, False)),
    ("vgg, first", 8, 224, 1, 3, 64, (False, True), (False, False)),
    ("vgg, second", 8, 224, 1, 64, 64, (True, True), (True, True)),
    ("few channels", 8, 32, 1, 4, 4, (False, False), (False, False)),
)


@pytest.mark.parametrize("row", CHOICES, ids=lambda r: r[0])
def test_the_choice_of_layers(row: Any) -> None:
    _, images, size, pad, ci, co, on_16, on_4 = row
    axis = Axis(size, size + 2 * pad - 2, 3, pad=pad, pad_end=pad)
    axes = (Axis(), axis, axis)
    back = winograd_calls.backward(axes)
    for name, want in (("avx512", on_16), ("neon", on_4)):
        target = Target("", "", "", 64 if name == "avx512" else 16, 6, 4 if name == "avx512" else 2)
        actual = (
            winograd_calls.choose_tiles(target, "f32", images, axes, ci, co, 1),
            winograd_calls.choose_tiles(target, "f32", images, back, co, ci, 1),
        )
        assert actual == tuple(LARGE if is_winograd else None for is_winograd in want), name


def test_what_is_left_to_the_direct_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other windows, groups, double precision, and everything if the user says so."""
    axis, plain = Axis(56, 54, 3), Axis()

    def pays(T: str = "f32", groups: int = 1, *axes: Axis) -> bool:
        d, h, w = axes or (plain, axis, axis)
        return winograd_calls.choose_tiles(detect_host(), T, 8, (d, h, w), 64, 64, groups) is LARGE

    assert pays()
    assert not pays("f64")
    assert not pays("f32", 2)
    assert not pays("f32", 1, plain, Axis(56, 27, 3, stride=2), axis)
    assert not pays("f32", 1, plain, axis, Axis(56, 52, 3, dilation=2))
    assert not pays("f32", 1, plain, axis, Axis(56, 52, 5))
    assert not pays("f32", 1, Axis(3, 1, 3), axis, axis)
    monkeypatch.setenv("EDGEGRAD_CONVOLUTION", "direct")
    assert not pays()


# The same of factors of 16 bits, on vectors of 16 elements: what the direct kernel takes twice as
# many of at once.  Large images are left to large tiles, which do fewer operations.
HALVES = (
    ("resnet, 56", 8, 56, 64, 64, LARGE, LARGE),
    ("resnet, 28", 8, 28, 128, 128, SMALL, LARGE),
    ("resnet, 14", 8, 14, 256, 256, SMALL, LARGE),
    ("resnet, 7", 8, 7, 512, 512, SMALL, None),
    ("resnet, 7, alone", 1, 7, 512, 512, None, None),
    ("vgg, second", 8, 224, 64, 64, LARGE, LARGE),
    ("few channels", 8, 32, 4, 4, None, None),
)


@pytest.mark.parametrize("row", HALVES, ids=lambda r: r[0])
def test_the_choice_of_tiles_for_factors_of_16_bits(row: Any) -> None:
    """Small ones are of bf16 alone."""
    _, images, size, ci, co, of_bf16, of_f16 = row
    axis = Axis(size, size, 3, pad=1, pad_end=1)
    target = Target("", "", "", 64, 6, 4)
    for P, want in (("bf16", of_bf16), ("f16", of_f16)):
        axes = (Axis(), axis, axis)
        assert winograd_calls.choose_tiles(target, "f32", images, axes, ci, co, 1, P) is want, P


@pytest.mark.parametrize("name", OTHERS)
def test_a_plan_shows_the_choice_and_its_kernels_compile(name: str) -> None:
    row = ((8, 64, 28, 28), 64, [1, 1, 1, 1], 1)
    wanted = {"bias": ["winograd", "winograd_filters"], "dW": ["winograd_dw", "winograd_fold"]}
    for what, templates in wanted.items():
        given = layer(row, what, np.float32)
        plan = make_plan(graph(given, row[2], what), {}, target=OTHERS[name], threads=2)
        specs = [s for s in plan.specs if s.template.startswith(("conv", "winograd"))]
        assert [s.template for s in specs] == templates
        assert f"{templates[0]}_f32(" in str(plan)
        for spec in specs:
            assert get_object(spec, OTHERS[name])


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [64, 256, 512])
def test_threads_share_the_panels_of_pieces(threads: int, channels: int) -> None:
    """Whose sums would otherwise be as many as threads: 16 MB for two in ResNet-18."""
    target = OTHERS["x86-64-v3"]
    lowering: Any = SimpleNamespace(target=target, threads=threads)
    width = target.nv * target.lanes(4)
    pieces = winograd_calls._cut_columns(lowering, LARGE, "f32", channels, 512)
    assert [first for first, _ in pieces] == [i * pieces[0][1] for i in range(len(pieces))]
    assert sum(n for _, n in pieces) == 512
    for _, n in pieces[:-1]:
        assert n % (threads * width) == 0
        least = 4 * LARGE.products * channels * threads * width
        assert 4 * LARGE.products * channels * n <= max(winograd_calls.FILTERS, least)


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize(("tiles", "columns"), [(2304, 64), (1568, 64), (128, 256), (32, 512)])
def test_threads_have_equal_work(tiles: int, columns: int, threads: int) -> None:
    """The busiest of up to 16 threads has at most 1.5 times its share, in whole register tiles."""
    mt, nt = winograd_calls.split(tiles, columns, detect_host(), "f32", threads)
    width = detect_host().nv * detect_host().lanes(4)
    rows = count_parts(count_parts(tiles, detect_host().mr), mt) * detect_host().mr
    mine = min(count_parts(count_parts(columns, width), nt) * width, columns)
    assert rows * mine * threads <= 1.5 * tiles * columns


def matrix(program: str, count: int) -> np.ndarray:
    """Return the matrix of a transform of so many inputs."""
    return np.array(Rows.of(program, "f64").formulas.evaluate([*np.eye(count)]))


@pytest.mark.parametrize("form", [LARGE, SMALL], ids=["large", "small"])
def test_transforms_are_those_of_a_convolution(form: TileForm) -> None:
    """Along an axis, forward and of the gradient of a filter, in double precision."""
    rng = np.random.default_rng(0)
    d, g, dy = (rng.standard_normal(n) for n in (form.size, TAPS, form.out))
    v, u, s = (
        matrix(program, a.size) @ a
        for program, a in ((form.window, d), (form.filter, g), (form.spread, dy))
    )
    y, dg = matrix(form.output, form.size) @ (v * u), matrix(form.gather, form.size) @ (v * s)
    np.testing.assert_allclose(y, np.correlate(d, g, "valid"), atol=1e-12)
    np.testing.assert_allclose(dg, np.correlate(d, dy, "valid"), atol=1e-12)


# Of tiles, the least and the most error of factors of bf16, in errors of direct products.
ERRORS = ((LARGE, 3.5, 5.5), (SMALL, 1.4, 2.0))


@pytest.mark.parametrize("row", ERRORS, ids=["large", "small"])
@pytest.mark.parametrize("is_positive", [False, True])
def test_transformed_operands_of_small_tiles_may_be_halves(is_positive: bool, row: Any) -> None:
    """Those of large tiles have 4 times the error of direct products of halves."""
    form, least, most = row
    rng, channels = np.random.default_rng(0), 64
    x = rng.standard_normal((32, channels, form.size, form.size))
    x = np.maximum(x, 0) if is_positive else x
    w = rng.standard_normal((16, channels, TAPS, TAPS))

    def direct(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
        return np.asarray(np.einsum("tcijkl,ockl->toij", windows, w))

    def halved(values: np.ndarray) -> np.ndarray:
        return round_to_half(values.astype(np.float32), "bf16").astype(np.float64)

    def transformed(values: np.ndarray, program: str, count: int) -> np.ndarray:
        made = matrix(program, count)
        return np.asarray(np.einsum("ij,abjk,lk->abil", made, values, made))

    def by_winograd(x: np.ndarray, w: np.ndarray, cut: Callable[..., np.ndarray]) -> np.ndarray:
        v = cut(transformed(x, form.window, form.size))
        u = cut(transformed(w, form.filter, TAPS))
        products = np.einsum("tcij,ocij->toij", v, u)
        return transformed(products, form.output, form.size)

    def error(made: np.ndarray) -> float:
        return float(np.linalg.norm(made - exact) / np.linalg.norm(exact))

    exact, stored = direct(x, w), halved(x)
    np.testing.assert_allclose(by_winograd(x, w, np.asarray), exact, atol=1e-11)
    rounded = error(direct(stored, halved(w)))
    assert 2.0**-9.5 < rounded < 2.0**-8
    assert least * rounded < error(by_winograd(stored, w, halved)) < most * rounded
    assert error(by_winograd(stored, w, np.asarray)) < rounded  # weights are not rounded


# Tiles that images do not fill, in lines that end between the two of a word; and filters in blocks.
PRODUCTS = (
    ((2, 18, 9, 7), 34, [1, 1, 1, 1], 2), ((1, 32, 12, 13), 64, [2, 1, 0, 2], 3),
    ((3, 40, 3, 4), 130, [1, 1, 1, 1], 4), ((2, 6, 21, 70), 6, [1, 1, 1, 1], 2),
    ((1, 16, 1, 1), 16, [1, 1, 1, 1], 2), ((1, 6, 2, 3), 6, [4, 4, 3, 4], 1),
    ((1, 1200, 4, 5), 20, [1, 1, 1, 1], 1), ((0, 16, 8, 8), 16, [1, 1, 1, 1], 2),
)  # fmt: skip


@pytest.mark.parametrize("target", ["own", "portable"])
@pytest.mark.parametrize("row", PRODUCTS, ids=lambda r: "x".join(map(str, (*r[0], r[1]))))
def test_small_tiles_multiply_factors_of_bf16(
    monkeypatch: pytest.MonkeyPatch, row: Any, target: str
) -> None:
    """In all directions; the error is what their rounding makes, and no more."""
    for module in (convolution, weight_gradient):
        monkeypatch.setattr(module, "choose_tiles", lambda *_: SMALL)
    host = detect_host() if target == "own" else list_levels()[-1].make_target()
    images, _, pads, threads = row
    given = layer(row, "dX", np.float32)
    nodes = [
        Node("Conv", ("x", "w"), ("y",), {"pads": pads}, name="conv"),
        Node("ConvGrad", ("dy", "x", "w"), ("dx", "dw"), {"pads": pads}, "com.microsoft", "grad"),
    ]

    def make_graph(arrays: dict[str, np.ndarray]) -> Graph:
        kinds = {name: find_type(a) for name, a in arrays.items()}
        return Graph("g", kinds, ["y", "dx", "dw"], {}, [replace(n) for n in nodes], OPSETS)

    options = PlanOptions(precision="bf16")
    plan = make_plan(
        make_graph(given), {}, target=with_factors(host), threads=threads, options=options
    )
    kinds = {(spec.template, *spec.params[-1:]) for spec in plan.specs}
    if images[0]:
        assert {("winograd", "bf16"), ("winograd_dw", "bf16"), ("winograd_fold", 2)} <= kinds
    made = execute(plan, given, target=host)
    exact = {name: a.astype(np.float64) for name, a in given.items()}
    choose(monkeypatch, DIRECT)
    want = run(make_graph(exact), exact)
    for name in ("y", "dx", "dw"):
        scale = np.linalg.norm(want[name])
        assert np.linalg.norm(made[name] - want[name]) <= 2.0**-7.5 * scale
    again = execute(plan, given, target=host)
    assert all(np.array_equal(made[name], again[name]) for name in made)
