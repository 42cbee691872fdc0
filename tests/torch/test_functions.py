"""Bags of embeddings and projected LSTMs train as in torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from engine import Trainer
from engine.artifacts import SGD, CrossEntropyLoss

LABELS = torch.arange(6) % 3
INDICES = torch.tensor([[1, 2, 3, 3, 5], [3, 3, 3, 3, 3], [0, 9, 8, 1, 1], [4, 4, 3, 2, 10],
                        [7, 6, 5, 4, 3], [10, 0, 10, 3, 1]])  # fmt: skip
FLAT, OFFSETS = INDICES.flatten()[:20], torch.tensor([0, 3, 3, 9, 14, 18])  # one bag is empty
WEIGHTS = torch.linspace(-1, 2, 30).reshape(6, 5)


def trained_as_in_torch(net: nn.Module, example: tuple[Any, ...], folder: Path) -> None:
    """Three steps: their losses, and all parameters after them."""
    trainer = Trainer.from_torch(
        net, example, CrossEntropyLoss(), SGD(lr=0.3), folder=folder, threads=1
    )
    found = [trainer.step(*[x.numpy() for x in example], LABELS.numpy()) for _ in range(3)]
    after = copy.deepcopy(net)
    assert trainer.to_torch(after) == []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for loss in found:
        optimizer.zero_grad()
        expected = functional.cross_entropy(net(*example), LABELS)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), abs=1e-5)
    for (name, a), (_, b) in zip(after.named_parameters(), net.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5, msg=name)


class Made(nn.Module):
    def __init__(self, mode: str, padding: int | None, last: bool = False) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(11, 4, mode=mode, padding_idx=padding, include_last_offset=last)
        self.head = nn.Linear(4, 3)


class Bags(Made):
    def forward(self, offsets: Any, indices: Any, weights: Any = None) -> Any:
        return self.head(self.bag(indices, offsets, weights))


class Rows(Made):
    def forward(self, indices: Any, weights: Any = None) -> Any:
        return self.head(self.bag(indices, per_sample_weights=weights))


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows_and_of_runs(mode: str, padding: int | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained_as_in_torch(Rows(mode, padding), (INDICES,), tmp_path / "rows")
    trained_as_in_torch(Bags(mode, padding), (OFFSETS, FLAT), tmp_path / "runs")


def test_bags_with_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained_as_in_torch(Rows("sum", 3), (INDICES, WEIGHTS), tmp_path / "rows")
    weights = WEIGHTS.flatten()[:20]
    trained_as_in_torch(Bags("sum", None), (OFFSETS, FLAT, weights), tmp_path / "runs")


class Recurrent(nn.Module):
    """An LSTM with projections of which all outputs are read; first states may be parameters."""

    def __init__(self, has_state: bool, **options: Any) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 6, proj_size=3, batch_first=True, **options)
        count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        self.hidden = self.cell = None
        if has_state:
            self.hidden = nn.Parameter(torch.randn(count, 1, 3))
            self.cell = nn.Parameter(torch.randn(count, 1, 6))
        width = 3 * (2 if options.get("bidirectional") else 1) + 9 * count
        self.head = nn.Linear(width, 3)

    def forward(self, x: Any) -> Any:
        state, rows = None, x.shape[0]
        if self.hidden is not None and self.cell is not None:
            state = tuple(s.expand(-1, rows, -1).contiguous() for s in (self.hidden, self.cell))
        y, (h, c) = self.cells(x, state)
        last = [s.transpose(0, 1).flatten(1) for s in (h, c)]
        return self.head(torch.cat([y.mean(1), *last], -1))


@pytest.mark.parametrize(
    ("has_state", "options"),
    [
        (False, {}),
        (False, {"num_layers": 2, "bidirectional": True}),
        (True, {"bidirectional": True, "bias": False}),
    ],
)
def test_lstms_with_projections(has_state: bool, options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained_as_in_torch(Recurrent(has_state, **options), (torch.randn(6, 7, 4),), tmp_path)
