"""The element types of tensors: one table, and every view of it that other files need.

A row holds all names of a type and what follows from none of the others.  No other file lists the
types again: a compiler derives its own type from `kind` and `itemsize`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

Kind = Literal["float", "half", "int", "unsigned", "bool"]
MAX_RANK = 64  # dimensions of a tensor, in models and checkpoints, as of numpy's arrays


@dataclass(frozen=True, slots=True)
class ElementType:
    """One type of tensor elements.

    name: ours, in plans, kernels and messages.
    kind: how kernels compute with it: a "half" is stored as such and computed with as f32; a "bool"
    is one byte that is 0 or 1.
    itemsize: bytes of an element.
    numpy: the type of arrays.
    onnx, onnx_name: its number and name in ONNX's TensorProto.DataType, and in checkpoints.
    cpp: its C++ name in op-set configs.
    is_stored_only: plans store values as such; no model, array or checkpoint of ours has it.
    """

    name: str
    kind: Kind
    itemsize: int
    numpy: Any
    onnx: int
    onnx_name: str
    cpp: str
    is_stored_only: bool = False

    @property
    def bits(self) -> int:
        return 8 * self.itemsize


_BF16 = np.dtype([("bfloat16", "<u2")])  # numpy has no such floats
_ROWS = (
    ElementType("f32", "float", 4, np.float32, 1, "FLOAT", "float"),
    ElementType("f64", "float", 8, np.float64, 11, "DOUBLE", "double"),
    ElementType("f16", "half", 2, np.float16, 10, "FLOAT16", "MLFloat16"),
    ElementType("bf16", "half", 2, _BF16, 16, "BFLOAT16", "BFloat16", True),
    ElementType("i64", "int", 8, np.int64, 7, "INT64", "int64_t"),
    ElementType("i32", "int", 4, np.int32, 6, "INT32", "int32_t"),
    ElementType("i16", "int", 2, np.int16, 5, "INT16", "int16_t"),
    ElementType("i8", "int", 1, np.int8, 3, "INT8", "int8_t"),
    ElementType("u64", "unsigned", 8, np.uint64, 13, "UINT64", "uint64_t"),
    ElementType("u32", "unsigned", 4, np.uint32, 12, "UINT32", "uint32_t"),
    ElementType("u16", "unsigned", 2, np.uint16, 4, "UINT16", "uint16_t"),
    ElementType("u8", "unsigned", 1, np.uint8, 2, "UINT8", "uint8_t"),
    ElementType("b1", "bool", 1, np.bool_, 9, "BOOL", "bool"),
)

ELEMENT_TYPES: Mapping[str, ElementType] = MappingProxyType({t.name: t for t in _ROWS})

# By our name:
ITEMSIZE: Mapping[str, int] = MappingProxyType({t.name: t.itemsize for t in _ROWS})
NUMPY: Mapping[str, Any] = MappingProxyType({t.name: t.numpy for t in _ROWS})
ONNX_CODE: Mapping[str, int] = MappingProxyType({t.name: t.onnx for t in _ROWS})

# Our name by another, of the types that models and arrays have:
_OPEN = [t for t in _ROWS if not t.is_stored_only]
OF_NUMPY: Mapping[np.dtype[Any], str] = MappingProxyType({np.dtype(t.numpy): t.name for t in _OPEN})
OF_ONNX: Mapping[int, str] = MappingProxyType({t.onnx: t.name for t in _OPEN})
SUPPORTED = ", ".join(t.name for t in _OPEN)  # in messages
OF_CPP: Mapping[str, str] = MappingProxyType({t.cpp: t.name for t in _OPEN})

# ONNX's number by the type of arrays, of all types that model files have:
CODE_OF_NUMPY: Mapping[np.dtype[Any], int] = MappingProxyType(
    {np.dtype(t.numpy): t.onnx for t in _ROWS}
)

FLOATS = tuple(t.name for t in _ROWS if t.kind == "float")  # those that models are trained in
HALVES = tuple(t.name for t in _ROWS if t.kind == "half")
REALS = (*FLOATS, *HALVES)  # every type of fractions
INTEGERS = tuple(t.name for t in _ROWS if t.kind in ("int", "unsigned"))
UNSIGNED = tuple(t.name for t in _ROWS if t.kind == "unsigned")
TRAINED_INTEGERS = ("i32", "i8", "u8")  # that training changes in place, where they stand for reals
PAIRED = ("i8", "u8")  # whose bytes may hold two integers of 4 bits


# ONNX's names of the types that models may not have, by number (TensorProto.DataType):
_CLOSED = {
    **{t.onnx: t.onnx_name for t in _ROWS if t.is_stored_only},
    8: "STRING", 14: "COMPLEX64", 15: "COMPLEX128", 17: "FLOAT8E4M3FN", 18: "FLOAT8E4M3FNUZ",
    19: "FLOAT8E5M2", 20: "FLOAT8E5M2FNUZ", 21: "UINT4", 22: "INT4", 23: "FLOAT4E2M1",
    24: "FLOAT8E8M0", 25: "UINT2", 26: "INT2", 27: "FLOAT6E2M3", 28: "FLOAT6E3M2",
}  # fmt: skip


def name_onnx_type(code: int) -> str:
    """Return our name of the type with this number in ONNX, otherwise ONNX's, for messages."""
    return OF_ONNX.get(code) or _CLOSED.get(code, f"ONNX type {code}")


def find_gradient_type(dtype: str) -> str:
    """Return the element type of the gradient of a parameter."""
    return "f32" if dtype in TRAINED_INTEGERS else dtype


def widen_bfloats(array: Any) -> Any:
    """Return the float32 of an array of bf16, exact."""
    bits = array.reshape(-1).view(np.uint16).astype(np.uint32)
    return (bits << 16).view(np.float32).reshape(array.shape)


def round_to_bfloats(array: Any) -> Any:
    """Return float32 rounded to bf16, to nearest, ties to even."""
    bits = array.reshape(-1).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    # Of a NaN whose upper half has no bit of the fraction set, rounding would make infinity.
    rounded = np.where((bits & 0x7FFFFFFF) > 0x7F800000, bits | 0x400000, rounded)
    return (rounded >> 16).astype(np.uint16).view(_BF16).reshape(array.shape)
