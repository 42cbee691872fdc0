"""Rows that a mask selects, where one for each row of the batch is read of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine.errors import UnsupportedOpError
from engine.trainer.pytorch.export import export

END = 2
TOKENS = torch.tensor([[1, END, 3, END, 5], [END, 4, END, 1, 1], [5, 6, 7, END, END]])


class Reads(nn.Module):
    """A head that reads one of the rows whose tokens are ends, as BART's heads do."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.table, self.head, self.read = nn.Embedding(9, 4), nn.Linear(4, 2), read

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        return self.head(self.read(x, tokens == END))


@pytest.mark.parametrize(
    "read",
    [
        lambda x, ends: x[ends, :].view(x.size(0), -1, x.size(-1))[:, -1, :],
        lambda x, ends: x[ends].reshape(x.shape[0], -1, x.shape[2])[:, 0],
        lambda x, ends: (
            x[ends].view(x.shape[0], 2, 4)[:, -1] + x[ends].view(x.shape[0], 2, 4)[:, 0]
        ),
    ],
)
def test_the_first_and_the_last_are_read_where_they_are(read: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert export(Reads(read), TOKENS, tmp_path / "net.onnx").difference < 1e-6


def test_others_are_refused(tmp_path: Path) -> None:
    def read(x: Any, ends: Any) -> Any:
        return x[ends].view(x.shape[0], -1, x.shape[2]).sum(1)

    with pytest.raises(UnsupportedOpError, match="NonZero"):
        export(Reads(read), TOKENS, tmp_path / "net.onnx")
