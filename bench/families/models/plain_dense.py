"""Answers for every pixel or place: segmentation, detection, poses, depth, motion."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import Made, family, image, labels


def unit(i: int, o: int, stride: int = 1, dilation: int = 1) -> nn.Module:
    conv = nn.Conv2d(i, o, 3, stride, dilation, dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), nn.ReLU())


@family
def nested_unet() -> Made:
    """U-Net++: dense skips between levels, heads of every depth averaged."""

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x00, self.x10, self.x20 = unit(3, 6), unit(6, 8), unit(8, 10)
            self.x01, self.x11, self.x02 = unit(14, 6), unit(18, 8), unit(20, 6)
            self.heads = nn.ModuleList([nn.Conv2d(6, 3, 1) for _ in "ab"])

        def up(self, x: torch.Tensor) -> torch.Tensor:
            return functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.x00(x)
            b = self.x10(functional.max_pool2d(a, 2))
            c = self.x20(functional.max_pool2d(b, 2))
            a1 = self.x01(torch.cat([a, self.up(b)], 1))
            b1 = self.x11(torch.cat([b, self.up(c)], 1))
            a2 = self.x02(torch.cat([a, a1, self.up(b1)], 1))
            return (self.heads[0](a1) + self.heads[1](a2)) / 2

    return Nested(), image(12, 2), labels(3, 2, 12, 12)


@family
def atrous_pyramid() -> Made:
    """DeepLab v3+: rates of dilation beside an image's mean, and a decoder with a skip."""

    class DeepLab(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = unit(3, 6, 2), unit(6, 8, 2)
            self.rates = nn.ModuleList([nn.Conv2d(8, 4, 1), unit(8, 4, 1, 2), unit(8, 4, 1, 3)])
            self.whole, self.low = nn.Conv2d(8, 4, 1), nn.Conv2d(6, 4, 1)
            self.merge, self.head = unit(16, 8), nn.Conv2d(12, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            low = self.first(x)
            h = self.second(low)
            whole = self.whole(functional.adaptive_avg_pool2d(h, 1)).expand(-1, -1, 4, 4)
            h = self.merge(torch.cat([*(r(h) for r in self.rates), whole], 1))
            h = functional.interpolate(h, size=(8, 8), mode="bilinear", align_corners=False)
            y = self.head(torch.cat([h, self.low(low)], 1))
            return functional.interpolate(y, size=(16, 16), mode="bilinear", align_corners=False)

    return DeepLab(), image(16, 2), labels(3, 2, 16, 16)


@family
def pooled_pyramid() -> Made:
    """PSPNet: means over grids of several sizes; the loss joins overlap and cross-entropy."""

    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(unit(3, 6, 2), unit(6, 8))
            self.parts = nn.ModuleList([nn.Conv2d(8, 2, 1) for _ in range(3)])
            self.head = nn.Conv2d(14, 3, 1)

        def forward(self, x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
            h = self.body(x)
            maps = [h]
            for size, conv in zip((1, 2, 4), self.parts, strict=True):
                small = conv(functional.adaptive_avg_pool2d(h, size))
                maps.append(functional.interpolate(small, size=(8, 8), mode="bilinear"))
            y = self.head(torch.cat(maps, 1))
            wanted = functional.one_hot(truth, 3).permute(0, 3, 1, 2).to(y.dtype)
            shares = y.softmax(1)
            over = (shares * wanted).sum((0, 2, 3))
            dice = 1 - 2 * over / (shares.sum((0, 2, 3)) + wanted.sum((0, 2, 3)) + 1)
            return functional.cross_entropy(y, truth) + dice.mean()

    return Pyramid(), (*image(16, 2), labels(3, 2, 8, 8)), None


@family
def feature_pyramid() -> Made:
    """An FPN with a shared head: focal loss of classes at three levels."""

    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.ModuleList([unit(3, 6, 2), unit(6, 8, 2), unit(8, 10, 2)])
            self.side = nn.ModuleList([nn.Conv2d(c, 6, 1) for c in (6, 8, 10)])
            self.smooth, self.head = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1)

        def forward(self, x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
            maps = []
            for layer in self.body:
                x = layer(x)
                maps.append(x)
            top, out = None, []
            for h, side in reversed(list(zip(maps, self.side, strict=True))):
                h = side(h)
                top = h if top is None else h + functional.interpolate(top, scale_factor=2.0)
                out.append(self.head(self.smooth(top).relu()).flatten(2))
            y = torch.cat(out, 2)
            p = torch.sigmoid(y)
            right = p * truth + (1 - p) * (1 - truth)
            cross = functional.binary_cross_entropy_with_logits(y, truth, reduction="none")
            weight = 0.25 * truth + 0.75 * (1 - truth)
            return (weight * (1 - right).square() * cross).sum() / truth.sum()

    return Pyramid(), (*image(16, 2), (torch.rand(2, 4, 84) > 0.9).float()), None


@family
def free_anchors() -> Made:
    """FCOS: distances to four sides by exponentials, centredness, an overlap loss."""

    class Fcos(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.tower = (
                unit(3, 8, 4),
                nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.ReLU()),
            )
            self.classes, self.sides = nn.Conv2d(8, 3, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
            self.middle, self.scale = nn.Conv2d(8, 1, 3, padding=1), nn.Parameter(torch.ones(1))

        def forward(
            self, x: torch.Tensor, sides: torch.Tensor, kinds: torch.Tensor
        ) -> torch.Tensor:
            h = self.tower(self.body(x))
            predicted = torch.exp(self.scale * self.sides(h)).permute(0, 2, 3, 1).flatten(0, 2)
            area, own = ((s[:, 0] + s[:, 2]) * (s[:, 1] + s[:, 3]) for s in (sides, predicted))
            least = torch.minimum(predicted, sides)
            over = (least[:, 0] + least[:, 2]) * (least[:, 1] + least[:, 3])
            iou = (over + 1) / (area + own - over + 1)
            pairs = sides.view(-1, 2, 2)
            centre = (pairs.amin(2) / pairs.amax(2)).prod(1).sqrt()
            middle = self.middle(h).flatten()
            kind = functional.cross_entropy(self.classes(h).flatten(2), kinds)
            return (
                -(centre * iou.log()).sum() / centre.sum() + kind
                + functional.binary_cross_entropy_with_logits(middle, centre)
            )  # fmt: skip

    return Fcos(), (*image(16, 2), 0.2 + torch.rand(32, 4), labels(3, 2, 16)), None


@family
def stacked_hourglass() -> Made:
    """Poses: two hourglasses with heat maps in between, joints by their expected place."""

    class Hourglass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = unit(3, 8, 2)
            self.down, self.up = (nn.ModuleList([unit(8, 8) for _ in "ab"]) for _ in "cd")
            self.heat = nn.ModuleList([nn.Conv2d(8, 3, 1) for _ in "ab"])
            self.back = nn.Conv2d(3, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h, places = self.stem(x), 0
            at = torch.linspace(0, 1, 8, dtype=x.dtype)
            for i in range(2):
                low = self.down[i](functional.max_pool2d(h, 2))
                h = h + self.up[i](functional.interpolate(low, scale_factor=2.0))
                heat = self.heat[i](h)
                chance = heat.flatten(2).softmax(-1).view_as(heat)
                both = [(chance.sum(2) * at).sum(-1), (chance.sum(3) * at).sum(-1)]
                places = places + torch.stack(both, -1)
                h = h + self.back(heat)
            return places / 2

    return Hourglass(), image(16, 2), torch.rand(2, 3, 2)


@family
def depth_estimation() -> Made:
    """Inverse depth under a loss free of scale, and smoothness that edges excuse."""

    class Depth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = unit(3, 8, 2), nn.ConvTranspose2d(8, 6, 3, 2, 1, 1)
            self.head = nn.Conv2d(9, 1, 3, padding=1, padding_mode="reflect")

        def forward(self, x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
            h = functional.elu(self.up(self.down(x)))
            inverse = torch.sigmoid(self.head(torch.cat([h, x], 1)))
            depth = 1 / (0.1 + 9.9 * inverse)
            off = torch.log(depth) - torch.log(truth)
            scale_free = torch.sqrt(
                (off.square().mean() - 0.85 * off.mean().square()).clamp(min=1e-6)
            )
            even = inverse / (inverse.mean((2, 3), keepdim=True) + 1e-7)
            loss = scale_free
            for axis in (2, 3):
                n = inverse.shape[axis]
                step = (even.narrow(axis, 1, n - 1) - even.narrow(axis, 0, n - 1)).abs()
                edge = (x.narrow(axis, 1, n - 1) - x.narrow(axis, 0, n - 1)).abs()
                loss = loss + 0.1 * (step * torch.exp(-edge.mean(1, keepdim=True))).mean()
            return loss

    return Depth(), (*image(12, 2), 0.2 + torch.rand(2, 1, 12, 12)), None


@family
def optical_flow() -> Made:
    """A cost volume of shifted features, a flow, a warp by it, refined once."""

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.read = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(25, 8, 3, padding=1)
            self.flow, self.refine = nn.Conv2d(8, 2, 3, padding=1), nn.Conv2d(18, 2, 3, padding=1)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            a, b = (functional.leaky_relu(self.features(i), 0.1) for i in (x, y))
            wide = functional.pad(b, (2, 2, 2, 2))
            costs = [
                (a * wide[:, :, i : i + 8, j : j + 8]).mean(1) for i in range(5) for j in range(5)
            ]
            flow = 0.2 * self.flow(functional.leaky_relu(self.read(torch.stack(costs, 1)), 0.1))
            at = torch.linspace(-1, 1, 8, dtype=x.dtype)
            rows, columns = torch.meshgrid(at, at, indexing="ij")
            grid = torch.stack([columns, rows], -1) + flow.permute(0, 2, 3, 1)
            warped = functional.grid_sample(b, grid, padding_mode="zeros", align_corners=True)
            return flow + self.refine(torch.cat([a, warped, flow], 1))

    return Flow(), (*image(16, 2), *image(16, 2)), torch.randn(2, 2, 8, 8)


@family
def stereo_matching() -> Made:
    """A volume of pairs at every disparity, 3-D convolutions, the expected disparity."""

    class Stereo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = unit(3, 4, 2)
            self.volume = nn.Sequential(
                nn.Conv3d(8, 6, 3, padding=1), nn.ReLU(), nn.Conv3d(6, 1, 3, padding=1)
            )

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            a, b = self.features(left), self.features(right)
            pairs = [torch.cat([a, functional.pad(b, (d, 0))[..., :8]], 1) for d in range(4)]
            chance = functional.softmin(self.volume(torch.stack(pairs, 2))[:, 0], 1)
            return (chance * torch.arange(4, dtype=left.dtype)[:, None, None]).sum(1)

    return Stereo(), (*image(16, 2), *image(16, 2)), 3 * torch.rand(2, 8, 8)


@family
def residual_dense() -> Made:
    """Super-resolution by dense blocks, a global skip, sub-pixels, and Charbonnier's loss."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.local = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(20, 8, 1)
            self.convs = nn.ModuleList([nn.Conv2d(8 + 6 * i, 6, 3, padding=1) for i in range(2)])
            self.up = nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2))

        def forward(self, x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
            h = start = self.first(x)
            for conv in self.convs:
                h = torch.cat([h, conv(h).relu()], 1)
            predicted = self.up(start + self.local(h))
            small = functional.pixel_unshuffle(predicted - truth, 2)
            return torch.sqrt(small.square() + 1e-4).mean()

    return Dense(), (*image(8, 2), torch.randn(2, 3, 16, 16)), None


@family
def slot_attention() -> Made:
    """Slots compete for places, by a softmax over slots, and are updated by a recurrent cell."""

    class Slots(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8)
            self.start, self.q = nn.Parameter(torch.randn(3, 8)), nn.Linear(8, 8)
            self.kv, self.cell, self.head = nn.Linear(8, 16), nn.GRUCell(8, 8), nn.Linear(8, 48)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            k, v = self.kv(self.norm(self.embed(x).flatten(2).transpose(1, 2))).chunk(2, -1)
            slots = self.start.expand(x.shape[0], -1, -1)
            for _ in range(2):
                scores = k @ self.q(slots).transpose(1, 2) / 8**0.5
                weight = scores.softmax(-1) + 1e-6
                weight = weight / weight.sum(1, keepdim=True)
                new = weight.transpose(1, 2) @ v
                slots = self.cell(new.flatten(0, 1), slots.flatten(0, 1)).view(-1, 3, 8)
            return self.head(slots).sum(1)

    return Slots(), image(16, 3), torch.randn(3, 48)


@family
def masked_queries() -> Made:
    """Mask2Former: queries see only where their own mask is, and give the next mask."""

    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.queries = unit(3, 8, 2), nn.Parameter(torch.randn(3, 8))
            self.attend, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)
            self.mask, self.kind = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pixels = self.body(x).flatten(2).transpose(1, 2)
            q = self.queries.expand(x.shape[0], -1, -1)
            for _ in range(2):
                seen = self.mask(q) @ pixels.transpose(1, 2)
                hidden = (seen < 0) & (seen < 0).any(-1, keepdim=True)
                hidden = hidden & ~hidden.all(-1, keepdim=True)
                bias = (-1e4 * hidden.to(x.dtype)).repeat_interleave(2, 0)
                q = self.norm(
                    q + self.attend(q, pixels, pixels, attn_mask=bias, need_weights=False)[0]
                )
            masks = torch.sigmoid(self.mask(q) @ pixels.transpose(1, 2))
            return torch.einsum("bqc,bqp->bcp", self.kind(q).softmax(-1), masks)

    return Queries(), image(12, 2), torch.rand(2, 4, 36)


@family
def structural_autoencoder() -> Made:
    """An autoencoder of anomalies under structural similarity, by means over windows."""

    class Structural(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(3, 6, 4, 2, 1)
            self.up = nn.Sequential(
                nn.Upsample(scale_factor=2), nn.Conv2d(6, 3, 3, padding=1), nn.Sigmoid()
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.up(functional.leaky_relu(self.down(x)))

            def mean(a: torch.Tensor) -> torch.Tensor:
                return functional.avg_pool2d(a, 5, 1)

            mx, my = mean(x), mean(y)
            vx, vy, cov = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
            top = (2 * mx * my + 0.01) * (2 * cov + 0.03)
            return 1 - (top / ((mx**2 + my**2 + 0.01) * (vx + vy + 0.03))).mean()

    return Structural(), (torch.rand(2, 3, 12, 12),), None
