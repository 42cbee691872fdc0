"""Ways in which every family is exported, named alike on both sides of the comparison."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Export:
    """Way in which a model becomes ONNX.

    exporter: "old", by tracing, or "new", by `torch.export`.  folds: whether the exporter may
    compute constants ahead and optimise, which is the default of both.  trains: the mode of the
    module, in which its normalisations use the statistics of the batch or keep their own.
    """

    exporter: str
    opset: int
    trains: bool
    folds: bool

    @property
    def tag(self) -> str:
        mode = "train" if self.trains else "eval"
        return f"{self.exporter}-{self.opset}-{mode}{'-folded' if self.folds else ''}"


EXPORTS = (
    Export("old", 14, trains=True, folds=False),
    Export("old", 17, trains=False, folds=True),
    Export("new", 18, trains=True, folds=False),
    Export("new", 20, trains=True, folds=True),
)
BY_TAG = {export.tag: export for export in EXPORTS}


def split_tag(tag: str) -> tuple[str, Export]:
    """Return the family and the export that `<family>-<export>` names."""
    family, _, export = tag.partition("-")
    return family, BY_TAG[export]
