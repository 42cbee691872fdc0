"""Trainer: a model, its parameters and its optimizer as one thing that learns from batches.

    from edgegrad import Trainer
    from edgegrad.artifacts import AdamW, CrossEntropyLoss

    trainer = Trainer.from_onnx("forward.onnx", CrossEntropyLoss(), AdamW(1e-3))
    for images, labels in batches:
        loss = trainer.step(images, labels)
    scores = trainer.predict(images)
    trainer.save("checkpoint")
    trainer.export("inference.onnx")

This file makes trainers from forward models and begins trainings over epochs, whose loop is in
loop.py; batch_trainer.py has the steps, and learner.py the models and their gradients.

Importing this file costs what `engine.api` costs: what only some calls need is imported there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

import numpy.typing as npt

from engine.base import arguments
from engine.base.fields import expand_options, select_options
from engine.base.signatures import check_arguments
from engine.distributed.group import RankGroup
from engine.trainer.batch_trainer import BatchTrainer
from engine.trainer.metric import Given
from engine.training.settings import FitOptions, RecipeOptions, StepOptions, TrainerOptions

if TYPE_CHECKING:
    import onnx

    from engine.graphs.offline.optim_types import OptimizerSpec, OptimType
    from engine.lora import Lora
    from engine.loss_types import Loss, LossType
    from engine.onnxblock import Block
    from engine.trainer.fit import Callback
    from engine.trainer.history import History
    from engine.trainer.schedules import Schedule
    from engine.training.keywords import FitKeywords, StepKeywords, TrainerKeywords

Array: TypeAlias = npt.NDArray[Any]
Path: TypeAlias = str | os.PathLike[str]


@check_arguments
@expand_options(StepOptions)
class Trainer(BatchTrainer):
    """A model that learns from batches.  The constructor takes artifacts; see also `from_onnx`.

    A batch is what `step` takes: arrays in the order of `inputs`, or one mapping of them by name.
    Arrays are cast to the element types of the model where no kind is lost: float64 becomes
    float32, and int32 int64, but floats do not become integers.

    Args:
        artifacts: folder of `generate_artifacts`, or of onnxruntime-training.
        prefix: what the names of the artifacts begin with.
        outputs: names of values of the eval model that are the model's outputs; by default the
            outputs of the forward model that the artifacts were made of.
        learning_rate: by default the checkpoint's rate; 0.001 if it has none.
        group: the processes that train this model together, see `engine.distributed`; all of them
            make such a trainer and call the same methods with the same batches, and each takes its
            share of every batch.  They begin with the parameters of rank 0, which alone writes
            files.  None: this process trains alone.

    Attributes:
        module, optimizer, state: what it is made of, see `engine.api`; the optimizer is None if
            there is no optimizer model.
        folder: of the artifacts.
        forward: the forward model's path or bytes, if it is known.
        recipe: what else the artifacts were made with; None if it is not known.
        classes: the names of the labels 0, 1, ... that `from_model` was given or found; None:
            unknown, or values are predicted.
        inputs: names of the inputs of a training step.

    Raises:
        FileError: a file is missing or cannot be read.
        ModelError, CheckpointError: an artifact is malformed, or does not fit the others.
        NameNotFoundError: the eval model has no value that `outputs` names.
        BudgetError: no plan keeps to the budget, where the file of the model fixes all shapes;
            otherwise the first step of a shape raises it, and nothing has changed.
    """

    def __init__(
        self,
        artifacts: Path,
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
        model: onnx.ModelProto | Path | bytes,
        loss: LossType | Loss | Block | Mapping[str, Any] | str | None,
        optimizer: OptimType | OptimizerSpec | Block | str | None = None,
        *,
        train: str | Sequence[str] = "*",
        lora: Lora | str | None = None,
        classes: int | None = None,
        folder: Path | None = None,
        group: RankGroup | None = None,
        **options: Unpack[TrainerKeywords],
    ) -> Trainer:
        """Make a trainer for a forward model, whose artifacts are made now.

        Args:
            model: a path, bytes or `ModelProto`.
            loss: what to minimise, or its name as "cross_entropy"; for several outputs a mapping of
                their names, each with a loss, or a pair of a loss and its weight, whose sum is
                minimised; None: the model's first output.
            optimizer: what updates the parameters, or its name as "adamw"; by default `AdamW()`.
            train: names of parameters to train, or patterns of them as "classifier.*"; one that
                begins with "!" takes away what it matches.  The others are frozen.  Of a model
                with adapters they are the adapters' alone.
            lora: give the model adapters, see `engine.lora.adapt`: which, or the pattern of their
                names.  A last layer that `classes` replaces is trained whole beside them.
            classes: of a classifier: where its first output has scores of another number, its last
                layer begins anew, with random weights for so many.
            folder: for the artifacts; by default a temporary one that goes with the trainer.
            group: see the class.

        Raises:
            NameNotFoundError: a pattern of `train` matches nothing.
            ModelError: the layer that makes the scores is none that `classes` can replace.
            EngineError: as `generate_artifacts`.
        """
        from engine.trainer.artifact_folder import provide_folder, remove_with
        from engine.trainer.forward import Forward
        from engine.trainer.recipe import Recipe

        asked = TrainerOptions(**options)
        forward = Forward(model)
        if classes is not None:
            forward.replace_head(classes, asked.seed or 0)
        chosen = "adamw" if optimizer is None else optimizer
        recipe = Recipe(loss, chosen, select_options(asked, RecipeOptions))
        with provide_folder(folder) as place:
            if lora is not None:
                forward.adapt(lora)
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
        weights: Path | None = None,
        train: str | Sequence[str] = "*",
        lora: Lora | str | None = None,
        folder: Path | None = None,
        group: RankGroup | None = None,
        **options: Unpack[TrainerKeywords],
    ) -> Trainer:
        """Make a trainer for an architecture by its name; docs/models.md lists them.

        Args:
            name: such as "mobilenet_v3_small".
            loss: by default cross-entropy for classes, and the mean squared error for values.
            classes: their number, or their names in the order of the labels.
            data: what `fit` will get, from which the classes and the shape of a sample are taken;
                or the path of a folder of pictures or sounds.
            input_shape: of a sample; by default as in the data or the architecture.
            words: the size of the tokenizer's vocabulary, for texts; by default as the data say,
                or 257 for the bytes of `ByteTokenizer`.
            weights: a file of parameters to begin with: ONNX, safetensors or PyTorch's, with the
                names of torchvision or timm.  A last layer for another number of classes stays
                random, and a `ModelWarning` says so.  By default all are random, by the seed.
            optimizer, train, lora, folder, group: see `from_onnx`.

        Raises:
            NameNotFoundError: there is no such architecture; the message lists all.
            InputError: the classes or the shape are not known.
            ShapeError, DTypeError: the architecture does not take such samples.
            ModelError: the weights are of another architecture.
            EngineError: as `from_onnx`.
        """
        from engine.models.catalog import find_architecture
        from engine.trainer.by_name import begin

        seed = TrainerOptions(**options).seed or 0
        made = begin(
            find_architecture(name), classes=classes, data=data, input_shape=input_shape,
            words=words, weights=weights, seed=seed,
        )  # fmt: skip
        if made.loss_inputs and not options.get("loss_inputs"):
            options["loss_inputs"] = made.loss_inputs
        trainer = cls.from_onnx(
            made.content, made.loss if loss is None else loss, optimizer, train=train, lora=lora,
            folder=folder, group=group, **options,
        )  # fmt: skip
        trainer.classes = made.classes
        return trainer

    @classmethod
    @expand_options(TrainerOptions)
    def from_torch(
        cls,
        module: Any,
        example: Any,
        loss: LossType | Loss | Block | Mapping[str, Any] | str | None,
        optimizer: OptimType | OptimizerSpec | Block | str | None = None,
        *,
        train: str | Sequence[str] | None = None,
        lora: Lora | str | None = None,
        classes: int | None = None,
        axes: Mapping[str, Mapping[int, str]] | None = None,
        check_gradients: bool | None = None,
        folder: Path | None = None,
        group: RankGroup | None = None,
        **options: Unpack[TrainerKeywords],
    ) -> Trainer:
        """Make a trainer for a `torch.nn.Module`, exported to `forward.onnx` in the folder.

        Args:
            module, example, axes, check_gradients: see `engine.trainer.pytorch.export.export`.
            loss, optimizer, lora, classes, folder, group: see `from_onnx`.
            train: as in `from_onnx`; by default the parameters that require a gradient, or with
                `lora` all adapters.  Those on which the loss does not depend stay as they are, and
                a `ModelWarning` names them.

        The default of `frozen_batch_norm` is the list of the normalisations that the module keeps
        in evaluation mode while it trains.  If there are none and `train` is given, it is as in
        `from_onnx`.

        Raises:
            MissingPackageError: torch or onnxscript is not installed.
            EngineError: as `torch_export.export` and `from_onnx`.
        """
        from engine.trainer.artifact_folder import provide_folder, remove_with
        from engine.trainer.pytorch import export as torch_export

        asked = TrainerOptions(**options)
        with provide_folder(folder) as place:
            exported = torch_export.export(
                module, example, os.path.join(place, "forward.onnx"), axes=axes,
                check_gradients=check_gradients,
            )  # fmt: skip
            if asked.frozen_batch_norm is None:
                norms = exported.frozen_batch_norm or (False if train is None else None)
                asked = replace(asked, frozen_batch_norm=norms)

            def make(patterns: Sequence[str]) -> Trainer:
                return cls.from_onnx(
                    exported.model, loss, optimizer, train=patterns, lora=lora, classes=classes,
                    folder=place, group=group, **vars(asked),
                )  # fmt: skip

            wanted = train
            if wanted is None:
                wanted = exported.train if lora is None else "*"
            made = torch_export.train_reached(make, [wanted] if isinstance(wanted, str) else wanted)
        if folder is None:
            remove_with(made, place)
        return made

    @classmethod
    @expand_options(StepOptions)
    def from_run(
        cls,
        folder: Path,
        checkpoint: Literal["best", "last"] = "best",
        *,
        group: RankGroup | None = None,
        **options: Unpack[StepKeywords],
    ) -> Trainer:
        """Make a trainer of the folder of a run, in whatever process, wherever the folder is now.

        It has the parameters of a checkpoint, the classes, the preparation of the data, the forward
        model, the loss and the optimizer, and the seed, the parts of a batch and the learning rate
        that the run began with, so that it predicts and exports, and `fit(..., resume=True)` goes
        on with the run.  No path and no code is taken from the files of the folder.

        Args:
            folder: that `fit` was given.
            checkpoint: "best": the best one, or the last one of a run without; or "last".
            group: see the class.

        A loss or an optimizer of a class of your own is in the artifacts alone: `class_weight`,
        `unfreeze` and changes that mix labels then need a trainer made as the run's was.

        Raises:
            FileError: the folder has no checkpoint, or no artifacts.
            CheckpointError, ModelError: a file is damaged, or does not fit the others.
        """
        from engine.trainer.kept import open_run

        StepOptions(**options)  # which is checked before files are read
        return open_run(cls, arguments.check_path("folder", folder), checkpoint, group, options)

    def to_torch(self, module: Any) -> list[str]:
        """Write the parameters into a `torch.nn.Module`, running statistics included.

        Returns the names of the module's parameters and buffers that stay as they are, since the
        artifacts do not hold them.

        Raises:
            EngineError: as `engine.trainer.pytorch.export.to_torch`.  Nothing has changed.
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
        folder: Path | None = None,
        resume: bool = False,
        progress: bool = True,
        **options: Unpack[FitKeywords],
    ) -> History:
        """Train on all samples of some data, several times over; docs/training.md tells more.

        Args:
            train: what `engine.data.batches` takes.
            validation: data to evaluate on after every epoch; or the share of the samples of
                `train` that is set apart for it, between 0 and 1; 0: none.  By default, where
                `train` is a path, its folder `val/`, or a fifth of data that are not divided.
            batch_size, shuffle: of data that are not batches yet; None: 32, or as many samples as
                the file of the model fixes.
            balanced: let an epoch have all classes equally often.
            augment: random changes of the training data, such as ["flip", "mixup"], see
                `engine.data.batches`.  With changes that mix labels, cross entropy is taken of
                shares of classes while the run goes on.
            metrics: what is measured on the validation data, see `engine.trainer.metrics`.
            schedule: of the learning rate, see `engine.trainer.schedules`; its name as "cosine";
                a table of its name and options as {"name": "cosine", "warmup": 0.1}; or a function
                of (step, total, base).  None: the rate stays as it is.  Afterwards the trainer has
                the rate that it had before.
            callbacks: objects of `engine.trainer.callbacks.Callback`.
            folder: where checkpoints and logs are kept; None: nothing is written.
            resume: go on with the run in `folder`, exactly as if it had not ended; a folder without
                a checkpoint begins a new one.
            progress: whether to show how the training goes on.

        Returns:
            History: a row an epoch; its `stop_reason` tells why the run ended early, if it did.

        Raises:
            InputError, DTypeError: an argument, or the data.
            NonFiniteError: a loss or a parameter is NaN or infinite; the message names the first
                tensor that is, and its node.
            StateError: the folder has a run already, another run is training in it, or the run to
                be resumed is of something else.
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
