"""Losses over classes.

cross entropy   SoftmaxCrossEntropyLoss: classes on axis 1, as in ONNX.  Smoothed by e:
                (1 - e) of it + e / C sum_c -w_c log p_c, the mean has the divisor of the first part
                of shares of classes t, rows that sum to 1: - sum_c w_c t_c log p_c, t smoothed to
                (1 - e) t + e / C, and the mean divides by the number of positions
likelihood      NegativeLogLikelihoodLoss of log-probabilities
focal           a (1 - p)^gamma (-log p), p the probability of what is true and a the factor of its
                class; by Sigmoid, where every class is a question of its own, a = alpha t +
                (1 - alpha) (1 - t), or by Softmax.  1 - p is computed without a difference by
                Sigmoid; below 1e-30 it counts as that, and has no gradient, so that the power is
                finite for every gamma.  Lin et al. 2017, arXiv 1708.02002
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import InputError, ShapeError
from engine.base.signatures import AT_LEAST_0, FINITE, SHARE, check_arguments
from engine.loss_types.base import Activation, LossOfScores, NamedLoss
from engine.system.files import NOTE, SHARES

__all__ = ["CrossEntropyLoss", "FocalLoss", "NLLLoss"]

if TYPE_CHECKING:
    from engine.graphs.offline.loss_nodes import LossNodes
    from engine.kernels.vocabulary.op import TensorType

TINY = 1e-30


@check_arguments(weight=FINITE, label_smoothing=SHARE)
@dataclass(frozen=True, eq=False)
class CrossEntropyLoss(LossOfScores):
    """Softmax cross-entropy of scores [batch, classes, ...] and int64 `labels` [batch, ...].

    weight: one factor per class.
    ignore_index: the label of positions that do not count.  It excludes `probabilities`.
    label_smoothing: the share of each target, from 0 to 1, that is spread evenly over all classes.
    probabilities: whether labels are probabilities of the classes, float [batch, classes, ...], as
        mixup makes them, instead of class numbers.
    from_logits: whether the model's output is scores.  False: it is probabilities, and the loss
        takes the scores before the last Softmax.  None: scores; `Trainer.from_onnx` looks.
    """

    outputs: ClassVar[str] = "scores [batch, classes, ...]"
    compared: ClassVar[str] = (
        "`labels` [batch, ...], int64; with `probabilities=True`, probabilities of the classes, "
        "float [batch, classes, ...]"
    )
    other_names: ClassVar[str] = (
        "categorical_crossentropy sparse_categorical_crossentropy softmax log_loss"
    )
    inputs: ClassVar[tuple[str, ...]] = ("scores_input_name",)
    targets: ClassVar[tuple[str, ...]] = ("labels",)

    weight: Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None
    label_smoothing: float = 0.0
    probabilities: bool = False

    @property
    def applies(self) -> Activation:
        return "softmax"

    def _append(self, nodes: LossNodes, scores: str, labels: str) -> str:
        if self.probabilities:
            return self._append_of_shares(nodes, scores, labels)
        c = _read(nodes, scores, labels, self.reduction, self.weight, self.ignore_index)
        loss, logs = nodes.append_many("SoftmaxCrossEntropyLoss", *c.inputs, outputs=2, **c.attrs)
        part = self.label_smoothing
        if not part:
            return loss
        keep, spread = (nodes.add_constant("smoothing", k, c.type.dtype) for k in (1 - part, -part))
        smooth = nodes.add("Mul", _append_mean_over_classes(c, logs), spread)
        return nodes.add("Add", nodes.add("Mul", loss, keep), smooth)

    def _append_of_shares(self, nodes: LossNodes, scores: str, labels: str) -> str:
        """Append - sum over classes of the shares times the weighted log-probabilities."""
        t = nodes.find_type(scores)
        if self.ignore_index is not None:
            raise InputError(
                f"ignore_index={self.ignore_index} with probabilities=True: shares of classes "
                "have no label that could be ignored"
            )
        shares, logs = nodes.add_target(labels, t), nodes.add("LogSoftmax", scores, axis=1)
        nodes.graph.metadata[f"{NOTE}{SHARES}"] = shares
        weight = _check_weight(t, self.weight)
        if weight is not None:
            factors = weight.reshape(-1, *[1] * (t.rank - 2))
            logs = nodes.add("Mul", logs, nodes.add_constant("weight", factors, t.dtype))
        each = nodes.sum(nodes.add("Mul", shares, logs), [1])
        if self.label_smoothing:
            kept = nodes.scale(each, 1 - self.label_smoothing, t.dtype)
            spread = nodes.scale(nodes.mean(logs, 1), self.label_smoothing, t.dtype)
            each = nodes.add("Add", kept, spread)
        return nodes.reduce(nodes.add("Neg", each), self.reduction)


@check_arguments(weight=FINITE)
@dataclass(frozen=True, eq=False)
class NLLLoss(NamedLoss):
    """Negative log-likelihood: -output[label], for log-probabilities [batch, classes, ...].

    weight, ignore_index: as in `CrossEntropyLoss`.
    """

    outputs: ClassVar[str] = "log-probabilities [batch, classes, ...]"
    compared: ClassVar[str] = "`labels` [batch, ...], int64"
    inputs: ClassVar[tuple[str, ...]] = ("logs_input_name",)
    targets: ClassVar[tuple[str, ...]] = ("labels",)

    weight: Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None

    def _append(self, nodes: LossNodes, logs: str, labels: str) -> str:
        c = _read(nodes, logs, labels, self.reduction, self.weight, self.ignore_index)
        return nodes.add("NegativeLogLikelihoodLoss", *c.inputs, **c.attrs)


@check_arguments(gamma=AT_LEAST_0, alpha=FINITE)
@dataclass(frozen=True, eq=False)
class FocalLoss(LossOfScores):
    """Cross-entropy times alpha (1 - p)^gamma, where p is the probability of the true class.

    activation: "sigmoid" decides about each class separately: `target` has the output's shape and
        values in [0, 1].  "softmax" chooses one class: `target` contains int64 classes
        [batch, ...], and the output scores [batch, classes, ...].
    gamma: how strongly the loss of elements that are already right is reduced; 0 gives
        cross-entropy.
    alpha: with "sigmoid", the factor of positives; negatives have the factor 1 - alpha (0.25 in
        RetinaNet).  With "softmax", one factor per class.  None: 1 for all.
    ignore_index: the target of positions that do not count, not even in the mean.
    from_logits: as in `CrossEntropyLoss`.
    """

    outputs: ClassVar[str] = (
        "logits of any shape; with `activation='softmax'`, scores [batch, classes, ...]"
    )
    compared: ClassVar[str] = (
        "`target` in [0, 1], same shape; with `activation='softmax'`, classes [batch, ...], int64"
    )

    activation: Activation = "sigmoid"
    gamma: float = 2.0
    alpha: float | Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None

    @property
    def applies(self) -> Activation:
        return self.activation

    def _append(self, nodes: LossNodes, x: str, target: str) -> str:
        if self.activation == "softmax":
            return self._append_softmax(nodes, x, target)
        return self._append_sigmoid(nodes, x, target)

    def _append_softmax(self, nodes: LossNodes, scores: str, labels: str) -> str:
        """Append alpha[l] (1 - p)^gamma (-log p), p = softmax(scores)[l] along axis 1."""
        c = _read(nodes, scores, labels, "none", self.alpha, self.ignore_index)
        dtype, index = c.type.dtype, c.inputs[1]
        each = nodes.add("SoftmaxCrossEntropyLoss", *c.inputs[:2], **c.attrs)
        missed = nodes.add(
            "Sub", nodes.add_constant("one", 1, dtype), nodes.add("Exp", nodes.add("Neg", each))
        )
        each = _append_modulation(nodes, each, missed, self.gamma, dtype)
        counts = None
        if self.ignore_index is not None:
            ignored = nodes.add_constant("ignore_index", self.ignore_index, "i64")
            skipped = nodes.add("Equal", index, ignored)
            index = nodes.add("Where", skipped, nodes.add_constant("first", 0, "i64"), index)
            counts = _append_counts(nodes, skipped, dtype)
        if c.weight is not None:
            each = nodes.add("Mul", each, nodes.add("Gather", c.inputs[2], index))
        return _append_reduction(nodes, each, counts, self.reduction, dtype)

    def _append_sigmoid(self, nodes: LossNodes, x: str, target: str) -> str:
        """Append a (1 - p)^gamma (-log p) of logits and targets in [0, 1], element by element."""
        t = nodes.find_type(x)
        share = None if self.alpha is None else arguments.check_real("alpha", self.alpha)
        if share is not None and not 0 <= share <= 1:
            raise InputError(
                f"alpha={self.alpha}; expected the factor of positives, from 0 to 1; the factor of "
                "negatives is 1 - alpha"
            )
        y = nodes.add_target(target, t)
        counts = skipped = None
        if self.ignore_index is not None:
            ignored = nodes.add_constant("ignore_index", self.ignore_index, t.dtype)
            skipped = nodes.add("Equal", y, ignored)
            y = nodes.add("Where", skipped, nodes.add_constant("zero", 0, t.dtype), y)
            counts = _append_counts(nodes, skipped, t.dtype)
        rest, opposite = (
            nodes.add("Sub", nodes.add_constant("one", 1, t.dtype), y),
            nodes.add("Neg", x),
        )
        each = nodes.add("Add", nodes.add("Mul", rest, x), nodes.add("Softplus", opposite))
        missed = nodes.add(
            "Add",
            nodes.add("Mul", rest, nodes.add("Sigmoid", x)),
            nodes.add("Mul", y, nodes.add("Sigmoid", opposite)),
        )
        each = _append_modulation(nodes, each, missed, self.gamma, t.dtype)
        if share is not None:
            slope = nodes.scale(y, 2 * share - 1, t.dtype)
            factor = nodes.add("Add", slope, nodes.add_constant("alpha", 1 - share, t.dtype))
            each = nodes.add("Mul", each, factor)
        if skipped is not None:
            each = nodes.add("Where", skipped, nodes.add_constant("zero", 0, t.dtype), each)
        return _append_reduction(nodes, each, counts, self.reduction, t.dtype)


@dataclass(frozen=True, slots=True)
class _Classes:
    """The inputs and attributes of ONNX's loss ops.

    type: the type of the scores [batch, classes, ...].
    inputs: scores, labels [batch, ...] and, if given, class weights.
    attrs: the reduction, and the label that does not count.
    weight: one factor for each class, or None.
    """

    nodes: LossNodes
    type: TensorType
    inputs: list[str]
    attrs: dict[str, Any]
    weight: Array | None


def _read(
    nodes: LossNodes,
    scores: str,
    labels: str,
    reduction: str,
    weight: float | Array | None,
    ignore_index: int | None,
) -> _Classes:
    """Return what ONNX's loss ops take for scores, labels and these options."""
    t = nodes.find_type(scores)
    if t.rank < 2:
        raise ShapeError(
            f"{nodes.graph.name}: scores {scores!r} are {t}; expected [batch, classes, ...]"
        )
    inputs = [scores, nodes.add_integer_target(labels, (t.shape[0], *t.shape[2:]))]
    given = _check_weight(t, weight)
    if given is not None:
        inputs.append(nodes.add_constant("weight", given, t.dtype))
    attrs: dict[str, Any] = {"reduction": reduction}
    if ignore_index is not None:
        attrs["ignore_index"] = ignore_index
    return _Classes(nodes, t, inputs, attrs, given)


def _check_weight(t: TensorType, weight: float | Array | None) -> Array | None:
    """Return the factor of each class of scores; None if none are given.

    Raises:
        ShapeError: there is not one for each class.
    """
    if weight is None:
        return None
    given = arguments.make_array("weight", weight)
    classes = t.shape[1]
    if given.ndim != 1 or (isinstance(classes, int) and len(given) != classes):
        raise ShapeError(f"weight has shape {list(given.shape)}; expected [{classes}]")
    return given


def _append_mean_over_classes(c: _Classes, logs: str) -> str:
    """Append the mean over classes of the weighted log-probabilities, reduced as the loss is."""
    nodes, dtype = c.nodes, c.type.dtype
    if c.weight is None:
        each = nodes.mean(logs, 1)
    else:
        shares = c.weight.reshape(-1, *[1] * (c.type.rank - 2)) / len(c.weight)
        each = nodes.sum(nodes.add("Mul", logs, nodes.add_constant("shares", shares, dtype)), [1])
    labels, ignored = c.inputs[1], c.attrs.get("ignore_index")
    skipped = None
    if ignored is not None:
        skipped = nodes.add("Equal", labels, nodes.add_constant("ignore_index", ignored, "i64"))
        each = nodes.add("Where", skipped, nodes.add_constant("zero", 0, dtype), each)
    if c.attrs["reduction"] != "mean" or (skipped is None and c.weight is None):
        return nodes.reduce(each, c.attrs["reduction"])
    one = nodes.add_constant("one", 1, dtype)
    counts = one
    if c.weight is not None:
        index = labels
        if skipped is not None:
            index = nodes.add("Where", skipped, nodes.add_constant("first", 0, "i64"), labels)
        counts = nodes.add("Gather", c.inputs[2], index)
    if skipped is not None:
        counts = nodes.add("Where", skipped, nodes.add_constant("zero", 0, dtype), counts)
    return nodes.reduce_counted(each, counts, "mean", dtype)


def _append_modulation(nodes: LossNodes, each: str, missed: str, gamma: float, dtype: str) -> str:
    """Append missed^gamma times each."""
    if gamma == 0:
        return each
    base = nodes.clip_below(missed, TINY, dtype)
    return nodes.add("Mul", nodes.add("Pow", base, nodes.add_constant("gamma", gamma, dtype)), each)


def _append_counts(nodes: LossNodes, skipped: str, dtype: str) -> str:
    """Append 1 where an element counts, 0 where it is skipped."""
    zero, one = (nodes.add_constant("count", k, dtype) for k in (0, 1))
    return nodes.add("Where", skipped, zero, one)


def _append_reduction(
    nodes: LossNodes, each: str, counts: str | None, reduction: str, dtype: str
) -> str:
    """Append the reduction; counts: 1 or 0 for each element, None if all count."""
    if counts is None:
        return nodes.reduce(each, reduction)
    return nodes.reduce_counted(each, counts, reduction, dtype)
