"""A peer's side of the benchmark, run by the Python named in EDGEGRAD_BENCH_PEERS.

    python peer.py (ort|torch) MODEL ARTIFACTS THREADS

Needs only what the peer needs.  Every line on standard input is a number of training steps to run;
each is answered by a line when they are done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def ort(folder: Path, threads: int) -> Callable[[], object]:
    """A training step by onnxruntime-training from our artifacts."""
    import onnxruntime
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, session_options=options)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    batch = np.load(folder / "batch.npz")
    x, y = batch["x"], batch["y"]

    def step() -> object:
        loss = module(x, y)
        optimizer.step()
        module.lazy_reset_grad()
        return loss

    return step


def mobilenet() -> Any:
    """MobileNetV2 of 10 classes, as torchvision has it, without dropout."""
    from torch import nn

    def convolution(ci: int, co: int, taps: int, stride: int = 1, group: int = 1) -> Any:
        conv = nn.Conv2d(ci, co, taps, stride, taps // 2, groups=group, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(co), nn.ReLU6(inplace=True))

    class Block(nn.Module):
        def __init__(self, ci: int, co: int, expansion: int, stride: int) -> None:
            super().__init__()
            wide = ci * expansion
            first = [convolution(ci, wide, 1)] if expansion > 1 else []
            last = (nn.Conv2d(wide, co, 1, bias=False), nn.BatchNorm2d(co))
            self.body = nn.Sequential(*first, convolution(wide, wide, 3, stride, wide), *last)
            self.adds = stride == 1 and ci == co

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.adds else self.body(x)

    stages = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    )  # fmt: skip
    layers, channels = [convolution(3, 32, 3, 2)], 32
    for expansion, co, blocks, stride in stages:
        for i in range(blocks):
            layers.append(Block(channels, co, expansion, 1 if i else stride))
            channels = co
    layers += [convolution(channels, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, 10))


def transformer() -> Any:
    """A post-norm encoder of 4 layers and a classifier of the mean over positions."""
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.head = nn.Linear(256, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(x).mean(1))

    return Encoder()


def minilm() -> Any:
    """MiniLM: 6 layers of 384 over words and 128 positions, and a classifier of the mean."""
    import torch
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(30522, 384)
            self.positions = nn.Parameter(torch.randn(128, 384))
            self.norm = nn.LayerNorm(384)
            layer = nn.TransformerEncoderLayer(
                384, 12, 1536, dropout=0.0, activation="gelu", batch_first=True
            )
            self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.head = nn.Linear(384, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.norm(self.words(x) + self.positions)).mean(1))

    return Encoder()


def torch(model: str, folder: Path, threads: int) -> Callable[[], object]:
    """A training step by PyTorch eager; convolutions channels-last, its fastest layout on a CPU."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    batch = np.load(folder / "batch.npz")
    x, y = torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])
    if model == "mlp":
        net = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))
    elif model == "mobilenet":
        net = mobilenet()
    elif model == "transformer":
        net = transformer()
    elif model == "minilm":
        net = minilm()
    else:
        net = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip
    if x.ndim == 4:
        net, x = (t.to(memory_format=torch.channels_last) for t in (net, x))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    criterion = nn.CrossEntropyLoss()

    def step() -> object:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main() -> None:
    """Serve steps until standard input ends."""
    peer, model, folder, threads = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print must not look like an answer
    step = ort(folder, threads) if peer == "ort" else torch(model, folder, threads)
    for line in sys.stdin:
        for _ in range(int(line)):
            step()
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
