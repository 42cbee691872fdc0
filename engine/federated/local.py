"""Device's part of a round: training and evaluation on its own data.

    learner = Learner(trainer)
    learner.begin(arrays, options, kept)        # parameters of the round, kept state
    learned = learner.train((images, labels), options)
    send(learned.arrays, learned.examples); kept = learner.kept(options)

Arrays from the server are returned under the same names.  Everything else that training changes
stays on the device: parameters that match `LocalOptions.local`, running statistics that the server
does not send, and, with `keep_optimizer`, the optimizer's state.  The caller stores this as `Kept`.
A learner can serve many clients in turn: `begin` forgets the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.errors import NonFiniteError
from engine.checkpoint.storage import Checkpoint, OptimizerGroup
from engine.federated import parameters
from engine.federated.learner import Kept, Learned, LocalLearner, require_samples
from engine.federated.local_options import LocalOptions
from engine.trainer.fit import Callback
from engine.trainer.inputs import count_samples
from engine.training.state import GROUP, CheckpointState

if TYPE_CHECKING:
    from engine.trainer.evaluation import EvaluationBatch
    from engine.trainer.fit import Fit

_MOMENT = "optimizer/"  # prefix of the names of kept arrays
_STEP, _DRAWS, _BEFORE = "step", "draws", "steps_before/"


class Learner(LocalLearner):
    """Learner with a trainer of the engine."""

    def train(self, data: Any, options: LocalOptions) -> Learned:
        """Train on the data of the client, as `engine.data.batches` takes them.

        Raises:
            StateError: the round has not begun.
            InputError: there is no sample.
            NonFiniteError: the loss became NaN or infinite.
            EngineError: see `Trainer.fit`.
        """
        self.require_round()
        require_samples(data, "train on")
        trainer, count = self.trainer, _Count()
        # Of dropout: different for each client and round.
        trainer.learner.session.seed = options.seed
        history = trainer.fit(
            data,
            epochs=options.epochs,
            batch_size=options.batch_size,
            seed=options.seed,
            callbacks=[count],
            progress=False,
        )
        return Learned(parameters.get(trainer, self.names), count.samples, history["loss"][-1])

    def evaluate(self, data: Any, options: LocalOptions) -> tuple[int, dict[str, float]]:
        """Return the number of samples of some data, and their loss and metrics by name.

        Raises:
            InputError: there is no sample.
            NonFiniteError: the loss or a metric is NaN or infinite.
            EngineError: see `Trainer.evaluate`.
        """
        require_samples(data, "evaluate on")
        samples = 0

        def count(batch: EvaluationBatch) -> None:
            nonlocal samples
            samples += count_samples(batch.inputs)

        metrics = self.trainer.evaluate(
            data, batch_size=options.batch_size, metrics=options.metrics, each=count
        )
        for name, value in metrics.items():
            if not np.isfinite(value):
                raise NonFiniteError(f"the {name} on {samples} samples is {value}")
        return samples, metrics

    def _keep_optimizer(self) -> Kept:
        state, arrays = self.trainer.state, dict[str, Any]()
        state.settle()
        group = state.groups[0]
        for name, moments in group.states.items():
            for moment, value in moments.items():
                arrays[f"{_MOMENT}{moment}/{name}"] = np.array(value)
        before = {_BEFORE + name: steps for name, steps in group.steps_before.items()}
        return Kept(arrays, {_STEP: group.step, _DRAWS: state.draws, **before})

    def _restore_optimizer(self, kept: Kept) -> None:
        """Restore the moments and counts.

        Raises:
            CheckpointError, ShapeError: they belong to another optimizer.
        """
        trainer, states = self.trainer, dict[str, dict[str, Any]]()
        for name, array in kept.arrays.items():
            if name.startswith(_MOMENT):
                moment, _, parameter = name.removeprefix(_MOMENT).partition("/")
                states.setdefault(parameter, {})[moment] = array
        numbers, step = kept.numbers, kept.numbers.get(_STEP, 0)
        before = {n.removeprefix(_BEFORE): k for n, k in numbers.items() if n.startswith(_BEFORE)}
        group = OptimizerGroup(GROUP, step, trainer.learning_rate, states, before)
        trainer.optimizer.restore(CheckpointState(Checkpoint({}, {}, False, [group], {})))
        trainer.state.draws = numbers.get(_DRAWS, 0)
        trainer.drop_gradients()


class _Count(Callback):
    """Counter of the samples of an epoch."""

    samples = 0

    def on_epoch_end(self, fit: Fit) -> None:
        self.samples = fit.samples
