"""Reports of a training, see `engine.trainer.reports`."""

from engine.trainer.reports import (
    SECTIONS,
    Comparison,
    CsvLog,
    HtmlReport,
    JsonLog,
    LiveCurve,
    Progress,
    RunRecord,
    Section,
    TensorBoard,
    compare,
    default,
)

__all__ = [
    "SECTIONS",
    "Comparison",
    "CsvLog",
    "HtmlReport",
    "JsonLog",
    "LiveCurve",
    "Progress",
    "RunRecord",
    "Section",
    "TensorBoard",
    "compare",
    "default",
]
