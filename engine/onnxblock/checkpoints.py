"""Checkpoints of models that blocks have made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from engine.base.errors import CheckpointError, InputError
from engine.base.signatures import check_arguments
from engine.checkpoint import storage
from engine.checkpoint.storage import Checkpoint, NominalTensor

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


@check_arguments
def save_checkpoint(
    parameters: tuple[list[TensorProto], list[TensorProto]],
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Write the (trainable, frozen) parameters, as `TrainingBlock.parameters` gives them.

    nominal_checkpoint: leave out shapes and values.

    Raises:
        InputError: there are no parameters.
        FileError: the file cannot be written.
    """
    from engine.graphs.offline import compose

    if parameters is None:
        raise InputError("save_checkpoint: no parameters; expected (trainable, frozen)")
    trainable, frozen = ({t.name: compose.read_array(t) for t in part} for part in parameters)
    content = Checkpoint(trainable=trainable, frozen=frozen)
    if nominal_checkpoint:
        content = Checkpoint(
            trainable={n: NominalTensor(a.dtype) for n, a in trainable.items()},
            frozen={n: NominalTensor(a.dtype) for n, a in frozen.items()},
            nominal=True,
        )
    storage.write(content, path_to_checkpoint, artifact=True)


@check_arguments
def load_checkpoint_to_model(path_to_checkpoint: str | os.PathLike[str], model: ModelProto) -> None:
    """Give the initializers of a model the values of a checkpoint that have their names.

    Raises:
        CheckpointError: the checkpoint is corrupt, or nominal.
        FileError: it cannot be read.
    """
    from engine.graphs.io import messages

    content = storage.read(path_to_checkpoint)
    if content.nominal:
        raise CheckpointError(
            f"{os.fspath(path_to_checkpoint)}: a nominal checkpoint holds no values for a model"
        )
    values = {**content.trainable, **content.frozen}
    for tensor in model.graph.initializer:
        value = values.get(tensor.name)
        if value is not None and not isinstance(value, NominalTensor):
            tensor.CopyFrom(messages.make_tensor(tensor.name, value))
