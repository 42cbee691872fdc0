"""Reports of a training, see `engine.trainer.reports`."""

from engine.trainer.reports import (
    SECTIONS,
    CsvLog,
    HtmlReport,
    JsonLog,
    LiveCurve,
    Progress,
    Section,
    TensorBoard,
    default,
)

__all__ = [
    "SECTIONS",
    "CsvLog",
    "HtmlReport",
    "JsonLog",
    "LiveCurve",
    "Progress",
    "Section",
    "TensorBoard",
    "default",
]
