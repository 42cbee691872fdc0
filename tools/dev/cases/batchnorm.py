"""Case rows of kernels/ops/norm/batchnorm.py and kernels/ops/norm/channels.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.kernels.vocabulary.terms import Formulas
from engine.tools.dev.cases.case import Case, Tensor, f32


def per_channel(v: Any, rank: Any) -> Any:
    return np.asarray(v).reshape(-1, *[1] * (rank - 2))


def moments(x: Any) -> Any:
    axes = (0, *range(2, x.ndim))
    return x.mean(axes), x.var(axes)


def normalised(x: Any, scale: Any, b: Any, mean: Any, var: Any, epsilon: Any) -> Any:
    scale, b, mean, var = (per_channel(v, x.ndim) for v in (scale, b, mean, var))
    return (x - mean) * scale / np.sqrt(var + epsilon) + b


def train(
    x: Any,
    scale: Any,
    b: Any,
    rm: Any,
    rv: Any,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    **_: Any,
) -> Any:
    mean, var = moments(x)
    y = normalised(x, scale, b, mean, var, epsilon)
    new = [old * momentum + now * (1 - momentum) for old, now in ((rm, mean), (rv, var))]
    return y, *new, mean, var


def infer(x: Any, scale: Any, b: Any, mean: Any, var: Any, epsilon: float = 1e-5, **_: Any) -> Any:
    return [normalised(x, scale, b, mean, var, epsilon)]


def internal(
    x: Any,
    scale: Any,
    b: Any,
    rm: Any,
    rv: Any,
    epsilon: float = 1e-5,
    training_mode: int = 1,
    **rest: Any,
) -> Any:
    if not training_mode:
        y = normalised(x, scale, b, rm, rv, epsilon)
        return [y, rm, rv, rm, 1 / np.sqrt(rv + epsilon)]
    *out, var = train(x, scale, b, rm, rv, epsilon, **rest)
    return [*out, 1 / np.sqrt(var + epsilon)]


def held(
    x: Any, scale: Any, b: Any, rm: Any, rv: Any, epsilon: float = 1e-5, training_mode: int = 1,
    **_: Any,
) -> Any:  # fmt: skip
    mean, var = moments(x) if training_mode else (rm, rv)
    y = normalised(x, scale, b, mean, var, epsilon)
    return [y, mean, var, mean, 1 / np.sqrt(var + epsilon)]


def fold(
    w: Any, scale: Any, b: Any, mean: Any, var: Any, c: Any = 0.0, epsilon: float = 1e-5, **_: Any
) -> Any:
    """Weights and bias of a convolution that includes a normalisation, and what undoes it."""
    factor = scale / np.sqrt(var + epsilon)
    along = factor.reshape(-1, *[1] * (w.ndim - 1))
    return [w * along, b + (c - mean) * factor, np.where(factor == 0, 1, factor)]


def three(*ins: Any, **attrs: Any) -> Any:
    return train(*ins, **attrs)[:3]


def first(*ins: Any, **attrs: Any) -> Any:
    return internal(*ins, **attrs)[:1]


def gradient(dy: Any, x: Any, scale: Any, mean: Any, inv: Any, **_: Any) -> Any:
    axes, n = (0, *range(2, x.ndim)), x.size / x.shape[1]
    m, i, s = (per_channel(v, x.ndim) for v in (mean, inv, scale))
    h = (x - m) * i
    ds, db = (dy * h).sum(axes), dy.sum(axes)
    dx = s * i * (dy - per_channel(db, x.ndim) / n - h * per_channel(ds, x.ndim) / n)
    return [dx, ds, db]


def sums(*ins: Any, formulas: Any) -> Any:
    x, m = ins
    d = x - m
    axes = (0, *range(2, x.ndim))
    return [d.sum(axes), (d * x).sum(axes)]


def _ins(*shape: int) -> tuple[Tensor, ...]:
    """X, scale, B, mean, var."""
    c = shape[1]
    return (f32(*shape), f32(c), f32(c), f32(c), f32(c, low=0.5, high=2.0))


def _mixed(*shape: int) -> tuple[Tensor, ...]:
    """The same, with vectors of float64."""
    x, *vectors = _ins(*shape)
    return (x, *(replace(v, dtype="float64") for v in vectors))


def _constants(c: int) -> tuple[np.ndarray, np.ndarray]:
    """Running mean and variance as constants, which nothing updates."""
    grid = np.linspace(0.5, 1.5, c, dtype=np.float32)
    return grid - 1, grid


def _far(c: int) -> Tensor:
    """Values around 1000 with a spread of 1."""
    return f32(4, c, 6, 5, low=999.5, high=1000.5)


SHAPES = ((4, 3, 5, 7), (6, 20), (3, 5, 11), (2, 17, 3, 2, 4), (2, 40, 6, 6))
TRAIN = {"training_mode": 1, "momentum": 0.8, "epsilon": 1e-3}
_APART = ("sub", ("in", 0), ("in", 1))
FORMULAS = {"formulas": Formulas.of(_APART, ("mul", _APART, ("in", 0)))}

CASES = (
    *(
        Case("BatchNormalization", _ins(*s), {"epsilon": 1e-3}, grad=(0, 1, 2, 3, 4))
        for s in SHAPES
    ),
    *(Case("BatchNormalization", _ins(4, 3, 5, 5), grad=(0, 1, 2), opset=o, reference=infer)
      for o in (7, 9, 14)),
    *(
        Case("BatchNormalization", _ins(*s), TRAIN, outs=3, reference=three)
        for s in SHAPES
    ),
    *(Case("BatchNormalization", _ins(*s), TRAIN, grad=(0, 1, 2), opset=15) for s in SHAPES),
    *(
        Case("BatchNormalization", _mixed(4, 3, 5, 5), attrs, grad=(0, 1, 2), opset=15,
             name=f"batchnorm-vectors-float64-{'train' if attrs else 'infer'}")
        for attrs in ({}, TRAIN)
    ),
    Case("BatchNormalization", _ins(5, 3, 4, 4), {"momentum": 0.7}, outs=5, opset=9,
         reference=train),
    Case("BatchNormalization", (_far(3), *_ins(1, 3)[1:]), TRAIN, outs=3, tol=1e-4, opset=15,
         reference=three, name="batchnorm-far-mean"),
    *(
        Case("BatchNormInternal", (f32(*s), f32(s[1]), f32(s[1]), *_constants(s[1])),
             {"training_mode": mode}, outs=5, domain=MS, reference=internal)
        for s in ((3, 4, 5, 6), (8, 24)) for mode in (0, 1)
    ),
    Case("BatchNormInternal", (*_mixed(3, 4, 5, 6)[:3], *_constants(4)), {"training_mode": 1},
         outs=5, domain=MS, reference=internal, name="batchnorm-internal-vectors-float64"),
    Case("BatchNormHeld", _mixed(3, 4, 5, 6), {"training_mode": 1}, outs=5, domain="engine",
         reference=held, name="batchnorm-held-vectors-float64"),
    *(
        Case("BatchNormHeld", _ins(*s), {"training_mode": mode}, outs=5, domain="engine",
             reference=held)
        for s in ((3, 4, 5, 6), (8, 24)) for mode in (0, 1)
    ),
    *(
        Case("BatchNormInternal", (f32(3, 4, 5, 6), f32(4), f32(4), *_constants(4)),
             {"training_mode": mode}, grad=(0, 1, 2), domain=MS,
             reference=first, name=f"batchnorm-internal-grad-{mode}")
        for mode in (0, 1)
    ),
    *(
        Case("BatchNormalizationGrad",
             (f32(*s), f32(*s), f32(s[1]), f32(s[1]), f32(s[1], low=0.5, high=2.0)),
             outs=3, domain=MS, reference=gradient)
        for s in SHAPES
    ),
    *(
        Case("ChannelSums", (f32(*s), f32(s[1], *[1] * (len(s) - 2))), FORMULAS, outs=2,
             domain="engine", reference=sums, tol=1e-5)
        for s in (*SHAPES, (2, 5, 70, 80))
    ),
    *(
        Case("ChannelMoments", (f32(*s),), outs=2, domain="engine",
             reference=lambda x: list(moments(x)))
        for s in (*SHAPES, (2, 5, 70, 80), (3, 600, 7, 7))
    ),
    *(
        Case("FoldedNorm", (f32(3, 2, 3, 3), *_ins(1, 3)[1:], *bias), {"epsilon": 1e-3},
             grad=(0, 1, 2, 5)[: 3 + len(bias)], domain="engine", outs=3, reference=fold)
        for bias in ((), (f32(3),))
    ),
    Case("FoldedNorm", (f32(2, 4, 1, 1), np.array([0.0, 2.0], np.float32), *_ins(1, 2)[2:]),
         domain="engine", outs=3, reference=fold, name="folded-norm-of-nothing"),
    Case("BatchNormalization", _ins(8, 96, 56, 56), TRAIN, outs=3, bench=True,
         name="batchnorm-train", tol=1e-5, reference=three),
    Case("BatchNormalizationGrad", (f32(8, 96, 56, 56), f32(8, 96, 56, 56), *_ins(1, 96)[1:4]),
         outs=3, domain=MS, bench=True, name="batchnorm-grad", reference=gradient, tol=1e-5),
)  # fmt: skip
