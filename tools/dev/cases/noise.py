"""Random numbers: each row against the same counters by numpy."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from engine.kernels.vocabulary.expression import philox
from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, f32, fed

FLOAT, DOUBLE, INT64 = 1, 11, 7
MASK, LIKE = "dropout/RandomMask", "dropout/RandomUniformLike_output_0"


def words(size: int, node: str, seed: float | None = None) -> tuple[Any, Any]:
    """The words of half a tensor in step 0, in the seed that a process starts with."""
    own = 0 if seed is None else zlib.crc32(repr(float(seed)).encode())
    key, _ = philox(own, 0, zlib.crc32(node.encode()) if seed is None else 0)
    return philox(np.arange((size + 1) // 2), 0, key)


def uniform(
    shape: tuple[int, ...], node: str = "y0", seed: float | None = None, bits: int = 24
) -> Any:
    size = math.prod(shape)
    both = np.concatenate(words(size, node, seed))[:size].reshape(shape)
    return (both >> np.uint32(32 - bits)) / 2**bits


def normal(shape: tuple[int, ...], bits: int = 24) -> np.ndarray:
    size = math.prod(shape)
    u, v = ((w >> np.uint32(32 - bits)) / 2**bits for w in words(size, "y0"))
    radius, angle = np.sqrt(-2 * np.log(u + 2.0**-bits)), 2 * np.pi * v
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:size].reshape(shape)


def dropout(x: Any, ratio: Any = 0.5, mode: Any = True, node: str = MASK, seed: Any = None) -> Any:
    mask = uniform(x.shape, node, seed) >= np.float32(ratio)
    return [np.where(mask, x / (1 - np.float64(ratio)) if ratio < 1 else 0, 0), mask]


RANDOM = (
    Case("RandomUniform", (), {"shape": [7, 300]}, reference=lambda shape: [uniform((7, 300))],
         bench=True),
    Case("RandomUniform", (), {"shape": [5], "low": -1.0, "high": 3.0, "seed": 1.5},
         reference=lambda seed, **_: [uniform((5,), seed=seed) * 4 - 1]),
    Case("RandomUniform", (), {"shape": [40], "dtype": DOUBLE},
         reference=lambda **_: [uniform((40,), bits=32)]),
    Case("RandomUniformLike", (f32(3, 5),), reference=lambda x: [uniform((3, 5))]),
    Case("RandomUniformLike", (fed(range(40), "int64"),), {"dtype": FLOAT},
         reference=lambda x, dtype: [uniform((40,))]),
    Case("RandomNormal", (), {"shape": [300], "mean": 1.0, "scale": 2.0},
         reference=lambda **_: [normal((300,)) * 2 + 1]),
    Case("RandomNormalLike", (f32(3, 5),), {"dtype": DOUBLE},
         reference=lambda x, dtype: [normal((3, 5), 32)]),
    Case("Bernoulli", (f32(60, low=0.0, high=1.0),), opset=15,
         reference=lambda x: [uniform((60,), "bernoulli/RandomUniformLike_output_0") < x]),
    Case("Bernoulli", (f32(60, low=0.0, high=1.0),), {"dtype": INT64, "seed": 3.0}, opset=15,
         reference=lambda x, dtype, seed: [uniform((60,), seed=seed) < x]),
    Case("Multinomial", (fed([[0, -np.inf, -np.inf], [-np.inf, -np.inf, 2]]),),
         {"sample_size": 5, "dtype": INT64},
         reference=lambda x, **_: [np.array([[0] * 5, [2] * 5])]),
)  # fmt: skip

TRUE, HALF = np.array(True), np.array(0.5, "f4")
DROPOUT = (
    Case("Dropout", (f32(3, 4),), grad=(0,)),
    Case("Dropout", (f32(3, 4),), {"ratio": 0.7}, grad=(0,), opset=11, name="dropout-11"),
    Case("Dropout", (f32(3, 4), np.array(0.7, "f4"), np.array(False)), grad=(0,), outs=2),
    Case("Dropout", (f32(3, 4), np.array(0.0, "f4"), TRUE), grad=(0,), outs=2, opset=22),
    Case("Dropout", (f32(30, 7), np.array(0.3, "f4"), TRUE), grad=(0,), outs=2, bench=True,
         reference=dropout),
    Case("Dropout", (f32(30, 7), HALF, TRUE), {"seed": 5}, (0,), opset=12,
         reference=lambda x, r, t, seed: dropout(x, r, seed=seed)[:1]),
    Case("Dropout", (f32(30, 7), None, TRUE), grad=(0,), opset=13,
         reference=lambda x, ratio, mode: dropout(x)[:1]),
    Case("Dropout", (f32(3, 4), np.array(1.0, "f4"), TRUE), reference=dropout, outs=2,
         name="dropout-all"),
    Case("Dropout", (f32(30, 7), fed(0.25), fed(True, "bool")), grad=(0,), outs=2,
         reference=lambda x, r, t: dropout(x, r, node=LIKE), name="dropout-fed"),
    Case("Dropout", (f32(30, 7), fed(0.25), fed(False, "bool")), grad=(0,), outs=2,
         reference=lambda x, r, t: [x, np.ones(x.shape, bool)], name="dropout-fed-off"),
    Case("DropoutGrad", (f32(3, 4), fed(np.eye(3, 4) > 0, "bool"), np.array(0.2, "f4")),
         domain=MS, reference=lambda dy, mask, ratio: [dy * mask / 0.8]),
    Case("DropoutGrad", (f32(3, 4), fed(np.eye(3, 4) > 0, "bool")), domain=MS,
         reference=lambda dy, mask: [dy * mask / 0.5]),
    Case("DropoutGrad", (f32(3, 4), fed(np.eye(3, 4) > 0, "bool"), HALF, np.array(False)),
         domain=MS, reference=lambda dy, mask, *_: [dy]),
)  # fmt: skip

CASES = (*RANDOM, *DROPOUT)
