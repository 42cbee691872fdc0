"""Networks for sound and other sequences in PyTorch."""

from __future__ import annotations

from typing import Any

from torch import nn


class _Channels(nn.Module):
    """Layer normalisation over the channels of [batch, channels, time]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class _Mean(nn.Module):
    """The mean over a dimension."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension

    def forward(self, x: Any) -> Any:
        return x.mean(self.dimension)


def build_wav2vec2() -> Any:
    """Return the convolutional encoder of wav2vec 2.0, the mean over time and a layer to 10
    classes.
    """
    layers: list[Any] = []
    channels = 1
    for taps, stride in zip((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2), strict=True):
        layers += [nn.Conv1d(channels, 512, taps, stride), _Channels(512), nn.GELU()]
        channels = 512
    return nn.Sequential(*layers, _Mean(2), nn.Linear(512, 10))


class _Lstm(nn.Module):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0].mean(1))


def build_lstm() -> Any:
    """Return an LSTM of 256 over 64 features, and a classifier of the mean over time."""
    return _Lstm(64, 256)
