"""Event files, which TensorBoard draws."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.errors import MissingPackageError
from engine.base.signatures import AT_LEAST_0, checked
from engine.trainer.fit import Callback
from engine.trainer.reports.log_file import LogFile
from engine.trainer.reports.window import Window

if TYPE_CHECKING:
    from engine.trainer.fit import Fit

SECONDS = 1.0  # from one event of steps to the next


@checked(seconds=AT_LEAST_0)
class TensorBoard(Callback):
    """An event file for TensorBoard; needs the extra `tensorboard`.

    By step: `step/loss`, the mean since the previous event, `step/lr`, `step/samples_per_second`;
    at most one event per `seconds`.  At the end of every epoch: the columns of the history, as
    `epoch/loss` and `epoch/val_accuracy`.  A resumed training starts its own file in the folder,
    and tells TensorBoard to forget everything after the point where it continues.

    Args:
        folder: of the event files; `tensorboard --logdir` takes it or a parent folder.
        seconds: between events of steps; 0: an event for every step.

    Raises:
        MissingPackageError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], seconds: float = SECONDS) -> None:
        try:
            from tensorboardX import record_writer
            from tensorboardX.proto import event_pb2
        except ImportError as error:
            raise MissingPackageError(
                "event files for TensorBoard need the package tensorboardX: "
                "pip install 'edgegrad[tensorboard]'"
            ) from error
        self._folder = Path(folder)
        self._event: Any = event_pb2.Event
        self._start: int = event_pb2.SessionLog.START
        self._checksum: Any = record_writer.masked_crc32c
        self._window = Window(seconds)
        self._file: LogFile | None = None

    def on_fit_begin(self, fit: Fit) -> None:
        """Start a file.

        Raises:
            FileError: it cannot be written.
        """
        name = f"events.out.tfevents.{time.time():.6f}.edgegrad"  # any name with tfevents in it
        self._file = LogFile(self._folder / name, "event file", b"")
        self._add(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        if fit.resumed:
            event = self._event(wall_time=time.time(), step=fit.step + 1)
            event.session_log.status = self._start
            self._add(event)

    def on_epoch_begin(self, fit: Fit) -> None:
        """Start to measure."""
        self._window.begin(fit)

    def on_step_end(self, fit: Fit) -> None:
        """Write an event, if the last one is old enough."""
        view = self._window.look(fit)
        if view is not None:
            values = {"loss": view.loss, "samples_per_second": view.rate}
            values |= {"lr": fit.logs["lr"]} if "lr" in fit.logs else {}
            self._add_values(fit.step, "step", values)

    def on_epoch_end(self, fit: Fit) -> None:
        """Write an event of the epoch."""
        self._add_values(fit.step, "epoch", fit.history.rows[-1])

    def on_fit_end(self, fit: Fit) -> None:
        """Write the events that could not be written before."""
        if self._file is not None:
            self._file.catch_up()

    def _add_values(self, step: int, group: str, values: dict[str, float]) -> None:
        event = self._event(wall_time=time.time(), step=step)
        for name, value in values.items():
            if name != "epoch":
                event.summary.value.add(tag=f"{group}/{name}", simple_value=value)
        self._add(event)

    def _add(self, event: Any) -> None:
        """Write an event as a TFRecord: length, its checksum, content, its checksum.

        Source: the comment on `WriteRecord` in tensorflow/core/lib/io/record_writer.h.
        """
        if self._file is None:  # the training ends because the file could not be opened
            return
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        sums = [struct.pack("<I", self._checksum(part)) for part in (length, content)]
        self._file.add(length + sums[0] + content + sums[1])
