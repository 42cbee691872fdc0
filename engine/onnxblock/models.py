"""Blocks that make whole models: forward models, and training models with their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.base import arguments
from engine.base.errors import ModelWarning, StateError, warn_user
from engine.base.signatures import check_arguments
from engine.onnxblock.blocks import Block
from engine.onnxblock.model_accessor import get_current

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


def _list_names(output: str | list[str] | tuple[str, ...]) -> list[str]:
    return (
        [output] if isinstance(output, str) else arguments.check_names("output of a block", output)
    )


class ForwardBlock(Block):
    """A block whose outputs become the outputs of the model."""

    _model: ModelProto | None = None

    def to_model_proto(self) -> ModelProto:
        """Return the model.

        Raises:
            StateError: the block has not been called.
        """
        if self._model is None:
            raise StateError("Please build the forward model first before trying to retrieve it.")
        return self._model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Append to the open model, set its outputs, and check it.

        Raises:
            StateError: no model is open.
            ModelError: the model is malformed now.
            NameNotFoundError: an output is not a value of the model, or its type is not known.
        """
        from engine.graphs.offline import compose

        self.base = get_current().model
        output = self.build(*args, **kwargs)
        compose.set_outputs(self.base, _list_names(output))
        compose.check(self.base)
        self._model = compose.copy_of(self.base)
        return output


@check_arguments
class TrainingBlock(Block):
    """A block whose first output, a scalar, is the loss; calling it appends the gradients."""

    _requires_grad: dict[str, bool] | None = None
    _parameters: tuple[list[TensorProto], list[TensorProto]] | None = None
    _models: tuple[ModelProto, ModelProto] | None = None

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Choose whether a parameter is trained or frozen.

        For an input of the model, True means that its gradient is accumulated.  Initializers for
        which this is not called stay constants of the model.
        """
        if self._requires_grad is None:
            self._requires_grad = {}
        self._requires_grad[argument_name] = value

    def parameters(self) -> tuple[list[TensorProto], list[TensorProto]]:
        """Return the trainable and the frozen parameters, as lists of constants.

        Raises:
            StateError: the block has not been called.
        """
        if self._parameters is None:
            raise StateError(
                "Please build the training model first before trying to retrieve the parameters."
            )
        return self._parameters

    def to_model_proto(self) -> tuple[ModelProto, ModelProto]:
        """Return the training and the eval model.

        Raises:
            StateError: the block has not been called.
        """
        if self._models is None:
            raise StateError(
                "Please build the training and eval models first before trying to retrieve them."
            )
        return self._models

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Append to the open model, set its outputs, and append the gradients of the first output.

        It warns and fails as `engine.artifacts.generate_artifacts` does.

        Raises:
            ModelError and others: see there.
        """
        from engine.graphs.io import onnx_io
        from engine.graphs.offline import compose, training

        self.base = get_current().model
        output = self.build(*args, **kwargs)
        compose.set_outputs(self.base, _list_names(output))
        chosen = self._requires_grad or {}
        trainable = [name for name, value in chosen.items() if value]
        frozen = [name for name, value in chosen.items() if not value]
        graph = onnx_io.load(self.base)
        for note in graph.notes:
            warn_user(note, ModelWarning)
        choice = training.choose(graph, trainable, frozen)
        made = training.make_artifacts(graph, choice, None, ())
        tensors = self.base.graph.initializer
        self._parameters = (
            [compose.copy_tensor(t) for t in tensors if t.name in trainable],
            [compose.copy_tensor(t) for t in tensors if t.name in frozen],
        )
        self._models = onnx_io.to_proto(made.training), onnx_io.to_proto(made.evaluation)
        self.base.CopyFrom(self._models[0])
        return output
