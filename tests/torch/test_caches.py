"""Modules that keep what they compute of their weights, as long as they evaluate."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from engine.artifacts import SGD, CrossEntropyLoss
from engine.trainer.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


class Cached(nn.Module):
    """A layer that keeps what it computes of its weights in evaluation mode until it trains, as
    the attentions of LeViT and EfficientViT keep their biases."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.at = nn.Parameter(torch.randn(6)), torch.arange(12).reshape(3, 4) % 6
        self.biases: Any = None

    def train(self, mode: bool = True) -> Any:
        if mode:
            self.biases = None
        return super().train(mode)

    def forward(self, x: Any) -> Any:
        if self.training:
            return x @ self.table[self.at]
        if self.biases is None:
            self.biases = self.table[self.at]
        return x @ self.biases


@pytest.mark.parametrize("trains", [True, False])
def test_what_a_module_has_cached_of_its_weights_goes_with_them(trains: bool) -> None:
    """After the export, whose comparison evaluates the module, and after `to_torch`."""
    module, x, labels = Cached().train(trains), torch.randn(5, 3), torch.randint(0, 4, (5,))
    with torch.no_grad():
        module(x)
    trainer = Trainer.from_torch(module, x, CrossEntropyLoss(), SGD(lr=0.5), threads=1)
    assert module.training is trains
    twin = copy.deepcopy(module)  # which torch refuses with a result of autograd among its parts
    trainer.step(x.numpy(), labels.numpy())
    for net in (module, twin):
        trainer.to_torch(net)
        assert net.training is trains
        outputs = net.eval()(x).detach().numpy()
        np.testing.assert_allclose(outputs, trainer.predict(x.numpy()), atol=1e-5)
