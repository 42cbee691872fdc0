"""The models by name in PyTorch: torchvision's, timm's, and plain modules of the same names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional

from engine.models.catalog import ARCHITECTURES
from tests.support.model_samples import CLASSES, get_shape

PAD = 256


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(64 * 16, 128), nn.Linear(128, CLASSES)

    def forward(self, x: Any) -> Any:
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = torch.flatten(functional.max_pool2d(x, 2), 1)
        return self.fc2(functional.relu(self.fc1(x)))


class TextCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(257, 64)
        self.convs = nn.ModuleList(nn.Conv1d(64, 100, taps) for taps in (3, 4, 5))
        self.classifier = nn.Linear(300, CLASSES)

    def forward(self, x: Any) -> Any:
        y = self.embedding(x).transpose(1, 2)
        return self.classifier(torch.cat([conv(y).relu().amax(2) for conv in self.convs], 1))


class TextTransformer(nn.Module):
    def __init__(self, positions: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(257, 128)
        self.pos_embed = nn.Parameter(torch.zeros(1, positions, 128))
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.ModuleList(
            timm.models.vision_transformer.Block(128, 4, qkv_bias=True, norm_layer=norm)
            for _ in range(2)
        )
        self.norm = norm(128)
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: Any) -> Any:
        is_word = x != PAD
        y = self.embedding(x) + self.pos_embed
        mask = torch.where(is_word, 0.0, -torch.inf)[:, None, None]
        for block in self.blocks:
            y = block(y, attn_mask=mask)
        weights = is_word.float()
        return self.head((self.norm(y) * weights[..., None]).sum(1) / weights.sum(1, True))


class GruTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(257, 64)
        self.gru = nn.GRU(64, 64, bidirectional=True, batch_first=True)
        self.classifier = nn.Linear(128, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.gru(self.embedding(x))[0]).transpose(1, 2)


def _unit(ci: int, co: int, taps: int | tuple[int, int], **options: Any) -> nn.Sequential:
    """Return a convolution, a batch norm and a ReLU, named as in the graph."""
    parts = {
        "conv": nn.Conv2d(ci, co, taps, bias=False, **options), "norm": nn.BatchNorm2d(co),
        "relu": nn.ReLU(),
    }  # fmt: skip
    made = nn.Sequential()
    for name, part in parts.items():
        made.add_module(name, part)
    return made


class DsCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = _unit(1, 64, (4, 10), stride=2, padding=(1, 4))
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "depthwise": _unit(64, 64, 3, padding=1, groups=64), "pointwise": _unit(64, 64, 1)
            })
            for _ in range(4)
        )  # fmt: skip
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block["pointwise"](block["depthwise"](x))
        return self.classifier(x.mean((2, 3)))


class Autoencoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


class UNet(nn.Module):
    def __init__(self, levels: int = 3, width: int = 16) -> None:
        super().__init__()

        def twice(ci: int, co: int) -> nn.Sequential:
            return nn.Sequential(_unit(ci, co, 3, padding=1), _unit(co, co, 3, padding=1))

        sizes = [width << level for level in range(levels)]
        self.down = nn.ModuleList(twice(ci, co) for ci, co in zip([3, *sizes], sizes, strict=False))
        self.middle = twice(sizes[-1], 2 * sizes[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * co, co, 2, 2) for co in sizes)
        self.joined = nn.ModuleList(twice(2 * co, co) for co in sizes)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for part in self.down:
            kept.append(part(x))
            x = functional.max_pool2d(kept[-1], 2)
        x = self.middle(x)
        for level in reversed(range(len(kept))):
            x = self.joined[level](torch.cat((kept[level], self.up[level](x)), 1))
        return self.head(x)


def twin(name: str) -> Any:
    """Return the module of an architecture, for the small samples of tests, without dropout."""
    shape = get_shape(ARCHITECTURES[name])
    width = shape[0]
    if name in ("mobilenet_v2", "mobilenet_v3_small"):
        return getattr(torchvision.models, name)(num_classes=CLASSES, dropout=0.0)
    makers: dict[str, Callable[[], Any]] = {
        "mlp": lambda: nn.Sequential(
            nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES)
        ),
        "cnn": Cnn,
        "resnet18": lambda: torchvision.models.resnet18(num_classes=CLASSES),
        "vit_tiny": lambda: timm.create_model(
            "vit_tiny_patch16_224", num_classes=CLASSES, img_size=shape[1]
        ),
        "textcnn": TextCnn,
        "text_transformer": lambda: TextTransformer(width),
        "gru_tagger": GruTagger,
        "ds_cnn": DsCnn,
        "autoencoder": lambda: Autoencoder(width),
        "unet_small": UNet,
    }
    return makers[name]()


def _reordered(value: np.ndarray, width: int) -> np.ndarray:
    """Return gates in PyTorch's order, r z n, of ONNX's, z r h."""
    z, r, h = np.split(value, [width, 2 * width])
    return np.concatenate([r, z, h])


def state_of(name: str, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the parameters, or their gradients, under PyTorch's names: GRUs alone have others."""
    if name != "gru_tagger":
        return dict(values)
    state = {key: value for key, value in values.items() if not key.startswith("gru.")}
    for direction, end in enumerate(("", "_reverse")):
        halves = np.split(values["gru.bias"][direction], 2)
        parts = {
            "weight_ih": values["gru.weight_ih"][direction],
            "weight_hh": values["gru.weight_hh"][direction],
            "bias_ih": halves[0], "bias_hh": halves[1],
        }  # fmt: skip
        for part, value in parts.items():
            state[f"gru.{part}_l0{end}"] = _reordered(value, 64)
    return state
