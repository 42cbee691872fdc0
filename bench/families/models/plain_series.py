"""Time series and sound in plain PyTorch: forecasts, separation, keywords, dynamics."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import Made, family, labels


@family
def basis_expansion() -> Made:
    """N-BEATS: blocks that explain a part of the past, by a trend, by waves, and freely."""

    class Block(nn.Module):
        def __init__(self, basis: torch.Tensor) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2 * len(basis)))
            self.register_buffer("basis", basis)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            back, ahead = self.net(x).chunk(2, -1)
            return back @ self.basis[:, :12], ahead @ self.basis[:, 12:]

    class NBeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            t = torch.arange(16) / 16
            trend = torch.stack([t**p for p in range(3)])
            waves = torch.cat([torch.cos(6 * t[None] * torch.arange(1, 3)[:, None]),
                               torch.sin(6 * t[None] * torch.arange(1, 3)[:, None])])  # fmt: skip
            self.blocks = nn.ModuleList([Block(trend), Block(waves), Block(torch.eye(16))])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros_like(x[:, :4])
            for block in self.blocks:
                back, ahead = block(x)
                x, total = x - back, total + ahead
            return total

    return NBeats(), (torch.randn(4, 12),), torch.randn(4, 4)


@family
def pooled_hierarchy() -> Made:
    """N-HiTS: pasts pooled at several rates, forecasts interpolated back."""

    class NHits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates = (4, 2, 1)
            self.nets = nn.ModuleList([
                nn.Sequential(nn.Linear(16 // r, 12), nn.ReLU(), nn.Linear(12, 16 + 8 // r))
                for r in self.rates
            ])  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros_like(x[:, :8])
            for rate, net in zip(self.rates, self.nets, strict=True):
                back, knots = net(functional.max_pool1d(x[:, None], rate)[:, 0]).split(
                    [16, 8 // rate], 1
                )
                ahead = functional.interpolate(knots[:, None], size=8, mode="linear")[:, 0]
                x, total = x - back, total + ahead
            return total

    return NHits(), (torch.randn(4, 16),), torch.randn(4, 8)


class GatedResidual(nn.Module):
    """A dense layer, ELU, another, a gated linear unit, and a norm of the sum."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(i, o), nn.Linear(o, 2 * o)
        self.skip, self.norm = nn.Linear(i, o), nn.LayerNorm(o)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.glu(self.second(functional.elu(self.first(x))))
        return self.norm(self.skip(x) + h)


@family
def temporal_fusion() -> Made:
    """TFT: variables selected by a softmax, an LSTM, attention that can be read, quantiles."""

    class Fusion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.ModuleList([GatedResidual(1, 8) for _ in range(3)])
            self.choose, self.net = GatedResidual(3, 3), nn.LSTM(8, 8, batch_first=True)
            self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
            self.out, self.head = GatedResidual(4, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            parts = torch.stack([f(x[..., i, None]) for i, f in enumerate(self.each)], -1)
            h = (parts * self.choose(x).softmax(-1)[..., None, :]).sum(-1)
            h = self.net(h)[0]
            q, k = (a.unflatten(-1, (2, 4)).transpose(1, 2) for a in (self.query(h), self.key(h)))
            weight = (q @ k.transpose(-1, -2) / 2).softmax(-1).mean(1)
            predicted = self.head(self.out(weight @ self.value(h))[:, -1])
            quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=x.dtype)
            off = y[:, None] - predicted
            return torch.maximum(quantiles * off, (quantiles - 1) * off).mean()

    return Fusion(), (torch.randn(4, 9, 3), torch.randn(4)), None


@family
def patched_series() -> Made:
    """PatchTST: each channel alone, overlapping patches, series normalised and put back."""

    class PatchTST(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
            self.embed, self.place = nn.Linear(8, 16), nn.Parameter(torch.randn(4, 16) * 0.1)
            self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
            self.head = nn.Linear(64, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean = x.mean(1, keepdim=True)
            std = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
            x = (x - mean) / std * self.scale + self.shift
            patches = torch.stack([x[:, i : i + 8] for i in range(0, 16, 4)], 1).permute(0, 3, 1, 2)
            h = self.layer((self.embed(patches) + self.place).flatten(0, 1))
            y = self.head(h.flatten(1)).unflatten(0, (-1, 3)).transpose(1, 2)
            return (y - self.shift) / (self.scale + 1e-5) * std + mean

    return PatchTST(), (torch.randn(2, 20, 3),), torch.randn(2, 6, 3)


@family
def inverted_transformer() -> Made:
    """iTransformer: variables are the words, their whole past is the embedding."""
    net = nn.Sequential(
        nn.Linear(16, 16),
        nn.TransformerEncoderLayer(16, 2, 24, 0.0, "gelu", batch_first=True, norm_first=True),
        nn.Linear(16, 4),
    )
    return net, (torch.randn(3, 5, 16),), torch.randn(3, 5, 4)


@family
def sparse_queries() -> Made:
    """Informer: attention for the queries that differ most from a mean, scattered into it."""

    class ProbSparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.qkv = nn.Conv1d(3, 8, 3, padding=1), nn.Linear(8, 24)
            self.distil, self.head = nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.embed(x.transpose(1, 2)).transpose(1, 2)
            q, k, v = self.qkv(h).chunk(3, -1)
            scores = q @ k[:, ::2].transpose(1, 2)
            sparsity = scores.amax(-1) - scores.mean(-1)
            at = sparsity.topk(4, -1).indices[..., None].expand(-1, -1, 8)
            best = (q.gather(1, at) @ k.transpose(1, 2) / math.sqrt(8)).softmax(-1) @ v
            y = v.mean(1, keepdim=True).expand(-1, 12, -1).scatter(1, at, best)
            y = functional.elu(self.distil((h + y).transpose(1, 2)))
            return self.head(functional.max_pool1d(y, 3, 2, 1).mean(2))

    return ProbSparse(), (torch.randn(3, 12, 3),), torch.randn(3, 2)


@family
def auto_correlation() -> Made:
    """Autoformer: the past rolled by its best lags, weighed by how well they fit."""

    class AutoCorrelation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.head = (nn.Linear(4, 4) for _ in "abcd")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean = functional.avg_pool1d(
                functional.pad(x.transpose(1, 2), (2, 2), mode="replicate"), 5, 1
            ).transpose(1, 2)
            x = x - mean
            q, k, v = self.q(x), self.k(x), self.v(x)
            twice = torch.cat([k, k], 1)
            fit = torch.stack([(q * twice[:, i : i + 12]).sum((1, 2)) for i in range(12)], 1)
            best, lag = fit.topk(3, -1)
            at = (torch.arange(12)[None, None] + lag[..., None]) % 12
            rolled = v[torch.arange(x.shape[0])[:, None, None], at]
            return self.head((best.softmax(-1)[..., None, None] * rolled).sum(1)) + mean

    return AutoCorrelation(), (torch.randn(3, 12, 4),), torch.randn(3, 12, 4)


@family
def frequency_layers() -> Made:
    """FITS: a complex linear layer over a low-passed spectrum gives a longer series."""

    class Fits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.real, self.imaginary = nn.Linear(5, 7), nn.Linear(5, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            waves = torch.view_as_real(torch.fft.rfft(x))[..., :5, :]
            a, b = waves[..., 0], waves[..., 1]
            real = self.real(a) - self.imaginary(b)
            both = torch.stack([real, self.real(b) + self.imaginary(a)], -1)
            wide = functional.pad(both, (0, 0, 0, 6))
            return torch.fft.irfft(torch.view_as_complex(wide.contiguous()), n=24) * 1.5

    return Fits(), (torch.randn(3, 2, 16),), torch.randn(3, 2, 24)


@family
def gated_wave_net() -> Made:
    """WaveNet: causal dilated gates, residuals, summed skips, classes of quantised sound."""

    class WaveNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(16, 8)
            self.gates = nn.ModuleList([nn.Conv1d(8, 16, 2, dilation=d) for d in (1, 2, 4)])
            self.both = nn.ModuleList([nn.Conv1d(8, 16, 1) for _ in range(3)])
            self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(8, 8, 1), nn.ReLU(), nn.Conv1d(8, 16, 1))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x, skips = self.embed(ids).transpose(1, 2), 0
            for gate, both in zip(self.gates, self.both, strict=True):
                a, b = gate(functional.pad(x, (gate.dilation[0], 0))).chunk(2, 1)
                kept, skip = both(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
                x, skips = x + kept, skips + skip
            return self.head(skips)

    return WaveNet(), (labels(16, 2, 20),), labels(16, 2, 20)


@family
def sound_separation() -> Made:
    """Conv-TasNet: a learned filter bank, global norms, masks, and the scale-free error."""

    class TasNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = (
                nn.Conv1d(1, 12, 8, 4, bias=False),
                nn.ConvTranspose1d(12, 1, 8, 4, bias=False),
            )
            self.norm, self.down = nn.GroupNorm(1, 12, eps=1e-6), nn.Conv1d(12, 8, 1)
            self.body = nn.Sequential(
                nn.Conv1d(8, 16, 1), nn.PReLU(), nn.GroupNorm(1, 16),
                nn.Conv1d(16, 16, 3, padding=2, dilation=2, groups=16), nn.PReLU(),
                nn.GroupNorm(1, 16), nn.Conv1d(16, 8, 1),
            )  # fmt: skip
            self.mask = nn.Conv1d(8, 24, 1)

        def forward(self, x: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
            h = functional.relu(self.encode(x[:, None]))
            y = self.down(self.norm(h))
            masks = torch.sigmoid(self.mask(y + self.body(y))).unflatten(1, (2, 12))
            decoded = self.decode((masks * h[:, None]).flatten(0, 1)).view(-1, 2, 40)
            decoded, clean = (
                decoded - decoded.mean(-1, keepdim=True),
                clean - clean.mean(-1, keepdim=True),
            )
            scale = (decoded * clean).sum(-1, keepdim=True) / clean.square().sum(-1, keepdim=True)
            aim = scale * clean
            ratio = aim.square().sum(-1) / ((decoded - aim).square().sum(-1) + 1e-8)
            return -10 * torch.log10(ratio + 1e-8).mean()

    return TasNet(), (torch.randn(2, 40), torch.randn(2, 2, 40)), None


@family
def keyword_spotter() -> Made:
    """Spectra by strided convolutions with windowed waves, mel bands, depthwise convolutions."""

    class Spotter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            angle = 2 * math.pi / 16 * torch.outer(torch.arange(9), torch.arange(16))
            waves = torch.cat([angle.cos(), -angle.sin()]) * torch.hann_window(16)
            self.register_buffer("waves", waves[:, None])
            self.register_buffer("bands", torch.rand(9, 6))
            self.net = nn.Sequential(
                nn.Conv2d(1, 8, 3, (2, 1), 1), nn.BatchNorm2d(8), nn.ReLU(),
                nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.ReLU(),
                nn.Conv2d(8, 12, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                nn.Linear(12, 4),
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = functional.conv1d(
                functional.pad(x[:, None], (8, 8), mode="reflect"), self.waves, stride=8
            )
            power = x[:, :9].square() + x[:, 9:].square()
            bands = torch.log(power.transpose(1, 2) @ self.bands + 1e-6)
            return self.net((bands - bands.mean(1, keepdim=True))[:, None])

    return Spotter(), (torch.randn(3, 80),), labels(4, 3)


@family
def speaker_embedding() -> Made:
    """ECAPA: split convolutions in a chain, squeeze, attentive mean and deviation, a margin."""

    class Speaker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(6, 12, 5, padding=2)
            self.chain = nn.ModuleList([nn.Conv1d(4, 4, 3, padding=2, dilation=2) for _ in "ab"])
            self.squeeze = nn.Sequential(
                nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 12), nn.Sigmoid()
            )
            self.attend, self.norm = nn.Conv1d(36, 12, 1), nn.BatchNorm1d(24)
            self.down, self.speakers = nn.Linear(24, 6), nn.Parameter(torch.randn(5, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = functional.relu(self.first(x))
            parts = list(h.chunk(3, 1))
            for i, conv in enumerate(self.chain, 1):
                parts[i] = functional.relu(conv(parts[i] + parts[i - 1]))
            h = torch.cat(parts, 1)
            h = h * self.squeeze(h.mean(2))[..., None]
            mean, std = h.mean(2, keepdim=True), h.std(2, keepdim=True)
            wide = torch.cat([h, mean.expand_as(h), std.expand_as(h)], 1)
            weight = torch.tanh(self.attend(wide)).softmax(2)
            mean = (h * weight).sum(2)
            std = torch.sqrt(((h.square() * weight).sum(2) - mean.square()).clamp(min=1e-6))
            e = self.down(self.norm(torch.cat([mean, std], 1)))
            return 10 * functional.normalize(e) @ functional.normalize(self.speakers).T

    return Speaker(), (torch.randn(4, 6, 14),), labels(5, 4)


@family
def wave_unet() -> Made:
    """Demucs: strided gates down, a recurrent net in the middle, transposed gates up."""

    class Demucs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([nn.Conv1d(1, 8, 4, 2, 1), nn.Conv1d(8, 12, 4, 2, 1)])
            self.point = nn.ModuleList([nn.Conv1d(8, 16, 1), nn.Conv1d(12, 24, 1)])
            self.middle, self.join = nn.LSTM(12, 6, bidirectional=True), nn.Linear(12, 12)
            self.up = nn.ModuleList(
                [nn.ConvTranspose1d(12, 8, 4, 2, 1), nn.ConvTranspose1d(8, 1, 4, 2, 1)]
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = []
            for down, point in zip(self.down, self.point, strict=True):
                x = functional.glu(point(functional.relu(down(x))), 1)
                kept.append(x)
            x = self.join(self.middle(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
            x = functional.relu(self.up[0](x + kept[1]))
            return self.up[1](x + kept[0])

    return Demucs(), (torch.randn(2, 1, 24),), torch.randn(2, 1, 24)


@family
def likelihood_forecast() -> Made:
    """DeepAR: an LSTM over lags, the loss is Student's likelihood with learned freedom."""

    class DeepAR(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = nn.LSTM(2, 8, 2, batch_first=True), nn.Linear(8, 2)
            self.freedom = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            mean, wide = self.head(self.net(x)[0]).unbind(-1)
            wide, n = functional.softplus(wide) + 1e-3, 1 + functional.softplus(self.freedom)
            off = (y - mean) / wide
            return (torch.log(wide) + (n + 1) / 2 * torch.log1p(off.square() / n)).mean()

    return DeepAR(), (torch.randn(3, 8, 2), torch.randn(3, 8)), None


@family
def echo_state() -> Made:
    """A fixed reservoir with leaks; what is read of it is trained."""

    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("given", torch.randn(16, 3) * 0.5)
            self.register_buffer("kept", torch.randn(16, 16) * 0.2)
            self.head = nn.Linear(19, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.zeros_like(x[:, 0] @ self.given.T)
            for t in range(6):
                h = 0.7 * h + 0.3 * torch.tanh(x[:, t] @ self.given.T + h @ self.kept.T)
            return self.head(torch.cat([h, x[:, -1]], 1))

    return Echo(), (torch.randn(5, 6, 3),), labels(4, 5)


@family
def neural_ode() -> Made:
    """Four steps of Runge and Kutta through a learned field that knows the time."""

    class ODE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))

        def field(self, t: float, x: torch.Tensor) -> torch.Tensor:
            return self.net(torch.cat([x, torch.full_like(x[:, :1], t)], 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i in range(4):
                t, h = i / 4, 0.25
                a = self.field(t, x)
                b = self.field(t + h / 2, x + h / 2 * a)
                c = self.field(t + h / 2, x + h / 2 * b)
                d = self.field(t + h, x + h * c)
                x = x + h / 6 * (a + 2 * b + 2 * c + d)
            return x

    return ODE(), (torch.randn(6, 2),), torch.randn(6, 2)


@family
def controlled_differential() -> Made:
    """A neural CDE: a matrix of the state times the rise of the path, by Euler's steps."""

    class CDE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.field = nn.Linear(3, 6), nn.Linear(6, 18)
            self.head = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.start(x[:, 0])
            for rise in (x[:, 1:] - x[:, :-1]).unbind(1):
                h = h + torch.bmm(torch.tanh(self.field(h)).view(-1, 6, 3), rise[..., None])[..., 0]
            return self.head(h)

    return CDE(), (torch.randn(4, 7, 3),), labels(3, 4)


@family
def liquid_network() -> Made:
    """Liquid time constants: gates that set how fast each state forgets."""

    class Liquid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.head = nn.Linear(3 + 8, 8), nn.Linear(8, 4)
            self.rate, self.level = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.randn(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.zeros_like(x[:, 0, :1]).expand(-1, 8)
            for given in x.unbind(1):
                f = torch.sigmoid(self.gate(torch.cat([given, h], 1)))
                h = (h + 0.2 * f * self.level) / (1 + 0.2 * (self.rate.exp() + f))
            return self.head(h)

    return Liquid(), (torch.randn(4, 6, 3),), labels(4, 4)


def leaky_states(x: torch.Tensor, kept: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """Every state of h = (1 - rate) h + rate tanh(x + h kept); a loop, as scripts export it."""
    h = torch.zeros_like(x[:, 0])
    out = torch.zeros_like(x[:, :0])
    for t in range(x.shape[1]):
        h = (1 - rate) * h + rate * torch.tanh(x[:, t] + h @ kept)
        out = torch.cat([out, h[:, None]], 1)
    return out


SCRIPTED = torch.jit.script(leaky_states)


@family
def scripted_recurrence() -> Made:
    """A recurrent net whose loop over time is scripted: ONNX's Loop, and its state is carried."""

    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.given, self.head = nn.Linear(3, 8), nn.Linear(8, 4)
            self.kept, self.rate = (
                nn.Parameter(torch.randn(8, 8) * 0.3),
                nn.Parameter(torch.full((8,), 0.4)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(SCRIPTED(self.given(x), self.kept, self.rate).mean(1))

    return Scripted(), (torch.randn(4, 6, 3),), labels(4, 4)
