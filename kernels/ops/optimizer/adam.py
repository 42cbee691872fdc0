"""Adam, and AdamW, whose weight decay is not part of the gradient.

Adam      m = a m + (1 - a) d,  v = b v + (1 - b) d^2,
          p = p - r m / ((1 - a^t) (sqrt(v / (1 - b^t)) + eps))                           (torch)
AdamW     m, v of g alone
  mode 0  p = p (1 - r wd), then as Adam                                                  (torch)
  mode 1  p = p - r c m / (sqrt(v) + eps), c = sqrt(1 - b^t) / (1 - a^t) or 1 without bias
          correction;  p = p (1 - r wd)                                    (Hugging Face, 2019)
Lazy      AdamW of the rows of a parameter whose gradients are not all 0; the others keep p, m, v
Error     a step: 4 roundings of float; powers of a and b in double
Source    torch.optim; Loshchilov, Hutter, arXiv 1711.05101; onnxruntime's adamwoptimizer.cc

The letters are explained in node.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.base.errors import InputError
from engine.kernels.loops.map import MAP_KERNELS
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.clipping import square_root
from engine.kernels.ops.optimizer.method import (
    SIGNALS,
    Group,
    Moments,
    OptimizerRule,
    name_betas,
)
from engine.kernels.ops.optimizer.node import OptimizerNode, optimizer, rule
from engine.kernels.ops.optimizer.update import (
    Formula,
    everything,
    power,
    stretch,
    update_kernel,
)
from engine.kernels.vocabulary.kernel import inline
from engine.kernels.vocabulary.op import MS, Lowering, Op, Site, TensorType, Update

DECOUPLED, HUGGING_FACE, COUPLED = 0, 1, 2  # forms of Adam; the first two are adam_mode
LAZY = 4  # added to a form: rows without a gradient are passed over

# AdamW has two sets of defaults.  The class below has the defaults of onnxruntime-training's
# onnxblock, which makes its artifacts: Hugging Face's form, eps 1e-6, no weight decay.  The op has
# the defaults of onnxruntime's schema, and of torch: mode 0, eps 1e-8, weight decay 1e-2.  They
# apply only to nodes of other origin that leave attributes out: our nodes name them all.
SCHEMA = {
    "alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "weight_decay": 1e-2, "correct_bias": 1,
    "adam_mode": DECOUPLED,
}  # fmt: skip


# --- options


@dataclass(frozen=True)
class AdamW(Moments):
    """Adam with decoupled weight decay.

    bias_correction: whether to correct the moments for their initial value 0.
    weight_decay: the factor of the parameters that each step subtracts, times the learning rate.
    adam_mode: 1 for Hugging Face's form, as in onnxruntime-training; 0 for torch's.
    lazy: whether to leave rows of parameters with two or more dimensions unchanged if their
        gradients are all 0, with their moments and without weight decay, as torch's SparseAdam does
        with rows of an embedding table that a batch does not use.
    """

    op = "AdamWOptimizer"

    bias_correction: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip_grad: float | None = None
    adam_mode: int = HUGGING_FACE
    lazy: bool = False
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        mode = self.adam_mode
        if mode not in (DECOUPLED, HUGGING_FACE):
            raise InputError(f"adam_mode={mode}; expected 0 (as torch) or 1 (as Hugging Face)")
        if mode == DECOUPLED and not self.bias_correction:
            raise InputError(
                "adam_mode=0 always corrects the bias; bias_correction=False needs mode 1"
            )
        return {
            "adam_mode": mode,
            **name_betas(self.betas),
            "correct_bias": int(self.bias_correction),
            "epsilon": float(self.eps),
            "weight_decay": float(self.weight_decay),
            **({"lazy": 1} if self.lazy else {}),
        }

    def rule(self, *, is_divided: bool = False) -> OptimizerRule:
        """Return the rule: onnxruntime's op for one node over all parameters, which is not lazy."""
        own = super().rule()
        return own if is_divided or self.lazy else replace(own, domain=MS)


@dataclass(frozen=True)
class Adam(Moments):
    """Adam; its weight decay is part of the gradients."""

    op = "AdamOptimizer"

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()


# --- kernels


@update_kernel(
    states=("m", "v"),
    numbers={"a": "alpha", "b": "beta", "eps": "epsilon", "decay": "weight_decay"},
    integers="unbias",
    mode=(DECOUPLED, HUGGING_FACE, COUPLED, LAZY + DECOUPLED, LAZY + HUGGING_FACE),
)
def adam(target: Target, T: str, mode: int) -> Formula:
    """Update p, m and v by one step of Adam; do nothing where the signal is false.

    A mode with LAZY passes over the rows of the ranges that have no gradient.
    """
    is_lazy, mode = mode & LAZY, mode & ~LAZY
    d = "g + keep * p" if mode == COUPLED else "g"
    p = {
        DECOUPLED: "p * keep - rate * m / (sqrt(v * whole) + eps)",
        HUGGING_FACE: "(p - rate * m / (sqrt(v) + eps)) * keep",
        COUPLED: "p - rate * m / (sqrt(v * whole) + eps)",
    }[mode]

    @inline
    def values(call, rate):
        keep = call.decay if mode == COUPLED else 1.0 - rate * call.decay
        root = 1.0
        if call.unbias != 0:
            rate /= 1.0 - power(call.a, call.step[0])
            root = 1.0 - power(call.b, call.step[0])
            if mode == HUGGING_FACE:
                rate *= square_root(root, 1)
        return keep, rate, 1.0 / root, 1.0 - call.a, 1.0 - call.b

    return Formula(
        f"""keep rate whole a1 b1 -> d = {d};
        m = a * m + a1 * d; v = b * v + b1 * (d * d); p = {p}""",
        values,
        stretch(T) if is_lazy else everything,
    )


# --- lowering


def _infer_adamw(site: Site) -> tuple[TensorType, ...]:
    mode, unbias = site.attrs["adam_mode"], site.attrs.get("correct_bias", 1)
    if mode not in (0, 1) or (mode == 0 and unbias != 1):
        site.fail(
            f"adam_mode is {mode} and correct_bias {unbias}",
            "adam_mode 1, or adam_mode 0 with correct_bias 1",
        )
    return rule(Update(AdamW.states), SCHEMA)(site)


def _lower(lowering: Lowering) -> None:
    attrs, node = lowering.site.attrs, OptimizerNode(lowering, AdamW)
    lazy = bool(attrs.get("lazy", 0))
    mode = attrs.get("adam_mode", COUPLED) + lazy * LAZY
    node.update(adam, mode, by_rows=lazy, unbias=attrs.get("correct_bias", 1))
    node.finish()


OPS = (
    Op(
        name=AdamW.op,
        domain=MS,
        inputs=(6, 8),
        outputs=4,
        attrs=SCHEMA,
        infer=_infer_adamw,
        lower=_lower,
        calls=(adam.template, *MAP_KERNELS),
        optimizer=Update(AdamW.states),
        joined=SIGNALS,
    ),
    optimizer(AdamW, adam, lower=_lower, lazy=0),
    optimizer(Adam, adam, lower=_lower),
)
KERNELS = (adam.template,)
