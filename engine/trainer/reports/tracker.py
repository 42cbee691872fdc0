"""Tracker: a callback that hands the numbers of a training run on, by step and by epoch."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from engine.base.errors import EngineError, StateError
from engine.system.progress import get_logger
from engine.trainer.fit import Callback
from engine.trainer.reports.window import Window

if TYPE_CHECKING:
    from engine.trainer.fit import Fit

SECONDS = 1.0  # from one look at the steps to the next


class Tracker(Callback):
    """Base of callbacks that hand numbers on.

    By step: `step/loss`, the mean since the last time, `step/lr`, `step/samples_per_second`; at
    most once per `seconds`.  At the end of every epoch: the columns of the history, as `epoch/loss`
    and `epoch/val_accuracy`.

    seconds: between two looks at the steps; 0: every step.
    """

    def __init__(self, seconds: float) -> None:
        self._window = Window(seconds)
        self._is_open = False
        self._is_said = False

    @abstractmethod
    def start(self, fit: Fit) -> None:
        """Start before the training does."""

    @abstractmethod
    def log(self, fit: Fit, values: Mapping[str, float]) -> None:
        """Take the values of this step."""

    @abstractmethod
    def finish(self, fit: Fit) -> None:
        """End after the training."""

    def on_fit_begin(self, fit: Fit) -> None:
        """Start.

        Raises:
            EngineError: it cannot; nothing is trained yet.
        """
        try:
            self.start(fit)
        except EngineError:
            raise
        except Exception as error:
            raise StateError(
                f"{type(self).__name__} cannot start: {type(error).__name__}: {error}"
            ) from error
        self._is_open = True

    def on_epoch_begin(self, fit: Fit) -> None:
        """Start to measure."""
        self._window.begin(fit)

    def on_step_end(self, fit: Fit) -> None:
        """Hand on the values of the steps since the last time, if that is long enough ago."""
        view = self._window.look(fit)
        if view is not None:
            values = {"step/loss": view.loss, "step/samples_per_second": view.rate}
            values |= {"step/lr": fit.logs["lr"]} if "lr" in fit.logs else {}
            self._hand_on(fit, values)

    def on_epoch_end(self, fit: Fit) -> None:
        """Hand on the row of the epoch."""
        row = fit.history.rows[-1]
        self._hand_on(fit, {f"epoch/{name}": row[name] for name in row if name != "epoch"})

    def on_fit_end(self, fit: Fit) -> None:
        """End, also if the training has failed."""
        if self._is_open:
            with self._tolerated():
                self.finish(fit)
        self._is_open = False

    def _hand_on(self, fit: Fit, values: Mapping[str, float]) -> None:
        if self._is_open:
            with self._tolerated():
                self.log(fit, values)

    @contextlib.contextmanager
    def _tolerated(self) -> Iterator[None]:
        """Turn an error into a warning, once: no service of others ends a training run."""
        try:
            yield
        except Exception as error:
            if not self._is_said:
                self._is_said = True
                get_logger().warning(
                    f"{type(self).__name__}: {type(error).__name__}: {error}; the training goes on"
                )


def list_facts(fit: Fit) -> dict[str, Any]:
    """Return what the run is, for a service that lists runs."""
    known = {
        "epochs": fit.epochs,
        "batches": fit.batches,
        "batch_size": fit.batch_size,
        "monitor": fit.monitor,
        "folder": None if fit.folder is None else str(fit.folder),
    }
    return {name: value for name, value in known.items() if value is not None}
