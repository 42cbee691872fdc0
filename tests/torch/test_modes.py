"""Modules that compute something else in evaluation mode: both modes are the module's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gumbel_softmax

from engine import SGD, Trainer
from engine.errors import ModelError, UnsupportedOpError
from engine.trainer.pytorch.export import export

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
WIDTH, CLASSES, ROWS = 8, 4, 6
RNG = np.random.default_rng(0)


class Net(nn.Module):
    """A layer, something that depends on the mode, and a head."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Any) -> Any:
        h = self.layer(x).reshape(-1, *(self.shape or (WIDTH,)))
        return self.head(self.change(h).reshape(-1, WIDTH))

    def change(self, h: Any) -> Any:
        raise NotImplementedError


class Noise(Net):
    def change(self, h: Any) -> Any:
        return h + 0.1 * torch.randn_like(h) if self.training else h


class Choice(Net):
    """A soft choice in training, and the best one in evaluation."""

    def change(self, h: Any) -> Any:
        if self.training:
            return gumbel_softmax(h, tau=0.7)
        return nn.functional.one_hot(h.argmax(-1), WIDTH).to(h.dtype)


class HandNorm(Net):
    """A batch normalisation that is written by hand, with the statistics of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("var", torch.ones(WIDTH))

    def change(self, h: Any) -> Any:
        if not self.training:
            return (h - self.mean) / (self.var + 1e-5).sqrt()
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
            self.var.mul_(0.9).add_(h.var(0), alpha=0.1)
        return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


class InstanceNorm(Net):
    def __init__(self) -> None:
        super().__init__(2, 4)
        self.norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)

    def change(self, h: Any) -> Any:
        return self.norm(h)


class RandomSlopes(Net):
    def __init__(self) -> None:
        super().__init__()
        self.act, self.norm = nn.RReLU(), nn.BatchNorm1d(WIDTH)

    def change(self, h: Any) -> Any:
        return self.act(self.norm(h))


class Early(Net):
    """An auxiliary head in training, and another layer in evaluation alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        if self.training:
            return {"logits": self.head(self.drop(h)), "early": h[:, :CLASSES]}
        return {"logits": self.head(h * self.scale)}


DETERMINED: dict[str, Callable[[], nn.Module]] = {
    "batch norm by hand": HandNorm,
    "instance norm": InstanceNorm,
}
RANDOM: dict[str, Callable[[], nn.Module]] = {
    "noise": Noise,
    "choice": Choice,
    "slopes": RandomSlopes,
    "heads": Early,
}


def _make_batch() -> tuple[np.ndarray, np.ndarray]:
    x = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    return x, RNG.integers(0, CLASSES, ROWS)


def _make_trainer(module: nn.Module) -> Trainer:
    example = torch.from_numpy(_make_batch()[0])
    return Trainer.from_torch(
        module, example, loss="cross_entropy", optimizer=SGD(lr=0.1),
        loss_inputs=["logits"] if isinstance(module, Early) else None,
    )  # fmt: skip


def _answer(module: nn.Module, x: np.ndarray) -> np.ndarray:
    made = copy.deepcopy(module).eval()(torch.from_numpy(x))
    made = made["logits"] if isinstance(made, dict) else made
    return np.asarray(made.detach().numpy())


def _compare_answers(trainer: Trainer, module: nn.Module, folder: Path) -> None:
    """The module has the trained weights: predictions and exports are what it answers."""
    trainer.to_torch(module)
    x, _ = _make_batch()
    expected = _answer(module, x)
    predicted = trainer.predict(x)
    predicted = predicted[0] if isinstance(module, Early) else predicted
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)
    trainer.export(folder / "inference.onnx")
    session = onnxruntime.InferenceSession(folder / "inference.onnx")
    (name,) = (i.name for i in session.get_inputs())
    np.testing.assert_allclose(session.run(None, {name: x})[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DETERMINED)
def test_steps_are_those_of_training_mode(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = DETERMINED[name]().train()
    twin = copy.deepcopy(module)
    trainer = _make_trainer(module)
    steps = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(4):
        x, y = _make_batch()
        steps.zero_grad()
        loss = cross_entropy(twin(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        steps.step()
        assert float(trainer.step(x, y)) == pytest.approx(loss.item(), abs=1e-5)
    _compare_answers(trainer, module, tmp_path)
    for (key, mine), theirs in zip(module.named_buffers(), twin.buffers(), strict=True):
        if mine.is_floating_point():
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", RANDOM)
def test_training_draws_and_evaluation_does_not(name: str, tmp_path: Path) -> None:
    """`export` compares outputs of evaluation and gradients of training with torch's."""
    torch.manual_seed(0)
    module = RANDOM[name]().train()
    trainer = _make_trainer(module)
    x, y = _make_batch()
    losses = [float(trainer.step(x, y)) for _ in range(60)]
    assert sum(losses[-20:]) < sum(losses[:20])
    _compare_answers(trainer, module, tmp_path)


def test_a_module_that_is_another_for_a_longer_batch_is_still_refused(tmp_path: Path) -> None:
    class Counts(Net):
        calls = 0

        def change(self, h: Any) -> Any:
            Counts.calls += 1
            return h * Counts.calls

    with pytest.raises((ModelError, UnsupportedOpError), match="exported model is not the module"):
        export(Counts(), torch.from_numpy(_make_batch()[0]), tmp_path / "net.onnx")
