"""Options of adapters: their layers and their kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.base.errors import InputError
from engine.base.signatures import ABOVE_0, AT_LEAST_0, AT_LEAST_1, BELOW_1, check_arguments


@check_arguments(rank=AT_LEAST_1, alpha=ABOVE_0, dropout=BELOW_1, seed=AT_LEAST_0)
@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters: y = W x + scale B (A x), where A and B are trained and W is not.

    Args:
        match: Regular expressions, or one.  A layer is adapted if one occurs anywhere in its name,
            the name of its weight or the name of a node that uses it, such as "attn.*(q|v)".
        rank: Rows of A.
        alpha: The scale is alpha / rank; by default twice the rank.
        dropout: Share of x that a training step drops before A, in [0, 1).
        rank_stabilised: The scale is alpha / sqrt(rank), like peft's `use_rslora`.
        seed: The seed of the initial values of A, which also depend on the name of the layer.

    Raises:
        DTypeError, InputError: an option has another type, or a value that is not allowed.
    """

    match: str | Sequence[str]
    rank: int = 8
    alpha: float | None = None
    dropout: float = 0.0
    rank_stabilised: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.patterns:
            raise InputError("lora: match is empty; expected regular expressions")

    @property
    def patterns(self) -> list[str]:
        """The regular expressions."""
        return [self.match] if isinstance(self.match, str) else list(self.match)
