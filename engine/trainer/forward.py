"""Forward models on their way to artifacts: read, changed where training asks for it, saved.

Changes are a last layer for another number of classes, adapters, and float32 weights instead of
half precision.  The file that a model comes from stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.artifacts.generate import save_forward
from engine.base.errors import InputError, ModelWarning, defects, warn_user
from engine.lora import adapt
from engine.loss_types.base import LossOfScores
from engine.quantization import Qat, prepare_qat
from engine.runtime import mapping
from engine.system import files

if TYPE_CHECKING:
    import onnx

    from engine.graphs.ir.graph import Graph
    from engine.lora import Adapted, Lora
    from engine.quantization import Quantized

HEAD = "head"  # the last layer, among patterns of parameters to train
_MOST_CLASSES = (1 << 31) - 1


def make_rounding(qat: Qat | bool | None, data: Any) -> Qat | None:
    """Return the options of training with roundings; None for training without them.

    Raises:
        InputError: there are no data for its ranges, or data without it.
    """
    if not qat:
        if data is not None:
            raise InputError("data: read only to measure the ranges of qat; give qat=True as well")
        return None
    if data is None:
        raise InputError(
            "qat: give data=, samples with which the ranges of activations are measured"
        )
    return Qat() if qat is True else qat


class Forward:
    """A forward model that is made trainable.

    source: its path, bytes or message; after a change, until it is saved, the model before.
    graph: the model as it is now.
    """

    def __init__(
        self,
        source: onnx.ModelProto | str | os.PathLike[str] | bytes,
        graph: Graph | None = None,
    ) -> None:
        from engine.graphs.io import onnx_io
        from engine.graphs.offline.precision import find_half_weights, widen_weights

        self.source = source
        self.graph = onnx_io.load(source) if graph is None else graph
        self._is_changed = self._has_adapters = False
        self._head: list[str] = []  # the parameters of a new last layer
        if find_half_weights(self.graph):
            self.graph, self._is_changed = widen_weights(self.graph), True

    @classmethod
    def of(cls, graph: Graph) -> Forward:
        """Return a model that has no file yet, for `write` or `save` to make."""
        from engine.graphs.io import onnx_io

        made = cls(onnx_io.to_bytes(graph), graph)
        made._is_changed = True
        return made

    @property
    def classes(self) -> int | None:
        """The number of classes that the first output has scores for; None if not known."""
        from engine.graphs.offline.head import count_output_classes

        return count_output_classes(self.graph, self.graph.outputs[0])

    def match_loss(self, loss: Any) -> Any:
        """Return a loss, or a mapping of losses, with `from_logits` as the model's outputs are.

        A `ModelWarning` tells where the loss is computed from the scores before probabilities.
        """
        if isinstance(loss, Mapping):
            return {name: self._match_part(part, name) for name, part in loss.items()}
        return self._match_part(loss, self.graph.outputs[0])

    def _match_part(self, part: Any, output: str) -> Any:
        from engine.graphs.offline.head import find_scores

        if isinstance(part, tuple | list) and len(part) == 2:
            return (self._match_part(part[0], output), part[1])
        if not isinstance(part, LossOfScores) or part.from_logits is not None:
            return part
        if find_scores(self.graph, output, part.applies) is None:
            return part
        warn_user(
            f"the output {output!r} is probabilities, made by a {part.applies}: "
            f"{type(part).__name__} takes the scores before it, and predictions and exports stay "
            "probabilities; from_logits=True takes the output itself",
            ModelWarning,
        )
        return replace(part, from_logits=False)

    def drop_activation(self, activation: str) -> str:
        """Let the first output be scores instead of probabilities; return the op left out."""
        from engine.graphs.offline.head import drop_activation

        op = drop_activation(self.graph, activation)
        self._is_changed |= bool(op)
        return op

    def replace_head(self, classes: int, seed: int, *, always: bool = False) -> str:
        """Replace the last layer by one for another number of classes, with random weights.

        always: also where the number is the same.

        Returns the name of its node; empty if it stays.

        Raises:
            InputError: there are less than two classes, or too many.
            ModelError, ShapeError: the layer that makes the scores cannot be replaced.
        """
        from engine.graphs.offline.head import replace_head

        if not always and classes == self.classes:
            return ""
        if not 2 <= classes <= _MOST_CLASSES:
            raise InputError(f"classes={classes}: expected 2 to {_MOST_CLASSES}")
        with defects("the new last layer", f"classes={classes}"):
            head = replace_head(self.graph, classes, seed)
        self._is_changed = True
        self._head = [name for name in (head.weight, head.bias) if name]
        return head.node.name

    def adapt(self, lora: Lora | str) -> Adapted:
        """Add adapters, which are then trained instead of all but a new last layer.

        Raises:
            EngineError: as `engine.lora.adapt`.
        """
        adapted = adapt(self.graph, lora)
        self.graph = adapted.graph
        self._is_changed = self._has_adapters = True
        return adapted

    def prepare_qat(self, data: Any, options: Qat) -> Quantized:
        """Round weights and activations when they are read, with ranges measured on data.

        Raises:
            InputError: the model has adapters.
            EngineError: as `engine.quantization.prepare_qat`.
        """
        if self._has_adapters:
            raise InputError("qat and lora: give only one of them; adapters are not rounded")
        made = prepare_qat(self.graph, data, options)
        self.graph, self._is_changed = made.graph, True
        return made

    def choose_parameters(
        self, patterns: Sequence[str], *, integers: bool = False
    ) -> tuple[list[str], list[str]]:
        """Return the names of the parameters to train, and of the others.

        patterns: `HEAD` alone stands for the last layer, unless a parameter matches it; if its
            weights are integers, they become floats.
        integers: whether patterns match quantised weights and biases, too.

        Raises:
            NameNotFoundError: a pattern matches nothing.
        """
        from engine.graphs.offline.parameters import list_parameters, match_parameters

        if list(patterns) == [HEAD] and not self._has_adapters:
            patterns = self._unfreeze_head() or patterns
        trained = match_parameters(self.graph, patterns, integers=integers)
        if self._has_adapters:
            trained += [name for name in self._head if name not in trained]
        mine = set(trained)
        return trained, [name for name in list_parameters(self.graph) if name not in mine]

    def _unfreeze_head(self) -> list[str]:
        """Return the parameters of the last layer; none if some parameter is called `HEAD`."""
        from engine.graphs.offline.head import unfreeze_head
        from engine.graphs.offline.parameters import list_parameters
        from engine.system.paths import Paths

        paths, before = Paths.of(self.graph.metadata), list(map(str, self.graph.nodes))
        if any(paths.matches(name, HEAD) for name in list_parameters(self.graph)):
            return []
        names = unfreeze_head(self.graph)
        self._is_changed |= list(map(str, self.graph.nodes)) != before
        return names

    def write(self, path: Path) -> None:
        """Write the model to a file of its own, if it was changed; go on from that file.

        Raises:
            FileError: it cannot be written.
        """
        from engine.graphs.io import onnx_io
        from engine.graphs.passes.infer import note_output_types

        if self._is_changed:
            onnx_io.save(note_output_types(self.graph), path)
            self.source, self.graph, self._is_changed = path, onnx_io.load(path), False

    def save(
        self, folder: str | os.PathLike[str]
    ) -> onnx.ModelProto | str | os.PathLike[str] | bytes:
        """Return a path, bytes or message of the model as it is now.

        folder: for the artifacts; a changed model is written there if it is large or adapted.

        Raises:
            FileError: it cannot be written.
        """
        from engine.graphs.io import onnx_io
        from engine.graphs.passes.infer import note_output_types

        if self._is_changed:
            note_output_types(self.graph)
            if self._has_adapters or onnx_io.count_bytes(self.graph) >= mapping.LARGE:
                files.make_folder(os.fspath(folder))
                self.source = save_forward(self.graph, os.fspath(folder))
            else:
                self.source = onnx_io.to_bytes(self.graph)
            self._is_changed = False
        return self.source
