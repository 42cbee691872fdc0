"""The GEMM kernel and what lowers to it: one thread grid, one batch loop, fused epilogues.

Error     a sum of k products in k/kc partial sums, tools/dev/cases/matmul.py
Source    the loop: contract.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.base.element_types import HALVES, ITEMSIZE
from engine.kernels.loops.contract import (
    block,
    count_in_row,
    depth_of,
    line,
    pack_cols,
    pack_rows,
    same,
    view_panel,
    words_of,
)
from engine.kernels.loops.few_rows import few_rows
from engine.kernels.loops.map import MAP_KERNELS, collapse, lower_map, update
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    BIAS,
    OPEN,
    RELU,
    Body,
    Inline,
    Instance,
    Intrinsic,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand, TensorType, get_factors
from engine.kernels.vocabulary.signature import round_to_unit
from engine.plan.words import Field, Words

# Tiles below and beside each other above which packing B pays: each packed element is then used by
# several tiles, and rows of B are so far apart that a panel lies in more pages than are known.
PACK_ROWS, PACK_COLUMNS = 4, 2
A_ROWS = 96  # rows of A that are turned into factors of 16 bits, or from them, at a time
# Rows of A up to which B, stored as rows or as columns, is not packed in each run.
FEW = (2, 8)
LEVELS = ("0", "1", "2")  # dimensions of a batch, the last one fastest


GEMM_WORDS = Words(
    "gemm",
    m="rows of C",
    n="columns of C",
    k="length of the sums",
    lda="elements from row to row of A as it is stored",
    ldb="elements from row to row of B as it is stored",
    ldc="elements from row to row of C",
    mode="bits: ACCUMULATE, BIAS, RELU",
    grid=Field("into how many parts threads cut the work", names=("batch", "rows", "columns")),
    kc="depth of a block",
    nc="columns of a block",
    panel="elements from panel to panel of B where it is read; 0: it is packed into scratch memory",
    batch=Field("dimensions of the batch", names=LEVELS),
    a_step=Field("strides of A along them, 0 where it is broadcast", names=LEVELS),
    b_step=Field("strides of B along them, 0 where it is broadcast", names=LEVELS),
)


def _reach_matrices(c: KernelCall, trans_a: bool, trans_b: bool) -> Reach:
    """Return the reach into A, B and C; nothing of a product of nothing."""
    m, n, k, count = c.m, c.n, c.k, math.prod(c.batch)
    if not m * n * k * count:
        return {}
    a = ((k, c.lda), (m, 1)) if trans_a else ((m, c.lda), (k, 1))
    b = ((n, c.ldb), (k, 1)) if trans_b else ((k, c.ldb), (n, 1))
    return {
        "a": c.span(0, *zip(c.batch, c.a_step, strict=True), *a),
        "b": c.span(0, *zip(c.batch, c.b_step, strict=True), *b),
        "c": (count - 1) * m * n + c.span(0, (m, c.ldc), (n, 1)),
    }


def _reach(c: KernelCall) -> Reach:
    n, k, trans_b, width = c.n, c.k, c.flag(-1), c.tile_columns
    direct = not trans_b and c.panel
    reach = _reach_matrices(c, bool(c.flag(-2)), bool(trans_b))
    if not reach:
        return {}
    if direct:
        if c.nc % width and c.nc < n:
            c.refuse(f"panels of B have {width} columns, which {c.nc} at a time do not begin at")
        last = (n - 1) // width  # the panels before the last one are whole
        ends = [last * c.panel + (k - 1) * c.ldb + round_to_unit(n - last * width, c.lanes)]
        ends += [(last - 1) * c.panel + (k - 1) * c.ldb + width] if last else []
        steps = c.span(0, *zip(c.batch, c.b_step, strict=True))
        reach = {**reach, "b": steps - 1 + max(ends)}
    work = c.scratch(c.per_thread, _work_of(c, direct), math.prod(c.grid))
    return {**reach, "work": work}


def _reach_few(c: KernelCall) -> Reach:
    return _reach_matrices(c, False, bool(c.flag(-1)))


def _work_of(c: KernelCall, direct: bool) -> int:
    """Return the elements of scratch memory that a thread uses."""
    if len(c.params) == 3:
        return 0 if direct else min(c.kc, c.k) * round_to_unit(min(c.nc, c.n), c.tile_columns)
    A, B, C, P = map(str, c.params[1:5])
    stored = Stored(A, B, C, P, bool(c.flag(-2)))
    if direct and not stored.is_plain_b:
        c.refuse("B is read where it is, and is not stored as it is multiplied")
    if c.nc % c.tile_columns:
        c.refuse(f"{c.nc} columns at a time, with tiles of {c.tile_columns}")
    if stored.C != "f32" and (c.mode & ACCUMULATE or c.resets):
        c.refuse(f"sums of {stored.C} are not added to")
    rows = round_to_unit(c.m, c.grid[1]) // c.grid[1]
    return stored.count_scratch(c.k, c.kc, c.nc, rows, c.tile_columns)


@dataclass(frozen=True, slots=True)
class Stored:
    """Element types of a product with factors of 16 bits.

    A, B, C: in which the matrices are stored.  P: in which factors are multiplied.
    """

    A: str
    B: str
    C: str
    P: str
    trans_a: bool

    def choose_kernel(self, *trans: int) -> Instance:
        """Return the kernel for these types; trans: of A and B."""
        return gemm_mixed("f32", self.A, self.B, self.C, self.P, *trans)

    @property
    def factors(self) -> str:
        """P as of `tile`."""
        return "" if self.P == "f32" else self.P

    @property
    def packs_a(self) -> bool:
        """True unless tiles read A where it is."""
        return self.A != self.P or (self.trans_a and self.P != "f32")

    @property
    def is_plain_b(self) -> bool:
        """True if tiles can read B where it is."""
        return self.B == self.P == "f32"

    @property
    def narrow_c(self) -> str:
        """C as of `block`."""
        return "" if self.C == "f32" else self.C

    @property
    def room(self) -> int:
        """Rows of A that are packed at a time."""
        return A_ROWS if self.packs_a else 0

    def count_scratch(self, k: int, kc: int, nc: int, rows: int, width: int) -> int:
        """Return the scratch memory of a thread with so many rows: for B, A, and sums."""
        depth = -(-kc // 2) if self.factors else kc
        sums = 0 if self.C == "f32" else rows * nc if kc < k else A_ROWS * width
        return depth * (nc + self.room) + sums


SIGNATURE = """
    a: {A}[...]   b: {B}[...]   c: out {C}[...] updates if resets   bias: T[n] if mode & BIAS
    reset: b1[1] if resets   work: scratch T[...]   resets, per_thread: i64
    g: i64[] where min(kc, nc, min(grid)) >= 1 and mode <= ACCUMULATE | BIAS | RELU
    """


@kernel(
    SIGNATURE.format(A="T", B="T", C="T"),
    words={"g": GEMM_WORDS},
    reach=_reach,
    multiply_adds="prod(batch) * m * n * k",
)
def gemm(target: Target, T: str, trans_a: int, trans_b: int) -> Body:
    """C = act(op(A) op(B) (+ C) (+ bias)), for each matrix of a batch.

    op(A): [m, k], op(B): [k, n], C: [m, n] row-major; bias: [n].  C overlaps no input.
    Overwrites C, or adds to it when mode has ACCUMULATE or when `resets` and not reset[0].
    """

    @inline
    def fill_a(a, into, g, i0, mb, k0, kb):
        lda = g.lda
        if trans_a:
            return off(a, k0 * lda + i0), lda
        return off(a, i0 * lda + k0), lda

    run = block(target, T, trans_a, fill_a, get_packing(target, T, trans_b, T, "", True))
    return _by_threads(target, T, run)


@kernel(
    """
    a: T[...]   b: T[...]   c: out T[...] updates if resets   bias: T[n] if mode & BIAS
    reset: b1[1] if resets   resets: i64
    g: i64[] where min(kc, nc, min(grid)) >= 1 and mode <= ACCUMULATE | BIAS | RELU
    """,
    words={"g": GEMM_WORDS},
    reach=_reach_few,
    multiply_adds="prod(batch) * m * n * k",
)
def gemm_few(target: Target, T: str, trans_b: int) -> Body:
    """`gemm` of few rows of A, which are stored as rows: B is read where it is, and not packed.

    Error: sums of k products in a part for each lane of a vector if trans_b, otherwise one by one.
    """
    by_grid = _by_grid(target, T, few_rows(target, T, trans_b))

    def body(a, b, c, bias, reset, resets, g, tid, nthreads):
        by_grid(a, b, c, bias, reset, c, resets, g, tid)

    return body


@kernel(
    SIGNATURE.format(A="A", B="B", C="C"),
    words={"g": GEMM_WORDS},
    reach=_reach,
    multiply_adds="prod(batch) * m * n * k",
    T=("f32",),
    A=OPEN,
    B=OPEN,
    C=OPEN,
    P=OPEN,
)
def gemm_mixed(
    target: Target, T: str, A: str, B: str, C: str, P: str, trans_a: int, trans_b: int
) -> Body:
    """`gemm` of matrices stored as A, B and C, of factors rounded to P, with sums of float32.

    P: "f32", or one of `Target.products`.  C of 16 bits is rounded once; nothing is added to it.
    Error: of rounding B, A and C to their types; the sum as of `gemm`, or of `tile` for f16.
    """
    stored = Stored(A, B, C, P, bool(trans_a))
    factor = stored.factors
    row, panel = line(target, T, A, factor), view_panel(factor)
    depth, each, move = depth_of(factor), count_in_row(factor), Intrinsic("convert", (P, A))
    as_factors = Intrinsic("halves", (P,)) if factor else same

    @inline
    def take(a, into, g, i0, mb, k0, kb):
        if trans_a:
            return off(a, k0 * g.lda + i0), g.lda
        return off(a, i0 * g.lda + k0), g.lda

    @inline
    def pack_columns(a, into, g, i0, mb, k0, kb):
        at, rows = off(a, k0 * g.lda + i0), panel(into)
        for r in range(depth(kb)):
            row(off(rows, r * mb), at, g.lda, r, 0, kb, mb)
        return rows, mb

    @inline
    def pack_lines(a, into, g, i0, mb, k0, kb):
        factors, step = as_factors(into), depth(kb) * each
        for i in range(mb):
            move(off(factors, i * step), off(a, (i0 + i) * g.lda + k0), kb)
        return factors, step

    fill_a = take if not stored.packs_a else pack_columns if trans_a else pack_lines
    pack_b = get_packing(target, T, trans_b, B, factor, stored.is_plain_b)
    run = block(
        target, T, trans_a, fill_a, pack_b,
        mc=A_ROWS, P=factor, C=stored.narrow_c, room=stored.room,
    )  # fmt: skip
    if C == "f32":
        return _by_threads(target, T, run)

    @inline
    def by_columns(a, b, c, ldc, bias, work, g, m0, m1, n0, n1, k, kc, nc, mode):
        j = n0
        while j < n1:
            run(a, b, c, ldc, bias, work, g, m0, m1, j, imin(j + nc, n1), k, kc, nc, mode)
            j += nc

    return _by_threads(target, T, by_columns)


@kernel(
    """
    x: T[at + (count - 1) * stride + n * k] if count * n * k
    b: out T[count, words(k, P), up(n, tile_columns)]
    count, stride, at, n, k: i64
    """
)
def gemm_pack(target: Target, T: str, trans: int, P: str = "") -> Body:
    """b[i, panel][k][j] = panels of the matrix [k, n] at x + i stride + at, as tiles read them.

    `trans`: it is stored as [n, k].  The columns of a last panel after n are not written.  P: as of
    `tile`.
    """
    width = target.nv * target.lanes(ITEMSIZE[T])
    pack = (pack_cols if trans else pack_rows)(target, T, "", P)
    words, depth, view = words_of(P), depth_of(P), view_panel(P)

    @inline
    def rows(x, j, n, k, into, w):
        pack(off(x, j), n, into, k, w)

    @inline
    def cols(x, j, n, k, into, w):
        pack(off(x, j * k), k, into, k, w)

    one = cols if trans else rows

    def body(x, b, count, stride, at, n, k, tid, nthreads):
        panels = udiv(n + width - 1, width)
        begin, end = share(count * panels, tid, nthreads)
        for i in range(begin, end):
            d = udiv(i, panels)
            j = (i - d * panels) * width
            into = off(view(off(b, d * panels * width * words(k))), j * depth(k))
            one(off(x, d * stride + at), j, n, k, into, imin(width, n - j))

    return body


def get_packing(target: Target, T: str, trans_b: int, B: str, P: str, is_plain: bool) -> Inline:
    """Return the `pack_b` of `block` for B stored as B; is_plain: it may be read where it is.

    P: as of `tile`.
    """
    pack = (pack_cols if trans_b else pack_rows)(target, T, B, P)
    width = target.nv * target.lanes(ITEMSIZE[T])
    depth, panel = depth_of(P), view_panel(P)

    @inline
    def columns(b, into, g, k0, kb, j0, nb):
        ldb, panels = g.ldb, panel(into)
        pack(off(b, j0 * ldb + k0), ldb, panels, kb, nb)
        return panels, depth(kb) * width, width

    @inline
    def rows(b, into, g, k0, kb, j0, nb):
        ldb, panels = g.ldb, panel(into)
        pack(off(b, k0 * ldb + j0), ldb, panels, kb, nb)
        return panels, depth(kb) * width, width

    @inline
    def rows_or_none(b, into, g, k0, kb, j0, nb):
        ldb = g.ldb
        if g.panel != 0:
            return off(b, k0 * ldb + udiv(j0, width) * g.panel), g.panel, ldb
        pack(off(b, k0 * ldb + j0), ldb, into, kb, nb)
        return into, depth(kb) * width, width

    return columns if trans_b else rows_or_none if is_plain else rows


def _by_threads(target: Target, T: str, run: Inline) -> Body:
    """Return the body of a product: each thread runs its part of the batch and its rectangle."""
    by_grid = _by_grid(target, T, run)

    def body(a, b, c, bias, reset, work, resets, per_thread, g, tid, nthreads):
        by_grid(a, b, c, bias, reset, off(work, tid * per_thread), resets, g, tid)

    return body


def find_rectangle(target: Target, T: str) -> Inline:
    """Return an inline function: the part (m0, m1, n0, n1) of thread t in m rows of g.n columns.

    Columns are cut at panels, so that no two threads pack the same one.  Threads beyond the grid of
    `grid_rows` by `grid_columns` have no rows.
    """
    width = target.nv * target.lanes(ITEMSIZE[T])

    @inline
    def find(g, m, t):
        mt, nt = g.grid_rows, g.grid_columns
        tm = udiv(t, nt)
        tn = t - tm * nt
        rows = udiv(m + mt - 1, mt)
        columns = udiv(udiv(g.n + width - 1, width) + nt - 1, nt) * width
        m0, n0 = imin(tm * rows, m), imin(tn * columns, g.n)
        return m0, imin(m0 + rows, m), n0, imin(n0 + columns, g.n)

    return find


def _by_grid(target: Target, T: str, run: Inline) -> Inline:
    """Return an inline function: the part of a thread, in its scratch memory `mine`."""
    rectangle = find_rectangle(target, T)

    @inline
    def part(a, b, c, bias, reset, mine, resets, g, tid):
        m, n, k, mode = g.m, g.n, g.k, g.mode
        bt, mt, nt = g.grid_batch, g.grid_rows, g.grid_columns
        if resets != 0 and reset[0] == 0:
            mode = mode | ACCUMULATE
        if tid < bt * mt * nt:
            tb = udiv(tid, mt * nt)
            m0, m1, n0, n1 = rectangle(g, m, tid - tb * mt * nt)
            d1, d2 = g.batch_1, g.batch_2
            count = g.batch_0 * d1 * d2
            for i in range(udiv(count * tb, bt), udiv(count * (tb + 1), bt)):
                i01 = udiv(i, d2)
                i0, i1, i2 = udiv(i01, d1), i01 - udiv(i01, d1) * d1, i - i01 * d2
                ai = off(a, i0 * g.a_step_0 + i1 * g.a_step_1 + i2 * g.a_step_2)
                bi = off(b, i0 * g.b_step_0 + i1 * g.b_step_1 + i2 * g.b_step_2)
                ci = off(c, i * m * n)
                run(ai, bi, ci, g.ldc, bias, mine, g, m0, m1, n0, n1, k, g.kc, g.nc, mode)

    return part


def split_threads(m: int, n: int, batch: int, threads: int, width: int) -> tuple[int, int, int]:
    """Split of the threads over (batch, rows, columns).

    Columns first: then no two threads pack the same part of B.
    """
    if batch >= threads:
        return threads, 1, 1
    panels = max(1, -(-n // width))
    best = (1, 1, 1)
    cost = math.inf
    for bt in (b for b in range(1, threads + 1) if b <= batch):
        for nt in range(1, min(panels, threads // bt) + 1):
            mt = min(m, threads // (bt * nt))
            share = -(-batch // bt) * -(-m // mt) * (-(-panels // nt) * width)
            share += -(-batch // bt) * (-(-panels // nt) * width) * 2  # packing, in rows of work
            if share < cost:
                best, cost = (bt, mt, nt), share
    return best


def balance(size: int, most: int, unit: int) -> int:
    """Return the length of the fewest, nearly equal blocks: a multiple of `unit`, or `size`."""
    if size <= most:
        return size
    blocks = -(-size // most)
    return min(-(-size // (blocks * unit)) * unit, size)


def lower_gemm(
    lowering: Lowering,
    a: Operand,
    b: Operand,
    y: Operand,
    *,
    mnk: tuple[int, int, int],
    trans: tuple[bool, bool] = (False, False),
    bias: Operand | None = None,
    relu: bool = False,
    reset: Operand | None = None,
    batch: tuple[Sequence[int], Sequence[int], Sequence[int]] = ((), (), ()),
    ld: tuple[int, int] = (0, 0),
) -> None:
    """Call `gemm`, or `gemm_mixed` where a matrix or its factors have 16 bits.

    `batch`: dimensions and strides in A and B, at most three after collapsing.
    `ld`: elements from row to row of A and B as they are stored, 0 where nothing lies between.
    """
    m, n, k = mnk
    target = lowering.target
    stored = _find_stored(lowering, a, b, y, trans[0])
    kind = "f32" if stored else y.type.dtype
    lanes = target.lanes(ITEMSIZE[kind])
    width = target.nv * lanes
    dims, (sa, sb) = collapse(batch[0], batch[1:], range(len(batch[0])))
    if len(dims) > len(LEVELS):
        lowering.site.fail(
            f"the batch dimensions {tuple(dims)} alternate between equal and broadcast "
            f"{len(dims)} times",
            f"{len(LEVELS)} times",
        )
    pad = len(LEVELS) - len(dims)
    if m == 0 or n == 0 or math.prod(dims) == 0:
        return
    if k == 0:
        zero: Expr = ("const", 0.0)
        if reset is not None:  # the sum of nothing is added, or takes the place of what is there
            flag = Operand(reset.name, TensorType("b1", ()))
            update(lowering, ("where", ("in", 1), zero, ("in", 0)), [y, flag], y)
            return
        ins = [] if bias is None else [bias]
        formula: Expr = ("in", 0) if ins else zero
        lower_map(lowering, [("max", formula, zero) if relu else formula], ins, [y])
        return
    grid = split_threads(m, n, math.prod(dims), lowering.threads, width)
    panels = -(-n // width)
    columns = -(-panels // grid[2]) * width
    deepest = 2 * target.kc if stored and stored.factors else target.kc
    kc, nc = balance(k, deepest, lanes), balance(columns, target.nc, width)
    few = m <= PACK_ROWS * target.mr or n <= PACK_COLUMNS * width
    in_rows = not trans[0] or (m == 1 and not ld[0])
    is_one = dims == [1] or not any(sb)  # B for the whole batch
    can_keep = not stored and is_one and not ld[1]
    stays = can_keep and lowering.keeps(b, forever=True)
    is_few = not stored and not stays and in_rows and m <= FEW[int(trans[1])]
    panel = 0
    if can_keep and not is_few and lowering.keeps(b):
        b, trans, ld, panel = _keep_panels(lowering, b, (n, k), trans, ld, width)
    elif not trans[1] and n % lanes == 0 and few and (not stored or stored.is_plain_b):
        panel = width
    words = GEMM_WORDS.pack(
        m=m,
        n=n,
        k=k,
        lda=ld[0] or (m if trans[0] else k),
        ldb=ld[1] or (k if trans[1] else n),
        ldc=n,
        mode=(BIAS if bias else 0) | (RELU if relu else 0),
        grid=grid,
        kc=kc,
        nc=nc,
        panel=panel,
        batch=[1] * pad + dims,
        a_step=[0] * pad + sa,
        b_step=[0] * pad + sb,
    )
    if is_few:
        lowering.call(
            gemm_few(kind, int(trans[1])),
            a=a, b=b, c=y, bias=bias, reset=reset, resets=int(reset is not None), g=words,
        )  # fmt: skip
        return
    per_thread = kc * nc
    if stored:
        per_thread = stored.count_scratch(k, kc, nc, -(-m // grid[1]), width)
    work = lowering.temp(kind, (per_thread * lowering.threads,))
    flags = int(trans[0]), int(trans[1])
    lowering.call(
        stored.choose_kernel(*flags) if stored else gemm(kind, *flags),
        a=a, b=b, c=y, bias=bias, reset=reset, work=work,
        resets=int(reset is not None), per_thread=per_thread, g=words,
    )  # fmt: skip


def _keep_panels(
    lowering: Lowering,
    b: Operand,
    nk: tuple[int, int],
    trans: tuple[bool, bool],
    ld: tuple[int, int],
    width: int,
) -> tuple[Operand, tuple[bool, bool], tuple[int, int], int]:
    """Return B as panels that are made once, with `trans` and `ld` for them and their distance."""
    n, k = nk
    panels = lowering.temp(b.type.dtype, (round_to_unit(n, width) * k,))
    lowering.call(
        gemm_pack(b.type.dtype, int(trans[1])), x=b, b=panels, count=1, stride=0, at=0, n=n, k=k
    )
    return panels, (trans[0], False), (ld[0], width), k * width


def _find_stored(
    lowering: Lowering, a: Operand, b: Operand, y: Operand, trans_a: bool
) -> Stored | None:
    """Return the types of a product with factors of 16 bits; None of one that has none."""
    kinds = A, B, C = a.type.dtype, b.type.dtype, y.type.dtype
    halves = {kind for kind in kinds if kind in HALVES}
    if halves and "f64" in kinds:
        lowering.site.fail(f"A, B and the result are {', '.join(kinds)}", "f32 with bf16 or f16")
    factor = "" if "f64" in kinds else get_factors(lowering, "f32")
    if not factor or not halves <= {factor}:
        factor = "f32"
    if not halves and factor == "f32":
        return None
    return Stored(A, B, C, factor, trans_a)


# The kernels that `lower_gemm` calls.
GEMM_KERNELS = (gemm, gemm_few, gemm_mixed, gemm_pack, *MAP_KERNELS)
KERNELS = (gemm, gemm_few, gemm_mixed, gemm_pack)
