"""A training step as one plan: forward, backward, and the update of each parameter.

A parameter is updated as soon as its gradient is complete and nothing reads its old value any
more, so that only the gradients in flight take memory.  Module and Optimizer as two calls keep
region grad instead; accumulation over batches needs that.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.base.aliases import Array
from engine.plan.plan import CHECK, COUNT, DONE, RATE
from engine.runtime.program import BoundProgram
from engine.training.module import Module
from engine.training.optimizer import Optimizer
from engine.training.planning import GradientUse
from engine.training.state import PendingStep


class JoinedStep:
    """The training model of a module and its optimizer as one plan for each shape of a batch."""

    def __init__(self, module: Module, optimizer: Optimizer) -> None:
        self._session, self._optimizer = module.session, optimizer
        self._model = module.session.training

    def get_program(self, shapes: Sequence[tuple[int, ...]]) -> BoundProgram:
        """Return the program for these shapes of the inputs of the training model.

        The caller must hold the lock.

        Raises:
            StateError: a nominal state has no values yet.
            NotJoinableError: the optimizer model cannot be joined.
            ShapeError, UnsupportedOpError: as `Module.__call__`.
        """
        update = GradientUse(self._optimizer.model, self._optimizer.layout())
        return self._model.get_program(shapes, update=update)

    def run(self, arrays: Sequence[Array], *, check_finite: bool) -> tuple[Array, ...]:
        """Do one step; returns the outputs of the training model, the loss first.

        arrays: the inputs, checked.
        check_finite: whether a loss that is not finite holds the update back.  The step does not
            count then, nor does one that the optimizer skips, and running statistics stay.

        Raises:
            LabelError: a class label, an index or a length is out of range.  Nothing has changed.
            StateError: another Optimizer was made for the state, or as `get_program`.
        """
        state = self._session.state
        with self._session.memory.lock.take():
            state.settle()
            program, after = (
                self.get_program([a.shape for a in arrays]),
                self._optimizer.after_step(),
            )
            program.fill(self._model.inputs, arrays)
            for name, value in (
                (RATE, self._optimizer.get_learning_rate()),
                (COUNT, after.step),
                (CHECK, check_finite),
            ):
                if name in program.inputs:
                    program.inputs[name][0] = value
            self._session.fill_scale(program)
            if self._model.ranks is not None:
                self._model.ranks.fill(program)
            flag, draws = program.outputs[DONE], state.draws + program.draws
            flag[...] = False
            # An interrupt may come at any moment.  The flag then tells whether the step was done.
            state.pending = PendingStep(flag, after, draws)
            before = program.run(state.draws, self._session.seed)
            state.gradients_gone = True
            was_done = bool(flag.all())
            if not was_done:
                before.put_back()
            state.settle()
            state.draws = draws
            self._session.settle_statistics(was_done=True)  # of earlier steps, if any
            self._optimizer.count(was_done)
            self._session.overwrite = True
            outputs = tuple(program.outputs[name].copy() for name in self._model.outputs)
        if self._session.watch is not None:
            self._session.watch(arrays, outputs)
        return outputs
