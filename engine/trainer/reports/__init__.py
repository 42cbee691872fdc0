"""Reports: the output of a training run, while it runs and afterwards.

All are callbacks of `Trainer.fit`, which uses the ones of `default` unless told otherwise.
"""

from __future__ import annotations

from pathlib import Path

from engine.base.signatures import check_arguments
from engine.trainer.fit import Callback
from engine.trainer.reports.comparison import Comparison, RunRecord, compare
from engine.trainer.reports.csv_log import CsvLog
from engine.trainer.reports.html_report import HtmlReport
from engine.trainer.reports.json_log import JsonLog
from engine.trainer.reports.live import LiveCurve
from engine.trainer.reports.notebook import is_notebook
from engine.trainer.reports.progress import Progress
from engine.trainer.reports.section import Section
from engine.trainer.reports.sections import SECTIONS
from engine.trainer.reports.tensorboard import TensorBoard
from engine.trainer.reports.trackers import AimLog, MlflowLog, WandbLog
from engine.trainer.runs import HISTORY, LOG, REPORT

__all__ = [
    "SECTIONS",
    "AimLog",
    "Comparison",
    "CsvLog",
    "HtmlReport",
    "JsonLog",
    "LiveCurve",
    "MlflowLog",
    "Progress",
    "RunRecord",
    "Section",
    "TensorBoard",
    "WandbLog",
    "compare",
    "default",
]


@check_arguments
def default(progress: bool, folder: Path | None) -> list[Callback]:
    """Return the default reports of a training run.

    progress: whether to show progress, and in a notebook a live curve.
    folder: the folder of the run, with history.csv, log.jsonl and report.html; None to write no
        files.
    """
    callbacks: list[Callback] = [Progress()] if progress else []
    if progress and is_notebook():
        callbacks.append(LiveCurve())
    if folder is not None:
        callbacks += [CsvLog(folder / HISTORY), JsonLog(folder / LOG)]
        callbacks += [HtmlReport(folder / REPORT)]
    return callbacks
