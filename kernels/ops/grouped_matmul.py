"""Products of rows with the matrix of their group: the experts that tokens are routed to.

Forward   GroupRows: a stable order of the rows by group, its inverse, and where each group starts
          SegmentMatMul: y[i] = x[i] op(w[e]) for the rows starts[e] <= i < starts[e + 1]
Backward  SegmentMatMul: dx the same with op(w)^T, and SegmentMatMulGrad: dw[e], the sum over the
          rows of the group of x[i]^T dy[i] (dy[i]^T x[i] for w stored transposed)
Error     a sum of K products, or of the rows of a group, in parts of kc, tools/dev/cases/matmul.py
Source    Gale et al., "MegaBlocks", arXiv 2211.15841: rows in the order of their experts are
          multiplied without padding, and without a copy of a matrix for each row

Exporters write `MatMul(Gather(w, group), x)`, which copies a matrix for every row.  The pattern in
graphs/passes/patterns.py replaces it.
"""

from __future__ import annotations

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.bad_data import NO_POSITION, report_at
from engine.kernels.loops.contract import block
from engine.kernels.loops.few_rows import few_rows
from engine.kernels.loops.gemm import (
    FEW,
    GEMM_WORDS,
    balance,
    find_rectangle,
    get_packing,
    split_threads,
)
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.machine.target import Target
from engine.kernels.ops.index.gather import wide_index, wrap
from engine.kernels.ops.matmul import check_floats
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Body,
    imax,
    imin,
    inline,
    kernel,
    off,
)
from engine.kernels.vocabulary.op import OURS, Dim, Grad, Lowering, Op, Operand, Site, TensorType
from engine.plan.context import INDEX, STATUS
from engine.plan.words import Packed

_BLOCKS = "min(kc, nc, min(grid)) >= 1"
_ROOM = "per_thread >= min(kc, k) * up(min(nc, n), tile_columns)"  # of a packed block of a matrix

# --- kernels


@kernel(
    """
    index: i64[count] within starts.groups   order, inverse: out T[count]
    starts: out T[groups + 1]   fault: update i64[1 record]
    count: i64   groups: i64 where groups >= 1
    """,
    words={"fault": STATUS},
    T=("i64",),
)
def group_rows(target: Target, T: str) -> Body:
    """Counting sort: index[order] ascends, order[inverse[i]] is i, groups begin at their starts.

    An index out of range counts as 0, so that all rows have places; the run fails afterwards.
    """

    @inline
    def place(index, i, groups):
        return imax(wrap(index, i, groups), 0)

    def body(index, order, inverse, starts, fault, count, groups, tid, nthreads):
        # One thread alone: each step follows from the one before, and there are few rows.
        if tid == 0:
            bad = NO_POSITION
            for e in range(groups + 1):
                starts[e] = 0
            for i in range(count):
                if wrap(index, i, groups) < 0:
                    bad = imin(bad, i)
                starts[place(index, i, groups) + 1] += 1
            for e in range(groups):
                starts[e + 1] += starts[e]
            # Each group's start moves to its end while the rows take their places ...
            for i in range(count):
                e = place(index, i, groups)
                at = starts[e]
                order[at], inverse[i], starts[e] = i, at, at + 1
            # ... which is the start of the next group.
            e = groups
            while e > 0:
                starts[e] = starts[e - 1]
                e -= 1
            starts[0] = 0
            report_at(fault, INDEX, index, bad, groups)

    return body


@kernel(
    f"""
    x: T[m, k]   w: T[groups, k, n]   starts: i64[groups + 1]   y: out T[m, n]
    work: scratch T[threads, per_thread]   groups: i64   per_thread: i64 where {_ROOM}
    g: i64[] where {_BLOCKS} and lda == k and ldb == (n, k)[trans_b]
    """,
    words={"g": GEMM_WORDS},
    multiply_adds="m * n * k",
)
def segment_gemm(target: Target, T: str, trans_b: int) -> Body:
    """y[i] = x[i] op(w[e]) for the rows i of each group e.

    trans_b: w is stored as [groups, n, k].  Rows outside the groups are not written.
    """

    @inline
    def fill_a(a, into, g, i0, mb, k0, kb):
        return off(a, i0 * g.lda + k0), g.lda

    run = block(target, T, 0, fill_a, get_packing(target, T, trans_b, T, "", False))
    few = few_rows(target, T, trans_b)
    most = FEW[trans_b]
    rectangle = find_rectangle(target, T)

    def body(x, w, starts, y, work, groups, per_thread, g, tid, nthreads):
        n, k = g.n, g.k
        mine = off(work, tid * per_thread)
        for e in range(groups):
            # Rows stay inside of x and y, even if a forged plan changes `starts`.
            begin = imax(imin(starts[e], g.m), 0)
            end = imin(starts[e + 1], g.m)
            m0, m1, n0, n1 = rectangle(g, imax(end - begin, 0), tid)
            m0, m1 = m0 + begin, m1 + begin
            b = off(w, e * k * n)
            # To pack a matrix takes longer than to multiply few rows with it.
            if m1 - m0 > most:
                run(x, b, y, n, y, mine, g, m0, m1, n0, n1, k, g.kc, g.nc, 0)
            elif m1 > m0:
                few(x, b, y, n, y, mine, g, m0, m1, n0, n1, k, g.kc, g.nc, 0)

    return body


@kernel(
    f"""
    a: T[k, m]   b: T[k, n]   starts: i64[groups + 1]   c: out T[groups, m, n] updates if resets
    reset: b1[1] if resets   work: scratch T[threads, per_thread]   groups, resets: i64
    per_thread: i64 where {_ROOM}   g: i64[] where {_BLOCKS} and lda == m and ldb == n
    """,
    words={"g": GEMM_WORDS},
    multiply_adds="m * n * k",
)
def segment_gemm_grad(target: Target, T: str) -> Body:
    """c[e] = the sum of a[i]^T b[i] over the rows i of each group e.

    Overwrites c, or adds to it when `resets` and not reset[0].
    """

    @inline
    def fill_a(a, into, g, i0, mb, k0, kb):
        return off(a, k0 * g.lda + i0), g.lda

    run = block(target, T, 1, fill_a, get_packing(target, T, 0, T, "", False))
    rectangle = find_rectangle(target, T)

    def body(a, b, starts, c, reset, work, groups, resets, per_thread, g, tid, nthreads):
        m, n, mode = g.m, g.n, 0
        mine = off(work, tid * per_thread)
        if resets != 0 and reset[0] == 0:
            mode = ACCUMULATE
        m0, m1, n0, n1 = rectangle(g, m, tid)
        for e in range(groups):
            begin = imax(imin(starts[e], g.k), 0)
            k = imin(starts[e + 1], g.k) - begin
            to = off(c, e * m * n)
            if k > 0:
                left, right = off(a, begin * g.lda), off(b, begin * g.ldb)
                run(left, right, to, n, to, mine, g, m0, m1, n0, n1, k, g.kc, g.nc, mode)
            elif mode == 0:
                # The gradient of an expert that no token was routed to.
                for i in range(m0, m1):
                    for j in range(n0, n1):
                        to[i * n + j] = 0

    return body


# --- shapes


def _infer_groups(site: Site) -> tuple[TensorType, ...]:
    index, groups = site.type(0), int(site.attrs["groups"])
    if index.rank != 1:
        site.wrong(f"the groups of rows are {index}; expected one for each row, of rank 1")
    if groups < 1:
        site.wrong(f"groups is {groups}; expected 1 or more")
    rows = TensorType("i64", index.shape)
    return rows, rows, TensorType("i64", (groups + 1,))


def _agree(*dims: Dim) -> bool:
    return len({d for d in dims if isinstance(d, int)}) <= 1


def _infer(site: Site) -> tuple[TensorType, ...]:
    x, w, starts = (site.type(i) for i in range(3))
    if (x.rank, w.rank, starts.rank) != (2, 3, 1):
        site.wrong(f"x is {x}, w is {w} and starts is {starts}; expected ranks of 2, 3 and 1")
    groups, k, n = w.shape
    if site.attrs["transB"]:
        k, n = n, k
    if not _agree(x.shape[1], k):
        site.wrong(f"x is {x}, but the matrices of w {w} have {k} rows")
    if not (isinstance(groups, int) and starts.shape == (groups + 1,)):
        site.wrong(f"starts is {starts}; expected one more than the matrices of w {w}")
    return (TensorType(check_floats(site, 0, 1), (x.shape[0], n)),)


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    a, b, starts = (site.type(i) for i in range(3))
    if (a.rank, b.rank, starts.rank) != (2, 2, 1) or not _agree(a.shape[0], b.shape[0]):
        site.wrong(f"a is {a}, b is {b} and starts is {starts}; expected matrices of equal rows")
    (size,) = starts.shape
    if not isinstance(size, int):
        site.wrong(f"starts is {starts}; expected a fixed number of groups")
    return (TensorType(check_floats(site, 0, 1), (int(size) - 1, a.shape[1], b.shape[1])),)


# --- lowering, gradients


def _lower_groups(lowering: Lowering) -> None:
    index = wide_index(lowering, 0)
    outputs = [
        lowering.y(i) if lowering.wants(i) else lowering.temp("i64", shape)
        for i, shape in enumerate([index.type.dims] * 2 + [(lowering.site.attrs["groups"] + 1,)])
    ]
    lowering.call(
        group_rows("i64"), index=index, order=outputs[0], inverse=outputs[1], starts=outputs[2],
        fault=lowering.fault(), count=index.type.size, groups=lowering.site.attrs["groups"],
    )  # fmt: skip


def _plan_blocks(
    lowering: Lowering, T: str, mnk: tuple[int, int, int], rows: int, ld: tuple[int, int]
) -> tuple[Packed, int, Operand]:
    """Return the words of a product, and the scratch memory of a thread and of all.

    rows: how many rows of C threads share at a time.
    """
    target, (m, n, k) = lowering.target, mnk
    lanes = target.lanes(ITEMSIZE[T])
    width = target.nv * lanes
    _, *grid = split_threads(max(rows, 1), n, 1, lowering.threads, width)
    panels = -(-n // width)
    columns = -(-panels // grid[1]) * width
    kc, nc = balance(max(k, 1), target.kc, lanes), balance(columns, target.nc, width)
    words = GEMM_WORDS.pack(
        m=m, n=n, k=k, lda=ld[0], ldb=ld[1], ldc=n, mode=0, grid=(1, *grid), kc=kc, nc=nc, panel=0,
        batch=(1, 1, 1), a_step=(0, 0, 0), b_step=(0, 0, 0),
    )  # fmt: skip
    per_thread = kc * nc
    return words, per_thread, lowering.temp(T, (lowering.threads, per_thread))


def _lower(lowering: Lowering) -> None:
    x, w, y = lowering.x(0), lowering.x(1), lowering.y(0)
    T, trans_b = y.type.dtype, int(lowering.site.attrs["transB"])
    (m, n), k, groups = y.type.dims, x.type.dims[1], w.type.dims[0]
    if not m * n:
        return
    if not k:
        lower_map(lowering, [("const", 0.0)], [], [y])
        return
    words, per_thread, work = _plan_blocks(
        lowering, T, (m, n, k), m // groups, (k, k if trans_b else n)
    )
    lowering.call(
        segment_gemm(T, trans_b), x=x, w=w, starts=lowering.x(2), y=y, work=work,
        groups=groups, per_thread=per_thread, g=words,
    )  # fmt: skip


def _lower_grad(lowering: Lowering) -> None:
    a, b, c, reset = lowering.x(0), lowering.x(1), lowering.y(0), lowering.reset(0)
    T = c.type.dtype
    groups, m, n = c.type.dims
    if not m * n:
        return
    k = a.type.dims[0]
    words, per_thread, work = _plan_blocks(lowering, T, (m, n, k), m, (m, n))
    lowering.call(
        segment_gemm_grad(T), a=a, b=b, starts=lowering.x(2), c=c, reset=reset, work=work,
        groups=groups, resets=int(reset is not None), per_thread=per_thread, g=words,
    )  # fmt: skip


def _grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    # Forward: y = x w[e] by groups of rows; so dx = dy w[e]^T, and dw[e] = x^T dy over its rows.
    trans_b, starts = int(grad.site.attrs["transB"]), grad.x(2)
    dx = grad.op("SegmentMatMul", dy, grad.x(1), starts, domain=OURS, transB=1 - trans_b)
    factors = (dy, grad.x(0)) if trans_b else (grad.x(0), dy)
    return dx, grad.op("SegmentMatMulGrad", *factors, starts, domain=OURS), None


OPS = (
    Op(
        name="GroupRows",
        domain=OURS,
        inputs=(1, 1),
        outputs=3,
        needs={"groups": "int"},
        infer=_infer_groups,
        lower=_lower_groups,
        calls=(group_rows,),
        no_gradient=frozenset((0,)),
    ),
    Op(
        name="SegmentMatMul",
        domain=OURS,
        inputs=(3, 3),
        outputs=1,
        attrs={"transB": 0},
        infer=_infer,
        lower=_lower,
        calls=(segment_gemm, *MAP_KERNELS),
        grad=_grad,
        no_gradient=frozenset((2,)),
    ),
    Op(
        name="SegmentMatMulGrad",
        domain=OURS,
        inputs=(3, 3),
        outputs=1,
        gradient_of=f"{OURS}::SegmentMatMul",
        infer=_infer_grad,
        lower=_lower_grad,
        calls=(segment_gemm_grad,),
        accumulates=(0,),
    ),
)
KERNELS = (group_rows, segment_gemm, segment_gemm_grad)
