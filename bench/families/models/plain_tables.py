"""Graphs, point sets, tables and mixtures in plain PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import Made, family, labels


@family
def point_net() -> Made:
    """Points, a learned alignment, a shared net, and the maximum over points."""

    class PointNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.align = nn.Sequential(nn.Conv1d(3, 12, 1), nn.BatchNorm1d(12), nn.ReLU())
            self.turn = nn.Linear(12, 9)
            self.shared = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
            self.head = nn.Sequential(
                nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turn = self.turn(self.align(x).max(2).values).view(-1, 3, 3)
            turn = turn + torch.eye(3, dtype=x.dtype)
            return self.head(self.shared(torch.bmm(turn, x)).max(2).values)

    return PointNet(), (torch.randn(6, 3, 20),), labels(4, 6)


@family
def edge_convolution() -> Made:
    """DGCNN: the nearest neighbours by top-k of distances, gathered, and a maximum."""

    class EdgeConv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge, self.head = nn.Linear(6, 12), nn.Linear(12, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            away = (x[:, :, None] - x[:, None]).square().sum(-1)
            near = away.topk(4, dim=-1, largest=False).indices
            flat = near.reshape(x.shape[0], -1, 1).expand(-1, -1, 3)
            others = x.gather(1, flat).reshape(x.shape[0], 10, 4, 3)
            own = x[:, :, None].expand(-1, -1, 4, -1)
            h = functional.leaky_relu(self.edge(torch.cat([own, others - own], -1)), 0.2)
            return self.head(h.amax(2).mean(1))

    return EdgeConv(), (torch.randn(3, 10, 3),), labels(4, 3)


EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 1, 2, 0], [1, 2, 3, 4, 5, 6, 0, 0, 1, 5]])


def graph_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(7, 5), EDGES


@family
def graph_convolution() -> Made:
    """GCN: messages summed with `index_add`, divided by the roots of degrees."""

    class GCN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            source, target = edges[0], edges[1]
            degree = torch.ones(7, dtype=x.dtype).index_add(
                0, target, torch.ones(10, dtype=x.dtype)
            )
            scale = (degree[source] * degree[target]).rsqrt()[:, None]
            for layer in (self.first, self.second):
                h = layer(x)
                x = (h / degree[:, None]).index_add(0, target, h[source] * scale)
                x = functional.relu(x) if layer is self.first else x
            return x

    return GCN(), graph_inputs(), labels(3, 7)


@family
def graph_attention() -> Made:
    """GAT: a softmax over the edges of each node by scatters."""

    class GAT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
            self.left, self.right = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            source, target = edges[0], edges[1]
            h = self.project(x)
            score = functional.leaky_relu(h[source] @ self.left + h[target] @ self.right, 0.2)
            weight = torch.exp(score - score.max().detach())
            total = torch.zeros(7, dtype=x.dtype).scatter_add(0, target, weight)
            weight = weight / (total[target] + 1e-6)
            index = target[:, None].expand(-1, 8)
            y = torch.zeros_like(h).scatter_add(0, index, weight[:, None] * h[source])
            return self.head(functional.elu(y))

    return GAT(), graph_inputs(), labels(3, 7)


@family
def graph_maximum() -> Made:
    """GraphSAGE: the largest message of each node, by scatter with reduction."""

    class SAGE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.message, self.own, self.head = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            h = functional.relu(self.message(x))
            index = edges[1][:, None].expand(-1, 8)
            pooled = torch.zeros_like(h).scatter_reduce(0, index, h[edges[0]], "amax")
            return self.head(functional.normalize(self.own(x) + pooled, dim=1))

    return SAGE(), graph_inputs(), labels(3, 7)


@family
def mixture_of_experts() -> Made:
    """The two best of four experts: top-k, a softmax of it, scattered back."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(6, 4)
            self.up, self.down = (
                nn.Parameter(torch.randn(4, 6, 8)),
                nn.Parameter(torch.randn(4, 8, 3)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.gate(x)
            best, which = scores.topk(2, dim=-1)
            weight = torch.zeros_like(scores).scatter(1, which, best.softmax(-1))
            h = functional.gelu(torch.einsum("bi,eih->beh", x, self.up))
            return torch.einsum("beo,be->bo", torch.einsum("beh,eho->beo", h, self.down), weight)

    return Mixture(), (torch.randn(9, 6),), labels(3, 9)


@family
def factorisation_machine() -> Made:
    """DeepFM: embeddings of columns, their pairwise products, and a deep part."""

    class DeepFM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.embed = nn.Embedding(40, 1), nn.Embedding(40, 4)
            self.deep = nn.Sequential(
                nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)
            )

        def forward(self, ids: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
            e = self.embed(ids)
            pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
            y = self.first(ids).sum((1, 2)) + pairs + self.deep(e.flatten(1))[:, 0]
            return functional.binary_cross_entropy_with_logits(y, clicked)

    return DeepFM(), (labels(40, 6, 5), labels(2, 6).float()), None


@family
def embedding_bag() -> Made:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(40, 8, mode="mean"), nn.Linear(8, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.bag(ids))

    return Bag(), (labels(40, 4, 5),), labels(4, 4)


@family
def tab_net() -> Made:
    """Columns chosen by sparsemax (sort, cumulative sums), gated linear units, in steps."""

    def sparsemax(z: torch.Tensor) -> torch.Tensor:
        ordered = torch.sort(z, -1, descending=True).values
        rank = torch.arange(1, 9, dtype=z.dtype)
        sums = ordered.cumsum(-1) - 1
        support = (rank * ordered > sums).to(z.dtype).sum(-1, keepdim=True)
        tau = sums.gather(-1, support.long() - 1) / support
        return (z - tau).clamp(min=0)

    class TabNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attend = (
                nn.BatchNorm1d(8),
                nn.ModuleList([nn.Linear(6, 8) for _ in "ab"]),
            )
            self.steps = nn.ModuleList([nn.Linear(8, 12) for _ in "ab"])
            self.start, self.head = nn.Linear(8, 6), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(x)
            a, prior, total = self.start(x), torch.ones_like(x), torch.zeros_like(x[:, :6])
            for attend, step in zip(self.attend, self.steps, strict=True):
                mask = sparsemax(attend(a) * prior)
                prior, a = prior * (1.3 - mask), functional.glu(step(mask * x))
                total = total + functional.relu(a)
            return self.head(total)

    return TabNet(), (torch.randn(6, 8),), labels(4, 6)


@family
def coupling_flow() -> Made:
    """RealNVP: halves that scale and shift one another; the negative log-likelihood."""

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            nets = [nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(3)]
            self.nets = nn.ModuleList(nets)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros_like(x[:, 0])
            for net in self.nets:
                a, b = x[:, :3], x[:, 3:]
                scale, shift = net(a).chunk(2, 1)
                scale = torch.tanh(scale)
                x, total = torch.cat([b * scale.exp() + shift, a], 1), total + scale.sum(1)
            return (0.5 * x.square().sum(1) - total).mean()

    return Flow(), (torch.randn(5, 6),), None


@family
def spline_network() -> Made:
    """KAN: a learned curve on each edge, of B-splines by their recursion."""

    class KAN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("grid", torch.arange(-3.0, 9.0) / 3 - 1)
            self.curves, self.base = nn.Parameter(torch.randn(4, 3, 8) * 0.3), nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x1, g = torch.tanh(x)[..., None], self.grid
            b = ((x1 >= g[:-1]) & (x1 < g[1:])).to(x.dtype)
            for k in range(1, 4):
                left = (x1 - g[: -k - 1]) / (g[k:-1] - g[: -k - 1]) * b[..., :-1]
                b = left + (g[k + 1 :] - x1) / (g[k + 1 :] - g[1:-k]) * b[..., 1:]
            return torch.einsum("bik,oik->bo", b, self.curves) + self.base(functional.silu(x))

    return KAN(), (torch.randn(6, 3),), labels(4, 6)


@family
def memory_network() -> Made:
    """Reads and writes of a table by similarity, as a neural Turing machine does."""

    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.key, self.add = nn.RNNCell(10, 8), nn.Linear(8, 6), nn.Linear(8, 6)
            self.table, self.head = nn.Parameter(torch.randn(5, 6)), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = self.table.expand(x.shape[0], -1, -1)
            h, read = x.new_zeros(x.shape[0], 8), x.new_zeros(x.shape[0], 6)
            for t in range(4):
                h = self.cell(torch.cat([x[:, t], read], 1), h)
                score = functional.cosine_similarity(table, self.key(h)[:, None], dim=2)
                weight = torch.softmax(4 * score, 1)[..., None]
                read = (weight * table).sum(1)
                table = table * (1 - 0.5 * weight) + weight * self.add(h)[:, None]
            return self.head(h)

    return Memory(), (torch.randn(4, 4, 4),), labels(4, 4)


@family
def actor_critic() -> Made:
    """PPO's loss: a clipped ratio of chances, a value, an entropy."""

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.actor, self.critic = (
                nn.Linear(6, 12),
                nn.Linear(12, 3),
                nn.Linear(12, 1),
            )

        def forward(
            self, x: torch.Tensor, did: torch.Tensor, before: torch.Tensor, gain: torch.Tensor
        ) -> torch.Tensor:
            h = torch.tanh(self.body(x))
            chances = self.actor(h).log_softmax(-1)
            ratio = torch.exp(chances.gather(1, did[:, None])[:, 0] - before)
            clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            value = functional.huber_loss(self.critic(h)[:, 0], gain)
            entropy = -(chances.exp() * chances).sum(-1)
            return value - clipped.mean() - 0.01 * entropy.mean()

    given = (torch.randn(8, 6), labels(3, 8), torch.full((8,), -1.1), torch.randn(8))
    return Policy(), given, None


@family
def low_rank_adapters() -> Made:
    """A frozen net with trained low-rank updates beside its weights."""

    class Adapted(nn.Module):
        def __init__(self, i: int, o: int) -> None:
            super().__init__()
            self.base = nn.Linear(i, o).requires_grad_(False)
            self.down, self.up = nn.Linear(i, 2, bias=False), nn.Linear(2, o, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + 0.5 * self.up(self.down(x))

    net = nn.Sequential(Adapted(6, 12), nn.GELU(), Adapted(12, 4))
    return net, (torch.randn(6, 6),), labels(4, 6)
