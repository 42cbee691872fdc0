"""Image models of timm, small by their constructors' arguments."""

from __future__ import annotations

from typing import Any

import timm
import torch
from timm import models
from timm.models import mlp_mixer as mixers
from torch import nn

from bench.families.models.family import Made, family, image_classifier


def plain(net: nn.Module, size: int = 32, batch: int = 3) -> Made:
    """A classifier whose layer scales, often 0 or 1e-6 at first, are of use at once."""
    for name, p in net.named_parameters():
        if p.requires_grad and ("gamma" in name or "layer_scale" in name or ".ls" in name):
            nn.init.constant_(p, 0.5)
    return image_classifier(net, size, batch)


def named(name: str, size: int = 32, **kwargs: Any) -> Made:
    """A model by its name, made small."""
    torch.manual_seed(0)
    return plain(timm.create_model(name, num_classes=4, **kwargs), size)


@family
def mlp_mixer() -> Made:
    return plain(mixers.MlpMixer(4, 32, patch_size=8, embed_dim=16, num_blocks=2))


@family
def gated_mlp() -> Made:
    net = mixers.MlpMixer(
        4,
        32,
        patch_size=8,
        embed_dim=16,
        num_blocks=2,
        mlp_ratio=4,
        block_layer=mixers.SpatialGatingBlock,
        mlp_layer=timm.layers.GatedMlp,
    )
    return plain(net)


@family
def pool_former() -> Made:
    net = models.metaformer.MetaFormer(
        num_classes=4, depths=(1, 1, 1), dims=(8, 16, 16), layer_scale_init_values=0.5
    )
    return plain(net, 64)


@family
def conv_mixer() -> Made:
    return plain(models.convmixer.ConvMixer(16, 2, 5, 4, num_classes=4))


@family
def cai_t() -> Made:
    return named(
        "cait_xxs24_224", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2,
        depth_token_only=1,
    )  # fmt: skip


@family
def xci_t() -> Made:
    return named(
        "xcit_nano_12_p16_224", img_size=64, embed_dim=16, depth=2, num_heads=2, cls_attn_layers=1
    )


@family
def eva() -> Made:
    """Rotary positions of two axes and gated linear units."""
    return named(
        "eva02_tiny_patch14_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2
    )


@family
def vit_relative_positions() -> Made:
    net, inputs, target = named(
        "vit_relpos_small_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=16,
        depth=2,
        num_heads=2,
    )
    for module in net.modules():  # no argument reaches the dropout of the positions
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return net, inputs, target


@family
def coat_net() -> Made:
    config = models.maxxvit.MaxxVitCfg(
        embed_dim=(8, 16),
        depths=(1, 1),
        block_type=("C", "T"),
        stem_width=(8, 8),
        head_hidden_size=16,
        transformer_cfg=models.maxxvit.MaxxVitTransformerCfg(dim_head=8),
    )
    return plain(models.maxxvit.MaxxVit(config, img_size=32, num_classes=4))


@family
def hiera() -> Made:
    return named(
        "hiera_tiny_224", 64, img_size=(64, 64), embed_dim=16, stages=(1, 1, 1, 1), num_heads=1
    )


@family
def volo() -> Made:
    net = models.volo.VOLO(
        num_classes=4, img_size=64, layers=(1, 1), embed_dims=(16, 24), num_heads=(2, 2),
        downsamples=(True, False), outlook_attention=(True, False), stem_hidden_dim=8,
        post_layers=None, use_aux_head=False, use_mix_token=False,
    )  # fmt: skip
    return plain(net, 64)


@family
def sequencer() -> Made:
    """LSTMs along the rows and the columns of an image."""
    return named(
        "sequencer2d_s", 56, img_size=56, layers=(1, 1), patch_sizes=(7, 2), embed_dims=(12, 16),
        hidden_sizes=(6, 8), mlp_ratios=(2.0, 2.0),
    )  # fmt: skip


@family
def ghost_net() -> Made:
    net = models.ghostnet._create_ghostnet(
        "ghostnet_100", width=0.2, num_classes=4, drop_rate=0.0
    )  # fmt: skip
    return plain(net, 64)


@family
def attention_pooled_resnet() -> Made:
    """A ResNet-D with blurred pooling, CBAM and leaky units."""
    net = models.ResNet(
        models.resnet.Bottleneck, (1, 1, 1, 1), 4, stem_type="deep", stem_width=8, avg_down=True,
        channels=(8, 8, 16, 16), act_layer=nn.LeakyReLU, aa_layer=timm.layers.BlurPool2d,
        block_args={"attn_layer": "cbam"},
    )  # fmt: skip
    return plain(net)


@family
def normaliser_free() -> Made:
    """NFNet: standardised weights, scaled activations."""
    config = models.nfnet.NfCfg(
        depths=(1, 1),
        channels=(16, 24),
        stem_type="3x3",
        stem_chs=8,
        group_size=8,
        num_features=32,
        act_layer="silu",
        attn_layer="se",
        attn_kwargs={"rd_ratio": 0.5},
        bottle_ratio=0.5,
    )
    return plain(models.nfnet.NormFreeNet(config, num_classes=4))


@family
def halo_net() -> Made:
    config = models.byobnet.ByoModelCfg(
        blocks=tuple(models.byobnet.ByoBlockCfg("self_attn", 1, 32, 1, gs=0) for _ in "ab"),
        stem_chs=16,
        stem_pool="",
        stem_type="3x3",
        self_attn_layer="halo",
        self_attn_kwargs={"block_size": 4, "halo_size": 1},
    )
    return plain(models.byobnet.ByobNet(config, num_classes=4))
