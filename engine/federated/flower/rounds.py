"""Rounds: a wrapper around a strategy of Flower with everything that is needed to train our models.

`Rounds` wraps a strategy, like Flower's strategies for differential privacy.  It - leaves out
  unusable replies (`replies`), and converts encoded updates and differences to parameters; -
  refuses an aggregate that is not finite, and aggregates again without the reply that caused it,
  from the previous state of the strategy; - averages running statistics by itself: they are not
  parameters for a server's optimizer, and FedAdam could make a variance negative; - orders replies
  and nodes, so that the same seed gives the same result to the last bit; - restores the element
  types of the model; - calls `done` after each aggregation, so that a checkpoint can be written.
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
from engine.federated.flower.replies import Limits, Replies, Reply, count_bytes
from engine.federated.flower.secure import SecureGrid
from engine.federated.flower.strategies import read_state, take_snapshot, withstands
from engine.federated.parameters import Arrays
from engine.federated.updates import Encoding

_log = logging.getLogger("flwr")


@dataclass
class Round:
    """Results of a round so far.

    number: from 1 on, including the rounds before a resumed run.
    results, failures: replies to training with and without parameters.
    left_out: the nodes of the failures.
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
        strategy: the strategy that aggregates the trained parameters.
        statistics: names of the arrays that are averaged by the numbers of samples; a strategy that
            withstands malicious clients takes their median instead.
        seed: the seed for choosing the nodes of a round.
        timeout: seconds for nodes to reply which clients they are, if a round has only some of
            them.
        before: the number of rounds of the resumed run.
        done: called with the arrays after each aggregation.
        encoding: the encoding of updates; None if devices send parameters without encoding.
        limits: limits for replies.
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
        """Log the settings of the strategy."""
        self.strategy.summary()
        if self.before:
            _log.info("\t└──> Resumed after round %d", self.before)

    # --- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of the training of a round."""
        self.round = Round(self.before + server_round)
        self._arrays = from_record(arrays)
        self._secure = grid if isinstance(grid, SecureGrid) else None
        trained, averaged = self._split(self._arrays)
        with self._seeded("train"):
            messages = list(
                self.strategy.configure_train(
                    self.round.number, to_record(trained), config, self._order_grid(grid, "train")
                )
            )
        return self._add_statistics("train", messages, averaged)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new parameters, and the metrics of the training."""
        came = self._order_replies(replies)
        if self._secure is not None:  # the bytes that travelled
            self.round.sent, self.round.received = self._secure.sent, self._secure.received
        usable = self.replies.select_usable(came, told=self._secure is None)
        arrays, metrics, used = self._combine_sound(usable)
        self.round.results, self.round.failures = used, self.replies.asked - used
        self.round.left_out = tuple(self.replies.left_out)
        if arrays is None:
            _log.warning("round %d has no result: the parameters stay", self.round.number)
            return None, metrics
        self._arrays = arrays
        self._note(metrics)
        self.done(self.round, self._arrays)
        return to_record(self._arrays), metrics

    def _combine_sound(
        self, replies: list[Reply]
    ) -> tuple[Arrays | None, MetricRecord | None, int]:
        """Return the new parameters, the metrics, and the number of replies used.

        If the aggregate of all replies is not finite, it is made again without one of them, from
        the largest update to the smallest, until it is; if no single reply is the cause, without
        the two largest, the three largest, and so on: at most 2 n times for n replies.
        """
        restore, order, why = (
            take_snapshot(self.strategy),
            sorted(replies, key=lambda r: -r.norm),
            "",
        )
        tries = [[], *([each] for each in order)]
        tries += [order[:count] for count in range(2, len(order) + 1)]
        for without in tries:
            nodes = {reply.node for reply in without}
            kept = [reply for reply in replies if reply.node not in nodes]
            made = self._try_aggregate(kept)
            if not isinstance(made, str):
                for reply in without:
                    self.replies.leave_out(reply.node, f"with it, {why}")
                return (*made, len(kept))
            restore()
            why = why or made
        _log.warning("round %d: %s", self.round.number, why)
        return None, None, 0

    def _try_aggregate(
        self, replies: Sequence[Reply]
    ) -> tuple[Arrays | None, MetricRecord | None] | str:
        """Return the strategy's aggregate of replies, or the reason why it is unusable."""
        messages, parts = [], []
        for reply in replies:
            trained, averaged = self._split(reply.arrays)
            numbers = MetricRecord(dict(reply.numbers))
            reply.message.content = RecordDict({ARRAYS: to_record(trained), METRICS: numbers})
            messages.append(reply.message)
            parts.append((averaged, float(reply.numbers[EXAMPLES])))
        try:
            with np.errstate(all="ignore"):  # the result is checked
                arrays, metrics = self.strategy.aggregate_train(self.round.number, messages)
                if arrays is None:
                    return None, metrics
                made = from_record(arrays) | self._average(parts)
                new = {name: made[name].astype(a.dtype) for name, a in self._arrays.items()}
        except (ArithmeticError, ValueError, AppExitException) as error:
            return f"the strategy fails: {type(error).__name__}: {error}"
        for name, array in new.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"parameter {name!r} becomes NaN or infinite"
        for name, array in read_state(self.strategy)[0].items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"{name} of the strategy becomes NaN or infinite"
        return new, metrics

    def _split(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        """Return the arrays that the strategy aggregates, and the ones that are averaged."""
        apart = set(self.statistics)
        return (
            {name: array for name, array in arrays.items() if name not in apart},
            {name: array for name, array in arrays.items() if name in apart},
        )

    def _average(self, parts: Sequence[tuple[Arrays, float]]) -> Arrays:
        """Return the averages of running statistics, weighted by samples, in float64."""
        total, averages = sum(weight for _, weight in parts), Arrays()
        for name in self.statistics:
            values = [arrays[name].astype(np.float64) for arrays, _ in parts]
            if withstands(self.strategy):
                averages[name] = np.median(values, axis=0)
                continue
            weighted = zip(values, (weight for _, weight in parts), strict=True)
            averages[name] = np.asarray(sum(value * (weight / total) for value, weight in weighted))
        return averages

    # --- evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of the evaluation of a round by devices."""
        trained, averaged = self._split(from_record(arrays))
        with self._seeded("evaluate"):
            messages = list(
                self.strategy.configure_evaluate(
                    self.round.number,
                    to_record(trained),
                    config,
                    self._order_grid(grid, "evaluate"),
                )
            )
        return self._add_statistics("evaluate", messages, averaged)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the metrics of the evaluation by devices."""
        usable = self.replies.select_usable(self._order_replies(replies))
        for reply in usable:
            reply.message.content = RecordDict({METRICS: MetricRecord(dict(reply.numbers))})
        messages = [reply.message for reply in usable]
        metrics = self.strategy.aggregate_evaluate(self.round.number, messages)
        self._note(metrics)
        return metrics

    # --- both

    def _order_grid(self, grid: Grid, purpose: str) -> Grid:
        """Return the grid, with its nodes in order if the strategy chooses some of them."""
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
        """Make Flower choose nodes by random numbers with a seed of the round.

        Flower uses the module `random`.  So do its threads, for the time to the next heartbeat or
        retry, at moments that no seed decides.
        """
        names = vars(strategy_utils)
        kept = names["random"]
        names["random"] = random.Random(f"{self.seed}/{self.round.number}/{purpose}")
        try:
            yield
        finally:
            names["random"] = kept

    def _add_statistics(
        self, purpose: str, messages: Sequence[Message], averaged: Arrays
    ) -> Sequence[Message]:
        """Return messages with the statistics added to the parameters, in the order of the
        model.
        """
        done: dict[int, ArrayRecord] = {}
        for message in messages:
            record = message.content.array_records.get(ARRAYS)
            if averaged and record is not None:
                if id(record) not in done:
                    done[id(record)] = to_record(from_record(record) | averaged)
                message.content = RecordDict({**message.content, ARRAYS: done[id(record)]})
        self.round.sent += sum(map(count_bytes, messages))
        self.replies.ask(self.round.number, purpose, messages)
        return messages

    def _order_replies(self, replies: Iterable[Message]) -> list[Message]:
        """Return replies in an order that does not depend on which device was first."""
        ordered = sorted(replies, key=_compute_digest)
        self.round.received += sum(map(count_bytes, ordered))
        return ordered

    def _note(self, metrics: MetricRecord | None) -> None:
        for name, value in ({} if metrics is None else metrics).items():
            if isinstance(value, int | float):
                self.round.metrics[name] = float(value)


def _compute_digest(message: Message) -> bytes:
    """Return a sort key for a reply: its content, whoever sent it."""
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
