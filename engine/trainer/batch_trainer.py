"""BatchTrainer: training and evaluation batch by batch, alone or together with other processes.

It adds to a `Learner` the planned step, ranks, data to evaluate on, and the files of a training
run; `Trainer` adds forward models and the loop over epochs.
"""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from engine.base.aliases import Array, StrPath
from engine.base.errors import InputError, NonFiniteError, StateError
from engine.base.labels import IGNORED
from engine.base.signatures import ABOVE_0, Range, check_arguments
from engine.distributed.group import RankGroup
from engine.trainer.learner import TrainingModels
from engine.trainer.metric import Given, Metric
from engine.trainer.steps import Steps
from engine.training.settings import StepOptions

if TYPE_CHECKING:
    import onnx

    from engine.checking import Check
    from engine.data.description import DataDescription
    from engine.trainer.evaluation import EvaluationBatch
    from engine.trainer.ranks import Ranks
    from engine.trainer.rate_search import RateSearch
    from engine.trainer.recipe import Recipe
    from engine.trainer.step_plan import StepPlan
    from engine.trainer.summary import Summary
    from engine.training.inference import Session
    from engine.training.module import Module
    from engine.training.nonfinite import NonFinite
    from engine.training.optimizer import Optimizer
    from engine.training.state import CheckpointState


@check_arguments(lowest=ABOVE_0, highest=ABOVE_0, steps=Range(20))
class BatchTrainer:
    """A model that learns from batches; `Trainer` explains its arguments and attributes.

    Attributes:
        training_steps: the steps on a whole batch, or on the share of this rank.
        ranks: the ranks of the group; None if this process trains alone.
        kept: facts of the loss, by name, of a trainer that was made of a run.
    """

    def __init__(
        self,
        artifacts: StrPath,
        prefix: str,
        outputs: Sequence[str] | None,
        learning_rate: float | None,
        group: RankGroup | None,
        options: StepOptions,
    ) -> None:
        self.options = options
        self.learner = learner = TrainingModels(artifacts, prefix, options)
        self.training_steps = Steps(learner, options)
        self.ranks: Ranks | None = None
        self.forward: onnx.ModelProto | StrPath | bytes | None = None
        self._recipe: Recipe | None = None
        self.classes: Sequence[str] | None = None
        self.kept: Mapping[str, Any] = {}
        if outputs is not None:
            self.outputs = list(outputs)
            self.features  # noqa: B018  # any name that the model lacks is refused now
        if learning_rate is not None:
            self.learning_rate = learning_rate
        interface = self.learner.session.training.interface
        declared = [interface.inputs[name].shape for name in self.inputs]
        if all(isinstance(d, int) for shape in declared for d in shape):
            self.training_steps.shapes = [tuple(map(int, shape)) for shape in declared]
            if self.memory_budget is not None and self.optimizer is not None and self.state.loaded:
                self.training_steps.get_last()
        if group is not None:
            from engine.trainer import ranks

            self.ranks = ranks.join(learner, group, self.training_steps)

    @property
    def recipe(self) -> Recipe | None:
        """The arguments that the artifacts were made with, except the model; None if unknown.

        Raises:
            CheckpointError: the trainer was made from a run whose recipe is damaged.
        """
        if self._recipe is None and self.kept.get("recipe") is not None:
            from engine.trainer.recipe import Recipe

            self._recipe = Recipe.of_table(self.kept["recipe"], "the recipe in run.json")
        return self._recipe

    @recipe.setter
    def recipe(self, recipe: Recipe | None) -> None:
        self._recipe = recipe

    @property
    def state(self) -> CheckpointState:
        """The parameters and the optimizer's state."""
        return self.learner.state

    @property
    def module(self) -> Module:
        """The `Module` with the training model and the eval model."""
        return self.learner.module

    @property
    def optimizer(self) -> Optimizer | None:
        """The `Optimizer`; None if the artifacts have none."""
        return self.learner.optimizer

    @property
    def folder(self) -> str:
        """The folder of the artifacts."""
        return self.learner.folder

    @property
    def digests(self) -> list[str]:
        """The digests of the training model and the optimizer model."""
        return self.learner.digests

    @property
    def inputs(self) -> list[str]:
        """The names of the arrays in a batch: the inputs of the training model, in order."""
        return self.learner.inputs

    @property
    def outputs(self) -> list[str]:
        """The names of the model's outputs."""
        return self.learner.outputs

    @outputs.setter
    def outputs(self, names: Sequence[str]) -> None:
        self.learner.outputs = list(names)

    @property
    def features(self) -> list[str]:
        """The names of the inputs that `predict_batch` takes, in order."""
        return self.learner.features

    @property
    def memory_budget(self) -> int | None:
        """The memory limit for the plan of a step, in bytes; None for no limit."""
        return self.learner.memory_budget

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update.

        Raises:
            StateError: there is no optimizer.
        """
        return self.learner.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.learner.learning_rate = rate

    @property
    def steps(self) -> int:
        """The number of updates so far, including the ones before a loaded checkpoint."""
        return self.learner.steps

    @property
    def skips_nonfinite(self) -> bool:
        """True if updates with NaN or infinite gradients are skipped."""
        return self.learner.skips_nonfinite

    @property
    def skipped(self) -> int:
        """The number of skipped updates, including the ones before a loaded checkpoint."""
        return self.learner.require_optimizer().skipped

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in the next step; None if it is not scaled."""
        return None if self.optimizer is None else self.optimizer.loss_scale

    def take_over(self, folder: StrPath) -> None:
        """Continue with other artifacts of the same model, for example to train more parameters.

        Parameters and optimizer state come from the checkpoint in the folder.  Only the names of
        the outputs, the number of threads and the seed stay.

        Args:
            folder: the folder of the artifacts.

        Raises:
            EngineError: as for the constructor.  Nothing changes.
        """
        self.learner.reopen(folder)
        self.training_steps.forget()
        # Labels are classes where they were shares of classes, or the other way round.
        ranks = [len(self.learner.session.training.interface.inputs[n].shape) for n in self.inputs]
        pairs = list(zip(self.training_steps.shapes or (), ranks, strict=False))
        fits = pairs and all(len(shape) >= rank for shape, rank in pairs)
        self.training_steps.shapes = [shape[:rank] for shape, rank in pairs] if fits else None

    # --- training

    def accumulate(self, *batch: Any) -> float:
        """Compute the loss of a batch, and add its gradients to the accumulated ones.

        Args:
            batch: arrays in the order of `inputs`, or one mapping from names to arrays.

        Returns:
            float: the loss.

        Raises:
            InputError, DTypeError, ShapeError: an array does not fit; the message names the input.
            LabelError: a label is out of range.  Gradients and running statistics are unchanged,
                on all ranks of a group.
            GroupError: the share of another rank was refused.  Nothing changes either.
        """
        if self.ranks is not None:
            return self.ranks.accumulate(self.ranks.share(self.learner.check_arrays(batch)))
        learner = self.learner
        return learner.add_batch(learner.make_arrays(learner.session.training, batch))

    def update(self) -> None:
        """Update the parameters with the mean gradient of the accumulated batches.

        Raises:
            StateError: there is no optimizer, or no batch has been accumulated.
            NonFiniteError: more than `skip_limit` updates in a row were skipped.
        """
        self.learner.advance()
        self.learner.require_optimizer().check_skipped()

    def drop_gradients(self) -> None:
        """Discard the gradients of the batches that were accumulated since the last update.

        Running statistics keep their changes.
        """
        self.learner.drop_gradients()

    def refuse_gradients(self) -> None:
        """Discard the accumulated gradients, and undo these batches' changes of statistics."""
        self.learner.refuse_gradients()

    def step(self, *batch: Any) -> float:
        """Train on one batch: forward, backward and update.

        Args:
            batch: arrays in the order of `inputs`, or one mapping from names to arrays.

        Returns:
            float: the loss of the batch before the update.

        Raises:
            EngineError: as for `accumulate` and `update`.
            StateError: accumulated batches wait for `update` or `drop_gradients`.
            NonFiniteError: the loss is not finite and the module's `check_finite` is set, or more
                than `skip_limit` updates in a row were skipped.
        """
        if self.learner.pending:
            raise StateError(
                f"{self.learner.pending} accumulated batches wait for update() or drop_gradients()"
            )
        self.learner.require_optimizer()
        check_finite = self.module.check_finite
        loss = self._learn(self.learner.check_arrays(batch), check_finite=check_finite)
        if check_finite and not math.isfinite(loss):
            raise NonFiniteError(
                f"training step: output {self.learner.session.training.outputs[0]!r} is {loss}; no "
                "parameter has changed"
            )
        self.learner.require_optimizer().check_skipped()
        return loss

    def _learn(self, arrays: Sequence[Array], *, check_finite: bool = False) -> float:
        """Do a step on all ranks with the inputs of the training model; return the loss."""
        if self.ranks is None:
            return self.training_steps.learn(arrays, check_finite=check_finite)
        return self.ranks.learn(self.ranks.share(arrays), check_finite=check_finite)

    def find_learning_rate(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        lowest: float = 1e-7,
        highest: float = 1.0,
        steps: int = 100,
        seed: int = 0,
    ) -> RateSearch:
        """Search for a learning rate with steps at rising rates, and then restore the trainer.

        Args:
            data: data as in `fit`, or a path.
            batch_size: the batch size for data that are not batches yet.  Default: as in `fit`.
            lowest, highest: the learning rates of the first and of the last step.
            steps: the largest number of steps.  The search ends earlier if a loss is far above the
                lowest one.
            seed: seed of the order of the samples.

        Returns:
            RateSearch: the rates and losses, a `suggestion`, and `plot()`, which notebooks show.

        Raises:
            StateError: there is no optimizer, or accumulated batches wait for an update.
            EngineError: as for `step` and `batches`.
        """
        from engine.trainer.places import open_training
        from engine.trainer.rate_search import search
        from engine.trainer.sizes import make_batches

        learner, shapes = self.learner, self.training_steps.shapes
        described, opened = learner.data_description, learner.opened
        try:
            data, _ = open_training(learner, data, 0, self.classes or ())
            source = make_batches(
                learner.session.training, data, batch_size, "the data", shuffle=True, seed=seed,
                names=self.inputs,
            )  # fmt: skip
            return search(learner, self._learn, source, lowest, highest, steps)
        finally:
            learner.data_description, learner.opened = described, opened
            self.training_steps.shapes = shapes

    def find_nonfinite(self, *batch: Any) -> NonFinite | None:
        """Find the first tensor with NaN or infinity in a step on this batch, and its node.

        It runs the forward pass, the backward pass and the update on copies, kernel by kernel, so
        the trainer does not change.  It skips values that influence neither the loss nor a
        gradient nor an update.  In a group, all ranks call it together, each with its own part of
        the batch.

        Args:
            batch: as for `step`.

        Returns:
            NonFinite: the tensor and its node, which `str` describes in a sentence; None if all
            values are finite.

        Raises:
            EngineError: as for `step`.
            OutOfMemoryError: there is not enough memory for the copies.
        """
        from engine.trainer.nonfinite import find

        return find(self.training_steps, batch)

    def check(
        self, *batch: Any, memory_budget: int | str | None = None, variants: bool = True
    ) -> Check:
        """Predict the memory and the time of a step on this batch, without training.

        The result has the memory of the plans, the memory of the whole process, and the time,
        estimated from the speed of this machine, which is measured in about two seconds.

        Args:
            batch: as for `step`; instead of an array, its shape is enough, as a tuple of integers.
            memory_budget: a memory limit for all regions of the plan, in bytes or as text such as
                "48 MB".  Default: the trainer's.
            variants: whether to also plan variants that need less memory, such as a smaller batch
                or fewer trained layers.

        Returns:
            Check: the report, which prints as text.

        Raises:
            InputError, DTypeError: an array does not fit, or the budget is not a number of bytes.
            EngineError: the step cannot be planned for these shapes.
        """
        from engine.trainer.dry_run import run_dry

        return run_dry(self.learner, batch, memory_budget, variants)

    def summary(self, *batch: Any) -> Summary:
        """Return a table of the layers, with parameters, memory and cost, without running a step.

        Args:
            batch: the batch of the step to describe, as for `check`.  Without it, memory and
                operations belong to the last step, if there was one.

        Returns:
            Summary: prints as a table; `rows` and `to_dict` give its numbers.

        Raises:
            InputError, DTypeError: an array does not fit.
            EngineError: the step cannot be planned for these shapes.
        """
        from engine.trainer.summary import summarize

        return summarize(self.learner, self.training_steps, batch)

    def __repr__(self) -> str:
        from engine.trainer.summary import describe

        return "\n".join(describe(self.learner))

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @property
    def plan(self) -> StepPlan:
        """The plan of the last step, or of the first one if the model file fixes all shapes.

        Raises:
            StateError: there was no step yet, or there is no optimizer.
            EngineError: as for `plan_of`.
        """
        return self.training_steps.get_last()

    @property
    def obstacle(self) -> str:
        """The reason for planning a step as two plans, of the training and of the optimizer model.

        It is empty if a step is one plan, or has not been planned yet.
        """
        return self.training_steps.obstacle

    def plan_of(self, *batch: Any) -> StepPlan:
        """Plan a step on this batch without running it.

        Args:
            batch: as for `step`.

        Raises:
            BudgetError: no plan fits in the memory budget.
            StateError: there is no optimizer.
            EngineError: an array does not fit, as for `step`.
        """
        self.learner.require_optimizer()
        return self.training_steps.plan([array.shape for array in self.learner.check_arrays(batch)])

    # --- evaluation

    @property
    def ignore_index(self) -> int:
        """The target of positions that metrics ignore: the loss's `ignore_index`, or `IGNORED`."""
        index = self._get_of_loss("ignore_index")
        return IGNORED if index is None else int(index)

    @property
    def threshold(self) -> float | None:
        """The output above which a sample has a label; None if it has exactly one label."""
        value = self._get_of_loss("threshold")
        return None if value is None else float(value)

    def _get_of_loss(self, name: str) -> Any:
        """Return an attribute of the loss; None if the loss is not known, or has none."""
        if name in self.kept:
            return self.kept[name]
        return None if self.recipe is None else getattr(self.recipe.named_loss, name, None)

    def make_metrics(self, given: Sequence[Given] | Given) -> list[Metric]:
        """Return metric objects; metrics given by name get the loss's `ignore_index` and threshold.

        Raises:
            InputError, DTypeError: as for `engine.trainer.metrics.metrics_of`.
        """
        from engine.trainer.metrics.named import check_named, metrics_of

        metrics = metrics_of(given, self.ignore_index, self.threshold)
        check_named(metrics, self.learner.part_names)
        return metrics

    @property
    def data_description(self) -> DataDescription | None:
        """Facts about the last training data, such as their classes; None if there were none."""
        return self.learner.data_description

    def evaluate_batch(self, *batch: Any) -> tuple[float, dict[str, Array]]:
        """Compute the loss and the outputs of the model for a batch, without training.

        Args:
            batch: as for `step`.

        Returns:
            tuple: the loss, and the outputs by name.

        Raises:
            InputError, DTypeError, ShapeError, LabelError: as for `accumulate`.
        """
        losses, outputs = self.learner.evaluate_batch(batch)
        return losses[0], outputs

    def predict_batch(self, *features: Any) -> dict[str, Array]:
        """Compute the model's outputs for one batch.

        Args:
            features: arrays in the order of the attribute `features`, or one mapping from names
                to arrays.

        Returns:
            dict: the outputs by name.

        Raises:
            InputError, DTypeError, ShapeError: an array does not fit; the message names the input.
        """
        return self.learner.predict_batch(features)

    def evaluate(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        metrics: Sequence[Given] | Given = (),
        each: Callable[[EvaluationBatch], None] | None = None,
    ) -> dict[str, float]:
        """Compute the loss and metrics over all samples of some data, without training.

        Args:
            data: anything that `engine.data.batches` accepts; the path of a folder, whose split
                `test` is used if it has one; or a DataFrame, if the trainer was trained on one.
                Paths and DataFrames are prepared like the training data.
            batch_size: the batch size for data that are not batches yet.  Default: as in `fit`.
            metrics: names, objects or functions, see `engine.trainer.metrics`.
            each: a function to call after every batch.

        Returns:
            dict: the mean loss, as "loss", and the metrics, by name.

        Raises:
            InputError: there are no samples, or several metrics have the same name.
            EngineError: as for `evaluate_batch`, `batches` and the metrics.
        """
        from engine.trainer.evaluation import evaluate
        from engine.trainer.places import open_labelled

        chosen = self.make_metrics(metrics)
        known = () if self.data_description is None else self.data_description.classes
        classes = list(known or self.classes or ()) or None
        source = open_labelled(self.learner, data)
        return evaluate(self.learner, self.ranks, source, batch_size, chosen, each, classes)

    def session(self, model: str | os.PathLike[str] | bytes | None = None) -> Session:
        """Return an inference session that always uses the trainer's current parameters.

        It copies no parameters.  It shares the trainer's memory, so a call waits for a step that
        runs in another Python thread.

        Args:
            model: another model with the same parameters, such as a decoder with caches, as a path
                or bytes.  Its initializers with the names of parameters get the trained values.

        Raises:
            InputError, ShapeError, DTypeError: an initializer does not fit its parameter.
            FileError, ModelError, UnsupportedOpError: the model cannot be read or run.
        """
        return self.learner.make_session(model)

    @overload
    def predict(self, data: str | os.PathLike[str], *, batch_size: int | None = None) -> Any: ...
    @overload
    def predict(self, data: Any, *, batch_size: int | None = None) -> Array | tuple[Array, ...]: ...
    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """Compute the model's output for all samples of some data.

        Args:
            data: anything that `engine.data.batches` accepts, whose targets are ignored; or the
                path of a file or folder, or a list of paths.  After training on labelled texts,
                also a list of texts.
            batch_size: the batch size for data that are not batches yet.  Default: as in `fit`.
                A smaller last batch is padded if the model file fixes the number of samples.

        Returns:
            The output [samples, ...], or a tuple if the model has several outputs.  For paths and
            texts, a list with a dict for each: `file`, and `class`, `probability` and
            `probabilities`, or `mask` and `shares` for a model of masks, or `values`.

        Raises:
            InputError: there are no samples.
            ShapeError: an output has no axis of samples, so its batches cannot be joined.
            EngineError: as for `predict_batch` and `batches`.
        """
        from engine.trainer.evaluation import predict
        from engine.trainer.places import make_rows, open_unlabelled

        source, places = open_unlabelled(self.learner, data)
        outputs = predict(self.learner, source, batch_size)
        if places is None:
            return outputs
        if isinstance(outputs, tuple):
            raise InputError(
                f"the model has the outputs {self.outputs}; predicting from files supports one"
            )
        known = () if self.data_description is None else self.data_description.classes
        return make_rows(places, outputs, known or self.classes or ())

    # --- files

    def save(self, path: StrPath) -> None:
        """Write a checkpoint, from which another trainer of these artifacts continues exactly.

        It contains the parameters, the optimizer's state, the learning rate, and the position in
        the stream of random numbers.  `CheckpointState` and onnxruntime-training can read it.
        After a crash, the file is either the old one or the new one.

        Args:
            path: the file to write.

        Raises:
            FileError: the file cannot be written.  An existing one stays unchanged.
        """
        if self.ranks is None:
            self.learner.write_checkpoint(path)
        else:
            self.ranks.average_moved()
            self.ranks.check_same()
            self.ranks.lead(lambda: self.learner.write_checkpoint(path))

    def load(self, path: StrPath) -> None:
        """Load a checkpoint that a trainer of these artifacts has saved.

        Args:
            path: the file; or the folder of a run, to load its best checkpoint; or the folder of
                one of its checkpoints.  From a folder, averaged parameters are loaded if the run
                has them.

        Raises:
            FileError: the file cannot be read.
            CheckpointError, ShapeError, DTypeError: the file is not a checkpoint, or belongs to
                another model or optimizer.  Nothing changes.
        """
        from engine.data.description import DataDescription
        from engine.trainer.averages import load

        if self.ranks is None:
            load(self.learner, path)
        else:
            self.ranks.lead(lambda: load(self.learner, path))
            self.ranks.spread()
        if os.path.isdir(path):
            described = DataDescription.read(pathlib.Path(path))
            self.learner.data_description = described or self.data_description

    def export(self, path: StrPath, outputs: Sequence[str] | None = None) -> None:
        """Write an ONNX model for inference, with the current parameters.

        Args:
            path: the file to write.
            outputs: the names of the values to make outputs.  Default: all outputs of the model.

        Raises:
            FileError: the file cannot be written.
            NameNotFoundError: the model has no value with such a name.
        """
        names = self.outputs if outputs is None else list(outputs)
        if self.ranks is None:
            self.module.export_model_for_inferencing(path, names)
        else:
            self.ranks.average_moved()
            self.ranks.lead(lambda: self.module.export_model_for_inferencing(path, names))
