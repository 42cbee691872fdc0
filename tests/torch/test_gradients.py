"""Gradients that a module defines hold after its export: every gradient is torch's."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from engine.artifacts import SGD, MSELoss
from engine.errors import ModelError, ModelWarning, UnsupportedOpError
from engine.graphs.offline import differentiate
from engine.trainer.pytorch import autograd as torch_autograd
from engine.trainer.pytorch import export as torch_export
from engine.trainer.pytorch import gradients as torch_gradients
from engine.trainer.pytorch.export import export
from engine.trainer.pytorch.program import program_of
from engine.trainer.trainer import Trainer
from tests.torch import told
from tests.torch.told import WIDTH, Told

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

X = torch.linspace(-1.3, 1.4, 5 * WIDTH).reshape(5, WIDTH).sin()


def made(function: Any) -> Told:
    torch.manual_seed(3)
    module = Told(function)
    module.train()
    return module


def gradients(module: nn.Module, x: Any, y: Any) -> dict[str, Any]:
    """Those of torch, of the mean squared error, of the parameters that have one."""
    module.zero_grad()
    actual_module = module(x)
    nn.functional.mse_loss(actual_module, y.expand_as(actual_module)).backward()
    return {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}


def check(function: Any, tmp_path: Path) -> None:
    """Every gradient of a batch of another size is torch's; no parameter has one too many."""
    module = made(function)
    exported = export(module, X[:3], tmp_path / "net.onnx")
    x, y = X * 1.1, torch.zeros_like(X)
    expected = gradients(module, x, y)
    assert set(exported.train) == set(expected)
    trainer = Trainer.from_onnx(exported.model, MSELoss(), SGD(lr=1.0), train=exported.train,
                                threads=1)  # fmt: skip
    before = {n: trainer.state.parameters[n].data.copy() for n in expected}
    shape = module(x).shape
    trainer.step(x.numpy(), np.zeros(shape, np.float32))
    for name, value in expected.items():
        moved = before[name] - trainer.state.parameters[name].data
        np.testing.assert_allclose(moved, value, rtol=1e-3, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    "function", [f for f in told.STOPS if f is not told.hard_gumbel], ids=lambda f: f.__name__
)
@pytest.mark.filterwarnings("ignore:.*buffer:engine.errors.ModelWarning")
def test_gradients_stop_where_torch_stops_them(function: Any, tmp_path: Path) -> None:
    check(function, tmp_path)


@pytest.mark.parametrize("function", told.FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_of_ones_own_keep_their_backward(function: Any, tmp_path: Path) -> None:
    check(function, tmp_path)


@pytest.mark.parametrize("function", [*told.RANDOM, told.hard_gumbel], ids=lambda f: f.__name__)
def test_random_modules_are_compared_under_equal_draws(function: Any, tmp_path: Path) -> None:
    """Without a warning; and what they draw differs from step to step."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        exported = export(made(function), X, tmp_path / "net.onnx")
    trainer = Trainer.from_onnx(exported.model, MSELoss(), SGD(lr=0.0), train=exported.train,
                                threads=1)  # fmt: skip
    losses = {trainer.step(X.numpy(), np.zeros((5, WIDTH), np.float32)) for _ in range(4)}
    assert len(losses) == 4


@pytest.mark.parametrize("channels", [1023, 1025])
def test_wide_batch_norms_are_compared(channels: int, tmp_path: Path) -> None:
    """Running statistics of 4,096 bytes and more are not constants of a plan that moves them."""
    torch.manual_seed(2)
    module = nn.Sequential(
        nn.Linear(3, channels), nn.BatchNorm1d(channels), nn.Hardswish(), nn.Linear(channels, 2)
    )
    exported = export(module, torch.randn(6, 3), tmp_path / "net.onnx", check_gradients=True)
    assert len(exported.train) == 6


class ForFloats(nn.Linear):
    """A layer that computes in float32 alone."""

    def forward(self, x: Any) -> Any:
        assert x.dtype == torch.float32
        return super().forward(x)


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize(
    ("last", "in_double", "attempts"),
    [(nn.Linear, True, torch_gradients.ATTEMPTS), (nn.Linear, False, 1),
     (ForFloats, True, torch_gradients.ATTEMPTS), (ForFloats, False, 2)],
)  # fmt: skip
def test_a_difference_counts_if_it_stays_in_double_and_with_other_examples(
    last: type[nn.Linear], in_double: bool, attempts: int, integers: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Rounding over the kink of a Relu goes in float64, or with the example; an error does not.

    in_double: the difference is an error, in float64 and with every example; otherwise it is in
        float32 and with the first example alone.
    """
    feeds, real = list[Any](), torch_gradients._run

    def run(graph: Any, given: Any, train: Any) -> dict[str, Any]:
        made = real(graph, given, train)
        is_single = all(a.dtype != np.float64 for a in given.values())
        if is_single:
            feeds.append(next(iter(given.values())).copy())
        is_wrong = in_double or (is_single and len(feeds) == 1)
        return {n: g * (1.1 if is_wrong else 1) for n, g in made.items()}

    monkeypatch.setattr(torch_gradients, "_run", run)
    torch.manual_seed(2)
    module = nn.Sequential(nn.Embedding(9, 4) if integers else nn.Linear(5, 4), last(4, 2))
    example = torch.randint(9, (3, 5)) if integers else torch.randn(3, 5)
    if in_double:
        with pytest.raises(ModelError, match="does not train as the module does"):
            export(module, example, tmp_path / "net.onnx")
    else:
        export(module, example, tmp_path / "net.onnx")
    assert len({f.tobytes() for f in feeds}) == len(feeds) == attempts


def test_hooks_of_parameters_change_their_gradients(tmp_path: Path) -> None:
    def function(s: Any, x: Any) -> Any:
        return s.b(s.a(x))

    module = made(function)
    mask = torch.arange(WIDTH)[:, None] % 2
    module.a.weight.register_hook(lambda dy: dy * mask)
    exported = export(module, X, tmp_path / "net.onnx")
    trainer = Trainer.from_onnx(exported.model, MSELoss(), SGD(lr=1.0), train=exported.train,
                                threads=1)  # fmt: skip
    before = trainer.state.parameters["a.weight"].data.copy()
    expected = gradients(module, X, torch.zeros_like(X))["a.weight"]
    trainer.step(X.numpy(), np.zeros((5, WIDTH), np.float32))
    moved = before - trainer.state.parameters["a.weight"].data
    np.testing.assert_allclose(moved, expected, atol=1e-6)
    assert not moved[::2].any()


def test_torch_is_as_it_was(tmp_path: Path) -> None:
    tensor, guard = torch.Tensor, torch.autograd.grad_mode.inference_mode
    owners = (tensor, torch.autograd, torch.autograd.Function, guard)
    before = [dict(vars(owner)) for owner in owners]
    module = made(told.reversed_gradient)
    grads = torch.ones_like(module.a.weight)
    module.a.weight.grad = grads
    export(module, X, tmp_path / "net.onnx")
    with pytest.raises(UnsupportedOpError):
        export(made(inner_gradient), X, tmp_path / "net.onnx")
    for owner, own in zip(owners, before, strict=True):
        assert vars(owner).keys() == own.keys()
        assert all(vars(owner)[k] is v for k, v in own.items())
    assert module.a.weight.grad is grads
    assert module.b.weight.grad is None
    assert torch.is_grad_enabled()


# --- what is refused


def inner_gradient(s: Any, x: Any) -> Any:
    x = x.requires_grad_()
    (grad,) = torch.autograd.grad(s.a(x).square().sum(), x, create_graph=True)
    return grad


class Reads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy * 2 if dy.sum().item() > 0 else dy


def reads(s: Any, x: Any) -> Any:
    return Reads.apply(s.a(x))


def shared(s: Any, x: Any) -> Any:
    h = s.a(x) + 0
    other = h.detach()
    other.add_(1)
    return h * 2


def written(s: Any, x: Any) -> Any:
    h = s.a(x) + 0
    with torch.no_grad():
        h[:, 0] = 0
    return h * 2


def late_hook(s: Any, x: Any) -> Any:
    h = s.a(x)
    y = s.b(h)
    h.register_hook(lambda dy: dy * 2)
    return y + h


def branches(s: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda h: h.detach(), lambda h: h.sin(), (s.a(x),))


def all_stopped(s: Any, x: Any) -> Any:
    return s.a(x).detach()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (inner_gradient, "Told computes gradients by torch.autograd while it runs forward"),
        (reads, r"the backward of the autograd.Function tests\S+Reads, which Told calls, cannot"),
        (shared, r"its detach\(\).* share memory that is changed in place.*write detach\(\)\.cl"),
        (written, r"a value with a gradient is changed in place under no_grad"),
        (late_hook, r"register_hook.* on a value that was read before"),
        (branches, r"Told calls torch\.cond, whose gradient.*choose by torch\.where"),
        (all_stopped, r"no parameter of the module has a gradient: each is used only in detach"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_refused_is_named(function: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=message) as caught:
        export(made(function), X, tmp_path / "net.onnx")
    assert type(caught.value).__module__ == "engine.errors"


def test_hooks_of_modules_may_watch_but_not_change(tmp_path: Path) -> None:
    def function(s: Any, x: Any) -> Any:
        return s.b(s.a(x))

    watched = made(function)
    watched.a.register_full_backward_hook(lambda *_: None)
    export(watched, X, tmp_path / "net.onnx")
    with pytest.raises(UnsupportedOpError, match="Linear 'a' has backward hooks"):
        export(watched, X, tmp_path / "net.onnx", check_gradients=False)
    changed = made(function)
    changed.b.register_full_backward_hook(lambda _, dx, dy: (dx[0] * 2,))
    with pytest.raises(ModelError, match=r"gradient of 'a\.weight'.*Linear 'b' has backward hooks"):
        export(changed, X, tmp_path / "net.onnx")


def test_a_gradient_that_is_lost_is_found_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the stops were not written; `check_gradients=False` does not look."""
    monkeypatch.setattr(torch_autograd, "stop", lambda *_: [])
    module = made(told.normalised)
    with pytest.raises(ModelError, match=r"gradient of 'a\.weight' and of 1 more.*cosine"):
        export(module, X, tmp_path / "net.onnx")
    export(module, X, tmp_path / "net.onnx", check_gradients=False)


def test_a_parameter_that_would_not_be_trained_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if no gradient flowed through Tanh; what torch has no gradient for is left in peace."""

    def function(s: Any, x: Any) -> Any:
        return s.b(s.a(x).tanh()) + s.c(x).detach() + s.scale * 0

    real = differentiate._list_edges
    monkeypatch.setattr(
        differentiate, "_list_edges", lambda g, n, t: [] if n.op == "Tanh" else real(g, n, t)
    )
    monkeypatch.setattr(torch_export, "_check_support", lambda *_: None)
    with pytest.raises(
        ModelError,
        match=r"would not train 'a\.weight' and 1 more: its gradient in torch has the norm 0\.\d+, "
        r"and none flows through Tanh .*requires_grad_\(False\)",
    ):
        export(made(function), X, tmp_path / "net.onnx")
    exported = export(made(function), X, tmp_path / "net.onnx", check_gradients=False)
    assert set(exported.train) == {"b.weight", "b.bias", "scale"}
    module = made(function)
    module.a.requires_grad_(False)
    assert export(module, X, tmp_path / "net.onnx").train == exported.train


def test_a_parameter_that_the_model_holds_under_no_name_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the exporter had computed with it, so that it is a constant of another name."""

    def renamed(*given: Any) -> Any:
        program, outputs, moved = program_of(*given)
        program.model.graph.initializers["a.weight"].name = "folded"
        return program, outputs, moved

    monkeypatch.setattr(torch_export, "program_of", renamed)
    with pytest.raises(ModelError, match=r"'a\.weight': .* does not hold it under its name"):
        export(made(told.normalised), X, tmp_path / "net.onnx")


def test_all_parameters_lost_are_no_module_without_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_export, "_with_gradients", lambda *_: set())
    with pytest.raises(ModelError, match=r"would not train 'a\.weight' and 3 more"):
        export(made(told.normalised), X, tmp_path / "net.onnx")


def test_a_parameter_that_torch_leaves_alone_is_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the stops were not written: torch has no gradient for the teacher, we have."""
    monkeypatch.setattr(torch_autograd, "stop", lambda *_: [])
    with pytest.raises(ModelError, match=r"gradient of 'teacher\.weight'.*torch's 0, one of them"):
        export(made(told.target_network), X, tmp_path / "net.onnx")


def test_large_modules_are_not_compared_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_gradients, "MOST_BYTES", 100)
    monkeypatch.setattr(torch_autograd, "stop", lambda *_: [])
    module = made(told.normalised)
    export(module, X, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match="does not train as the module does"):
        Trainer.from_torch(module, X, MSELoss(), check_gradients=True, folder=tmp_path)


def test_draws_that_are_not_known_are_told(tmp_path: Path) -> None:
    def function(s: Any, x: Any) -> Any:
        return s.a(x) * torch.multinomial(s.b(x).softmax(-1).detach(), 1)

    with pytest.warns(ModelWarning, match=r"not compared with torch's.*aten\.multinomial"):
        export(made(function), X, tmp_path / "net.onnx")


def test_a_module_that_drops_in_evaluation_mode_is_told(tmp_path: Path) -> None:
    def function(s: Any, x: Any) -> Any:
        return nn.functional.dropout(s.a(x), 0.4, True)

    with pytest.warns(ModelWarning, match="drops in evaluation mode, too"):
        export(made(function), X, tmp_path / "net.onnx")
