"""Rows that a mask of the batch selects: losses, sums and means of them, and writes to them."""

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
EXAMPLE = (torch.randn(3, 3, 7, generator=torch.Generator().manual_seed(0)), INDICES)


def test_reductions_of_selected_rows(tmp_path: Path) -> None:
    """The logarithm is one of the selected elements alone: the others have NaN and no gradient."""
    functions: dict[str, Callable[..., Any]] = {
        "sum": lambda x, i: x * x.masked_select(x > 0).sum(),
        "logarithm": lambda x, i: x * x[x > 0].log().mean(),
        "rows": lambda x, i: x * x[i > 1].square().mean(0),
        "largest": lambda x, i: x * (x[i > 1, 2].amax() - x[i > 1].min()),
        "centred": lambda x, i: x * (x[i > 1] - x[i > 1].mean(0, keepdim=True)).abs().sum(),
        "counted": lambda x, i: x * x[i > 1].softmax(-1)[:, :3].sum() / x[i > 1].shape[0],
        "length": lambda x, i: x * x[i > 1].sum() / len(x[i > 1]) * len(x),
        "elements": lambda x, i: x * x[i[:, 0] > 1].reshape(-1, 7).square().mean(),
        "places": lambda x, i: x * x[torch.where(i > 1)].relu().mean(),
        "flat places": lambda x, i: (
            x * x.flatten()[(x.flatten() > 0).nonzero().squeeze(1)].tanh().sum()
        ),
        "none": lambda x, i: x * x[i > 100].sum(),
    }
    export_as_in_torch(Applied(7, functions), EXAMPLE, tmp_path)


def test_losses_of_selected_rows(tmp_path: Path) -> None:
    f, weight = functional, torch.linspace(0.5, 2, 7)
    functions: dict[str, Callable[..., Any]] = {
        "squares": lambda x, i: x * f.mse_loss(x[i > 1], x[i > 1] * 2 + 1),
        "each": lambda x, i: x * f.l1_loss(x, x * x, reduction="none")[i > 1].mean(),
        "classes": lambda x, i: x * f.cross_entropy(x[i != 1], i[i != 1]),
        "weighted": lambda x, i: x * f.cross_entropy(x[i != 1], i[i != 1], weight),
        "smoothed": lambda x, i: (
            x * f.cross_entropy(x[i != 1], i[i != 1], label_smoothing=0.1, reduction="sum")
        ),
        "flat": lambda x, i: (
            x * f.cross_entropy(x.view(-1, 7)[i.view(-1) != 1], i.view(-1)[i.view(-1) != 1])
        ),
        "scores": lambda x, i: (
            x * f.binary_cross_entropy_with_logits(x[i > 1], (x[i > 1] > 0).float())
        ),
        "divergence": lambda x, i: (
            x
            * f.kl_div(x[i > 1].log_softmax(-1), (2 * x[i > 1]).softmax(-1), reduction="batchmean")
        ),
    }
    export_as_in_torch(Applied(7, functions), EXAMPLE, tmp_path)


def test_writes_by_a_mask(tmp_path: Path) -> None:
    def write(x: Any, mask: Any, value: Any) -> Any:
        y = x.clone()
        y[mask] = value
        return y * x

    functions: dict[str, Callable[..., Any]] = {
        "number": lambda x, i: write(x, x > 0.3, 0.0),
        "row": lambda x, i: write(x, i > 1, x[0, 0]),
        "own": lambda x, i: write(x, i > 1, x[i > 1] * 2),
        "merged": lambda x, i: x.masked_scatter((i > 1).unsqueeze(-1), x.flip(0) * 2),
    }
    export_as_in_torch(Applied(7, functions), EXAMPLE, tmp_path)


def test_a_mask_may_select_nothing_if_the_module_asks(tmp_path: Path) -> None:
    """As the heads of DeBERTa do: the loss of no labels is 0."""

    def compute(x: Any, i: Any) -> Any:
        at, labels = (i[:, 0] >= 1).nonzero(), i[:, 0]
        if at.size(0) > 0:
            rows = torch.gather(x[:, 0], 0, at.expand(at.size(0), x.size(2)))
            labels = torch.gather(labels, 0, at.view(-1))
            loss = nn.CrossEntropyLoss()(rows.view(-1, 7).float(), labels.view(-1))
        else:
            loss = torch.tensor(0.0)
        return x * (1 + loss)

    for number, indices in enumerate((INDICES, torch.zeros_like(INDICES))):
        folder = tmp_path / str(number)
        export_as_in_torch(Applied(7, {"y": compute}), (EXAMPLE[0], indices), folder)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, i: x[i > 1], "NonZero"),
        (lambda x, i: x * x[i > 1].sort(0)[0][0], "multiply by the mask"),
        (lambda x, i: x * int(x[i > 1].shape[0]), "compute with mask.sum()"),
    ],
)
def test_others_are_refused(function: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError, match=said):
        export(Applied(7, {"y": function}), EXAMPLE, tmp_path / "net.onnx")
