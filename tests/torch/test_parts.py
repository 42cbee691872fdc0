"""Micro-batches of modules that tell autograd something: as the whole batch, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine import Trainer
from engine.artifacts import SGD, MSELoss
from engine.errors import InputError
from engine.trainer.pytorch.export import export
from tests.torch import told
from tests.torch.told import WIDTH, Told

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

X = torch.linspace(-1.3, 1.4, 5 * WIDTH).reshape(5, WIDTH).sin()
MIXED_FORWARD = {"vq_vae", "hard_gumbel", "moving_mean"}  # a mean over the batch, or other draws


def function(backward: Any) -> Any:
    """The sum of x and a parameter as an autograd.Function of this backward."""

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, bias: Any) -> Any:
            ctx.save_for_backward(x, bias)
            return x + bias

    def run(ctx: Any, dy: Any) -> Any:
        return backward(dy, *ctx.saved_tensors)

    Sum.backward = staticmethod(run)
    return lambda s, x: s.b(Sum.apply(s.a(x), s.c.bias))


ALONE = {
    "clipped": lambda dy, x, b: (dy.clamp(-0.01, 0.01), dy.sum(0)),
    "clipped by the norm of each": lambda dy, x, b: (
        dy * (0.01 / dy.norm(dim=1, keepdim=True)).clamp(max=1), dy.sum(0)),
    "masked": lambda dy, x, b: (torch.where(x > 0, dy, 0.0), (dy * x).sum(0) * b),
    "masked in place": lambda dy, x, b: (dy.masked_fill(x > 0, 0.0), (dy.sum(0) * (b > 0))),
    "by a product": lambda dy, x, b: (dy * 2, dy.T @ x @ b),
    "none": lambda dy, x, b: (torch.zeros_like(dy), torch.zeros_like(b)),
}  # fmt: skip
CROSSING = {
    "centred": lambda dy, x, b: (dy - dy.mean(0), dy.sum(0)),
    "by the norm of all": lambda dy, x, b: (dy / dy.norm(), dy.sum(0)),
    "by statistics": lambda dy, x, b: (dy / x.std(0), dy.sum(0)),
    "by the size": lambda dy, x, b: (dy / x.shape[0], dy.sum(0)),
    "times the size": lambda dy, x, b: (dy * x.size(0), dy.sum(0)),
    "the sum for each": lambda dy, x, b: (dy.sum(0).expand_as(x), dy.sum(0)),
    "turned": lambda dy, x, b: (dy.flip(0), dy.sum(0)),
    "a mean for a parameter": lambda dy, x, b: (dy, dy.mean(0)),
    "decay": lambda dy, x, b: (dy, dy.sum(0) + 0.1 * b),
    "a softmax over the batch": lambda dy, x, b: (dy.softmax(0), dy.sum(0)),
}


def steps(made: Any, folder: Path) -> list[Trainer]:
    """Trainers of a module after a step on the batch: on the whole, and in three parts."""
    torch.manual_seed(3)
    module = Told(made).train()
    exported = export(module, X[:3], folder / "net.onnx")
    y = np.zeros(module(X).shape, np.float32)
    trainers = []
    for count in (1, 3):
        trainers.append(
            Trainer.from_onnx(exported.model, MSELoss(), SGD(lr=1.0), train=exported.train,
                              threads=1, micro_batches=count)
        )  # fmt: skip
        trainers[-1].step(X.numpy(), y)
    return trainers


@pytest.mark.parametrize(
    "made",
    [f for f in (*told.FUNCTIONS, *told.STOPS) if f.__name__ not in MIXED_FORWARD]
    + [pytest.param(function(f), id=name) for name, f in ALONE.items()],
)
def test_parts_train_as_the_whole_batch(made: Any, tmp_path: Path) -> None:
    whole, parted = (t.state.regions["param"].view(np.float32) for t in steps(made, tmp_path))
    np.testing.assert_allclose(parted, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CROSSING)
def test_a_backward_that_mixes_samples_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be trained on in parts: .*the gradient of node"):
        steps(function(CROSSING[name]), tmp_path)
