"""Sparse updates: which part of a model is trained, for `generate_artifacts(update=...)`.

    update = SparseUpdate(biases=True, last=1, channels={"features.1[0-4].*": 0.25})

Everything else is frozen: nothing of it is kept for the backward pass, no gradient of it is
computed, and the optimizer has no state for it.

Source: "On-device training under 256 KB memory", Lin et al. 2022, which trains the biases of the
    last layers and the first input channels of some convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.base.errors import InputError
from engine.base.signatures import AT_LEAST_0, Range, check_arguments

__all__ = ["SparseUpdate"]


@check_arguments(last=AT_LEAST_0, channels=Range(0, 1, above=True))
@dataclass(frozen=True, kw_only=True)
class SparseUpdate:
    """The part of a model that is trained: the union of all that the fields name.

    Patterns are of names of parameters, with `*`, `?` and `[...]`.

    Args:
        layers: patterns of names; also of nodes, which stand for their parameters.
        biases: whether all biases of convolutions, products and recurrent layers, and the shifts
            of normalisations, are trained.
        norms: whether scales and shifts of batch, layer, group, instance and RMS normalisations
            are trained.
        last: how many layers are trained, counted from the last one.  A layer is a node that takes
            a weight of two axes or more, with all parameters between it and the next such node.
        channels: patterns of weights of convolutions without groups, MatMul and Gemm; the value is
            the share of their input channels that is trained, more than 0 and at most 1.  It is
            the first ceil(share * channels) of them, and only these channels of the input are kept
            for the backward pass.
        integers: whether quantised weights and biases may be chosen, too.  They are trained as the
            integers that they are, in place, by SGD without momentum; `layers=["*"]` chooses all.
        residuals: whether integers of 4 bits keep in training what rounding leaves of them, in 4
            more bits.  The model still computes with 4 bits, and its export has 4 bits.

    Raises:
        InputError: nothing is chosen, a number is out of range, or there are residuals without
            integers.
    """

    layers: Sequence[str] = ()
    biases: bool = False
    norms: bool = False
    last: int = 0
    channels: Mapping[str, float] = field(default_factory=dict)
    integers: bool = False
    residuals: bool = False

    def __post_init__(self) -> None:
        if not (self.layers or self.biases or self.norms or self.last or self.channels):
            raise InputError("SparseUpdate(): nothing is trained; name layers, biases, norms, ...")
        if self.residuals and not self.integers:
            raise InputError("SparseUpdate(residuals=True) is for integers; add integers=True")
