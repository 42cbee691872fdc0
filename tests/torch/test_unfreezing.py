"""Parameters that are unfrozen during a training run, as PyTorch's optimizers count them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine import Trainer
from engine.artifacts import SGD, Adagrad, Adam, AdamW, CrossEntropyLoss
from tests.support.tiny import BATCH, LABELS, X

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

RATE, EPOCHS, LATE = 0.02, 4, 2
CASES: dict[str, tuple[Any, Callable[..., torch.optim.Optimizer]]] = {
    "AdamW": (
        AdamW(adam_mode=0, eps=1e-4, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, RATE, eps=1e-4, weight_decay=0.1),
    ),
    "Adam": (Adam(eps=1e-4), lambda p: torch.optim.Adam(p, RATE, eps=1e-4)),
    "Adagrad": (Adagrad(lr_decay=0.2), lambda p: torch.optim.Adagrad(p, RATE, lr_decay=0.2)),
    "SGD": (
        SGD(momentum=0.9, dampening=0.3),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9, dampening=0.3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_late_parameters_move_as_in_pytorch(name: str) -> None:
    """There each parameter has a count of its own, which begins at its first gradient."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    method, make = CASES[name]
    x, labels = torch.from_numpy(X), torch.from_numpy(LABELS)
    trainer = Trainer.from_torch(
        model, (x[:BATCH],), loss=CrossEntropyLoss(), optimizer=method, threads=1
    )
    trainer.learning_rate = RATE
    trainer.fit(
        (X, LABELS), epochs=EPOCHS, unfreeze={"2.*": 0, "*": LATE}, shuffle=False,
        batch_size=BATCH, progress=False,
    )  # fmt: skip
    optimizer = make(model.parameters())
    for epoch in range(EPOCHS):
        model[0].requires_grad_(epoch >= LATE)
        for at in range(0, len(X), BATCH):
            optimizer.zero_grad()
            scores = model(x[at : at + BATCH])
            torch.nn.functional.cross_entropy(scores, labels[at : at + BATCH]).backward()
            optimizer.step()
    for name_, parameter in model.named_parameters():
        data = trainer.state.parameters[name_].data
        np.testing.assert_allclose(data, parameter.detach(), rtol=2e-4, atol=2e-6)
