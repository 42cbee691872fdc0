"""A loss that reads a part of what a module returns, and normalisations that are not trained."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from engine import Trainer
from engine.artifacts import SGD, CrossEntropyLoss, MSELoss
from engine.errors import ModelWarning, NoInfluenceError

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

X = torch.linspace(-2, 3, 48).reshape(8, 6).sin() * 3 + 1
LABELS = torch.arange(8) % 3


class Heads(nn.Module):
    """Two heads, and a normalisation before the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.main = nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm, self.side = nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        h = self.body(x).tanh()
        return {"main": self.main(h), "side": self.side(self.norm(h))}


def trained_in_torch(net: nn.Module, score: Any) -> list[float]:
    """The losses of three steps with weight decay, which leaves parameters without gradients."""
    optimizer = torch.optim.SGD(
        [p for p in net.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1
    )
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(score(net), LABELS)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_alike(net: nn.Module, found: list[float], trainer: Trainer, score: Any) -> nn.Module:
    """Losses and all parameters and statistics are torch's; returns the module with ours."""
    mine = copy.deepcopy(net)
    trainer.to_torch(mine)
    assert found == pytest.approx(trained_in_torch(net, score), abs=1e-5)
    for (name, a), (_, b) in zip(mine.named_parameters(), net.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5, msg=name)
    return mine


def test_what_the_loss_does_not_read_stays_as_in_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Heads().train()
    with pytest.warns(ModelWarning, match="the loss does not depend on ") as caught:
        trainer = Trainer.from_torch(
            net, X, CrossEntropyLoss(), SGD(lr=0.1, weight_decay=0.1), loss_inputs=["main"],
            folder=tmp_path, threads=1,
        )  # fmt: skip
    (text,) = [str(w.message) for w in caught if w.category is ModelWarning]
    assert "'norm.weight', 'norm.bias', 'side.weight', 'side.bias': they stay as they" in text
    assert set(trainer.state.trainable_names()) == {
        "body.weight", "body.bias", "main.weight", "main.bias"}  # fmt: skip
    results = [trainer.step(X.numpy(), LABELS.numpy()) for _ in range(3)]
    mine = check_alike(net, results, trainer, lambda module: module(X)["main"])
    side = trainer.predict_batch(X.numpy())["side"]
    torch.testing.assert_close(torch.from_numpy(side), mine.eval()(X)["side"].detach())


def test_a_loss_that_reads_no_parameter_is_refused(tmp_path: Path) -> None:
    net = Heads().train()
    net.main.requires_grad_(False)
    net.body.requires_grad_(False)
    with pytest.raises(NoInfluenceError, match="cannot compute the partial derivative") as caught:
        Trainer.from_torch(
            net, X, CrossEntropyLoss(), SGD(), loss_inputs=["main"], folder=tmp_path, threads=1
        )
    assert caught.value.names == ("norm.weight", "norm.bias", "side.weight", "side.bias")


def test_names_that_are_given_may_be_left_as_well(tmp_path: Path) -> None:
    with pytest.warns(ModelWarning, match=r"does not depend on 'side\.weight', 'side\.bias': they"):
        trainer = Trainer.from_torch(
            Heads().train(), X, MSELoss(), SGD(), loss_inputs=["main"], train=["main.*", "side.*"],
            frozen_batch_norm=True, folder=tmp_path, threads=1,
        )  # fmt: skip
    assert set(trainer.state.trainable_names()) == {"main.weight", "main.bias"}


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("trains", [True, False])
def test_normalisations_keep_the_mode_of_the_module(
    affine: bool, trains: bool, tmp_path: Path
) -> None:
    """Frozen by requires_grad alone they use the batch, and in evaluation mode what they hold."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=affine), nn.Linear(6, 3)).train()
    net[1].train(trains).requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        trainer = Trainer.from_torch(
            net, X, CrossEntropyLoss(), SGD(lr=0.1, weight_decay=0.1), folder=tmp_path, threads=1
        )
    results = [trainer.step(X.numpy(), LABELS.numpy()) for _ in range(3)]
    mine = check_alike(net, results, trainer, lambda module: module(X))
    torch.testing.assert_close(mine[1].running_mean, net[1].running_mean)
    assert bool(mine[1].running_mean.any()) is trains
