"""Training steps of a twin with a workload's weights; prints a line of JSON.  bench/same.py asks.

python -m bench.twins.steps WORKLOAD FOLDER STEPS LEARNING_RATE

FOLDER has batch.npz and weights.npz.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.twins import table


def main(workload: str, folder: Path, steps: int, rate: float) -> None:
    """Print trained parameters, multiply-adds of a forward pass, and losses."""
    batch = np.load(folder / "batch.npz")
    x, y = torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])
    net = table.make(workload)
    table.load(net, dict(np.load(folder / "weights.npz")))
    trained = [p for p in net.parameters() if p.requires_grad]
    # Artifacts have epsilon 1e-6, added before the bias of the first step is corrected for.
    epsilon = 1e-6 / (1 - 0.999) ** 0.5
    optimizer = torch.optim.AdamW(trained, lr=rate, eps=epsilon, weight_decay=0.0)
    # The counter knows nothing of the fused attention of CPUs, but the products of the plain one.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        net(x.clone())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    numbers = sum(p.numel() for p in trained)
    flops = counted.get_total_flops()
    print(json.dumps({"trained": numbers, "multiply_adds": flops // 2, "losses": losses}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
