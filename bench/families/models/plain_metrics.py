"""Embeddings learned from pairs, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import LENGTH, VOCABULARY, Made, family, image, labels, tokens


def encoder(width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, width),
    )  # fmt: skip


@family
def contrastive_images() -> Made:
    """SimCLR: two views of each picture find one another among all; itself is masked."""

    class SimClr(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = encoder()
            self.project = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = functional.normalize(self.project(self.body(torch.cat([x, y]))), dim=1)
            score = z @ z.T / 0.5
            score = score.masked_fill(torch.eye(8, dtype=torch.bool), float("-inf"))
            return functional.cross_entropy(score, (torch.arange(8) + 4) % 8)

    return SimClr(), (*image(12, 4), *image(12, 4)), None


@family
def text_and_images() -> Made:
    """CLIP: a text's and a picture's tower, a learned temperature, both directions."""

    class Clip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.embed = encoder(6), nn.Embedding(VOCABULARY, 8)
            self.net, self.down = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 6, bias=False)
            self.heat = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            a = functional.normalize(self.body(x), dim=-1)
            b = functional.normalize(self.down(self.net(self.embed(ids))[0].mean(1)), dim=-1)
            score = self.heat.exp().clamp(max=100) * a @ b.T
            own = torch.arange(3)
            return (
                functional.cross_entropy(score, own) + functional.cross_entropy(score.T, own)
            ) / 2

    return Clip(), (*image(12, 3), tokens()), None


@family
def sigmoid_pairs() -> Made:
    """SigLIP over texts with attention pooling: every pair is a yes or a no."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.probe = nn.Embedding(VOCABULARY, 8), nn.Parameter(torch.randn(1, 1, 8))
            self.attend, self.other = (
                nn.MultiheadAttention(8, 2, batch_first=True),
                nn.Linear(LENGTH, 8),
            )
            self.heat, self.bias = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(-2.0))

        def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            h = self.embed(ids)
            probe = self.probe.expand(3, -1, -1)
            a = functional.normalize(self.attend(probe, h, h, need_weights=False)[0][:, 0], dim=-1)
            b = functional.normalize(self.other(x), dim=-1)
            signs = 2 * torch.eye(3, dtype=x.dtype) - 1
            return -functional.logsigmoid(signs * (a @ b.T * self.heat.exp() + self.bias)).sum() / 3

    return Pairs(), (tokens(), torch.randn(3, LENGTH)), None


@family
def siamese_triplets() -> Made:
    """One encoder for three pictures, a margin between squared distances, and hard pairs."""

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = encoder()

        def forward(self, a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            x, y, z = (functional.normalize(self.body(i), dim=1) for i in (a, p, n))
            triplet = functional.triplet_margin_loss(x, y, z, margin=0.5)
            away = torch.sqrt((x[:, None] - z).square().sum(-1) + 1e-8)
            return triplet + (0.5 - away.amin(1)).clamp(min=0).mean()

    return Siamese(), (*image(12, 3), *image(12, 3), *image(12, 3)), None


@family
def angular_margin() -> Made:
    """ArcFace: the angle to one's own class widened before the softmax."""

    class Arc(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.classes = encoder(), nn.Parameter(torch.randn(5, 8))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            cosine = functional.linear(
                functional.normalize(self.body(x)), functional.normalize(self.classes)
            )
            cosine = cosine.clamp(-1 + 1e-6, 1 - 1e-6)
            wide = torch.cos(torch.acos(cosine) + 0.3)
            wide = torch.where(cosine > -0.95, wide, cosine - 0.1)
            own = functional.one_hot(y, 5).bool()
            return functional.cross_entropy(8 * torch.where(own, wide, cosine), y)

    return Arc(), (*image(12, 4), labels(5, 4)), None


@family
def prototypes() -> Made:
    """Few shots: means of each class by products with labels, distances as scores."""

    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 5)
            )
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, few: torch.Tensor, kinds: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            one = functional.one_hot(kinds, 3).to(x.dtype)
            means = (one.T @ self.body(few)) / one.sum(0)[:, None]
            return -self.scale * (self.body(x)[:, None] - means).square().sum(-1)

    kinds = torch.tensor([0, 1, 2, 0, 1, 2])
    return Prototypes(), (torch.randn(6, 6), kinds, torch.randn(5, 6)), labels(3, 5)


@family
def redundancy_reduction() -> Made:
    """Barlow Twins and VICReg: a cross-correlation near one, deviations kept from zero."""

    class Barlow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm = encoder(6), nn.BatchNorm1d(6)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            a, b = self.body(x), self.body(y)
            both = self.norm(a).T @ self.norm(b) / 5
            one = torch.eye(6, dtype=x.dtype)
            off = (both - one).square() * (one + 0.01 * (1 - one))
            spread = sum(functional.relu(1 - torch.sqrt(z.var(0) + 1e-4)).mean() for z in (a, b))
            return off.sum() + spread

    return Barlow(), (*image(12, 5), *image(12, 5)), None


@family
def supervised_contrast() -> Made:
    """All of a class attract one another: a mean of log-softmax over a mask of labels."""

    class Contrast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 12), nn.Hardtanh(), nn.Linear(12, 5))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = functional.normalize(self.net(x), dim=1)
            score = z @ z.T / 0.3
            other = 1 - torch.eye(6, dtype=x.dtype)
            score = score - score.amax(1, keepdim=True)
            likely = score - torch.log((score.exp() * other).sum(1, keepdim=True))
            same = (y[:, None] == y).to(x.dtype) * other
            return -((same * likely).sum(1) / same.sum(1).clamp(min=1)).mean()

    return Contrast(), (torch.randn(6, 6), torch.tensor([0, 0, 1, 1, 2, 2])), None


@family
def distilled_student() -> Made:
    """A fixed teacher's softened answers, a student's, their divergence and features."""

    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = nn.Sequential(
                nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)
            ).requires_grad_(False)
            self.first, self.last, self.match = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 16)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            shown = self.teacher[0](x).relu()
            h = self.first(x).relu()
            scores, wanted = self.last(h), self.teacher(x)
            soft = functional.kl_div(
                (scores / 3).log_softmax(1), (wanted / 3).softmax(1), reduction="batchmean"
            )
            return (
                functional.cross_entropy(scores, y)
                + 9 * soft
                + (self.match(h) - shown).square().mean()
            )

    return Student(), (torch.randn(6, 6), labels(4, 6)), None
