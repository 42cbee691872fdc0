"""PyTorch's side of bench/recurrent.py, run by the Python named in EDGEGRAD_BENCH_PEERS.

    python recurrent.py (LSTM|GRU) THREADS ONEDNN STEPS BATCH WIDTH HIDDEN

Every line on standard input asks for a forward and a backward pass, and is answered by a line.
"""

from __future__ import annotations

import os
import sys

import torch


def main() -> None:
    """Serve passes until standard input ends."""
    kind = sys.argv[1]
    threads, onednn, steps, batch, width, hidden = (int(n) for n in sys.argv[2:])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints must not look like an answer
    torch.set_num_threads(threads)
    torch.backends.mkldnn.enabled = bool(onednn)
    net = getattr(torch.nn, kind)(width, hidden)
    x = torch.randn(steps, batch, width, requires_grad=True)
    h, c = (torch.randn(1, batch, hidden, requires_grad=True) for _ in range(2))
    dy = torch.randn(steps, batch, hidden)
    for _ in sys.stdin:
        net.zero_grad()
        for given in (x, h, c):
            given.grad = None
        y, _ = net(x, (h, c) if kind == "LSTM" else h)
        y.backward(dy)
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
