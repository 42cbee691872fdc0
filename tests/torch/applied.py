"""A module of any functions, and the check that an export of it is the module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.trainer.pytorch.export import export


class Applied(nn.Module):
    """A module whose outputs are functions of the output of a linear layer."""

    def __init__(self, width: int, functions: dict[str, Callable[..., Any]], **parts: Any) -> None:
        super().__init__()
        self.a, self.functions = nn.Linear(width, width), functions
        self.parts = nn.ModuleDict(parts)

    def forward(self, x: Any, *more: Any) -> Any:
        y = self.a(x)
        return {name: make(y, *more) for name, make in self.functions.items()}


def export_as_in_torch(net: nn.Module, example: Any, folder: Path) -> None:
    """`export` itself compares outputs and gradients with torch's."""
    torch.manual_seed(0)
    assert export(net, example, folder / "net.onnx", check_gradients=True).difference < 1e-5
