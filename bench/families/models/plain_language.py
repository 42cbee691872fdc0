"""Text by plain PyTorch: positions, memories and mixers of the last years, in their least form."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import LENGTH, VOCABULARY, Made, family, labels, tokens

WIDTH, HEADS = 16, 2


def causal(length: int = LENGTH) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


class Tagger(nn.Module):
    """An embedding, one mixer with its residual, and five classes for each position."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.mixer, self.head = mixer, nn.Linear(WIDTH, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        return self.head(x + self.mixer(self.norm(x))).transpose(1, 2)


def tagger(mixer: nn.Module) -> Made:
    return Tagger(mixer), (tokens(),), labels(5, 3, LENGTH)


def split_heads(x: torch.Tensor, heads: int = HEADS) -> torch.Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


@family
def text_cnn() -> Made:
    """Kim's classifier: convolutions of three widths over words, the maximum of each."""

    class TextCNN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, 12)
            self.convs = nn.ModuleList([nn.Conv1d(12, 6, k) for k in (2, 3, 4)])
            self.head = nn.Linear(18, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids).transpose(1, 2)
            return self.head(torch.cat([c(x).relu().amax(2) for c in self.convs], 1))

    return TextCNN(), (tokens(),), labels(4, 3)


@family
def character_highway() -> Made:
    """Words of characters: a convolution, its maximum, highway layers, a recurrent net."""

    class Characters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.conv = nn.Embedding(30, 6), nn.Conv1d(6, 10, 3, padding=1)
            self.gates, self.carried = nn.Linear(10, 10), nn.Linear(10, 10)
            self.net, self.head = nn.LSTM(10, 8, batch_first=True), nn.Linear(8, 5)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids).flatten(0, 1).transpose(1, 2)
            x = torch.tanh(self.conv(x)).amax(2)
            gate = torch.sigmoid(self.gates(x))
            x = gate * torch.relu(self.carried(x)) + (1 - gate) * x
            return self.head(self.net(x.unflatten(0, (-1, 4)))[0]).transpose(1, 2)

    return Characters(), (labels(30, 3, 4, 6),), labels(5, 3, 4)


@family
def rotary_transformer() -> Made:
    """Rotary positions, grouped queries, root-mean-square norms and a SwiGLU, as in Llama."""

    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv = nn.Linear(16, 16, bias=False), nn.Linear(16, 8, bias=False)
            self.scale, self.out = nn.Parameter(torch.ones(16)), nn.Linear(16, 16, bias=False)
            self.up, self.down = nn.Linear(16, 48), nn.Linear(24, 16)
            angles = torch.arange(LENGTH)[:, None] * 0.1 ** torch.arange(2)
            self.register_buffer("cos", torch.cat([angles.cos(), angles.cos()], -1))
            self.register_buffer("sin", torch.cat([angles.sin(), angles.sin()], -1))

        def turn(self, x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, -1)
            return x * self.cos + torch.cat([-b, a], -1) * self.sin

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale
            k, v = self.kv(x).chunk(2, -1)
            q, k, v = split_heads(self.q(x), 4), split_heads(k, 1), split_heads(v, 1)
            k, v = k.expand(-1, 4, -1, -1), v.expand(-1, 4, -1, -1)
            y = functional.scaled_dot_product_attention(
                self.turn(q), self.turn(k), v, is_causal=True
            )
            a, b = self.up(self.out(join_heads(y))).chunk(2, -1)
            return self.down(functional.silu(a) * b)

    return tagger(Rotary())


class Attention(nn.Module):
    """Queries, keys and values of two heads by one product; `attend` is what differs."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return self.biased(scores, q, k).softmax(-1) @ v

    def biased(self, scores: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return scores

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(a) for a in self.qkv(x).chunk(3, -1))
        return self.out(join_heads(self.attend(q, k, v)))


@family
def linear_biases() -> Made:
    """ALiBi: a slope for each head on how far back a key is."""

    class Alibi(Attention):
        def biased(self, scores: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            at = torch.arange(LENGTH, dtype=scores.dtype)
            slopes = torch.tensor([0.5, 0.25], dtype=scores.dtype)[:, None, None]
            scores = scores + slopes * (at[None] - at[:, None])
            return scores.masked_fill(~causal(), torch.finfo(scores.dtype).min)

    return tagger(Alibi())


@family
def bucketed_positions() -> Made:
    """T5's relative positions, in buckets that widen with the distance."""

    class Buckets(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Embedding(8, HEADS)
            away = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None]
            far = away.abs().clamp(min=1).float()
            wide = (2 + torch.log2(far / 2).clamp(min=0)).long().clamp(max=3)
            near = torch.where(away.abs() < 2, away.abs(), wide)
            self.register_buffer("buckets", near + 4 * (away > 0))

        def biased(self, scores: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return scores + self.bias(self.buckets).permute(2, 0, 1)

    return tagger(Buckets())


@family
def shifted_relative() -> Made:
    """Transformer-XL: keys of sines of distances, lined up by a padded reshape; a memory."""

    class Relative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.kv = nn.Linear(16, 16), nn.Linear(16, 32)
            self.away, self.out = nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
            self.u, self.v = nn.Parameter(torch.randn(2, 1, 8)), nn.Parameter(torch.randn(2, 1, 8))
            self.memory = nn.Parameter(torch.randn(4, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, length, keys = x.shape[0], LENGTH, LENGTH + 4
            held = torch.cat([self.memory.expand(b, -1, -1), x], 1)
            k, v = self.kv(held).chunk(2, -1)
            q, k, v = split_heads(self.q(x)), split_heads(k), split_heads(v)
            at = torch.arange(keys - 1, -1, -1, dtype=x.dtype)[:, None]
            waves = at * 0.3 ** torch.arange(8, dtype=x.dtype)
            r = split_heads(self.away(torch.cat([waves.sin(), waves.cos()], -1))[None])
            by_place = (q + self.v) @ r.transpose(-1, -2)
            by_place = functional.pad(by_place, (1, 0)).reshape(b, 2, keys + 1, length)
            by_place = by_place[:, :, 1:].reshape(b, 2, length, keys)
            scores = ((q + self.u) @ k.transpose(-1, -2) + by_place) / math.sqrt(8)
            seen = torch.ones(length, keys, dtype=torch.bool).tril(4)
            scores = scores.masked_fill(~seen, float("-inf"))
            return self.out(join_heads(scores.softmax(-1) @ v))

    return tagger(Relative())


@family
def retention() -> Made:
    """RetNet: products that decay with distance, a group norm, a gate, and no softmax."""

    class Retention(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.norm = nn.Linear(WIDTH, WIDTH), nn.GroupNorm(HEADS, WIDTH)
            away = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)[None]
            kept = torch.tensor([0.9, 0.7])[:, None, None] ** away.clamp(min=0)
            self.register_buffer("decay", kept * (away >= 0))

        def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return (q @ k.transpose(-1, -2) * self.decay) @ v

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (split_heads(a) for a in self.qkv(x).chunk(3, -1))
            y = join_heads(self.attend(q, k, v))
            y = self.norm(y.flatten(0, 1)).reshape(x.shape)
            return self.out(functional.silu(self.gate(x)) * y)

    return tagger(Retention())


@family
def delta_rule() -> Made:
    """DeltaNet: a fast weight that is corrected by what it already answers, step by step."""

    class Delta(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.rate = nn.Linear(WIDTH, HEADS)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (split_heads(a) for a in self.qkv(x).chunk(3, -1))
            k, rate = functional.normalize(k, dim=-1), torch.sigmoid(self.rate(x)).transpose(1, 2)
            held = torch.zeros_like(q[:, :, 0, :, None] * v[:, :, 0, None])
            out = []
            for t in range(LENGTH):
                key = k[:, :, t, :, None]
                off = v[:, :, t, None] - (held * key).sum(2, keepdim=True)
                held = held + rate[:, :, t, None, None] * key * off
                out.append((held * q[:, :, t, :, None]).sum(2))
            return self.out(join_heads(torch.stack(out, 2)))

    return tagger(Delta())


@family
def diagonal_state_space() -> Made:
    """S4D: a kernel of damped waves as long as the sequence, convolved as a Toeplitz product."""

    class S4D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decay, self.angle = (nn.Parameter(torch.rand(16, 4)) for _ in "ab")
            self.c, self.d = nn.Parameter(torch.randn(2, 16, 4)), nn.Parameter(torch.ones(16))
            self.step, self.out = nn.Parameter(torch.zeros(16, 1)), nn.Linear(16, 32)
            at = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)[None]
            self.register_buffer("at", at.clamp(min=0))
            self.register_buffer("is_past", (at >= 0).float())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time = torch.arange(LENGTH, dtype=x.dtype) * functional.softplus(self.step)
            damped = torch.exp(-self.decay.exp()[..., None] * time[:, None])
            waves = self.angle[..., None] * 3 * time[:, None]
            real = self.c[0, ..., None] * waves.cos() - self.c[1, ..., None] * waves.sin()
            kernel = (damped * real).sum(1)
            toeplitz = kernel[:, self.at] * self.is_past
            y = torch.einsum("dts,bsd->btd", toeplitz, x) + self.d * x
            return functional.glu(self.out(functional.gelu(y)))

    return tagger(S4D())


@family
def discretised_state_space() -> Made:
    """S4's bilinear step: the state matrix is inverted by the Neumann series, then unrolled."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(4, 4) * 0.2), nn.Linear(16, 4, bias=False)
            self.c, self.log_step = nn.Linear(4, 16), nn.Parameter(torch.tensor(-1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            half = self.log_step.exp() / 2 * self.a
            one = torch.eye(4, dtype=x.dtype)
            inverse = one + half @ (one + half @ (one + half))
            move, given = inverse @ (one + half), self.b(x) @ inverse.T
            h, out = torch.zeros_like(given[:, 0]), []
            for t in range(LENGTH):
                h = h @ move.T + given[:, t]
                out.append(self.c(h))
            return torch.stack(out, 1)

    return tagger(Dense())


@family
def minimal_gru() -> Made:
    """minGRU: gates without a state, so that a scan in the logarithm does all steps at once."""

    class MinGRU(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Linear(16, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate, new = self.both(x).chunk(2, -1)
            kept, taken = -functional.softplus(gate), -functional.softplus(-gate)
            given = taken + functional.logsigmoid(new)
            decay = kept.cumsum(1)
            return torch.exp(decay) * torch.exp(given - decay).cumsum(1)

    return tagger(MinGRU())


@family
def quasi_recurrent() -> Made:
    """QRNN: gates by a causal convolution, a pooling by hand."""

    class QRNN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gates = nn.Conv1d(16, 48, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z, f, o = self.gates(functional.pad(x.transpose(1, 2), (1, 0))).chunk(3, 1)
            z, f, o = torch.tanh(z), torch.sigmoid(f), torch.sigmoid(o)
            c, out = torch.zeros_like(z[..., 0]), []
            for zt, ft, ot in zip(z.unbind(2), f.unbind(2), o.unbind(2), strict=True):
                c = ft * c + (1 - ft) * zt
                out.append(ot * c)
            return torch.stack(out, 1)

    return tagger(QRNN())


@family
def spatial_gate() -> Made:
    """gMLP: half the channels, mixed over places, gate the other half."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.norm = nn.Linear(16, 32), nn.Linear(16, 16), nn.LayerNorm(16)
            self.places = nn.Conv1d(LENGTH, LENGTH, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            u, v = functional.gelu(self.up(x)).chunk(2, -1)
            return self.down(u * self.places(self.norm(v)))

    return tagger(Gated())


@family
def fourier_mixer() -> Made:
    """FNet: the real part of two discrete transforms, by their matrices."""

    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
            for name, n in (("words", LENGTH), ("width", 16)):
                angle = 2 * math.pi / n * torch.outer(torch.arange(n), torch.arange(n))
                self.register_buffer(name, torch.stack([angle.cos(), angle.sin()]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            c, s = x @ self.width[0], x @ self.width[1]
            return self.net(self.words[0] @ c - self.words[1] @ s)

    return tagger(Fourier())


@family
def long_convolution() -> Made:
    """Hyena: implicit filters as long as the text, convolved by fast transforms, and gates."""

    class Hyena(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
            self.short = nn.Conv1d(48, 48, 3, padding=2, groups=48)
            self.filter = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.linspace(0, 1, LENGTH, dtype=x.dtype)[:, None]
            waves = torch.cat([at, (6 * at).sin(), (6 * at).cos()], 1)
            kernel = (self.filter(waves) * torch.exp(-2 * at)).T
            a = self.short(self.project(x).transpose(1, 2))[..., :LENGTH]
            q, k, v = a.chunk(3, 1)
            given = torch.fft.rfft(k * v, n=2 * LENGTH)
            y = torch.fft.irfft(given * torch.fft.rfft(kernel, n=2 * LENGTH), n=2 * LENGTH)
            return self.out((q * y[..., :LENGTH]).transpose(1, 2))

    return tagger(Hyena())


@family
def windowed_attention() -> Made:
    """Longformer's windows: keys of a neighbourhood by padded slices, one global word."""

    class Windows(Attention):
        def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            def around(x: torch.Tensor) -> torch.Tensor:
                wide = functional.pad(x, (0, 0, 2, 2))
                near = torch.stack([wide[:, :, i : i + LENGTH] for i in range(5)], 3)
                first = x[:, :, :1, None].expand(-1, -1, LENGTH, -1, -1)
                return torch.cat([near, first], 3)

            scores = (around(k) * q[..., None, :]).sum(-1) / math.sqrt(8)
            at = torch.arange(LENGTH)[:, None] + torch.arange(-2, 4)
            inside = (at >= 0) & (at < LENGTH) | (torch.arange(6) == 5)
            scores = scores.masked_fill(~inside, -1e9)
            return (scores.softmax(-1)[..., None] * around(v)).sum(3)

    return tagger(Windows())


@family
def low_rank_keys() -> Made:
    """Latent attention: keys and values are expanded from one narrow vector a word."""

    class Latent(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, WIDTH + 4)
            self.norm, self.wide = nn.LayerNorm(4), nn.Linear(4, 2 * WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, narrow = self.qkv(x).split([WIDTH, 4], -1)
            k, v = self.wide(self.norm(narrow)).chunk(2, -1)
            return self.out(join_heads(self.attend(*map(split_heads, (q, k, v)))))

    return tagger(Latent())


@family
def differential_attention() -> Made:
    """The difference of two softmax maps, weighed by learned vectors."""

    class Differential(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.randn(4, 4) * 0.1)

        def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
            a, b, c, d = self.weights
            weight = torch.exp((a * b).sum()) - torch.exp((c * d).sum()) + 0.8
            maps = [(x @ y.transpose(-1, -2) / 2).softmax(-1) for x, y in ((q1, k1), (q2, k2))]
            y = (maps[0] - weight * maps[1]) @ v
            return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * 0.2

    return tagger(Differential())


@family
def random_features() -> Made:
    """Performer: the softmax kernel by positive random features, fixed."""

    class Performer(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("draws", torch.randn(12, 8))

        def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            def features(x: torch.Tensor) -> torch.Tensor:
                x = x / 8**0.25
                return torch.exp(x @ self.draws.T - 0.5 * x.square().sum(-1, keepdim=True)) + 1e-4

            q, k = features(q), features(k)
            norm = q @ k.sum(-2)[..., None]
            return q @ (k.transpose(-1, -2) @ v) / norm

    return tagger(Performer())


@family
def routed_experts() -> Made:
    """A switch: each word to one expert, by dispatch tensors of a capacity; a balance."""

    class Switch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.gate = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 3)
            self.up, self.down = (
                nn.Parameter(torch.randn(3, 8, 12) * 0.3),
                nn.Parameter(torch.randn(3, 12, 8) * 0.3),
            )
            self.head = nn.Linear(8, 5)

        def forward(self, ids: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids).flatten(0, 1)
            chances = self.gate(x).softmax(-1)
            best, which = chances.max(-1)
            chosen = functional.one_hot(which, 3).to(x.dtype)
            place = (chosen.cumsum(0) - 1) * chosen
            fits = chosen * (place < 10).to(x.dtype)
            slots = functional.one_hot(place.sum(-1).long().clamp(max=9), 10).to(x.dtype)
            dispatch = fits[..., None] * slots[:, None]
            h = torch.einsum("nec,nd->ecd", dispatch, x)
            h = torch.bmm(functional.gelu(torch.bmm(h, self.up)), self.down)
            y = torch.einsum("nec,ecd->nd", dispatch * best[:, None, None], h)
            balance = 3 * (chosen.mean(0) * chances.mean(0)).sum()
            return functional.cross_entropy(self.head(x + y), tags.flatten()) + 0.01 * balance

    return Switch(), (tokens(), labels(5, 3, LENGTH)), None


@family
def soft_mixture() -> Made:
    """Soft MoE: slots are averages of words, words are averages of slots."""

    class Soft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slots = nn.Parameter(torch.randn(16, 3, 2) * 0.5)
            self.weight, self.bias = (
                nn.Parameter(torch.randn(3, 16, 16) * 0.2),
                nn.Parameter(torch.zeros(3, 1, 16)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = torch.einsum("btd,des->btes", x, self.slots)
            given = torch.einsum("btes,btd->besd", scores.softmax(1), x)
            done = functional.gelu(given @ self.weight + self.bias)
            back = scores.flatten(2).softmax(-1)
            return back @ done.flatten(1, 2)

    return tagger(Soft())


@family
def pointer_network() -> Made:
    """A decoder that points at places of its input; what it has chosen is masked."""

    class Pointer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.cell = nn.LSTM(2, 8, batch_first=True), nn.LSTMCell(2, 8)
            self.left, self.right, self.score = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, points: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
            held, (h, c) = self.encoder(points)
            h, c, x = h[0], c[0], points[:, 0]
            used, losses = torch.zeros_like(points[..., 0]), []
            for t in range(5):
                h, c = self.cell(x, (h, c))
                score = self.score(torch.tanh(self.left(held) + self.right(h)[:, None]))[..., 0]
                at = order[:, t]
                score = score - 20 * used
                losses.append(functional.cross_entropy(score, at))
                taken = functional.one_hot(at, 5).to(x.dtype)
                used, x = used + taken, (taken[..., None] * points).sum(1)
            return torch.stack(losses).mean()

    order = torch.stack([torch.randperm(5) for _ in range(3)])
    return Pointer(), (torch.rand(3, 5, 2), order), None


@family
def modern_hopfield() -> Made:
    """Patterns retrieved in three steps of an energy; the stored ones are learned."""

    class Hopfield(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stored, self.log_beta = (
                nn.Parameter(torch.randn(6, 16)),
                nn.Parameter(torch.zeros(1)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            stored = functional.layer_norm(self.stored, (16,))
            for _ in range(3):
                x = (self.log_beta.exp() * x @ stored.T / 4).softmax(-1) @ stored
            return x

    return tagger(Hopfield())


@family
def conformer() -> Made:
    """Half feed-forward steps around attention and a gated depthwise convolution."""

    class Conformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.halves = nn.ModuleList([
                nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
                for _ in "ab"
            ])  # fmt: skip
            self.attend, self.norms = Attention(), nn.ModuleList([nn.LayerNorm(16) for _ in "abc"])
            self.point, self.back = nn.Conv1d(16, 32, 1), nn.Conv1d(16, 16, 1)
            self.depth, self.batch = nn.Conv1d(16, 16, 3, 1, 1, groups=16), nn.BatchNorm1d(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + 0.5 * self.halves[0](x)
            x = x + self.attend(self.norms[0](x))
            h = functional.glu(self.point(self.norms[1](x).transpose(1, 2)), 1)
            x = x + self.back(functional.silu(self.batch(self.depth(h)))).transpose(1, 2)
            return self.norms[2](x + 0.5 * self.halves[1](x))

    return tagger(Conformer())


@family
def tree_recurrence() -> Made:
    """A Tree-LSTM over pairs of earlier nodes that an input names, two children each."""

    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.gates = nn.Embedding(VOCABULARY, 16), nn.Linear(16, 40)
            self.head = nn.Linear(8, 4)

        def forward(self, ids: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
            nodes = self.embed(ids)
            for t in range(3):
                both = pairs[:, t, :, None].expand(-1, -1, 16)
                (h1, c1), (h2, c2) = (n.chunk(2, -1) for n in nodes.gather(1, both).unbind(1))
                i, f, g, o, u = self.gates(torch.cat([h1, h2], -1)).chunk(5, -1)
                c = torch.sigmoid(f) * c1 + torch.sigmoid(g) * c2 + torch.sigmoid(i) * torch.tanh(u)
                new = torch.cat([torch.sigmoid(o) * torch.tanh(c), c], -1)
                nodes = torch.cat([nodes, new[:, None]], 1)
            return self.head(nodes[:, -1, :8])

    pairs = torch.tensor([[[0, 1], [2, 3], [4, 5]], [[1, 2], [0, 4], [3, 5]]])
    return Tree(), (1 + labels(VOCABULARY - 1, 2, 4), pairs), labels(4, 2)
