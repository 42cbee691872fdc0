"""Reports: what a training shows while it runs, and what it leaves to read.

All are callbacks of `Trainer.fit`, which adds those of `default` by itself.
"""

from __future__ import annotations

from pathlib import Path

from engine.reports.csv_log import CsvLog
from engine.reports.html_report import HtmlReport
from engine.reports.json_log import JsonLog
from engine.reports.page import Section
from engine.reports.progress import Progress
from engine.reports.sections import SECTIONS
from engine.reports.tensorboard import TensorBoard
from engine.signatures import checked
from engine.trainer.callbacks import Callback

__all__ = [
    "SECTIONS",
    "CsvLog",
    "HtmlReport",
    "JsonLog",
    "Progress",
    "Section",
    "TensorBoard",
    "default",
]


@checked
def default(progress: bool, folder: Path | None) -> list[Callback]:
    """The reports of a training that is given none.

    progress: whether to show how it goes on.
    folder: of the run, where history.csv, log.jsonl and report.html are kept; None: no
        file is.
    """
    found: list[Callback] = [Progress()] if progress else []
    if folder is not None:
        found += [CsvLog(folder / "history.csv"), JsonLog(folder / "log.jsonl")]
        found += [HtmlReport(folder / "report.html")]
    return found
