"""The part of a round that a device does: training on its own data, and evaluating on them.

    learner = Learner(trainer)
    learner.begin(arrays, options, kept)        # the parameters of the round, and what it has kept
    learned = learner.train((images, labels), options)
    send(learned.arrays, learned.examples); kept = learner.kept(options)

What a server sends is given back under the same names.  All else that training changes stays on the
device: parameters that match `LocalOptions.local`, running statistics that the server does not
send, and, where `keep_optimizer` says so, what the optimizer keeps.  `Kept` is that, for its caller
to store.  A learner can be many clients in turn: `begin` forgets the one before.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import arguments
from engine.checkpoint.storage import Checkpoint, OptimizerGroup
from engine.errors import InputError, NonFiniteError, StateError
from engine.federated import parameters
from engine.federated.parameters import Arrays
from engine.proximal import MU, is_of_term, set_anchors
from engine.trainer.callbacks import Callback
from engine.trainer.inputs import samples_of
from engine.training.state import GROUP, CheckpointState

if TYPE_CHECKING:
    from engine.trainer.fit import EvaluationBatch, Fit
    from engine.trainer.trainer import Trainer

_MOMENT, _VALUE = "optimizer/", "parameter/"  # what the names of kept arrays begin with
_STEP, _DRAWS = "step", "draws"


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """How a device trains in one round.

    epochs: how often it sees its samples.
    batch_size: of data that are no batches yet; None: 32, or what the model fixes.
    learning_rate: None: that of the trainer.
    keep_optimizer: whether moments, the count of steps and of random draws go on from round to
        round; else each round begins them anew.
    local: patterns of the names of parameters that never leave the device.
    proximal_mu: the weight of the proximal term of FedProx, see `engine.proximal`; 0: none.
    metrics: what `evaluate` measures beside the loss, see `engine.trainer.metrics`.
    seed: of the order of the samples and of what is random in the model; `seed_of` makes one for
        each client and round.

    Raises:
        InputError, DTypeError: a value is not allowed.
    """

    epochs: int = 1
    batch_size: int | None = None
    learning_rate: float | None = None
    keep_optimizer: bool = False
    local: tuple[str, ...] = ()
    proximal_mu: float = 0.0
    metrics: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for what in ("epochs", "batch_size"):
            value = getattr(self, what)
            if value is not None and arguments.count(what, value) < 1:
                raise InputError(f"{what}={value}: expected at least 1")
        if self.learning_rate is not None and arguments.real("rate", self.learning_rate) <= 0:
            raise InputError(f"learning_rate={self.learning_rate}: expected more than 0")


@dataclass(frozen=True, slots=True)
class Learned:
    """What a device gives back.

    arrays: the values of the parameters that it was sent, by name.
    examples: how many samples it has trained on; the weight of its arrays in an average.
    loss: the mean loss over its last epoch.
    """

    arrays: Arrays
    examples: int
    loss: float


@dataclass(frozen=True, slots=True)
class Kept:
    """What a device keeps from round to round: arrays, and whole numbers, by name."""

    arrays: Arrays = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)


class Learner:
    """A trainer that does the part of devices in rounds.

    Args:
        trainer: of artifacts with an optimizer.  The values that it has now are those with which
            each client begins what no server sends.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._rate = trainer.learning_rate
        self._start = {name: np.array(p.data) for name, p in trainer.state.parameters}
        self._names: list[str] = []  # that the server has sent

    def begin(
        self, arrays: Mapping[str, Any], options: LocalOptions, kept: Kept | None = None
    ) -> None:
        """Become a client as it is at the beginning of a round.

        arrays: what the server has sent.  kept: what the client has kept; None: nothing yet.

        Raises:
            EngineError: as `parameters.check`, where a trained parameter that is not `local` is
                missing; or what was kept is that of another model.
            StateError: there is to be a proximal term, and the artifacts have none.
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
        """Train on the data of the client; what `engine.data.batches` takes.

        Raises:
            StateError: the round has not begun.
            InputError: there is no sample.
            NonFiniteError: the loss became NaN or infinite.
            EngineError: as `Trainer.fit`.
        """
        if not self._names:
            raise StateError("begin() gives a learner the parameters of the round first")
        _need_samples(data, "train on")
        trainer, count = self.trainer, _Count()
        trainer.module._seed = options.seed  # of dropout: each client and round has its own
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
        """The number of samples of some data, and their loss and metrics by name.

        Raises:
            InputError: there is no sample.
            NonFiniteError: the loss or a metric is NaN or infinite.
            EngineError: as `Trainer.evaluate`.
        """
        _need_samples(data, "evaluate on")
        samples = 0

        def count(batch: EvaluationBatch) -> None:
            nonlocal samples
            samples += samples_of(batch.inputs)

        found = self.trainer.evaluate(
            data, batch_size=options.batch_size, metrics=options.metrics, each=count
        )
        for name, value in found.items():
            if not np.isfinite(value):
                raise NonFiniteError(f"the {name} on {samples} samples is {value}")
        return samples, found

    def kept(self, options: LocalOptions) -> Kept:
        """What the client keeps for its next round."""
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
        return Kept(arrays, {_STEP: group.step, _DRAWS: trainer.state.draws})


class _Count(Callback):
    """Counts the samples of an epoch."""

    samples = 0

    def on_epoch_end(self, fit: Fit) -> None:
        self.samples = fit.samples


def _restore(trainer: Trainer, kept: Kept) -> None:
    """Give the optimizer the moments that were kept; without any it begins anew.

    Raises:
        CheckpointError, ShapeError: they are those of another optimizer.
    """
    states: dict[str, dict[str, Any]] = {}
    for name, array in kept.arrays.items():
        if name.startswith(_MOMENT):
            moment, _, parameter = name.removeprefix(_MOMENT).partition("/")
            states.setdefault(parameter, {})[moment] = array
    group = OptimizerGroup(GROUP, kept.numbers.get(_STEP, 0), trainer.learning_rate, states)
    content = Checkpoint({}, {}, False, [group], {})
    assert trainer.optimizer is not None  # a Learner asks for its learning rate first
    trainer.optimizer.restore(CheckpointState(content))
    trainer.state.draws = kept.numbers.get(_DRAWS, 0)
    trainer.drop_gradients()


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of some patterns, as "classifier.*"."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def seed_of(*numbers: int) -> int:
    """A seed that depends on all of these numbers, as a seed, a round, and a client.

    They are hashed by `numpy.random.SeedSequence`, so that neighbours have nothing in common.
    """
    return int(np.random.SeedSequence([n % 2**64 for n in numbers]).generate_state(1)[0])


def _need_samples(data: Any, purpose: str) -> None:
    """Refuse data of which it can be told that there are none.

    Raises:
        InputError: there are no data, or an array has no sample.
    """
    arrays = list(data.values()) if isinstance(data, Mapping) else data
    if data is None or (isinstance(arrays, list | tuple) and not arrays):
        raise InputError(f"there are no data to {purpose}")
    for array in arrays if isinstance(arrays, list | tuple) else [arrays]:
        if hasattr(array, "__len__") and len(array) == 0:
            raise InputError(f"there are no data to {purpose}: 0 samples")
