"""The precision of plans."""

from __future__ import annotations

from typing import Literal, get_args

Precision = Literal["f32", "bf16", "f16"]  # factors of products, and values between nodes
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
HELP = (
    "The type that products round their factors to and in which values between nodes are kept: "
    "f32, or for half the bytes bf16 or f16; parameters, states and sums stay float32, see "
    "docs/precision.md."
)
