"""Losses and optimizers of PyTorch, given to `Trainer.from_torch`: steps are torch's."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from engine import Trainer
from engine.errors import EngineError, ModelWarning

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

ROWS, STEPS = 6, 4
Loss = Callable[..., Any]


def make_net(outputs: int = 4) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs))


def compute_losses(
    net: nn.Module, loss: Loss, optimizer: Any, x: Any, targets: Sequence[Any]
) -> list[float]:
    """Return the losses of some steps of PyTorch."""
    net.train()
    values = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(net(x), *targets)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    return values


def check_steps(
    net: nn.Module, loss: Loss, targets: Sequence[Any], folder: Path, *, is_own: bool
) -> None:
    """Compare steps; is_own: whether the loss is exported with the module."""
    torch.manual_seed(4)
    x, twin = torch.randn(ROWS, 5), copy.deepcopy(net)
    expected = compute_losses(twin, loss, torch.optim.SGD(twin.parameters(), lr=0.1), x, targets)
    trainer = Trainer.from_torch(
        net, x, loss, torch.optim.SGD(net.parameters(), lr=0.1),
        targets=tuple(targets) if is_own else None, folder=folder,
    )  # fmt: skip
    arrays = [t.numpy() for t in targets]
    values = [trainer.step(x.numpy(), *arrays) for _ in range(STEPS)]
    np.testing.assert_allclose(values, expected, rtol=2e-6)
    trainer.to_torch(net)
    for name, value in twin.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def check_optimizer(net: nn.Module, make: Callable[[Any], Any], folder: Path) -> None:
    """Compare steps of cross-entropy, with the optimizer that `make` makes for a module."""
    x, twin = torch.randn(ROWS, 5), copy.deepcopy(net)
    trainer = Trainer.from_torch(net, x, nn.CrossEntropyLoss(), make(net), folder=folder)
    expected = compute_losses(twin, nn.CrossEntropyLoss(), make(twin), x, [LABELS])
    values = [trainer.step(x.numpy(), LABELS.numpy()) for _ in range(STEPS)]
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    trainer.to_torch(net)
    for name, value in twin.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value, rtol=1e-4, atol=1e-5)


LABELS = torch.tensor([0, 3, 1, 2, 2, 0])
SIGNS = torch.tensor([1.0, -1, -1, 1, 1, -1])
REAL = torch.linspace(-1.5, 2, ROWS * 4).reshape(ROWS, 4)
SHARES = REAL.softmax(1)


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (nn.CrossEntropyLoss(), LABELS),
        (nn.CrossEntropyLoss(), torch.where(LABELS == 3, -100, LABELS)),
        (nn.CrossEntropyLoss(torch.tensor([1.0, 2, 0.5, 3]), label_smoothing=0.1), LABELS),
        (nn.CrossEntropyLoss(reduction="sum", ignore_index=2), LABELS),
        (nn.MSELoss(), REAL),
        (nn.L1Loss(), REAL),
        (nn.SmoothL1Loss(beta=0.5), REAL),
        (nn.HuberLoss(delta=0.3), REAL),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0)), SHARES),
        (nn.KLDivLoss(reduction="batchmean"), SHARES),
        (functional.cross_entropy, LABELS),
        (functional.mse_loss, REAL),
        (functional.binary_cross_entropy_with_logits, SHARES),
        (functional.smooth_l1_loss, REAL),
    ],
)  # fmt: skip
def test_losses_of_torch_need_no_example_of_targets(
    tmp_path: Path, loss: Loss, target: Any
) -> None:
    check_steps(make_net(), loss, [target], tmp_path, is_own=False)


class Weighted(nn.Module):
    """A loss with a buffer and an option, which no package has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor([1.0, 2, 3, 4]))

    def forward(self, output: Any, target: Any) -> Any:
        return (self.weights * (output - target).abs().clamp(max=1.5)).mean()


def measure_pairs(output: Any, wanted: Any, *, power: float) -> Any:
    return (output[:, :2] * output[:, 2:] - wanted[:, :2]).abs().pow(power).mean()


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (nn.CrossEntropyLoss(), [SHARES]),
        (nn.MultiMarginLoss(), [LABELS]),
        (nn.MultiLabelSoftMarginLoss(), [(REAL > 0).float()]),
        (nn.PoissonNLLLoss(), [REAL.exp()]),
        (nn.GaussianNLLLoss(), [REAL, SHARES]),
        (nn.SoftMarginLoss(), [REAL.sign()]),
        (functional.multi_margin_loss, [LABELS]),
        (Weighted(), [REAL]),
        (functools.partial(measure_pairs, power=3), [REAL]),
        (lambda y, t: functional.cross_entropy(y, t) + 0.01 * (y * y).mean(), [LABELS]),
    ],
    ids=str,
)  # fmt: skip
def test_any_other_loss_is_exported_with_the_module(
    tmp_path: Path, loss: Loss, targets: Sequence[Any]
) -> None:
    check_steps(make_net(), loss, targets, tmp_path, is_own=True)


class Towers(nn.Module):
    """Two outputs, and a dropout that the module itself decides about."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x: Any) -> dict[str, Any]:
        x = functional.dropout(x, 0.0, self.training)
        return {"near": self.a(x), "far": self.b(x)}


def test_a_loss_gets_all_that_the_module_returns(tmp_path: Path) -> None:
    def loss(out: dict[str, Any], near: Any, labels: Any) -> Any:
        return functional.mse_loss(out["near"], near) + functional.cross_entropy(out["far"], labels)

    torch.manual_seed(3)
    check_steps(Towers(), loss, [REAL, LABELS], tmp_path, is_own=True)


def test_answers_and_exports_need_no_targets(tmp_path: Path) -> None:
    import onnx

    net, x = make_net(), torch.randn(ROWS, 5)
    trainer = Trainer.from_torch(net, x, nn.MultiMarginLoss(), targets=LABELS, folder=tmp_path)
    expected = net(x).detach().numpy()
    np.testing.assert_allclose(trainer.predict(x.numpy()), expected, rtol=1e-5, atol=1e-6)
    trainer.export(tmp_path / "out.onnx")
    graph = onnx.load(tmp_path / "out.onnx").graph
    assert ([v.name for v in graph.input], [v.name for v in graph.output]) == (
        ["input"], ["output"],
    )  # fmt: skip


def test_losses_of_several_outputs_may_be_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(3)
    net, x = Towers(), torch.randn(ROWS, 5)
    parts = {"near": nn.MSELoss(), "far": (nn.CrossEntropyLoss(), 0.5)}
    trainer = Trainer.from_torch(net, x, parts, folder=tmp_path)
    out = net(x)
    expected = functional.mse_loss(out["near"], REAL) + 0.5 * functional.cross_entropy(
        out["far"], LABELS
    )
    value = trainer.step(x.numpy(), REAL.numpy(), LABELS.numpy())
    assert value == pytest.approx(float(expected.detach()), rel=1e-6)


def make_groups(net: Any) -> list[dict[str, Any]]:
    return [
        {"params": net[0].parameters()},
        {"params": [net[2].weight], "lr": 0.003, "weight_decay": 0.0},
        {"params": [net[2].bias], "weight_decay": 0.3},
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda net: torch.optim.AdamW(net.parameters()),
        lambda net: torch.optim.AdamW(make_groups(net), lr=0.01, betas=(0.8, 0.95), eps=1e-6),
        lambda net: torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.1),
        lambda net: torch.optim.Adam(net.parameters(), decoupled_weight_decay=True),
        lambda net: torch.optim.SGD(
            net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
        lambda net: torch.optim.SGD(make_groups(net), lr=torch.tensor(0.1), weight_decay=0.1),
        lambda net: torch.optim.RMSprop(net.parameters(), centered=True, momentum=0.5),
        lambda net: torch.optim.Adagrad(net.parameters(), lr_decay=0.1),
        lambda net: torch.optim.Adafactor(net.parameters(), lr=0.05),
        lambda net: torch.optim.AdamW(net[2].parameters(), lr=0.1),
    ],
)
def test_optimizers_are_torchs(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    check_optimizer(make_net(), make, tmp_path)


class Tied(nn.Module):
    """Two layers with one weight, which has a group of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight = self.a.weight

    def forward(self, x: Any) -> Any:
        return self.b(self.a(x).tanh())


def test_a_tied_parameter_is_trained_in_its_group(tmp_path: Path) -> None:
    def make(net: Any) -> Any:
        biases = [net.a.bias, net.b.bias]
        return torch.optim.AdamW([{"params": biases}, {"params": [net.b.weight], "lr": 0.05}])

    torch.manual_seed(3)
    check_optimizer(Tied(), make, tmp_path)


def test_an_optimizer_that_has_done_steps_is_warned_of(tmp_path: Path) -> None:
    net, x = make_net(), torch.randn(ROWS, 5)
    optimizer = torch.optim.AdamW(net.parameters())
    compute_losses(net, nn.CrossEntropyLoss(), optimizer, x, [LABELS])
    with pytest.warns(ModelWarning, match="its moments are left out"):
        Trainer.from_torch(net, x, nn.CrossEntropyLoss(), optimizer, folder=tmp_path)


class Learned(nn.Module):
    """A loss with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output: Any, target: Any) -> Any:
        return functional.mse_loss(self.scale * output, target)


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        (nn.CrossEntropyLoss, None, r"CrossEntropyLoss is a class; give an object"),
        (nn.MultiMarginLoss(), None, r"needs an example .* targets=labels"),
        (nn.MSELoss(reduction="none"), REAL, r"reduction"),
        (lambda y, t: (y - t).abs(), REAL, r"returns \[.*, 4\]; expected a tensor of one number"),
        (Learned(), REAL, r"has the parameter 'scale', which requires a gradient"),
        ({"output": nn.MultiMarginLoss()}, None, r"of the output 'output' is not a loss of"),
        (3, None, r"loss: expected .*, got"),
    ],
)  # fmt: skip
def test_losses_that_are_refused(tmp_path: Path, loss: Any, targets: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        Trainer.from_torch(make_net(), torch.randn(ROWS, 5), loss, targets=targets, folder=tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: torch.optim.NAdam(net.parameters()), r"NAdam is not supported; supported: Ad"),
        (lambda net: torch.optim.Adam(net.parameters(), amsgrad=True), r"amsgrad=True is not"),
        (lambda net: torch.optim.SGD(net.parameters(), maximize=True), r"maximize=True is not"),
        (lambda net: torch.optim.SGD(make_net().parameters()), r"4 parameters that the module has"),
        (
            lambda net: torch.optim.SGD(
                [{"params": [net[0].bias]}, {"params": [net[2].bias], "momentum": 0.5}], lr=0.1
            ),
            r"momentum=0 and momentum=0.5 in different groups",
        ),
    ],
)
def test_optimizers_that_are_refused(
    tmp_path: Path, make: Callable[[Any], Any], message: str
) -> None:
    net = make_net()
    with pytest.raises(EngineError, match=message):
        Trainer.from_torch(
            net, torch.randn(ROWS, 5), nn.CrossEntropyLoss(), make(net), folder=tmp_path
        )


def test_a_loss_of_torch_makes_probabilities_of_probabilities_as_torch_does(tmp_path: Path) -> None:
    net = nn.Sequential(make_net(), nn.Softmax(1))
    labels = torch.randint(4, (ROWS,), generator=torch.Generator().manual_seed(5))
    check_steps(net, nn.CrossEntropyLoss(), [labels], tmp_path, is_own=False)
