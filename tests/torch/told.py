"""Modules that tell autograd something, each with all the ways in which people write it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 6


class Told(nn.Module):
    """Three layers and a function of them and of the input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scale = nn.Parameter(torch.tensor(0.3))
        self.codes = nn.Embedding(5, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.teacher = copy.deepcopy(self.a)
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


# --- stops


def detached(s: Any, x: Any) -> Any:
    return s.b(s.a(x).detach()) + s.a(x)


def data(s: Any, x: Any) -> Any:
    h = s.a(x)
    return h * h.data.abs()


def in_place(s: Any, x: Any) -> Any:
    """Apply `detach_`, and change a detached copy in place."""
    h = s.a(x)
    copied = h.detach().clone()
    copied.add_(1).mul_(h.detach())
    return h * copied + s.b(h) * s.c(x).tanh().detach_()


def no_grad(s: Any, x: Any) -> Any:
    h = s.a(x)
    with torch.no_grad():
        z = s.b(h)
        with torch.enable_grad():
            w = s.b(x)
        w = w + s.c(z)
    return h * z + w


def set_grad_enabled(s: Any, x: Any) -> Any:
    h = s.a(x)
    torch.set_grad_enabled(False)
    z = s.b(h)
    torch.set_grad_enabled(True)
    return h * z + s.b(x)


def nested_enable_grad(s: Any, x: Any) -> Any:
    """Gradients on within gradients off: they flow through what is made there."""
    with torch.no_grad():
        h = s.a(x)
        with torch.enable_grad():
            inner = s.b(h).sigmoid()
    return inner * s.c(h)


def _softmax(s: Any, x: Any) -> Any:
    return s.b(x).softmax(-1)


def _double(s: Any, x: Any) -> Any:
    return s.c(x) * 2


_decorated: Any = torch.no_grad()(_softmax)
_inferred: Any = torch.inference_mode()(_double)


def decorators(s: Any, x: Any) -> Any:
    h = s.a(x)
    return h * _decorated(s, h) + _inferred(s, h)


def straight_through(s: Any, x: Any) -> Any:
    h = s.a(x)
    return s.b(h + (h.round() - h).detach())


def sim_siam(s: Any, x: Any) -> Any:
    def distance(p: Any, z: Any) -> Any:
        return functional.cosine_similarity(p, z.detach(), dim=-1)

    z1, z2 = s.a(x), s.a(x.flip(1))
    return (distance(s.b(z1), z2) + distance(s.b(z2), z1))[:, None] / 2 + s.c(x) * 0


def vq_vae(s: Any, x: Any) -> Any:
    z = s.a(x)
    distances = (z[:, None] - s.codes.weight[None]).square().sum(-1)
    q = s.codes(distances.argmin(-1))
    loss = functional.mse_loss(q, z.detach()) + 0.25 * functional.mse_loss(z, q.detach())
    return s.b(z + (q - z).detach()) + loss


def hard_gumbel(s: Any, x: Any) -> Any:
    return s.b(functional.gumbel_softmax(s.a(x), hard=True))


def normalised(s: Any, x: Any) -> Any:
    h = s.a(x)
    with torch.no_grad():
        norm = h.norm(dim=-1, keepdim=True)
    return s.b(h / norm)


def moving_mean(s: Any, x: Any) -> Any:
    """A buffer that is moved in the forward pass."""
    h = s.a(x)
    with torch.no_grad():
        s.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
    return h - s.mean


def retention(s: Any, x: Any) -> Any:
    """RetNet: a decay that is made without gradients, and divisors that are detached."""
    q, k, v = (layer(x)[:, :, None] for layer in (s.a, s.b, s.c))
    with torch.no_grad():
        place = torch.arange(WIDTH, dtype=x.dtype)
        since = place[:, None] - place
        decay = torch.where(since >= 0, (s.scale.abs() + 0.5) ** since, 0.0)
    scores = q @ k.transpose(1, 2) * decay
    scores = scores / scores.detach().abs().sum(-1, keepdim=True).clamp(min=1)
    return (scores @ v)[:, :, 0]


def teacher(s: Any, x: Any) -> Any:
    """An average of the student under no_grad, whose parameters require a gradient all the same."""
    with torch.no_grad():
        target = s.teacher(x)
    return (s.b(s.a(x)) - target).square()


def ppo_ratio(s: Any, x: Any) -> Any:
    logits = s.a(x).log_softmax(-1)
    ratio = (logits - logits.detach()).exp()
    advantage = (s.b(x) - s.c(x).detach()).detach()
    return torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


def target_network(s: Any, x: Any) -> Any:
    with torch.no_grad():
        best = s.teacher(x).max(-1, keepdim=True).values
    return (s.a(x) - 0.9 * best).square()


def truncated(s: Any, x: Any) -> Any:
    """Backpropagation through time, cut every second step; a detach in a loop."""
    state, outputs = torch.zeros_like(x), []
    for step in range(5):
        if step % 2 == 0:
            state = state.detach()
        state = torch.tanh(s.a(x) + s.b(state))
        outputs.append(state)
    return torch.stack(outputs, 1).mean(1)


def checkpointed(s: Any, x: Any) -> Any:
    h = checkpoint(lambda v: s.b(v).relu(), s.a(x), use_reentrant=False)
    return checkpoint(lambda v: s.c(v).tanh(), h, use_reentrant=True)


# --- functions that users write


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: float) -> Any:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return -ctx.scale * dy, None


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (x,) = ctx.saved_tensors
        return dy * (x.abs() <= 0.5)


def _bump(ctx: Any, dy: Any) -> Any:
    (x,) = ctx.saved_tensors
    return dy / (1 + 3 * x.abs()).square()


class Spike(torch.autograd.Function):
    """A step forward, a bump backward; its context is set up apart."""

    @staticmethod
    def forward(x: Any) -> Any:
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    backward: Any = staticmethod(torch.autograd.function.once_differentiable(_bump))


class Quantize(torch.autograd.Function):
    """LSQ: the step is learnt, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any, step: Any) -> Any:
        ctx.save_for_backward(x, step)
        return (x / step).round().clamp(-2, 2) * step

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, step = ctx.saved_tensors
        v = x / step
        inside = (v.abs() <= 2).to(x.dtype)
        of_step = inside * (v.round() - v) + (1 - inside) * v.sign() * 2
        return dy * inside, (dy * of_step).sum() * 0.1


class Both(torch.autograd.Function):
    """Two outputs whose gradients meet, and one that has none."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        signs = (x * y).sign()
        ctx.mark_non_differentiable(signs)
        return x * y, (x + y)[:, :2], signs

    @staticmethod
    def backward(ctx: Any, dp: Any, ds: Any, _: Any) -> Any:
        x, y = ctx.saved_tensors
        wide = functional.pad(ds, (0, WIDTH - 2))
        return (dp * y + wide).clamp(-0.01, 0.01), dp * x * 2


def reversed_gradient(s: Any, x: Any) -> Any:
    h = s.a(x)
    return s.b(h) + s.c(Reverse.apply(h, 0.5))


def rounded(s: Any, x: Any) -> Any:
    return s.b(Round.apply(s.a(x)))


def spiking(s: Any, x: Any) -> Any:
    state, total = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(3):
        spike = Spike.apply(state - 0.2)
        state = 0.7 * state * (1 - spike.detach()) + s.a(x)
        total = total + s.b(spike)
    return total


def learnt_steps(s: Any, x: Any) -> Any:
    """LSQ by a Function, and by the detached form with a scale of its gradient."""
    h = Quantize.apply(s.a(x), s.scale)
    factor = 0.25
    step = (s.scale - s.scale * factor).detach() + s.scale * factor
    v = (s.b(h) / step).clamp(-4, 3)
    return (v + (v.round() - v).detach()) * step


def two_outputs(s: Any, x: Any) -> Any:
    product, some, signs = Both.apply(s.a(x), s.b(x))
    return product.sigmoid() + some.sum(-1, keepdim=True) * signs


def hooked(s: Any, x: Any) -> Any:
    h = s.a(x)
    h.register_hook(lambda dy: dy.clamp(-0.001, 0.001))
    h.register_hook(lambda dy: None)
    return s.b(h)


class Vectorised(torch.autograd.Function):
    """For vmap; with the gradient of another function."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (x,) = ctx.saved_tensors
        return -dy * x.cos()


def mapped(s: Any, x: Any) -> Any:
    """Over rows and over columns, with a value that all of them share, and a detach inside."""
    rows = torch.vmap(lambda row: Vectorised.apply(row) * Vectorised.apply(s.b.bias))(s.a(x))
    return rows + torch.vmap(lambda row: row * (row + 1).detach())(s.c(x))


# --- random numbers


def variational(s: Any, x: Any) -> Any:
    mean, log_var = s.a(x), s.b(x)
    z = mean + torch.randn_like(mean) * (log_var / 2).exp()
    kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1, keepdim=True)
    return s.c(z) + kl


def noisy(s: Any, x: Any) -> Any:
    h = functional.dropout(s.a(x), 0.3, s.training) + torch.rand(WIDTH)
    return (
        torch.bernoulli(h.sigmoid().detach()) * h
        + torch.distributions.Normal(
            s.b(x), functional.softplus(s.c(x)), validate_args=False
        ).rsample()
    )


def attention_drops(s: Any, x: Any) -> Any:
    q, k, v = (layer(x).reshape(-1, 1, 3, 2) for layer in (s.a, s.b, s.c))
    p = 0.25 if s.training else 0.0
    return functional.scaled_dot_product_attention(q, k, v, dropout_p=p).reshape(-1, WIDTH)


STOPS = (
    detached, data, in_place, no_grad, set_grad_enabled, nested_enable_grad, decorators,
    straight_through, sim_siam, vq_vae, hard_gumbel, normalised, moving_mean, retention, teacher,
    ppo_ratio, target_network, truncated, checkpointed,
)  # fmt: skip
FUNCTIONS = (reversed_gradient, rounded, spiking, learnt_steps, two_outputs, hooked, mapped)
RANDOM = (variational, noisy, attention_drops)
