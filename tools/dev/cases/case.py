"""One row of behaviour: a node with inputs.  It drives forward check, gradient check and bench."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tensor:
    """A random input in [low, high), kept `by` away from `avoid`, where the op has a kink."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = -2.0
    high: float = 2.0
    avoid: float | None = None
    by: float = 1e-2

    def make(self, rng: np.random.Generator) -> np.ndarray:
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        if "int" in self.dtype:
            return rng.integers(int(self.low), int(self.high), self.shape).astype(self.dtype)
        x = rng.uniform(self.low, self.high, self.shape)
        if self.avoid is not None:
            near = np.abs(x - self.avoid) < self.by
            x = np.where(near, self.avoid + np.where(x < self.avoid, -2, 2) * self.by, x)
        return x.astype(self.dtype)


@dataclass(frozen=True)
class Given(Tensor):
    """An input of these values."""

    values: Any = None

    def make(self, rng: np.random.Generator) -> np.ndarray:
        return np.array(self.values, self.dtype)


@dataclass(frozen=True)
class Case:
    """A node of `op` with inputs: `Tensor` (fed), ndarray (an initializer) or None (absent).

    grad: inputs whose gradient is checked; empty where ONNX defines none.
    outs: number of outputs, or names with "" for an absent one.
    tol: relative error allowed against the float64 reference, of the largest magnitude.
    reference: computes the outputs from the float64 inputs where onnx.reference cannot.
    bench: whether bench/ times this row.
    """

    op: str
    ins: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    grad: tuple[int, ...] = ()
    domain: str = ""
    opset: int = 17
    outs: int | tuple[str, ...] = 1
    tol: float = 2e-6
    reference: Any = None
    bench: bool = False
    name: str = ""

    @property
    def id(self) -> str:
        """Test id: op, shapes, attributes."""
        shapes = "-".join("x".join(map(str, getattr(t, "shape", ()))) if t is not None else "none"
                          for t in self.ins)  # fmt: skip
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return self.name or f"{self.op}[{shapes}]{attrs}@{self.opset}".replace(" ", "")


def f32(*shape: int, **kwargs: Any) -> Tensor:
    """A float32 input."""
    return Tensor(shape, **kwargs)


def i64(*shape: int, low: int = 0, high: int = 10) -> Tensor:
    """An int64 input in [low, high)."""
    return Tensor(shape, "int64", low, high)


def i32(*shape: int, low: int = 0, high: int = 10) -> Tensor:
    """An int32 input in [low, high)."""
    return Tensor(shape, "int32", low, high)


def one(value: float, dtype: str = "float32") -> np.ndarray:
    """A constant scalar input."""
    return np.array(value, dtype)


def fed(values: Any, dtype: str = "float32") -> Given:
    """An input of these values, which a plan cannot know."""
    return Given(np.shape(values), dtype, values=values)
