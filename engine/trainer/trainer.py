"""Trainer: a model, its parameters and its optimizer as one thing that learns from batches.

    from edgegrad import Trainer
    from edgegrad.artifacts import AdamW, CrossEntropyLoss

    trainer = Trainer.from_onnx("forward.onnx", CrossEntropyLoss(), AdamW(1e-3))
    for images, labels in batches:
        loss = trainer.step(images, labels)
    scores = trainer.predict(images)
    trainer.save("checkpoint")
    trainer.export("inference.onnx")

It holds a `Module` and an `Optimizer` of `engine.api` and adds what they leave to the caller: which
values are the model's outputs, predictions without labels, the mean over accumulated batches, and
checkpoints from which a training goes on bit for bit.  The loop over epochs is in fit.py.

Importing this file costs what `engine.api` costs: what only some calls need is imported there.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy.typing as npt

from engine.base import arguments
from engine.base.errors import DTypeError, FileError, NonFiniteError, StateError
from engine.base.fields import part, takes
from engine.base.signatures import checked
from engine.distributed.group import Group
from engine.trainer.inputs import arrays_of
from engine.trainer.metrics import Given
from engine.trainer.steps import Steps
from engine.training.module import Module
from engine.training.optimizer import Optimizer
from engine.training.settings import FitOptions, RecipeOptions, StepOptions, TrainerOptions
from engine.training.state import CheckpointState

if TYPE_CHECKING:
    import onnx

    from engine.checking import Check
    from engine.graphs.offline.optim_types import OptimizerSpec, OptimType
    from engine.lora import Lora
    from engine.loss_types import Loss, LossType
    from engine.onnxblock import Block
    from engine.trainer.callbacks import Callback
    from engine.trainer.fit import EvaluationBatch
    from engine.trainer.history import History
    from engine.trainer.ranks import Ranks
    from engine.trainer.recipe import Recipe
    from engine.trainer.schedules import Schedule
    from engine.trainer.step_plan import StepPlan
    from engine.training.keywords import FitKeywords, StepKeywords, TrainerKeywords
    from engine.training.model import Model
    from engine.training.nonfinite import NonFinite
    from engine.training.session import Session

Array: TypeAlias = npt.NDArray[Any]
Path: TypeAlias = str | os.PathLike[str]


@checked
@takes(StepOptions)
class Trainer:
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
        forward: the forward model's path or bytes, if the trainer was made of it.
        recipe: what else the artifacts were made with; None if it was made of artifacts.
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
        group: Group | None = None,
        **options: Unpack[StepKeywords],
    ) -> None:
        self.options = StepOptions(**options)
        self._steps = Steps(self, self.options)
        self._ranks: Ranks | None = None
        self.folder = os.fspath(artifacts)
        self.forward: onnx.ModelProto | Path | bytes | None = None
        self.recipe: Recipe | None = None
        if not os.path.isdir(self.folder):
            raise FileError(
                f"artifacts {self.folder!r}: no such folder; generate_artifacts and "
                "`edgegrad artifacts` make one of a forward model"
            )
        base = os.path.join(self.folder, arguments.beginning("prefix", prefix))
        self._open(base, self.options.threads, self.options.seed)
        self.digests = [
            self.session.training.digest,
            getattr(self.optimizer, "digest", ""),
        ]
        self.inputs = list(self.session.training.inputs)
        if outputs is not None:
            self.outputs = list(outputs)
            self.features  # noqa: B018  # any name that the model lacks is refused now
        if learning_rate is not None:
            self.learning_rate = learning_rate
        declared = [self.session.training.interface.inputs[name].shape for name in self.inputs]
        if all(isinstance(d, int) for shape in declared for d in shape):
            self._steps.shapes = [tuple(map(int, shape)) for shape in declared]
            if self.memory_budget is not None and self.optimizer is not None and self.state.loaded:
                self._steps.last()
        if group is not None:
            self._ranks = _joined_ranks(self, group, self._steps)

    @property
    def session(self) -> Session:
        """The models that steps run, and the memory that they share."""
        return self.module.session

    @property
    def memory_budget(self) -> int | None:
        """The memory limit for the plan of a step, in bytes; None: no limit."""
        return self.options.budget

    def _open(self, base: str, threads: int | None, seed: int | None) -> None:
        """Open artifacts; base: the beginning of their paths."""
        self.state = CheckpointState.load_checkpoint(base + "checkpoint")
        self.module = Module(
            base + "training_model.onnx",
            self.state,
            base + "eval_model.onnx" if os.path.exists(base + "eval_model.onnx") else None,
            threads=threads,
            seed=seed,
        )
        self.session.memory.budget = self.memory_budget
        self.optimizer: Optimizer | None = None
        if os.path.exists(base + "optimizer_model.onnx"):
            self.optimizer = Optimizer(
                base + "optimizer_model.onnx",
                self.module,
                skip_nonfinite=self.options.skip_nonfinite,
                skip_limit=self.options.skip_limit,
            )
            if self.skips_nonfinite:
                self.module.check_finite = False
        self._pending = 0  # batches whose gradients the next update takes
        self.module.lazy_reset_grad()

    @classmethod
    @takes(TrainerOptions)
    def from_onnx(
        cls,
        model: onnx.ModelProto | Path | bytes,
        loss: LossType | Loss | Block | str | None,
        optimizer: OptimType | OptimizerSpec | Block | str | None = None,
        *,
        train: str | Sequence[str] = "*",
        lora: Lora | str | None = None,
        classes: int | None = None,
        folder: Path | None = None,
        group: Group | None = None,
        **options: Unpack[TrainerKeywords],
    ) -> Trainer:
        """Make a trainer for a forward model, whose artifacts are made now.

        Args:
            model: a path, bytes or `ModelProto`.
            loss: what to minimise, or its name as "cross_entropy"; None: the model's first output.
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
        from engine.trainer.forward import Forward
        from engine.trainer.recipe import Recipe

        asked = TrainerOptions(**options)
        forward = Forward(model)
        if classes is not None:
            forward.replace_head(classes, asked.seed or 0)
        chosen = "adamw" if optimizer is None else optimizer
        recipe = Recipe(loss, chosen, part(asked, RecipeOptions))
        with _place(folder) as place:
            if lora is not None:
                forward.adapt(lora)
            recipe.write(forward, [train] if isinstance(train, str) else train, place)
            made = cls(place, group=group, **vars(part(asked, StepOptions)))
        if folder is None:
            weakref.finalize(made, shutil.rmtree, place, ignore_errors=True)
        made.forward, made.recipe = forward.source, recipe
        return made

    @classmethod
    @takes(TrainerOptions)
    def from_torch(
        cls,
        module: Any,
        example: Any,
        loss: LossType | Loss | Block | str | None,
        optimizer: OptimType | OptimizerSpec | Block | str | None = None,
        *,
        train: str | Sequence[str] | None = None,
        axes: Mapping[str, Mapping[int, str]] | None = None,
        check_gradients: bool | None = None,
        folder: Path | None = None,
        group: Group | None = None,
        **options: Unpack[TrainerKeywords],
    ) -> Trainer:
        """Make a trainer for a `torch.nn.Module`, exported to `forward.onnx` in the folder.

        Args:
            module, example, axes, check_gradients: see `engine.trainer.pytorch.export.export`.
            loss, optimizer, folder, group: see `from_onnx`.
            train: as in `from_onnx`; by default the parameters that require a gradient.  Those on
                which the loss does not depend stay as they are, and a `ModelWarning` names them.

        The default of `frozen_batch_norm` is the list of the normalisations that the module keeps
        in evaluation mode while it trains.  If there are none and `train` is given, it is as in
        `from_onnx`.

        Raises:
            MissingPackageError: torch or onnxscript is not installed.
            EngineError: as `torch_export.export` and `from_onnx`.
        """
        from engine.trainer.pytorch import export as torch_export

        asked = TrainerOptions(**options)
        with _place(folder) as place:
            exported = torch_export.export(
                module, example, os.path.join(place, "forward.onnx"), axes=axes,
                check_gradients=check_gradients,
            )  # fmt: skip
            if asked.frozen_batch_norm is None:
                norms = exported.frozen_batch_norm or (False if train is None else None)
                asked = replace(asked, frozen_batch_norm=norms)

            def make(patterns: Sequence[str]) -> Trainer:
                return cls.from_onnx(
                    exported.model, loss, optimizer, train=patterns, folder=place, group=group,
                    **vars(asked),
                )  # fmt: skip

            wanted = exported.train if train is None else train
            made = torch_export.train_reached(make, [wanted] if isinstance(wanted, str) else wanted)
        if folder is None:
            weakref.finalize(made, shutil.rmtree, place, ignore_errors=True)
        return made

    def to_torch(self, module: Any) -> list[str]:
        """Write the parameters into a `torch.nn.Module`, running statistics included.

        Returns the names of the module's parameters and buffers that stay as they are, since the
        artifacts do not hold them.

        Raises:
            EngineError: as `engine.trainer.pytorch.export.to_torch`.  Nothing has changed.
        """
        from engine.trainer.pytorch import export as torch_export

        return torch_export.to_torch(self.state, module)

    def take_over(self, folder: Path) -> None:
        """Go on with other artifacts of the same model, as where more of it is to be trained.

        Everything comes from the artifacts and the checkpoint among them; the names of the outputs,
        the threads and the seed stay.

        Raises:
            EngineError: as the constructor.  Nothing has changed.
        """
        before, outputs = dict(vars(self)), self.outputs
        try:
            self._open(os.path.join(folder, ""), self.module.threads, self.session.seed)
        except BaseException:
            vars(self).update(before)
            raise
        for name in ("_evaluation", "_prediction"):  # of the models before
            vars(self).pop(name, None)
        self._steps.forget()
        self.outputs = outputs

    # --- training

    def accumulate(self, *batch: Any) -> float:
        """Compute the loss of a batch, and add its gradients to those since the last `update`.

        Raises:
            InputError, DTypeError, ShapeError: the batch does not fit, naming the input.
            LabelError: a class label is out of range.  No gradient and no running statistic has
                changed, on no rank of a group.
            GroupError: the share of another rank is refused; likewise.
        """
        if self._ranks is not None:
            return self._ranks.accumulate(self._ranks.share(self._checked(batch)))
        return self._add(self._arrays(self.session.training, batch))

    def _add(self, arrays: Sequence[Array]) -> float:
        """Accumulate as `accumulate` does, with the inputs of the training model."""
        loss = self.session.run(self.session.training, arrays)[0]
        self._pending += 1
        return float(loss.item())

    def update(self) -> None:
        """Update the parameters from the mean gradient of the batches since the last update.

        Raises:
            StateError: there is no optimizer, or no batch since the last update.
            NonFiniteError: more updates in a row were skipped than `skip_limit`.
        """
        self._update()
        self._need_optimizer().check_skipped()

    def _update(self) -> None:
        """Update as `update` does, however many updates were skipped."""
        if self.optimizer is None:
            raise StateError(f"the artifacts in {self.folder!r} have no optimizer_model.onnx")
        if not self._pending:
            raise StateError("no batch has been accumulated since the last update")
        if self._ranks is not None:
            self._ranks.add_gradients()
        if self._pending > 1:
            for gradients in self.state.gradients():
                gradients /= self._pending
        self.optimizer.advance()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget the batches that were accumulated since the last update.

        Running statistics keep what they have of them.
        """
        self.module.lazy_reset_grad()
        self._pending = 0

    def refuse_gradients(self) -> None:
        """Drop the gradients, and put running statistics back to before these batches."""
        self.session.put_back_statistics(whole=True)
        self.drop_gradients()

    def step(self, *batch: Any) -> float:
        """Learn from one batch; returns its loss, as it was before the update.

        Raises:
            EngineError: as `accumulate` and `update`.
            StateError: batches have been accumulated that no update has taken.
            NonFiniteError: the module's `check_finite` is set, and the loss is not finite; or more
                updates in a row were skipped than `skip_limit`.
        """
        if self._pending:
            raise StateError(
                f"{self._pending} accumulated batches wait for update() or drop_gradients()"
            )
        loss = self._learn(batch, check_finite=self.module.check_finite)
        if self.module.check_finite and not math.isfinite(loss):
            raise NonFiniteError(
                f"training step: output {self.session.training.outputs[0]!r} is {loss}; no "
                "parameter has changed"
            )
        self._need_optimizer().check_skipped()
        return loss

    def find_nonfinite(self, *batch: Any) -> NonFinite | None:
        """Find the first tensor of a step on such a batch that is NaN or infinite, and its node.

        The step is computed on copies, one call of a kernel at a time: the forward pass, the
        backward pass and the update.  Nothing changes.  Values that reach neither the loss nor a
        gradient nor an update are passed over.  With ranks, all of them call it at once, each with
        its own part of a batch.

        Returns None if all is finite; `str` of what is returned is a sentence.

        Raises:
            EngineError: as `step`; OutOfMemoryError where there is no room for the copies.
        """
        from engine.trainer.nonfinite import find

        return find(self, batch)

    def check(
        self, *batch: Any, memory_budget: int | str | None = None, variants: bool = True
    ) -> Check:
        """Predict the memory and time that a step on such a batch takes; nothing is trained.

        It gives the memory of the plans and of a whole process that trains.  The time is estimated
        from the speed of this machine, which is measured in about two seconds.

        batch: as `step` takes it; a tuple of whole numbers instead of an array is its shape.
        memory_budget: what all regions may take, as bytes or text such as "48 MB"; by default what
            this trainer keeps to.
        variants: whether to plan what would take less, too, as smaller batches or fewer layers.

        Raises:
            InputError, DTypeError: the batch does not fit, or the budget is not a number of bytes.
            EngineError: the step cannot be planned for these shapes.
        """
        from engine.trainer.dry_run import dry_run

        return dry_run(self, batch, memory_budget, variants)

    def _learn(self, batch: Sequence[Any], *, check_finite: bool) -> float:
        """Do what `step` does with a batch, whose loss may be any number; returns it.

        check_finite: whether a loss that is not finite holds the update back.
        """
        self._need_optimizer()
        arrays = self._checked(batch)
        if self._ranks is not None:
            return self._ranks.learn(self._ranks.share(arrays), check_finite=check_finite)
        return self._steps.learn(arrays, check_finite=check_finite)

    def _checked(self, batch: Sequence[Any]) -> list[Array]:
        """Return the inputs of the training model from a batch, checked."""
        model = self.session.training
        return model.arrays(self._arrays(model, batch))

    @property
    def plan(self) -> StepPlan:
        """The plan of the last step; before the first one, where the model fixes all shapes.

        Raises:
            StateError: there was no step yet, or there is no optimizer.
            EngineError: as `plan_of`.
        """
        return self._steps.last()

    @property
    def obstacle(self) -> str:
        """Why steps are two plans, of the training model and of the optimizer model, and not one.

        It is empty if they are one, or none has been planned yet.
        """
        return self._steps.obstacle

    def plan_of(self, *batch: Any) -> StepPlan:
        """Plan a step on such a batch; nothing is trained.

        Raises:
            BudgetError: no plan for it keeps to the memory budget.
            StateError: there is no optimizer.
            EngineError: as `step` where the batch does not fit.
        """
        self._need_optimizer()
        return self._steps.plan([array.shape for array in self._checked(batch)])

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update.

        Raises:
            StateError: there is no optimizer.
        """
        return self._need_optimizer().get_learning_rate()

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._need_optimizer().set_learning_rate(rate)

    @property
    def steps(self) -> int:
        """The number of updates done, including those before a checkpoint."""
        return self._need_optimizer().steps

    @property
    def skips_nonfinite(self) -> bool:
        """True if an update is skipped when a gradient is NaN or infinite."""
        return self.optimizer is not None and self.optimizer.skips_nonfinite

    @property
    def skipped(self) -> int:
        """The number of updates skipped, including those before a checkpoint."""
        return self._need_optimizer().skipped

    def _need_optimizer(self) -> Optimizer:
        if self.optimizer is None:
            raise StateError(f"the artifacts in {self.folder!r} have no optimizer_model.onnx")
        return self.optimizer

    @takes(FitOptions)
    def fit(
        self,
        train: Any,
        *,
        validation: Any = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        metrics: Sequence[Given] | Given = (),
        schedule: Schedule | Callable[[int, int | None, float], float] | None = None,
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
                `train` that is set apart for it, between 0 and 1.
            batch_size, shuffle: of data that are not batches yet; None: 32, or as many samples as
                the file of the model fixes.
            metrics: what is measured on the validation data, see `engine.trainer.metrics`.
            schedule: of the learning rate, see `engine.trainer.schedules`; or a function of
                (step, total, base).  None: the rate stays as it is.  Afterwards the trainer has the
                rate that it had before.
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
            metrics=metrics,
            schedule=schedule,
            callbacks=callbacks,
            folder=folder,
            resume=resume,
            progress=progress,
        )
        return Loop(self, asked).run()

    # --- evaluation

    @property
    def ignore_index(self) -> int:
        """The target of positions that metrics leave out: as in the loss, or -100."""
        loss = None if self.recipe is None else self.recipe.loss
        index = getattr(loss, "ignore_index", None)
        return -100 if index is None else int(index)

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the model's outputs."""
        return self.session.need_eval().model_outputs()

    @cached_property
    def _evaluation(self) -> Model:
        """The eval model with the loss and the model's outputs."""
        model = self.session.need_eval()
        return model.select([model.outputs[0], *self.outputs], "evaluation")

    @cached_property
    def _prediction(self) -> Model:
        """The eval model with the model's outputs alone."""
        return self.session.need_eval().select(self.outputs, "prediction")

    @property
    def features(self) -> list[str]:
        """Names of the inputs that `predict` takes."""
        return list(self._prediction.inputs)

    def evaluate_batch(self, *batch: Any) -> tuple[float, dict[str, Array]]:
        """Compute the loss of a batch and the model's outputs by name; nothing is learned.

        Raises:
            InputError, DTypeError, ShapeError, LabelError: as `accumulate`.
        """
        model = self._evaluation
        loss, *outputs = self.session.run(model, self._arrays(model, batch))
        return float(loss.item()), dict(zip(self.outputs, outputs, strict=True))

    def predict_batch(self, *features: Any) -> dict[str, Array]:
        """Compute the model's outputs by name for one batch of `features`.

        Raises:
            InputError, DTypeError, ShapeError: the batch does not fit, naming the input.
        """
        model = self._prediction
        values = self.session.run(model, self._arrays(model, features))
        return dict(zip(self.outputs, values, strict=True))

    def evaluate(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        metrics: Sequence[Given] | Given = (),
        each: Callable[[EvaluationBatch], None] | None = None,
    ) -> dict[str, float]:
        """Compute the loss over all samples of some data, and metrics, by name; nothing is learned.

        Args:
            data: what `engine.data.batches` takes.
            batch_size: of data that are not batches yet; None as in `fit`.
            metrics: see `engine.trainer.metrics`.
            each: is called after every batch.

        Raises:
            InputError: there are no samples, or several metrics have one name.
            EngineError: as `evaluate_batch`, `batches` and the metrics.
        """
        from engine.trainer.evaluation import evaluate

        return evaluate(self, data, batch_size, metrics, each)

    def predict(self, data: Any, *, batch_size: int | None = None) -> Array | tuple[Array, ...]:
        """Compute the model's output for all samples of some data, or a tuple of its outputs.

        Args:
            data: what `engine.data.batches` takes; targets in it are left out.
            batch_size: of data that are not batches yet; None as in `fit`.  A smaller last batch
                is filled up where the file of the model fixes the number of samples.

        Raises:
            InputError: there are no samples.
            ShapeError: an output has no axis of samples, so that batches cannot be joined.
            EngineError: as `predict_batch` and `batches`.
        """
        from engine.trainer.evaluation import predict

        return predict(self, data, batch_size)

    def _arrays(self, model: Model, batch: Sequence[Any]) -> list[Array]:
        """Return the inputs of a model from a batch, see `engine.trainer.inputs`."""
        return arrays_of(model, batch, self.inputs)

    # --- files

    def save(self, path: Path) -> None:
        """Write a checkpoint, from which a trainer of these artifacts goes on as this one would.

        It holds parameters, what the optimizer keeps, the learning rate and how far the random
        numbers are.  A crash leaves the old file or the new one.  `CheckpointState` and
        onnxruntime-training read it.

        Raises:
            FileError: it cannot be written; the old one is as it was.
        """
        if self._ranks is None:
            self._write(path)
        else:
            self._ranks.level()
            self._ranks.check_same()
            self._ranks.lead(lambda: self._write(path))

    def _write(self, path: Path) -> None:
        """Write a checkpoint, whether or not there are other ranks."""
        CheckpointState.save_checkpoint(self.state, path, include_optimizer_state=True)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint that a trainer of these artifacts has saved.

        Raises:
            FileError: it cannot be read.
            CheckpointError, ShapeError, DTypeError: it is not a checkpoint, or one of another
                model or optimizer.  Nothing has changed.
        """
        from engine.trainer.restore import restore

        if self._ranks is None:
            restore(self, path)
        else:
            self._ranks.lead(lambda: restore(self, path))
            self._ranks.spread()

    def export(self, path: Path, outputs: Sequence[str] | None = None) -> None:
        """Write the model as plain ONNX for inference, with the parameters as they are now.

        outputs: by default all outputs of the model.

        Raises:
            FileError: the file cannot be written.
            NameNotFoundError: the model has no value of such a name.
        """
        names = self.outputs if outputs is None else list(outputs)
        if self._ranks is None:
            self.module.export_model_for_inferencing(path, names)
        else:
            self._ranks.level()
            self._ranks.lead(lambda: self.module.export_model_for_inferencing(path, names))


def _joined_ranks(trainer: Trainer, group: Group, steps: Steps) -> Ranks:
    """Join a trainer to a group: return its ranks, with the parameters of rank 0 on all of them.

    Raises:
        GroupError: they have other artifacts, or are for another kind of processor.
    """
    from engine.base.package import VERSION
    from engine.trainer.ranks import Ranks

    if not (hasattr(group, "rank") and hasattr(group, "gather")):
        kind = type(group).__name__
        raise DTypeError(f"group: expected a group of ranks, see engine.distributed; got {kind}")
    ranks = Ranks(trainer, group, steps)
    model, optimizer = trainer.digests
    ranks.check_alike(
        {
            "the version of edgegrad": VERSION,
            "the training model": model,
            "the optimizer model": optimizer,
            "the inputs": trainer.inputs,
            "the kernels": trainer.session.memory.kernels.name,
            "the number of threads": trainer.module.threads,
            "skip_nonfinite": trainer.skips_nonfinite,
        }
    )
    if trainer.state.loaded:
        ranks.spread()
    return ranks


@contextlib.contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    """Provide the folder, or a temporary one, which is removed if the block fails."""
    if folder is not None:
        yield arguments.path("folder", folder)
        return
    made = tempfile.mkdtemp(prefix="edgegrad-")
    try:
        yield made
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
