"""Modules of float32 that compute some values in 16 bits become models that do not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from engine.errors import ModelWarning
from tests.torch.applied import Applied, export_as_in_torch

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def _compute_in_region(x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return functional.linear(x, torch.eye(8, dtype=x.dtype)).to(x.dtype) * x


HALVES: dict[str, Callable[..., Any]] = {
    "method": lambda x: (x.half() * 2).to(x.dtype) * x,
    "norm": lambda x: functional.layer_norm(x.to(torch.float16), (8,)).to(x.dtype) * x,
    "made": lambda x: (x @ x.mT.half().to(x.dtype))[..., :1] * torch.ones(8, dtype=torch.float16),
}
BFLOATS: dict[str, Callable[..., Any]] = {
    "region": _compute_in_region,
    "softmax": lambda x: x.softmax(-1, dtype=torch.bfloat16).to(x.dtype) * x,
    "product": lambda x: (x.bfloat16() @ x.bfloat16().mT).to(x.dtype) @ x,
}


@pytest.mark.parametrize(("kind", "functions"), [("float16", HALVES), ("bfloat16", BFLOATS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_of_16_bits(kind: str, functions: Any, dtype: Any, tmp_path: Path) -> None:
    """They are compared with the same wide values in torch."""
    net = Applied(8, functions).to(dtype)
    with pytest.warns(ModelWarning, match=rf"computes some values in .*{kind}"):
        export_as_in_torch(net, torch.randn(3, 5, 8, dtype=dtype), tmp_path)


def test_regions_that_are_off_say_nothing(tmp_path: Path) -> None:
    def compute(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            return x.float() * 2

    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        export_as_in_torch(Applied(4, {"y": compute}), torch.randn(3, 4), tmp_path)
