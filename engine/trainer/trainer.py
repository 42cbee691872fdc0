"""Trainer: a model, its parameters and its optimizer as one object that learns from batches.

    from edgegrad import Trainer
    from edgegrad.artifacts import AdamW, CrossEntropyLoss

    trainer = Trainer.from_onnx("forward.onnx", CrossEntropyLoss(), AdamW(1e-3))
    for images, labels in batches:
        loss = trainer.step(images, labels)
    scores = trainer.predict(images)
    trainer.save("checkpoint")
    trainer.export("inference.onnx")

This file makes trainers from forward models and starts trainings over epochs.  loop.py has the
loop over epochs, batch_trainer.py the steps, and learner.py the models and their gradients.

Importing this file costs no more than `engine.api`: the calls that need more import it themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

from engine.base import arguments
from engine.base.aliases import StrPath
from engine.base.errors import InputError
from engine.base.fields import expand_options, select_options
from engine.base.signatures import check_arguments
from engine.distributed.group import RankGroup
from engine.trainer.batch_trainer import BatchTrainer
from engine.trainer.metric import Given
from engine.training.settings import FitOptions, RecipeOptions, StepOptions, TrainerOptions

if TYPE_CHECKING:
    import onnx
    import torch

    from engine.graphs.offline.optim_types import OptimizerSpec, OptimType
    from engine.lora import Lora
    from engine.loss_types import Loss, LossType
    from engine.onnxblock import Block
    from engine.quantization import Qat
    from engine.trainer.fit import Callback
    from engine.trainer.history import History
    from engine.trainer.schedules import Schedule
    from engine.training.keywords import FitKeywords, StepKeywords, TrainerKeywords


@check_arguments
@expand_options(StepOptions)
class Trainer(BatchTrainer):
    """A model that learns from batches.  The constructor takes artifacts; see also `from_onnx`.

    A batch is what `step` takes: arrays in the order of `inputs`, or one mapping from names to
    arrays.  Arrays are cast to the element types of the model if they are of the same kind: float64
    becomes float32 and int32 becomes int64, but floats do not become integers.

    Args:
        artifacts: folder with the artifacts of `generate_artifacts` or of onnxruntime-training.
        prefix: prefix of the names of the artifacts.
        outputs: names of values of the eval model to use as the model's outputs.  Default: the
            outputs of the forward model from which the artifacts were made.
        learning_rate: default: the checkpoint's rate, or 0.001 if it has none.
        group: the processes that train this model together, see `engine.distributed`.  Each of them
            makes the same trainer, calls the same methods with the same batches, and computes its
            share of every batch.  They start with the parameters of rank 0, and only rank 0 writes
            files.  None: this process trains alone.

    Attributes:
        module, optimizer, state: the objects that do the training, see `engine.api`.  The
            optimizer is None if there is no optimizer model.
        folder: the folder of the artifacts.
        forward: the forward model's path or bytes, if known.
        recipe: the other settings that the artifacts were made with; None if unknown.
        classes: the names of the labels 0, 1, ..., as `from_model` got or found them; None if they
            are unknown or the model predicts values.
        inputs: the names of the arrays in a batch, in order.

    Raises:
        FileError: a file is missing or cannot be read.
        ModelError, CheckpointError: an artifact is malformed or does not fit the others.
        NameNotFoundError: the eval model has no value that `outputs` names.
        BudgetError: no plan fits in the budget.  If the model file does not fix all shapes, the
            first step of a shape raises this instead, and nothing changes.
    """

    def __init__(
        self,
        artifacts: StrPath,
        *,
        prefix: str = "",
        outputs: Sequence[str] | None = None,
        learning_rate: float | None = None,
        group: RankGroup | None = None,
        **options: Unpack[StepKeywords],
    ) -> None:
        beginning = arguments.check_prefix("prefix", prefix)
        super().__init__(
            artifacts, beginning, outputs, learning_rate, group, StepOptions(**options)
        )

    @classmethod
    @expand_options(TrainerOptions)
    def from_onnx(
        cls,
        model: onnx.ModelProto | StrPath | bytes,
        loss: LossType | Loss | Block | Mapping[str, Any] | str | None,
        optimizer: OptimType | OptimizerSpec | Block | str | None = None,
        *,
        train: str | Sequence[str] = "*",
        lora: Lora | str | None = None,
        classes: int | None = None,
        qat: Qat | bool | None = None,
        data: Any = None,
        folder: StrPath | None = None,
        group: RankGroup | None = None,
        **options: Unpack[TrainerKeywords],
    ) -> Trainer:
        """Make a trainer for a forward model, including its artifacts.

        Args:
            model: a path, bytes or `ModelProto`.
            loss: the loss to minimise, or its name, such as "cross_entropy".  For several outputs,
                a mapping from their names to losses, or to pairs of a loss and its weight; the sum
                is minimised.  None: the model's first output.
            optimizer: the optimizer, or its name, such as "adamw".  Default: `AdamW()`.
            train: names of parameters to train, or patterns such as "classifier.*".  A pattern that
                begins with "!" excludes the parameters that it matches.  All others are frozen, and
                so are those on which the loss does not depend; a `ModelWarning` names them.  In a
                model with adapters, names and patterns only match the adapters' parameters.
                "head" alone is the last layer, also of an int8 model: its integers become floats.
            lora: add adapters to the model: which ones, or the pattern of their names; see
                `engine.lora.adapt`.  A last layer that `classes` replaces is trained in full, too.
            classes: number of classes of a classifier.  If its first output has another number of
                scores, its last layer is replaced by one of this size, with random weights.
            qat: round weights and activations in training, so that `export` writes a model of 8-bit
                integers: True, or the options; see `engine.quantization.prepare_qat`.
            data: with `qat`, samples with which the ranges of activations are measured first.
            folder: folder for the artifacts.  Default: a temporary one, removed with the trainer.
            group: see the class.

        Raises:
            NameNotFoundError: a pattern of `train` matches nothing.
            NoInfluenceError: the loss depends on none of the parameters to train.
            ModelError: `classes` cannot replace the layer that computes the scores.
            InputError: `qat` without data, or with adapters.
            EngineError: as for `generate_artifacts`, and with `qat` for `prepare_qat`.
        """
        from engine.trainer.artifact_folder import provide_folder, remove_with
        from engine.trainer.forward import Forward, make_rounding
        from engine.trainer.recipe import Recipe

        asked = TrainerOptions(**options)
        _begin_compiling()
        forward = Forward(model)
        if classes is not None:
            forward.replace_head(classes, asked.seed or 0)
        chosen = "adamw" if optimizer is None else optimizer
        recipe = Recipe(loss, chosen, select_options(asked, RecipeOptions))
        if not asked.loss_inputs:
            named = recipe.named_loss
            matched = forward.match_loss(named)
            recipe = recipe if matched == named else replace(recipe, loss=matched)
        rounding = make_rounding(qat, data)
        with provide_folder(folder) as place:
            if lora is not None:
                forward.adapt(lora)
            if rounding is not None:
                forward.prepare_qat(data, rounding)
            recipe.write(forward, [train] if isinstance(train, str) else train, place)
            made = cls(place, group=group, **vars(select_options(asked, StepOptions)))
        if folder is None:
            remove_with(made, place)
        made.forward, made.recipe = forward.source, recipe
        return made

    @classmethod
    @expand_options(TrainerOptions)
    def from_model(
        cls,
        name: str,
        loss: LossType | Loss | Block | str | None = None,
        optimizer: OptimType | OptimizerSpec | Block | str | None = None,
        *,
        classes: int | Sequence[str] | None = None,
        data: Any = None,
        input_shape: Sequence[int] | None = None,
        words: int | None = None,
        weights: StrPath | None = None,
        train: str | Sequence[str] = "*",
        lora: Lora | str | None = None,
        qat: Qat | bool | None = None,
        folder: StrPath | None = None,
        group: RankGroup | None = None,
        **options: Unpack[TrainerKeywords],
    ) -> Trainer:
        """Make a trainer for an architecture by its name; docs/models.md lists them.

        Args:
            name: name of the architecture, such as "mobilenet_v3_small".
            loss: default: cross-entropy for classes, the mean squared error for values.
            classes: number of classes, or their names in the order of the labels.
            data: the data for `fit`, which determine the classes and the shape of a sample; or the
                path of a folder of pictures or sounds.
            input_shape: shape of a sample.  Default: as in the data or the architecture.
            words: for texts, the size of the tokenizer's vocabulary.  Default: as in the data, or
                257 for the bytes of `ByteTokenizer`.
            weights: file of initial parameters: ONNX, safetensors or PyTorch, with the names of
                torchvision or timm.  A last layer for another number of classes stays random, with
                a `ModelWarning`.  Default: all parameters are random, drawn with the seed.
            qat: as in `from_onnx`; needs `weights` and `data`.
            optimizer, train, lora, folder, group: see `from_onnx`.

        Raises:
            NameNotFoundError: there is no such architecture; the message lists all.
            InputError: the classes or the shape are unknown.
            ShapeError, DTypeError: the architecture does not accept such samples.
            ModelError: the weights belong to another architecture.
            EngineError: as for `from_onnx`.
        """
        from engine.models.catalog import find_architecture
        from engine.trainer.architectures import begin

        seed = TrainerOptions(**options).seed or 0
        kind = find_architecture(name)
        if qat and weights is None:
            raise InputError(
                "qat: ranges are measured on the model as it begins, and without weights it begins "
                "with random ones: train it first, then give its exported model to from_onnx"
            )
        _begin_compiling()
        made = begin(
            kind, classes=classes, data=data, input_shape=input_shape,
            words=words, weights=weights, seed=seed,
        )  # fmt: skip
        if made.loss_inputs and not options.get("loss_inputs"):
            options["loss_inputs"] = made.loss_inputs
        trainer = cls.from_onnx(
            made.content, made.loss if loss is None else loss, optimizer, train=train, lora=lora,
            qat=qat, data=data if qat else None, folder=folder, group=group, **options,
        )  # fmt: skip
        trainer.classes = made.classes
        return trainer

    @classmethod
    @expand_options(TrainerOptions)
    def from_torch(
        cls,
        module: Any,
        example: Any,
        loss: LossType | Loss | Block | Mapping[str, Any] | Callable[..., Any] | str | None,
        optimizer: OptimType | OptimizerSpec | Block | torch.optim.Optimizer | str | None = None,
        *,
        targets: Any = None,
        train: str | Sequence[str] | None = None,
        lora: Lora | str | None = None,
        classes: int | None = None,
        axes: Mapping[str, Mapping[int, str]] | None = None,
        check_gradients: bool | None = None,
        qat: Qat | bool | None = None,
        data: Any = None,
        folder: StrPath | None = None,
        group: RankGroup | None = None,
        **options: Unpack[TrainerKeywords],
    ) -> Trainer:
        """Make a trainer for a `torch.nn.Module`, exported to `forward.onnx` in the folder.

        Args:
            module: the module, on the CPU, with parameters of float32 or float64.
            example: arguments of `forward` for one batch, which determine shapes and types: a
                tensor, a tuple of tensors, or a mapping of keyword arguments.  Axis 0 is the batch.
            axes: names of further axes of variable length, by argument: {"tokens": {1: "length"}}.
            check_gradients: whether to compare the gradients with PyTorch's.  Default: if the
                module has at most 64 MiB of parameters.
            loss: as in `from_onnx`; or a loss of torch.nn, such as `torch.nn.CrossEntropyLoss()`;
                or any function of the module's output and the targets that returns one number.
            targets: an example of the targets, a tensor or a tuple of them, for a loss that this
                package lacks: such a loss is exported with the module.
            optimizer: as in `from_onnx`, or a `torch.optim.Optimizer` of the module's parameters.
                Its options and groups are taken, and by default its parameters are trained.
            lora, classes, qat, data, folder, group: see `from_onnx`.
            train: as in `from_onnx`.  Default: the parameters that require a gradient, or with
                `lora` all adapters.  Parameters that the loss does not depend on stay as they are,
                and a `ModelWarning` names them.

        By default, `frozen_batch_norm` lists the normalisations that the module keeps in evaluation
        mode while it trains.  If there are none and `train` is given, the default is as in
        `from_onnx`.

        Raises:
            MissingPackageError: torch or onnxscript is not installed.
            EngineError: as for `torch_export.export` and `from_onnx`.
        """
        from engine.trainer.artifact_folder import provide_folder, remove_with
        from engine.trainer.pytorch import export as torch_export
        from engine.trainer.pytorch import objectives
        from engine.training.artifact_set import FORWARD

        asked = TrainerOptions(**options)
        torch = torch_export.import_torch()
        torch_export.check_module(torch, module)
        given = objectives.read(torch, module, example, loss, optimizer, targets)
        with provide_folder(folder) as place:
            exported = torch_export.export(
                given.module, given.example, os.path.join(place, FORWARD), axes=axes,
                check_gradients=check_gradients,
            )  # fmt: skip
            if asked.frozen_batch_norm is None:
                norms = exported.frozen_batch_norm or (False if train is None else None)
                asked = replace(asked, frozen_batch_norm=norms)
            method, trained = given.choose(exported.train)
            if train is None:
                train = trained if lora is None else "*"
            made = cls.from_onnx(
                exported.model, given.loss, method, train=train, lora=lora,
                classes=classes, qat=qat, data=data, folder=place, group=group, **vars(asked),
            )  # fmt: skip
        if folder is None:
            remove_with(made, place)
        return made

    @classmethod
    @expand_options(StepOptions)
    def from_run(
        cls,
        folder: StrPath,
        checkpoint: Literal["best", "last"] = "best",
        *,
        group: RankGroup | None = None,
        **options: Unpack[StepKeywords],
    ) -> Trainer:
        """Make a trainer from the folder of a run, in any process and wherever the folder is now.

        The trainer can predict and export, and `fit(..., resume=True)` continues the run.  From the
        folder, it gets the parameters of a checkpoint, the classes, the preparation of the data,
        the forward model, the loss and the optimizer, and the seed, the number of parts of a batch
        and the learning rate at the start of the run.  It executes no code from the folder, and
        follows no paths in its files.

        Args:
            folder: the folder that `fit` was given.
            checkpoint: "best" for the best checkpoint, or the last one if the run has no best; or
                "last".
            group: see the class.

        A loss or an optimizer of your own class is only in the artifacts.  To use `class_weight`,
        `unfreeze` or augmentation that mixes labels with such a run, make the trainer as you made
        the run's instead.

        Raises:
            FileError: the folder has no checkpoint or no artifacts.
            CheckpointError, ModelError: a file is damaged, or does not fit the others.
        """
        from engine.trainer.saved_runs import open_run

        StepOptions(**options)  # to check them before files are read
        return open_run(cls, arguments.check_path("folder", folder), checkpoint, group, options)

    def to_torch(self, module: Any) -> list[str]:
        """Copy the parameters and running statistics to a `torch.nn.Module`.

        Args:
            module: the module that was exported, or another one with the same parameters.

        Returns:
            list: the names of the module's parameters and buffers that stay unchanged because the
            artifacts do not contain them.

        Raises:
            EngineError: as for `engine.trainer.pytorch.export.to_torch`.  Nothing changes.
        """
        from engine.trainer.pytorch import export as torch_export

        return torch_export.to_torch(self.state, module)

    @expand_options(FitOptions)
    def fit(
        self,
        train: Any,
        *,
        validation: Any = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        balanced: bool = False,
        augment: Any = None,
        metrics: Sequence[Given] | Given = (),
        schedule: Schedule
        | Callable[[int, int | None, float], float]
        | Mapping[str, Any]
        | str
        | None = None,
        callbacks: Sequence[Callback] = (),
        folder: StrPath | None = None,
        resume: bool = False,
        progress: bool = True,
        **options: Unpack[FitKeywords],
    ) -> History:
        """Train on all samples of some data for several epochs; see docs/training.md.

        Args:
            train: anything that `engine.data.batches` accepts.
            validation: data to evaluate on after every epoch; or a share of the samples of `train`
                to set apart for it, between 0 and 1; 0: none.  Default, if `train` is a path: its
                folder `val/`, or a fifth of the data if they are not divided.
            batch_size, shuffle: for data that are not batches yet.  None: 32, or the number of
                samples that the model file fixes.
            balanced: let all classes occur equally often in an epoch.
            augment: random changes of the training data, such as ["flip", "mixup"], see
                `engine.data.batches`.  With changes that mix labels, the run computes cross entropy
                from shares of classes.
            metrics: metrics to measure on the validation data, see `engine.trainer.metrics`.
            schedule: schedule of the learning rate, see `engine.trainer.schedules`; its name, such
                as "cosine"; a table of its name and options, such as
                {"name": "cosine", "warmup": 0.1}; or a function of (step, total, base).  None: the
                rate stays as it is.  After the run, the trainer has its previous rate again.
            callbacks: objects of `engine.trainer.callbacks.Callback`.
            folder: folder for checkpoints and logs; None if nothing is written.
            resume: continue the run in `folder` exactly as if it had not ended.  If the folder has
                no checkpoint, a new run begins.
            progress: whether to show the progress of the training.

        Returns:
            History: a row for each epoch; if the run ended early, its `stop_reason` is the reason.

        Raises:
            InputError, DTypeError: an argument or the data are not valid.
            NonFiniteError: a loss or a parameter is NaN or infinite; the message names the first
                such tensor and its node.
            StateError: the folder already has a run, another run is training in it, or the run to
                resume is a different training.
            FileError, CheckpointError: a file of the folder cannot be read or written.
        """
        from engine.trainer.loop import Loop
        from engine.trainer.request import request

        asked = request(
            self,
            train,
            FitOptions(**options),
            validation=validation,
            batch_size=batch_size,
            shuffle=shuffle,
            balanced=balanced,
            augment=augment,
            metrics=metrics,
            schedule=schedule,
            callbacks=callbacks,
            folder=folder,
            resume=resume,
            progress=progress,
        )
        return Loop(self, asked).run()


def _begin_compiling() -> None:
    from engine.kernels.binaries.source import begin_compiling

    begin_compiling()
