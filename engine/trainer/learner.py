"""Learner: a model with its parameters and its optimizer, opened from artifacts.

It holds a `Module` and an `Optimizer` of `engine.api` and adds what they leave to the caller: the
inputs of a batch, the values that are the model's outputs, and the mean over accumulated batches.
How a step is planned, parted and divided over ranks is built on it, see steps.py, parts.py and
ranks.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.base.aliases import Array, StrPath
from engine.base.errors import CheckpointError, FileError, ShapeError, StateError
from engine.system.files import SHARES, is_inside
from engine.trainer.inputs import make_arrays
from engine.training import artifact_set
from engine.training.module import Module
from engine.training.optimizer import Optimizer
from engine.training.settings import StepOptions
from engine.training.state import CheckpointState

if TYPE_CHECKING:
    from engine.data.dataset import Dataset
    from engine.data.description import DataDescription
    from engine.training import inference
    from engine.training.model import Model
    from engine.training.session import ModuleSession


class TrainingModels:
    """The models of a folder of artifacts, over one state.

    Args:
        folder: the folder of the artifacts.
        prefix: the prefix of their names.
        options: the options of the steps.

    Attributes:
        module, optimizer, state: see `engine.api`; the optimizer is None if there is no optimizer
            model.
        inputs: names of the inputs of a training step.
        digests: the digests of the training model and the optimizer model.
        part_names: the names of the losses of several outputs; empty for a single loss.
        parts: their values for the last batch; of the share of this rank.
        pending: how many batches have gradients that the next update takes.
        sum_gradients: adds the gradients of other ranks before an update; None if there are none.
        data_description: facts of the data of the last training; None before the first.
        opened: the dataset of the path that the training was given.

    Raises:
        EngineError: as the constructors of these.
    """

    def __init__(self, folder: StrPath, prefix: str, options: StepOptions) -> None:
        self.options, self.folder, self.prefix = options, os.fspath(folder), prefix
        if not os.path.isdir(self.folder):
            raise FileError(
                f"artifacts {self.folder!r}: no such folder; generate_artifacts and "
                "`edgegrad artifacts` make one of a forward model"
            )
        self._open(os.path.join(self.folder, prefix), options.threads, options.seed)
        self.digests = [
            self.session.training.digest,
            getattr(self.optimizer, "digest", ""),
        ]
        self.inputs = list(self.session.training.inputs)
        noted = self.session.training.interface.notes.get("losses")
        self.part_names: list[str] = [] if noted is None else json.loads(noted)
        self.parts: list[float] = []
        self.sum_gradients: Callable[[], None] | None = None
        self.data_description: DataDescription | None = None
        self.opened: Dataset | None = None

    def _open(self, base: str, threads: int | None, seed: int | None) -> None:
        """Open artifacts; base: the beginning of their paths."""
        options, self.state = (
            self.options,
            CheckpointState.load_checkpoint(base + artifact_set.CHECKPOINT),
        )
        evaluation, optimizer = base + artifact_set.EVALUATION, base + artifact_set.OPTIMIZER
        self._sharing: dict[StrPath | bytes, Model] = {}
        self.module = Module(
            base + artifact_set.TRAINING,
            self.state,
            evaluation if os.path.exists(evaluation) else None,
            threads=threads,
            seed=seed,
            precision=options.precision,
            loss_scale=options.loss_scale,
            growth_interval=options.growth_interval,
        )
        self.session.memory.planning = options.planning
        self.optimizer: Optimizer | None = None
        if os.path.exists(optimizer):
            self.optimizer = Optimizer(
                optimizer,
                self.module,
                skip_nonfinite=options.skip_nonfinite,
                skip_limit=options.skip_limit,
            )
            if self.skips_nonfinite:
                self.module.check_finite = False
        self.pending = 0
        self.module.lazy_reset_grad()

    def reopen(self, folder: StrPath) -> None:
        """Continue with other artifacts of the same model; threads, seed and outputs stay.

        Raises:
            EngineError: as the constructor.  Nothing has changed.
        """
        before, outputs = dict(vars(self)), self.outputs
        try:
            self._open(os.path.join(folder, ""), self.module.threads, self.session.seed)
        except BaseException:
            vars(self).update(before)
            raise
        for name in ("evaluation", "prediction", "answering"):  # of the models before
            vars(self).pop(name, None)
        self.outputs = outputs

    @property
    def session(self) -> ModuleSession:
        """The models that steps run, and the memory that they share."""
        return self.module.session

    @property
    def memory_budget(self) -> int | None:
        """The memory limit for the plan of a step, in bytes; None for no limit."""
        return self.options.planning.budget

    def require_optimizer(self) -> Optimizer:
        """Return the optimizer.

        Raises:
            StateError: there is none.
        """
        if self.optimizer is None:
            raise StateError(f"the artifacts in {self.folder!r} have no {artifact_set.OPTIMIZER}")
        return self.optimizer

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update.

        Raises:
            StateError: there is no optimizer.
        """
        return self.require_optimizer().get_learning_rate()

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.require_optimizer().set_learning_rate(rate)

    @property
    def steps(self) -> int:
        """The number of updates done, including those before a checkpoint."""
        return self.require_optimizer().steps

    @property
    def skips_nonfinite(self) -> bool:
        """True if an update is skipped when a gradient is NaN or infinite."""
        return self.optimizer is not None and self.optimizer.skips_nonfinite

    # --- batches and their gradients

    def make_arrays(self, model: Model, batch: Sequence[Any]) -> list[Array]:
        """Return the inputs of a model from a batch, see `engine.trainer.inputs`."""
        return make_arrays(model, batch, self.inputs)

    def check_arrays(self, batch: Sequence[Any]) -> list[Array]:
        """Return the inputs of the training model from a batch, checked."""
        model = self.session.training
        return model.make_arrays(self.make_arrays(model, batch))

    def add_batch(self, arrays: Sequence[Array]) -> float:
        """Add the gradients of a batch to those since the last update; returns its loss.

        arrays: the inputs of the training model.
        """
        loss = self.read_loss(self.session.run(self.session.training, arrays))
        self.pending += 1
        return loss

    def read_loss(self, outputs: Sequence[Array]) -> float:
        """Return the loss among the outputs of the training model; keep the parts that it is of."""
        if self.part_names:
            self.parts = [float(part.item()) for part in outputs[1 : 1 + len(self.part_names)]]
        return float(outputs[0].item())

    def advance(self) -> None:
        """Update the parameters from the mean gradient, however many updates were skipped.

        Raises:
            StateError: there is no optimizer, or no batch since the last update.
        """
        optimizer = self.require_optimizer()
        if not self.pending:
            raise StateError("no batch has been accumulated since the last update")
        if self.sum_gradients is not None:
            self.sum_gradients()
        if self.pending > 1:
            for gradients in self.state.gradients():
                gradients /= self.pending
        optimizer.advance()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget the batches that were accumulated since the last update.

        Running statistics keep what they have of them.
        """
        self.module.lazy_reset_grad()
        self.pending = 0

    def refuse_gradients(self) -> None:
        """Drop the gradients, and put running statistics back to before these batches."""
        self.session.put_back_statistics(whole=True)
        self.drop_gradients()

    # --- evaluation

    def make_measured(self, batch: Sequence[Array]) -> dict[str, Array]:
        """Return the inputs of a batch by name, with classes where the loss takes their shares."""
        inputs = dict(zip(self.inputs, batch, strict=True))
        shares = self.session.training.interface.notes.get(SHARES, "")
        if shares in inputs:
            inputs[shares] = inputs[shares].argmax(1)
        return inputs

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the model's outputs."""
        return self.session.require_eval().list_model_outputs()

    @cached_property
    def evaluation(self) -> Model:
        """The eval model with the loss and the model's outputs."""
        model = self.session.require_eval()
        return model.select([model.outputs[0], *self.part_names, *self.outputs], "evaluation")

    @cached_property
    def prediction(self) -> Model:
        """The eval model with the model's outputs alone."""
        return self.session.require_eval().select(self.outputs, "prediction")

    @cached_property
    def answering(self) -> Model:
        """The model of `prediction` for a session: its plans keep folded and packed weights."""
        return self.session.require_eval().select(self.outputs, "prediction", answers=True)

    @property
    def features(self) -> list[str]:
        """Names of the inputs that `predict` takes."""
        return list(self.prediction.inputs)

    @property
    def compared(self) -> tuple[str, str]:
        """The names of an output and of its target; of several losses the first ones."""
        if not self.part_names:
            return self.outputs[0], self.inputs[-1]
        output = self.part_names[0].removeprefix("loss_")
        targets = [name for name in self.inputs if name.startswith(f"{output}_")]
        return output, targets[-1] if targets else self.inputs[-1]

    def evaluate_batch(self, batch: Sequence[Any]) -> tuple[list[float], dict[str, Array]]:
        """Compute the loss of a batch, then the parts that it is of, and the model's outputs."""
        model, count = self.evaluation, 1 + len(self.part_names)
        values = self.session.run(model, self.make_arrays(model, batch))
        losses = [float(value.item()) for value in values[:count]]
        return losses, dict(zip(self.outputs, values[count:], strict=True))

    def predict_batch(self, features: Sequence[Any]) -> dict[str, Array]:
        """See `Trainer.predict_batch`."""
        model = self.prediction
        values = self.session.run(model, self.make_arrays(model, features))
        return dict(zip(self.outputs, values, strict=True))

    def make_session(self, source: StrPath | bytes | None = None) -> inference.Session:
        """See `Trainer.session`."""
        from engine.training.inference import follow

        if source is None:
            return follow(lambda: (self.answering, self.session.seed))
        return follow(lambda: (self._share_parameters(source), self.session.seed))

    def _share_parameters(self, source: StrPath | bytes) -> Model:
        """Return the model of a file with the parameters of this learner, opened once."""
        from engine.training.inference import open_sharing

        if source not in self._sharing:
            self._sharing[source] = open_sharing(source, self.session.training)
        return self._sharing[source]

    # --- checkpoints

    def list_files(self) -> dict[str, str]:
        """Return the names of the files of the artifacts, each with its name without the prefix."""
        models = [self.session.training, self.session.evaluation]
        kept = {self.prefix + name: name for name in (*artifact_set.NAMES, artifact_set.CHECKPOINT)}
        for interface in (model.interface for model in models if model is not None):
            external = (
                *(large.file for large in interface.large),
                *(name for name, *_ in interface.external),
            )
            kept |= {name: name for name in external if name and is_inside(name)}
        return kept

    def write_checkpoint(self, path: StrPath) -> None:
        """Write a checkpoint of the parameters and of what the optimizer keeps.

        Raises:
            FileError: it cannot be written; the old one is as it was.
        """
        CheckpointState.save_checkpoint(self.state, path, include_optimizer_state=True)

    def read_checkpoint(self, path: StrPath) -> None:
        """Go on from the file of a checkpoint.

        Raises:
            FileError: it cannot be read.
            CheckpointError, ShapeError, DTypeError: as `restore`.
        """
        self.restore(CheckpointState.load_checkpoint(path), repr(os.fspath(path)))

    def restore(self, saved: CheckpointState, file: str) -> None:
        """Go on from the state that a learner of the same artifacts had.

        file: where it comes from, in messages.

        Raises:
            CheckpointError, ShapeError, DTypeError: it is of another model or optimizer.  Nothing
                has changed.
        """
        state = self.state
        names = {name for name, _ in saved.parameters}
        mine = {name for name, _ in state.parameters}
        if names != mine:
            other = sorted(names ^ mine)[0]
            side = "is missing in" if other in mine else "is only in"
            raise CheckpointError(
                f"{file} is a checkpoint of another model: parameter {other!r} {side} "
                f"it ({len(names)} parameters, expected {len(mine)})"
            )
        if not saved.loaded:
            raise CheckpointError(f"{file} is a nominal checkpoint, without values")
        pairs = [(mine, saved.parameters[name]) for name, mine in state.parameters]
        for own, new in pairs:
            if own.requires_grad != new.requires_grad:
                word = "trained" if new.requires_grad else "frozen"
                raise CheckpointError(
                    f"{file} is a checkpoint of other artifacts: parameter {own.name!r} is "
                    f"{word} there"
                )
            if (own.data.shape, own.data.dtype) != (new.data.shape, new.data.dtype):
                raise ShapeError(
                    f"{file}: parameter {own.name!r} is {new.data.dtype}"
                    f"{list(new.data.shape)}, expected {own.data.dtype}{list(own.data.shape)}"
                )
        if self.optimizer is not None:
            self.optimizer.restore(saved)
        for own, new in pairs:
            own.data[...] = new.data
        state.draws = saved.draws
        self.drop_gradients()
