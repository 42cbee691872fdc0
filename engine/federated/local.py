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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.errors import NonFiniteError, StateError
from engine.checkpoint.storage import Checkpoint, OptimizerGroup
from engine.federated import parameters
from engine.federated.learner import Kept, Learned, require_samples
from engine.federated.local_options import LocalOptions, matches
from engine.trainer.fit import Callback
from engine.trainer.inputs import count_samples
from engine.training.proximal import MU, is_of_term, set_anchors
from engine.training.state import GROUP, CheckpointState

if TYPE_CHECKING:
    from engine.trainer.evaluation import EvaluationBatch
    from engine.trainer.fit import Fit
    from engine.trainer.trainer import Trainer

_MOMENT, _VALUE = "optimizer/", "parameter/"  # prefixes of the names of kept arrays
_STEP, _DRAWS, _BEFORE = "step", "draws", "steps_before/"


class Learner:
    """Trainer that does a device's part of rounds.

    Args:
        trainer: a trainer of artifacts with an optimizer.  Its present values are every client's
            initial values of arrays that no server sends.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._rate = trainer.learning_rate
        self._start = {name: np.array(p.data) for name, p in trainer.state.parameters}
        self._names: list[str] = []  # that the server has sent

    def begin(
        self, arrays: Mapping[str, Any], options: LocalOptions, kept: Kept | None = None
    ) -> None:
        """Start the part of a client in a round.

        arrays: the arrays from the server.  kept: the state that the client has kept, or None.

        Raises:
            EngineError: see `parameters.check`; a trained parameter that is not `local` is missing;
                or the kept state belongs to another model.
            StateError: a proximal term is requested, but the artifacts have none.
        """
        trainer, kept = self.trainer, kept or Kept()
        needed = [n for n in parameters.trainable(trainer) if not matches(n, options.local)]
        new = parameters.check(trainer, arrays, needed)
        self._names = list(new)
        mine = {n.removeprefix(_VALUE): a for n, a in kept.arrays.items() if n.startswith(_VALUE)}
        new |= {n: a for n, a in parameters.check(trainer, mine, ()).items() if n not in new}
        _restore(trainer, kept if options.keep_optimizer else Kept())
        rate = self._rate if options.learning_rate is None else options.learning_rate
        trainer.learning_rate = rate
        parameters.apply(trainer, self._start | new, ())
        if options.proximal_mu or MU in trainer.state.parameters:
            set_anchors(trainer.state, options.proximal_mu)

    def train(self, data: Any, options: LocalOptions) -> Learned:
        """Train on the data of the client, as `engine.data.batches` takes them.

        Raises:
            StateError: the round has not begun.
            InputError: there is no sample.
            NonFiniteError: the loss became NaN or infinite.
            EngineError: see `Trainer.fit`.
        """
        if not self._names:
            raise StateError("begin() gives a learner the parameters of the round first")
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
        return Learned(parameters.get(trainer, self._names), count.samples, history["loss"][-1])

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

    def kept(self, options: LocalOptions) -> Kept:
        """Return the state that the client keeps for its next round."""
        trainer, sent = self.trainer, set(self._names)
        arrays = {}
        for name, parameter in trainer.state.parameters:
            if name in sent or is_of_term(name, trainer.state):
                continue
            if not np.array_equal(parameter.data, self._start[name]):
                arrays[_VALUE + name] = np.array(parameter.data)
        if not options.keep_optimizer:
            return Kept(arrays)
        trainer.state.settle()
        group = trainer.state.groups[0]
        for name, moments in group.states.items():
            for moment, value in moments.items():
                arrays[f"{_MOMENT}{moment}/{name}"] = np.array(value)
        before = {_BEFORE + name: steps for name, steps in group.steps_before.items()}
        return Kept(arrays, {_STEP: group.step, _DRAWS: trainer.state.draws, **before})


class _Count(Callback):
    """Counter of the samples of an epoch."""

    samples = 0

    def on_epoch_end(self, fit: Fit) -> None:
        self.samples = fit.samples


def _restore(trainer: Trainer, kept: Kept) -> None:
    """Restore the optimizer's kept moments; without any it starts afresh.

    Raises:
        CheckpointError, ShapeError: they belong to another optimizer.
    """
    states: dict[str, dict[str, Any]] = {}
    for name, array in kept.arrays.items():
        if name.startswith(_MOMENT):
            moment, _, parameter = name.removeprefix(_MOMENT).partition("/")
            states.setdefault(parameter, {})[moment] = array
    step = kept.numbers.get(_STEP, 0)
    before = {n.removeprefix(_BEFORE): k for n, k in kept.numbers.items() if n.startswith(_BEFORE)}
    group = OptimizerGroup(GROUP, step, trainer.learning_rate, states, before)
    content = Checkpoint({}, {}, False, [group], {})
    assert trainer.optimizer is not None  # a Learner asks for its learning rate first
    trainer.optimizer.restore(CheckpointState(content))
    trainer.state.draws = kept.numbers.get(_DRAWS, 0)
    trainer.drop_gradients()
