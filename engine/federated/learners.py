"""Choice of the learner for a trainer; only this learner is imported."""

from __future__ import annotations

from typing import Any

from engine.federated.learner import LocalLearner


def learner_of(trainer: Any) -> LocalLearner:
    """Return the learner for a trainer: a `Trainer` of the engine, or the one of a trimmed
    build.
    """
    if hasattr(trainer, "batches"):  # a build has plans for these numbers of samples only
        from engine.federated.trimmed import TrimmedLearner

        return TrimmedLearner(trainer)
    from engine.federated.local import Learner

    return Learner(trainer)
