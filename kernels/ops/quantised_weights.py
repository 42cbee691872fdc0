"""Weights of 2, 4 or 8 bits, used as stored: in products, 1x1 convolutions and row gathers.

Forward   y = a W + bias, or a W^T + bias;  y = W[indices];  W = (Q - zero) scale, by blocks of Q
Backward  da = dy W^T, or dy W, from the same integers: W never exists as floats
          Q is frozen: it has no gradient; scales and zero points of MatMulNBits have theirs
Source    the loops: loops/quantised.py; MatMulNBits and GatherBlockQuantized: the contrib operators
          of onnxruntime
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.kernels.loops.block_integers import INTEGER_BLOCKS, can_round, lower_integer_blocks
from engine.kernels.loops.map import MAP_KERNELS
from engine.kernels.loops.quantised import (
    QUANTISED_KERNELS,
    Matrix,
    lower_quantised_gemm,
    lower_quantised_rows,
    quantised_rows,
)
from engine.kernels.ops.index.gather import wide_index
from engine.kernels.vocabulary.facts import (
    MATMUL,
    ChannelsLast,
    Each,
    Factors,
    Role,
    Samples,
    Units,
)
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Dim,
    Grad,
    Kind,
    Lowering,
    Nodes,
    Op,
    Site,
    TensorType,
)

BITS = (2, 4, 8)
ROUNDS = 4  # the accuracy_level of a MatMulNBits whose rows may be rounded to 8 bits
PACKED = ("u8", "i8")

# --- a matrix of integers: inputs 1 to 3 of the ops below

_ATTRS: dict[str, Any] = {
    "bits": 8,
    "block_rows": 0,  # of Q that share a scale; 0: all
    "block_columns": 0,
    "stride": 0,  # integers from row to row of Q; 0: its columns
    "zero_stride": 0,  # zero points from row to row of blocks; 0: as the scales
    "zero_bits": 8,
    "zero": 0,  # the zero point where there are none
}
_NEEDS: dict[str, Kind] = {"rows": "int", "columns": "int"}


def _find_block(site: Site) -> tuple[int, int]:
    """Return the rows and columns of a block."""
    rows, columns = int(site.attrs["rows"]), int(site.attrs["columns"])
    return int(site.attrs["block_rows"]) or rows, int(site.attrs["block_columns"]) or columns


def _check_matrix(site: Site, T: str, at: int = 1) -> None:
    """Refuse a matrix whose tensors do not fit the attributes.

    T: the element type that scales and float zero points must have.
    at: the input with the integers; their scales and zero points follow.
    """
    attrs = site.attrs
    rows, columns, bits = int(attrs["rows"]), int(attrs["columns"]), int(attrs["bits"])
    if bits not in BITS or int(attrs["zero_bits"]) not in BITS:
        site.fail(f"bits={bits}, zero_bits={attrs['zero_bits']}", ", ".join(map(str, BITS)))
    if rows < 1 or columns < 1 or min(_find_block(site)) < 1:
        site.wrong(
            f"rows={rows}, columns={columns}, blocks of {_find_block(site)}; "
            "expected 1 or more of each"
        )
    stride = int(attrs["stride"]) or columns
    if stride < columns:
        site.wrong(f"stride is {stride}; expected {columns} or more, the integers of a row")
    q = site.type(at)
    if q.dtype not in PACKED:
        site.fail(f"input {at} is {q}", ", ".join(PACKED))
    _check_room(site, at, ((rows - 1) * stride + columns) * bits)
    high, wide = (-(-n // b) for n, b in zip((rows, columns), _find_block(site), strict=True))
    if site.type(at + 1).dtype != T or site.type(at + 1).size != high * wide:
        site.fail(f"scales are {site.type(at + 1)}", f"{high * wide} of {T}")
    if not site.has(at + 2):
        return
    # Integers narrower than a byte: a tensor has room if its bytes have as many bits.
    zero_stride = int(attrs["zero_stride"]) or wide
    if site.type(at + 2).dtype in PACKED:
        _check_room(site, at + 2, ((high - 1) * zero_stride + wide) * int(attrs["zero_bits"]))
    elif site.type(at + 2).dtype != T or site.type(at + 2).size != high * wide:
        site.fail(f"zero points are {site.type(at + 2)}", f"{high * wide} of {T}, or integers")


def _check_room(site: Site, i: int, bits: int) -> None:
    """Refuse input i if it has fewer bits than these."""
    if site.type(i).size * 8 < bits:
        site.wrong(f"input {i} is {site.type(i)}; it must have {-(-bits // 8)} bytes")


def _read_matrix(lowering: Lowering) -> Matrix:
    site = lowering.site
    attrs, block = site.attrs, _find_block(site)
    columns = int(attrs["columns"])
    return Matrix(
        rows=int(attrs["rows"]),
        columns=columns,
        stride=int(attrs["stride"]) or columns,
        bits=int(attrs["bits"]),
        block=block,
        zero_stride=int(attrs["zero_stride"]) or -(-columns // block[1]),
        zero_bits=int(attrs["zero_bits"]),
        zero=int(attrs["zero"]),
        q=lowering.x(1),
        scales=lowering.x(2),
        zeros=lowering.x(3) if site.has(3) else None,
    )


# --- products


def _find_sides(site: Site) -> tuple[int, int]:
    """Return the length of the sums, and the columns of the output."""
    sides = int(site.attrs["rows"]), int(site.attrs["columns"])
    return sides[::-1] if site.attrs["trans"] else sides


def _check_product(site: Site, depth: Dim) -> str:
    """Refuse tensors that do not fit; return the element type.

    depth: the dimension of input 0 that is summed over.
    """
    T, (k, n) = site.real(0).dtype, _find_sides(site)
    if depth != k and isinstance(depth, int):
        site.wrong(f"input 0 is {site.type(0)}; sums are over {k}")
    _check_matrix(site, T)
    if site.has(4):
        if site.real(4).dtype != T:
            site.fail(f"the bias is {site.type(4)}", T)
        site.shaped(4, (n,))
    return T


def _matmul_infer(site: Site) -> tuple[TensorType, ...]:
    a = site.real(0)
    if a.rank < 1:
        site.wrong("input 0 is a scalar; expected a vector or a matrix at least")
    _check_product(site, a.shape[-1])
    return (a.but((*a.shape[:-1], _find_sides(site)[1])),)


def _conv_infer(site: Site) -> tuple[TensorType, ...]:
    x = site.real(0)
    if x.rank < 3:
        site.wrong(f"input 0 is {x}; it must be images")
    _check_product(site, x.shape[1])
    return (x.but((x.shape[0], _find_sides(site)[1], *x.shape[2:])),)


def _product_lower(lowering: Lowering) -> None:
    """Lower the product; the channels of channels-last images are the last axis, too."""
    attrs, a, matrix, y = lowering.site.attrs, lowering.x(0), _read_matrix(lowering), lowering.y(0)
    trans, bias = bool(attrs["trans"]), lowering.x(4) if lowering.site.has(4) else None
    if attrs.get("rounds") and trans and can_round(matrix, a.type.dtype):
        lower_integer_blocks(lowering, a, matrix, y, bias)
    else:
        lower_quantised_gemm(lowering, a, matrix, y, trans=trans, bias=bias)


def _product_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dA = dY W^T where Y = A W, and dY W where Y = A W^T; dbias = dY summed to it."""
    site = grad.site
    da = db = None
    if grad.wants(0):
        # Forward: Y = A W; so dA = dY W^T, by the same integers read across.  Where rows of A are
        # rounded, it is as if they were not; dY never is.
        attrs = {k: v for k, v in site.attrs.items() if k != "rounds"}
        attrs["trans"] = 1 - int(attrs["trans"])
        ins = [grad.x(i) if site.has(i) else "" for i in (1, 2, 3)]
        da = grad.op(site.op, dy, *ins, domain=OURS, **attrs)
    if site.has(4) and grad.wants(4):
        # Forward: the bias was added to every row; so dbias sums dY over the rows.
        axes = [i for i in range(site.type(0).rank) if i != _find_channel(site)]
        db = grad.op("ReduceSum", dy, grad.const(axes, "i64"), keepdims=0)
    return (da, None, None, None, db)


def _find_channel(site: Site) -> int:
    """Return the axis of the columns of the output."""
    return 1 if site.op == "QuantizedConv" else site.type(0).rank - 1


# --- rows of a table


def _gather_infer(site: Site) -> tuple[TensorType, ...]:
    T = site.real(2).dtype
    _check_matrix(site, T)
    return (TensorType(T, (*site.type(0).shape, int(site.attrs["columns"]))),)


def _gather_lower(lowering: Lowering) -> None:
    lower_quantised_rows(lowering, _read_matrix(lowering), wide_index(lowering, 0), lowering.y(0))


# --- weights as floats, where no product or gather takes them as they are


def _packed_infer(site: Site) -> tuple[TensorType, ...]:
    T = site.real(1).dtype
    shape = tuple(int(d) for d in site.attrs["shape"])
    if math.prod(shape) != int(site.attrs["rows"]) * int(site.attrs["columns"]):
        rows, columns = site.attrs["rows"], site.attrs["columns"]
        site.wrong(f"shape is {list(shape)}, but the matrix is {rows} x {columns}")
    _check_matrix(site, T, at=0)
    return (TensorType(T, shape),)


def _packed_expand(nodes: Nodes) -> tuple[str, ...]:
    site = nodes.site
    names = {*_ATTRS, *_NEEDS}
    attrs = {name: value for name, value in site.attrs.items() if name in names}
    every = nodes.const(list(range(int(site.attrs["rows"]))), "i64")
    ins = [nodes.x(i) for i in range(2 + site.has(2))]
    rows = nodes.op("QuantizedGather", every, *ins, domain=OURS, **attrs)
    return (nodes.op("Reshape", rows, nodes.const(list(site.attrs["shape"]), "i64")),)


# --- MatMulNBits


def read_nbits(site: Site) -> dict[str, Any]:
    """Return the matrix W[N, K] of a MatMulNBits, whose rows end in whole blocks."""
    rows, k, bits, block = (int(site.attrs[x]) for x in ("N", "K", "bits", "block_size"))
    blocks = -(-k // block)
    # Zero points of a row are packed as the integers are and start at a whole byte.
    packed = site.has(3) and site.type(3).dtype in PACKED
    return {
        "rows": rows,
        "columns": k,
        "bits": bits,
        "block_rows": 1,
        "block_columns": block,
        "stride": blocks * block,
        "zero_bits": bits if packed else 8,
        "zero_stride": -(-blocks * bits // 8) * 8 // bits if packed else blocks,
        "zero": 1 << bits - 1,
    }


def _nbits_infer(site: Site) -> tuple[TensorType, ...]:
    a, (n, k, bits, block) = site.real(0), (site.attrs[x] for x in ("N", "K", "bits", "block_size"))
    if bits not in BITS:
        site.fail(f"bits={bits}", ", ".join(map(str, BITS)))
    if n < 1 or k < 1:
        site.fail(f"N={n}, K={k}", "1 or more of each")
    if block < 1 or block * bits % 8:
        site.fail(f"block_size={block} of {bits} bits", "1 or more, which fill whole bytes")
    if site.has(4) and not is_in_order(site.value(4), k, block):
        site.fail(
            "input 4 (g_idx) gives rows another group than their block",
            f"a constant in which row i has the group i // {block}, or none",
        )
    if a.rank < 1 or (a.shape[-1] not in (k,) and isinstance(a.shape[-1], int)):
        site.wrong(f"input 0 is {a}; its last axis must be K={k}")
    blocks = -(-k // block)
    if site.shaped(1, (n, blocks, block * bits // 8)).dtype != "u8":
        site.fail(f"input 1 is {site.type(1)}", "u8")
    if site.type(2).dtype != a.dtype or site.type(2).size != n * blocks:
        site.fail(f"scales (input 2) are {site.type(2)}", f"{n * blocks} of {a.dtype}")
    if site.has(3):
        zeros = site.type(3)
        size = n * (-(-blocks * bits // 8) if zeros.dtype == "u8" else blocks)
        if zeros.dtype not in ("u8", a.dtype) or zeros.size != size:
            site.fail(f"zero points (input 3) are {zeros}", f"{size} of u8 or {a.dtype}")
    return (a.but((*a.shape[:-1], n)),)


def is_in_order(groups: Array | None, k: int, block: int) -> bool:
    """Return whether g_idx, which may go on to the end of the last block, says what blocks say."""
    if groups is None or groups.size not in (k, -(-k // block) * block):
        return False
    return bool(np.array_equal(groups.reshape(-1), np.arange(groups.size) // block))


def _nbits_product(nodes: Nodes, a: str, trans: int, bias: str = "", rounds: int = 0) -> str:
    """Return the product of a value with W, or with W^T where `trans`."""
    ins = [nodes.x(i) if nodes.site.has(i) else "" for i in (1, 2, 3)]
    attrs = {**read_nbits(nodes.site), "trans": trans, "rounds": rounds}
    return str(nodes.op("QuantizedMatMul", a, *ins, bias, domain=OURS, **attrs))


def _nbits_expand(nodes: Nodes) -> tuple[str, ...]:
    """Y = A W^T + bias, W[N, K] = (B - zero) scale in blocks of K; the zero of none 2^(bits - 1)"""
    bias = nodes.x(5) if nodes.site.has(5) else ""
    rounds = int(nodes.site.attrs["accuracy_level"] == ROUNDS)
    return (_nbits_product(nodes, nodes.x(0), 1, bias, rounds),)


def _nbits_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dA = dY W, dbias = dY summed to it.  Of each block, with dW = dY^T A and the levels B - zero,
    dscale = sum dW level, and dzero = -scale sum dW where zero points are floats.
    """
    site = grad.site
    da = _nbits_product(grad, dy, 0) if grad.wants(0) else None
    ds = dz = None
    floats = site.has(3) and site.type(3).dtype not in PACKED and grad.wants(3)
    if grad.wants(2) or floats:
        # Forward: Y = A W^T with W = (B - zero) scale; so dW = dY^T A, and of each block dscale =
        # sum dW (B - zero), dzero = -scale sum dW.  W itself is never made.
        blocks = _nbits_blocks(grad, _nbits_weight_grad(grad, dy))
        if grad.wants(2):
            # With scales of one, rows of W are the levels.
            levels = _nbits_blocks(grad, _nbits_levels(grad))
            sums = grad.op("ReduceSum", grad.op("Mul", blocks, levels), grad.const([2], "i64"))
            ds = grad.op("Reshape", sums, grad.const(list(site.type(2).dims), "i64"))
        if floats:
            sums = grad.op("ReduceSum", blocks, grad.const([2], "i64"))
            sums = grad.op("Reshape", sums, grad.const(list(site.type(3).dims), "i64"))
            shaped = grad.op("Reshape", grad.x(2), grad.const(list(site.type(3).dims), "i64"))
            dz = grad.op("Neg", grad.op("Mul", sums, shaped))
    db = grad.reduce_to(dy, 5) if site.has(5) and grad.wants(5) else None
    return (da, None, ds, dz, None, db)


def _nbits_weight_grad(grad: Grad, dy: str) -> str:
    """dW = dY^T A over all rows of the batch; [N, K]."""
    n, k = int(grad.site.attrs["N"]), int(grad.site.attrs["K"])
    left = grad.op("Reshape", dy, grad.const([-1, n], "i64"))
    right = grad.op("Reshape", grad.x(0), grad.const([-1, k], "i64"))
    return str(grad.op("Gemm", left, right, transA=1, transB=0, alpha=1.0, beta=0.0))


def _nbits_levels(grad: Grad) -> str:
    """B - zero as floats; [N, K]."""
    site = grad.site
    n = int(site.attrs["N"])
    # Reading rows with scales of 1 gives the levels B - zero.
    ones = grad.op("Expand", grad.like(1.0, 2), grad.const(list(site.type(2).dims), "i64"))
    zeros = grad.x(3) if site.has(3) else ""
    every = grad.const(list(range(n)), "i64")
    return str(
        grad.op("QuantizedGather", every, grad.x(1), ones, zeros, domain=OURS, **read_nbits(site))
    )


def _nbits_blocks(grad: Grad, rows: str) -> str:
    """Return [N, K] as [N, blocks, block], with zeros after the last of K."""
    n, k, block = (int(grad.site.attrs[x]) for x in ("N", "K", "block_size"))
    blocks = -(-k // block)
    if blocks * block != k:
        rows = grad.op("Pad", rows, grad.const([0, 0, 0, blocks * block - k], "i64"))
    return str(grad.op("Reshape", rows, grad.const([n, blocks, block], "i64")))


# --- GatherBlockQuantized


def _read_table(site: Site) -> dict[str, Any]:
    """Return the matrix of a GatherBlockQuantized: data, scales and zero points as rows."""
    data, bits, block = site.type(0), int(site.attrs["bits"]), int(site.attrs["block_size"])
    columns = data.dims[-1] * 8 // bits
    # Blocks lie along the rows, or across them: then each column has scales of its own.
    across = int(site.attrs["quantize_axis"]) in (0, -2)
    points = columns if across else -(-columns // block)
    return {
        "rows": math.prod(data.dims[:-1]),
        "columns": columns,
        "bits": bits,
        "block_rows": block if across else 1,
        "block_columns": 1 if across else block,
        "zero_bits": bits,
        "zero_stride": -(-points * bits // 8) * 8 // bits,
        "zero": 1 << bits - 1,
    }


def _table_infer(site: Site) -> tuple[TensorType, ...]:
    data, index, attrs = site.type(0), site.type(1), site.attrs
    if data.dtype != "u8" or attrs["bits"] not in (4, 8):
        site.fail(f"the data are {data.dtype} with bits={attrs['bits']}", "u8 with 4 or 8 bits")
    if int(attrs["block_size"]) < 1:
        site.fail(f"block_size={attrs['block_size']}", "1 or more")
    axes = attrs["gather_axis"], attrs["quantize_axis"]
    if data.rank != 2 or axes[0] not in (0, -2) or axes[1] not in (0, 1, -1, -2):
        site.fail(
            f"the data are {data} with gather_axis={axes[0]} and quantize_axis={axes[1]}",
            "a matrix with gather_axis 0, and quantize_axis 1 (along its rows) or 0 (across them)",
        )
    table = _read_table(site)
    blocks = [-(-table[side] // table[f"block_{side}"]) for side in ("rows", "columns")]
    scales = site.shaped(2, blocks)
    if site.has(3):
        zeros, size = site.type(3), blocks[0] * -(-blocks[1] * attrs["bits"] // 8)
        if zeros.dtype != "u8" or zeros.size != size:
            site.fail(f"zero points (input 3) are {zeros}", f"{size} of u8")
    return (TensorType(scales.dtype, (*index.shape, table["columns"])),)


def _table_expand(nodes: Nodes) -> tuple[str, ...]:
    zeros = nodes.x(3) if nodes.site.has(3) else ""
    ins = (nodes.x(1), nodes.x(0), nodes.x(2), zeros)
    return (nodes.op("QuantizedGather", *ins, domain=OURS, **_read_table(nodes.site)),)


_FROZEN = frozenset((1, 2, 3))
OPS = (
    Op(
        name="QuantizedMatMul",
        domain=OURS,
        inputs=(3, 5),
        outputs=1,
        needs=_NEEDS,
        attrs={**_ATTRS, "trans": 0, "rounds": 0},
        infer=_matmul_infer,
        lower=_product_lower,
        calls=(*QUANTISED_KERNELS, *INTEGER_BLOCKS),
        grad=_product_grad,
        no_gradient=_FROZEN,
    ),
    Op(
        name="QuantizedConv",
        domain=OURS,
        inputs=(4, 5),
        outputs=1,
        needs=_NEEDS,
        attrs={**_ATTRS, "trans": 1},
        infer=_conv_infer,
        lower=_product_lower,
        calls=QUANTISED_KERNELS,
        grad=_product_grad,
        no_gradient=_FROZEN,
        layout=ChannelsLast((0,), (0,)),
    ),
    Op(
        name="QuantizedGather",
        domain=OURS,
        inputs=(3, 4),
        outputs=1,
        needs=_NEEDS,
        attrs=_ATTRS,
        infer=_gather_infer,
        lower=_gather_lower,
        calls=(quantised_rows, *MAP_KERNELS),
        samples=Samples.FIRST_AXIS,
        no_gradient=frozenset(range(4)),
    ),
    Op(
        name="DequantizePacked",
        domain=OURS,
        inputs=(2, 3),
        outputs=1,
        needs={**_NEEDS, "shape": "ints"},
        attrs={**_ATTRS, "axis": 1, "block_size": 0},  # the last two are those in a file
        infer=_packed_infer,
        expand=_packed_expand,
        becomes=f"Reshape {OURS}::QuantizedGather",
        no_gradient=frozenset(range(3)),
    ),
    Op(
        name="MatMulNBits",
        units=(Units(1, 2, 3, Each.BLOCKS),),
        roles={1: Role.WEIGHT},
        product=MATMUL.with_factors(Factors.PACKED),
        domain=MS,
        inputs=(3, 6),
        outputs=1,
        needs={"N": "int", "K": "int"},
        takes={"weight_prepacked": "int"},
        infer=_nbits_infer,
        expand=_nbits_expand,
        becomes=f"{OURS}::QuantizedMatMul",
        samples=Samples.AXIS_APART,  # the last one, which is summed over
        grad=_nbits_grad,
        attrs={"bits": 4, "block_size": 32, "accuracy_level": 0},
    ),
    Op(
        name="GatherBlockQuantized",
        units=(Units(0, 2, 3, Each.OTHER),),
        roles={0: Role.TABLE},
        is_of_integers=True,
        domain=MS,
        inputs=(3, 4),
        outputs=1,
        infer=_table_infer,
        expand=_table_expand,
        becomes=f"{OURS}::QuantizedGather",
        attrs={"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
        no_gradient=frozenset(range(4)),
    ),
)
