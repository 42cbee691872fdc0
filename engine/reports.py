"""Reports of a training, see `engine.trainer.reports`."""

from engine.trainer.reports import (
    SECTIONS,
    AimLog,
    Comparison,
    CsvLog,
    HtmlReport,
    JsonLog,
    LiveCurve,
    MlflowLog,
    Progress,
    RunRecord,
    Section,
    TensorBoard,
    WandbLog,
    compare,
    default,
)

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
