"""Losses as blocks: one for every class of `engine.loss_types`, with its name and options.

The first inputs are values of the model; the last are the names of targets, such as labels.  A name
that the model does not have becomes an input.  Where no name is given for a target, and the model
that was opened has a value of the usual name, the input gets another one, the same for all losses.
"""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Any

from engine.base.arguments import DefaultName
from engine.loss_types import LOSSES
from engine.loss_types.base import NamedLoss
from engine.onnxblock.blocks import Block
from engine.onnxblock.derived import list_parameters, make_block, make_method
from engine.onnxblock.model_accessor import get_current

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph

    def __getattr__(name: str) -> Any:
        """Return the block of a loss; all are made at the end of this file."""


__all__ = [kind.name for kind in LOSSES]


class _LossBlock(Block):
    """Appends a loss."""

    def __init__(self, loss: NamedLoss) -> None:
        super().__init__()
        self._loss = loss

    def build(self, *names: str) -> Any:
        """Append the loss of the values of these names; targets come last."""
        from engine.graphs.offline import compose

        reads, accessor = names[: self._loss.takes], get_current()

        def append(graph: Graph) -> str:
            graph.targets = accessor.targets
            for name in set(graph.list_values()) - accessor.own:  # of a block: it may be the target
                graph.targets.setdefault(name, name)
            return self._loss.build(graph, *names)

        return compose.extend(self.base, append, reads)


def _make_block(settings: type[NamedLoss]) -> type[_LossBlock]:
    """Return the block of a loss."""

    def initialize(self: _LossBlock, **options: Any) -> None:
        _LossBlock.__init__(self, settings(**options))

    def build(self: _LossBlock, **names: str) -> Any:
        return _LossBlock.build(self, *names.values())

    kind = Parameter.POSITIONAL_OR_KEYWORD
    names = [Parameter(name, kind, annotation="str") for name in settings.inputs]
    names += [
        Parameter(f"{t}_name", kind, annotation="str", default=DefaultName(t))
        for t in settings.targets
    ]
    return make_block(
        settings,
        _LossBlock,
        __init__=make_method(list_parameters(settings), initialize),
        build=make_method(names, build),
    )


globals().update({kind.name: _make_block(settings) for kind, settings in LOSSES.items()})
