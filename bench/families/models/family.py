"""Family of models, and pieces that many families share.

A family is a function that makes a small model: the module, its inputs, and the target its output
is compared with.  A target of integers is one of classes, a target of floats is one of numbers, and
a model without a target ends in its loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

LENGTH, VOCABULARY = 8, 50

Made = tuple[nn.Module, tuple[torch.Tensor, ...], torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Family:
    """A way to make a model, and the library that its code is from."""

    make: Callable[[], Made]
    source: str


FAMILIES: dict[str, Family] = {}


def family(make: Callable[[], Made]) -> Callable[[], Made]:
    """Register a family under the name of its function; its module is named after its source."""
    source = make.__module__.rpartition(".")[2].partition("_")[0]
    assert make.__name__ not in FAMILIES, f"two families are named {make.__name__}"
    FAMILIES[make.__name__] = Family(make, source)
    return make


class Wrap(nn.Module):
    """A model of a library as a function of tensors."""

    def __init__(self, model: nn.Module, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(self.model, *inputs)


class Pooled(nn.Module):
    """The mean over time of an encoder's output, and a linear layer."""

    def __init__(
        self, encoder: nn.Module, call: Callable[..., torch.Tensor], width: int = 32
    ) -> None:
        super().__init__()
        self.encoder, self.call, self.head = encoder, call, nn.Linear(width, 4)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.call(self.encoder, *inputs).mean(1))


def labels(classes: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, classes, shape)


def tokens(batch: int = 3) -> torch.Tensor:
    """Random tokens but 0, the padding, whose row PyTorch leaves untrained and ONNX does not."""
    return 1 + labels(VOCABULARY - 1, batch, LENGTH)


def masked() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[0, 5:] = 0
    return tokens(), mask


def image(size: int, batch: int = 4) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 3, size, size),)


def image_classifier(net: nn.Module, size: int = 32, batch: int = 4) -> Made:
    """Four classes of random images."""
    return net, image(size, batch), labels(4, batch)
