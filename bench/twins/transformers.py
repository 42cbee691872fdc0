"""Transformers in PyTorch, by its own layers and its fused attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class _Encoder(nn.Module):
    """A post-norm encoder, and a classifier of the mean over positions."""

    def __init__(self, width: int, heads: int, layers: int, activation: str) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation=activation, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x).mean(1))


class _Embedding(nn.Module):
    """Words and positions, normalised."""

    def __init__(self, words: int, positions: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        return self.norm(self.words(x) + self.positions.weight)


def build_transformer() -> Any:
    """Return an encoder of 4 layers of 256."""
    return _Encoder(256, 4, 4, "relu")


def build_minilm() -> Any:
    """MiniLM: 6 layers of 384 over words and 128 positions."""
    return nn.Sequential(_Embedding(30522, 128, 384), _Encoder(384, 12, 6, "gelu"))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        batch, positions, width = x.shape
        shape = (batch, positions, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, positions, width))


class _PreNorm(nn.Module):
    """Attention and two linear layers, each of the normalised input, added to it."""

    def __init__(self, width: int, heads: int, epsilon: float, approximate: str) -> None:
        super().__init__()
        self.attend = nn.Sequential(
            nn.LayerNorm(width, epsilon), _Attention(width, heads, approximate == "tanh")
        )
        self.linear = nn.Sequential(
            nn.LayerNorm(width, epsilon), nn.Linear(width, 4 * width),
            nn.GELU(approximate), nn.Linear(4 * width, width),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        x = x + self.attend(x)
        return x + self.linear(x)


class _Patches(nn.Module):
    """Patches of 16 by 16 as vectors, before them the token of the class, and positions."""

    def __init__(self, width: int, patches: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Embedding(1, width)
        self.positions = nn.Embedding(patches + 1, width)

    def forward(self, x: Any) -> Any:
        y = self.patch(x).flatten(2).transpose(1, 2)
        token = self.token.weight.expand(len(y), 1, -1)
        return torch.cat((token, y), 1) + self.positions.weight


class _First(nn.Module):
    def forward(self, x: Any) -> Any:
        return x[:, 0]


def build_vit(patches: int = 196) -> Any:
    """ViT-Tiny of 10 classes, as in timm; by default for pictures of 224x224."""
    layers = [_PreNorm(192, 3, 1e-6, "none") for _ in range(12)]
    return nn.Sequential(
        _Patches(192, patches), *layers, nn.LayerNorm(192, 1e-6), _First(), nn.Linear(192, 10)
    )


class _TextClassifier(nn.Module):
    """Words and positions, blocks as in ViT, and a classifier of the mean over positions."""

    def __init__(self, words: int, positions: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(positions, width)
        self.layers = nn.Sequential(*(_PreNorm(width, heads, 1e-6, "none") for _ in range(layers)))
        self.norm = nn.LayerNorm(width, 1e-6)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        y = self.layers(self.words(x) + self.positions.weight)
        return self.head(self.norm(y).mean(1))


def build_text_transformer(
    words: int = 257, positions: int = 128, width: int = 128, layers: int = 2, heads: int = 4
) -> Any:
    """Return the architecture `text_transformer`, for 10 classes."""
    return _TextClassifier(words, positions, width, layers, heads)


class _Gpt2(nn.Module):
    def __init__(self, words: int, positions: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(positions, width)
        blocks = [_PreNorm(width, heads, 1e-5, "tanh") for _ in range(layers)]
        self.layers = nn.Sequential(*blocks, nn.LayerNorm(width))

    def forward(self, x: Any) -> Any:
        y = self.layers(self.words(x) + self.positions.weight)
        return functional.linear(y, self.words.weight).flatten(0, 1)


def build_gpt2() -> Any:
    """GPT-2 of 2 layers of 256 over 8,192 words and 128 positions, as in transformers."""
    return _Gpt2(8192, 128, 256, 4, 2)
