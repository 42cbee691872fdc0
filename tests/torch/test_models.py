"""Models by name equal the modules of torchvision, timm and PyTorch: scores, gradients, files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch.nn import functional

from engine.checkpoint import safetensors
from engine.errors import InputError, ModelError, ShapeError
from engine.graphs.io import onnx_io
from engine.models.catalog import ARCHITECTURES, Architecture
from engine.models.named_model import make
from engine.models.weights import take_over
from engine.trainer.trainer import Trainer
from tests.support.harness import get_gradient
from tests.support.model_samples import make_batch, make_small
from tests.torch.model_twins import state_of, twin

KINDS = ARCHITECTURES.values()
# Of a gradient.  At the kinks of MobileNetV2's 35 ReLU6 rounding decides: PyTorch's own gradients
# in float32 are as far from those in float64.
ROUNDING = {"mobilenet_v2": 5e-2}
PUBLISHED = ("mobilenet_v2", "mobilenet_v3_small", "resnet18", "vit_tiny")


def without_dropout(kind: Architecture) -> Any:
    """Return the small graph of an architecture, in which nothing is random."""
    graph = make_small(kind).graph
    for node in graph.nodes:
        if node.op == "Dropout":
            node.op, node.inputs = "Identity", node.inputs[:1]
    return graph


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_scores_and_gradients_are_those_of_pytorch(kind: Architecture, tmp_path: Path) -> None:
    graph = without_dropout(kind)
    values = {n: a for n, a in graph.initializers.items() if a.dtype.kind == "f" and a.ndim}
    net = twin(kind.name)
    state = state_of(kind.name, values)
    missing, unexpected = net.load_state_dict(
        {name: torch.from_numpy(value.copy()) for name, value in state.items()}, strict=False
    )
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)

    data = make_batch(kind, 4)
    made = make_small(kind)
    trainer = Trainer.from_onnx(
        onnx_io.to_bytes(graph), made.loss, loss_inputs=made.loss_inputs, threads=2, folder=tmp_path
    )
    x, target = torch.from_numpy(data[0]), torch.from_numpy(data[-1])
    loss_of = functional.mse_loss if kind.answers == "input" else functional.cross_entropy
    with torch.no_grad():
        expected = net.eval()(x).numpy()
    np.testing.assert_allclose(trainer.predict(data[0]), expected, rtol=1e-3, atol=1e-4)

    loss = loss_of(net.train()(x), target)
    loss.backward()
    assert trainer.accumulate(*data) == pytest.approx(loss.item(), rel=1e-4)
    names = [name for name, parameter in trainer.state.parameters if parameter.requires_grad]
    ours = state_of(kind.name, {name: get_gradient(trainer.state, name) for name in names})
    theirs = {name: p.grad.numpy() for name, p in net.named_parameters()}
    assert ours.keys() == theirs.keys()
    largest = max(map(np.linalg.norm, theirs.values()))
    wrong = {
        name: float(np.linalg.norm(ours[name] - value))
        for name, value in theirs.items()
        if not np.linalg.norm(ours[name] - value)
        <= ROUNDING.get(kind.name, 2e-3) * max(np.linalg.norm(value), 1e-3 * largest)
    }
    assert not wrong


def published(name: str, classes: int) -> Any:
    """Return torchvision's or timm's own model, with its own random weights."""
    torch.manual_seed(0)
    if name == "vit_tiny":
        return timm.create_model("vit_tiny_patch16_224", num_classes=classes)
    return getattr(torchvision.models, name)(num_classes=classes)


@pytest.mark.parametrize("suffix", ["safetensors", "pth", "onnx"])
def test_weights_of_a_file_are_taken_by_name(suffix: str, tmp_path: Path) -> None:
    """The last layer of 10 classes stays random for 3; everything else is the file's."""
    kind, net = ARCHITECTURES["mobilenet_v3_small"], published("mobilenet_v3_small", 10)
    state = {name: value.numpy() for name, value in net.state_dict().items()}
    path = tmp_path / f"weights.{suffix}"
    if suffix == "safetensors":
        safetensors.write(str(path), state, {})
    elif suffix == "pth":
        torch.save({"state_dict": net.state_dict(), "epoch": 3}, path)
    else:
        example = torch.zeros(2, 3, 224, 224)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch's parts to one another
            torch.onnx.export(net.eval(), (example,), path, dynamo=True, optimize=False)
    made = make(kind, classes=3, weights=path)
    assert made.random == ["classifier.3.weight", "classifier.3.bias"]
    for name, value in made.graph.initializers.items():
        if name in state and name not in made.random:
            np.testing.assert_array_equal(value, state[name])
    assert not make(kind, classes=10, weights=path).random


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_initial_values_are_the_published_ones(name: str) -> None:
    """Every name and shape; of every parameter the mean and the deviation of its values."""
    graph, net = make(ARCHITECTURES[name], classes=100, seed=1).graph, published(name, 100)
    state = {n: v.numpy() for n, v in net.state_dict().items() if v.ndim}
    values = {n: a for n, a in graph.initializers.items() if a.dtype.kind == "f" and a.ndim}
    assert values.keys() == state.keys()
    for key, value in values.items():
        theirs = state[key]
        assert value.shape == theirs.shape
        error = 6 / theirs.size**0.5
        assert value.std() == pytest.approx(theirs.std(), rel=error, abs=1e-8), key
        assert abs(value.mean() - theirs.mean()) <= error * theirs.std() + 1e-8, key


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    graph = make(ARCHITECTURES["resnet18"], classes=10).graph
    torch.save(torchvision.models.resnet34(num_classes=10).state_dict(), path)
    with pytest.raises(ModelError, match=r"resnet18 has 102 parameters, and the file has other"):
        take_over(graph, ARCHITECTURES["resnet18"], path)
    torch.save(published("mobilenet_v2", 10).state_dict(), path)
    with pytest.raises(ModelError, match=r"and the file lacks 102: conv1.weight, "):
        take_over(graph, ARCHITECTURES["resnet18"], path)
    torch.save(published("vit_tiny", 10).state_dict(), path)
    small_vit = make(ARCHITECTURES["vit_tiny"], classes=10, input_shape=(3, 32, 32)).graph
    with pytest.raises(
        ShapeError, match=r"'pos_embed' is \[1, 197, 192\]; vit_tiny .* input_shape"
    ):
        take_over(small_vit, ARCHITECTURES["vit_tiny"], path)


class _Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harmed"),))


def test_no_code_in_a_file_of_pytorch_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": _Harm()}, "weights.pth")
    with pytest.raises(InputError, match="weights_only=True"):
        make(ARCHITECTURES["resnet18"], classes=10, weights="weights.pth")
    assert not Path("harmed").exists()
