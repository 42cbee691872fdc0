"""Buffers that a module changes while it runs forward: they move in training, and nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.utils import parametrizations

from engine import SGD, Trainer, api
from engine.errors import ModelError
from engine.trainer.pytorch.export import export

WIDTH, CLASSES = 8, 4
RNG = np.random.default_rng(0)


def _make_batch() -> tuple[np.ndarray, np.ndarray]:
    x = RNG.standard_normal((5, WIDTH)).astype(np.float32)
    return x, RNG.integers(0, CLASSES, 5)


class Discriminator(nn.Module):
    """Layers that divide their weights by an estimate of their largest singular value."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        layers = norm(nn.Linear(WIDTH, 16)), nn.LeakyReLU(0.2), norm(nn.Linear(16, CLASSES))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Standardizer(nn.Module):
    """A layer of inputs in units of a running deviation, which is usual for observations."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Any) -> Any:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.variance.mul_(0.9).add_(x.var(0, unbiased=False), alpha=0.1)
        return self.layer((x - self.mean) / (self.variance + 1e-5).sqrt())


class Codebook(nn.Module):
    """Values from a table whose rows are running averages of what they stand for (VQ-VAE)."""

    def __init__(self, rows: int = 6) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.register_buffer("table", torch.randn(rows, WIDTH))
        self.register_buffer("counts", torch.ones(rows))
        self.register_buffer("sums", self.table.clone())

    def forward(self, x: Any) -> Any:
        h = self.encoder(x)
        nearest = ((h[:, None] - self.table[None]) ** 2).sum(-1).argmin(1)
        chosen = one_hot(nearest, len(self.counts)).to(h.dtype)
        y = chosen @ self.table
        if self.training:
            with torch.no_grad():
                self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(chosen.t() @ h, alpha=0.1)
                self.table.copy_(self.sums / self.counts[:, None])
        return self.decoder(h + (y - h).detach())


class Centred(nn.Module):
    """A layer that moves its buffer in evaluation mode, too, and reads the new value there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("mean", torch.zeros(CLASSES))

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return h - self.mean


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "spectral norm": lambda: Discriminator(parametrizations.spectral_norm),
    "spectral norm of old": lambda: Discriminator(nn.utils.spectral_norm),
    "standardizer": Standardizer,
    "codebook": Codebook,
    "centred": Centred,
}


def _make_trainer(name: str, folder: Path) -> tuple[Trainer, nn.Module]:
    """Return a trainer of a module, and a copy of the module before the export."""
    torch.manual_seed(0)
    module = MAKERS[name]().train()
    twin = copy.deepcopy(module)
    example = torch.from_numpy(_make_batch()[0])
    trainer = Trainer.from_torch(
        module, example, loss="cross_entropy", optimizer=SGD(lr=0.1), folder=folder
    )
    _compare_buffers(module, twin, 0.0)
    return trainer, twin


def _compare_buffers(module: nn.Module, twin: nn.Module, atol: float) -> None:
    theirs = dict(twin.named_buffers())
    for key, value in module.named_buffers():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=atol)


@pytest.mark.parametrize("name", MAKERS)
def test_buffers_move_with_each_step(name: str, tmp_path: Path) -> None:
    trainer, twin = _make_trainer(name, tmp_path)
    spare, steps = copy.deepcopy(twin), torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(4):
        x, y = _make_batch()
        steps.zero_grad()
        loss = cross_entropy(twin(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        steps.step()
        assert float(trainer.step(x, y)) == pytest.approx(loss.item(), abs=1e-5)
    trainer.to_torch(spare)
    _compare_buffers(spare, twin, 1e-5)
    before = copy.deepcopy(spare)
    x, _ = _make_batch()
    expected = twin.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(trainer.predict(x), expected, rtol=1e-4, atol=1e-5)
    trainer.to_torch(spare)
    _compare_buffers(spare, before, 0.0)  # answers move nothing


@pytest.mark.parametrize("name", MAKERS)
def test_buffers_move_where_gradients_are_accumulated(name: str, tmp_path: Path) -> None:
    """Once for each part of a batch, as torch does it."""
    _, twin = _make_trainer(name, tmp_path)
    state = api.CheckpointState.load_checkpoint(str(tmp_path / "checkpoint"))
    paths = {p: str(tmp_path / f"{p}_model.onnx") for p in ("training", "eval", "optimizer")}
    module = api.Module(paths["training"], state, paths["eval"])
    optimizer = api.Optimizer(paths["optimizer"], module)
    optimizer.set_learning_rate(0.1)
    steps = torch.optim.SGD(twin.parameters(), lr=0.1)
    module.train()
    for _ in range(2):
        steps.zero_grad()
        for _ in range(2):
            x, y = _make_batch()
            loss = cross_entropy(twin(torch.from_numpy(x)), torch.from_numpy(y))
            loss.backward()
            assert float(module(x, y)) == pytest.approx(loss.item(), abs=1e-5)
        steps.step()
        optimizer.step()
        module.lazy_reset_grad()
    for key, value in twin.named_buffers():
        np.testing.assert_allclose(state.parameters[key].data, value, rtol=1e-4, atol=1e-5)


def test_a_buffer_that_is_read_otherwise_in_evaluation_mode_is_named(tmp_path: Path) -> None:
    """Where the exporter cannot write what evaluation does: here, it depends on a value."""

    class Norm(Centred):
        def forward(self, x: Any) -> Any:
            h = self.layer(x)
            if not self.training:
                return h - self.mean if self.mean.sum() < 1 else h
            with torch.no_grad():
                self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
            return h - h.mean(0)

    message = "changes its buffer 'mean' while it runs forward, and reads it otherwise in evalu"
    with pytest.raises(ModelError, match=message):
        export(Norm(), torch.from_numpy(_make_batch()[0]), tmp_path / "net.onnx")
