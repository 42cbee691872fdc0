"""Models, and heads of detectors, of torchvision."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torchvision import models, ops
from torchvision.models import (
    densenet,
    efficientnet,
    maxvit,
    shufflenetv2,
    swin_transformer,
    vision_transformer,
)  # fmt: skip
from torchvision.models.detection import (
    faster_rcnn,
    mask_rcnn,
    retinanet,
    ssd,
)
from torchvision.models.segmentation import deeplabv3
from torchvision.models.video import swin_transformer as video_swin

from bench.families.models.family import Made, Wrap, family, image, image_classifier, labels


@family
def squeezenet() -> Made:
    return image_classifier(models.SqueezeNet("1_1", num_classes=4, dropout=0.0), 48, 2)


@family
def dense_net() -> Made:
    return image_classifier(densenet.DenseNet(8, (2, 3, 2), 8, num_classes=4))


@family
def shufflenet_v2() -> Made:
    return image_classifier(shufflenetv2.ShuffleNetV2([2, 2, 2], [8, 16, 24, 32, 48], 4))


@family
def efficientnet_v2() -> Made:
    blocks = [
        efficientnet.FusedMBConvConfig(1, 3, 1, 8, 8, 1),
        efficientnet.FusedMBConvConfig(2, 3, 2, 8, 16, 2),
        efficientnet.MBConvConfig(2, 3, 2, 16, 16, 1),
    ]
    net = models.EfficientNet(blocks, 0.0, 0.0, num_classes=4, last_channel=32)
    return image_classifier(net)


@family
def swin_v2() -> Made:
    net = models.SwinTransformer(
        [2, 2],
        16,
        [2, 2],
        [2, 4],
        [4, 4],
        num_classes=4,
        stochastic_depth_prob=0.0,
        block=swin_transformer.SwinTransformerBlockV2,
        downsample_layer=swin_transformer.PatchMergingV2,
    )
    return image_classifier(net, 16, 3)


@family
def max_vit() -> Made:
    net = maxvit.MaxVit((32, 32), 8, 2, [16], [1], 8, stochastic_depth_prob=0.0, num_classes=4)
    net.classifier[3] = nn.Linear(16, 16)
    return image_classifier(net, 32, 2)


@family
def vit_torchvision() -> Made:
    net = vision_transformer.VisionTransformer(16, 4, 2, 2, 16, 32, num_classes=4)
    nn.init.normal_(net.heads.head.weight, std=0.1)
    return image_classifier(net, 16, 3)


def backbone(width: int = 16) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in ((3, 8), (8, width)):
        layers += [nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    return nn.Sequential(*layers)


def segmenter(head: nn.Module, classes: int = 4) -> Made:
    """A backbone, a head, and the logits at the size of the image."""

    def call(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(m(x), size=(32, 32), mode="bilinear", align_corners=False)

    return Wrap(nn.Sequential(backbone(), head), call), image(32, 2), labels(classes, 2, 32, 32)


def without_dropout(net: nn.Module) -> nn.Module:
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return net


@family
def deeplab_v3() -> Made:
    return segmenter(without_dropout(deeplabv3.DeepLabHead(16, 4, (2, 3))))


class Pyramid(nn.Module):
    """A backbone with a feature pyramid, two maps of `width` channels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.low, self.high = backbone(8), nn.Conv2d(8, 16, 3, 2, 1)
        self.fpn = ops.FeaturePyramidNetwork([8, 16], width)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        low = self.low(x)
        return list(self.fpn({"low": low, "high": functional.relu(self.high(low))}).values())


class Detector(nn.Module):
    """Scores and boxes of all anchors, under a focal and a smooth L1 loss."""

    def __init__(self, head: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = Pyramid(width), head

    def forward(self, x: torch.Tensor, classes: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        heads = self.head(self.body(x))
        scores = ops.sigmoid_focal_loss(heads["cls_logits"], classes, reduction="mean")
        loss = scores + functional.smooth_l1_loss(heads["bbox_regression"], boxes)
        if "bbox_ctrness" in heads:
            loss = loss + functional.binary_cross_entropy_with_logits(
                heads["bbox_ctrness"][..., 0], classes[..., 0]
            )
        return loss


def detector(head: nn.Module, anchors: int, classes: int = 3, width: int = 16) -> Made:
    count = anchors * (8 * 8 + 4 * 4)
    truth = (torch.rand(2, count, classes) > 0.8).float()
    return Detector(head, width), (*image(32, 2), truth, torch.randn(2, count, 4)), None


@family
def retina_net() -> Made:
    return detector(retinanet.RetinaNetHead(16, 2, 3), 2)


@family
def ssd_head() -> Made:
    return detector(ssd.SSDHead([16, 16], [2, 2], 3), 2)


def regions() -> torch.Tensor:
    """Five boxes with the number of their image before them."""
    low = torch.rand(5, 2) * 12
    return torch.cat(
        [torch.tensor([[0.0], [0], [1], [1], [1]]), low, low + 6 + torch.rand(5, 2) * 12], 1
    )


@family
def box_head() -> Made:
    """Faster R-CNN's: features of boxes by RoI align, two layers, classes and offsets."""

    class Boxes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = backbone(), faster_rcnn.TwoMLPHead(16 * 9, 16)
            self.predict = faster_rcnn.FastRCNNPredictor(16, 4)

        def forward(
            self, x: torch.Tensor, boxes: torch.Tensor, classes: torch.Tensor
        ) -> torch.Tensor:
            crops = ops.roi_align(self.body(x), boxes, (3, 3), 0.25, 2, aligned=True)
            scores, offsets = self.predict(self.head(crops))
            return functional.cross_entropy(scores, classes) + offsets.square().mean()

    return Boxes(), (*image(32, 2), regions(), labels(4, 5)), None


@family
def mask_head() -> Made:
    """Mask R-CNN's: RoI align, convolutions, an upsampling, masks."""

    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = backbone(), mask_rcnn.MaskRCNNHeads(16, (8, 8), 1)
            self.predict = mask_rcnn.MaskRCNNPredictor(8, 8, 3)

        def forward(self, x: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
            return self.predict(self.head(ops.roi_align(self.body(x), boxes, 4, 0.25, 2)))

    return Masks(), (*image(32, 2), regions()), labels(3, 5, 8, 8)


@family
def deformable() -> Made:
    class Deformable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.offset = backbone(), nn.Conv2d(16, 18, 3, padding=1)
            self.conv, self.head = ops.DeformConv2d(16, 8, 3, padding=1), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.body(x)
            return self.head(self.conv(h, self.offset(h)).relu().mean((2, 3)))

    return image_classifier(Deformable(), 16, 2)


@family
def swin_video() -> Made:
    net = video_swin.SwinTransformer3d(
        [2, 4, 4], 12, [2, 2], [2, 2], [2, 2, 2], stochastic_depth_prob=0.0, num_classes=4
    )
    return net, (torch.randn(2, 3, 4, 16, 16),), labels(4, 2)
