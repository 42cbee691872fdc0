"""Event files, which TensorBoard draws."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.trainer.reports import event_file
from engine.trainer.reports.log_file import LogFile
from engine.trainer.reports.tracker import SECONDS, Tracker

if TYPE_CHECKING:
    from engine.trainer.fit import Fit


@check_arguments(seconds=AT_LEAST_0)
class TensorBoard(Tracker):
    """An event file for TensorBoard, written without its package.

    By step: `step/loss`, the mean since the previous event, `step/lr`, `step/samples_per_second`;
    at most one event per `seconds`.  At the end of every epoch: the columns of the history, as
    `epoch/loss` and `epoch/val_accuracy`.  A resumed run starts its own file in the folder,
    and tells TensorBoard to forget everything after the point where it continues.

    Args:
        folder: the folder of the event files; `tensorboard --logdir` takes it or a parent folder.
        seconds: between events of steps; 0: an event for every step.
    """

    def __init__(self, folder: str | os.PathLike[str], seconds: float = SECONDS) -> None:
        super().__init__(seconds)
        self._folder = Path(folder)
        self._file: LogFile | None = None

    def start(self, fit: Fit) -> None:
        name = f"events.out.tfevents.{time.time():.6f}.edgegrad"  # any name with tfevents in it
        self._file = LogFile(self._folder / name, "event file", b"")
        self._add(event_file.make_head(time.time()))
        if fit.resumed:
            self._add(event_file.start(time.time(), fit.step + 1))

    def log(self, fit: Fit, values: Mapping[str, float]) -> None:
        self._add(event_file.make_scalars(time.time(), fit.step, values))

    def finish(self, fit: Fit) -> None:
        if self._file is not None:
            self._file.catch_up()

    def _add(self, message: bytes) -> None:
        if self._file is not None:
            self._file.add(event_file.wrap_record(message))
