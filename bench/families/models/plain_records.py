"""Tables, recommendation and survival in plain PyTorch."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import Made, family, labels


@family
def feature_tokens() -> Made:
    """FT-Transformer: a token for each column, of numbers and of categories, and a class token."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = (
                nn.Parameter(torch.randn(4, 8)),
                nn.Parameter(torch.randn(6, 8)),
            )
            self.kinds, self.first = nn.Embedding(9, 8), nn.Parameter(torch.randn(1, 1, 8))
            self.register_buffer("starts", torch.tensor([0, 5]))
            self.layer = nn.TransformerEncoderLayer(
                8, 2, 16, 0.0, batch_first=True, norm_first=True
            )
            self.head = nn.Sequential(nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))

        def forward(self, numbers: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
            words = torch.cat(
                [numbers[..., None] * self.weight, self.kinds(kinds + self.starts)], 1
            )
            first = self.first.expand(numbers.shape[0], -1, -1)
            return self.head(self.layer(torch.cat([first, words + self.bias], 1))[:, 0])

    return Tokens(), (torch.randn(5, 4), labels(4, 5, 2)), labels(3, 5)


@family
def oblivious_trees() -> Made:
    """NODE: soft trees whose levels share a column and a threshold; leaves by outer products."""

    class Trees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.choose, self.limit = (
                nn.Parameter(torch.randn(6, 4, 3)),
                nn.Parameter(torch.randn(4, 3)),
            )
            self.heat, self.leaves = (
                nn.Parameter(torch.zeros(4, 3)),
                nn.Parameter(torch.randn(4, 8, 3)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            value = torch.einsum("bi,itd->btd", x, self.choose.softmax(0))
            right = ((value - self.limit) * torch.exp(-self.heat) * 0.5 + 0.5).clamp(0, 1)
            sides = torch.stack([1 - right, right], -1)
            way = torch.einsum("bti,btj,btk->btijk", *sides.unbind(2)).flatten(2)
            return torch.einsum("btl,tlo->bo", way, self.leaves)

    return Trees(), (torch.randn(6, 6),), labels(3, 6)


@family
def cross_network() -> Made:
    """DCN v2: crosses of low rank with gates of experts, beside a deep part."""

    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.ModuleList([nn.Embedding(7, 3), nn.Embedding(5, 3)])
            self.u, self.v = (nn.Parameter(torch.randn(2, 2, 9, 3) * 0.3) for _ in "ab")
            self.gate, self.bias = nn.Linear(9, 2), nn.Parameter(torch.zeros(2, 9))
            self.deep, self.head = nn.Sequential(nn.Linear(9, 8), nn.ReLU()), nn.Linear(17, 1)

        def forward(
            self, ids: torch.Tensor, x: torch.Tensor, clicked: torch.Tensor
        ) -> torch.Tensor:
            start = torch.cat([*(e(ids[:, i]) for i, e in enumerate(self.embed)), x], 1)
            h = start
            for i in range(2):
                low = torch.tanh(torch.einsum("bi,eir->ber", h, self.v[i]))
                wide = torch.einsum("ber,eir->bei", low, self.u[i]) + self.bias[i]
                mixed = (wide * self.gate(h).softmax(1)[..., None]).sum(1)
                h = start * mixed + h
            y = self.head(torch.cat([h, self.deep(start)], 1))[:, 0]
            return functional.binary_cross_entropy_with_logits(y, clicked)

    return Cross(), (labels(5, 6, 2), torch.randn(6, 3), labels(2, 6).float()), None


@family
def wide_and_deep() -> Made:
    """A linear part over crossed categories that hash to a table, and a deep part."""

    class WideDeep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.embed = nn.Embedding(32, 3), nn.Embedding(10, 4)
            self.deep = nn.Sequential(
                nn.Linear(11, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3)
            )

        def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            crossed = (ids[:, 0] * 7919 + ids[:, 1] * 104729) % 32
            deep = self.deep(torch.cat([self.embed(ids).flatten(1), x], 1))
            return self.wide(crossed) + deep

    return WideDeep(), (labels(10, 6, 2), torch.randn(6, 3)), labels(3, 6)


@family
def two_towers() -> Made:
    """Users and things as unit vectors, a softmax over the batch, corrected by how common."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = nn.Embedding(20, 8), nn.Embedding(30, 8)
            self.first, self.second = nn.Linear(8, 6), nn.Linear(8, 6)

        def forward(
            self, user: torch.Tensor, past: torch.Tensor, item: torch.Tensor, often: torch.Tensor
        ) -> torch.Tensor:
            u = self.first(self.user(user) + self.item(past).mean(1))
            v = self.second(self.item(item))
            score = functional.normalize(u) @ functional.normalize(v).T / 0.2 - often.log()
            return functional.cross_entropy(score, torch.arange(5))

    return Towers(), (labels(20, 5), labels(30, 5, 4), labels(30, 5), 0.1 + torch.rand(5)), None


@family
def interest_network() -> Made:
    """DIN: a past weighed by a candidate, products and differences, and Dice for activation."""

    class Interest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.score = nn.Embedding(20, 4), nn.Linear(16, 6)
            self.norm, self.alpha = nn.BatchNorm1d(6, affine=False), nn.Parameter(torch.zeros(6))
            self.weigh, self.head = nn.Linear(6, 1), nn.Linear(8, 2)

        def forward(self, past: torch.Tensor, ad: torch.Tensor) -> torch.Tensor:
            h, a = self.embed(past), self.embed(ad)[:, None].expand(-1, 5, -1)
            s = self.score(torch.cat([h, a, h - a, h * a], -1))
            p = torch.sigmoid(self.norm(s.flatten(0, 1))).view_as(s)
            weight = self.weigh(p * s + (1 - p) * self.alpha * s)
            return self.head(torch.cat([(weight * h).sum(1), a[:, 0]], 1))

    return Interest(), (labels(20, 6, 5), labels(20, 6)), labels(2, 6)


@family
def gated_tasks() -> Made:
    """MMoE: experts shared by two tasks, each with a gate of its own; one task leads to another."""

    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(6, 5) for _ in "abc"])
            self.gates, self.heads = (
                nn.ModuleList([nn.Linear(6, 3) for _ in "ab"]),
                nn.ModuleList([nn.Linear(5, 1) for _ in "ab"]),
            )

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            h = torch.stack([e(x).relu() for e in self.experts], 1)
            both = zip(self.gates, self.heads, strict=True)
            p = [torch.sigmoid(t((g(x).softmax(1)[..., None] * h).sum(1)))[:, 0] for g, t in both]
            rates = torch.stack([p[0], p[0] * p[1]], 1).clamp(1e-6, 1 - 1e-6)
            return functional.binary_cross_entropy(rates, y)

    return Tasks(), (torch.randn(8, 6), labels(2, 8, 2).float()), None


@family
def interacting_columns() -> Made:
    """AutoInt and xDeepFM: attention over columns, and outer products compressed by filters."""

    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.attend = (
                nn.Embedding(24, 6),
                nn.MultiheadAttention(6, 2, batch_first=True),
            )
            self.filters, self.skip = nn.Conv1d(16, 5, 1), nn.Linear(6, 6)
            self.head = nn.Linear(29, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            h = (self.attend(x, x, x, need_weights=False)[0] + self.skip(x)).relu()
            pairs = torch.einsum("bid,bjd->bijd", x, x).flatten(1, 2)
            return self.head(torch.cat([h.flatten(1), self.filters(pairs).sum(2)], 1))

    return Columns(), (labels(24, 6, 4),), labels(2, 6)


@family
def pairwise_ranking() -> Made:
    """LambdaRank: pairs of a list weighed by what their swap would change of the gain."""

    class Ranking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 1))

        def forward(self, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
            s = self.net(x)[..., 0]
            order = torch.argsort(torch.argsort(-gain + 0.01 * torch.arange(5), -1), -1)
            discount = 1 / torch.log2(order.to(x.dtype) + 2)
            change = (
                (gain[:, :, None] - gain[:, None]) * (discount[:, :, None] - discount[:, None])
            ).abs()
            better = (gain[:, :, None] > gain[:, None]).to(x.dtype)
            return (better * change * functional.softplus(s[:, None] - s[:, :, None])).sum() / 3

    return Ranking(), (torch.randn(3, 5, 4), labels(3, 3, 5).float()), None


@family
def survival_analysis() -> Made:
    """Cox's partial likelihood: risks summed over who is left, in the order of times."""

    class Survival(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 8), nn.SELU(), nn.Linear(8, 1))

        def forward(self, x: torch.Tensor, time: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            order = torch.argsort(time, descending=True)
            risk, seen = self.net(x)[:, 0][order], seen[order]
            left = torch.log(torch.cumsum(torch.exp(risk), 0))
            return -((risk - left) * seen).sum() / seen.sum()

    seen = torch.tensor([1.0, 0, 1, 1, 0, 1, 1, 0])
    return Survival(), (torch.randn(8, 5), torch.rand(8), seen), None


@family
def ordinal_regression() -> Made:
    """CORAL: one score, ordered thresholds by cumulative softplus, a chance for each."""

    class Ordinal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 8), nn.CELU(), nn.Linear(8, 1, bias=False))
            self.steps = nn.Parameter(torch.zeros(4))

        def forward(self, x: torch.Tensor, grade: torch.Tensor) -> torch.Tensor:
            limits = torch.cumsum(functional.softplus(self.steps), 0) - 1
            score = self.net(x) - limits
            above = (grade[:, None] > torch.arange(4)).to(x.dtype)
            return (
                -(
                    functional.logsigmoid(score) * above
                    + (functional.logsigmoid(score) - score) * (1 - above)
                )
                .sum(1)
                .mean()
            )

    return Ordinal(), (torch.randn(6, 5), labels(5, 6)), None


@family
def mixture_density() -> Made:
    """A mixture of normal densities; the log-likelihood by a log-sum of exponentials."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(3, 12), nn.Tanh()), nn.Linear(12, 15)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            weight, mean, wide = self.head(self.body(x)).split([3, 6, 6], 1)
            mean, wide = mean.view(-1, 3, 2), wide.view(-1, 3, 2)
            off = (y[:, None] - mean) * torch.exp(-wide)
            density = -0.5 * off.square().sum(-1) - wide.sum(-1) - math.log(2 * math.pi)
            return -torch.logsumexp(weight.log_softmax(1) + density, 1).mean()

    return Mixture(), (torch.randn(6, 3), torch.randn(6, 2)), None


@family
def monotonic_lattice() -> Made:
    """Calibrated columns by piecewise lines, and a lattice of weights that only rise."""

    class Lattice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rises, self.corners = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(8))
            self.out = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            knots = torch.linspace(-1, 0.5, 4, dtype=x.dtype)
            part = ((x[..., None] - knots) * 2).clamp(0, 1)
            h = (part * self.rises.softmax(-1)).sum(-1)
            weight = torch.ones_like(h[:, :1])
            for column in h.unbind(1):
                weight = torch.cat([weight * (1 - column[:, None]), weight * column[:, None]], 1)
            return (weight @ torch.cumsum(self.corners.exp(), 0)) * self.out[0] + self.out[1]

    return Lattice(), (torch.randn(7, 3),), torch.randn(7)


@family
def intersample_attention() -> Made:
    """SAINT: rows attend to columns, then the rows of the batch to one another."""

    class Saint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.columns = (
                nn.Parameter(torch.randn(4, 6)),
                nn.MultiheadAttention(6, 2, batch_first=True),
            )
            self.rows, self.norm = nn.MultiheadAttention(24, 2), nn.LayerNorm(24)
            self.head = nn.Linear(24, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x[..., None] * self.weight
            h = (h + self.columns(h, h, h, need_weights=False)[0]).flatten(1)[:, None]
            return self.head(self.norm(h + self.rows(h, h, h, need_weights=False)[0])[:, 0])

    return Saint(), (torch.randn(6, 4),), labels(3, 6)


@family
def graph_of_likes() -> Made:
    """LightGCN with BPR: a normalised adjacency spreads tables of users and things."""

    class Light(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(11, 6) * 0.3)

        def forward(
            self, near: torch.Tensor, user: torch.Tensor, good: torch.Tensor, bad: torch.Tensor
        ) -> torch.Tensor:
            scale = near.sum(1).clamp(min=1).rsqrt()
            spread = scale[:, None] * near * scale
            layers = [self.table, spread @ self.table]
            layers.append(spread @ layers[1])
            h = torch.stack(layers).mean(0)
            u, g, b = (h.index_select(0, i) for i in (user, good + 5, bad + 5))
            rank = -functional.logsigmoid((u * g).sum(1) - (u * b).sum(1)).mean()
            return rank + 1e-3 * self.table.square().sum()

    near = (torch.rand(11, 11) > 0.6).float()
    return Light(), (torch.maximum(near, near.T), labels(5, 4), labels(6, 4), labels(6, 4)), None
