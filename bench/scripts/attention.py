"""PyTorch's side of bench/attention.py: forward and backward of scaled_dot_product_attention.

    python attention.py THREADS BATCH HEADS ROWS WIDTH CAUSAL

Runs a step for each line that it reads, and answers "done".
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import scaled_dot_product_attention


def main() -> None:
    threads, batch, heads, rows, width, causal = (int(n) for n in sys.argv[1:])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape = (batch, heads, rows, width)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    dy = torch.randn(shape)
    for _ in sys.stdin:
        q.grad = k.grad = v.grad = None
        scaled_dot_product_attention(q, k, v, is_causal=bool(causal)).backward(dy)
        print("done", flush=True)


if __name__ == "__main__":
    main()
