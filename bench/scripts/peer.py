"""A peer's side of the benchmark, run by the Python named in EDGEGRAD_BENCH_PEERS.

    python peer.py (ort|torch|torch-plain|torch-compiled|torch-bf16) WORKLOAD ARTIFACTS THREADS

`open_torch` is eager and has images channels-last, its fastest layout on a CPU; `torch-plain` is
eager and has them as they come; `torch-compiled` is the first by torch.compile, and `torch-bf16`
the first under autocast to bfloat16.

Needs only what the peer needs.  Every line on standard input is a number of training steps to run;
each is answered by a line when they are done, or that says why they cannot be.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # of bench.twins


def open_ort(folder: Path, threads: int) -> Callable[[], object]:
    """Return a training step by onnxruntime-training from our artifacts."""
    import onnxruntime
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, session_options=options)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    batch = np.load(folder / "batch.npz")
    x, y = batch["x"], batch["y"]

    def run_step() -> object:
        loss = module(x, y)
        optimizer.step()
        module.lazy_reset_grad()
        return loss

    return run_step


def open_torch(workload: str, folder: Path, threads: int, kind: str) -> Callable[[], object]:
    """Return a training step by PyTorch; kind: one of those that begin with torch."""
    import torch
    from torch import nn

    from bench.twins import table

    torch.set_num_threads(threads)
    batch = np.load(folder / "batch.npz")
    x, y = torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])
    net = table.make(workload)
    if x.ndim == 4 and kind != "torch-plain":
        net, x = (t.to(memory_format=torch.channels_last) for t in (net, x))
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)
    criterion = nn.CrossEntropyLoss()
    run = torch.compile(net) if kind == "torch-compiled" else net

    def run_step() -> object:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "torch-bf16"):
            loss = criterion(run(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return run_step


def main() -> None:
    """Serve steps until standard input ends."""
    peer, workload, folder, threads = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print must not look like an answer
    step = (
        open_ort(folder, threads) if peer == "ort" else open_torch(workload, folder, threads, peer)
    )
    for line in sys.stdin:
        try:
            for _ in range(int(line)):
                step()
        except Exception as error:
            # Compilers of a peer fail in many ways, such as without g++.
            lines = [*filter(None, str(error).splitlines()), ""]
            print(f"{type(error).__name__}: {lines[0]}", file=answers, flush=True)
            raise
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
