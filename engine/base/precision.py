"""The precision of plans."""

from __future__ import annotations

from typing import Literal, get_args

Precision = Literal["f32", "bf16"]  # factors of products, and values between nodes
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
