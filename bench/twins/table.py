"""The twin of every workload, and what makes it take our weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.twins.images import build_cnn, build_mlp, build_resnet18, build_resnet50
from bench.twins.mobilenets import build_mobilenet, build_mobilenet_v3
from bench.twins.sequences import build_lstm, build_wav2vec2
from bench.twins.transformers import build_gpt2, build_minilm, build_transformer, build_vit

TWINS: Mapping[str, Callable[..., Any]] = {
    build.__name__.removeprefix("build_"): build
    for build in (
        build_mlp, build_cnn, build_mobilenet, build_mobilenet_v3, build_resnet18, build_resnet50,
        build_vit, build_transformer, build_minilm, build_gpt2, build_wav2vec2, build_lstm,
    )
}  # fmt: skip


def make(workload: str, **sizes: int) -> Any:
    """Return the twin of a workload; of one whose name ends in _head only the last linear layer
    trains.

    Frozen batch normalisations use their running statistics.

    sizes: arguments of the function that builds it, where these are not the workload's.
    """
    net = TWINS[workload.removesuffix("_head")](**sizes)
    if workload.endswith("_head"):
        net.requires_grad_(False).eval()
        last = [m for m in net.modules() if isinstance(m, nn.Linear)][-1]
        last.requires_grad_(True)
    return net


def load(net: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Give a twin the weights that `bench.same` has made of a workload's, in the same order."""
    with torch.no_grad():
        for parameter, (name, value) in zip(_list_in_order(net), weights.items(), strict=True):
            assert parameter.numel() == value.size, f"{name}: {value.shape}, {parameter.shape}"
            parameter.copy_(torch.from_numpy(value).reshape(parameter.shape))


def _list_in_order(module: Any) -> Iterator[Any]:
    """Yield parameters as they are used; PyTorch's encoder layer has its norms at the end."""
    yield from module.parameters(recurse=False)
    children = dict(module.named_children())
    if isinstance(module, nn.TransformerEncoderLayer):
        names = ("self_attn", "norm1", "linear1", "linear2", "norm2")
        children = {name: children[name] for name in names}
    for child in children.values():
        yield from _list_in_order(child)
