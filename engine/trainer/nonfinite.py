"""Messages about values that are not finite: where they begin, and what helps.

engine/training/nonfinite.py finds the first such tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.base.errors import EngineError, NonFiniteError
from engine.plan.plan import COUNT, RATE
from engine.training.nonfinite import NonFinite, describe, search
from engine.training.optimizer import ADVICE

if TYPE_CHECKING:
    from engine.trainer.learner import TrainingModels
    from engine.trainer.steps import Steps


def check_parameters(learner: TrainingModels) -> None:
    """Check that all parameters are finite, so that no checkpoint holds others.

    Raises:
        NonFiniteError: one is not; the message names it and the last update.
    """
    for name, parameter in learner.state.parameters:
        values = describe(parameter.data)
        if values:
            kept = None if learner.state.gradients_gone else parameter.grad
            gradient = "" if kept is None else describe(kept)
            raise NonFiniteError(
                f"parameter {name!r} has {values}: {_describe_last_update(learner)}"
                f"{gradient and f', and its gradient has {gradient}'}. Earlier checkpoints are "
                f"unchanged. {ADVICE}"
            )


def make_error(
    steps: Steps, batch: Sequence[Any], loss: float | None, place: str
) -> NonFiniteError:
    """Return the error that tells where a batch, which was just computed, got its bad values from.

    batch: as `Trainer.accumulate` took it.
    loss: its loss; None if its update was one of too many that were skipped.
    place: which batch it is, in the message.
    """
    try:
        origin = _describe_origin(steps, batch)
    except EngineError as problem:  # as a lack of memory for the copies
        origin = f"its origin could not be determined: {problem}"
    told = "" if loss is None else f"the loss is {loss}; "
    return NonFiniteError(
        f"{place}: {told}{origin}. The parameters have not been updated with this batch, and "
        f"checkpoints are unchanged. {ADVICE}"
    )


def _describe_last_update(learner: TrainingModels) -> str:
    if not learner.steps:
        return "it was so before the first update"
    return f"the update of step {learner.steps} or one before it made it so"


def _describe_origin(steps: Steps, batch: Sequence[Any]) -> str:
    """Describe the origin of the values that spoil a batch, for the message."""
    learner = steps.learner
    session, model = learner.session, learner.session.training
    arrays = learner.make_arrays(model, batch)
    with session.memory.lock.take():
        bound = steps.get_program([a.shape for a in arrays])
        draws = learner.state.draws - bound.draws  # the batch has counted itself
        origin = search(session, model, bound, arrays, draws, _list_scalars(learner))
    if origin is None:
        return "computed once more, it was finite"
    if origin.kind == "parameter":
        return f"{origin}: {_describe_last_update(learner)}"
    return str(origin)


def find(steps: Steps, batch: Sequence[Any]) -> NonFinite | None:
    """See `Trainer.find_nonfinite`."""
    learner = steps.learner
    session, model = learner.session, learner.session.training
    arrays = learner.check_arrays(batch)
    with session.memory.lock.take():
        shapes = [a.shape for a in arrays]
        planned = model.get_program if learner.optimizer is None else steps.get_whole_program
        bound = planned(shapes)
        return search(session, model, bound, arrays, learner.state.draws, _list_scalars(learner))


def _list_scalars(learner: TrainingModels) -> dict[str, float]:
    """Return the scalars that the optimizer reads beside gradients and states."""
    if learner.optimizer is None:
        return {}
    return {RATE: learner.learning_rate, COUNT: learner.steps + 1}
