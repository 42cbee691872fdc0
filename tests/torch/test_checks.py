"""Checks of values that raise an error, and losses of CTC inside of modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from engine.errors import UnsupportedOpError
from engine.trainer.pytorch.export import export
from tests.torch.applied import Applied, export_as_in_torch

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

INDICES = torch.tensor([[0, 2, 1], [3, 3, 0], [6, 1, 1]])
EXAMPLE = (torch.randn(3, 8, 7, generator=torch.Generator().manual_seed(0)), INDICES)


def test_checks_that_raise_pass(tmp_path: Path) -> None:
    def check(x: Any, i: Any) -> Any:
        if i is not None and i.max() >= 70:
            raise ValueError("a label is too large")
        assert torch.all(i >= 0).item(), "a label is negative"
        if not (i >= 0).all():
            raise ValueError("a label is negative")
        torch._check_tensor_all(i < 70)
        return x * 2

    export_as_in_torch(Applied(7, {"y": check}), EXAMPLE, tmp_path)


def test_arguments_of_any_name_whose_batches_are_one(tmp_path: Path) -> None:
    """torch's trace has a check that the batches are equal, which it cannot write."""

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, **named: Any) -> Any:
            both = self.a(torch.cat([named["x"], named["z"]]))
            return both.view(2, -1, 4).sum(0) + named["z"]

    example = {"x": torch.randn(3, 4), "z": torch.randn(3, 4)}
    export_as_in_torch(Adds(), example, tmp_path)


def test_branches_by_values_are_refused(tmp_path: Path) -> None:
    def branch(x: Any, i: Any) -> Any:
        if i.max() >= 70:
            x = x * 3
        return x * 2

    with pytest.raises(UnsupportedOpError, match="decides by values of tensors"):
        export(Applied(7, {"y": branch}), EXAMPLE, tmp_path / "net.onnx")


def test_ctc_inside_of_a_module(tmp_path: Path) -> None:
    """Of rows of labels, of a list of all, and of labels that a mask selects, as in Wav2Vec2."""

    def compute(x: Any, labels: Any, counts: Any, **options: Any) -> Any:
        scores = x.transpose(0, 1).log_softmax(-1)
        return functional.ctc_loss(
            scores, labels, torch.full((x.shape[0],), 8), counts, zero_infinity=True, **options
        )

    def select(x: Any, i: Any) -> Any:
        return x * compute(x, i.masked_select(i > 0), (i > 0).sum(-1), blank=5)

    functions: dict[str, Callable[..., Any]] = {
        "rows": lambda x, i: x * compute(x, i.clamp(1), torch.full((x.shape[0],), 2)),
        "each": lambda x, i: compute(x, i.clamp(1), i[:, 2] + 1, reduction="none"),
        "list": lambda x, i: (
            x * compute(x, i.clamp(1).flatten(), torch.full((x.shape[0],), 3), reduction="sum")
        ),
        "selected": select,
    }
    export_as_in_torch(Applied(7, functions), EXAMPLE, tmp_path)
