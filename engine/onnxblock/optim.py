"""Optimizers as blocks: one for each class of `graphs/offline/optim_types.py`.

An optimizer block builds an optimizer model on an empty base from the parameters of a
`TrainingBlock`:

    with onnxblock.empty_base():
        onnxblock.optim.AdamW(clip_grad=onnxblock.optim.ClipGradNorm(2.5))(block.parameters())
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.base.element_types import FLOATS, ONNX_CODE
from engine.base.errors import DTypeError, InputError
from engine.base.signatures import ABOVE_0, check_arguments
from engine.graphs.offline import optim_types
from engine.graphs.offline.optim_types import OPTIMIZERS, Group, Method
from engine.onnxblock.blocks import Block
from engine.onnxblock.derived import list_parameters, make_block, make_method
from engine.onnxblock.models import ForwardBlock

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from engine.graphs.ir.graph import Graph

    def __getattr__(name: str) -> Any:
        """Return the block of an optimizer; all are made at the end of this file."""


__all__ = ["AdamWOptimizer", "ClipGradNorm", "Group", "SGDOptimizer"]
__all__ += [kind.name for kind in OPTIMIZERS]


def append_clipping(
    base: ModelProto, max_norm: float, gradients: Sequence[str]
) -> tuple[Sequence[str], str]:
    """Append what takes the norm over sequences of gradients, and return as `optimizers.clip`."""
    from engine.graphs.offline import compose, optimizers

    return compose.extend(base, lambda graph: optimizers.clip(graph, max_norm, gradients))


@check_arguments(max_norm=ABOVE_0)
class ClipGradNorm(Block):
    """The gradients, scaled down so that the norm over all of them is at most `max_norm`."""

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self._max_norm = max_norm

    def build(self, gradients_name: str) -> str:
        return append_clipping(self.base, self._max_norm, [gradients_name])[0][0]


@check_arguments
class _Node(Block):
    """Appends the node of an optimizer alone, which reads values of any names."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self._method = method

    def _add(self, *inputs: str) -> str:
        rule = self._method.rule()
        return self.append_node(
            rule.op, *inputs, output="updated_flag", domain=rule.domain, **rule.attrs
        )


_OF_MODELS = ("lr", "clip_grad", "adam_mode", "groups", "skip_nonfinite")  # not of one node


@check_arguments
class AdamWOptimizer(_Node):
    """The node of `AdamW`."""

    __init__ = make_method(
        list_parameters(optim_types.AdamW, without=_OF_MODELS),
        lambda self, **options: _Node.__init__(self, optim_types.AdamW(**options)),
    )

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
            learning_rate_name,
            step_name,
            parameter_sequence_name,
            gradient_sequence_name,
            first_order_moment_sequence_name,
            second_order_moment_sequence_name,
        )


@check_arguments
class SGDOptimizer(_Node):
    """The node of `SGD`, which reads the learning rate, the parameters, then the gradients.

    The parameters of `build` for the last two have each other's names.  It is so in
    onnxruntime-training, and callers may pass them by name.
    """

    def __init__(self) -> None:
        super().__init__(optim_types.SGD())

    def build(self, learning_rate_name: str, gradients_name: str, params_name: str) -> str:
        return self._add(learning_rate_name, gradients_name, params_name)


@check_arguments(clip_grad=ABOVE_0)
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
        kinds = _list_kinds(trainable)
        rule, parts = self._method.parts(kinds)
        compose.extend(self.base, lambda graph: optimizers.declare(graph, rule, kinds))
        clipped, factor = self._append_clipping([f"gradients{part.ending}" for part in parts])

        def append(graph: Graph) -> str:
            flag = optimizers.append(graph, rule, clipped, parts, factor)
            if self._method.skip_nonfinite:
                optimizers.guard(graph)
            return flag

        return compose.extend(self.base, append)

    def _append_clipping(self, read: Sequence[str]) -> tuple[dict[str, str], str]:
        """Return the value to read for each input of gradients, and the factor; see `append`."""
        clip, gradients = self._clip_grad, list(dict.fromkeys(read))
        if clip is None:
            return dict(zip(gradients, gradients, strict=True)), ""
        clip = clip if isinstance(clip, Block) else ClipGradNorm(clip)
        if len(gradients) == 1:
            return {gradients[0]: clip(gradients[0])}, ""
        if not isinstance(clip, ClipGradNorm):
            raise DTypeError(
                f"clip_grad: {type(clip).__name__} is a block over one sequence of gradients, but "
                f"parameters of several element types have {len(gradients)}: "
                "give ClipGradNorm or the norm"
            )
        _, factor = append_clipping(self.base, clip._max_norm, gradients)
        return dict(zip(gradients, gradients, strict=True)), factor


def _list_kinds(trainable: list[TensorProto]) -> dict[str, str]:
    """Return the element types of trainable parameters, by name."""
    if not trainable:
        raise InputError("an optimizer needs something to train: give TrainingBlock.requires_grad")
    names = {ONNX_CODE[T]: T for T in FLOATS}
    wrong = {t.name: t.data_type for t in trainable if t.data_type not in names}
    if wrong:
        raise DTypeError(
            f"parameters of the ONNX element types {wrong} cannot be trained; supported: {names}"
        )
    return {t.name: names[t.data_type] for t in trainable}


def _make_block(settings: type[Method]) -> type[_Optimizer]:
    """Return the block of an optimizer; its `clip_grad` may be a block."""

    def initialize(self: _Optimizer, clip_grad: Block | float | None, **options: Any) -> None:
        _Optimizer.__init__(self, settings(**options), clip_grad)

    parameters = list_parameters(settings, without=("lr",), clip_grad="Block | float | None")
    return make_block(settings, _Optimizer, __init__=make_method(parameters, initialize))


globals().update({kind.name: _make_block(settings) for kind, settings in OPTIMIZERS.items()})
