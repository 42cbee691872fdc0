"""The optimizer, and a schedule for its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array, Bytes
from engine.base.element_types import NUMPY
from engine.base.errors import CheckpointError, InputError, NonFiniteError, ShapeError, StateError
from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.checkpoint.storage import OptimizerGroup
from engine.plan.plan import Plan
from engine.plan.states import StateLayout
from engine.runtime.arena import allocate, make_view
from engine.runtime.program import BoundProgram
from engine.training import artifact_set
from engine.training.model import Model
from engine.training.model_file import ModelSource
from engine.training.module import Module
from engine.training.plan_cache import Records
from engine.training.settings import SKIP_LIMIT
from engine.training.state import GROUP, CheckpointState, PendingStep

DEFAULT_LEARNING_RATE = 0.001
ADVICE = (
    "A lower learning rate, a warm-up of the schedule or clip_grad= of the optimizer often helps"
)


@check_arguments(skip_limit=AT_LEAST_0)
class Optimizer:
    """Updates the trainable parameters of a module from their gradients.

    The module's `CheckpointState` keeps the optimizer's state (moments, step, learning rate), which
    `save_checkpoint(..., include_optimizer_state=True)` saves.

    Args:
        optimizer_uri: path or bytes of optimizer_model.onnx.
        module: the module whose parameters are updated.
        skip_nonfinite: skip the update if a gradient is NaN or infinite, even if the model was made
            without this option of its optimizer.  Steps that scale their loss always do so.  A
            skipped step leaves parameters, moments, running statistics and the step count as they
            are, and adds to `skipped`.
        skip_limit: how many steps in a row may be skipped.

    Attributes:
        module: the module whose parameters are updated.
        session: the session of the module, for the package itself.
        model: the optimizer model.

    Raises:
        ModelError: the model is not an optimizer model of a known kind, or belongs to another set
            of artifacts than a file next to it.
        CheckpointError: the checkpoint's optimizer state does not fit.
        InputError: skip_limit is negative.
    """

    def __init__(
        self,
        optimizer_uri: ModelSource,
        module: Module,
        *,
        skip_nonfinite: bool = False,
        skip_limit: int = SKIP_LIMIT,
    ) -> None:
        self.module, self.session, self._state = module, module.session, module.session.state
        self._skip_limit = skip_limit
        self._skipped_in_a_row = self._without_remedy = 0
        self.model = self._open(optimizer_uri)
        self._digest = self.model.digest
        mine, state, train = self.model, self._state, self.session.training
        artifact_set.check(mine.source, mine.artifacts, train.source, train.artifacts)
        artifact_set.check(mine.source, mine.artifacts, state.path, state.artifacts)
        self.model.lay_out_states()  # raises an error if the model does not fit
        if skip_nonfinite or self.session.memory.scaling:
            self.model = self.model.make_skipping()
        self._skips = self.model.skips_updates()
        self._latest = self._restore()
        rate = self._state.learning_rate
        self._rate = DEFAULT_LEARNING_RATE if rate is None else rate
        self._program: BoundProgram | None = None
        self._layout: StateLayout | None = None
        if state.trained_by.models:
            state.trained_by = replace(state.trained_by, optimizer=mine.artifacts.optimizer)
        if self._state.loaded:
            self._allocate()

    def __repr__(self) -> str:
        return f"Optimizer({self.steps:,} steps done, learning rate {self._rate:g})"

    def _open(self, source: ModelSource) -> Model:
        """Return an optimizer model over the state of the module."""
        memory, threads = self.session.memory, self.module.threads
        what = "optimizer model"
        return Model(source, self._state, memory, threads, what, records=Records)

    @property
    def digest(self) -> str:
        """The digest of the optimizer model's file."""
        return self._digest

    @property
    def skips_nonfinite(self) -> bool:
        """True if a step skips its update when a gradient is NaN or infinite."""
        return self._skips

    @property
    def skipped(self) -> int:
        """The number of steps skipped in total, including those before a checkpoint."""
        return self._state.skipped

    @property
    def skipped_in_a_row(self) -> int:
        """The number of steps skipped since the last step that was done."""
        return self._skipped_in_a_row

    def _restore(self) -> OptimizerGroup:
        """Return the optimizer group of the checkpoint, or a new group without states."""
        self._state.settle()
        groups = self._state.groups
        if len(groups) > 1 or (groups and groups[0].name != GROUP):
            raise CheckpointError(
                f"the checkpoint has optimizer groups {[g.name for g in groups]}; one group "
                f"{GROUP!r} is supported"
            )
        return groups[0] if groups else OptimizerGroup(GROUP, 0, DEFAULT_LEARNING_RATE, {})

    def _allocate(self) -> None:
        """Make region state, and fill it from the checkpoint or with the initial values.

        If the states of the checkpoint already lie in memory as in the region, that memory becomes
        the region.
        """
        state, layout = self._state, self.model.lay_out_states()
        saved = self._latest.states
        self._check(saved, layout)
        memory, state.moments = state.moments, None
        if memory is None or not _lies_in(memory, saved, layout):
            memory = allocate(layout.nbytes, what="optimizer state")
        views: dict[str, dict[str, Array]] = {name: {} for name in state.trainable_names()}
        for k, (row, tensors) in enumerate(zip(layout.states, layout.tensors, strict=True)):
            for name, t in tensors.items():
                kept = views[name][f"momentum{k}"] = make_view(memory, t.offset, t.dtype, t.shape)
                if name not in saved:
                    if row.initial:
                        kept[...] = row.initial
                elif not np.may_share_memory(kept, saved[name][f"momentum{k}"]):
                    kept[...] = saved[name][f"momentum{k}"]
        state.regions["state"] = memory
        self._latest = self._count_steps(self._latest, views)
        state.pending = None
        state.groups, state.learning_rate = [self._latest], self._rate

    def _count_steps(
        self, saved: OptimizerGroup, states: Mapping[str, Mapping[str, Array]]
    ) -> OptimizerGroup:
        """Return a group with these states of all parameters, counting the steps of each.

        A parameter without saved states has had no steps.
        """
        before = {
            name: saved.steps_before.get(name, 0) if name in saved.states else saved.step
            for name in states
        }
        before = {name: steps for name, steps in before.items() if steps}
        if before != self._latest.steps_before:
            self._layout = self._program = None
        return replace(saved, states=states, steps_before=before)

    def _check(self, saved: Mapping[str, Mapping[str, Array]], layout: StateLayout) -> None:
        """Check that the states of the checkpoint belong to this optimizer.

        Raises:
            CheckpointError, ShapeError: they do not.
        """
        names = self._state.trainable_names()
        moments = [f"momentum{k}" for k in range(len(layout.states))]
        for name, values in saved.items():
            if name not in names or set(values) != set(moments):
                raise CheckpointError(
                    f"optimizer state of {name!r} has {sorted(values)}; this optimizer keeps "
                    f"{moments} for {names}"
                )
            for moment, tensors in zip(moments, layout.tensors, strict=True):
                value, expected = values[moment], tensors[name]
                dtype = np.dtype(NUMPY[expected.dtype])
                if value.shape != expected.shape or value.dtype != dtype:
                    raise ShapeError(
                        f"optimizer state {moment} of {name!r} is {value.dtype}{list(value.shape)} "
                        f"in the checkpoint; expected {dtype}{list(expected.shape)}"
                    )

    @property
    def _group(self) -> OptimizerGroup:
        """The optimizer group with the number of steps done, including the last one."""
        self._state.settle()
        group = self._state.groups[0] if self._state.groups else None
        if group is not None and group.states is self._latest.states:
            self._latest = group
        return self._latest

    def layout(self) -> StateLayout:
        """Return where the states lie in region state, which is allocated if necessary.

        Raises:
            StateError: a nominal state has no values yet.
        """
        if not self._state.loaded:
            raise StateError(
                "the state was made from a nominal checkpoint. "
                "Please load the model parameters first."
            )
        if "state" not in self._state.regions:
            self._allocate()
        if self._layout is None:
            own = self._latest.steps_before
            self._layout = replace(self.model.lay_out_states(), steps_before=own)
        return self._layout

    def step(self) -> None:
        """Update the parameters from the accumulated gradients.  The gradients stay as they are.

        A step that is skipped because gradients are not finite has no effect: running statistics
        return to their values before the steps that computed these gradients.

        Raises:
            StateError: a nominal state has no values yet, another Optimizer was made for it, the
                gradients of the last step were not kept, or a signal handler calls this inside
                another step.
            NonFiniteError: more than `skip_limit` steps in a row were skipped.
        """
        self.advance()
        self.check_skipped()

    def advance(self) -> None:
        """Do what `step` does, no matter how many steps were skipped."""
        if self._state.gradients_gone:
            raise StateError("the last step kept no gradients: there is nothing to update from")
        with self.session.memory.lock.take():
            program, state = self.make_ready(), self._state
            (flag,) = program.outputs.values()
            flag[...] = False
            # An interrupt may come at any moment.  The flag then shows whether the step was done.
            state.pending = PendingStep(flag, self.after_step(), state.draws)
            program.run()
            state.settle()
            was_done = bool(flag.all())
            self.session.settle_statistics(was_done=was_done)
            self.count(was_done)

    def count(self, was_done: bool) -> None:
        """Count a finished step, if steps may be skipped; was_done: it was not skipped."""
        if not self._skips:
            return
        scaling, state, is_lowered = self.session.memory.scaling, self._state, False
        if scaling is not None and scaling.interval:
            before = scaling.find_factor(state.loss_scale)
            state.loss_scale, state.good_steps = scaling.count(
                state.loss_scale, state.good_steps, was_done=was_done
            )
            is_lowered = state.loss_scale < before
        self._skipped_in_a_row = 0 if was_done else self._skipped_in_a_row + 1
        self._without_remedy = 0 if was_done else self._without_remedy + (not is_lowered)
        self._state.skipped += not was_done

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in the next step; None if the loss is not scaled."""
        scaling = self.session.memory.scaling
        return None if scaling is None else scaling.find_factor(self._state.loss_scale)

    @property
    def is_over_limit(self) -> bool:
        """True if more than `skip_limit` steps in a row were skipped.

        Skipped steps that lowered the loss scale do not count.
        """
        return self._without_remedy > self._skip_limit

    def check_skipped(self) -> None:
        """Check that no more steps in a row were skipped than allowed.

        Raises:
            NonFiniteError: there were more.
        """
        if self.is_over_limit:
            raise NonFiniteError(
                f"{self.describe_skipped()}, because gradients were not finite "
                f"(skip_limit={self._skip_limit}); these updates changed no parameters.  "
                f"find_nonfinite(batch) of Module and Trainer names the first node.  {ADVICE}"
            )

    def describe_skipped(self) -> str:
        """Return text on how many updates in a row were skipped, and with which loss scale."""
        scale = self.loss_scale
        told = "" if scale is None else f", the last one with a loss scale of {scale:,g}"
        return f"{self._skipped_in_a_row} updates in a row were skipped{told}"

    def make_ready(self) -> BoundProgram:
        """Return the program of the update with its inputs set for the next step.

        The caller must hold the lock.

        Raises:
            StateError: as for `step`.
        """
        if self._program is None:
            layout = self.layout()
            self._program = self.model.load(self.model.plan_update(layout))
        group = self.after_step()
        self._program.inputs["step"][0] = group.step
        self._program.inputs["learning_rate"][0] = self._rate
        return self._program

    def plan(self) -> Plan:
        """Return the plan of the update as a separate plan."""
        return self.model.plan_update(self.layout())

    def after_step(self) -> OptimizerGroup:
        """Return the optimizer group as it will be after the next step.

        Raises:
            StateError: another Optimizer was made for the state.
        """
        group = self._group
        if group not in self._state.groups:
            raise StateError(
                "another Optimizer was made for this state and has taken over its moments: "
                "step that one"
            )
        return replace(group, step=group.step + 1)

    def restore(self, saved: CheckpointState) -> None:
        """Restore the optimizer state of another checkpoint, which may have none.

        The parameters do not change.

        Raises:
            CheckpointError, ShapeError: the state belongs to another optimizer.  Nothing changes.
            StateError: a nominal state has no values yet.
        """
        with self.session.memory.lock.take():
            layout = self.layout()
            groups = saved.groups or [OptimizerGroup(GROUP, 0, DEFAULT_LEARNING_RATE, {})]
            self._check(groups[0].states, layout)
            for k, row in enumerate(layout.states):
                for name in layout.tensors[k]:
                    kept = self._latest.states[name][f"momentum{k}"]
                    moments = groups[0].states.get(name)
                    kept[...] = row.initial if moments is None else moments[f"momentum{k}"]
            self._latest = self._count_steps(groups[0], self._latest.states)
            self._state.pending, self._state.groups = None, [self._latest]
            self._state.skipped, self._skipped_in_a_row = saved.skipped, 0
            self._state.loss_scale, self._state.good_steps = saved.loss_scale, saved.good_steps
            self._without_remedy = 0
        rate = saved.learning_rate
        self.set_learning_rate(DEFAULT_LEARNING_RATE if rate is None else rate)

    @property
    def steps(self) -> int:
        """The number of steps done, including those before a checkpoint."""
        return self._group.step

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next steps.

        Raises:
            DTypeError: it is not a number.
            InputError: it is negative, NaN, infinite, or too large for float32.
        """
        self._rate = self._state.learning_rate = _check_rate("learning rate", learning_rate)

    def get_learning_rate(self) -> float:
        """Return the learning rate, which is 0.001 until it is set or a checkpoint restores it."""
        return self._rate


def _check_rate(what: str, value: float) -> float:
    """Return a learning rate rounded to float32.

    Raises:
        DTypeError, InputError: as `Optimizer.set_learning_rate`.
    """
    rate = arguments.check_number(what, value)
    if rate < 0:
        raise InputError(f"{what} {rate:g} is negative: give a number of at least 0")
    return rate


def _lies_in(memory: Bytes, saved: Mapping[str, Mapping[str, Array]], layout: StateLayout) -> bool:
    """Return whether the states of a checkpoint already lie in `memory` as in the layout."""
    base = memory.ctypes.data
    return memory.nbytes == layout.nbytes and all(
        name in saved and saved[name][f"momentum{k}"].ctypes.data == base + t.offset
        for k, tensors in enumerate(layout.tensors)
        for name, t in tensors.items()
    )


@check_arguments
class LinearLRScheduler:
    """Learning rate that rises linearly from 0, then falls linearly to 0.

    At optimizer step s: `initial_lr * s / warmup` for s < warmup, then
    `initial_lr * (total - s) / (total - warmup)`, never below 0.  Constructing it sets the rate for
    the optimizer's current step, so it continues from the step of a restored optimizer.

    Args:
        optimizer: the optimizer whose learning rate is set.
        warmup_step_count, total_step_count: in optimizer steps.
        initial_lr: the peak rate.

    Raises:
        InputError: a negative count, a warm-up longer than the total, a total of 2^31 or more, or a
            peak rate that `Optimizer.set_learning_rate` refuses.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
    ) -> None:
        if not 0 <= warmup_step_count <= total_step_count < 1 << 31:
            raise InputError(
                f"warmup_step_count={warmup_step_count}, total_step_count={total_step_count}: "
                "expected 0 <= warm-up <= total < 2^31"
            )
        self._optimizer, self._initial = optimizer, _check_rate("initial_lr", initial_lr)
        self._warmup, self._total = warmup_step_count, total_step_count
        self.step()

    def __repr__(self) -> str:
        return (
            f"LinearLRScheduler(warmup_step_count={self._warmup}, total_step_count={self._total}, "
            f"initial_lr={self._initial:g})"
        )

    def step(self) -> None:
        """Set the learning rate for the optimizer's next step."""
        s = self._optimizer.steps
        if s < self._warmup:
            part, whole = s, self._warmup
        else:
            part, whole = max(0, self._total - s), max(1, self._total - self._warmup)
        factor = np.float32(part) / np.float32(whole)  # as libraries of builds compute it
        self._optimizer.set_learning_rate(float(np.float32(self._initial) * factor))
