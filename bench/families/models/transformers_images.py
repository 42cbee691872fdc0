"""Image models of transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf
from torch import nn

from bench.families.models.family import (
    VOCABULARY,
    Made,
    Wrap,
    family,
    image,
    labels,
    tokens,
)

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENCODER: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    **NO_DROPOUT,
}  # fmt: skip


def classifier(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Made:
    return Wrap(model, lambda m, x: m(x).logits), inputs, labels(4, len(inputs[0]))


@family
def vit() -> Made:
    config = tf.ViTConfig(image_size=16, patch_size=4, num_labels=4, **ENCODER)
    return classifier(tf.ViTForImageClassification(config), image(16, 3))


@family
def deit() -> Made:
    config = tf.DeiTConfig(image_size=16, patch_size=4, num_labels=4, **ENCODER)
    return classifier(tf.DeiTForImageClassification(config), image(16, 3))


@family
def swin() -> Made:
    config = tf.SwinConfig(
        image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
        num_labels=4, drop_path_rate=0.0, **NO_DROPOUT,
    )  # fmt: skip
    return classifier(tf.SwinForImageClassification(config), image(16, 3))


@family
def mobilenet_v1() -> Made:
    config = tf.MobileNetV1Config(
        image_size=64, depth_multiplier=0.25, num_labels=4, classifier_dropout_prob=0.0
    )
    return classifier(tf.MobileNetV1ForImageClassification(config), image(64))


@family
def mobilenet_v2() -> Made:
    config = tf.MobileNetV2Config(
        image_size=64, depth_multiplier=0.25, num_labels=4, classifier_dropout_prob=0.0
    )
    return classifier(tf.MobileNetV2ForImageClassification(config), image(64))


def _resnet(layer_type: str) -> Made:
    config = tf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32], depths=[1, 2, 1], layer_type=layer_type,
        num_labels=4,
    )  # fmt: skip
    return classifier(tf.ResNetForImageClassification(config), image(32))


@family
def resnet() -> Made:
    return _resnet("basic")


@family
def resnet_bottleneck() -> Made:
    return _resnet("bottleneck")


@family
def efficientnet() -> Made:
    config = tf.EfficientNetConfig(
        image_size=32, width_coefficient=0.25, depth_coefficient=0.3, num_labels=4,
        dropout_rate=0.0, drop_connect_rate=0.0, hidden_dim=320,
    )  # fmt: skip
    return classifier(tf.EfficientNetForImageClassification(config), image(32))


@family
def convnext() -> Made:
    config = tf.ConvNextConfig(
        hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], image_size=32, num_labels=4,
        drop_path_rate=0.0,
    )  # fmt: skip
    return classifier(tf.ConvNextForImageClassification(config), image(32))


@family
def segformer() -> Made:
    config = tf.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
        patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
        decoder_hidden_size=16, num_labels=4, classifier_dropout_prob=0.0, drop_path_rate=0.0,
        **NO_DROPOUT,
    )  # fmt: skip
    model, inputs, _ = classifier(tf.SegformerForSemanticSegmentation(config), image(32, 2))
    return model, inputs, labels(4, 2, 8, 8)


@family
def depth_prediction() -> Made:
    """DPT: the layers of a transformer as a pyramid, a depth for each pixel."""
    config = tf.DPTConfig(
        image_size=32, patch_size=8, neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8,
        backbone_out_indices=[0, 1, 2, 3], reassemble_factors=[4, 2, 1, 0.5], is_hybrid=False,
        **{**ENCODER, "num_hidden_layers": 4},
    )  # fmt: skip
    model = tf.DPTForDepthEstimation(config)
    nn.init.constant_(model.head.head[4].bias, 1.0)  # its Relu would pass nothing
    return Wrap(model, lambda m, x: m(x).predicted_depth), image(32, 2), torch.rand(2, 64, 64)


@family
def detection_transformer() -> Made:
    """YOLOS: tokens for objects in a vision transformer; classes of each and boxes."""

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = tf.YolosConfig(
                image_size=[16, 16], patch_size=4, num_detection_tokens=5, num_labels=4, **ENCODER
            )
            self.model = tf.YolosForObjectDetection(config)

        def forward(
            self, x: torch.Tensor, classes: torch.Tensor, boxes: torch.Tensor
        ) -> torch.Tensor:
            out = self.model(x)
            scores = nn.functional.cross_entropy(out.logits.transpose(1, 2), classes)
            return scores + nn.functional.l1_loss(out.pred_boxes, boxes)

    return Loss(), (*image(16, 2), labels(5, 2, 5), torch.rand(2, 5, 4)), None


@family
def masked_autoencoder() -> Made:
    """A vision transformer that sees a part of the patches and draws all; the noise is given."""

    def call(m: nn.Module, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return m(x, noise=noise).loss

    config = tf.ViTMAEConfig(
        image_size=16, patch_size=4, decoder_hidden_size=16, decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2, decoder_intermediate_size=32, mask_ratio=0.5, **ENCODER,
    )  # fmt: skip
    return Wrap(tf.ViTMAEForPreTraining(config), call), (*image(16, 2), torch.rand(2, 16)), None


@family
def clip() -> Made:
    """Images and texts by their cosines."""

    def call(m: nn.Module, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return m(input_ids=ids, pixel_values=x).logits_per_image

    config = tf.CLIPConfig(
        text_config={
            "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16,
            "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0,
        },
        vision_config={
            "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 16, "patch_size": 4,
        },
        projection_dim=8,
    )  # fmt: skip
    return Wrap(tf.CLIPModel(config), call), (tokens(), *image(16, 3)), labels(3, 3)


@family
def perceiver() -> Made:
    """Latents that attend to pixels, and an attended class."""
    config = tf.PerceiverConfig(
        num_latents=4, d_latents=16, d_model=16, num_blocks=1, num_self_attends_per_block=2,
        num_self_attention_heads=2, num_cross_attention_heads=1, attention_probs_dropout_prob=0.0,
        image_size=8, num_labels=4,
    )  # fmt: skip
    model = tf.PerceiverForImageClassificationLearned(config)
    return Wrap(model, lambda m, x: m(inputs=x).logits), image(8, 2), labels(4, 2)
