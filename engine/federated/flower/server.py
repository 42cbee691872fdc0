"""ServerApp: rounds by a strategy of Flower, evaluations, and their records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from engine.base.errors import InputError, StateError
from engine.federated import parameters, privacy
from engine.federated.flower.client import MakeTrainer
from engine.federated.flower.mods import NOT_CLIPPED
from engine.federated.flower.private import add_privacy
from engine.federated.flower.records import from_record, to_record
from engine.federated.flower.replies import Limits
from engine.federated.flower.rounds import Round, Rounds
from engine.federated.flower.secure import SecureGrid
from engine.federated.flower.server_options import ServerOptions
from engine.federated.flower.strategies import (
    NEED_EACH,
    make_strategy,
    read_options,
    read_state,
    remember,
)
from engine.federated.local_options import matches
from engine.federated.output import Output
from engine.federated.parameters import Arrays
from engine.federated.schema import EXAMPLES, NumberField
from engine.trainer.runs import INFERENCE
from engine.training.artifact_set import CHECKPOINT
from engine.training.statistics import VARIANCES

if TYPE_CHECKING:
    from engine.trainer.trainer import Trainer

Wrap = Callable[[Strategy, Mapping[str, Any]], Strategy]
DataFor = Callable[[Mapping[str, Any]], Any]
_log = logging.getLogger("flwr")
_SERVER = "server_"  # prefix of the columns of the evaluation by the server


def server_app(
    make: MakeTrainer, data: DataFor | None = None, *, wrap: Wrap | None = None
) -> ServerApp:
    """Return a ServerApp that trains the model of a trainer in rounds.

    Args:
        make: makes the trainer from the configuration of the run; training starts from its values.
        data: returns the data on which the server evaluates after each round, given the
            configuration; None if only devices evaluate.
        wrap: wraps a strategy around the one that the configuration names.

    The configuration of the run is `[tool.flwr.app.config]`, see server_options.py.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        federation = Federation(make(context.run_config), dict(context.run_config), wrap)
        federation.run(grid, None if data is None else data(context.run_config))

    return app


class Federation:
    """Run of a federation, on the side of the server.

    Raises:
        EngineError: an option is not allowed, or there is no run to resume.
    """

    def __init__(
        self, trainer: Trainer, config: Mapping[str, Any], wrap: Wrap | None = None
    ) -> None:
        self.trainer, self.options = trainer, ServerOptions.of(config)
        self.privacy, encoding = privacy.options(config)
        self._check_combination()
        strategy = add_privacy(make_strategy(self.options.strategy, config), self.privacy)
        strategy = strategy if wrap is None else wrap(strategy, config)
        self.output = Output(self.options.output or "runs", self.options.resume)
        self._tied = {
            "strategy": self.options.strategy,
            "options": read_options(self.options.strategy, config),
            "seed": self.options.seed,
            "privacy": asdict(self.privacy),
        }
        self._rows: list[dict[str, Any]] = []
        before = 0 if self.output.begin is None else self._resume(strategy)
        moved = parameters.list_statistics(trainer) if self.options.averages_statistics else []
        trained = parameters.trainable(trainer)
        self.names = [n for n in (*trained, *moved) if not matches(n, self.options.local)]
        averaged = [n for n in moved if n in self.names]
        if averaged and self.privacy.kind != "none":
            raise InputError(
                f"privacy={self.privacy.kind!r}: the running statistics {averaged[0]!r} cannot be "
                "averaged with noise, which can make a variance negative; statistics='local' keeps "
                "them on the devices"
            )
        self.rounds = Rounds(
            strategy,
            encoding=encoding,
            limits=self._make_limits(config, averaged),
            statistics=averaged,
            seed=self.options.seed,
            timeout=self.options.timeout,
            before=before,
            done=self._save,
        )

    def _check_combination(self) -> None:
        """Refuse options that cannot be combined with privacy.

        Raises:
            InputError: secure aggregation with options that examine single updates; or two norms.
        """
        options = self.options
        each = options.strategy in NEED_EACH or options.update_norm
        if self.privacy.secure_range and each:
            what = "max-update-norm" if options.update_norm else f"strategy {options.strategy}"
            raise InputError(
                f"secure aggregation with {what}: the server sees no single update, and only the "
                "mean of all; strategies that average are supported"
            )
        if self.privacy.central and options.update_norm:
            raise InputError(
                f"privacy={self.privacy.kind!r} with max-update-norm: clipping-norm is what bounds "
                "updates there"
            )

    def _make_limits(self, config: Mapping[str, Any], averaged: list[str]) -> Limits:
        """Return the limits for replies.

        averaged: the running statistics that travel.
        """
        options, kind = self.options, self.privacy.kind
        most = 1 if kind == "local" or self.privacy.secure_range else options.max_examples
        numbers = {EXAMPLES: NumberField(True, 1, most, True)}
        if kind == "client-adaptive":
            numbers[NOT_CLIPPED] = NumberField(True, 0, 1, True)
        if options.strategy == "QFedAvg":
            loss = str(config.get("QFedAvg.train-loss-key", "train_loss"))
            numbers[loss] = NumberField(least=0.0, required=True)
        negative = parameters.list_statistics(self.trainer, VARIANCES) if averaged else []
        return Limits(
            numbers,
            frozenset(negative),
            0.0 if self.privacy.central else options.norm_ratio,  # left-out clients are not secret
            options.update_norm,
        )

    def _resume(self, strategy: Strategy) -> int:
        """Resume from a checkpoint; return its round.

        Raises:
            StateError: the run had another strategy or seed.
            EngineError: see `Trainer.load`.
        """
        position, (arrays, numbers) = self.output.load()
        for key, value in self._tied.items():
            if position.get(key) != value:
                raise StateError(
                    f"resume: {key} is {value!r} here and {position.get(key)!r} in the run of "
                    f"{str(self.output.begin)!r}"
                )
        assert self.output.begin is not None
        self.trainer.load(self.output.begin / CHECKPOINT)
        remember(strategy, arrays, numbers)
        before = int(position["round"])
        self._rows = self.output.read_history(before)
        return before

    def run(self, grid: Grid, data: Any = None) -> None:
        """Run all remaining rounds, and write the model.

        data: the data on which the server evaluates, or None.
        """
        with self.output.run.locked():
            _log.info("The run is kept in %s", self.output.path)
            if self.privacy.kind != "none":
                _log.info("%s", self.privacy.promise(self.options.rounds))
            arrays = to_record(parameters.get(self.trainer, self.names))
            left = self.options.rounds - self.rounds.before
            if left > 0:
                largest = self.privacy.secure_range
                self.rounds.start(
                    SecureGrid(grid, largest) if largest else grid,
                    arrays,
                    num_rounds=left,
                    timeout=self.options.timeout,
                    evaluate_fn=lambda number, arrays: self._evaluate(number, arrays, data),
                )
            self.trainer.export(self.output.path / INFERENCE)
            self.trainer.save(self.output.path / CHECKPOINT)
            _log.info("Wrote %s", self.output.path / INFERENCE)

    def _save(self, done: Round, arrays: Arrays) -> None:
        """Write the checkpoint of a round whose replies have been aggregated."""
        parameters.apply(self.trainer, arrays, self.names)
        memory = read_state(self.rounds.strategy)
        self.output.save(done.number, self.trainer, memory, self._tied, self.options.keep)
        self._note(done, {})

    def _evaluate(self, number: int, arrays: ArrayRecord, data: Any) -> MetricRecord | None:
        """Evaluate on the server's data, and complete the row of the round."""
        metrics: dict[str, float] = {}
        if data is not None:
            parameters.apply(self.trainer, from_record(arrays), self.names)
            metrics = self.trainer.evaluate(
                data, batch_size=self.options.batch_size, metrics=self.options.metrics
            )
        if number:
            done = self.rounds.round
            self._note(done, metrics)
            _log.info(
                "round %d: %d results, %d failures, %d bytes sent, %d received",
                done.number, done.results, done.failures, done.sent, done.received,
            )  # fmt: skip
        return MetricRecord(dict(metrics)) if metrics else None

    def _note(self, done: Round, found: Mapping[str, float]) -> None:
        """Write the row of a round, as soon as its checkpoint exists.

        found: the results of the evaluation by the server.
        """
        row = {
            "round": done.number,
            "results": done.results,
            "failures": done.failures,
            "left_out": " ".join(map(str, done.left_out)),
            "sent_bytes": done.sent,
            "received_bytes": done.received,
            "seconds": round(time.monotonic() - done.begun, 3),
        }
        row |= {_name_column(name, row): value for name, value in done.metrics.items()}
        row |= {f"{_SERVER}{name}": value for name, value in found.items()}
        if self._rows and int(self._rows[-1]["round"]) == done.number:
            del self._rows[-1]
        self._rows.append(row)
        self.output.write_history(self._rows)


def _name_column(name: str, row: Mapping[str, Any]) -> str:
    """Return the column of a number from devices, distinct from the server's own."""
    is_taken = name in row or name.startswith(_SERVER)
    return f"devices_{name}" if is_taken else name
