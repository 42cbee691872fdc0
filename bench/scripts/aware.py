"""Quantisation-aware training by torchao, run by the Python named in EDGEGRAD_BENCH_PEERS.

    python aware.py FOLDER BITS THREADS [EPOCHS RATE SEED]

FOLDER has lesson.npz, weights.npz (of a text_transformer of floats, in the order in which it uses
them), batch.npz and sizes.json.  Weights are rounded to BITS by channel and symmetrically, what
linear layers read to 8 bits, asymmetrically, with the range of each position (torchao's fake
quantisation of activations has no other ranges that follow the data).

With EPOCHS it trains and prints, as JSON, the percentage of right answers before and after.  If
not, every line on standard input is a number of steps, and is answered by `done`.

Needs torch, torchao and numpy.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # of bench.twins

import torch
from torch import nn
from torchao.quantization import quantize_
from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

from bench.twins import table
from bench.twins.transformers import build_text_transformer


def open_net(folder: Path) -> Any:
    """Return the model of floats."""
    net = build_text_transformer(**json.loads((folder / "sizes.json").read_text()))
    with np.load(folder / "weights.npz") as file:
        table.load(net, dict(file))
    return net


def add_roundings(net: Any, bits: int) -> None:
    """Round the weights and inputs of all linear layers, in place."""
    kind = torch.int8 if bits == 8 else torch.int4
    quantize_(
        net,
        QATConfig(
            activation_config=IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False),
            weight_config=IntxFakeQuantizeConfig(kind, "per_channel", is_symmetric=True),
            step="prepare",
        ),
    )


def open_step(net: Any, rate: float) -> Any:
    """Return a function that trains on a batch, and the optimizer."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.0, fused=True)
    criterion = nn.CrossEntropyLoss()

    def run(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()

    return run, optimizer


def measure(net: Any, x: Any, y: Any) -> float:
    """Return the percentage of right answers."""
    with torch.no_grad():
        return 100 * float((net(x).argmax(1) == y).float().mean())


def train(folder: Path, bits: int, epochs: int, rate: float, seed: int) -> tuple[float, float]:
    """Train; return the percentage of right answers before and after.

    bits: 0 for floats.
    """
    torch.manual_seed(seed)
    with np.load(folder / "lesson.npz") as file:
        x, y, held_x, held_y = (torch.from_numpy(file[n]) for n in ("x", "y", "held_x", "held_y"))
    net = open_net(folder)
    before = measure(net, held_x, held_y[:, 0])
    if bits:
        add_roundings(net, bits)
    run, optimizer = open_step(net, rate)
    size = 32
    steps = epochs * -(-len(x) // size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(size):
            run(x[chosen], y[chosen, 0])
            schedule.step()
    return before, measure(net, held_x, held_y[:, 0])


def main() -> None:
    """Train, or serve steps until standard input ends."""
    folder, bits, threads = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print must not look like an answer
    if len(sys.argv) > 4:
        epochs, rate, seed = int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])
        print(json.dumps(train(folder, bits, epochs, rate, seed)), file=answers, flush=True)
        return
    net = open_net(folder)
    if bits:
        add_roundings(net, bits)
    run, _ = open_step(net, 3e-4)
    with np.load(folder / "batch.npz") as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
    for line in sys.stdin:
        for _ in range(int(line)):
            run(x, y)
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
