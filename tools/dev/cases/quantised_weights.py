"""Weights of integers read as they are: every width, every way to give a scale, ragged sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.kernels.vocabulary.op import MS, OURS
from engine.tools.dev.cases.case import Case, f32, fed, i64
from engine.tools.dev.cases.quantization import ANY, raw, scales, zeros


def levels(packed: Array, bits: int, count: int) -> Array:
    """The first `count` integers of some bytes, which lie in them from their lowest bits on."""
    each = np.unpackbits(packed.reshape(-1).view(np.uint8), bitorder="little")
    integers = each[: count * bits].reshape(count, bits) @ (1 << np.arange(bits))
    return integers - (integers >> bits - 1 << bits if packed.dtype == np.int8 else 0)


def matrix(q: Array, scale: Array, points: Array | None = None, *, rows: int, columns: int,
           bits: int = 8, block_rows: int = 0, block_columns: int = 0, stride: int = 0,
           zero_stride: int = 0, zero_bits: int = 8, **attrs: Any) -> Array:  # fmt: skip
    """W = (Q - zero) scale, by the text of the ops."""
    down, beside = block_rows or rows, block_columns or columns
    high, wide = -(-rows // down), -(-columns // beside)
    stride, zero_stride = stride or columns, zero_stride or wide

    def table(values: Array, row: int, width: int, count: int) -> Array:
        at = np.arange(count)[:, None] * row + np.arange(width)
        rows: Array = levels(values, bits if values is q else zero_bits, int(at.max()) + 1)[at]
        return rows

    def spread(blocks: Array) -> Array:
        return blocks.repeat(down, 0)[:rows].repeat(beside, 1)[:, :columns]

    point: Any = attrs.get("zero", 0)
    if points is not None:
        integers = points.dtype.kind in "iu"
        point = table(points, zero_stride, wide, high) if integers else points.reshape(high, wide)
        point = spread(point)
    return np.asarray((table(q, stride, columns, rows) - point) * spread(scale.reshape(high, wide)))


def _matmul(a: Any, q: Any, s: Any, z: Any = None, bias: Any = 0.0, **attrs: Any) -> list[Array]:
    w = matrix(q, s, z, **attrs)
    return [a @ (w.T if attrs.get("trans") else w) + bias]


def _conv(x: Any, q: Any, s: Any, z: Any = None, bias: Any = None, **attrs: Any) -> list[Array]:
    w = matrix(q, s, z, **attrs)
    y = np.einsum("ni...,oi->no...", x, w if attrs.get("trans", 1) else w.T)
    if bias is not None:
        y = y + bias.reshape(-1, *[1] * (x.ndim - 2))
    return [y]


def _rows(index: Any, q: Any, s: Any, z: Any = None, **attrs: Any) -> list[Array]:
    return [matrix(q, s, z, **attrs)[np.asarray(index, np.int64)]]


def _packed(q: Any, s: Any, z: Any = None, *, shape: Any, **attrs: Any) -> list[Array]:
    return [matrix(q, s, z, **attrs).reshape(shape)]


def _nbits(a: Any, b: Any, s: Any, z: Any = None, index: Any = None, bias: Any = 0.0,
           *, N: int, K: int, bits: int = 4, block_size: int) -> list[Array]:  # fmt: skip
    blocks = -(-K // block_size)
    packed = z is not None and z.dtype == np.uint8
    w = matrix(
        b, s, z, rows=N, columns=K, bits=bits, block_rows=1, block_columns=block_size,
        stride=blocks * block_size, zero_bits=bits, zero=2 ** (bits - 1),
        zero_stride=-(-blocks * bits // 8) * 8 // bits if packed else 0,
    )  # fmt: skip
    return [a @ w.T + bias]


def _rounded(a: Any, *rest: Any, K: int, block_size: int, accuracy_level: int,
             **sizes: Any) -> list[Array]:  # fmt: skip
    """Rows rounded to 8 bits by blocks, in float32 as onnxruntime rounds them."""
    assert accuracy_level == 4
    blocks = -(-K // block_size)
    cut = np.zeros((*a.shape[:-1], blocks * block_size), np.float32)
    cut[..., :K] = a
    cut = cut.reshape(*a.shape[:-1], blocks, block_size)
    largest = np.abs(cut).max(-1, keepdims=True)
    factor = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    levels = np.rint(cut * factor) * (largest / np.float32(127)).astype(np.float64)
    levels = levels.reshape(*a.shape[:-1], -1)[..., :K]
    return _nbits(levels, *rest, K=K, block_size=block_size, **sizes)


def _table(data: Any, index: Any, s: Any, z: Any = None, *, bits: int = 4, block_size: int = 128,
           **_: Any) -> list[Array]:  # fmt: skip
    rows, columns = data.shape[0], data.shape[1] * 8 // bits
    blocks = -(-columns // block_size)
    return [
        matrix(
            data, s, z, rows=rows, columns=columns, bits=bits, block_rows=1,
            block_columns=block_size, zero_bits=bits, zero=2 ** (bits - 1),
            zero_stride=-(-blocks * bits // 8) * 8 // bits,
        )[np.asarray(index, np.int64)]
    ]  # fmt: skip


def signed(*shape: int) -> Array:
    return zeros(*shape, dtype="int8")


SIZES = {"N": 3, "K": 40, "block_size": 16}
NBITS = (
    Case("MatMulNBits", (f32(2, 5, 40), zeros(3, 3, 8), f32(9, **ANY)), SIZES, (0, 2), MS,
         reference=_nbits),
    Case("MatMulNBits", (f32(5, 40), raw(3, 3, 8), scales(3, 3), zeros(3, 2)), SIZES, (0,), MS,
         reference=_nbits),
    Case("MatMulNBits", (f32(5, 48), raw(3, 3, 16), f32(9, **ANY), f32(9, low=100.0, high=150.0),
                         None, f32(3)), SIZES | {"K": 48, "bits": 8}, (0, 2, 3, 5), MS,
         reference=_nbits),
    Case("MatMulNBits", (f32(5, 40), raw(3, 3, 4), scales(9)), SIZES | {"bits": 2}, (0,), MS,
         reference=_nbits),
    Case("MatMulNBits", (f32(64, 512), zeros(384, 16, 16), scales(384, 16), zeros(384, 8)),
         {"N": 384, "K": 512, "block_size": 32}, (0,), MS, reference=_nbits, tol=4e-6, bench=True,
         name="nbits-many-rows"),
    Case("MatMulNBits", (f32(1, 512), zeros(384, 16, 16), scales(384, 16), zeros(384, 8)),
         {"N": 384, "K": 512, "block_size": 32}, (0,), MS, reference=_nbits, tol=4e-6, bench=True,
         name="nbits-few-rows"),
    *(Case("MatMulNBits", (f32(rows, 512), zeros(384, 16, 16), scales(384, 16), zeros(384, 8)),
           {"N": 384, "K": 512, "block_size": 32, "accuracy_level": 4}, (0,), MS,
           reference=_rounded, bench=True, name=f"nbits-rounded-{rows}") for rows in (1, 64)),
    *(Case("MatMulNBits", (f32(2, 3, k), raw(n, -(-k // block), block * bits // 8),
                           f32(n * -(-k // block), **ANY),
                           raw(n, -(-k // block * bits // 8)) if has else None, None, f32(n)),
           {"N": n, "K": k, "bits": bits, "block_size": block, "accuracy_level": 4},
           (0, 2, 5), MS, reference=_rounded,
           name=f"nbits-rounded-{bits}-{block}-{'zeros' if has else 'none'}")
      for bits, block, has, n, k in ((4, 16, 1, 9, 200), (4, 32, 0, 7, 400), (4, 64, 1, 3, 128),
                                     (4, 128, 0, 5, 384), (4, 256, 1, 6, 300), (8, 16, 0, 6, 90),
                                     (8, 32, 1, 9, 416), (8, 64, 0, 3, 40), (8, 128, 1, 4, 500),
                                     (8, 256, 0, 5, 700))),
)  # fmt: skip

WIDE = {"rows": 37, "columns": 70}  # more than a panel, and no whole vectors
PRODUCTS = (
    Case("QuantizedMatMul", (f32(7, 37), raw(37, 70), scales(1)), WIDE, (0,), OURS,
         reference=_matmul, name="one-scale"),
    Case("QuantizedMatMul", (f32(2, 3, 70), raw(37, 70, dtype="int8"), scales(37), signed(37),
                             f32(37)), WIDE | {"block_rows": 1, "trans": 1}, (0, 4), OURS,
         reference=_matmul, name="scale-of-a-row"),
    *(Case("QuantizedMatMul", (f32(7, 70 if trans else 37), raw(37, 70, dtype="int8"), scales(70),
                               points), WIDE | {"block_columns": 1, "trans": trans}, (0,), OURS,
           reference=_matmul, name=f"scale-of-a-column-{kind}-{trans}")
      for trans in (0, 1)
      for kind, points in (("plain", None), ("integers", signed(70)), ("floats", scales(70) * 99))),
    Case("QuantizedMatMul", (f32(7, 37), raw(37, 70), scales(10, 70), zeros(10, 70)),
         WIDE | {"block_rows": 4, "block_columns": 1}, (0,), OURS, reference=_matmul,
         name="blocks-of-rows"),
    *(Case("QuantizedMatMul", (f32(7, 33), raw(1089, dtype=kind), scales(66), points),
           {"rows": 66, "columns": 33, "bits": 4, "block_rows": 1, "zero_bits": 4, "zero_stride": 3,
            "trans": 1}, (0,), OURS, reference=_matmul, tol=4e-6,
           name=f"rows-that-begin-in-a-byte-{kind}-{'zeros' if points is not None else 'none'}")
      for kind, points in (("int8", signed(99)), ("uint8", zeros(99)), ("int8", None))),
    Case("QuantizedMatMul", (f32(3, 300), raw(300 * 130), scales(130)),
         {"rows": 300, "columns": 130, "block_columns": 1}, (0,), OURS, reference=_matmul,
         tol=4e-6, name="deep"),
    Case("QuantizedMatMul", (f32(3, 0, 37), raw(37, 70), scales(1)), WIDE, (), OURS,
         reference=_matmul, name="quantised-product-of-nothing"),
    *(Case("QuantizedConv", (f32(2, 20 if trans else 6, 3, 5), raw(6, 20, dtype="int8"), scales(6),
                             signed(6), f32(6 if trans else 20)),
           {"rows": 6, "columns": 20, "block_rows": 1, "trans": trans}, (0, 4), OURS,
           reference=_conv, name=f"quantised-1x1-{trans}") for trans in (0, 1)),
    Case("QuantizedConv", (f32(2, 32, 1, 2), raw(6, 32, dtype="int8"), scales(6), signed(6),
                           f32(6)), {"rows": 6, "columns": 32, "block_rows": 1, "trans": 1},
         (0, 4), OURS, reference=_conv, name="quantised-1x1-of-few-pixels"),
)  # fmt: skip

ROWS = (
    Case("QuantizedGather", (fed([[2, -1], [0, 2]], "int64"), raw(5, 20), scales(5)),
         {"rows": 5, "columns": 20, "block_rows": 1}, domain=OURS, reference=_rows),
    Case("QuantizedGather", (fed([4, 1, 1], "int32"), raw(5, 20, dtype="int8"), scales(20),
                             signed(20)),
         {"rows": 5, "columns": 20, "block_columns": 1}, domain=OURS, reference=_rows),
    Case("GatherBlockQuantized", (raw(6, 20), fed([[5, 0, 3]], "int64"), f32(6, 3, **ANY),
                                  raw(6, 2)), {"block_size": 16}, domain=MS, reference=_table),
    Case("GatherBlockQuantized", (raw(6, 40), fed([1, -6], "int64"), f32(6, 1, **ANY)),
         {"bits": 8}, domain=MS, reference=_table),
    Case("GatherBlockQuantized", (raw(512, 128), i64(64, high=512), f32(512, 8, **ANY)),
         {"block_size": 32}, domain=MS, reference=_table, bench=True),
)  # fmt: skip

# A row of 27 integers fills 14 bytes.
ODD = {"rows": 6, "columns": 27, "bits": 4, "stride": 28, "shape": [6, 3, 3, 3]}
UNPACKED = (
    Case("DequantizePacked", (raw(6, 14, dtype="int8"), scales(6), signed(6)),
         ODD | {"block_rows": 1}, domain=OURS, reference=_packed, name="a-scale-for-each-filter"),
    Case("DequantizePacked", (raw(6, 14), scales(3), zeros(3)), ODD | {"block_columns": 9},
         domain=OURS, reference=_packed, name="a-scale-for-each-channel"),
    Case("DequantizePacked", (raw(512, 256, dtype="int8"), scales(16, 512)),
         {"rows": 512, "columns": 512, "bits": 4, "shape": [512, 512], "block_rows": 32,
          "block_columns": 1}, domain=OURS, reference=_packed, bench=True),
)  # fmt: skip

CASES = (*NBITS, *PRODUCTS, *ROWS, *UNPACKED)
