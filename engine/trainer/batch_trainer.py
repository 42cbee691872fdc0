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

from engine.base.errors import InputError, NonFiniteError, StateError
from engine.base.signatures import ABOVE_0, Range, check_arguments
from engine.distributed.group import RankGroup
from engine.trainer.learner import Array, Path, TrainingModels
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
        artifacts: Path,
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
        self.forward: onnx.ModelProto | Path | bytes | None = None
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
        """The arguments that the artifacts were made with, besides the model; None if unknown.

        Raises:
            CheckpointError: the trainer was made of a run whose recipe is damaged.
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
        """The parameters and all that the optimizer keeps."""
        return self.learner.state

    @property
    def module(self) -> Module:
        """The training and the eval model."""
        return self.learner.module

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer; None if the artifacts have none."""
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
        """Names of the inputs of a training step."""
        return self.learner.inputs

    @property
    def outputs(self) -> list[str]:
        """Names of the model's outputs."""
        return self.learner.outputs

    @outputs.setter
    def outputs(self, names: Sequence[str]) -> None:
        self.learner.outputs = list(names)

    @property
    def features(self) -> list[str]:
        """Names of the inputs that `predict` takes."""
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
        """The number of updates done, including those before a checkpoint."""
        return self.learner.steps

    @property
    def skips_nonfinite(self) -> bool:
        """True if an update is skipped when a gradient is NaN or infinite."""
        return self.learner.skips_nonfinite

    @property
    def skipped(self) -> int:
        """The number of updates skipped, including those before a checkpoint."""
        return self.learner.require_optimizer().skipped

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in the next step; None if it is not scaled."""
        return None if self.optimizer is None else self.optimizer.loss_scale

    def take_over(self, folder: Path) -> None:
        """Continue with other artifacts of the same model, as where more of it is to be trained.

        Everything comes from the artifacts and the checkpoint among them; the names of the outputs,
        the threads and the seed stay.

        Raises:
            EngineError: as the constructor.  Nothing has changed.
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
        """Compute the loss of a batch, and add its gradients to those since the last `update`.

        Raises:
            InputError, DTypeError, ShapeError: the batch does not fit, naming the input.
            LabelError: a class label is out of range.  No gradient and no running statistic has
                changed, on no rank of a group.
            GroupError: the share of another rank is refused; likewise.
        """
        if self.ranks is not None:
            return self.ranks.accumulate(self.ranks.share(self.learner.check_arrays(batch)))
        learner = self.learner
        return learner.add_batch(learner.make_arrays(learner.session.training, batch))

    def update(self) -> None:
        """Update the parameters from the mean gradient of the batches since the last update.

        Raises:
            StateError: there is no optimizer, or no batch since the last update.
            NonFiniteError: more updates in a row were skipped than `skip_limit`.
        """
        self.learner.advance()
        self.learner.require_optimizer().check_skipped()

    def drop_gradients(self) -> None:
        """Forget the batches that were accumulated since the last update.

        Running statistics keep what they have of them.
        """
        self.learner.drop_gradients()

    def refuse_gradients(self) -> None:
        """Drop the gradients, and put running statistics back to before these batches."""
        self.learner.refuse_gradients()

    def step(self, *batch: Any) -> float:
        """Learn from one batch; returns its loss, as it was before the update.

        Raises:
            EngineError: as `accumulate` and `update`.
            StateError: batches have been accumulated that no update has taken.
            NonFiniteError: the module's `check_finite` is set, and the loss is not finite; or more
                updates in a row were skipped than `skip_limit`.
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
        """Do a step with the inputs of the training model, on all ranks; returns the loss."""
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
        """Search for a learning rate by steps at rising rates; the trainer stays as it was.

        Args:
            data: what `engine.data.batches` takes, or a path, as in `fit`.
            batch_size: the batch size for data without batches; by default as in `fit`.
            lowest, highest: the rates of the first and the last step.
            steps: how many, at most: a loss far above the lowest one ends the search.
            seed: the seed of the order of the samples.

        Returns:
            RateSearch: rates and losses, `suggestion`, and `plot()`; notebooks show the picture.

        Raises:
            StateError: there is no optimizer, or accumulated batches wait for an update.
            EngineError: as `step` and `batches`.
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

        return find(self.training_steps, batch)

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
        from engine.trainer.dry_run import run_dry

        return run_dry(self.learner, batch, memory_budget, variants)

    def summary(self, *batch: Any) -> Summary:
        """Return the layers, parameters, memory and cost of a step; nothing is run.

        The result prints as a table; `rows` and `to_dict` are its numbers.

        batch: as `check` takes it, to plan a step for; without it memory and flops belong to the
            last step, if there was one.

        Raises:
            InputError, DTypeError: the batch does not fit.
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
        """The plan of the last step; before the first one, where the model fixes all shapes.

        Raises:
            StateError: there was no step yet, or there is no optimizer.
            EngineError: as `plan_of`.
        """
        return self.training_steps.get_last()

    @property
    def obstacle(self) -> str:
        """Why steps are two plans, of the training model and of the optimizer model, and not one.

        It is empty if they are one, or none has been planned yet.
        """
        return self.training_steps.obstacle

    def plan_of(self, *batch: Any) -> StepPlan:
        """Plan a step on such a batch; nothing is trained.

        Raises:
            BudgetError: no plan for it keeps to the memory budget.
            StateError: there is no optimizer.
            EngineError: as `step` where the batch does not fit.
        """
        self.learner.require_optimizer()
        return self.training_steps.plan([array.shape for array in self.learner.check_arrays(batch)])

    # --- evaluation

    @property
    def ignore_index(self) -> int:
        """The target of positions that metrics leave out: as in the loss, or -100."""
        index = self._get_of_loss("ignore_index")
        return -100 if index is None else int(index)

    @property
    def threshold(self) -> float | None:
        """The output above which a sample has a label; None unless it may have several."""
        value = self._get_of_loss("threshold")
        return None if value is None else float(value)

    def _get_of_loss(self, name: str) -> Any:
        """Return an attribute of the loss; None if the loss is not known, or has none."""
        if name in self.kept:
            return self.kept[name]
        return None if self.recipe is None else getattr(self.recipe.named_loss, name, None)

    def make_metrics(self, given: Sequence[Given] | Given) -> list[Metric]:
        """Return metrics; those given by name leave out and decide as the loss does.

        Raises:
            InputError, DTypeError: as `engine.trainer.metrics.metrics_of`.
        """
        from engine.trainer.metrics.named import check_named, metrics_of

        metrics = metrics_of(given, self.ignore_index, self.threshold)
        check_named(metrics, self.learner.part_names)
        return metrics

    @property
    def data_description(self) -> DataDescription | None:
        """Facts of the data of the last training, such as their classes; None if there was none."""
        return self.learner.data_description

    def evaluate_batch(self, *batch: Any) -> tuple[float, dict[str, Array]]:
        """Compute the loss of a batch and the model's outputs by name; nothing is learned.

        Raises:
            InputError, DTypeError, ShapeError, LabelError: as `accumulate`.
        """
        losses, outputs = self.learner.evaluate_batch(batch)
        return losses[0], outputs

    def predict_batch(self, *features: Any) -> dict[str, Array]:
        """Compute the model's outputs by name for one batch of `features`.

        Raises:
            InputError, DTypeError, ShapeError: the batch does not fit, naming the input.
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
        """Compute the loss over all samples of some data, and metrics, by name; nothing is learned.

        Args:
            data: what `engine.data.batches` takes; the path of a folder, or its split
                `test` if it is divided; or a DataFrame, if the trainer has learned from
                one.  Both are prepared as the training data.
            batch_size: the batch size for data without batches; by default as in `fit`.
            metrics: see `engine.trainer.metrics`.
            each: is called after every batch.

        Raises:
            InputError: there are no samples, or several metrics have one name.
            EngineError: as `evaluate_batch`, `batches` and the metrics.
        """
        from engine.trainer.evaluation import evaluate
        from engine.trainer.places import open_labelled

        chosen = self.make_metrics(metrics)
        known = () if self.data_description is None else self.data_description.classes
        classes = list(known or self.classes or ()) or None
        source = open_labelled(self.learner, data)
        return evaluate(self.learner, self.ranks, source, batch_size, chosen, each, classes)

    def session(self, model: str | os.PathLike[str] | bytes | None = None) -> Session:
        """Return a session that answers with the parameters as they are at each call.

        It copies no parameter, and uses the memory of this trainer: answers wait for the step that
        another thread of Python runs.

        Args:
            model: another model with the same parameters, such as a decoder with caches: a path or
                bytes.  Its initializers of the same names take the trained values.

        Raises:
            InputError, ShapeError, DTypeError: its initializers do not fit the parameters.
            FileError, ModelError, UnsupportedOpError: it cannot be read.
        """
        return self.learner.make_session(model)

    @overload
    def predict(self, data: str | os.PathLike[str], *, batch_size: int | None = None) -> Any: ...
    @overload
    def predict(self, data: Any, *, batch_size: int | None = None) -> Array | tuple[Array, ...]: ...
    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """Compute the model's output for all samples of some data, or a tuple of its outputs.

        Args:
            data: what `engine.data.batches` takes; targets in it are left out.  For the path of a
                file or a folder, or a list of paths, a list with a row for each file is returned:
                `file`, and `class`, `probability` and `probabilities`; `mask` and `shares`; or
                `values`.  After a training run on labelled texts, a list of texts has such rows as
                well.
            batch_size: the batch size for data without batches; by default as in `fit`.
                A smaller last batch is padded if the model's file fixes the number of samples.

        Raises:
            InputError: there are no samples.
            ShapeError: an output has no axis of samples, so that batches cannot be joined.
            EngineError: as `predict_batch` and `batches`.
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

    def save(self, path: Path) -> None:
        """Write a checkpoint, from which a trainer of these artifacts goes on as this one would.

        It holds parameters, what the optimizer keeps, the learning rate and how far the random
        numbers are.  A crash leaves the old file or the new one.  `CheckpointState` and
        onnxruntime-training read it.

        Raises:
            FileError: it cannot be written; the old one is as it was.
        """
        if self.ranks is None:
            self.learner.write_checkpoint(path)
        else:
            self.ranks.average_moved()
            self.ranks.check_same()
            self.ranks.lead(lambda: self.learner.write_checkpoint(path))

    def load(self, path: Path) -> None:
        """Go on from a checkpoint that a trainer of these artifacts has saved.

        path: its file; or the folder of a run, whose best checkpoint is taken, or of one of its
            checkpoints.  From a folder come the averaged parameters, if the run has used them.

        Raises:
            FileError: it cannot be read.
            CheckpointError, ShapeError, DTypeError: it is not a checkpoint, or one of another
                model or optimizer.  Nothing has changed.
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

    def export(self, path: Path, outputs: Sequence[str] | None = None) -> None:
        """Write the model as plain ONNX for inference, with the parameters as they are now.

        outputs: by default all outputs of the model.

        Raises:
            FileError: the file cannot be written.
            NameNotFoundError: the model has no value of such a name.
        """
        names = self.outputs if outputs is None else list(outputs)
        if self.ranks is None:
            self.module.export_model_for_inferencing(path, names)
        else:
            self.ranks.average_moved()
            self.ranks.lead(lambda: self.module.export_model_for_inferencing(path, names))
