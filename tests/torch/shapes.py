"""Small modules in the shapes of those that people train, for comparisons of gradients.

Each function makes a module and its example from torch's random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, Any]
MAKERS: list[Callable[[], Made]] = []


def shape(make: Callable[[], Made]) -> Callable[[], Made]:
    """Note a function that makes a module and its example."""
    MAKERS.append(make)
    return make


class Calls(nn.Module):
    """Parts by name, and a function of them and of the arguments."""

    def __init__(self, function: Any, **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def conv(a: int, b: int, k: int = 3, stride: int = 1, act: Any = nn.ReLU, **more: Any) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(a, b, k, stride, k // 2, bias=False, **more), nn.BatchNorm2d(b), act()
    )


def classifier(body: nn.Module, width: int, classes: int = 4) -> nn.Module:
    return nn.Sequential(
        body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(width, classes)
    )


class Residual(nn.Module):
    def __init__(self, *parts: nn.Module, short: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(*parts)
        self.short = nn.Identity() if short is None else short

    def forward(self, x: Any) -> Any:
        return self.body(x) + self.short(x)


class Squeeze(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: Any) -> Any:
        scale = self.down(x.mean((2, 3), keepdim=True)).relu()
        return x * functional.hardsigmoid(self.up(scale))


class Attention(nn.Module):
    """Of several heads, by matrices or by torch's function."""

    def __init__(self, width: int, heads: int, causal: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal, self.drop = heads, causal, drop

    def forward(self, x: Any, mask: Any = None) -> Any:
        n, length, width = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        p = self.drop if self.training else 0.0
        y = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=p, is_causal=self.causal
        )
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, norm: Any = nn.LayerNorm, **more: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attend = Attention(width, heads, **more)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width)
        )

    def forward(self, x: Any, mask: Any = None) -> Any:
        x = x + self.attend(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


IMAGES = (4, 3, 16, 16)


@shape
def resnet() -> Made:
    def block(a: int, b: int, stride: int) -> nn.Module:
        short = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))
        parts = (conv(a, b, 3, stride), nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b))
        return nn.Sequential(Residual(*parts, short=short), nn.ReLU(inplace=True))

    body = nn.Sequential(conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), block(8, 8, 1), block(8, 12, 2))
    return classifier(body, 12), torch.randn(IMAGES)


@shape
def convnext() -> Made:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 7, 1, 3, groups=8), nn.LayerNorm(8, eps=1e-6)
            self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
            self.gamma = nn.Parameter(0.5 * torch.ones(8))

        def forward(self, x: Any) -> Any:
            h = self.norm(self.conv(x).permute(0, 2, 3, 1))
            h = self.gamma * self.down(functional.gelu(self.up(h)))
            return x + h.permute(0, 3, 1, 2)

    return classifier(nn.Sequential(nn.Conv2d(3, 8, 4, 4), Layer(), Layer()), 8), torch.randn(
        IMAGES
    )


@shape
def vit() -> Made:
    def run(s: Any, x: Any) -> Any:
        x = s.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([s.token.expand(x.shape[0], -1, -1), x], 1) + s.places
        return s.head(s.norm(s.blocks(x))[:, 0])

    parts = {"token": nn.Parameter(torch.randn(1, 1, 8)),
             "places": nn.Parameter(torch.randn(1, 17, 8))}  # fmt: skip
    blocks = nn.Sequential(Block(8, 2), Block(8, 2, drop=0.1))
    return Calls(run, patch=nn.Conv2d(3, 8, 4, 4), blocks=blocks, norm=nn.LayerNorm(8),
                 head=nn.Linear(8, 4), **parts), torch.randn(IMAGES)  # fmt: skip


@shape
def swin() -> Made:
    """Windows that are shifted, with a table of relative positions."""

    def run(s: Any, x: Any) -> Any:
        x = s.patch(x).permute(0, 2, 3, 1).roll((-1, -1), (1, 2))
        n = x.shape[0]
        w = x.reshape(n, 2, 2, 2, 2, 8).transpose(2, 3).reshape(n * 4, 4, 8)
        bias = s.table[s.index.flatten()].reshape(4, 4, 2).permute(2, 0, 1)
        w = w + s.attend(s.norm(w), bias[None])
        x = w.reshape(n, 2, 2, 2, 2, 8).transpose(2, 3).reshape(n, 4, 4, 8).roll((1, 1), (1, 2))
        return s.head(x.mean((1, 2)))

    net = Calls(run, patch=nn.Conv2d(3, 8, 4, 4), norm=nn.LayerNorm(8), attend=Attention(8, 2),
                head=nn.Linear(8, 4), table=nn.Parameter(torch.randn(9, 2)))  # fmt: skip
    net.register_buffer("index", torch.randint(0, 9, (4, 4)))
    return net, torch.randn(IMAGES)


@shape
def mobilenet() -> Made:
    inner = (conv(8, 16, 1, act=nn.Hardswish), conv(16, 16, 3, groups=16, act=nn.Hardswish),
             Squeeze(16), nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))  # fmt: skip
    return classifier(nn.Sequential(conv(3, 8, 3, 2), Residual(*inner)), 8), torch.randn(IMAGES)


@shape
def efficientnet() -> Made:
    """SiLU, squeezed channels, and paths that drop by sample."""

    def run(s: Any, x: Any) -> Any:
        h = s.squeeze(s.deep(s.wide(x)))
        if s.training:
            h = h * functional.dropout(h.new_ones(h.shape[0], 1, 1, 1), 0.3, True)
        return x + s.thin(h)

    parts = {"wide": conv(8, 16, 1, act=nn.SiLU), "deep": conv(16, 16, 5, groups=16, act=nn.SiLU)}
    block = Calls(run, squeeze=Squeeze(16), thin=nn.Conv2d(16, 8, 1), **parts)
    return classifier(nn.Sequential(conv(3, 8, 3, 2, nn.SiLU), block), 8), torch.randn(IMAGES)


@shape
def densenet() -> Made:
    def run(s: Any, x: Any) -> Any:
        x = s.stem(x)
        for layer in s.layers:
            x = torch.cat([x, layer(x)], 1)
        return s.head(functional.avg_pool2d(x, 2).flatten(1))

    layers = nn.ModuleList(
        nn.Sequential(nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, 4, 3, 1, 1)) for a in (8, 12, 16)
    )
    parts = {"stem": nn.Conv2d(3, 8, 3, 2, 1), "head": nn.Linear(20 * 16, 4)}
    return Calls(run, layers=layers, **parts), torch.randn(IMAGES)


@shape
def shufflenet() -> Made:
    def run(s: Any, x: Any) -> Any:
        a, b = s.stem(x).chunk(2, 1)
        x = torch.cat([a, s.branch(b)], 1)
        n, c, h, w = x.shape
        return s.head(
            x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w).mean((2, 3))
        )

    branch = nn.Sequential(conv(4, 4, 1), nn.Conv2d(4, 4, 3, 1, 1, groups=4), nn.BatchNorm2d(4))
    return Calls(run, stem=conv(3, 8), branch=branch, head=nn.Linear(8, 4)), torch.randn(IMAGES)


@shape
def normaliser_free() -> Made:
    """Standardised weights, GroupNorm, InstanceNorm and PReLU."""

    def run(s: Any, x: Any) -> Any:
        w = s.conv.weight
        mean = w.mean((1, 2, 3), keepdim=True)
        w = (w - mean) / (w.var((1, 2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()
        x = s.act(s.group(functional.conv2d(x, w, s.conv.bias, padding=1)))
        return s.head(s.instance(x).abs().mean((2, 3)))

    return Calls(run, conv=nn.Conv2d(3, 8, 3), group=nn.GroupNorm(2, 8), act=nn.PReLU(8),
                 instance=nn.InstanceNorm2d(8, affine=True), head=nn.Linear(8, 4)), torch.randn(
        IMAGES)  # fmt: skip


@shape
def mlp_mixer() -> Made:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.tokens, self.width = nn.LayerNorm(8), nn.Linear(16, 16), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
            return x + functional.gelu(self.width(x), approximate="tanh")

    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Flatten(2), nn.Linear(16, 8), Grown(Mixer())), (
        torch.randn(IMAGES)
    )


class Grown(nn.Module):
    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.grow, self.mixer = nn.Linear(8, 16), mixer

    def forward(self, x: Any) -> Any:
        return self.mixer(self.grow(x).transpose(1, 2)).mean(1)


@shape
def bert() -> Made:
    """Embeddings that are tied to the output, a mask, and a pooler."""

    def run(s: Any, tokens: Any, mask: Any) -> Any:
        places = torch.arange(tokens.shape[1])
        x = s.drop(s.norm(s.words(tokens) + s.places(places) + s.kinds(torch.zeros_like(tokens))))
        far = (1.0 - mask[:, None, None].to(x.dtype)) * -1e4
        for block in s.blocks:
            x = block(x, far)
        scores = functional.linear(s.change(x), s.words.weight, s.bias)
        return {"scores": scores, "pooled": s.pool(x[:, 0]).tanh()}

    net = Calls(run, words=nn.Embedding(20, 8), places=nn.Embedding(6, 8), kinds=nn.Embedding(2, 8),
                norm=nn.LayerNorm(8), drop=nn.Dropout(0.1), pool=nn.Linear(8, 8),
                blocks=nn.ModuleList([Block(8, 2), Block(8, 2)]), change=nn.Linear(8, 8),
                bias=nn.Parameter(torch.zeros(20)))  # fmt: skip
    mask = torch.ones(4, 6, dtype=torch.int64)
    mask[::2, 4:] = 0
    return net, (torch.randint(0, 20, (4, 6)), mask)


@shape
def gpt() -> Made:
    def run(s: Any, tokens: Any) -> Any:
        x = s.words(tokens) + s.places.weight[: tokens.shape[1]]
        return s.head(s.norm(s.blocks(x)))

    net = Calls(run, words=nn.Embedding(20, 8), places=nn.Embedding(6, 8), norm=nn.LayerNorm(8),
                blocks=nn.Sequential(Block(8, 2, causal=True, drop=0.1), Block(8, 4, causal=True)),
                head=nn.Linear(8, 20, bias=False))  # fmt: skip
    net.head.weight = net.words.weight
    return net, torch.randint(0, 20, (4, 6))


@shape
def llama() -> Made:
    """Places as turns of halves, RMSNorm, and a gated middle."""

    def turn(s: Any, x: Any) -> Any:
        a, b = x.chunk(2, -1)
        return x * s.cos + torch.cat([-b, a], -1) * s.sin

    def run(s: Any, tokens: Any) -> Any:
        x = s.words(tokens)
        n, length, width = x.shape
        h = s.norm(x)
        q, k, v = (f(h).reshape(n, length, 2, 4).transpose(1, 2) for f in (s.q, s.k, s.v))
        y = functional.scaled_dot_product_attention(turn(s, q), turn(s, k), v, is_causal=True)
        x = x + s.out(y.transpose(1, 2).reshape(n, length, width))
        return s.head(x + s.down(functional.silu(s.gate(x)) * s.up(x)))

    parts = {name: nn.Linear(8, 8, bias=False) for name in ("q", "k", "v", "out")}
    net = Calls(run, words=nn.Embedding(20, 8), norm=nn.RMSNorm(8), gate=nn.Linear(8, 16),
                up=nn.Linear(8, 16), down=nn.Linear(16, 8), head=nn.Linear(8, 20),
                **parts)  # fmt: skip
    angles = torch.arange(6)[:, None] * torch.tensor([1.0, 0.1]).repeat(2)
    net.register_buffer("cos", angles.cos())
    net.register_buffer("sin", angles.sin())
    return net, torch.randint(0, 20, (4, 6))


@shape
def encoder_decoder() -> Made:
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)

    def run(s: Any, source: Any, target: Any) -> Any:
        mask = torch.full((5, 5), float("-inf")).triu(1)
        return s.head(s.decoder(s.b(target), s.encoder(s.a(source)), tgt_mask=mask))

    net = Calls(run, a=nn.Embedding(20, 8), b=nn.Embedding(20, 8), encoder=encoder, decoder=layer,
                head=nn.Linear(8, 20))  # fmt: skip
    return net, (torch.randint(0, 20, (4, 6)), torch.randint(0, 20, (4, 5)))


@shape
def t5_positions() -> Made:
    """Buckets of distances, and attention by einsum."""

    def run(s: Any, x: Any) -> Any:
        bias = s.buckets(s.index).permute(2, 0, 1)[None]
        q, k, v = (layer(x).unflatten(-1, (2, 4)) for layer in (s.q, s.k, s.v))
        a = (torch.einsum("nihd,njhd->nhij", q, k) + bias).softmax(-1)
        return torch.einsum("nhij,njhd->nihd", functional.dropout(a, 0.1, s.training), v).flatten(2)

    net = Calls(run, q=nn.Linear(8, 8), k=nn.Linear(8, 8), v=nn.Linear(8, 8),
                buckets=nn.Embedding(5, 2))  # fmt: skip
    net.register_buffer("index", torch.randint(0, 5, (6, 6)))
    return net, torch.randn(4, 6, 8)


@shape
def unet() -> Made:
    def run(s: Any, x: Any) -> Any:
        a = s.a(x)
        b = s.b(functional.max_pool2d(a, 2))
        up = functional.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return s.out(torch.cat([a, up, s.up(b)], 1))

    return Calls(run, a=conv(3, 6), b=conv(6, 8), up=nn.ConvTranspose2d(8, 6, 2, 2),
                 out=nn.Conv2d(20, 2, 1)), torch.randn(IMAGES)  # fmt: skip


@shape
def diffusion_block() -> Made:
    """A step that scales and shifts, and attention over places."""

    def run(s: Any, x: Any, step: Any) -> Any:
        angles = step[:, None] * s.rates
        scale, shift = s.embed(torch.cat([angles.sin(), angles.cos()], -1)).chunk(2, -1)
        h = s.norm(s.conv(x)) * (1 + scale[..., None, None]) + shift[..., None, None]
        n, c, rows, columns = h.shape
        y = s.attend(functional.silu(h).flatten(2).transpose(1, 2))
        return s.out(y.transpose(1, 2).reshape(n, c, rows, columns)) + x

    net = Calls(run, conv=nn.Conv2d(3, 8, 3, 1, 1), norm=nn.GroupNorm(4, 8), attend=Attention(8, 2),
                embed=nn.Linear(8, 16), out=nn.Conv2d(8, 3, 3, 1, 1))  # fmt: skip
    net.register_buffer("rates", 10.0 ** torch.linspace(0, -1, 4))
    return net, (torch.randn(4, 3, 6, 6), torch.rand(4) * 10)


@shape
def lstm() -> Made:
    def run(s: Any, tokens: Any) -> Any:
        y, (h, _) = s.cells(s.words(tokens))
        return s.head(torch.cat([y.mean(1), h[-1]], -1))

    cells = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True, dropout=0.2)
    return Calls(run, words=nn.Embedding(20, 6, padding_idx=0), cells=cells,
                 head=nn.Linear(15, 3)), torch.randint(0, 20, (4, 7))  # fmt: skip


@shape
def lstm_cells() -> Made:
    """A loop over steps, with a state that begins as zeros."""

    def run(s: Any, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], 5)
        for step in range(x.shape[1]):
            h, c = s.cell(x[:, step], (h, c))
        return s.head(h)

    return Calls(run, cell=nn.LSTMCell(6, 5), head=nn.Linear(5, 3)), torch.randn(4, 3, 6)


@shape
def gru_cells() -> Made:
    def run(s: Any, x: Any) -> Any:
        h = x.new_zeros(x.shape[0], 5)
        for step in range(x.shape[1]):
            h = s.cell(x[:, step], h)
        return s.head(h)

    return Calls(run, cell=nn.GRUCell(6, 5), head=nn.Linear(5, 3)), torch.randn(4, 3, 6)


@shape
def gru_with_attention() -> Made:
    def run(s: Any, x: Any) -> Any:
        y, _ = s.cells(x)
        weights = s.score(y.tanh()).softmax(1)
        return s.head((y * weights).sum(1))

    return Calls(run, cells=nn.GRU(6, 8, batch_first=True), score=nn.Linear(8, 1, bias=False),
                 head=nn.Linear(8, 3)), torch.randn(4, 7, 6)  # fmt: skip


@shape
def speech_with_ctc() -> Made:
    """Scores as CTC takes them: [steps, batch, classes], in logarithms."""

    def run(s: Any, x: Any) -> Any:
        x = s.body(x[:, None]).permute(0, 3, 1, 2).flatten(2)
        return s.head(s.cells(x)[0]).log_softmax(-1).transpose(0, 1)

    return Calls(run, body=conv(1, 4, 3, 2), cells=nn.GRU(16, 5, batch_first=True,
                 bidirectional=True), head=nn.Linear(10, 6)), torch.randn(4, 8, 12)  # fmt: skip


@shape
def wavenet() -> Made:
    """Causal convolutions that are dilated and gated, with normalised weights."""

    def run(s: Any, x: Any) -> Any:
        skip = 0
        x = s.first(x)
        for k, (a, b) in enumerate(zip(s.gates, s.mixes, strict=True)):
            g, f = a(functional.pad(x, (2**k, 0))).chunk(2, 1)
            h = b(g.tanh() * f.sigmoid())
            x, skip = x + h, skip + h
        return s.last(functional.elu(skip))

    norm = nn.utils.parametrizations.weight_norm
    gates = nn.ModuleList(norm(nn.Conv1d(6, 12, 2, dilation=2**k)) for k in range(3))
    mixes = nn.ModuleList(nn.Conv1d(6, 6, 1) for _ in range(3))
    return Calls(run, first=nn.Conv1d(2, 6, 1), gates=gates, mixes=mixes,
                 last=nn.Conv1d(6, 3, 1)), torch.randn(4, 2, 12)  # fmt: skip


@shape
def detector() -> Made:
    """A pyramid of features with heads that it shares, and boxes as sides of a grid."""

    def run(s: Any, x: Any) -> Any:
        a = s.a(x)
        b = s.b(a)
        a = s.side(a) + functional.interpolate(b, scale_factor=2, mode="nearest")
        scores = [s.scores(p).flatten(2) for p in (a, b)]
        sides = [functional.softplus(s.boxes(p)).flatten(2) for p in (a, b)]
        low, high = torch.cat(sides, 2).split(2, 1)
        return {"scores": torch.cat(scores, 2), "boxes": torch.cat([-low, high], 1)}

    return Calls(run, a=conv(3, 8, 3, 2), b=conv(8, 8, 3, 2), side=nn.Conv2d(8, 8, 1),
                 scores=nn.Conv2d(8, 3, 1), boxes=nn.Conv2d(8, 4, 1)), torch.randn(
        IMAGES)  # fmt: skip


@shape
def set_detector() -> Made:
    """Learnt queries that attend to an image, as DETR."""

    def run(s: Any, x: Any) -> Any:
        memory = s.body(x).flatten(2).transpose(1, 2)
        queries = s.queries.expand(x.shape[0], -1, -1)
        actual, _ = s.attend(queries, memory + s.places, memory, need_weights=False)
        return {"logits": s.logits(actual), "boxes": s.boxes(actual).sigmoid()}

    attend = nn.MultiheadAttention(8, 2, batch_first=True)
    return Calls(run, body=conv(3, 8, 3, 4), attend=attend, logits=nn.Linear(8, 5),
                 boxes=nn.Linear(8, 4), queries=nn.Parameter(torch.randn(1, 5, 8)),
                 places=nn.Parameter(torch.randn(16, 8))), torch.randn(IMAGES)  # fmt: skip


@shape
def keypoints() -> Made:
    """Heat maps whose expected places are the output."""

    def run(s: Any, x: Any) -> Any:
        maps = s.out(s.up(s.body(x))).flatten(2).softmax(-1).unflatten(2, (16, 16))
        line = torch.linspace(-1, 1, 16)
        return torch.stack([(maps.sum(2) * line).sum(-1), (maps.sum(3) * line).sum(-1)], -1)

    return Calls(run, body=conv(3, 8, 3, 2, nn.LeakyReLU), up=nn.ConvTranspose2d(8, 8, 4, 2, 1),
                 out=nn.Conv2d(8, 3, 1)), torch.randn(IMAGES)  # fmt: skip


@shape
def super_resolution() -> Made:
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, padding_mode="reflect"), nn.Mish(),
                         nn.Conv2d(8, 12, 3, 1, 1), nn.PixelShuffle(2))  # fmt: skip
    return body, torch.randn(4, 3, 8, 8)


@shape
def autoencoder() -> Made:
    """Variational: what it draws is drawn alike; with a normalised spectrum."""

    def run(s: Any, x: Any) -> Any:
        mean, spread = s.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return {"image": s.decode(z), "spread": spread}

    encode = nn.Sequential(nn.Flatten(), nn.Linear(48, 12), nn.Softplus(), nn.Linear(12, 8))
    decode = nn.Sequential(nn.Linear(4, 12), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(12, 48))
    return Calls(run, encode=encode, decode=decode), torch.randn(4, 3, 4, 4)


@shape
def graph_net() -> Made:
    """Messages along edges, summed where they arrive, by matrices and by scatters."""

    def run(s: Any, x: Any, links: Any) -> Any:
        n, _, width = x.shape
        weights = (s.score(x) @ x.transpose(1, 2)).masked_fill(links < 0.5, -1e9).softmax(-1)
        x = (x + s.message(weights @ x)).relu()
        sent = s.edge(x[:, s.source])
        where = s.target[None, :, None].expand(n, -1, width)
        return s.head(torch.zeros_like(x).scatter_add(1, where, sent).amax(1))

    net = Calls(run, score=nn.Linear(6, 6), message=nn.Linear(6, 6), edge=nn.Linear(6, 6),
                head=nn.Linear(6, 3))  # fmt: skip
    net.register_buffer("source", torch.randint(0, 5, (9,)))
    net.register_buffer("target", torch.randint(0, 5, (9,)))
    return net, (torch.randn(4, 5, 6), (torch.rand(4, 5, 5) + torch.eye(5)).clamp(max=1.0))


@shape
def experts() -> Made:
    """Return a mixture that takes the two best experts."""

    def run(s: Any, x: Any) -> Any:
        best, index = s.gate(x).topk(2, -1)
        gate = torch.zeros_like(s.gate(x)).scatter(-1, index, best.softmax(-1))
        each = torch.stack([expert(x) for expert in s.experts], -1)
        return (each * gate[:, None]).sum(-1)

    each = nn.ModuleList(nn.Sequential(nn.Linear(6, 8), nn.ReLU6(), nn.Linear(8, 5)) for _ in "abc")
    return Calls(run, gate=nn.Linear(6, 3), experts=each), torch.randn(6, 6)


@shape
def recommender() -> Made:
    """Tables, crosses of their rows and a wide part."""

    def run(s: Any, users: Any, items: Any, x: Any) -> Any:
        parts = torch.stack([s.users(users), s.items(items), s.deep(x)], 1)
        crossed = (parts @ parts.transpose(1, 2)).flatten(1)
        return s.head(torch.cat([crossed, s.norm(x)], 1)) + s.bias(items)

    net = Calls(run, users=nn.Embedding(9, 5), items=nn.Embedding(7, 5), bias=nn.Embedding(7, 1),
                deep=nn.Sequential(nn.Linear(4, 5), nn.CELU()), norm=nn.BatchNorm1d(4),
                head=nn.Linear(13, 1))  # fmt: skip
    return net, (torch.randint(0, 9, (6,)), torch.randint(0, 7, (6,)), torch.randn(6, 4))


@shape
def towers() -> Made:
    """CLIP: normalised rows, their products and a temperature that is learnt."""

    def run(s: Any, image: Any, tokens: Any) -> Any:
        a = functional.normalize(s.image(image).mean((2, 3)), dim=-1)
        b = functional.normalize(s.text(tokens).mean(1), dim=-1)
        return s.scale.exp() * a @ b.t()

    return Calls(run, image=conv(3, 8, 3, 2), text=nn.Embedding(20, 8),
                 scale=nn.Parameter(torch.tensor(1.0))), (
        torch.randn(IMAGES), torch.randint(0, 20, (4, 6)))  # fmt: skip


@shape
def point_cloud() -> Made:
    """PointNet: layers of points, their maximum, and a turn that is predicted."""

    def run(s: Any, x: Any) -> Any:
        turn = s.turn(s.a(x).amax(-1)).reshape(-1, 3, 3) + torch.eye(3)
        x = s.norm(s.b(turn @ x)).relu()
        return s.head(torch.cat([x.amax(-1), x.mean(-1)], -1))

    return Calls(run, a=nn.Conv1d(3, 8, 1), turn=nn.Linear(8, 9), b=nn.Conv1d(3, 8, 1),
                 norm=nn.BatchNorm1d(8), head=nn.Linear(16, 4)), torch.randn(4, 3, 20)  # fmt: skip


@shape
def video() -> Made:
    body = nn.Sequential(nn.Conv3d(2, 4, 3, 1, 1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2),
                         nn.Dropout3d(0.2), nn.AdaptiveAvgPool3d(1), nn.Flatten())  # fmt: skip
    return nn.Sequential(body, nn.Linear(4, 3)), torch.randn(4, 2, 4, 6, 6)
