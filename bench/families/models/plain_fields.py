"""Neural fields and physics in plain PyTorch."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import Made, family


@family
def sine_network() -> Made:
    """SIREN: sines with a high first frequency, for pictures and shapes."""

    class Sine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(i, 16) for i in (2, 16, 16)])
            self.head = nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i, layer in enumerate(self.layers):
                x = torch.sin((6.0 if i else 12.0) * layer(x) / (1 if i == 0 else 4))
            return self.head(x)

    return Sine(), (torch.rand(16, 2),), torch.rand(16, 3)


@family
def fourier_features() -> Made:
    """Random frequencies of places, and Gaussian bumps for activations."""

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rates", torch.randn(2, 8) * 2)
            self.first, self.wide, self.head = (
                nn.Linear(16, 16),
                nn.Parameter(torch.ones(16)),
                nn.Linear(16, 1),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angle = 2 * math.pi * x @ self.rates
            h = self.first(torch.cat([angle.sin(), angle.cos()], -1))
            return self.head(torch.exp(-0.5 * (h * self.wide).square()))

    return Features(), (torch.rand(12, 2),), torch.rand(12, 1)


@family
def hash_grid() -> Made:
    """Instant-NGP: corners of two grids hashed into tables, mixed by where between they are."""

    class Hashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.Parameter(torch.randn(2, 32, 4) * 0.3)
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
            self.register_buffer("corners", torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = []
            for table, size in zip(self.tables.unbind(0), (4, 9), strict=True):
                low = torch.floor(x * size)
                part = (x * size - low)[:, None]
                at = low.long()[:, None] + self.corners
                slot = torch.remainder(at[..., 0] * 73856 + at[..., 1] * 19349, 32)
                weight = torch.where(self.corners == 1, part, 1 - part).prod(-1, keepdim=True)
                out.append((table[slot] * weight).sum(1))
            return self.net(torch.cat(out, 1))

    return Hashed(), (torch.rand(16, 2),), torch.rand(16, 3)


@family
def plane_features() -> Made:
    """Triplanes: three planes of features sampled at projections, rendered along rays."""

    class Planes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.planes = nn.Parameter(torch.randn(3, 6, 8, 8))
            self.net = nn.Sequential(nn.Linear(6, 12), nn.Softplus(), nn.Linear(12, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flat = x.reshape(-1, 3)
            pairs = torch.stack(
                [flat[:, :2], flat[:, 1:], torch.stack([flat[:, 0], flat[:, 2]], 1)]
            )
            h = functional.grid_sample(self.planes, pairs[:, None], align_corners=True)
            out = self.net(h.sum(0)[:, 0].T).view(-1, 5, 4)
            alpha = 1 - torch.exp(-functional.relu(out[..., 3] + 0.5) * 0.3)
            left = torch.exp(torch.cumsum(torch.log(1 - alpha + 1e-6), 1))
            weight = alpha * torch.cat([torch.ones_like(left[:, :1]), left[:, :-1]], 1)
            return (weight[..., None] * torch.sigmoid(out[..., :3])).sum(1)

    return Planes(), (2 * torch.rand(6, 5, 3) - 1,), torch.rand(6, 3)


@family
def signed_distance() -> Made:
    """A shape's distance with a skip, a latent code for each shape, clamped."""

    class Distance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes, self.first = (
                nn.Embedding(3, 4),
                nn.utils.parametrizations.weight_norm(nn.Linear(7, 16)),
            )
            self.second, self.head = nn.Linear(23, 16), nn.Linear(16, 1)

        def forward(
            self, x: torch.Tensor, shape: torch.Tensor, truth: torch.Tensor
        ) -> torch.Tensor:
            code = self.codes(shape)
            given = torch.cat([code, x], -1)
            h = functional.softplus(self.first(given), beta=10)
            h = functional.softplus(self.second(torch.cat([h, given], -1)), beta=10)
            off = torch.tanh(self.head(h)[:, 0]).clamp(-0.3, 0.3) - truth.clamp(-0.3, 0.3)
            return off.abs().mean() + 1e-3 * code.norm(dim=-1).mean()

    return Distance(), (torch.randn(10, 3), torch.randint(0, 3, (10,)), torch.randn(10) * 0.2), None


@family
def gaussian_splatting() -> Made:
    """Soft ellipses by a scale and a turn, blended from front to back."""

    class Splats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place, self.log_size = (
                nn.Parameter(torch.rand(6, 2)),
                nn.Parameter(torch.full((6, 2), -1.0)),
            )
            self.turn, self.colour = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6, 3))
            self.opacity = nn.Parameter(torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            c, s = self.turn.cos(), self.turn.sin()
            turn = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
            off = x[:, None] - self.place
            off = torch.einsum("nij,pnj->pni", turn, off) * torch.exp(-self.log_size)
            alpha = torch.sigmoid(self.opacity) * torch.exp(-0.5 * off.square().sum(-1))
            left = torch.exp(torch.cumsum(torch.log1p(-0.99 * alpha), 1))
            weight = alpha * functional.pad(left[:, :-1], (1, 0), value=1.0)
            return weight @ torch.sigmoid(self.colour)

    return Splats(), (torch.rand(20, 2),), torch.rand(20, 3)


@family
def operator_network() -> Made:
    """DeepONet: a branch for the function, a trunk for the place, their product."""

    class Operator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 8))
            self.trunk = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, u: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return torch.einsum("bk,nk->bn", self.branch(u), self.trunk(at)) + self.bias

    return Operator(), (torch.randn(4, 10), torch.rand(7, 1)), torch.randn(4, 7)


@family
def spectral_operator() -> Made:
    """FNO: complex weights on the lowest waves of fast transforms, beside a pointwise part."""

    class Fno(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.point, self.head = nn.Linear(2, 6), nn.Conv1d(6, 6, 1), nn.Linear(6, 1)
            self.weight = nn.Parameter(torch.randn(6, 6, 4, 2) * 0.3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.linspace(0, 1, 16, dtype=x.dtype)[None, :, None].expand(x.shape[0], -1, 1)
            h = self.lift(torch.cat([x, at], -1)).transpose(1, 2)
            a, b = torch.view_as_real(torch.fft.rfft(h))[..., :4, :].unbind(-1)
            c, d = self.weight.unbind(-1)
            real = torch.einsum("bik,iok->bok", a, c) - torch.einsum("bik,iok->bok", b, d)
            imaginary = torch.einsum("bik,iok->bok", a, d) + torch.einsum("bik,iok->bok", b, c)
            both = functional.pad(torch.stack([real, imaginary], -1), (0, 0, 0, 5)).contiguous()
            y = torch.fft.irfft(torch.view_as_complex(both), n=16)
            return self.head(functional.gelu(y + self.point(h)).transpose(1, 2))

    return Fno(), (torch.randn(3, 16, 1),), torch.randn(3, 16, 1)


@family
def wave_operator() -> Made:
    """FNO by matrices of sines and cosines, in two dimensions."""

    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.point, self.head = (
                nn.Conv2d(1, 4, 1),
                nn.Conv2d(4, 4, 1),
                nn.Conv2d(4, 1, 1),
            )
            self.weight = nn.Parameter(torch.randn(2, 4, 4, 3, 3) * 0.3)
            angle = 2 * math.pi / 8 * torch.outer(torch.arange(3), torch.arange(8))
            self.register_buffer("cos", angle.cos() / 8**0.5)
            self.register_buffer("sin", angle.sin() / 8**0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.lift(x)
            c, s = self.cos, self.sin
            cc, ss = c @ h @ c.T, s @ h @ s.T
            cs, sc = c @ h @ s.T, s @ h @ c.T
            real, imaginary = cc - ss, -(cs + sc)
            a, b = self.weight
            new = torch.einsum("bikl,iokl->bokl", real, a) - torch.einsum(
                "bikl,iokl->bokl", imaginary, b
            )
            old = torch.einsum("bikl,iokl->bokl", real, b) + torch.einsum(
                "bikl,iokl->bokl", imaginary, a
            )
            y = c.T @ new @ c - s.T @ new @ s - c.T @ old @ s - s.T @ old @ c
            return self.head(functional.gelu(y + self.point(h)))

    return Waves(), (torch.randn(2, 1, 8, 8),), torch.randn(2, 1, 8, 8)


@family
def physics_informed() -> Made:
    """A net whose derivative is written out, held to an equation of first order and its start."""

    class Informed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.rate = (
                nn.Linear(1, 12),
                nn.Linear(12, 1),
                nn.Parameter(torch.ones(1)),
            )

        def forward(self, t: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.first(t))
            u = self.second(h)
            slope = ((1 - h.square()) * self.first.weight[:, 0]) @ self.second.weight.T
            start = self.second(torch.tanh(self.first.bias))
            equation = (slope + functional.softplus(self.rate) * u).square().mean()
            return equation + (u - seen).square().mean() + (start - 1).square().sum()

    return Informed(), (torch.rand(10, 1), torch.rand(10, 1)), None


@family
def energy_steps() -> Made:
    """A Hamiltonian net: leapfrog steps by the gradients of two energies, written out."""

    class Hamiltonian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.randn(8, 2) * 0.5) for _ in "ab")
            self.weights = nn.Parameter(torch.randn(2, 8))

        def forward(self, state: torch.Tensor) -> torch.Tensor:
            q, p = state.chunk(2, 1)
            for _ in range(3):
                p = p - 0.05 * (torch.tanh(q @ self.a.T) * self.weights[0]) @ self.a
                q = q + 0.1 * (torch.tanh(p @ self.b.T) * self.weights[1]) @ self.b
                p = p - 0.05 * (torch.tanh(q @ self.a.T) * self.weights[0]) @ self.a
            return torch.cat([q, p], 1)

    return Hamiltonian(), (torch.randn(6, 4),), torch.randn(6, 4)


@family
def cellular_automaton() -> Made:
    """A neural cellular automaton: Sobel filters, a small net, living cells by a maximum."""

    class Automaton(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            edge = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
            spot = torch.zeros(3, 3)
            spot[1, 1] = 1
            self.register_buffer(
                "filters", torch.stack([spot, edge, edge.T]).repeat(6, 1, 1)[:, None]
            )
            self.first, self.second = nn.Conv2d(18, 16, 1), nn.Conv2d(16, 6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                lives = functional.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1
                seen = functional.conv2d(
                    functional.pad(x, (1, 1, 1, 1), mode="circular"), self.filters, groups=6
                )
                x = (x + self.second(self.first(seen).relu())) * lives.to(x.dtype)
            return x[:, :3]

    return Automaton(), (torch.rand(2, 6, 8, 8),), torch.rand(2, 3, 8, 8)
