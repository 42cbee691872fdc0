"""Norms over all gradients, and scaling down to one.

Clipping  g = g min(max_norm / (||g|| + 1e-6), 1), the norm over all parameters; NaN stays NaN.
          ClipFactor makes the factor and the norm alone, in double, and g stays as it is: steps
          multiply what they read.  Its gradients may be of several element types
Error     squares are added in the working type in runs of 4096 elements of one tensor, the runs in
          double and in the order of the tensors, whatever the number of threads
Source    torch.nn.utils.clip_grad_norm_; onnxruntime's clip_grad_norm.cc

A flat tensor holds the gradients of all parameters of an element type; the planner says in
attributes where they begin.  Its zero padding counts for nothing.  Without attributes an input is
one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from engine.base.element_types import FLOATS, ITEMSIZE
from engine.base.errors import suggest_nearest
from engine.kernels.loops.blocks import Blocks
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.ranges import (
    RUN,
    TABLE,
    TABLES,
    count_runs,
    find_ends,
    pack_ranges,
    within,
)
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    Body,
    Numbers,
    Parameters,
    imin,
    inline,
    kernel,
    off,
    share_blocks,
)
from engine.kernels.vocabulary.op import (
    MANY,
    MS,
    OURS,
    Kind,
    Lowering,
    Op,
    Operand,
    Site,
    TensorType,
)
from engine.kernels.vocabulary.row_program import loop

LINE = 64  # threads part arrays at multiples of this many elements: whole cache lines

square_root = loop("f64", "x -> sqrt(x)")  # of one double: square_root(x, 1)


# --- kernels


def cut_runs(steps: Sequence[int], numbers: Numbers, at: int) -> Blocks | None:
    """Return how a kernel is cut that adds over the runs of one range, which begins at 0.

    numbers: the counts of ranges and of runs, and others.
    steps: from run to run of each pointer.
    at: the position of the number that says how many runs threads share at a time.
    """
    count, runs = map(int, numbers[:2])
    if count != 1:
        return None
    return Blocks(runs, tuple(steps), numbered=True, unit=RUN, at=at)


# The signature of a kernel that sums over each run of x.
RUN_SUMS = f"""
    x: T[...]   sums: out f64[...]   {TABLE}   count, runs, at: i64   block: i64 where block >= 1
"""


def measure_runs_reach(c: KernelCall) -> Reach:
    """Return the reach of such a kernel."""
    end, runs = find_ends(c)
    used = min(runs, c.runs)
    return {"x": end, "sums": c.at + used if used else 0}


def cut_run_sums(params: Parameters, numbers: Numbers) -> Blocks | None:
    """Cut such a kernel into blocks of runs."""
    return cut_runs((RUN * ITEMSIZE[str(params[0])], ITEMSIZE["f64"], 0), numbers, 3)


def sum_runs(T: str, text: str) -> Body:
    """Return the body of such a kernel: sums[at + r] = the sum, by a row program, over run r.

    Threads share the runs in blocks of `block`.
    """
    run = loop(T, text)

    def body(x, sums, ranges, count, runs, at, block, tid, nthreads):
        first, last = share_blocks(runs, block, tid, nthreads)
        done = 0
        for k in range(count):
            span = off(ranges.ranges, k)
            low, high, own = within(ranges, k, done, first, last)
            for r in range(low, high):
                start = span.begin + r * RUN
                sums[at + done + r] = run(off(x, start), imin(RUN, span.size - r * RUN))
            done += own

    return body


@kernel(RUN_SUMS, words=TABLES, reach=measure_runs_reach, tiling=cut_run_sums)
def square_sums(target: Target, T: str) -> Body:
    """sums[at + r] = sum of x[i]^2 over run r of the runs of all ranges."""
    return sum_runs(T, "x[] -> sum(x * x)")


@inline
def norm_of(sums, runs):
    """The square root of the sum of all runs, always added in the same order."""
    total = 0.0
    for r in range(runs):
        total += sums[r]
    return square_root(total, 1)


@kernel("sums: f64[runs]  x: update T[n]  n, runs: i64  max_norm: f64")
def clip(target: Target, T: str) -> Body:
    """x = x min(max_norm / (norm + 1e-6), 1), in place, norm^2 the sum of all runs."""
    run = loop(T, "g[] k -> g[] = g * k")

    def body(sums, x, n, runs, max_norm, tid, nthreads):
        factor = max_norm / (norm_of(sums, runs) + 1e-6)
        # Not `factor < 1`: a NaN norm must reach the gradients.
        if not factor >= 1.0:
            begin, end = share_blocks(n, LINE, tid, nthreads)
            run(off(x, begin), factor, off(x, begin), end - begin)

    return body


@kernel("sums: f64[runs]  y: out f64[1]  runs: i64  max_norm: f64")
def clip_factor(target: Target, T: str) -> Body:
    """y[0] = min(max_norm / (norm + 1e-6), 1), norm^2 the sum of all runs."""

    def body(sums, y, runs, max_norm, tid, nthreads):
        if tid == 0:
            factor = max_norm / (norm_of(sums, runs) + 1e-6)
            y[0] = 1.0 if factor >= 1.0 else factor

    return body


@kernel("sums: f64[runs]  y: out T[1]  runs: i64")
def norm(target: Target, T: str) -> Body:
    """y[0] = square root of the sum of all runs.  One thread."""

    def body(sums, y, runs, tid, nthreads):
        if tid == 0:
            y[0] = norm_of(sums, runs)

    return body


# --- lowering


def _add_squares(
    lowering: Lowering, x: Operand, sums: Operand, ranges: Sequence[tuple[int, int]], at: int
) -> int:
    """Call square_sums for ranges of x, whose first run is run `at`; return the run after them."""
    runs = sum(count_runs(size) for _, size in ranges)
    lowering.call(
        square_sums(x.type.dtype), x=x, sums=sums, ranges=lowering.const(pack_ranges(ranges)),
        count=len(ranges), runs=runs, at=at, block=1, updates=("sums",) if at else (),
    )  # fmt: skip
    return at + runs


def _read_max_norm(site: Site) -> float:
    if site.attrs["norm_type"] not in ("fro", b"fro"):
        site.fail(f"norm_type is {site.attrs['norm_type']!r}", "'fro'")
    return float(site.attrs["max_norm"])


def _append_sums(lowering: Lowering) -> tuple[Operand, int]:
    """Add the sums of squares of all inputs in order, and return the number of runs."""
    attrs = lowering.site.attrs
    xs = [lowering.x(i) for i in range(len(lowering.site.ins))]
    known = zip(attrs.get("begins", ()), attrs.get("sizes", ()), strict=True)
    counts = attrs.get("counts", ())
    if counts:
        ranges = [list(islice(known, count)) for count in counts]
    else:
        ranges = [[(0, x.type.size)] for x in xs]
    runs = sum(count_runs(size) for each in ranges for _, size in each)
    sums, at = lowering.temp("f64", (runs,)), 0
    for x, each in zip(xs, ranges, strict=True):
        at = _add_squares(lowering, x, sums, each, at)
    return sums, runs


def _lower_clip(lowering: Lowering) -> None:
    g, max_norm = lowering.x(0), _read_max_norm(lowering.site)
    sums, runs = _append_sums(lowering)
    lowering.call(clip(g.type.dtype), sums=sums, x=g, n=g.type.size, runs=runs, max_norm=max_norm)


def _lower_factor(lowering: Lowering) -> None:
    max_norm, T = _read_max_norm(lowering.site), _find_widest(lowering.site)
    sums, runs = _append_sums(lowering)
    lowering.call(clip_factor(T), sums=sums, y=lowering.y(0), runs=runs, max_norm=max_norm)
    if lowering.wants(1):
        lowering.call(norm(T), sums=sums, y=lowering.y(1), runs=runs)


def _lower_norm(lowering: Lowering) -> None:
    y = lowering.y(0)
    sums, runs = _append_sums(lowering)
    lowering.call(norm(y.type.dtype), sums=sums, y=y, runs=runs)


# --- shapes


FACTOR = TensorType("f64", (1,))  # what gradients are multiplied by
CLIP: dict[str, Any] = {"max_norm": 1.0, "norm_type": "fro"}
# That the planner adds: where the gradients of parameters begin in the inputs, how many elements
# they have, and how many there are in each input.
PLACES: dict[str, Kind] = {"begins": "ints", "sizes": "ints", "counts": "ints"}


def check_attributes(site: Site, known: Mapping[str, Any]) -> None:
    """Refuse unknown attributes, and numbers that are not finite."""
    for name, value in site.attrs.items():
        if name not in known:
            site.fail(
                f"attribute {name!r}{suggest_nearest(name, known)}", ", ".join(known) or "none"
            )
        if isinstance(value, float) and not math.isfinite(value):
            site.fail(f"{name} is {value}", "finite numbers")


def check_floats(site: Site, first: int = 0) -> None:
    """Refuse inputs, from `first` on, that are neither f32 nor f64, or sequences of them."""
    for i in range(first, len(site.ins)):
        if _find_element(site.type(i)) not in FLOATS:
            site.wrong(f"input {i} is {site.type(i)}; expected {' or '.join(sorted(FLOATS))}")


def _find_element(t: TensorType) -> str:
    """Return the element type of a tensor, or of the tensors of a sequence."""
    return t.dtype.removeprefix("seq(").removesuffix(")")


def _find_widest(site: Site) -> str:
    """Return the largest element type of the inputs."""
    kinds = (_find_element(site.type(i)) for i in range(len(site.ins)))
    return max(kinds, key=ITEMSIZE.__getitem__)


def _check_places(site: Site) -> None:
    """Refuse parts that are not within the inputs: a kernel would read what follows them."""
    begins, sizes, counts = (tuple(site.attrs.get(name, ())) for name in PLACES)
    if not (begins or sizes or counts):
        return
    if len(counts) != len(site.ins) or min(counts, default=0) < 0:
        site.fail(f"counts is {list(counts)}", f"{len(site.ins)} numbers from 0 on, one per input")
    if not len(begins) == len(sizes) == sum(counts):
        site.fail(
            f"begins has {len(begins)} numbers and sizes {len(sizes)}",
            f"{sum(counts)}, the sum of counts",
        )
    parts = zip(begins, sizes, strict=True)
    for i, count in enumerate(counts):
        t = site.type(i)
        for begin, size in islice(parts, count):
            if t.dtype not in FLOATS or min(begin, size) < 0 or begin + size > t.size:
                site.fail(
                    f"begins and sizes select elements {begin} to {begin + size} of input {i}, {t}",
                    "ranges inside the input",
                )


def _clip_infer(site: Site) -> tuple[TensorType, ...]:
    check_attributes(site, {**CLIP, **PLACES})
    _check_places(site)
    return (site.type(0),)


def _factor_infer(site: Site) -> tuple[TensorType, ...]:
    check_attributes(site, {**CLIP, **PLACES})
    check_floats(site)
    _check_places(site)
    return (FACTOR, TensorType(_find_widest(site), (1,)))[: max(site.n_outs, 1)]


def _norm_infer(site: Site) -> tuple[TensorType, ...]:
    return (TensorType(_find_element(site.type(0)), ()),)


OPS = (
    Op(
        name="InplaceClipGradNorm",
        domain=MS,
        inputs=(1, 1),
        outputs=1,
        training_only=True,
        attrs=CLIP,
        takes=PLACES,
        infer=_clip_infer,
        lower=_lower_clip,
        calls=(square_sums, clip),
        is_view=True,
        joined=f"{OURS}::ClipFactor",
    ),
    Op(
        name="ClipFactor",
        domain=OURS,
        inputs=(1, MANY),
        outputs=2,
        attrs=CLIP,
        takes=PLACES,
        infer=_factor_infer,
        lower=_lower_factor,
        calls=(square_sums, clip_factor, norm),
        reads_all_gradients=True,
    ),
    Op(
        name="ReduceAllL2",
        domain=MS,
        inputs=(1, MANY),
        outputs=1,
        training_only=True,
        infer=_norm_infer,
        lower=_lower_norm,
        calls=(square_sums, norm),
    ),
)
KERNELS = (square_sums, clip, clip_factor, norm)
