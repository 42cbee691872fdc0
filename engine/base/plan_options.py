"""The options of plans, which commands, trainers and builds hand to the planner as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Precision = Literal["f32", "bf16", "f16", "auto"]  # factors of products, and values between nodes
CHOICES: tuple[Precision, ...] = get_args(Precision)
PRECISIONS: tuple[Precision, ...] = CHOICES[:-1]  # that a plan may have
MAX_THREADS = 1024  # of a plan
HELP = (
    "The type of the factors of products, and of values stored between nodes: f32; bf16 or f16, "
    "which take half the bytes; or auto, the type predicted to be fastest on this CPU.  "
    "Parameters, optimizer states and sums stay float32 (docs/precision.md)."
)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of the plans of a model.

    budget: the bytes that all regions of a plan may have together; None for the fastest plan.
    precision: see `HELP`; the planner rounds by `choose_storage`, and chooses for each shape with
        "auto".
    """

    budget: int | None = None
    precision: Precision = "f32"


DEFAULTS = PlanOptions()
