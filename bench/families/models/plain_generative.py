"""Generators, flows and codes in plain PyTorch; noise comes in, so that anybody can draw alike."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import Made, family, image, labels


def time_waves(t: torch.Tensor, width: int = 16) -> torch.Tensor:
    """Sines and cosines of times, [batch] to [batch, width]."""
    rates = torch.exp(-0.9 * torch.arange(width // 2, dtype=t.dtype))
    angles = t[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


@family
def diffusion_unet() -> Made:
    """DDPM: residual blocks with group norms and times, skips, attention at the bottom."""

    class Block(nn.Module):
        def __init__(self, i: int, o: int) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.GroupNorm(2, i), nn.GroupNorm(2, o)])
            self.convs = nn.ModuleList([nn.Conv2d(i, o, 3, 1, 1), nn.Conv2d(o, o, 3, 1, 1)])
            self.time, self.skip = nn.Linear(16, o), nn.Conv2d(i, o, 1)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            h = self.convs[0](functional.silu(self.norms[0](x)))
            h = h + self.time(functional.silu(t))[..., None, None]
            return self.skip(x) + self.convs[1](functional.silu(self.norms[1](h)))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time, self.first = nn.Linear(16, 16), nn.Conv2d(3, 8, 3, padding=1)
            self.a, self.b, self.c = Block(8, 8), Block(8, 8), Block(16, 8)
            self.down, self.up = nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1)
            self.attend, self.last = (
                nn.MultiheadAttention(8, 1, batch_first=True),
                nn.Conv2d(8, 3, 1),
            )

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            e = self.time(time_waves(t))
            a = self.a(self.first(x), e)
            h = self.b(self.down(a), e)
            flat = h.flatten(2).transpose(1, 2)
            h = h + self.attend(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(h)
            h = self.up(functional.interpolate(h, scale_factor=2.0, mode="nearest"))
            return self.last(self.c(torch.cat([h, a], 1), e))

    return UNet(), (*image(8, 2), 10 * torch.rand(2)), torch.randn(2, 3, 8, 8)


@family
def diffusion_transformer() -> Made:
    """DiT: patches, norms whose scale, shift and gate come of the time and the class."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.change = nn.Linear(16, 96)
            self.norm = nn.LayerNorm(16, elementwise_affine=False)
            self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
            self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU("tanh"), nn.Linear(32, 16))

        def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            s1, a1, g1, s2, a2, g2 = self.change(functional.silu(c))[:, None].chunk(6, -1)
            h = self.norm(x) * (1 + a1) + s1
            x = x + g1 * self.attend(h, h, h, need_weights=False)[0]
            return x + g2 * self.net(self.norm(x) * (1 + a2) + s2)

    class DiT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Conv2d(3, 16, 2, 2), nn.Parameter(torch.randn(16, 16) * 0.1)
            self.time, self.kinds, self.block = nn.Linear(16, 16), nn.Embedding(4, 16), Block()
            self.last = nn.Linear(16, 12)

        def forward(self, x: torch.Tensor, t: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
            h = self.embed(x).flatten(2).transpose(1, 2) + self.place
            h = self.last(self.block(h, self.time(time_waves(t)) + self.kinds(kind)))
            return h.view(-1, 4, 4, 2, 2, 3).permute(0, 5, 1, 3, 2, 4).reshape(-1, 3, 8, 8)

    return DiT(), (*image(8, 2), 10 * torch.rand(2), labels(4, 2)), torch.randn(2, 3, 8, 8)


@family
def flow_matching() -> Made:
    """Straight paths from noise to data; the loss is of the speed along them."""

    class Matching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(18, 24), nn.SiLU(), nn.Linear(24, 2))

        def forward(self, x: torch.Tensor, noise: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            at = torch.lerp(noise, x, t[:, None])
            velocity = self.net(torch.cat([at, time_waves(t)], 1))
            return (velocity - (x - noise)).square().mean()

    return Matching(), (torch.randn(8, 2), torch.randn(8, 2), torch.rand(8)), None


@family
def invertible_convolution() -> Made:
    """Glow: actnorm, a 1x1 convolution by its LU factors, affine coupling, squeezing."""

    class Glow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = (nn.Parameter(torch.randn(12, 1, 1) * 0.1) for _ in "ab")
            self.lower, self.upper = (nn.Parameter(torch.randn(12, 12) * 0.1) for _ in "ab")
            self.log_diagonal = nn.Parameter(torch.zeros(12))
            self.register_buffer("order", torch.eye(12)[torch.randperm(12)])
            self.register_buffer("below", torch.ones(12, 12).tril(-1))
            self.net = nn.Sequential(
                nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = functional.pixel_unshuffle(x, 2)
            x = (x + self.shift) * torch.exp(self.scale)
            one = torch.eye(12, dtype=x.dtype)
            lower = self.lower * self.below + one
            upper = self.upper * self.below.T + torch.diag_embed(self.log_diagonal.exp())
            x = functional.conv2d(x, (self.order @ lower @ upper)[..., None, None])
            a, b = x.chunk(2, 1)
            scale, shift = self.net(a).chunk(2, 1)
            scale = torch.sigmoid(scale + 2)
            b = (b + shift) * scale
            total = 16 * (self.scale.sum() + self.log_diagonal.sum())
            total = total + scale.log().sum((1, 2, 3))
            return (0.5 * (a.square() + b.square()).sum((1, 2, 3)) - total).mean() / 192

    return Glow(), image(8, 3), None


@family
def planar_flow() -> Made:
    """Turns by reflections, scales, and planar bends that keep an inverse."""

    class Planar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mirrors, self.log_scale = (
                nn.Parameter(torch.randn(3, 4)),
                nn.Parameter(torch.zeros(4)),
            )
            self.u, self.w = (nn.Parameter(torch.randn(4) * 0.3) for _ in "ab")
            self.b = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for v in self.mirrors.unbind(0):
                x = x - 2 * (x @ v)[:, None] * v / v.square().sum()
            x, total = x * self.log_scale.exp(), self.log_scale.sum()
            wu = (self.w * self.u).sum()
            u = self.u + (functional.softplus(wu) - 1 - wu) * self.w / self.w.square().sum()
            h = torch.tanh(x @ self.w + self.b)
            total = total + torch.log((1 + (1 - h.square()) * (self.w * u).sum()).abs() + 1e-6)
            x = x + u * h[:, None]
            return (0.5 * x.square().sum(1) - total).mean()

    return Planar(), (torch.randn(6, 4),), None


@family
def masked_flow() -> Made:
    """MAF: masked products make each number depend on those before it."""

    class Maf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 12), nn.Linear(12, 10)
            kinds = torch.arange(12) % 4
            self.register_buffer("a", (kinds[:, None] >= torch.arange(5)).float())
            self.register_buffer("b", (torch.arange(5)[:, None] > kinds).float().repeat(2, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = functional.linear(x, self.first.weight * self.a, self.first.bias).relu()
            both = functional.linear(h, self.second.weight * self.b, self.second.bias)
            mean, scale = both.chunk(2, 1)
            scale = 2 * torch.tanh(scale / 2)
            z = (x - mean) * torch.exp(-scale)
            return (0.5 * z.square() + scale).sum(1).mean()

    return Maf(), (torch.randn(6, 5),), None


@family
def spline_flow() -> Made:
    """A flow of rational quadratic splines: bins found by comparing, gathered, bent."""

    class Splines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 26))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, 1)
            wide, high, slope = self.net(a).view(-1, 2, 13).split([4, 4, 5], -1)
            wide, high = 0.1 + 0.6 * wide.softmax(-1), 0.1 + 0.6 * high.softmax(-1)
            slope = functional.softplus(slope) + 0.1
            edges = functional.pad(wide.cumsum(-1), (1, 0))
            floors = functional.pad(high.cumsum(-1), (1, 0))
            at = ((b[..., None] >= edges[..., 1:-1]).sum(-1, keepdim=True)).clamp(max=3)
            w, h, x0, y0 = (v.gather(-1, at)[..., 0] for v in (wide, high, edges, floors))
            d0, d1 = slope.gather(-1, at)[..., 0], slope.gather(-1, at + 1)[..., 0]
            s, t = h / w, (b - x0) / w
            below = s + (d0 + d1 - 2 * s) * t * (1 - t)
            y = y0 + h * (s * t.square() + d0 * t * (1 - t)) / below
            top = s.square() * (d1 * t.square() + 2 * s * t * (1 - t) + d0 * (1 - t).square())
            return ((y - 0.5).square() - top.log() + 2 * below.log()).sum(1).mean()

    return Splines(), (0.05 + 0.9 * torch.rand(6, 4),), None


@family
def vector_quantiser() -> Made:
    """Codes by the least distance, a soft choice beside them, and a loss that fits the table."""

    class Quantiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Conv2d(3, 6, 4, 4), nn.ConvTranspose2d(6, 3, 4, 4)
            self.codes = nn.Embedding(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = self.encode(x).permute(0, 2, 3, 1)
            away = (z[..., None, :] - self.codes.weight).square().sum(-1)
            hard = self.codes(away.argmin(-1))
            soft = (-away).softmax(-1) @ self.codes.weight
            y = self.decode(soft.permute(0, 3, 1, 2))
            return (y - x).square().mean() + 0.5 * (hard - z).square().mean()

    return Quantiser(), image(16, 2), None


@family
def gumbel_autoencoder() -> Made:
    """A categorical code relaxed by given Gumbel noise, and its divergence from uniform."""

    class Gumbel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(10, 12), nn.Linear(12, 10)

        def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            scores = self.encode(x).view(-1, 3, 4)
            code = ((scores - torch.log(-torch.log(noise))) / 0.7).softmax(-1)
            y = self.decode(code.flatten(1))
            q = scores.log_softmax(-1)
            divergence = (q.exp() * (q + math.log(4))).sum((1, 2)).mean()
            return functional.binary_cross_entropy_with_logits(y, x) + 0.1 * divergence

    return Gumbel(), (labels(2, 6, 10).float(), 0.02 + 0.96 * torch.rand(6, 3, 4)), None


@family
def ladder_autoencoder() -> Made:
    """Two layers of latent numbers; the divergence of two normal densities each."""

    class Ladder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.top = nn.Linear(10, 8), nn.Linear(8, 4)
            self.low, self.prior, self.out = nn.Linear(10, 6), nn.Linear(2, 6), nn.Linear(5, 20)

        def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            h = functional.softplus(self.up(x))
            m2, s2 = self.top(h).chunk(2, 1)
            z2 = m2 + s2.exp() * noise[:, :2]
            mp, sp = self.prior(z2).chunk(2, 1)
            m1, s1 = self.low(torch.cat([h, z2], 1)).chunk(2, 1)
            z1 = m1 + s1.exp() * noise[:, 2:]
            mean, wide = self.out(torch.cat([z1, z2], 1)).chunk(2, 1)
            fit = (wide + 0.5 * ((x - mean) * (-wide).exp()).square()).sum(1)
            d1 = (
                sp - s1 - 0.5 + 0.5 * ((2 * s1).exp() + (m1 - mp).square()) * (-2 * sp).exp()
            ).sum(1)
            d2 = (0.5 * ((2 * s2).exp() + m2.square() - 1) - s2).sum(1)
            return (fit + d1 + d2).mean()

    return Ladder(), (torch.randn(5, 10), torch.randn(5, 5)), None


@family
def masked_pixels() -> Made:
    """PixelCNN: convolutions masked to what was drawn before, gated, classes for each pixel."""

    class Masked(nn.Conv2d):
        def __init__(self, i: int, o: int, size: int, *, sees_itself: bool) -> None:
            super().__init__(i, o, size, padding=size // 2)
            mask = torch.ones(size, size)
            mask[size // 2, size // 2 + sees_itself :] = 0
            mask[size // 2 + 1 :] = 0
            self.register_buffer("mask", mask)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)

    class Gate(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, 1)
            return torch.tanh(a) * torch.sigmoid(b)

    net = nn.Sequential(
        Masked(1, 12, 5, sees_itself=False), Gate(), Masked(6, 12, 3, sees_itself=True), Gate(),
        nn.Conv2d(6, 4, 1),
    )  # fmt: skip
    return net, (torch.randn(2, 1, 8, 8),), labels(4, 2, 8, 8)


@family
def style_transfer() -> Made:
    """AdaIN and Gram matrices: statistics of one picture given to another."""

    class Style(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, padding_mode="reflect"), nn.ReLU())
            self.decode = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 3, padding=1))

        def forward(self, x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
            a, b = self.encode(x), self.encode(style)
            std, mean = torch.std_mean(a, (2, 3), keepdim=True)
            std_b, mean_b = torch.std_mean(b, (2, 3), keepdim=True)
            y = self.encode(self.decode((a - mean) / (std + 1e-5) * std_b + mean_b))

            def gram(h: torch.Tensor) -> torch.Tensor:
                flat = h.flatten(2)
                return flat @ flat.transpose(1, 2) / flat.shape[2]

            return (y - a).square().mean() + (gram(y) - gram(b)).square().mean()

    return Style(), (*image(12, 2), *image(12, 2)), None


@family
def hyper_network() -> Made:
    """One net writes the weights of another, for each example."""

    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.write = nn.Sequential(
                nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 4 * 6 + 6 + 6 * 2)
            )
            self.bias = nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
            first, b, second = self.write(task).split([24, 6, 12], 1)
            h = torch.tanh(torch.baddbmm(b[:, None], x, first.view(-1, 4, 6)))
            return torch.bmm(h, second.view(-1, 6, 2)) + self.bias

    return Hyper(), (torch.randn(3, 5, 4), torch.randn(3, 3)), torch.randn(3, 5, 2)


@family
def boltzmann_machine() -> Made:
    """Free energies of data and of given samples: contrastive divergence, and ratio matching."""

    class Boltzmann(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 5) * 0.3)
            self.seen, self.hidden = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(5))

        def energy(self, v: torch.Tensor) -> torch.Tensor:
            return -(v @ self.seen) - functional.softplus(v @ self.weight + self.hidden).sum(-1)

        def forward(self, x: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
            one = torch.eye(8, dtype=x.dtype)
            flipped = (x[:, None] - one).abs()
            ratio = torch.sigmoid(self.energy(x)[:, None] - self.energy(flipped))
            return self.energy(x).mean() - self.energy(drawn).mean() + ratio.square().mean()

    return Boltzmann(), (labels(2, 6, 8).float(), labels(2, 6, 8).float()), None
