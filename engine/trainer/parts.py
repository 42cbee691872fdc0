"""Micro-batches: a batch that is trained on in parts, with one update, as if it were whole.

The gradients of the parts are added in region grad, each weighted by the share that its samples
have in the loss of the whole batch.  graphs/offline/sample_flow.py says whether there is such a
share.  Where a model computes with its own gradients, the backward pass of a part begins with its
share, so that these are gradients of the whole batch.  A model draws new numbers for each part, as
for dropout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from engine.base.aliases import Array
from engine.base.errors import InputError
from engine.base.proximal import MU
from engine.training.plan_cache import make_key

if TYPE_CHECKING:
    from engine.graphs.offline.sample_values import LossValue
    from engine.runtime.program import BoundProgram
    from engine.trainer.learner import TrainingModels
    from engine.training.state import CheckpointState


class Splitter:
    """Trains a trainer's module on batches in parts.

    own_statistics: whether batch normalisations may take their statistics over a part.
    """

    def __init__(self, learner: TrainingModels, own_statistics: bool) -> None:
        self._learner, self.own_statistics = learner, own_statistics
        self._losses: dict[tuple[bool, tuple[tuple[int, ...], ...]], LossValue] = {}

    def forget(self) -> None:
        """Forget what is known of the models that the trainer had."""
        self._losses.clear()

    def count_rows(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, dict[str, int]]:
        """Return the number of samples of a batch, and the rows of one sample in each input.

        They are on the first axis of inputs where the model leaves its size open.

        Raises:
            InputError: the batch has one sample, or the inputs do not tell how many.
        """
        samples = self.count_samples(shapes)
        if samples < 2:
            raise InputError("a batch cannot be trained on in parts: it is one sample")
        return samples, self.count_rows_of(shapes, samples)

    def count_samples(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return the number of samples of a batch.

        Raises:
            InputError: the inputs do not tell.
        """
        given = self._find_first(shapes)
        samples, why = min(given.values(), default=1), ""
        if not given:
            why = "the model fixes how many samples it has"
        elif any(size % samples for size in given.values()):
            why = f"its inputs have {sorted(given.values())} rows"
        if why:
            raise InputError(f"a batch cannot be trained on in parts: {why}")
        return samples

    def count_rows_of(self, shapes: Sequence[tuple[int, ...]], samples: int) -> dict[str, int]:
        """Return, for each input with samples, how many places of its first axis a sample takes."""
        return {name: size // samples for name, size in self._find_first(shapes).items()}

    def _find_first(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Return the first dimension of the inputs where the model leaves that open."""
        model = self._learner.session.training
        return {
            name: shape[0]
            for name, shape in zip(model.inputs, shapes, strict=True)
            if shape and isinstance(model.interface.inputs[name].shape[0], str)
        }

    def find_loss(self, shapes: Sequence[tuple[int, ...]], *, combines: bool = False) -> LossValue:
        """Return how the loss is made of the samples of a batch of these shapes.

        combines: whether what computes the parts combines the statistics of batch normalisations.

        Raises:
            InputError: the samples are mixed, so that the batch cannot be parted; naming the node.
        """
        own = combines or self.own_statistics
        key = (own, tuple(shapes))
        if key not in self._losses:
            loss = self._find_kept_loss(shapes, own)
            if not loss.is_mean and MU in self._learner.session.training.parameters:
                raise InputError(
                    "a batch cannot be trained on in parts: the loss is a sum, and the proximal "
                    "term would count once for each part"
                )
            self._losses[key] = loss
        return self._losses[key]

    def _find_kept_loss(self, shapes: Sequence[tuple[int, ...]], own: bool) -> LossValue:
        """Return how the loss is made, from the records if it is there; otherwise keep it.

        Finding it takes the graph, and the packages that read one.
        """
        from engine.graphs.offline.sample_values import LossValue, MixedError

        model, slots = self._learner.session.training, self._learner.state.slots
        _, rows = self.count_rows(shapes)
        known = dict(zip(model.inputs, shapes, strict=True))
        known |= {name: slots[name].shape for name in model.parameters}
        key = make_key("loss of samples", model.digest, sorted(known.items()), rows, own)
        raw = None if model.records is None else model.records.get(key)
        if raw is not None and (kept := LossValue.read(raw)) is not None:
            return kept
        from engine.graphs.offline.sample_flow import find_loss

        try:
            loss = find_loss(model.graph, known, rows, own_statistics=own)
        except MixedError as error:
            raise InputError(f"a batch cannot be trained on in parts: {error}") from error
        if model.records is not None:
            model.records.put(key, loss.write())
        return loss

    def find_shapes(self, shapes: Sequence[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
        """Return the shapes of the first of `count` parts."""
        samples, rows = self.count_rows(shapes)
        size = -(-samples // count)
        names = self._learner.inputs
        return [
            (size * rows[n], *s[1:]) if n in rows else s for n, s in zip(names, shapes, strict=True)
        ]

    def get_program(self, shapes: Sequence[tuple[int, ...]], count: int) -> BoundProgram:
        """Return the program of the first of `count` parts; the caller must hold `memory.lock`.

        Raises:
            InputError: the batch cannot be trained on in parts.
            EngineError: as `Model.get_program`.
        """
        is_told = self.find_loss(shapes).is_told
        return self._learner.session.training.get_program(
            self.find_shapes(shapes, count), is_part=is_told
        )

    def compute_gradients(self, arrays: Sequence[Array], count: int) -> float:
        """Put the gradients of a batch into region grad, in `count` parts; returns its loss.

        Raises:
            InputError: the batch cannot be trained on in parts.
            EngineError: as `Module.__call__`.
        """
        module, state = self._learner.module, self._learner.state
        shapes = [a.shape for a in arrays]
        reduced, parts = self.find_loss(shapes), list(self._split(arrays, count))
        weights = [reduced.weigh(named, samples) for samples, named in parts]
        total = sum(weights) if reduced.is_mean else 1.0
        if not total:  # no sample counts: the loss is what the model makes of that
            parts, weights, total = parts[:1], [1.0], 1.0
        loss, draws, before, share = 0.0, state.draws, 0.0, None
        module.lazy_reset_grad()
        parted = [0.0] * len(self._learner.part_names)
        try:
            for (_, named), weight in zip(parts, weights, strict=True):
                if not weight:
                    continue
                if reduced.is_told:
                    share = weight / total
                elif before and weight != before:  # what is added next has another weight
                    _scale_gradients(state, before / weight)
                outputs = module.session.run(module.session.training, list(named.values()), share)
                loss += weight / total * self._learner.read_loss(outputs)
                for place, part in enumerate(self._learner.parts):
                    parted[place] += weight / total * part
                before = weight
        except BaseException:
            state.draws = draws
            if before:  # otherwise no part is done, and one that fails moves none
                module.session.put_back_statistics(whole=True)
            module.lazy_reset_grad()
            raise
        if before != total and not reduced.is_told:
            _scale_gradients(state, before / total)
        self._learner.parts = parted
        return loss

    def _split(self, arrays: Sequence[Array], count: int) -> Iterator[tuple[int, dict[str, Array]]]:
        """Yield the parts of a batch, their samples and inputs; all are as large but the last."""
        names = self._learner.inputs
        samples, rows = self.count_rows([a.shape for a in arrays])
        size = -(-samples // count)
        for begin in range(0, samples, size):
            end = min(begin + size, samples)
            yield (
                end - begin,
                {
                    n: a[begin * rows[n] : end * rows[n]] if n in rows else a
                    for n, a in zip(names, arrays, strict=True)
                },
            )


def _scale_gradients(state: CheckpointState, factor: float) -> None:
    """Multiply all gradients."""
    for gradients in state.gradients():
        gradients *= factor
