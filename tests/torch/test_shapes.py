"""Gradients of modules in the shapes that people train: none is taken for another than torch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.errors import ModelWarning
from engine.trainer.pytorch.export import export
from tests.torch import shapes


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("make", shapes.MAKERS, ids=lambda make: make.__name__)
def test_no_false_alarm(make: Callable[[], shapes.Made], tmp_path: Path) -> None:
    """All parameters are trained, and nothing is warned of."""
    torch.manual_seed(0)
    module, example = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        exported = export(module.train(), example, tmp_path / "net.onnx", check_gradients=True)
    trained = {id(module.get_parameter(name)) for name in exported.train}
    assert trained == {id(parameter) for parameter in module.parameters()}
