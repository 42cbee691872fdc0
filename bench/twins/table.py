"""The twin of every workload, and what makes it take our weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.twins.images import cnn, mlp, resnet18, resnet50
from bench.twins.mobilenets import mobilenet, mobilenet_v3
from bench.twins.sequences import lstm, wav2vec2
from bench.twins.transformers import gpt2, minilm, transformer, vit

TWINS: Mapping[str, Callable[[], Any]] = {
    build.__name__: build
    for build in (
        mlp, cnn, mobilenet, mobilenet_v3, resnet18, resnet50, vit, transformer, minilm, gpt2,
        wav2vec2, lstm,
    )
}  # fmt: skip


def make(workload: str) -> Any:
    """Return the twin of a workload; of one whose name ends in _head only the last linear layer
    trains.

    Frozen batch normalisations use their running statistics.
    """
    net = TWINS[workload.removesuffix("_head")]()
    if workload.endswith("_head"):
        net.requires_grad_(False).eval()
        last = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
        last.requires_grad_(True)
    return net


def load(net: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Give a twin the weights that `bench.same` has made of a workload's, in the same order."""
    with torch.no_grad():
        for parameter, (name, value) in zip(_in_order(net), weights.items(), strict=True):
            assert parameter.numel() == value.size, f"{name}: {value.shape}, {parameter.shape}"
            parameter.copy_(torch.from_numpy(value).reshape(parameter.shape))


def _in_order(module: Any) -> Iterator[Any]:
    """Yield parameters as they are used; PyTorch's encoder layer has its norms at the end."""
    yield from module.parameters(recurse=False)
    children = dict(module.named_children())
    if isinstance(module, nn.TransformerEncoderLayer):
        names = ("self_attn", "norm1", "linear1", "linear2", "norm2")
        children = {name: children[name] for name in names}
    for child in children.values():
        yield from _in_order(child)
