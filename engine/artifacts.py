"""The offline phase: from a forward-only ONNX model to all that a device needs to train it.

    from engine.artifacts import LossType, OptimType, generate_artifacts

    generate_artifacts(
        "forward.onnx",
        requires_grad=["fc.weight", "fc.bias"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory="artifacts",
    )

Names, keyword arguments and files are those of `onnxruntime.training.artifacts`; its version 1.19.2
runs what comes out wherever it has the ops.  What differs: the loss is always called `loss`; class
scores are on axis 1, as ONNX has it; BCE with logits is stable; `float64` models work.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import arguments, checkpoint
from engine.checkpoint import Checkpoint, NominalTensor
from engine.errors import DTypeError, FileError, InputError, StateError, UnsupportedOpError

if TYPE_CHECKING:
    import onnx

    from engine.graphs.ir import Graph
    from engine.graphs.training import Artifacts

Array = np.ndarray[Any, np.dtype[Any]]


class LossType(IntEnum):
    """The losses, with their default options; the classes of the same names take options."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(IntEnum):
    """The optimizers, with their default options; the classes of the same names take options."""

    AdamW = 1
    SGD = 2


# --- losses


class Loss(ABC):
    """A loss: nodes at the end of a graph.  Subclass it for one of your own."""

    @abstractmethod
    def build(self, graph: Graph, *inputs: str) -> str:
        """Append the loss over the values `inputs` to `graph`; return the name of the result."""


def _two(loss: Loss, inputs: Sequence[str], second: str) -> tuple[str, str]:
    """The value a loss is taken of, and the name of what it is compared with."""
    if len(inputs) not in (1, 2):
        raise InputError(
            f"{type(loss).__name__} takes one model output, and may be given the name of its "
            f"{second}; found {list(inputs)}: choose by loss_input_names"
        )
    return inputs[0], inputs[1] if len(inputs) == 2 else second


@dataclass(frozen=True)
class MSELoss(Loss):
    """Squared error against the input `target`, which is shaped like the output."""

    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs import losses

        return losses.squared_error(graph, *_two(self, inputs, "target"), self.reduction)


@dataclass(frozen=True)
class L1Loss(Loss):
    """Absolute error against the input `target`, which is shaped like the output."""

    reduction: str = "mean"

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs import losses

        return losses.absolute_error(graph, *_two(self, inputs, "target"), self.reduction)


@dataclass(frozen=True, eq=False)
class CrossEntropyLoss(Loss):
    """Softmax cross entropy of scores [batch, classes, ...] and int64 `labels` [batch, ...].

    weight: one factor a class.  ignore_index: the label whose positions do not count.
    """

    weight: Array | None = None
    reduction: str = "mean"
    ignore_index: int | None = None

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs import losses

        scores, labels = _two(self, inputs, "labels")
        return losses.cross_entropy(
            graph, scores, labels, self.reduction, self.weight, self.ignore_index
        )


@dataclass(frozen=True, eq=False)
class BCEWithLogitsLoss(Loss):
    """Cross entropy of sigmoid(output) and the input `target`, in a form that never overflows.

    weight, pos_weight: factors of all elements and of positive ones, broadcast to the output.
    """

    weight: Array | None = None
    reduction: str = "mean"
    pos_weight: Array | None = None

    def build(self, graph: Graph, *inputs: str) -> str:
        from engine.graphs import losses

        logits, target = _two(self, inputs, "target")
        return losses.binary_cross_entropy(
            graph, logits, target, self.reduction, self.weight, self.pos_weight
        )


# --- optimizers


class OptimizerSpec(ABC):
    """An optimizer: a graph over all parameters at once."""

    @abstractmethod
    def build(self, opset: int, dtype: str) -> Graph:
        """The optimizer's graph for parameters of this element type."""


@dataclass(frozen=True)
class AdamW(OptimizerSpec):
    """Adam with decoupled weight decay.

    clip_grad: norm over all gradients to which they are scaled down.
    adam_mode: 1 as Hugging Face's (what onnxruntime-training makes), 0 as torch's.
    """

    bias_correction: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip_grad: float | None = None
    adam_mode: int = 1

    def build(self, opset: int, dtype: str) -> Graph:
        from engine.graphs import losses

        return losses.adamw(
            opset,
            dtype,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            bias_correction=self.bias_correction,
            adam_mode=self.adam_mode,
            clip_grad=self.clip_grad,
        )


@dataclass(frozen=True)
class SGD(OptimizerSpec):
    """Plain gradient descent.  clip_grad: as in `AdamW`."""

    clip_grad: float | None = None

    def build(self, opset: int, dtype: str) -> Graph:
        from engine.graphs import losses

        return losses.sgd(opset, dtype, clip_grad=self.clip_grad)


_LOSSES: dict[LossType, type[Loss]] = {
    LossType.MSELoss: MSELoss,
    LossType.CrossEntropyLoss: CrossEntropyLoss,
    LossType.BCEWithLogitsLoss: BCEWithLogitsLoss,
    LossType.L1Loss: L1Loss,
}
_OPTIMIZERS: dict[OptimType, type[OptimizerSpec]] = {OptimType.AdamW: AdamW, OptimType.SGD: SGD}


# --- artifacts


def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str] | bytes,
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | Loss | None = None,
    optimizer: OptimType | OptimizerSpec | None = None,
    artifact_directory: str | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
) -> None:
    """Write the training, evaluation and optimizer models and the checkpoint of a forward model.

    Args:
        model: The forward model: a path, bytes or `ModelProto`.  One of more than 2 GiB has its
            weights in external files, and is given by its path.
        requires_grad: Initializers to train, and inputs whose gradient is wanted.
        frozen_params: Initializers to keep in the checkpoint without training them.  Those in
            neither list stay constants of the models.  If both lists are empty, all floating-point
            initializers are frozen.
        loss: What to minimise.  None: the first output of the model, a scalar.
        optimizer: None writes no optimizer model.
        artifact_directory: Where to write, by default the current directory; made if missing.
        prefix: Beginning of all file names.
        ort_format, custom_op_library: Not supported: refused unless false and None.
        additional_output_names: Values of the model to be outputs, behind the loss.
        nominal_checkpoint: Also write `nominal_checkpoint`, without shapes and values.
        loss_input_names: What the loss is taken of, by default the model's output; a second name
            is that of the target or labels.

    Files, whose names `prefix` precedes: `training_model.onnx`, `eval_model.onnx`,
    `optimizer_model.onnx`, `checkpoint`, `nominal_checkpoint`.  Each is complete or not written.

    Raises:
        FileError: A file cannot be read or written.
        ModelError: The model is malformed, or a parameter has no influence on the loss.
        UnsupportedOpError: An op, opset or option is not supported, or an op has no gradient.
        NameNotFoundError: A name is not in the model.
        InputError, ShapeError, DTypeError: Arguments contradict one another or the model.
    """
    from engine.graphs import onnx_io, training

    _refuse_unsupported(ort_format, custom_op_library)
    extra = _names("additional_output_names", additional_output_names)
    chosen = _names("loss_input_names", loss_input_names)
    spec, method = _loss(loss), _optimizer(optimizer)
    forward = onnx_io.load(model)
    choice = training.choose(
        forward, _names("requires_grad", requires_grad), _names("frozen_params", frozen_params)
    )
    if method is not None and not choice.trainable:
        raise StateError(
            "an optimizer needs something to train: give requires_grad, or optimizer=None"
        )
    build = None if spec is None else _builder(spec, chosen or forward.outputs, bool(chosen))
    made = training.make_artifacts(forward, choice, build, extra)
    _write(made, method, _base(artifact_directory, prefix), nominal_checkpoint)


def _builder(spec: Loss, inputs: Sequence[str], is_chosen: bool) -> Callable[[Graph], str]:
    """What appends the loss to a graph."""
    if len(inputs) > 1 and not is_chosen:
        raise InputError(
            f"the model has outputs {inputs}: name the one the loss is taken of by loss_input_names"
        )
    return lambda graph: spec.build(graph, *inputs)


def _write(made: Artifacts, method: OptimizerSpec | None, base: str, nominal: bool) -> None:
    """Write all files; they are put in place together once all are complete."""
    from engine.graphs import files, onnx_io
    from engine.graphs.ir import Graph

    graphs = {"training_model": made.training, "eval_model": made.evaluation}
    if method is not None:
        opset = made.training.opsets[""]
        graphs["optimizer_model"] = method.build(opset, _one_dtype(made.trainable))
        arguments.expect("the optimizer's graph", graphs["optimizer_model"], Graph)
    values = Checkpoint(trainable=made.trainable, frozen=made.frozen)
    checkpoints = {"checkpoint": values}
    if arguments.flag("nominal_checkpoint", nominal):
        checkpoints["nominal_checkpoint"] = _nominal(values)
    folder, prefix = os.path.split(base)
    _make_folder(base)
    for name in (*(f"{n}.onnx" for n in graphs), *checkpoints):
        files.target(base + name)
    with files.staging(folder) as stage:
        place = os.path.join(stage, prefix)
        for name, graph in graphs.items():
            onnx_io.save(graph, f"{place}{name}.onnx")
        for name, content in checkpoints.items():
            checkpoint.write(content, place + name, artifact=True)
        for name in checkpoints:
            checkpoint.move(place + name, base + name)
        for name in sorted(os.listdir(stage)):
            files.move(os.path.join(stage, name), os.path.join(folder, name))


def _refuse_unsupported(ort_format: bool, library: str | os.PathLike[str] | None) -> None:
    if arguments.flag("ort_format", ort_format):
        raise UnsupportedOpError(
            "ort_format=True: .ort files are not written; the .onnx artifacts serve all devices"
        )
    if library is not None:
        raise UnsupportedOpError(
            f"custom_op_library={library!r}: custom operators are not supported"
        )


def _names(title: str, names: Sequence[str] | None) -> list[str]:
    """A list of names; one text alone would be taken for its letters."""
    return [] if names is None else arguments.names(title, names)


def _loss(loss: LossType | Loss | None) -> Loss | None:
    if loss is None or isinstance(loss, Loss):
        return loss
    if isinstance(loss, LossType):
        return _LOSSES[loss]()
    raise InputError(f"loss={loss!r}; expected a LossType, a Loss or None")


def _optimizer(optimizer: OptimType | OptimizerSpec | None) -> OptimizerSpec | None:
    if optimizer is None or isinstance(optimizer, OptimizerSpec):
        return optimizer
    if isinstance(optimizer, OptimType):
        return _OPTIMIZERS[optimizer]()
    raise InputError(f"optimizer={optimizer!r}; expected an OptimType, an optimizer or None")


def _one_dtype(parameters: dict[str, Array]) -> str:
    """The element type all parameters share: an optimizer's inputs are sequences of one type."""
    found = {str(a.dtype): n for n, a in parameters.items()}
    if len(found) > 1:
        raise DTypeError(f"parameters of several element types cannot share an optimizer: {found}")
    return {"float32": "f32", "float64": "f64"}[next(iter(found))]


def _base(directory: str | os.PathLike[str] | None, prefix: str) -> str:
    """What all file names begin with."""
    folder = os.getcwd() if directory is None else arguments.path("artifact_directory", directory)
    return os.path.join(folder, arguments.path("prefix", prefix))


def _make_folder(base: str) -> None:
    folder = os.path.dirname(base)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder!r}: {error.strerror}") from error


def _nominal(values: Checkpoint) -> Checkpoint:
    def bare(parameters: Any) -> dict[str, NominalTensor]:
        return {name: NominalTensor(array.dtype) for name, array in parameters.items()}

    return Checkpoint(trainable=bare(values.trainable), frozen=bare(values.frozen), nominal=True)
