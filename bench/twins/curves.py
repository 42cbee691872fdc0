"""Training of a twin on a lesson; prints a line of JSON.  bench/curves.py asks.

python -m bench.twins.curves WORKLOAD FOLDER STEPS SIZE LEARNING_RATE THREADS (torch|torch-bf16)

FOLDER has lesson.npz and weights.npz.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from bench.lessons import Lesson, draw_batches, take_batch
from bench.twins import table


def main(workload: str, folder: Path, steps: int, size: int, rate: float, side: str) -> None:
    """Print the losses, and the accuracy on what was held out."""
    with np.load(folder / "lesson.npz") as arrays:
        lesson = Lesson(**arrays)
    net = table.make(workload)
    table.load(net, dict(np.load(folder / "weights.npz")))
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.0)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=side == "torch-bf16")
    losses, hits = [], []
    for number, chosen in enumerate(islice(draw_batches(len(lesson.x), size, 0), steps), 1):
        # Artifacts have epsilon 1e-6, added before the bias of the moments is corrected for.
        optimizer.param_groups[0]["eps"] = 1e-6 / (1 - 0.999**number) ** 0.5
        x, y = map(torch.from_numpy, take_batch(lesson.x, lesson.y, chosen))
        optimizer.zero_grad()
        with autocast:
            loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad(), autocast:
        for start in range(0, len(lesson.held_x) - size + 1, size):
            chosen = np.arange(start, start + size)
            x, y = map(torch.from_numpy, take_batch(lesson.held_x, lesson.held_y, chosen))
            hits.append((net(x).argmax(-1).reshape(-1) == y).float().mean().item())
    print(json.dumps({"losses": losses, "accuracy": float(np.mean(hits))}))


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[6]))
    steps, size = int(sys.argv[3]), int(sys.argv[4])
    main(sys.argv[1], Path(sys.argv[2]), steps, size, float(sys.argv[5]), sys.argv[7])
