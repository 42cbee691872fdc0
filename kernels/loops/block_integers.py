"""Products with a matrix of integers of 4 or 8 bits, of rows that are rounded to 8 bits by blocks.

    A'[i, k] = round(A[i, k] 127 / largest)         largest: |A| of row i in the block of k
    Y[i, n] = sum over blocks of (sum over a block of A' (Q - zero)) (largest / 127) scale

The weights are read as they are stored, and no float is made of them.

Error     half of largest / 127 in each element of A; none in the sums of blocks, which 32 bits
          hold; these are scaled and added in float32
Source    onnxruntime's MatMulNBits with accuracy_level 4 rounds alike
"""

from __future__ import annotations

from engine.kernels.loops.quantised import Matrix
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    BIAS,
    Body,
    Inline,
    Intrinsic,
    imin,
    inline,
    kernel,
    off,
    share,
    share_blocks,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand
from engine.plan.words import Words

BITS, BLOCKS = (4, 8), (16, 32, 64, 128, 256)
COLUMNS = 4  # of Y that are made together
CACHED = 1 << 18  # bytes of rounded rows that stay in a cache while all of W goes over them


def find_chunk(vector: int, bits: int) -> tuple[int, int]:
    """Return the integers of a chunk, and the bytes of its record (vector_ir/block_integers.py).

    vector: bytes of a vector.
    """
    chunk = vector * 8 // bits
    return chunk, chunk + 2 * vector


def find_cell(vector: int, bits: int, block: int) -> tuple[int, int]:
    """Return the integers of whole chunks and whole blocks, and the bytes of their records."""
    chunk, record = find_chunk(vector, bits)
    cell = max(chunk, block)
    return cell, cell // chunk * record


# --- rounding

ROUND_WORDS = Words(
    "round_blocks", m="rows of A", k="elements of a row", bytes="of the records of a row"
)


def _round_reach(c: KernelCall) -> Reach:
    assert c.machine is not None
    cell, size = find_cell(c.machine.vector, c.flag(1), c.flag(2))
    if c.bytes != -(-c.k // cell) * size:
        c.refuse(f"records of {c.bytes} bytes for rows of {c.k} elements")
    return {}


@kernel(
    "a: T[m, k]   x: out i8[m, bytes]   g: i64[]",
    words={"g": ROUND_WORDS},
    reach=_round_reach,
    T=("f32",),
    bits=BITS,
    block=BLOCKS,
)
def round_blocks(target: Target, T: str, bits: int, block: int) -> Body:
    """x = rows of A rounded to 8 bits by blocks, as records.  A: [m, k].  Overwrites x."""
    cell, size = find_cell(target.vector, bits, block)
    round_cell = Intrinsic("round_blocks", (bits, block))

    def body(a, x, g, tid, nthreads):
        cells = udiv(g.k + cell - 1, cell)
        first, last = share(g.m * cells, tid, nthreads)
        for at in range(first, last):
            i = udiv(at, cells)
            j = at - i * cells
            n = imin(cell, g.k - j * cell)
            round_cell(off(a, i * g.k + j * cell), n, off(x, i * g.bytes + j * size))

    return body


# --- products

INTEGER_BLOCKS_WORDS = Words(
    "integer_blocks",
    m="rows of Y",
    n="columns of Y",
    mode="BIAS or 0",
    blocks="blocks of a row of W",
    bytes="of the records of a row",
    rows="rows of Y that are made together",
)


def _blocks_reach(c: KernelCall) -> Reach:
    assert c.machine is not None
    bits, block = c.flag(1), c.flag(2)
    cell, size = find_cell(c.machine.vector, bits, block)
    if c.bytes != -(-c.blocks * block // cell) * size:
        c.refuse(f"records of {c.bytes} bytes for {c.blocks} blocks")
    return {}


@kernel(
    """
    x: i8[m, bytes]   q: u8[n, blocks * block * bits // 8]   s: f32[n, blocks]
    z: u8[n, (blocks * bits + 7) // 8] if zeros   y: out f32[m, n]   bias: f32[n] if mode & BIAS
    g: i64[] where rows >= 1 and mode <= BIAS
    """,
    words={"g": INTEGER_BLOCKS_WORDS},
    reach=_blocks_reach,
    multiply_adds="m * n * blocks * block",
    T=("i8",),
    bits=BITS,
    block=BLOCKS,
)
def integer_blocks(target: Target, T: str, bits: int, block: int, zeros: int) -> Body:
    """Y = X W^T (+ bias), for rows of X as records, and blocks of one row of W and many columns.

    q: [n, blocks, block], s: [n, blocks]; z: [n, blocks], a row in whole bytes.  Overwrites Y.
    """
    chunk, record = find_chunk(target.vector, bits)
    cell, _ = find_cell(target.vector, bits, block)
    most = 4 if target.mr * target.nv > 12 else 2  # rows whose sums the registers hold
    kind = bits, block, zeros
    many, some = (_strip(kind, rows, COLUMNS) for rows in (most, 1))
    one, rest = _strip(kind, 1, 1), Intrinsic("block_rest", kind)

    def body(x, q, s, z, y, bias, g, tid, nthreads):
        first, last = share_blocks(g.n, COLUMNS, tid, nthreads)
        q_row, z_row = udiv(g.blocks * block * bits, 8), udiv(g.blocks * bits + 7, 8)
        whole = udiv(g.blocks * block, cell) * udiv(cell, chunk)  # chunks
        left = g.blocks - udiv(whole * chunk, block)
        i0 = 0
        while i0 < g.m:
            i1 = imin(i0 + g.rows, g.m)
            j = first
            while j < last:
                w, v, o = off(q, j * q_row), off(s, j * g.blocks), off(z, j * z_row)
                to, columns = off(y, j), imin(last - j, COLUMNS)
                i = i0
                if columns == COLUMNS:
                    i = many(w, v, o, x, to, whole, q_row, z_row, g, i, i1)
                    i = some(w, v, o, x, to, whole, q_row, z_row, g, i, i1)
                else:
                    for c in range(columns):
                        i = one(
                            off(w, c * q_row), off(v, c * g.blocks), off(o, c * z_row), x,
                            off(to, c), whole, q_row, z_row, g, i0, i1,
                        )  # fmt: skip
                if left > 0:
                    past = udiv(whole * chunk, block)
                    for i in range(i0, i1):
                        for c in range(columns):
                            rest(
                                off(w, c * q_row + udiv(past * block * bits, 8)),
                                off(v, c * g.blocks + past),
                                off(o, c * z_row + udiv(past * bits, 8)),
                                off(x, i * g.bytes + whole * record), off(to, i * g.n + c), left,
                            )  # fmt: skip
                if g.mode & BIAS != 0:
                    for i in range(i0, i1):
                        for c in range(columns):
                            to[i * g.n + c] += bias[j + c]
                j += COLUMNS
            i0 = i1

    return body


def _strip(kind: tuple[int, ...], rows: int, columns: int) -> Inline:
    """Return an inline function: columns of Y, from row i on, `rows` of them as often as it can.

    It returns the row after them.
    """
    tile = Intrinsic("block_tile", (*kind, rows, columns))

    @inline
    def run(w, v, o, x, to, whole, q_row, z_row, g, i, end):
        while i + rows <= end:
            tile(
                w, v, o, off(x, i * g.bytes), off(to, i * g.n), whole, q_row, g.blocks, z_row,
                g.bytes, g.n,
            )  # fmt: skip
            i += rows
        return i

    return run


# --- lowering


def can_round(matrix: Matrix, dtype: str) -> bool:
    """Return whether rows of an element type can be multiplied with this matrix, transposed."""
    down, block = matrix.block
    row = -(-matrix.columns // block)
    zeros = matrix.zeros
    packed = (
        matrix.zero == 1 << matrix.bits - 1
        if zeros is None
        else zeros.type.dtype == "u8" and matrix.zero_bits == matrix.bits
        and matrix.zero_stride * matrix.bits == -(-row * matrix.bits // 8) * 8
    )  # fmt: skip
    return (
        dtype == "f32"
        and matrix.q.type.dtype == "u8"
        and matrix.bits in BITS
        and down == 1
        and block in BLOCKS
        and matrix.stride == row * block
        and packed
    )


def lower_integer_blocks(
    lowering: Lowering, a: Operand, matrix: Matrix, y: Operand, bias: Operand | None = None
) -> None:
    """Call `round_blocks` and `integer_blocks`: y = a W^T + bias, if `can_round` says so."""
    n, k, bits, block = matrix.rows, matrix.columns, matrix.bits, matrix.block[1]
    m = y.type.size // n
    if m == 0:
        return
    cell, size = find_cell(lowering.target.vector, bits, block)
    row = -(-k // cell) * size
    x = lowering.temp("i8", (m, row))
    lowering.call(
        round_blocks("f32", bits, block), a=a, x=x, g=ROUND_WORDS.pack(m=m, k=k, bytes=row)
    )
    lowering.call(
        integer_blocks("i8", bits, block, int(matrix.zeros is not None)),
        x=x,
        q=matrix.q,
        s=matrix.scales,
        z=matrix.zeros,
        y=y,
        bias=bias,
        g=INTEGER_BLOCKS_WORDS.pack(
            m=m,
            n=n,
            mode=BIAS if bias else 0,
            blocks=-(-k // block),
            bytes=row,
            rows=max(COLUMNS, CACHED // row // COLUMNS * COLUMNS),
        ),
    )


INTEGER_BLOCKS = (round_blocks, integer_blocks)  # what `lower_integer_blocks` calls
KERNELS = INTEGER_BLOCKS
