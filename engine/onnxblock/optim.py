"""Optimizers as blocks: options, and what they compute, as the classes of `engine.optim_types` say.

An optimizer block builds an optimizer model on an empty base from the parameters of a
`TrainingBlock`:

    with onnxblock.empty_base():
        onnxblock.optim.AdamW(clip_grad=onnxblock.optim.ClipGradNorm(2.5))(block.parameters())
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine import optim_types
from engine.errors import DTypeError, InputError
from engine.onnxblock.blocks import Block
from engine.onnxblock.models import ForwardBlock
from engine.optim_types import Group, Method

if TYPE_CHECKING:
    from onnx import TensorProto

__all__ = [
    "LAMB",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "AdamWOptimizer",
    "ClipGradNorm",
    "Group",
    "Lion",
    "RMSprop",
    "SGDOptimizer",
]


class ClipGradNorm(Block):
    """The gradients, scaled down to a norm over all of them."""

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self._max_norm = max_norm

    def build(self, gradients_name: str) -> str:
        from engine.graphs.offline import compose, optimizers

        return compose.extend(
            self.base, lambda graph: optimizers.clip(graph, self._max_norm, gradients_name)
        )


class _Node(Block):
    """Appends the node of an optimizer alone, over inputs of the model that have any names."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self._method = method

    def _add(self, *inputs: str) -> str:
        rule = self._method.rule()
        return self._append(
            rule.op, *inputs, output="updated_flag", domain=rule.domain, **rule.attrs
        )


class AdamWOptimizer(_Node):
    """The node of `AdamW`."""

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(optim_types.AdamW(bias_correction, betas, eps, weight_decay))

    def build(
        self,
        learning_rate_name: str,
        step_name: str,
        parameter_sequence_name: str,
        gradient_sequence_name: str,
        first_order_moment_sequence_name: str,
        second_order_moment_sequence_name: str,
    ) -> str:
        return self._add(
            learning_rate_name, step_name, parameter_sequence_name, gradient_sequence_name,
            first_order_moment_sequence_name, second_order_moment_sequence_name,
        )  # fmt: skip


class SGDOptimizer(_Node):
    """The node of `SGD`: of the learning rate, the parameters, then the gradients.

    The last two have each other's names, as in onnxruntime-training: callers may give names.
    """

    def __init__(self) -> None:
        super().__init__(optim_types.SGD())

    def build(self, learning_rate_name: str, gradients_name: str, params_name: str) -> str:
        return self._add(learning_rate_name, gradients_name, params_name)


class _Optimizer(ForwardBlock):
    """Builds an optimizer model for (trainable, frozen) parameters.

    clip_grad: a block over the gradients, or the norm to which they are scaled down.
    """

    def __init__(self, method: Method, clip_grad: Block | float | None) -> None:
        super().__init__()
        self._method, self._clip_grad = method, clip_grad

    def build(self, parameters: tuple[list[TensorProto], list[TensorProto]]) -> Any:
        from engine.graphs.offline import compose, optimizers

        trainable, _ = parameters
        dtype, rule = _dtype(trainable), self._method.rule()
        parts = self._method.parts([t.name for t in trainable])
        compose.extend(self.base, lambda graph: optimizers.declare(graph, rule, dtype))
        clip, gradients = self._clip_grad, "gradients"
        if clip is not None:
            clip = clip if isinstance(clip, Block) else ClipGradNorm(clip)
            gradients = clip(gradients)
        return compose.extend(
            self.base, lambda graph: optimizers.append(graph, rule, gradients, parts)
        )


def _dtype(trainable: list[TensorProto]) -> str:
    """The element type that all trainable parameters share."""
    kinds = {t.data_type for t in trainable}
    if not kinds:
        raise InputError("an optimizer needs something to train: give TrainingBlock.requires_grad")
    if len(kinds) > 1 or not kinds <= {1, 11}:  # TensorProto.FLOAT, DOUBLE
        names = {t.data_type: t.name for t in trainable}
        raise DTypeError(f"parameters cannot share an optimizer: element types {names}")
    return "f32" if kinds == {1} else "f64"


class AdamW(_Optimizer):
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: Block | float | None = None,
        adam_mode: int = 1,
        groups: Sequence[Group] = (),
    ) -> None:
        method = optim_types.AdamW(
            bias_correction, betas, eps, weight_decay, None, adam_mode, groups
        )
        super().__init__(method, clip_grad)


class SGD(_Optimizer):
    """Gradient descent, with momentum if it is not 0."""

    def __init__(
        self,
        clip_grad: Block | float | None = None,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        groups: Sequence[Group] = (),
    ) -> None:
        method = optim_types.SGD(None, momentum, dampening, nesterov, weight_decay, groups)
        super().__init__(method, clip_grad)


class Adam(_Optimizer):
    """Adam; its weight decay is added to the gradients."""

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip_grad: Block | float | None = None,
        groups: Sequence[Group] = (),
    ) -> None:
        super().__init__(optim_types.Adam(betas, eps, weight_decay, None, groups), clip_grad)


class RMSprop(_Optimizer):
    """Gradients over the root of their mean square, or of their variance when `centered`."""

    def __init__(
        self,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        clip_grad: Block | float | None = None,
        groups: Sequence[Group] = (),
    ) -> None:
        method = optim_types.RMSprop(alpha, eps, weight_decay, momentum, centered, None, groups)
        super().__init__(method, clip_grad)


class Adagrad(_Optimizer):
    """Gradients over the root of the sum of their squares."""

    def __init__(
        self,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        clip_grad: Block | float | None = None,
        groups: Sequence[Group] = (),
    ) -> None:
        method = optim_types.Adagrad(
            lr_decay, weight_decay, initial_accumulator_value, eps, None, groups
        )
        super().__init__(method, clip_grad)


class Lion(_Optimizer):
    """The sign of a moving average of gradients."""

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        clip_grad: Block | float | None = None,
        groups: Sequence[Group] = (),
    ) -> None:
        super().__init__(optim_types.Lion(betas, weight_decay, None, groups), clip_grad)


class LAMB(_Optimizer):
    """Adam scaled by layers."""

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: Block | float | None = None,
        groups: Sequence[Group] = (),
    ) -> None:
        super().__init__(optim_types.LAMB(betas, eps, weight_decay, None, groups), clip_grad)
