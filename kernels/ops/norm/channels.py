"""Statistics of channels, axis 1, over all other axes: what batch normalisation is made of.

ChannelMoments  mean = sum x / n,  var = sum (x - mean)^2 / n
ChannelSums     sums of formulas over any operands that broadcast to [N, C, ...]
Error     moments: blocks of rows are centred at their own mean and then merged, so that the error
          of var is relative to var, however large mean^2 / var is; sums: two levels of float sums
Source    Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
          variances", 1979

Images stay in the layout they have.  Stored [rows, C] (channels last, or no spatial axes) columns
are summed, f neighbouring rows as one row of f C columns where C is small; stored [N, C, pixels]
rows are.  The work is cut into parts by its size alone, so results depend on no number of threads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.fold import RUN
from engine.kernels.loops.map import MAP_KERNELS, lower_map, walk_outer
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.facts import Layout, Storage
from engine.kernels.vocabulary.kernel import (
    OPERANDS,
    Body,
    Intrinsic,
    Numbers,
    Parameters,
    imin,
    inline,
    kernel,
    name_pointer,
    off,
    share,
    share_blocks,
    udiv,
)
from engine.kernels.vocabulary.op import OURS, Lowering, Op, Operand, Site, TensorType, find_stored
from engine.kernels.vocabulary.row_program import (
    Input,
    Program,
    list_column_fields,
    list_fields,
    loop,
)
from engine.kernels.vocabulary.shape_rules import broadcast, broadcast_dims
from engine.kernels.vocabulary.terms import Formulas
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import Field, Packed, Words

PART = 1 << 16  # elements of a part of the work
CHUNK = 512  # columns of a part that are worked on together
LINE = 64  # channels of one thread's share are multiples of this
BLOCK = 8192  # elements of a block of rows, which stays in the first-level cache

# The formulas of batch normalisation's gradient, of dy, x and the mean: what ChannelSums sums as
# long as nothing is fused with it, as in closed plans.
GRADIENT_SUMS = Formulas.of(("in", 0), ("mul", ("in", 0), ("sub", ("in", 1), ("in", 2))))
_GRADIENT_SUMS = "; ".join(f"sum({formula})" for formula in GRADIENT_SUMS.write_texts()[1])


@inline
def weights(count, more):
    """Of the mean and of its squared difference, where `more` elements join `count`."""
    # Chan, Golub, LeVeque: for counts a, b and d = mean_b - mean_a the joined mean is mean_a + d b
    # / (a + b), the joined square square_a + square_b + d^2 a b / (a + b).
    total = count + more
    return more / total, count * more / total


def _merge(T: str) -> Intrinsic:
    """merge(mean, square, more mean, more square, weights..., mean, square, n)."""
    return loop(
        T,
        "mean[] square[] mean2[] square2[] w v -> d = mean2 - mean;"
        "mean[] = mean + d * w; square[] = square + square2 + d * d * v",
    )


# --- kernels


def _column_sums(T: str, source: str) -> Intrinsic:
    """Return the intrinsic column_sums of a program; its last operand, of one row, is `beside`."""
    head, _, sums = source.partition("->")
    return Intrinsic("column_sums", (Program.of(f"{head} beside[] -> {sums}", T),))


@functools.cache
def make_cols_words(count: int) -> Words:
    """Return the words of kernels by columns of `count` operands."""
    return Words(
        "channel_cols",
        **list_column_fields(count),
        rows="rows of all parts",
        n="columns",
        parts="into how many parts the rows are cut",
        chunk="columns that are worked on together",
        block="rows whose sums are closed together",
    )


@functools.cache
def make_rows_words(count: int) -> Words:
    """Return the words of the kernel by rows of `count` operands."""
    fields = list_fields(count, 2)
    fields["dims"] = Field("how many there are", names=("images", "channels"))
    return Words("channel_rows", **fields, n="elements of a row")


def _make_sums_cols_words(T: str, sums: str) -> Words:
    return make_cols_words(len(Program.of(sums, T).ins))


def _make_sums_rows_words(T: str, sums: str) -> Words:
    return make_rows_words(len(Program.of(sums, T).ins))


def _list_operands(T: str, sums: str) -> tuple[str, ...]:
    """Return the types of the pointers among the words."""
    return tuple(name_pointer(i.dtype) for i in Program.of(sums, T).ins)


def _cut(T: str, kinds: Sequence[str], numbers: Numbers, vectors: int, before: int) -> Tiling:
    """Return how a kernel by columns is cut into tiles; each tile makes one part.

    kinds: the types of the operands.  vectors: how many a part has.  before: the pointers before
    the operands; the first points to the parts.
    """
    layout = make_cols_words(len(kinds))
    words = layout.unpack(numbers)
    steps = [ITEMSIZE[kind] * step for kind, step in zip(kinds, words["steps"], strict=True)]
    return Tiling(
        words["rows"],
        (*[0] * before, *steps),
        counts=(layout.place("rows"),),
        fixed={layout.place("parts"): 1},
        parts=(0, ITEMSIZE[T] * vectors * words["n"]),
    )


def _cut_sums(params: Parameters, numbers: Numbers) -> Tiling:
    T = str(params[0])
    program = Program.of(str(params[1]), T)
    return _cut(T, program.kinds, numbers, len(program.reductions), 1)


def _cut_moments(params: Parameters, numbers: Numbers) -> Tiling:
    return _cut(str(params[0]), [str(params[-1])], numbers, 2, 2)


def _walk_columns(c: KernelCall, kinds: Sequence[str]) -> list[int]:
    """Return the reach into operands whose rows are `steps` apart; kinds: of `Input`."""
    return [
        c.span(0, (c.rows, step), (c.n, int(kind != "s")))
        for kind, step in zip(kinds, c.steps, strict=True)
    ]


def _sums_cols_reach(c: KernelCall) -> Reach:
    program = Program.of(str(c.params[1]), c.T)
    return {
        "part": c.parts * len(program.reductions) * c.n,
        OPERANDS: _walk_columns(c, [i.kind for i in program.ins]),
    }


def _sums_rows_reach(c: KernelCall) -> Reach:
    program = Program.of(str(c.params[1]), c.T)
    kinds = [i.kind for i in program.ins]
    return {
        "part": math.prod(c.dims) * len(program.reductions),
        OPERANDS: walk_outer(c, kinds, c.dims, c.steps, c.n),
    }


_BLOCKS = "where min(chunk, block, parts) >= 1"


@kernel(
    f"part: out T[...]  g: i64[] {_BLOCKS}",
    sums=(f"a[] b[] c[column] -> {_GRADIENT_SUMS}",),
    operands=_list_operands,
    words={"g": _make_sums_cols_words},
    reach=_sums_cols_reach,
    tiling=_cut_sums,
)
def channel_sums_cols(target: Target, T: str, sums: str) -> Body:
    """part[p, k, c] = fold k of a row program over the rows of part p.

    sums: the program's text; its types are T where it names none.  part: T[parts, folds, n].
    """
    kinds = len(Program.of(sums, T).reductions)
    add, zero = _column_sums(T, sums), Intrinsic("zero", (T,))

    def body(part, g, tid, nthreads):
        n, parts, chunk = g.n, g.parts, g.chunk
        chunks = udiv(n + chunk - 1, chunk)
        first, last = share(parts * chunks, tid, nthreads)
        for i in range(first, last):
            p = udiv(i, chunks)
            j = (i - p * chunks) * chunk
            k = imin(chunk, n - j)
            # Parts follow from the size of the work: the sums are the same for any number of
            # threads.
            into = off(part, p * kinds * n + j)
            for f in range(kinds):
                zero(off(into, f * n), k)
            r, end = share(g.rows, p, parts)
            # The sums of a block of rows are closed before they meet the part's: two levels of
            # sums.
            while r < end:
                m = imin(g.block, end - r)
                add(g.operands, r, m, j, k, into, into, n)
                r += m

    return body


@kernel(
    "part: out T[...]  g: i64[]",
    sums=(f"a[] b[] c* -> {_GRADIENT_SUMS}",),
    operands=_list_operands,
    words={"g": _make_sums_rows_words},
    reach=_sums_rows_reach,
)
def channel_sums_rows(target: Target, T: str, sums: str) -> Body:
    """part[a, k, c] = fold k of a row program over row [a, c].

    sums: as channel_sums_cols.  part: T[images, folds, channels].
    """
    program = Program.of(sums, T)
    kinds = len(program.reductions)
    add = Intrinsic("row_sums", (program, 2))

    def body(part, g, tid, nthreads):
        images, channels, n = g.dims_images, g.dims_channels, g.n
        first, last = share(images * channels, tid, nthreads)
        for r in range(first, last):
            a = udiv(r, channels)
            into = off(part, a * kinds * channels + r - a * channels)
            for f in range(kinds):
                into[f * channels] = 0
            for j in range(0, n, RUN):
                add(g.operands, r, j, imin(RUN, n - j), into, channels)

    return body


def _join_reach(c: KernelCall) -> Reach:
    walks = (c.parts, c.stride), (c.folds, c.channels), (c.channels, 1)
    first = c.begin + c.channels
    return {"part": max(c.span(c.begin, *walks), first) if c.channels else 0}


@kernel(
    "part: T[...]  y: out T[channels]  parts, stride, begin, folds, channels: i64",
    reach=_join_reach,
    joins=0,
)
def channel_sums_join(target: Target, T: str) -> Body:
    """y[c] = sum of part[p stride + begin + f channels + c] over p < parts and f < folds."""
    add, copy = loop(T, "y[] part[] -> y[] = y + part"), Intrinsic("copy", (T,))

    def body(part, y, parts, stride, begin, folds, channels, tid, nthreads):
        first, last = share_blocks(channels, LINE, tid, nthreads)
        k = last - first
        if k > 0:
            copy(off(y, first), off(part, begin + first), k)
            for i in range(1, parts * folds):
                p = udiv(i, folds)
                at = off(part, p * stride + begin + (i - p * folds) * channels + first)
                add(off(y, first), at, off(y, first), k)

    return body


@kernel(
    f"part: out T[parts, 2, n]  work: scratch T[threads, 2, chunk]  g: i64[] {_BLOCKS}",
    operands=lambda T, S="": (name_pointer(S or T),),
    words={"g": make_cols_words(1)},
    reach=lambda c: {OPERANDS: _walk_columns(c, ["v"])},
    tiling=_cut_moments,
)
def channel_moments_cols(target: Target, T: str, S: str = "") -> Body:
    """part[p, 0, c], part[p, 1, c] = mean and sum of (x - mean)^2 of column c in part p.

    x, the operand: S[rows, n].
    """
    x = f"x:{S or T}[]"
    sums = _column_sums(T, f"{x} -> sum(x)")
    squares = _column_sums(T, f"{x} -> sum((x - beside) * (x - beside))")
    zero, copy = Intrinsic("zero", (T,)), Intrinsic("copy", (T,))
    scale = loop(T, "x[] k -> y[] = x * k")
    merge = _merge(T)

    def body(part, work, g, tid, nthreads):
        n, parts, chunk = g.n, g.parts, g.chunk
        chunks = udiv(n + chunk - 1, chunk)
        # Mean and square of the block at hand, which stays in the first-level cache for both
        # passes.
        m, s = off(work, tid * 2 * chunk), off(work, (tid * 2 + 1) * chunk)
        first, last = share(parts * chunks, tid, nthreads)
        for i in range(first, last):
            p = udiv(i, chunks)
            j = (i - p * chunks) * chunk
            k = imin(chunk, n - j)
            mean, square = off(part, p * 2 * n + j), off(part, (p * 2 + 1) * n + j)
            begin, end = share(g.rows, p, parts)
            r = begin
            while r < end:
                rows = imin(g.block, end - r)
                zero(m, k)
                sums(g.operands, r, rows, j, k, m, m, 0)
                scale(m, 1.0 / rows, m, k)
                zero(s, k)
                squares(g.operands, r, rows, j, k, m, s, 0)
                # The first block of a part is taken as it is: there is nothing to merge it with.
                if r == begin:
                    copy(mean, m, k)
                    copy(square, s, k)
                else:
                    a, b = weights(r - begin, rows)
                    merge(mean, square, m, s, a, b, mean, square, k)
                r += rows

    return body


@kernel(
    "x: S[images, channels, n]  part: out T[images, 2, channels] if n  images, channels, n: i64"
)
def channel_moments_rows(target: Target, T: str, S: str = "") -> Body:
    """part[a, 0, c], part[a, 1, c] = mean and sum of (x - mean)^2 of row [a, c]."""
    total = loop(T, "x:S[] -> sum(x)", S)
    square = loop(T, "x:S[] mean -> sum((x - mean) * (x - mean))", S)

    def body(x, part, images, channels, n, tid, nthreads):
        first, last = share(images * channels, tid, nthreads)
        for r in range(first, last):
            a = udiv(r, channels)
            into = off(part, a * 2 * channels + r - a * channels)
            j = 0
            while j < n:
                k = imin(RUN, n - j)
                at = off(x, r * n + j)
                mean = total(at, k) / k
                more = square(at, mean, k)
                if j == 0:
                    into[0], into[channels] = mean, more
                else:
                    w, v = weights(j, k)
                    d = mean - into[0]
                    into[0] += d * w
                    into[channels] += more + d * d * v
                j += k

    return body


@kernel(
    """
    part: T[parts, 2, folds, channels]   mean, var: out T[channels]
    rows: i64   parts: i64 where parts >= 1   folds: i64 where folds >= 1   channels: i64
    """,
    joins=1,
)
def channel_moments_join(target: Target, T: str) -> Body:
    """mean[c], var[c]: of all elements of the channel, from the moments of parts and folds.

    part: part p of `rows` cut evenly.
    """
    copy, scale = Intrinsic("copy", (T,)), loop(T, "x[] k -> y[] = x * k")
    merge = _merge(T)

    def body(part, mean, var, rows, parts, folds, channels, tid, nthreads):
        first, last = share_blocks(channels, LINE, tid, nthreads)
        k = last - first
        if k > 0:
            m, s = off(mean, first), off(var, first)
            # The joined moments start from the first part; all others are merged in order.
            copy(m, off(part, first), k)
            copy(s, off(part, folds * channels + first), k)
            begin, end = share(rows, 0, parts)
            count = end
            for i in range(1, parts * folds):
                p = udiv(i, folds)
                begin, end = share(rows, p, parts)
                at = off(part, (p * folds + i) * channels + first)
                a, b = weights(count, end - begin)
                merge(m, s, at, off(at, folds * channels), a, b, m, s, k)
                count += end - begin
            # The population variance: the sum of squares by the count, not by count - 1.
            scale(s, 1.0 / count, s, k)

    return body


# --- lowering


@dataclass(frozen=True, slots=True)
class ChannelWalk:
    """The walk over channels: `images` [N, C, n] by rows, or `rows` of n = folds C columns."""

    channels: int
    images: int = 0
    n: int = 0
    rows: int = 0
    folds: int = 1

    @property
    def parts(self) -> int:
        """The number of parts that the work is cut into."""
        if self.images:
            return self.images
        return min(max(self.rows * self.n // PART, 1), 64, self.rows)

    def words(self, steps: Sequence[int]) -> Packed:
        """Return the words of kernels by columns; steps: strides of operands from row to row."""
        chunk = min(self.n, CHUNK)
        return make_cols_words(len(steps)).pack(
            steps=steps,
            rows=self.rows,
            n=self.n,
            parts=self.parts,
            chunk=chunk,
            block=max(BLOCK // chunk, 8),
        )


def _walk(t: TensorType) -> ChannelWalk:
    images, channels, *rest = t.dims
    pixels = math.prod(rest)
    # [N, C, pixels]: the values of a channel adjoin, so rows are summed.  Otherwise channels
    # adjoin, and columns are summed.
    if not t.last and pixels > 1:
        return ChannelWalk(channels, images=images, n=pixels)
    rows = images * pixels
    # Few channels would leave vectors short: f neighbouring rows are walked as one row of f C
    # columns, whose sums are folded in the end.  f divides the rows, and 8 rows remain at least.
    most = min(CHUNK // 2 // channels, rows // 8)
    folds = next((f for f in range(most, 1, -1) if rows % f == 0), 1)
    return ChannelWalk(channels, n=folds * channels, rows=rows // folds, folds=folds)


def _lower_moments(lowering: Lowering) -> None:
    x, w = lowering.x(0), _walk(lowering.x(0).type)
    T, S = find_stored(x)
    part = lowering.temp(T, (w.parts, 2, w.folds * w.channels))
    if w.images:
        lowering.call(
            channel_moments_rows(T, *S), x=x, part=part, images=w.images, channels=w.channels, n=w.n
        )
    else:
        work = lowering.temp(T, (lowering.threads, 2, min(w.n, CHUNK)))
        lowering.call(
            channel_moments_cols(T, *S), part=part, work=work, operands=[("r", x)], g=w.words([w.n])
        )
    lowering.call(
        channel_moments_join(T), part=part, mean=lowering.y(0), var=lowering.y(1),
        rows=w.images * w.n if w.images else w.rows, parts=w.parts, folds=w.folds,
        channels=w.channels,
    )  # fmt: skip


def _broadcast(lowering: Lowering) -> TensorType:
    """Return the type that all operands broadcast to, over which the sums run."""
    operands = [lowering.x(i).type for i in range(len(lowering.site.ins))]
    shape = broadcast_dims(*(t.dims for t in operands))
    return TensorType(lowering.y(0).type.dtype, shape, any(t.last for t in operands))


def _find_access(t: TensorType, full: TensorType) -> str:
    """Return how an operand is read: "v" all of it, "c" a value a channel, "s" one value."""
    return "v" if t.shape == full.shape else "s" if t.size == 1 else "c"


def _lower_sums(lowering: Lowering) -> None:
    full = _broadcast(lowering)
    w, T = _walk(full), full.dtype
    operands = [lowering.x(i) for i in range(len(lowering.site.ins))]
    kinds = [_find_access(o.type, full) for o in operands]
    sums: Formulas = lowering.site.attrs["formulas"]
    count = len(sums.results)
    part = lowering.temp(T, (w.parts, count, w.folds * w.channels))
    if w.images:
        access = ["v" if k == "v" else "s" for k in kinds]
        template = channel_sums_rows
        # Strides along images and channels: full operands, vectors of channels, single values.
        steps = {"v": (w.channels * w.n, w.n), "c": (0, 1), "s": (0, 0)}
        words = make_rows_words(len(kinds)).pack(
            dims=(w.images, w.channels), steps=[x for k in kinds for x in steps[k]], n=w.n
        )
    else:
        operands = [
            _tiled(lowering, o, w) if k == "c" else o for o, k in zip(operands, kinds, strict=True)
        ]
        access, template = kinds, channel_sums_cols
        words = w.words([w.n if k == "v" else 0 for k in kinds])
    ins = tuple(Input(o.type.dtype, k) for o, k in zip(operands, access, strict=True))
    program = Program(ins, sums, reductions=((T, "sum"),) * count)
    spec = template(T, program.text(T))
    lowering.call(spec, part=part, operands=[("r", o) for o in operands], g=words)
    columns = w.folds * w.channels
    for k in range(count):
        # Sums nobody reads are made with the others, but not joined.
        if lowering.wants(k):
            lowering.call(
                channel_sums_join(T), part=part, y=lowering.y(k), parts=w.parts,
                stride=count * columns, begin=k * columns, folds=w.folds, channels=w.channels,
            )  # fmt: skip


def _tiled(lowering: Lowering, x: Operand, w: ChannelWalk) -> Operand:
    """Return a vector of channels, repeated for each row of those walked as one row."""
    if w.folds == 1:
        return x
    out = lowering.temp(x.type.dtype, (w.folds, w.channels))
    lower_map(lowering, [("in", 0)], [Operand(x.name, x.type.but((w.channels,)))], [out])
    return out


# --- ops


def _check(site: Site, t: TensorType) -> None:
    if t.rank < 2:
        site.fail(f"the tensor is {t}, of rank {t.rank}", "[N, C, ...]")
    if 0 in t.shape:
        site.fail(f"the tensor is {t}, which has no elements")


def _infer_moments(site: Site) -> tuple[TensorType, ...]:
    x = site.real(0)
    _check(site, x)
    return (x.but(x.shape[1:2]),) * 2


def _infer_sums(site: Site) -> tuple[TensorType, ...]:
    types = [site.type(i) for i in range(len(site.ins))]
    shape = broadcast(site, *types)
    full = TensorType(site.attrs.get("dtype", types[0].dtype), shape)
    _check(site, full)
    return (full.but(shape[1:2]),) * len(site.attrs["formulas"].results)


OPS = (
    Op(
        name="ChannelMoments",
        domain=OURS,
        inputs=(1, 1),
        outputs=2,
        infer=_infer_moments,
        lower=_lower_moments,
        calls=(channel_moments_cols, channel_moments_rows, channel_moments_join),
        layout=Layout.ANY_INPUT,
        storage=Storage(outputs=frozenset()),
    ),
    Op(
        name="ChannelSums",
        domain=OURS,
        internal=True,
        infer=_infer_sums,
        lower=_lower_sums,
        storage=Storage(outputs=frozenset()),
        layout=Layout.ANY_INPUT,
        calls=(channel_sums_cols, channel_sums_rows, channel_sums_join, *MAP_KERNELS),
    ),
)
KERNELS = (
    channel_sums_cols, channel_sums_rows, channel_sums_join,
    channel_moments_cols, channel_moments_rows, channel_moments_join,
)  # fmt: skip
