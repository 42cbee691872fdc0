"""Losses over class labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.case import Case, Tensor, f32, i64


def labels(*shape: int, classes: int, dtype: str = "int64") -> Tensor:
    """Random labels."""
    return Tensor(shape, dtype, 0, classes)


def _log_softmax(x: Any) -> Any:
    m = x.max(1, keepdims=True)
    return x - m - np.log(np.exp(x - m).sum(1, keepdims=True))


def likelihood(
    logp: Any, label: Any, weight: Any = None, reduction: str = "mean", ignore_index: Any = None
) -> Any:
    """The mean over nothing is 0."""
    kept = label != ignore_index if ignore_index is not None else np.ones(label.shape, bool)
    at = np.where(kept, label, 0)
    w = kept * (np.ones(logp.shape[1]) if weight is None else weight)[at]
    loss = -w * np.take_along_axis(logp, at[:, None], 1)[:, 0]
    if reduction == "none":
        return [loss]
    count = w.sum() if reduction == "mean" and w.sum() else 1.0
    return [np.asarray(loss.sum() / count)]


def cross_entropy(x: Any, label: Any, weight: Any = None, ignore: Any = None, **attrs: Any) -> Any:
    """(loss, log_prob); `ignore` is the input of the Internal form."""
    if ignore is not None:
        attrs["ignore_index"] = int(ignore)
    logp = _log_softmax(x)
    return [*likelihood(logp, label, weight, **attrs), logp]


def _grad(
    dy: Any,
    logp: Any,
    label: Any,
    weight: Any = None,
    ignore: Any = None,
    reduction: str = "mean",
    ignore_index: Any = None,
) -> Any:
    """dX = f (exp(logp) - [c = label]), f = dY w[label] / (mean: the sum of those that count)."""
    index = ignore_index if ignore is None else int(ignore)
    kept = label != index if index is not None else np.ones(label.shape, bool)
    at = np.where(kept, label, 0)
    w = kept * (np.ones(logp.shape[1]) if weight is None else weight)[at]
    hot = np.moveaxis(np.eye(logp.shape[1])[at], -1, 1)
    count = w.sum() if reduction == "mean" else 1.0
    return [(dy * w / count)[:, None] * (np.exp(logp) - hot)]


def _with_log_sums(x: Any, label: Any, *rest: Any, **attrs: Any) -> Any:
    """(loss, lse): the maximum of the scores, and the logarithm of the sum above it."""
    m = x.max(1, keepdims=True)
    lse = np.stack([m[:, 0], np.log(np.exp(x - m).sum(1))])
    return [cross_entropy(x, label, *rest, **attrs)[0], lse]


def _grad_of_scores(
    dy: Any, x: Any, label: Any, weight: Any, ignore: Any, lse: Any, **attrs: Any
) -> Any:
    return _grad(dy, x - lse[0][:, None] - lse[1][:, None], label, weight, ignore, **attrs)


def _only_loss(*ins: Any, **attrs: Any) -> Any:
    return cross_entropy(*ins, **attrs)[:1]


def _rows(reduction: str, weighted: bool, ignore: int | None) -> tuple[Case, ...]:
    attrs: dict[str, Any] = {"reduction": reduction}
    if ignore is not None:
        attrs["ignore_index"] = ignore
    more = (f32(5, low=0.5, high=2),) if weighted else ()
    flat = (f32(6, 5), labels(6, classes=5), *more)
    deep = (f32(2, 5, 3, 20), labels(2, 3, 20, classes=5), *more)
    name = f"{reduction}-{'w' if weighted else ''}-{ignore}"
    cross = "SoftmaxCrossEntropyLoss"
    return (
        Case(cross, flat, attrs, (0,), outs=2, reference=cross_entropy, name=f"ce-flat-{name}"),
        Case(cross, deep, attrs, (0,), outs=1, reference=_only_loss, name=f"ce-deep-{name}"),
        Case(
            "NegativeLogLikelihoodLoss", deep, attrs, (0,), reference=likelihood, name=f"nll-{name}"
        ),
    )


def _rows_of_scores(shape: tuple[int, ...], *more: Any, **attrs: Any) -> tuple[Case, ...]:
    """Rows of the pair that reads scores, and log sums in the gradient."""
    batch = (shape[0], *shape[2:])
    each = batch if attrs.get("reduction") == "none" else ()
    options = (*more, None, None)[:2]
    label = labels(*batch, classes=shape[1], dtype="int32" if more else "int64")
    return (
        Case("SoftmaxCrossEntropyLoss", (f32(*shape), label, *options), attrs, domain="engine",
             outs=2, reference=_with_log_sums),
        Case("SoftmaxCrossEntropyLossGrad",
             (f32(*each), f32(*shape), label, *options, f32(2, *batch, low=1.0)), attrs,
             domain="engine", reference=_grad_of_scores),
    )  # fmt: skip


CASES = (
    *_rows_of_scores((6, 50)),
    *_rows_of_scores((6, 50), f32(50, low=0.5, high=2), ignore_index=1, reduction="sum"),
    *_rows_of_scores((2, 5, 3, 20), None, np.array(3), reduction="none"),
    *(case for reduction in ("none", "sum", "mean") for weighted in (False, True)
      for ignore in (None, 2) for case in _rows(reduction, weighted, ignore)),
    Case("SoftmaxCrossEntropyLoss", (f32(64, 10), labels(64, classes=10)), {}, (0,), bench=True),
    Case("SoftmaxCrossEntropyLoss", (f32(3, 4), np.full(3, -100)), {"ignore_index": -100}, (0,),
         outs=2, reference=cross_entropy, name="all-ignored"),
    Case("SoftmaxCrossEntropyLoss", (f32(9, 4, low=-900, high=900), labels(9, classes=4)), {}, (0,),
         outs=2, reference=cross_entropy, name="large-scores"),
    Case("SoftmaxCrossEntropyLoss", (f32(5, 4), labels(5, classes=4, dtype="int32")), {}, (0,)),
    Case("NegativeLogLikelihoodLoss", (f32(5, 4), labels(5, classes=4, dtype="int32")), {}, (0,),
         reference=likelihood),
    Case("SoftmaxCrossEntropyLossInternal", (f32(2, 5, 4), labels(2, 4, classes=5, dtype="int32")),
         {"reduction": "mean"}, domain=MS, outs=2, reference=cross_entropy),
    *(Case("SoftmaxCrossEntropyLossInternal", (f32(2, 5, *deep), labels(2, *deep, classes=5)),
           {"reduction": "mean"}, domain=MS, reference=_only_loss) for deep in ((), (4,))),
    Case("SoftmaxCrossEntropyLossInternalGrad",
         (f32(), f32(6, 5), labels(6, classes=5, dtype="int32")), {"reduction": "mean"}, domain=MS,
         reference=_grad),
    Case("SoftmaxCrossEntropyLossInternal",
         (f32(6, 5), labels(6, classes=5), f32(5, low=0.5, high=2), np.array(3)),
         {"reduction": "mean"}, domain=MS, outs=2, reference=cross_entropy),
    Case("SoftmaxCrossEntropyLossGrad",
         (f32(), f32(6, 5), labels(6, classes=5), f32(5, low=0.5, high=2)), {"ignore_index": 1},
         domain=MS, reference=_grad),
    Case("SoftmaxCrossEntropyLossGrad", (f32(2, 3, 7), f32(2, 5, 3, 7), labels(2, 3, 7, classes=5)),
         {"reduction": "none"}, domain=MS, reference=_grad),
    Case("SoftmaxCrossEntropyLossInternalGrad",
         (f32(), f32(2, 5, 40), labels(2, 40, classes=5), None, np.array(1)), {"reduction": "mean"},
         domain=MS, reference=_grad),
    Case("SoftmaxCrossEntropyLossInternal", (f32(6, 5), i64(6, high=5), None, np.array(3)),
         {"reduction": "sum"}, domain=MS, outs=2, reference=cross_entropy),
)  # fmt: skip
