"""Sequences, sound and time series in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import (
    LENGTH,
    VOCABULARY,
    Made,
    Pooled,
    family,
    labels,
    tokens,
)


@family
def torch_encoder() -> Made:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(
                32, 4, 64, dropout=0.0, batch_first=True, activation="gelu"
            )
            self.embed = nn.Embedding(VOCABULARY, 32)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.layers(self.embed(ids))

    return Pooled(Encoder(), lambda m, i: m(i)), (tokens(),), labels(4, 3)


@family
def wave_net() -> Made:
    net = nn.Sequential(
        nn.Conv1d(2, 8, 5, 2), nn.GELU(approximate="tanh"), nn.Conv1d(8, 16, 3),
        nn.LayerNorm([16, 13]), nn.ELU(), nn.Flatten(), nn.Linear(16 * 13, 4),
    )  # fmt: skip
    return net, (torch.randn(3, 2, 33),), labels(4, 3)


class Tagger(nn.Module):
    """An embedding, a recurrent net and a linear layer for each position."""

    def __init__(self, kind: type[nn.RNNBase], **kwargs: Any) -> None:
        super().__init__()
        self.embed, self.net = nn.Embedding(VOCABULARY, 16), kind(16, 12, **kwargs)
        self.head = nn.Linear(24 if kwargs.get("bidirectional") else 12, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(self.embed(ids))[0]).transpose(1, 2)


def _tagger(kind: type[nn.RNNBase], **kwargs: Any) -> Made:
    return Tagger(kind, batch_first=True, **kwargs), (tokens(),), labels(5, 3, LENGTH)


@family
def lstm_tagger() -> Made:
    return _tagger(nn.LSTM, num_layers=2, bidirectional=True)


@family
def gru_tagger() -> Made:
    return _tagger(nn.GRU, num_layers=2, bidirectional=True)


@family
def rnn_tagger() -> Made:
    return _tagger(nn.RNN, nonlinearity="tanh")


@family
def torch_seq2seq() -> Made:
    """`nn.Transformer` with a causal mask; teacher forcing."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target = nn.Embedding(VOCABULARY, 16), nn.Embedding(VOCABULARY, 16)
            self.net = nn.Transformer(
                16, 2, 1, 2, 32, dropout=0.0, batch_first=True, norm_first=True
            )
            self.head = nn.Linear(16, VOCABULARY)

        def forward(self, ids: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
            mask = mask.to(self.head.weight.dtype)
            y = self.net(self.source(ids), self.target(before), tgt_mask=mask)
            return self.head(y).transpose(1, 2)

    return Translator(), (tokens(), tokens()), labels(VOCABULARY, 3, LENGTH)


@family
def gru_attention() -> Made:
    """An encoder and a decoder that attends to it step by step."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.encoder = (
                nn.Embedding(VOCABULARY, 12),
                nn.GRU(12, 12, batch_first=True),
            )
            self.cell, self.query = nn.GRUCell(24, 12), nn.Linear(12, 12)
            self.head = nn.Linear(24, VOCABULARY)

        def forward(self, ids: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
            states, last = self.encoder(self.embed(ids))
            h, given, out = last[0], self.embed(before), []
            for t in range(4):
                score = torch.bmm(states, self.query(h).unsqueeze(2)).squeeze(2)
                context = torch.bmm(score.softmax(1).unsqueeze(1), states).squeeze(1)
                h = self.cell(torch.cat([given[:, t], context], 1), h)
                out.append(self.head(torch.cat([h, context], 1)))
            return torch.stack(out, 2)

    return Translator(), (tokens(), tokens()), labels(VOCABULARY, 3, 4)


@family
def lstm_projected() -> Made:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = nn.LSTM(6, 12, batch_first=True, proj_size=5), nn.Linear(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.net(x)[0][:, -1])

    return Projected(), (torch.randn(3, 7, 6),), labels(4, 3)


@family
def selective_scan() -> Made:
    """Mamba's block, its scan as a loop over time."""

    class Mamba(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.inner = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 32)
            self.conv = nn.Conv1d(16, 16, 3, padding=2, groups=16)
            self.project, self.step = nn.Linear(16, 2 + 8), nn.Linear(2, 16)
            self.log_a = nn.Parameter(torch.log(torch.arange(1.0, 5).repeat(16, 1)))
            self.skip, self.out = nn.Parameter(torch.ones(16)), nn.Linear(16, 8)
            self.head = nn.Linear(8, 5)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x, gate = self.inner(self.embed(ids)).chunk(2, -1)
            x = functional.silu(self.conv(x.transpose(1, 2))[..., :LENGTH].transpose(1, 2))
            step, b, c = self.project(x).split([2, 4, 4], -1)
            step = functional.softplus(self.step(step))[..., None]
            decay, given = torch.exp(-step * self.log_a.exp()), step * b[:, :, None] * x[..., None]
            h, out = torch.zeros_like(given[:, 0]), []
            for t in range(LENGTH):
                h = decay[:, t] * h + given[:, t]
                out.append((h * c[:, t, None]).sum(-1))
            y = torch.stack(out, 1) + self.skip * x
            return self.head(self.out(y * functional.silu(gate))).transpose(1, 2)

    return Mamba(), (tokens(),), labels(5, 3, LENGTH)


@family
def rwkv_loop() -> Made:
    """RWKV's time mixing with its running maximum."""

    class TimeMix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix = nn.Embedding(VOCABULARY, 12), nn.Parameter(torch.rand(3, 12))
            self.key, self.value, self.gate = (nn.Linear(12, 12, bias=False) for _ in range(3))
            self.decay, self.first = nn.Parameter(torch.randn(12)), nn.Parameter(torch.randn(12))
            self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 5)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.embed(ids))
            before = functional.pad(x, (0, 0, 1, -1))
            k, v, r = (
                f(x * m + before * (1 - m))
                for f, m in zip((self.key, self.value, self.gate), self.mix, strict=True)
            )
            up = down = torch.zeros_like(x[:, 0])
            high, out = up - 1e4, []
            for t in range(LENGTH):
                top = torch.maximum(high, self.first + k[:, t])
                a, b = torch.exp(high - top), torch.exp(self.first + k[:, t] - top)
                out.append((a * up + b * v[:, t]) / (a * down + b))
                top = torch.maximum(high - self.decay.exp(), k[:, t])
                a, b = torch.exp(high - self.decay.exp() - top), torch.exp(k[:, t] - top)
                up, down, high = a * up + b * v[:, t], a * down + b, top
            return self.head(torch.sigmoid(r) * torch.stack(out, 1)).transpose(1, 2)

    return TimeMix(), (tokens(),), labels(5, 3, LENGTH)


@family
def linear_attention() -> Made:
    """Causal attention without a softmax, by cumulative sums of outer products."""

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.project = nn.Embedding(VOCABULARY, 12), nn.Linear(12, 36)
            self.head = nn.Linear(12, 5)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            q, k, v = self.project(self.embed(ids)).chunk(3, -1)
            q, k = functional.elu(q) + 1, functional.elu(k) + 1
            sums = torch.cumsum(k[..., None] * v[..., None, :], 1)
            norm = (q * torch.cumsum(k, 1)).sum(-1, keepdim=True)
            return self.head(torch.einsum("btk,btkv->btv", q, sums) / norm).transpose(1, 2)

    return Linear(), (tokens(),), labels(5, 3, LENGTH)


@family
def temporal_convolution() -> Made:
    """TCN: causal, dilated, weights normalised, residual."""

    class Block(nn.Module):
        def __init__(self, i: int, o: int, dilation: int) -> None:
            super().__init__()
            conv = nn.Conv1d(i, o, 3, dilation=dilation, padding=2 * dilation)
            self.conv = nn.utils.parametrizations.weight_norm(conv)
            self.skip, self.cut = nn.Conv1d(i, o, 1), 2 * dilation

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.relu(functional.relu(self.conv(x)[..., : -self.cut]) + self.skip(x))

    net = nn.Sequential(Block(2, 8, 1), Block(8, 8, 2), Block(8, 8, 4), nn.Conv1d(8, 3, 1))
    return net, (torch.randn(3, 2, 20),), labels(3, 3, 20)


@family
def decomposed_linear() -> Made:
    """DLinear: a pooled average, trend and rest forecast apart, series normalised."""

    class DLinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trend, self.rest = nn.Linear(16, 4), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
            x = (x - mean) / (std + 1e-5)
            trend = functional.avg_pool1d(functional.pad(x, (2, 2), mode="replicate"), 5, 1)
            return (self.trend(trend) + self.rest(x - trend)) * std + mean

    return DLinear(), (torch.randn(3, 2, 16),), torch.randn(3, 2, 4)


@family
def quantile_forecast() -> Made:
    """A bidirectional GRU that forecasts quantiles under the pinball loss."""

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = (
                nn.GRU(3, 8, batch_first=True, bidirectional=True),
                nn.Linear(16, 3),
            )

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=x.dtype)
            off = y[:, None] - self.head(self.net(x)[0][:, -1])
            return torch.maximum(quantiles * off, (quantiles - 1) * off).sum(1).mean()

    return Forecast(), (torch.randn(4, 9, 3), torch.randn(4)), None


@family
def conditional_random_field() -> Made:
    """A tagger's loss by the forward algorithm: log-sums over paths."""

    class CRF(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 5)
            self.moves = nn.Parameter(torch.randn(5, 5))

        def forward(self, ids: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
            scores = self.head(self.embed(ids))
            path = scores.gather(2, tags[..., None]).sum((1, 2))
            path = path + self.moves[tags[:, :-1], tags[:, 1:]].sum(1)
            alpha = scores[:, 0]
            for t in range(1, LENGTH):
                alpha = torch.logsumexp(alpha[:, :, None] + self.moves, 1) + scores[:, t]
            return (torch.logsumexp(alpha, 1) - path).mean()

    return CRF(), (tokens(), labels(5, 3, LENGTH)), None


@family
def short_time_fourier() -> Made:
    """`torch.stft` and an energy per band."""

    class Bands(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.head = nn.Parameter(torch.ones(9)), nn.Linear(9, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            window = torch.hann_window(16, dtype=x.dtype)
            waves = torch.stft(x, 16, 8, 16, window, center=False, return_complex=True)
            power = torch.view_as_real(waves).square().sum(-1).mean(-1)
            return self.head(torch.log(power * self.gain.exp() + 1e-3))

    return Bands(), (torch.randn(3, 64),), labels(4, 3)
