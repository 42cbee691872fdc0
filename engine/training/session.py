"""Session: the models of a module over one state, and the steps that they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import NonFiniteError, StateError
from engine.plan.collective import SHARE
from engine.plan.plan import LOSS_SCALE
from engine.runtime.program import Before, BoundProgram
from engine.training.membership import Membership
from engine.training.memory import Memory
from engine.training.model import Model, open_models
from engine.training.model_file import RESET, ModelSource
from engine.training.state import CheckpointState


class ModuleSession:
    """The training model and the eval model of a module, and the traces of their steps.

    state, memory: the state and the memory that both models share.
    training, evaluation: the two models; `evaluation` may be None.
    seed: the seed of the random numbers in steps; None for the process's seed.
    check_finite: whether a loss that is not finite is an error.
    overwrite: whether the next training step overwrites the gradients instead of adding to them.
    watch: a function that gets the inputs and outputs of every training step, or None.

    Raises:
        ModelError, FileError: as `Module`.
    """

    def __init__(
        self,
        train: ModelSource,
        evaluation: ModelSource | None,
        state: CheckpointState,
        *,
        threads: int,
        check_finite: bool,
        seed: int | None,
        ranks: Membership | None,
    ) -> None:
        from engine.kernels.binaries.source import begin_compiling

        self.state, self.seed, self.check_finite = state, seed, check_finite
        self.memory = Memory()
        begin_compiling()
        self.training, self.evaluation = open_models(train, evaluation, state, self.memory, threads)
        self.training.ranks = ranks
        state.has_module = True
        if state.trained_by.models != self.training.artifacts.models:
            state.trained_by = self.training.artifacts
        self.overwrite = False
        self.watch: Callable[[Sequence[Array], Sequence[Array]], None] | None = None
        # Running statistics before the last training step, and before the first one whose gradients
        # no update has taken.
        self._before: Before | None = None
        self._before_all: Before | None = None

    def fill_scale(self, program: BoundProgram) -> None:
        """Set the loss scale of the next step of a program, if it has one."""
        scaling = self.memory.scaling
        if scaling is not None and LOSS_SCALE in program.inputs:
            program.inputs[LOSS_SCALE][...] = scaling.find_factor(self.state.loss_scale)

    def run(
        self, model: Model, user_inputs: Sequence[Any], share: float | None = None
    ) -> tuple[Array, ...]:
        """Run a model on inputs and return its outputs; see `Module.__call__`.

        share: for a part of a batch, the weight of its loss in the loss of the batch, if the
            backward pass begins with that.
        """
        arrays = model.make_arrays(user_inputs)
        with self.memory.lock.take():
            self.state.settle()  # of an interrupted step, whose flag this run may overwrite
            overwrite = self.overwrite
            program = model.get_program([a.shape for a in arrays], is_part=share is not None)
            program.fill(model.inputs, arrays)
            if share is not None:
                program.inputs[SHARE][...] = share
            self.fill_scale(program)
            if model.resets:
                program.inputs[RESET][...] = overwrite
            if model.ranks is not None:
                model.ranks.fill(program)
            before = program.run(self.state.draws, self.seed)
            self.state.draws += program.draws
            if model is self.training:
                self.overwrite = self.state.gradients_gone = False
                self._before = before
                if overwrite or self._before_all is None:
                    self._before_all = before
            outputs = tuple(program.outputs[name].copy() for name in model.outputs)
            if self.check_finite and (model.selected is None or model is self.training):
                self._check_finite(model, outputs[0], overwrite)
        if model is self.training and self.watch is not None:
            self.watch(arrays, outputs)
        return outputs

    def put_back_statistics(self, *, whole: bool) -> None:
        """Make running statistics what they were before training steps that are refused.

        whole: before all whose gradients no update has taken; otherwise before the last one.
        """
        before = self._before_all if whole else self._before
        if before is not None:
            before.put_back()
        self._before = None
        if whole:
            self._before_all = None

    def settle_statistics(self, *, was_done: bool) -> None:
        """Keep the running statistics of the steps whose gradients an update has taken.

        was_done: the update was not skipped; otherwise they are put back.
        """
        if not was_done:
            self.put_back_statistics(whole=True)
        self.forget_statistics()

    def forget_statistics(self) -> None:
        """Keep the running statistics as they are, whatever becomes of the gradients."""
        self._before = self._before_all = None

    def _check_finite(self, model: Model, loss: Array, overwrite: bool) -> None:
        if np.all(np.isfinite(loss)):
            return
        advice = ""
        if model is self.training:
            self.put_back_statistics(whole=False)
            self.overwrite = overwrite  # as before the step, whose own gradients are then dropped
            advice = (
                "" if overwrite else "; the gradients may be, too: lazy_reset_grad() drops them"
            )
        mode = "training" if model is self.training else "eval"
        raise NonFiniteError(
            f"{mode} step: output {model.outputs[0]!r} is {loss.ravel()[:4]}{advice}"
        )

    def require_eval(self) -> Model:
        """Return the eval model.

        Raises:
            StateError: there is none.
        """
        if self.evaluation is None:
            raise StateError(
                "this Module has no eval model: pass eval_model_uri to the constructor"
            )
        return self.evaluation
