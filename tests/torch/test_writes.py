"""Values that are written by index: torch gives each its gradient, also where one is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.torch.applied import Applied, export_as_in_torch

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

INDICES = torch.tensor([[0, 2, 1], [3, 3, 0], [6, 1, 1]])


def test_a_place_that_is_named_twice(tmp_path: Path) -> None:
    twice = torch.tensor([0, 0])

    def assign(x: Any, index: Any, value: Any) -> Any:
        y = x.clone()
        y[index] = value
        return y * x

    def put(x: Any, i: Any) -> Any:
        return x.index_put((i[:, 0] % 3, i[:, 1] % 4), x[:, 0] * 2)

    def chosen(x: Any, i: Any) -> Any:
        values, places = x.topk(2, -1)
        return torch.zeros_like(x).scatter(-1, places, values)

    functions: dict[str, Callable[..., Any]] = {
        "scatter": lambda x, i: x[:, 0].scatter(1, i, x[:, 1, :3]),
        "in place": lambda x, i: x[:, 0].clone().scatter_(1, i, x[:, 1, :3]) * x[:, 2],
        "number": lambda x, i: x[:, 0].scatter(1, i, 2.0),
        "chosen": chosen,
        "copy": lambda x, i: x.index_copy(1, twice, x[:, 2:4]),
        "put": put,
        "list": lambda x, i: assign(x, (slice(None), [0, 0, 2]), x[:, 1:4]),
        "tensor": lambda x, i: assign(x, (slice(None), i[0]), x[:, :1]),
    }
    example = (torch.randn(3, 7, 7), INDICES)
    export_as_in_torch(Applied(7, functions), example, tmp_path)


def test_pools_that_overlap_and_are_undone(tmp_path: Path) -> None:
    """The largest element of several windows is written by each."""
    f = functional
    functions: dict[str, Callable[..., Any]] = {
        "overlap": lambda x: f.max_unpool2d(*f.max_pool2d(x, 3, 2, return_indices=True), 3, 2),
        "apart": lambda x: f.max_unpool2d(
            *f.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape
        ),
        "line": lambda x: f.max_unpool1d(*f.max_pool1d(x[:, 0], 3, 2, return_indices=True), 3, 2),
    }
    export_as_in_torch(Applied(9, functions), torch.randn(2, 2, 9, 9), tmp_path)
