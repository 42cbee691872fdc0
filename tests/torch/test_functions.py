"""Bags of embeddings, projected LSTMs and dropouts of channels train as in torch."""

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
from engine.artifacts import SGD, CrossEntropyLoss
from engine.errors import ModelWarning, UnsupportedOpError
from engine.trainer.pytorch.export import export

LABELS = torch.arange(6) % 3
INDICES = torch.tensor([[1, 2, 3, 3, 5], [3, 3, 3, 3, 3], [0, 9, 8, 1, 1], [4, 4, 3, 2, 10],
                        [7, 6, 5, 4, 3], [10, 0, 10, 3, 1]])  # fmt: skip
FLAT, OFFSETS = INDICES.flatten()[:20], torch.tensor([0, 3, 3, 9, 14, 18])  # one bag is empty
WEIGHTS = torch.linspace(-1, 2, 30).reshape(6, 5)


def trained_as_in_torch(net: nn.Module, example: tuple[Any, ...], folder: Path) -> None:
    """Three steps: their losses, and all parameters after them."""
    trainer = Trainer.from_torch(
        net, example, CrossEntropyLoss(), SGD(lr=0.3), folder=folder, threads=1
    )
    results = [trainer.step(*[x.numpy() for x in example], LABELS.numpy()) for _ in range(3)]
    after = copy.deepcopy(net)
    assert trainer.to_torch(after) == []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for loss in results:
        optimizer.zero_grad()
        expected = functional.cross_entropy(net(*example), LABELS)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), abs=1e-5)
    for (name, a), (_, b) in zip(after.named_parameters(), net.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("padding", [3, -2])
def test_the_row_of_an_embedding_that_is_padding_stays(padding: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(11, 4, padding_idx=padding)
    net = nn.Sequential(table, nn.Flatten(), nn.Linear(20, 3))
    trained_as_in_torch(net, (INDICES,), tmp_path)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_options_of_embeddings_that_cannot_be_written_are_refused(kind: Any, option: Any) -> None:
    net = nn.Sequential(kind(11, 4, **option), nn.Flatten())
    (text,) = (f"{name}={value}" for name, value in option.items())
    with pytest.raises(UnsupportedOpError, match=rf"embedding of shape \[11, 4\] has {text}"):
        Trainer.from_torch(net, (INDICES,), CrossEntropyLoss(), SGD(lr=0.3))


class Made(nn.Module):
    def __init__(self, mode: str, padding: int | None, last: bool = False) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(11, 4, mode=mode, padding_idx=padding, include_last_offset=last)
        self.head = nn.Linear(4, 3)


class Bags(Made):
    def forward(self, offsets: Any, indices: Any, weights: Any = None) -> Any:
        return self.head(self.bag(indices, offsets, weights))


class Rows(Made):
    def forward(self, indices: Any, weights: Any = None) -> Any:
        return self.head(self.bag(indices, per_sample_weights=weights))


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows_and_of_runs(mode: str, padding: int | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained_as_in_torch(Rows(mode, padding), (INDICES,), tmp_path / "rows")
    trained_as_in_torch(Bags(mode, padding), (OFFSETS, FLAT), tmp_path / "runs")


def test_bags_with_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained_as_in_torch(Rows("sum", 3), (INDICES, WEIGHTS), tmp_path / "rows")
    weights = WEIGHTS.flatten()[:20]
    trained_as_in_torch(Bags("sum", None), (OFFSETS, FLAT, weights), tmp_path / "runs")


class Recurrent(nn.Module):
    """LSTM with projections whose outputs are all read; first states may be parameters."""

    def __init__(self, has_state: bool, **options: Any) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 6, proj_size=3, batch_first=True, **options)
        count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        self.hidden = self.cell = None
        if has_state:
            self.hidden = nn.Parameter(torch.randn(count, 1, 3))
            self.cell = nn.Parameter(torch.randn(count, 1, 6))
        width = 3 * (2 if options.get("bidirectional") else 1) + 9 * count
        self.head = nn.Linear(width, 3)

    def forward(self, x: Any) -> Any:
        state, rows = None, x.shape[0]
        if self.hidden is not None and self.cell is not None:
            state = tuple(s.expand(-1, rows, -1).contiguous() for s in (self.hidden, self.cell))
        y, (h, c) = self.cells(x, state)
        last = [s.transpose(0, 1).flatten(1) for s in (h, c)]
        return self.head(torch.cat([y.mean(1), *last], -1))


@pytest.mark.parametrize(
    ("has_state", "options"),
    [
        (False, {}),
        (False, {"num_layers": 2, "bidirectional": True}),
        (True, {"bidirectional": True, "bias": False}),
    ],
)
def test_lstms_with_projections(has_state: bool, options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained_as_in_torch(Recurrent(has_state, **options), (torch.randn(6, 7, 4),), tmp_path)


class Drops(nn.Module):
    """Three layers around a dropout, which is a module or a function."""

    def __init__(self, drop: Any) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), drop

    def forward(self, x: Any) -> Any:
        h = self.first(x) + 0
        drop = self.drop if isinstance(self.drop, nn.Module) else lambda h: self.drop(self, h)
        return self.second(drop(h)) + h


ROWS, IMAGES, VOLUMES = (6, 40, 6), (6, 20, 2, 6), (6, 20, 1, 2, 6)


@pytest.mark.parametrize(
    ("drop", "shape"),
    [
        (nn.AlphaDropout(0.3), (40, 6)),
        (nn.AlphaDropout(0.6, inplace=True), IMAGES),
        (nn.FeatureAlphaDropout(0.3), IMAGES),
        (nn.Dropout1d(0.3), ROWS),
        (nn.Dropout1d(0.3), (40, 6)),
        (nn.Dropout2d(0.3, inplace=True), IMAGES),
        (nn.Dropout2d(0.5), ROWS),
        (nn.Dropout3d(0.3), VOLUMES),
        (nn.Dropout3d(0.3), IMAGES),
        (lambda s, h: functional.alpha_dropout(h, training=s.training), IMAGES),
        (lambda s, h: torch.feature_dropout(h, 0.4, s.training), IMAGES),
        (lambda s, h: torch.feature_alpha_dropout_(h, 0.4, s.training), IMAGES),
        (nn.Dropout2d(0.0), IMAGES),
    ],
)
def test_dropouts_of_channels_and_of_selu(
    drop: Any, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Outputs and gradients are torch's under equal draws, and training draws again each time."""
    torch.manual_seed(0)
    net, x = Drops(drop).train(), torch.randn(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        exported = export(net, x, tmp_path / "net.onnx")
    trainer = Trainer.from_onnx(
        exported.model, "mse", SGD(lr=0.0), train=exported.train, folder=tmp_path, threads=1
    )
    x, y = x.numpy(), x.numpy()
    is_random = getattr(drop, "p", 1) > 0
    assert (len({trainer.step(x, y) for _ in range(4)}) > 1) == is_random
    assert len({trainer.evaluate_batch(x, y)[0] for _ in range(3)}) == 1


def test_dropouts_keep_what_they_are_for(tmp_path: Path) -> None:
    """Of an AlphaDropout the mean and the variance, of a Dropout2d the mean of whole channels."""

    class Only(nn.Module):
        def __init__(self, drop: nn.Module) -> None:
            super().__init__()
            self.scale, self.drop = nn.Parameter(torch.ones(1)), drop

        def forward(self, x: Any) -> Any:
            return self.drop(x * self.scale)

    x = torch.randn(16, 200, 5, 2)
    mse = {}
    for drop in (nn.AlphaDropout(0.3), nn.Dropout2d(0.3)):
        exported = export(Only(drop).train(), x, tmp_path / "net.onnx")
        trainer = Trainer.from_onnx(exported.model, "mse", SGD(lr=0.0), folder=tmp_path, threads=1)
        mse[type(drop)] = trainer.step(x.numpy(), torch.zeros_like(x).numpy())
    assert mse[nn.AlphaDropout] == pytest.approx(1, abs=0.05)
    assert mse[nn.Dropout2d] == pytest.approx(1 / 0.7, abs=0.1)


def test_values_are_taken_to_be_finite_where_a_module_checks_them(tmp_path: Path) -> None:
    """As detectors like DETR do in training mode, and others in their asserts."""

    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(5, 4), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            h = self.layer(x)
            if not torch.isfinite(h).all():
                h = h.clamp(-1e38, 1e38)
            assert h.isnan().sum() == 0
            assert not (torch.isinf(h) | h.isnan()).any().item()
            return self.head(torch.where(h.isfinite(), h, 0.0))  # a mask stays one

    torch.manual_seed(0)
    exported = export(Checked(), torch.randn(3, 5), tmp_path / "net.onnx", check_gradients=True)
    assert exported.difference < 1e-5
