"""Training of a twin on a lesson; prints a line of JSON.  bench/curves.py asks.

python -m bench.twins.curves FOLDER (torch|torch-bf16)

FOLDER has lesson.npz, weights.npz and twin.json, whose keys are the parameters of `main`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from bench.lessons import Lesson, draw_batches, take_batch
from bench.twins import table


def main(
    folder: Path, side: str, workload: str, sizes: Mapping[str, int], size: int,
    rates: Sequence[float], threads: int,
) -> None:  # fmt: skip
    """Print the losses, and the accuracy on what was held out.

    sizes: of the network, as of `table.make`.  size: the samples of a batch.
    rates: of learning, one a step.
    """
    torch.set_num_threads(threads)
    with np.load(folder / "lesson.npz") as arrays:
        lesson = Lesson(**arrays)
    net = table.make(workload, **sizes)
    table.load(net, dict(np.load(folder / "weights.npz")))
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.0)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=side == "torch-bf16")
    losses, hits = [], []
    batches = draw_batches(len(lesson.x), size, 0)
    for number, (rate, chosen) in enumerate(zip(rates, batches, strict=False), 1):
        # Artifacts have epsilon 1e-6, added before the bias of the moments is corrected for.
        optimizer.param_groups[0] |= {"lr": rate, "eps": 1e-6 / (1 - 0.999**number) ** 0.5}
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
    place = Path(sys.argv[1])
    main(place, sys.argv[2], **json.loads((place / "twin.json").read_text("utf-8")))
