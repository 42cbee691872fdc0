"""Agents and their losses in plain PyTorch."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import Made, family, labels


@family
def duelling_values() -> Made:
    """A value and advantages whose mean is taken off; an error against given targets."""

    class Duel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(2, 6, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 12), nn.ReLU()
            )
            self.value, self.gain = nn.Linear(12, 1), nn.Linear(12, 4)

        def forward(self, x: torch.Tensor, did: torch.Tensor, aim: torch.Tensor) -> torch.Tensor:
            h = self.body(x)
            gain = self.gain(h)
            q = self.value(h) + gain - gain.mean(1, keepdim=True)
            return functional.smooth_l1_loss(q.gather(1, did[:, None])[:, 0], aim)

    return Duel(), (torch.randn(5, 2, 8, 8), labels(4, 5), torch.randn(5)), None


@family
def categorical_values() -> Made:
    """C51: a density over fixed returns, against one that is projected by scatters."""

    class Categorical(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3 * 7))

        def forward(
            self, x: torch.Tensor, did: torch.Tensor, reward: torch.Tensor, after: torch.Tensor
        ) -> torch.Tensor:
            q = self.net(x).view(-1, 3, 7).log_softmax(-1)
            chosen = q.gather(1, did[:, None, None].expand(-1, 1, 7))[:, 0]
            returns = torch.linspace(-3, 3, 7, dtype=x.dtype)
            place = (reward[:, None] + 0.9 * returns).clamp(-3, 3) + 3
            low = place.floor().clamp(max=5)
            part = place - low
            aim = torch.zeros_like(after).scatter_add(1, low.long(), after * (1 - part))
            aim = aim.scatter_add(1, low.long() + 1, after * part)
            return -(aim * chosen).sum(1).mean()

    given = (torch.randn(5, 4), labels(3, 5), torch.randn(5), torch.randn(5, 7).softmax(-1))
    return Categorical(), given, None


@family
def quantile_values() -> Made:
    """QR-DQN and IQN: quantiles at given fractions by cosines, the quantile Huber loss."""

    class Quantiles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.waves, self.head = nn.Linear(4, 12), nn.Linear(8, 12), nn.Linear(12, 3)

        def forward(
            self, x: torch.Tensor, taus: torch.Tensor, did: torch.Tensor, aim: torch.Tensor
        ) -> torch.Tensor:
            cosines = torch.cos(math.pi * taus[..., None] * torch.arange(8, dtype=x.dtype))
            h = self.body(x).relu()[:, None] * self.waves(cosines).relu()
            q = self.head(h).gather(2, did[:, None, None].expand(-1, 5, 1))
            off = aim[:, None] - q
            huber = torch.where(off.abs() < 1, 0.5 * off.square(), off.abs() - 0.5)
            return ((taus[..., None] - (off < 0).to(x.dtype)).abs() * huber).mean()

    return Quantiles(), (torch.randn(4, 4), torch.rand(4, 5), labels(3, 4), torch.randn(4, 6)), None


@family
def soft_actor() -> Made:
    """SAC: a squashed normal action by given noise, its likelihood, two critics, a temperature."""

    class Soft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 4))
            self.critics = nn.ModuleList(
                [nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)) for _ in "ab"]
            )
            self.log_heat = nn.Parameter(torch.tensor(-1.0))

        def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            mean, log_std = self.actor(x).chunk(2, 1)
            log_std = log_std.clamp(-5, 2)
            raw = mean + log_std.exp() * noise
            likely = (-0.5 * noise.square() - log_std - 0.919).sum(1)
            likely = likely - (2 * (math.log(2) - raw - functional.softplus(-2 * raw))).sum(1)
            both = torch.cat([x, torch.tanh(raw)], 1)
            q = torch.minimum(*(c(both)[:, 0] for c in self.critics))
            return (self.log_heat.exp() * (likely - 2) - q).mean()

    return Soft(), (torch.randn(6, 4), torch.randn(6, 2)), None


@family
def monotonic_teams() -> Made:
    """QMIX: values of agents mixed by weights that a net of the state writes, all positive."""

    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.agent = nn.GRUCell(5, 8), nn.Linear(8, 3)
            self.w1, self.b1 = nn.Linear(6, 12), nn.Linear(6, 4)
            self.w2, self.b2 = (
                nn.Linear(6, 4),
                nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1)),
            )

        def forward(
            self, seen: torch.Tensor, held: torch.Tensor, state: torch.Tensor
        ) -> torch.Tensor:
            h = self.cell(seen.flatten(0, 1), held.flatten(0, 1))
            q = self.agent(h).view(-1, 3, 3).amax(-1)[:, None]
            h = functional.elu(
                torch.bmm(q, self.w1(state).abs().view(-1, 3, 4)) + self.b1(state)[:, None]
            )
            return torch.bmm(h, self.w2(state).abs()[..., None])[:, 0] + self.b2(state)

    return Mix(), (torch.randn(4, 3, 5), torch.randn(4, 3, 8), torch.randn(4, 6)), torch.randn(4, 1)


@family
def world_model() -> Made:
    """Dreamer: a recurrent state with a soft draw by given noise, rewards and pictures of it."""

    class World(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.see, self.cell = nn.Linear(6, 8), nn.GRUCell(4 + 2, 8)
            self.prior, self.posterior = nn.Linear(8, 8), nn.Linear(16, 8)
            self.picture, self.reward = nn.Linear(12, 6), nn.Linear(12, 1)

        def forward(
            self, x: torch.Tensor, did: torch.Tensor, noise: torch.Tensor, gain: torch.Tensor
        ) -> torch.Tensor:
            h, z = torch.zeros_like(noise[:, 0, :1]).expand(-1, 8), torch.zeros_like(noise[:, 0])
            total = 0
            for t in range(3):
                h = self.cell(torch.cat([z, did[:, t]], 1), h)
                m0, s0 = self.prior(h).chunk(2, 1)
                m1, s1 = self.posterior(torch.cat([h, self.see(x[:, t]).tanh()], 1)).chunk(2, 1)
                s0, s1 = functional.softplus(s0) + 0.1, functional.softplus(s1) + 0.1
                z = m1 + s1 * noise[:, t]
                both = torch.cat([h, z], 1)
                apart = torch.log(s0 / s1) + (s1.square() + (m1 - m0).square()) / (2 * s0.square())
                total = total + (self.picture(both) - x[:, t]).square().mean()
                total = total + (self.reward(both)[:, 0] - gain[:, t]).square().mean()
                total = total + apart.sum(1).clamp(min=0.5).mean()
            return total

    given = (torch.randn(4, 3, 6), torch.randn(4, 3, 2), torch.randn(4, 3, 4), torch.randn(4, 3))
    return World(), given, None


@family
def value_iteration() -> Made:
    """VIN: turns of a convolution and a maximum over its channels plan on a map."""

    class Planner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reward, self.q = (
                nn.Conv2d(2, 1, 3, padding=1),
                nn.Conv2d(2, 5, 3, padding=1, bias=False),
            )
            self.head = nn.Linear(5, 4)

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            r = self.reward(x)
            v = torch.zeros_like(r)
            for _ in range(3):
                q = self.q(torch.cat([r, v], 1))
                v = q.amax(1, keepdim=True)
            return self.head(q.flatten(2).gather(2, at[:, None, None].expand(-1, 5, 1))[..., 0])

    return Planner(), (torch.randn(3, 2, 6, 6), labels(36, 3)), labels(4, 3)
