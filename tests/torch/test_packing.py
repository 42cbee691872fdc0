"""Recurrent layers over packed sequences train as in torch, and read no padding."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from engine import Trainer
from engine.artifacts import SGD, MSELoss
from engine.errors import ModelError, UnsupportedOpError
from engine.trainer.pytorch.export import export

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

X, LENGTHS = torch.randn(4, 6, 3, generator=torch.manual_seed(0)), torch.tensor([4, 6, 1, 4])


class Packs(nn.Module):
    """A layer over a packed batch, whose outputs, last states and lengths are all read."""

    def __init__(self, layer: Any, way: str = "", is_sorted: bool = False) -> None:
        super().__init__()
        self.layer, self.way, self.is_sorted, self.drop = layer, way, is_sorted, nn.Dropout(0.3)
        self.head = nn.LazyLinear(3)

    def forward(self, x: Any, lengths: Any) -> Any:
        first = self.layer.batch_first
        rows, given = x if first else x.transpose(0, 1), {"batch_first": first}
        lengths = lengths.tolist() if self.way == "list" else lengths.cpu()
        packed = pack_padded_sequence(rows, lengths, enforce_sorted=self.is_sorted, **given)
        if self.way == "data":
            packed = PackedSequence(self.drop(packed.data), *packed[1:])
        if self.way == "states":
            state = x.mean((0, 1)).sum() + x.new_zeros(2, x.shape[0], 5)
            outputs, states = self.layer(packed, state)
        else:
            outputs, states = self.layer(packed)
        y, lengths = pad_packed_sequence(
            outputs, padding_value=0.5, total_length=8 if self.way == "long" else None, **given
        )
        states = states if isinstance(states, torch.Tensor) else torch.cat(states, -1)
        y = y if first else y.transpose(0, 1)
        return self.head(y.sum(1) / lengths.unsqueeze(1)), y, states.transpose(0, 1)


def make_net(kind: str, way: str = "", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    kinds: dict[str, Any] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
    layer = kinds[kind](3, 5, **{"batch_first": True, **options})
    net = Packs(layer, way, is_sorted=way == "sorted")
    net.eval()(X, torch.tensor([6, 4, 3, 2]))  # gives the head its width
    return net.train()


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True, "dropout": 0.4},
        {"bias": False, "bidirectional": True, "batch_first": False},
    ],
)
def test_layers_over_packed_sequences(kind: str, options: Any, tmp_path: Path) -> None:
    """`export` itself compares outputs and gradients with torch's, under equal dropouts."""
    net = make_net(kind, **options)
    assert export(net, (X, LENGTHS), tmp_path / "net.onnx").difference < 1e-5


@pytest.mark.parametrize(
    ("kind", "way", "options"),
    [
        ("RNN", "sorted", {"nonlinearity": "relu"}),
        ("GRU", "list", {}),
        ("LSTM", "data", {}),
        ("GRU", "states", {"bidirectional": True}),
        ("GRU", "long", {}),
    ],
)
def test_ways_to_pack(kind: str, way: str, options: Any, tmp_path: Path) -> None:
    net = make_net(kind, way, **options)
    lengths = LENGTHS.sort(descending=True)[0] if way == "sorted" else LENGTHS
    assert export(net, (X, lengths), tmp_path / "net.onnx").difference < 1e-5


def test_other_lengths_than_in_the_example(tmp_path: Path) -> None:
    """Three steps on a batch of another size, then the exported model in onnxruntime."""
    net = make_net("LSTM", bidirectional=True)
    trainer = Trainer.from_torch(
        net, (X, LENGTHS), MSELoss(), SGD(lr=0.3), loss_inputs=["output_0"], threads=1
    )
    x, lengths, target = torch.randn(5, 6, 3), torch.tensor([2, 6, 3, 5, 1]), torch.randn(5, 3)
    results = [trainer.step(x.numpy(), lengths.numpy(), target.numpy()) for _ in range(3)]
    mine = copy.deepcopy(net)
    trainer.to_torch(mine)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for loss in results:
        optimizer.zero_grad()
        expected = nn.functional.mse_loss(net(x, lengths)[0], target)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), abs=1e-5)
    trainer.export(tmp_path / "net.onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    names = [value.name for value in session.get_inputs()]
    y, *_ = session.run(None, dict(zip(names, (x.numpy(), lengths.numpy()), strict=True)))
    torch.testing.assert_close(torch.from_numpy(y), mine.eval()(x, lengths)[0], rtol=0, atol=1e-5)


def test_what_depends_on_the_longest_sequence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"as torch does with total_length=x.shape\[1\]"):
        export(make_net("GRU"), (X, LENGTHS.clamp(max=4)), tmp_path / "net.onnx")


def test_what_is_not_known_of_lengths_is_refused(tmp_path: Path) -> None:
    projected = make_net("LSTM", proj_size=2)
    with pytest.raises(UnsupportedOpError, match="with proj_size runs over a packed sequence"):
        export(projected, (X, LENGTHS), tmp_path / "net.onnx")

    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Any, lengths: Any) -> Any:
            return x[:, : max(lengths.tolist())] * self.scale

    with pytest.raises(UnsupportedOpError, match=r"tolist\(\) of a vector with a value for each"):
        export(Lists(), (X, LENGTHS), tmp_path / "net.onnx")
