"""Make tests/data/from_torch: an export by `engine.trainer.pytorch`, and how torch trains it.

    python -m tests.torch.record

Needs torch.  tests/trainer/test_torch_export.py trains the model without torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from engine.trainer.pytorch.export import export
from tests.support.places import FROM_TORCH


class Net(nn.Module):
    """A convolution, a batch normalisation, a dropout, and a linear layer."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.drop, self.head = nn.Dropout(drop), nn.Linear(6, 4)

    def forward(self, image: Any, scale: Any = None) -> Any:
        x = functional.relu(self.norm(self.conv(image)))
        x = self.head(self.drop(x.mean((2, 3))))
        return x if scale is None else x * scale


def torch_steps(net: Any, x: Any, labels: Any, count: int = 3) -> list[float]:
    """The losses of steps of plain gradient descent, by which the module learns."""
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Write the model, a batch, the losses of three steps and the parameters after them."""
    torch.manual_seed(0)
    net = Net().train()
    FROM_TORCH.mkdir(exist_ok=True)
    exported = export(net, torch.randn(2, 3, 8, 8), FROM_TORCH / "net.onnx")
    x, labels = torch.randn(5, 3, 8, 8), torch.randint(0, 4, (5,))
    losses = torch_steps(net, x, labels)
    after = {f"after.{n}": p.detach().numpy() for n, p in net.named_parameters()}
    np.savez(
        FROM_TORCH / "net.npz", x=x.numpy(), labels=labels.numpy(), losses=losses,
        train=exported.train, **after,
    )  # fmt: skip


if __name__ == "__main__":
    main()
