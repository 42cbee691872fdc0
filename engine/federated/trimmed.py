"""Device's part of a round with a trimmed build: as `local`, but with numpy only.

    learner = TrimmedLearner(mnist.Trainer())
    learner.begin(arrays, options, kept)
    learned = learner.train((images, labels), options)

A build has plans for certain numbers of samples.  Batches have one of them; a last smaller batch is
trained on if there is a plan for its size, and left out otherwise.  Samples come in the order in
which `engine.federated.local.Learner` takes them, so that both learn the same to the last bit.  A
build counts random draws, for example of dropout, from 0 in every round: the round's seed makes
them different, even if the optimizer's state is kept.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from engine.base import errors
from engine.base.aliases import Array
from engine.base.errors import EngineError, InputError, ModelWarning, NonFiniteError
from engine.data.randomness import permute
from engine.federated import parameters
from engine.federated.learner import Kept, Learned, LocalLearner, require_samples
from engine.federated.local_options import LocalOptions
from engine.trainer.metrics.named import list_results, metrics_of

_CHECKPOINT = "checkpoint"  # name of a kept array


class TrimmedLearner(LocalLearner):
    """Learner with the `Trainer` of a trimmed build."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._first = trainer.state.to_bytes(False)

    def train(self, data: Any, options: LocalOptions) -> Learned:
        """Train on the data of the client: arrays in the order of the inputs, or by their names.

        Raises:
            StateError: the round has not begun.
            InputError: there is no sample, there are fewer than a batch, or the build has no plans
                for batches of this size.
            NonFiniteError: the loss became NaN or infinite.
            EngineError: the data do not fit the inputs.
        """
        self.require_round()
        trainer, arrays = self.trainer, self._make_arrays(data, "train on")
        trainer.module.set_seed(options.seed)
        total, samples = 0.0, 0
        for epoch in range(options.epochs):
            order = permute(len(arrays[0]), options.seed, epoch)
            total, samples = 0.0, 0
            for indices in self._cut(len(order), options):
                batch = [array[order[indices]] for array in arrays]
                with _our_errors():
                    loss = _read_loss(trainer.step(*batch))
                if not np.isfinite(loss):
                    raise NonFiniteError(f"the loss of epoch {epoch + 1} is {loss}")
                total, samples = total + loss * len(batch[0]), samples + len(batch[0])
        return Learned(parameters.get(trainer, self.names), samples, total / samples)

    def evaluate(self, data: Any, options: LocalOptions) -> tuple[int, dict[str, float]]:
        """Return the number of samples of some data, and their loss and metrics by name.

        Raises:
            InputError: see `train`.
            NonFiniteError: the loss or a metric is NaN or infinite.
            EngineError: see the metrics.
        """
        trainer, arrays = self.trainer, self._make_arrays(data, "evaluate on")
        metrics = metrics_of(options.metrics)
        for metric in metrics:
            metric.reset()
        total, samples = 0.0, 0
        for indices in self._cut(len(arrays[0]), options):
            batch = [array[indices] for array in arrays]
            count = len(batch[0])
            with _our_errors():
                loss = _read_loss(trainer.evaluate(*batch))
                outputs = trainer.predict_batch(*batch[:-1]) if metrics else {}
            total, samples = total + loss * count, samples + count
            inputs = dict(zip(trainer.inputs, batch, strict=True))
            for metric in metrics:
                metric.update(outputs, inputs, loss, count)
        results = {"loss": total / samples, **list_results(metrics, None)}
        for name, value in results.items():
            if not np.isfinite(value):
                raise NonFiniteError(f"the {name} on {samples} samples is {value}")
        return samples, results

    def _keep_optimizer(self) -> Kept:
        content = self.trainer.state.to_bytes(True)
        return Kept({_CHECKPOINT: np.frombuffer(content, np.uint8)})

    def _restore_optimizer(self, kept: Kept) -> None:
        content = kept.arrays.get(_CHECKPOINT)
        with _our_errors():
            self.trainer.load(self._first if content is None else content.tobytes())

    def _make_arrays(self, data: Any, purpose: str) -> list[Array]:
        """Return the arrays of the inputs.

        Raises:
            InputError: there are other arrays, or their numbers of samples differ.
        """
        require_samples(data, purpose)
        names = self.trainer.inputs
        if isinstance(data, Mapping):
            arrays = [data[name] for name in names if name in data]
        else:
            arrays = list(data) if isinstance(data, list | tuple) else [data]
        if len(arrays) != len(names) or not all(hasattr(array, "shape") for array in arrays):
            raise InputError(
                f"data to {purpose} with a trimmed build: expected an array for each of "
                f"{', '.join(names)}"
            )
        if len({len(array) for array in arrays}) > 1:
            raise InputError(f"data to {purpose}: {[len(a) for a in arrays]} samples in arrays")
        return arrays

    def _cut(self, samples: int, options: LocalOptions) -> Iterator[slice]:
        """Yield the batches of some samples."""
        sizes: Sequence[int] = self.trainer.batches
        size = sizes[0] if options.batch_size is None else options.batch_size
        if size not in sizes:
            raise InputError(
                f"batch_size={size}: this build has plans for {_join_sizes(sizes)} samples; "
                f"edgegrad build --batch {size} makes them"
            )
        rest = samples % size
        if rest and rest not in sizes:
            if samples < size:
                raise InputError(
                    f"{samples} samples are fewer than a batch of {size}, and this build has plans "
                    f"for {_join_sizes(sizes)}: edgegrad build --batch {size},{samples} makes both"
                )
            warnings.warn(
                f"{rest} of {samples} samples are left out: this build has plans for "
                f"{_join_sizes(sizes)} samples",
                ModelWarning,
                stacklevel=3,
            )
            samples -= rest
        for start in range(0, samples, size):
            yield slice(start, min(start + size, samples))


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    """Raise errors of a build, which has classes of its own, as errors of this package."""
    try:
        yield
    except EngineError:
        raise
    except RuntimeError as error:
        kind = getattr(errors, type(error).__name__, InputError)
        raise kind(str(error)) from error


def _read_loss(results: Any) -> float:
    """Return the loss from the results of a phase: its first output."""
    return float((results[0] if isinstance(results, tuple) else results).item())


def _join_sizes(sizes: Sequence[int]) -> str:
    return " or ".join(map(str, sizes))
