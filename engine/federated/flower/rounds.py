"""Rounds: a strategy of Flower, and around it what every strategy needs to train our models.

`Rounds` wraps a strategy as those of Flower for differential privacy do.  It
  - leaves out replies that cannot be used (`replies`), and makes parameters of those that are
    encoded or differences;
  - refuses an aggregate that is not finite, and aggregates again without the reply that made it so,
    from what the strategy remembered before;
  - averages running statistics by itself: they are no parameters for whose steps a server has an
    optimizer, and FedAdam could make a variance negative;
  - orders replies and nodes, so that the same seed gives the same result to the last bit;
  - gives back the element types that the model has;
  - tells after each aggregation, so that a checkpoint can be written.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.exception import AppExitException
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy, strategy_utils

from engine.federated.flower.nodes import OrderedGrid
from engine.federated.flower.records import (
    ARRAYS,
    EXAMPLES,
    METRICS,
    from_record,
    to_record,
)
from engine.federated.flower.replies import Limits, Replies, Reply, nbytes
from engine.federated.flower.secure import SecureGrid
from engine.federated.flower.strategies import remembered, snapshot, withstands
from engine.federated.parameters import Arrays
from engine.federated.updates import Encoding

_log = logging.getLogger("flwr")


@dataclass
class Round:
    """What has come of a round, as far as it is.

    number: from 1 on, those before a resumed run included.
    results, failures: replies to training with and without parameters.
    left_out: the nodes of the latter.
    sent, received: bytes of all records to and from devices.
    metrics: all numbers, by name.
    """

    number: int
    results: int = 0
    failures: int = 0
    left_out: tuple[int, ...] = ()
    sent: int = 0
    received: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)


class Rounds(Strategy):
    """Rounds of a federation by a strategy.

    Args:
        strategy: aggregates the parameters that are trained.
        statistics: names of the arrays that are averaged, by the numbers of samples; or, with a
            strategy that withstands malicious clients, of which the median is taken.
        seed: of which nodes a round has.
        timeout: seconds for nodes to say which clients they are, where a round has some of them.
        before: how many rounds have been done by the run that is resumed.
        done: is called with the arrays after each aggregation.
        encoding: of the updates that devices send; None: they send parameters as they are.
        limits: of what a reply may have.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        statistics: Sequence[str] = (),
        seed: int = 0,
        timeout: float = 3600.0,
        before: int = 0,
        done: Callable[[Round, Arrays], None] = lambda _, __: None,
        encoding: Encoding | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.strategy, self.statistics = strategy, list(statistics)
        self.seed, self.timeout, self.before, self.done = seed, timeout, before, done
        self.round = Round(before)
        self.replies = Replies(encoding or Encoding(), limits or Limits())
        self._arrays: Arrays = {}
        self._grid: OrderedGrid | None = None
        self._secure: SecureGrid | None = None

    def summary(self) -> None:
        """Log what the strategy does."""
        self.strategy.summary()
        if self.before:
            _log.info("\t└──> Resumed after round %d", self.before)

    # --- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the training of a round."""
        self.round = Round(self.before + server_round)
        self._arrays = from_record(arrays)
        self._secure = grid if isinstance(grid, SecureGrid) else None
        trained, averaged = self._split(self._arrays)
        with self._seeded("train"):
            messages = list(
                self.strategy.configure_train(
                    self.round.number, to_record(trained), config, self._ordered(grid, "train")
                )
            )
        return self._sent("train", messages, averaged)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new parameters, and the metrics of the training."""
        came = self._received(replies)
        if self._secure is not None:  # what travelled is not what it makes of that
            self.round.sent, self.round.received = self._secure.sent, self._secure.received
        found = self.replies.usable(came, told=self._secure is None)
        arrays, metrics, used = self._sound(found)
        self.round.results, self.round.failures = used, self.replies.asked - used
        self.round.left_out = tuple(self.replies.left_out)
        if arrays is None:
            _log.warning("round %d has no result: the parameters stay", self.round.number)
            return None, metrics
        self._arrays = arrays
        self._note(metrics)
        self.done(self.round, self._arrays)
        return to_record(self._arrays), metrics

    def _sound(self, replies: list[Reply]) -> tuple[Arrays | None, MetricRecord | None, int]:
        """The new parameters, the metrics, and of how many replies they are.

        Where what the strategy makes of all replies is not finite, it is made again without one of
        them, from the largest update to the smallest, until it is; and if none is the only cause,
        without the two largest, the three largest, and so on: of n replies at most 2 n times.
        """
        restore, order, why = snapshot(self.strategy), sorted(replies, key=lambda r: -r.norm), ""
        tries = [[], *([each] for each in order)]
        tries += [order[:count] for count in range(2, len(order) + 1)]
        for without in tries:
            nodes = {reply.node for reply in without}
            kept = [reply for reply in replies if reply.node not in nodes]
            made = self._aggregated(kept)
            if not isinstance(made, str):
                for reply in without:
                    self.replies.leave_out(reply.node, f"with it, {why}")
                return (*made, len(kept))
            restore()
            why = why or made
        _log.warning("round %d: %s", self.round.number, why)
        return None, None, 0

    def _aggregated(
        self, replies: Sequence[Reply]
    ) -> tuple[Arrays | None, MetricRecord | None] | str:
        """What the strategy makes of replies, or why it cannot be taken."""
        messages, parts = [], []
        for reply in replies:
            trained, averaged = self._split(reply.arrays)
            numbers = MetricRecord(dict(reply.numbers))
            reply.message.content = RecordDict({ARRAYS: to_record(trained), METRICS: numbers})
            messages.append(reply.message)
            parts.append((averaged, float(reply.numbers[EXAMPLES])))
        try:
            with np.errstate(all="ignore"):  # what comes of it is looked at
                arrays, metrics = self.strategy.aggregate_train(self.round.number, messages)
                if arrays is None:
                    return None, metrics
                made = from_record(arrays) | self._averaged(parts)
                new = {name: made[name].astype(a.dtype) for name, a in self._arrays.items()}
        except (ArithmeticError, ValueError, AppExitException) as error:
            return f"the strategy fails: {type(error).__name__}: {error}"
        for name, array in new.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"parameter {name!r} becomes NaN or infinite"
        for name, array in remembered(self.strategy)[0].items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"{name} of the strategy becomes NaN or infinite"
        return new, metrics

    def _split(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        """What the strategy aggregates, and what is averaged."""
        apart = set(self.statistics)
        return (
            {name: array for name, array in arrays.items() if name not in apart},
            {name: array for name, array in arrays.items() if name in apart},
        )

    def _averaged(self, parts: Sequence[tuple[Arrays, float]]) -> Arrays:
        """The averages of the running statistics, by the numbers of samples; in float64."""
        total, found = sum(weight for _, weight in parts), Arrays()
        for name in self.statistics:
            values = [arrays[name].astype(np.float64) for arrays, _ in parts]
            if withstands(self.strategy):
                found[name] = np.median(values, axis=0)
                continue
            weighted = zip(values, (weight for _, weight in parts), strict=True)
            found[name] = np.asarray(sum(value * (weight / total) for value, weight in weighted))
        return found

    # --- evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the evaluation of a round by devices."""
        trained, averaged = self._split(from_record(arrays))
        with self._seeded("evaluate"):
            messages = list(
                self.strategy.configure_evaluate(
                    self.round.number, to_record(trained), config, self._ordered(grid, "evaluate")
                )
            )
        return self._sent("evaluate", messages, averaged)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The metrics of the evaluation by devices."""
        found = self.replies.usable(self._received(replies))
        for reply in found:
            reply.message.content = RecordDict({METRICS: MetricRecord(dict(reply.numbers))})
        messages = [reply.message for reply in found]
        metrics = self.strategy.aggregate_evaluate(self.round.number, messages)
        self._note(metrics)
        return metrics

    # --- what both need

    def _ordered(self, grid: Grid, purpose: str) -> Grid:
        """The grid, with its nodes in order where the strategy chooses some of them."""
        inner: Any = self.strategy
        while hasattr(inner, "strategy"):
            inner = inner.strategy
        if getattr(inner, f"fraction_{purpose}", 1.0) >= 1.0:
            return grid
        if self._grid is None or self._grid.grid is not grid:
            self._grid = OrderedGrid(grid, self.timeout)
        return self._grid

    @contextmanager
    def _seeded(self, purpose: str) -> Iterator[None]:
        """Inside, Flower chooses nodes by random numbers of its own, with a seed of the round.

        It takes them from the module `random`.  So do its threads, for the time to the next
        heartbeat or try, at moments that no seed decides.
        """
        names = vars(strategy_utils)
        kept = names["random"]
        names["random"] = random.Random(f"{self.seed}/{self.round.number}/{purpose}")
        try:
            yield
        finally:
            names["random"] = kept

    def _sent(
        self, purpose: str, messages: Sequence[Message], averaged: Arrays
    ) -> Sequence[Message]:
        """Messages with the statistics added to the parameters, in the order of the model."""
        done: dict[int, ArrayRecord] = {}
        for message in messages:
            record = message.content.array_records.get(ARRAYS)
            if averaged and record is not None:
                if id(record) not in done:
                    done[id(record)] = to_record(from_record(record) | averaged)
                message.content = RecordDict({**message.content, ARRAYS: done[id(record)]})
        self.round.sent += sum(map(nbytes, messages))
        self.replies.ask(self.round.number, purpose, messages)
        return messages

    def _received(self, replies: Iterable[Message]) -> list[Message]:
        """Replies in an order that does not depend on which device was the first."""
        found = sorted(replies, key=_digest)
        self.round.received += sum(map(nbytes, found))
        return found

    def _note(self, metrics: MetricRecord | None) -> None:
        for name, value in ({} if metrics is None else metrics).items():
            if isinstance(value, int | float):
                self.round.metrics[name] = float(value)


def _digest(message: Message) -> bytes:
    """What decides the place of a reply among others: its content, whoever it is from."""
    digest = hashlib.sha256()
    if message.has_error():
        digest.update(repr((message.error.code, message.error.reason)).encode())
        return b"\xff" + digest.digest()
    for name, record in sorted(message.content.items()):
        digest.update(name.encode())
        for key, value in sorted(record.items()):
            digest.update(key.encode())
            digest.update(value.data if hasattr(value, "data") else repr(value).encode())
    return b"\0" + digest.digest()
