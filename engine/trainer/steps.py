"""The step of a trainer on one batch: as one plan, as two plans, or in parts.

One plan for training and update is the rule.  An optimizer model that cannot be joined runs as a
plan of its own, and so it does where gradients of parts are added, see parts.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.base.aliases import Array
from engine.base.errors import BudgetError, InputError, StateError
from engine.trainer.parts import Splitter
from engine.trainer.step_plan import StepPlan
from engine.training.joined import JoinedStep
from engine.training.planning import NotJoinableError
from engine.training.settings import StepOptions

if TYPE_CHECKING:
    from engine.runtime.program import BoundProgram
    from engine.trainer.learner import TrainingModels

Shapes = Sequence[tuple[int, ...]]


class Steps:
    """The steps of a trainer, and their plans by the shapes of a batch.

    shapes: the shapes of the last batch's inputs; before the first, those that the model fixes, or
        None if it leaves a size open.
    splitter: trains on batches in parts.
    obstacle: why steps are two plans and not one; empty if they are one, or none was planned yet.
    """

    def __init__(self, learner: TrainingModels, options: StepOptions) -> None:
        self.learner, self._micro_batches = learner, options.micro_batches
        self.splitter = Splitter(learner, options.own_statistics)
        self._counts: dict[tuple[tuple[int, ...], ...], int] = {}  # of parts, by shapes
        self.shapes: list[tuple[int, ...]] | None = None
        self.obstacle = ""

    @property
    def parts(self) -> list[Any] | None:
        """The settings micro_batches and own_statistics; None if only a budget parts batches."""
        own = self.splitter.own_statistics
        return [self._micro_batches, own] if self._micro_batches or own else None

    def forget(self) -> None:
        """Forget what is known of the models that the trainer had."""
        self._counts.clear()
        self.splitter.forget()
        vars(self).pop("_joined", None)
        self.obstacle = ""

    def learn(self, arrays: Sequence[Array], *, check_finite: bool) -> float:
        """Do one step with a batch, whose loss may be any number; returns it.

        arrays: the inputs of the training model, checked.
        check_finite: whether a loss that is not finite holds the update back; gradients decide
            where the optimizer skips updates.

        Raises:
            EngineError: as `Trainer.step`.
        """
        learner = self.learner
        check_finite = check_finite and not learner.skips_nonfinite
        self.shapes = [array.shape for array in arrays]
        count = self.count(self.shapes)
        if count > 1:
            loss = self.splitter.compute_gradients(arrays, count)
            learner.pending = 1
        elif not self.obstacle:
            return learner.read_loss(self._joined.run(arrays, check_finite=check_finite))
        else:
            loss = learner.add_batch(arrays)
        if check_finite and not math.isfinite(loss):
            learner.refuse_gradients()
        else:
            learner.advance()
        return loss

    def compute_gradients(self, arrays: Sequence[Array]) -> float:
        """Put the gradients of a batch into region grad; returns its loss.

        Raises:
            EngineError: as `Module.__call__`, and where the budget is too small.
        """
        count = self.count([array.shape for array in arrays])
        if count > 1:
            return self.splitter.compute_gradients(arrays, count)
        module = self.learner.module
        module.lazy_reset_grad()
        return float(module.session.run(module.session.training, arrays)[0].item())

    def get_last(self) -> StepPlan:
        """Return the plan of the last step.

        Raises:
            StateError: there was none, and the model does not fix all shapes.
            EngineError: as `plan`.
        """
        if self.shapes is None:
            raise StateError("there was no step yet: plan_of(*batch) has the plan for a batch")
        return self.plan(self.shapes)

    def plan(self, shapes: Shapes) -> StepPlan:
        """Return the plan of a step for these shapes of the inputs.

        Raises:
            BudgetError: no plan for them keeps to the memory budget.
            StateError: there is no optimizer.
        """
        learner, obstacle = self.learner, ""
        optimizer, module = learner.require_optimizer(), learner.module
        count = self.count(shapes)
        with module.session.memory.lock.take():
            if count > 1:
                obstacle = f"a batch is trained on in {count} parts"
                program = self.splitter.get_program(shapes, count)
            else:
                program, obstacle = self.get_whole_program(shapes), self.obstacle
            update = optimizer.plan() if obstacle else None
            paths, budget = module.session.training.paths, learner.memory_budget
            return StepPlan(program.plan, update, obstacle, budget, count, paths)

    def get_program(self, shapes: Shapes) -> BoundProgram:
        """Return the program last run for these shapes; the caller must hold the lock."""
        if self.learner.state.gradients_gone:
            return self._joined.get_program(shapes)
        return self.learner.session.training.get_program(shapes)

    @cached_property
    def _joined(self) -> JoinedStep:
        """The training step as one plan."""
        return JoinedStep(self.learner.module, self.learner.require_optimizer())

    def count(self, shapes: Shapes) -> int:
        """Return the number of parts in which a batch is trained on, and make the plan for that.

        Raises:
            BudgetError: no number of parts keeps to the budget, or the batch cannot be parted.
        """
        key = tuple(shapes)
        if key not in self._counts:
            if self._micro_batches is not None and self._micro_batches > 1:
                self._counts[key] = min(self._micro_batches, self.splitter.count_samples(shapes))
            else:
                try:
                    self._counts[key] = self._find_least_count(shapes)
                except BudgetError as error:
                    from engine.trainer.dry_run import add_advice

                    raise add_advice(self.learner, shapes, error) from None
        return self._counts[key]

    def _find_least_count(self, shapes: Shapes) -> int:
        """Count the parts where the budget alone decides: halve a batch until its parts fit."""
        module = self.learner.module
        with module.session.memory.lock.take():
            try:
                self.get_whole_program(shapes)
                return 1
            except BudgetError as error:
                refused = error
            try:
                samples, _ = self.splitter.count_rows(shapes)
                self.splitter.find_loss(shapes)
            except InputError as reason:
                raise refused.add_advice(str(reason)) from None
            size = samples
            while size > 1:
                size = -(-size // 2)
                count = -(-samples // size)
                try:
                    self.splitter.get_program(shapes, count)
                    return count
                except BudgetError as error:
                    refused = min(refused, error, key=lambda e: e.least)
        raise refused

    def get_whole_program(self, shapes: Shapes) -> BoundProgram:
        """Return the program of a step on a whole batch; the caller must hold the lock."""
        if not self.obstacle:
            try:
                return self._joined.get_program(shapes)
            except NotJoinableError as error:
                self.obstacle = str(error)
        return self.learner.session.training.get_program(shapes)
