"""Which learner goes with a trainer.  What it needs is imported when it is known."""

from __future__ import annotations

from typing import Any

from engine.federated.learner import LocalLearner


def learner_of(trainer: Any) -> LocalLearner:
    """The learner with a trainer: a `Trainer` of the engine, or that of a trimmed build."""
    if hasattr(trainer, "batches"):  # a build has plans for these numbers of samples alone
        from engine.federated.trimmed import TrimmedLearner

        return TrimmedLearner(trainer)
    from engine.federated.local import Learner

    return Learner(trainer)
