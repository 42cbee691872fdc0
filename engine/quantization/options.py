"""Options of post-training quantisation, and of training with rounded values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.base.fields import declare_option, describe_fields
from engine.base.plan_options import MAX_THREADS
from engine.base.signatures import AT_LEAST_1, BELOW_1, Range, check_arguments


@describe_fields
@check_arguments
@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Options of `quantize`: the kind of integers, and how their ranges are chosen."""

    method: Literal["minmax", "percentile", "entropy"] = declare_option(
        "minmax",
        "The range of an activation: minmax, all values that it takes in the data; percentile, all "
        "but the rarest on both sides; or entropy, the range whose integers keep the distribution "
        "best (least divergence).",
    )
    percentile: float = declare_option(
        99.99,
        "With the method percentile: the share of values inside the range, in percent.",
        Range(50, 100, above=True),
    )
    activations: Literal["uint8", "int8"] = declare_option(
        "uint8", "The integers of activations; weights are signed."
    )
    symmetric: bool = declare_option(
        False, "Centre the ranges of activations on 0; by default they follow the values."
    )
    weight_bits: Literal[8, 4] = declare_option(
        8, "Bits per weight; 4 need opset 21, which the file then has."
    )
    per_channel: bool = declare_option(
        True,
        "Give each output channel a scale of its weights; otherwise one for each tensor.",
        flag="--per-channel/--per-tensor",
    )
    keep_float: Sequence[str] = declare_option(
        (), "Nodes that stay float: names, or patterns such as 'head.*'.", metavar="PATTERN"
    )
    batch_size: int | None = declare_option(
        None,
        "Samples that are computed at a time; by default 8, or the number fixed in the model file.",
        AT_LEAST_1,
        flag="--batch",
        metavar="N",
    )
    threads: int | None = declare_option(
        None, "Threads; by default EDGEGRAD_THREADS, or all cores.", Range(1, MAX_THREADS)
    )


@describe_fields
@check_arguments
@dataclass(frozen=True, kw_only=True)
class Qat(Quantization):
    """Options of training with rounded values: how ranges and batch normalisations change."""

    ranges: Literal["moving", "learned", "fixed"] = declare_option(
        "moving",
        "The ranges of activations in training: moving, towards the range of each batch; learned, "
        "by gradients of their scales; or fixed, as the method has measured them.",
    )
    momentum: float = declare_option(
        0.99, "The share of a range that stays at each step; the rest is the batch's.", BELOW_1
    )
    weight_ranges: Literal["largest", "learned"] = declare_option(
        "largest",
        "The scales of weights in training: largest, following the largest weights; or learned, by "
        "gradients, starting where rounding changes weights least.",
    )
    norms: Literal["folded", "trained"] = declare_option(
        "folded",
        "Batch normalisations after convolutions: folded, at the start; or trained, with the "
        "statistics of each batch, while weights are rounded as if folded, for long runs.",
    )
