"""Image classifiers by the block that each is known for, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import Made, family, image_classifier, labels


class Classifier(nn.Module):
    """A strided convolution to eight channels, a block, and the mean over places."""

    def __init__(self, block: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.block, self.head = block, nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.stem(x)).mean((2, 3)))


def classifier(block: nn.Module, width: int = 8) -> Made:
    return image_classifier(Classifier(block, width), 16, 3)


@family
def branched_vgg() -> Made:
    """RepVGG: three branches with norms of their own, added before one activation."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.point = (
                nn.Conv2d(8, 8, 3, 1, 1, bias=False),
                nn.Conv2d(8, 8, 1, bias=False),
            )
            self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in "abc"])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b, c = self.norms
            return functional.relu(a(self.wide(x)) + b(self.point(x)) + c(x))

    return classifier(nn.Sequential(Branches(), Branches()))


@family
def split_attention() -> Made:
    """ResNeSt: two splits of grouped channels, weighed by a softmax over the splits."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 16, 3, 1, 1, groups=4), nn.BatchNorm2d(16)
            self.down, self.up = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = functional.relu(self.norm(self.conv(x))).unflatten(1, (2, 8))
            gap = functional.adaptive_avg_pool2d(h.sum(1), 1)
            weight = self.up(functional.relu(self.down(gap))).unflatten(1, (2, 8)).softmax(1)
            return x + (h * weight).sum(1)

    return classifier(Split())


@family
def selective_kernels() -> Made:
    """SKNet: a channel chooses between a small and a dilated kernel."""

    class Selective(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = nn.Conv2d(8, 8, 3, 1, 1)
            self.large = nn.Conv2d(8, 8, 3, 1, 2, dilation=2)
            self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            both = torch.stack([self.small(x), self.large(x)], 1).relu()
            weight = self.up(self.down(both.sum(1).mean((2, 3))).relu()).view(-1, 2, 8).softmax(1)
            return (both * weight[..., None, None]).sum(1)

    return classifier(Selective())


@family
def convolutional_attention() -> Made:
    """CBAM: channels by means and maxima of places, places by means and maxima of channels."""

    class Cbam(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))
            self.places = nn.Conv2d(2, 1, 5, padding=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean = functional.adaptive_avg_pool2d(x, 1).flatten(1)
            most = functional.adaptive_max_pool2d(x, 1).flatten(1)
            x = x * torch.sigmoid(self.shared(mean) + self.shared(most))[..., None, None]
            both = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
            return x * torch.sigmoid(self.places(both))

    return classifier(Cbam())


@family
def channel_attention() -> Made:
    """ECA and global context: a convolution along channels, a softmax over places."""

    class Context(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.along, self.score = nn.Conv1d(1, 1, 3, padding=1, bias=False), nn.Conv2d(8, 1, 1)
            self.change = nn.Sequential(
                nn.Conv2d(8, 4, 1), nn.LayerNorm([4, 1, 1]), nn.ReLU(), nn.Conv2d(4, 8, 1)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = torch.sigmoid(self.along(x.mean((2, 3))[:, None])).squeeze(1)
            x = x * weight[..., None, None]
            places = self.score(x).flatten(2).softmax(-1)
            context = torch.bmm(x.flatten(2), places.transpose(1, 2))[..., None]
            return x + self.change(context)

    return classifier(Context())


@family
def involution() -> Made:
    """Kernels that each place makes of its own channels, applied to its unfolded patch."""

    class Involution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.kernels = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 18, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.kernels(self.down(x).relu()).view(-1, 2, 1, 9, 8, 8)
            patches = functional.unfold(x, 3, padding=1).view(-1, 2, 4, 9, 8, 8)
            return (weight * patches).sum(3).view(-1, 8, 8, 8)

    return classifier(Involution())


@family
def coordinate_convolution() -> Made:
    """CoordConv: two channels that say where, and a radius."""

    class Coordinates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(11, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.linspace(-1, 1, 8, dtype=x.dtype)
            where = torch.stack(torch.meshgrid(at, at, indexing="ij"))
            where = torch.cat([where, where.square().sum(0, keepdim=True).sqrt()])
            return self.conv(torch.cat([x, where.expand(x.shape[0], -1, -1, -1)], 1)).relu()

    return classifier(Coordinates())


@family
def dynamic_convolution() -> Made:
    """CondConv: each image mixes its own kernel of four, applied by groups."""

    class Dynamic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.route = nn.Linear(8, 4)
            self.kernels, self.bias = (
                nn.Parameter(torch.randn(4, 8, 8, 3, 3) * 0.1),
                nn.Parameter(torch.zeros(4, 8)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b = x.shape[0]
            weight = torch.sigmoid(self.route(x.mean((2, 3))))
            kernel = (weight @ self.kernels.flatten(1)).view(-1, 8, 3, 3)
            y = functional.conv2d(x.reshape(1, -1, 8, 8), kernel, padding=1, groups=b)
            return (y.view(b, 8, 8, 8) + (weight @ self.bias)[..., None, None]).relu()

    return classifier(Dynamic())


@family
def sampled_offsets() -> Made:
    """Deformable in its least form: places move by learned offsets and are read bilinearly."""

    class Offsets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset, self.conv = nn.Conv2d(8, 2, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.linspace(-1, 1, 8, dtype=x.dtype)
            y, x_ = torch.meshgrid(at, at, indexing="ij")
            grid = torch.stack([x_, y], -1) + 0.2 * torch.tanh(self.offset(x)).permute(0, 2, 3, 1)
            moved = functional.grid_sample(x, grid, padding_mode="border", align_corners=True)
            return self.conv(moved).relu()

    return classifier(Offsets())


@family
def shifted_windows() -> Made:
    """Swin: windows, then windows rolled by half, with a mask and tables of positions."""

    class Window(nn.Module):
        def __init__(self, shift: int) -> None:
            super().__init__()
            self.shift, self.norm, self.qkv = shift, nn.LayerNorm(8), nn.Linear(8, 24)
            self.table, self.out = nn.Parameter(torch.randn(49, 2) * 0.1), nn.Linear(8, 8)
            at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))
            away = (at.flatten(1)[:, :, None] - at.flatten(1)[:, None]) + 3
            self.register_buffer("index", away[0] * 7 + away[1])
            zone = torch.zeros(1, 8, 8, 1)
            if shift:
                zone[:, 6:] += 1
                zone[:, :, 6:] += 2
            zones = self.cut(zone)[:, :, 0]
            self.register_buffer("mask", -100.0 * (zones[:, None] != zones[:, :, None]).float())

        def cut(self, x: torch.Tensor) -> torch.Tensor:
            x = x.reshape(-1, 2, 4, 2, 4, x.shape[-1]).permute(0, 1, 3, 2, 4, 5)
            return x.reshape(-1, 16, x.shape[-1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2))
            q, k, v = self.qkv(self.cut(h)).view(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
            scores = q @ k.transpose(-1, -2) / 2 + self.table[self.index].permute(2, 0, 1)
            scores = scores.view(-1, 4, 2, 16, 16) + self.mask[:, None]
            y = (scores.view(-1, 2, 16, 16).softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, 8)
            y = self.out(y).view(-1, 2, 2, 4, 4, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 8, 8, 8)
            return x + torch.roll(y, (self.shift, self.shift), (1, 2))

    class Swin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(Window(0), Window(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    return classifier(Swin())


@family
def axial_attention() -> Made:
    """Attention along rows, then along columns."""

    class Axial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.columns = (
                nn.MultiheadAttention(8, 2, batch_first=True),
                nn.MultiheadAttention(8, 2, batch_first=True),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x.permute(0, 2, 3, 1).reshape(-1, 8, 8)
            h = h + self.rows(h, h, h, need_weights=False)[0]
            h = h.view(-1, 8, 8, 8).transpose(1, 2).reshape(-1, 8, 8)
            h = h + self.columns(h, h, h, need_weights=False)[0]
            return h.view(-1, 8, 8, 8).permute(0, 3, 2, 1)

    return classifier(Axial())


@family
def mobile_vit() -> Made:
    """Pixels of equal place in each patch attend to one another, between convolutions."""

    class MobileVit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.near, self.inside = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 12, 1)
            self.layer = nn.TransformerEncoderLayer(
                12, 2, 24, 0.0, functional.silu, batch_first=True, norm_first=True
            )
            self.back, self.merge = nn.Conv2d(12, 8, 1), nn.Conv2d(16, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.inside(self.near(x))
            h = h.view(-1, 12, 4, 2, 4, 2).permute(0, 3, 5, 2, 4, 1).reshape(-1, 16, 12)
            h = self.layer(h).view(-1, 2, 2, 4, 4, 12).permute(0, 5, 3, 1, 4, 2)
            return self.merge(torch.cat([x, self.back(h.reshape(-1, 12, 8, 8))], 1))

    return classifier(MobileVit())


@family
def large_kernels() -> Made:
    """VAN: a depthwise, a dilated depthwise and a pointwise convolution gate the input."""

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.near = nn.Conv2d(8, 8, 5, padding=2, groups=8)
            self.far = nn.Conv2d(8, 8, 7, padding=9, dilation=3, groups=8)
            self.point, self.scale = nn.Conv2d(8, 8, 1), nn.Parameter(torch.full((8, 1, 1), 0.1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.scale * x * self.point(self.far(self.near(functional.gelu(x))))

    return classifier(Large())


@family
def focal_modulation() -> Made:
    """Contexts of growing reach, gated, modulate a query."""

    class Focal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.out = nn.Conv2d(8, 8 + 8 + 3, 1), nn.Conv2d(8, 8, 1)
            self.reach = nn.ModuleList(
                [nn.Conv2d(8, 8, k, padding=k // 2, groups=8) for k in (3, 5)]
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, context, gates = self.start(x).split([8, 8, 3], 1)
            total = 0
            for i, conv in enumerate(self.reach):
                context = functional.gelu(conv(context))
                total = total + context * gates[:, i : i + 1]
            whole = functional.gelu(context.mean((2, 3), keepdim=True))
            return x + self.out(q * (total + whole * gates[:, 2:]))

    return classifier(Focal())


@family
def octave_convolution() -> Made:
    """High and low frequencies in maps of two sizes that exchange what they see."""

    class Octave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hh, self.hl = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
            self.lh, self.ll = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            high, low = self.hh(x).relu(), self.hl(functional.avg_pool2d(x, 2)).relu()
            wide = functional.interpolate(self.lh(low), scale_factor=2, mode="nearest")
            new = self.hh(high) + wide
            low = self.ll(low) + self.hl(functional.avg_pool2d(high, 2))
            return torch.cat([functional.max_pool2d(new.relu(), 2), low.relu()], 1)

    return classifier(Octave(), 12)


@family
def blurred_pooling() -> Made:
    """Anti-aliased: a dense maximum, then a fixed binomial filter with stride, reflected."""

    class Blur(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            row = torch.tensor([1.0, 2, 1])
            self.register_buffer("filter", (row[:, None] * row / 16).expand(8, 1, 3, 3).clone())
            self.conv = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = functional.max_pool2d(functional.pad(self.conv(x).relu(), (0, 1, 0, 1)), 2, 1)
            x = functional.pad(x, (1, 1, 1, 1), mode="reflect")
            return functional.conv2d(x, self.filter, stride=2, groups=8)

    return classifier(Blur())


@family
def scale_chain() -> Made:
    """Res2Net: channel groups in a chain inside a residual block."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(8, 12, 1), nn.Conv2d(12, 8, 1)
            self.convs = nn.ModuleList([nn.Conv2d(3, 3, 3, padding=1) for _ in "abc"])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = list(torch.split(self.first(x).relu(), 3, 1))
            for i, conv in enumerate(self.convs, 1):
                parts[i] = conv(parts[i] + parts[i - 1]).relu()
            return (x + self.last(torch.cat(parts, 1))).relu()

    return classifier(Chain())


@family
def non_local() -> Made:
    """A non-local block with embedded products and a compact generalisation over channels."""

    class NonLocal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Conv2d(8, 12, 1), nn.Conv2d(4, 8, 1)
            self.gamma = nn.Parameter(torch.tensor([0.3, 0.2]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).flatten(2).chunk(3, 1)
            weight = torch.bmm(q.transpose(1, 2), k).softmax(-1)
            y = self.out(torch.bmm(v, weight.transpose(1, 2)).unflatten(2, (8, 8)))
            flat = x.flatten(2)
            alike = torch.bmm(flat, flat.transpose(1, 2))
            alike = (alike.amax(-1, keepdim=True) - alike).softmax(-1)
            return x + self.gamma[0] * y + self.gamma[1] * torch.bmm(alike, flat).view_as(x)

    return classifier(NonLocal())


@family
def bilinear_pooling() -> Made:
    """Outer products of channels, signed roots, a normalised vector."""

    class Bilinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 6, 3, 2, 1), nn.Linear(36, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.conv(x).relu().flatten(2)
            y = torch.bmm(h, h.transpose(1, 2)).flatten(1) / 64
            y = torch.sign(y) * torch.sqrt(y.abs() + 1e-4)
            return self.head(functional.normalize(y))

    return image_classifier(Bilinear(), 16, 3)


@family
def token_learner() -> Made:
    """A few tokens by learned maps of places, attended to by a class token."""

    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.maps = nn.Conv2d(3, 12, 4, 4), nn.Conv2d(12, 3, 1)
            self.first, self.attend = (
                nn.Parameter(torch.randn(1, 1, 12)),
                nn.MultiheadAttention(12, 3, batch_first=True),
            )
            self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.conv(x)
            weight = torch.sigmoid(self.maps(h)).flatten(2)
            words = weight @ h.flatten(2).transpose(1, 2) / 16
            words = torch.cat([self.first.expand(x.shape[0], -1, -1), words], 1)
            return self.head(self.norm(self.attend(words[:, :1], words, words)[0][:, 0]))

    return image_classifier(Learner(), 16, 3)


@family
def fractal_mixture() -> Made:
    """Inception: paths of several widths with average pools, joined; local response norm."""

    class Inception(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, (1, 7), padding=(0, 3))
            self.c, self.d = nn.Conv2d(4, 4, (7, 1), padding=(3, 0)), nn.Conv2d(8, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = functional.local_response_norm(x, 5)
            pooled = functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
            return torch.cat([self.a(x), self.c(self.b(x).relu()), self.d(pooled)], 1).relu()

    return classifier(Inception(), 12)


@family
def video_shift() -> Made:
    """TSM: some channels move one frame back or ahead; 2-D convolutions do the rest."""

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = (
                nn.Conv2d(4, 8, 3, 2, 1),
                nn.BatchNorm2d(8),
                nn.Linear(8, 4),
            )
            self.second = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.norm(self.conv(x.flatten(0, 1))).relu().view(-1, 4, 8, 4, 4)
            back = torch.cat([h[:, 1:, :2], torch.zeros_like(h[:, :1, :2])], 1)
            ahead = torch.cat([torch.zeros_like(h[:, :1, 2:4]), h[:, :-1, 2:4]], 1)
            h = torch.cat([back, ahead, h[:, :, 4:]], 2)
            h = self.second(h.flatten(0, 1)).relu().mean((2, 3))
            return self.head(h.view(-1, 4, 8).mean(1))

    return Shift(), (torch.randn(2, 4, 4, 8, 8),), labels(4, 2)


@family
def divided_attention() -> Made:
    """TimeSformer: a place attends over time, then a frame over its places; tubelets."""

    class Divided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = (
                nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4)),
                nn.Parameter(torch.randn(4, 8) * 0.1),
            )
            self.time, self.space = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in "ab")
            self.norms, self.head = nn.ModuleList([nn.LayerNorm(8) for _ in "ab"]), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.embed(x).flatten(3).permute(0, 3, 2, 1) + self.place[:, None]
            a = self.norms[0](h).flatten(0, 1)
            h = h + self.time(a, a, a, need_weights=False)[0].view(-1, 4, 3, 8)
            b = self.norms[1](h).transpose(1, 2).flatten(0, 1)
            h = h.transpose(1, 2) + self.space(b, b, b, need_weights=False)[0].view(-1, 3, 4, 8)
            return self.head(h.mean((1, 2)))

    return Divided(), (torch.randn(2, 3, 6, 8, 8),), labels(4, 2)
