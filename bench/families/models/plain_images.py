"""Images and volumes in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.families.models.family import (
    Made,
    family,
    image,
    image_classifier,
    labels,
)


@family
def mobilenet_v3() -> Made:
    class Squeeze(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.down = nn.Conv2d(channels, channels // 4, 1)
            self.up = nn.Conv2d(channels // 4, channels, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            small = functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))
            return x * functional.hardsigmoid(self.up(small))

    def unit(i: int, o: int, k: int, stride: int, groups: int, act: type[nn.Module]) -> nn.Module:
        conv = nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(o), act())

    class Block(nn.Module):
        def __init__(self, i: int, e: int, o: int, k: int, stride: int, act: Any) -> None:
            super().__init__()
            self.net = nn.Sequential(
                unit(i, e, 1, 1, 1, act), unit(e, e, k, stride, e, act), Squeeze(e),
                unit(e, o, 1, 1, 1, nn.Identity),
            )  # fmt: skip
            self.is_residual = stride == 1 and i == o

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.net(x) if self.is_residual else self.net(x)

    net = nn.Sequential(
        unit(3, 8, 3, 2, 1, nn.Hardswish), Block(8, 16, 8, 3, 1, nn.ReLU),
        Block(8, 24, 12, 5, 2, nn.Hardswish), Block(12, 32, 12, 5, 1, nn.Hardswish),
        unit(12, 32, 1, 1, 1, nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 40), nn.Hardswish(), nn.Linear(40, 4),
    )  # fmt: skip
    return net, image(32), labels(4, 4)


@family
def unet() -> Made:
    def double(i: int, o: int) -> nn.Module:
        layers: list[nn.Module] = []
        for a, b in ((i, o), (o, o)):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([double(3, 8), double(8, 16), double(16, 32)])
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.transposed = nn.ConvTranspose2d(16, 8, 2, 2)
            self.merge = nn.ModuleList([double(48, 16), double(16, 8)])
            self.head = nn.Conv2d(8, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.down[0](x)
            b = self.down[1](functional.max_pool2d(a, 2))
            c = self.down[2](functional.max_pool2d(b, 2))
            y = self.merge[0](torch.cat([b, self.up(c)], 1))
            return self.head(self.merge[1](torch.cat([a, self.transposed(y)], 1)))

    return UNet(), image(16, 2), labels(4, 2, 16, 16)


@family
def norms() -> Made:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1),
        nn.InstanceNorm2d(16, affine=True), nn.Mish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 4),
    )  # fmt: skip
    return net, image(16), labels(4, 4)


def conv_unit(i: int, o: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1), nn.BatchNorm2d(o), nn.ReLU())


@family
def conv3d() -> Made:
    net = nn.Sequential(
        nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(8, 12, (3, 1, 3), (1, 2, 1), (1, 0, 1)), nn.GroupNorm(3, 12), nn.ReLU(),
        nn.AvgPool3d((2, 1, 2)), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    return net, (torch.randn(2, 2, 8, 12, 12),), labels(4, 2)


@family
def unet3d() -> Made:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv3d(1, 6, 3, padding=1), nn.Conv3d(6, 12, 3, padding=1)
            self.up = nn.ConvTranspose3d(12, 6, 2, 2)
            self.norm, self.head = nn.InstanceNorm3d(6, affine=True), nn.Conv3d(12, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = functional.leaky_relu(self.norm(self.first(x)))
            b = functional.leaky_relu(self.second(functional.max_pool3d(a, 2)))
            return self.head(torch.cat([a, self.up(b)], 1))

    return UNet(), (torch.randn(2, 1, 8, 8, 8),), labels(3, 2, 8, 8, 8)


@family
def conv_lstm() -> Made:
    class ConvLSTM(nn.Module):
        """Gates by convolution over frames, unrolled; the last state classifies pixels."""

        def __init__(self) -> None:
            super().__init__()
            self.gates, self.head = nn.Conv2d(2 + 6, 24, 3, padding=1), nn.Conv2d(6, 3, 1)

        def forward(self, frames: torch.Tensor) -> torch.Tensor:
            h = frames.new_zeros(frames.shape[0], 6, *frames.shape[3:])
            c = torch.zeros_like(h)
            for t in range(frames.shape[1]):
                i, f, o, g = self.gates(torch.cat([frames[:, t], h], 1)).chunk(4, 1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
            return self.head(h)

    return ConvLSTM(), (torch.randn(2, 4, 2, 8, 8),), labels(3, 2, 8, 8)


@family
def gan_generator() -> Made:
    """DCGAN's generator against images; noise in, tanh out."""
    net = nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    return net, (torch.randn(4, 16, 1, 1),), torch.tanh(torch.randn(4, 3, 16, 16))


@family
def gan_discriminator() -> Made:
    weight_norm = nn.utils.parametrizations.weight_norm
    net = nn.Sequential(
        weight_norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2),
        weight_norm(nn.Conv2d(8, 16, 4, 2, 1)), nn.InstanceNorm2d(16), nn.LeakyReLU(0.2),
        nn.Conv2d(16, 2, 4), nn.Flatten(),
    )  # fmt: skip
    return net, image(16), labels(2, 4)


@family
def style_generator() -> Made:
    """Modulated convolutions by grouping, and noise, as in StyleGAN2."""

    class Modulated(nn.Module):
        def __init__(self, i: int, o: int) -> None:
            super().__init__()
            self.weight, self.style = nn.Parameter(torch.randn(o, i, 3, 3)), nn.Linear(8, i)

        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            b, c, height, width = x.shape
            weight = self.weight[None] * (1 + self.style(w))[:, None, :, None, None]
            scale = torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
            kernels = (weight * scale).reshape(-1, c, 3, 3)
            y = functional.conv2d(x.reshape(1, -1, height, width), kernels, padding=1, groups=b)
            return functional.leaky_relu(y.reshape(b, -1, height, width), 0.2)

    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Parameter(torch.randn(1, 8, 4, 4))
            self.map = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8))
            self.layers = nn.ModuleList([Modulated(8, 8), Modulated(8, 3)])

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            w = self.map(functional.normalize(z, dim=1))
            x = self.layers[0](self.start.repeat(z.shape[0], 1, 1, 1), w)
            return self.layers[1](functional.interpolate(x, scale_factor=2), w)

    return Generator(), (torch.randn(3, 8),), torch.randn(3, 3, 8, 8)


@family
def variational_autoencoder() -> Made:
    """Noise and images in, the loss out: reconstruction and divergence."""

    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.Softplus())
            self.mean, self.log_variance = nn.Linear(32, 6), nn.Linear(32, 6)
            self.decode = nn.Sequential(nn.Linear(6, 32), nn.ELU(), nn.Linear(32, 192))

        def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            h = self.encode(x)
            mean, log_variance = self.mean(h), self.log_variance(h)
            y = self.decode(mean + noise * torch.exp(0.5 * log_variance))
            off = functional.binary_cross_entropy_with_logits(y, torch.sigmoid(x).flatten(1))
            divergence = 1 + log_variance - mean.square() - log_variance.exp()
            return off - 0.5 * divergence.sum(1).mean()

    return VAE(), (*image(8), torch.randn(4, 6)), None


@family
def spatial_transformer() -> Made:
    class STN(nn.Module):
        """An affine grid of the image's own choosing, sampled before a classifier."""

        def __init__(self) -> None:
            super().__init__()
            self.locate = nn.Sequential(conv_unit(3, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.theta, self.body = nn.Linear(8, 6), conv_unit(3, 8, 2)
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            start = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=x.dtype)
            theta = (self.theta(self.locate(x)) * 0.1 + start).view(-1, 2, 3)
            grid = functional.affine_grid(theta, [x.shape[0], 3, 16, 16], align_corners=False)
            y = functional.grid_sample(x, grid, align_corners=False)
            return self.head(self.body(y).mean((2, 3)))

    return image_classifier(STN(), 16)


@family
def super_resolution() -> Made:
    """ESPCN: sub-pixel convolution and a bicubic skip."""

    class ESPCN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(3, 16, 5, padding=2), nn.PReLU(16), nn.Conv2d(16, 12, 3, padding=1),
                nn.PixelShuffle(2),
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            skip = functional.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)
            return self.body(x) + skip

    return ESPCN(), image(12, 2), torch.randn(2, 3, 24, 24)


@family
def diffusion() -> Made:
    """A denoiser: time as sines, FiLM by it, attention in the middle."""

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
            self.first, self.last = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 3, 3, padding=1)
            self.norm = nn.GroupNorm(4, 16)
            self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            rates = torch.exp(torch.arange(8, dtype=x.dtype) * -0.9)
            angles = t[:, None] * rates
            scale, shift = self.time(torch.cat([angles.sin(), angles.cos()], 1)).chunk(2, 1)
            h = self.norm(self.first(x)) * (1 + scale[..., None, None]) + shift[..., None, None]
            flat = functional.silu(h).flatten(2).transpose(1, 2)
            flat = flat + self.attend(flat, flat, flat, need_weights=False)[0]
            h = flat.transpose(1, 2).reshape(h.shape)
            return self.last(functional.interpolate(h, scale_factor=2.0, mode="nearest"))

    return Denoiser(), (*image(8, 3), 10 * torch.rand(3)), torch.randn(3, 3, 8, 8)


@family
def multi_task() -> Made:
    """A trunk with three heads; the loss weighs them by learned uncertainties."""

    class MultiTask(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(conv_unit(3, 8, 2), conv_unit(8, 16, 2))
            self.classes, self.box, self.mask = (
                nn.Linear(16, 5),
                nn.Linear(16, 4),
                nn.Conv2d(16, 1, 1),
            )
            self.weights = nn.Parameter(torch.zeros(3))

        def forward(
            self, x: torch.Tensor, labels: torch.Tensor, box: torch.Tensor, mask: torch.Tensor
        ) -> torch.Tensor:
            h = self.trunk(x)
            flat = h.mean((2, 3))
            losses = torch.stack([
                functional.cross_entropy(self.classes(flat), labels),
                functional.smooth_l1_loss(self.box(flat), box),
                functional.binary_cross_entropy_with_logits(self.mask(h), mask),
            ])  # fmt: skip
            return (torch.exp(-self.weights) * losses + self.weights).sum()

    given = (*image(16), labels(5, 4), torch.randn(4, 4), (torch.rand(4, 1, 4, 4) > 0.5).float())
    return MultiTask(), given, None


@family
def yolo_head() -> Made:
    """Boxes, objectness and classes of a grid of cells; a generalised intersection loss."""

    class Yolo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(conv_unit(3, 8, 2), conv_unit(8, 16, 2), conv_unit(16, 16, 2))
            self.pool = nn.ModuleList([nn.MaxPool2d(k, 1, k // 2) for k in (3, 5)])
            self.head = nn.Conv2d(48, 2 * 7, 1)

        def forward(self, x: torch.Tensor, boxes: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            h = self.body(x)
            h = self.head(torch.cat([h, *(p(h) for p in self.pool)], 1))
            h = h.reshape(x.shape[0], 2, 7, 4, 4).permute(0, 1, 3, 4, 2)
            middle, size = torch.sigmoid(h[..., :2]), 0.2 + torch.exp(h[..., 2:4].clamp(max=4))
            low, high = middle - size / 2, middle + size / 2
            over = (torch.minimum(high, boxes[..., 2:]) - torch.maximum(low, boxes[..., :2])).clamp(
                0
            )
            own = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
            union = size.prod(-1) + own - over.prod(-1)
            iou = over.prod(-1) / union.clamp(min=1e-6)
            box = ((1 - iou) * seen).sum() / seen.sum()
            objectness = functional.binary_cross_entropy_with_logits(h[..., 4], seen)
            wide = seen[..., None].expand(-1, -1, -1, -1, 2)
            return box + objectness + functional.binary_cross_entropy_with_logits(h[..., 5:], wide)

    low = torch.rand(3, 2, 4, 4, 2) * 0.5
    boxes = torch.cat([low, low + 0.1 + torch.rand(3, 2, 4, 4, 2)], -1)
    return Yolo(), (*image(32, 3), boxes, (torch.rand(3, 2, 4, 4) > 0.6).float()), None


@family
def centernet_head() -> Made:
    """A heat map under focal loss and offsets gathered at given places."""

    class CenterNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(conv_unit(3, 8, 2), nn.ConvTranspose2d(8, 8, 4, 2, 1))
            self.heat, self.offset = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 1)

        def forward(
            self, x: torch.Tensor, truth: torch.Tensor, at: torch.Tensor, off: torch.Tensor
        ) -> torch.Tensor:
            h = functional.relu(self.body(x))
            heat = torch.sigmoid(self.heat(h)).clamp(1e-4, 1 - 1e-4)
            is_peak = truth.eq(1).to(heat.dtype)
            near = torch.log(heat) * (1 - heat).pow(2) * is_peak
            far = torch.log(1 - heat) * heat.pow(2) * (1 - truth).pow(4) * (1 - is_peak)
            flat = self.offset(h).flatten(2).transpose(1, 2)
            offsets = flat.gather(1, at[..., None].expand(-1, -1, 2))
            return functional.l1_loss(offsets, off) - (near + far).sum() / is_peak.sum()

    truth = torch.rand(2, 2, 16, 16)
    truth[truth > 0.95] = 1.0
    return CenterNet(), (*image(16, 2), truth, labels(256, 2, 5), torch.rand(2, 5, 2)), None


@family
def capsules() -> Made:
    """Routing by agreement, three turns."""

    class Capsules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.weight = nn.Conv2d(3, 16, 5, 2), nn.Parameter(torch.randn(4, 72, 6, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            u = self.body(x).reshape(x.shape[0], 72, 8)
            votes = torch.einsum("kiod,bid->bkio", self.weight, u)
            b = torch.zeros_like(votes[..., 0])
            for _ in range(3):
                s = (b.softmax(1)[..., None] * votes).sum(2)
                square = s.square().sum(-1, keepdim=True)
                v = square / (1 + square) * s / torch.sqrt(square + 1e-8)
                b = b + (votes * v[:, :, None]).sum(-1)
            return v.norm(dim=-1)

    return image_classifier(Capsules(), 16)


@family
def radiance_field() -> Made:
    """Sines of positions, a skip, and colours summed along rays, as NeRF."""

    class Nerf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(27, 32), nn.Linear(59, 32)
            self.head = nn.Linear(32, 4)

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            waves = [points]
            for k in range(4):
                waves += [torch.sin(2**k * points), torch.cos(2**k * points)]
            x = torch.cat(waves, -1)
            h = functional.relu(self.first(x))
            out = self.head(functional.relu(self.second(torch.cat([h, x], -1))))
            alpha = 1 - torch.exp(-functional.softplus(out[..., 3]) * 0.2)
            clear = torch.cumsum(torch.log(1 - alpha + 1e-6), 1)
            weight = alpha * torch.exp(
                torch.cat([torch.zeros_like(clear[:, :1]), clear[:, :-1]], 1)
            )
            return (weight[..., None] * torch.sigmoid(out[..., :3])).sum(1)

    return Nerf(), (torch.rand(8, 6, 3),), torch.rand(8, 3)


@family
def fast_fourier() -> Made:
    """A global filter: real transforms of images, complex weights."""

    class GlobalFilter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 4)
            self.weight = nn.Parameter(torch.randn(8, 8, 5, 2) * 0.3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            waves = torch.fft.rfft2(self.embed(x), norm="ortho")
            y = torch.fft.irfft2(waves * torch.view_as_complex(self.weight), s=(8, 8), norm="ortho")
            return self.head(y.mean((2, 3)).relu())

    return image_classifier(GlobalFilter(), 16)
