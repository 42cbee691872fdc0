"""Model families as people export them, and PyTorch's first steps: the peers' side of families.py.

    python family_models.py FOLDER [NAME ...]

Needs torch and transformers.  For each family and exporter it writes FOLDER/<tag>.onnx and
FOLDER/<tag>.npz: the inputs, the labels, the parameters' names and the losses of three AdamW steps.
Dropout is 0 everywhere; random weights, seed 0.  Tied weights are untied: exporters copy them.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf
from torch import nn
from torch.nn import functional

EXPORTS = (("old", 14, True), ("old", 17, False), ("new", 18, True))  # exporter, opset, training
LENGTH, VOCABULARY = 8, 50
DOUBLE = {"mobilenet_v1", "mobilenet_v2"}  # their losses in f32 are noise from the second step on

Made = tuple[nn.Module, tuple[torch.Tensor, ...], torch.Tensor]
FAMILIES: dict[str, Callable[[], Made]] = {}


def family(make: Callable[[], Made]) -> Callable[[], Made]:
    """Register a family under the name of its function."""
    FAMILIES[make.__name__] = make
    return make


class Wrap(nn.Module):
    """A model of the library as a function of tensors."""

    def __init__(self, model: nn.Module, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(self.model, *inputs)


class Pooled(nn.Module):
    """The mean over time of an encoder's output, and a linear layer."""

    def __init__(self, encoder: nn.Module, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.encoder, self.call, self.head = encoder, call, nn.Linear(32, 4)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.call(self.encoder, *inputs).mean(1))


def labels(classes: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, classes, shape)


def tokens(batch: int = 3) -> torch.Tensor:
    """Random tokens but 0, the padding, whose row PyTorch leaves untrained and ONNX does not."""
    return 1 + labels(VOCABULARY - 1, batch, LENGTH)


def masked() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[0, 5:] = 0
    return tokens(), mask


def image(size: int, batch: int = 4) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 3, size, size),)


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENCODER: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    **NO_DROPOUT,
}  # fmt: skip
TEXT: dict[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, **ENCODER}


def logits(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return model(ids, attention_mask=mask).logits


def text_classifier(model: nn.Module) -> Made:
    return Wrap(model, logits), masked(), labels(3, 3)


def language_model(model: nn.Module) -> Made:
    call = Wrap(model, lambda m, i: m(i, use_cache=False).logits.reshape(-1, VOCABULARY))
    return call, (tokens(),), labels(VOCABULARY, 3 * LENGTH)


def classifier(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Made:
    return Wrap(model, lambda m, x: m(x).logits), inputs, labels(4, len(inputs[0]))


# --- text


@family
def bert() -> Made:
    config = tf.BertConfig(num_labels=3, classifier_dropout=0.0, **TEXT)
    return text_classifier(tf.BertForSequenceClassification(config))


@family
def bert_eager() -> Made:
    config = tf.BertConfig(
        num_labels=3, classifier_dropout=0.0, attn_implementation="eager", **TEXT
    )
    return text_classifier(tf.BertForSequenceClassification(config))


@family
def bert_masked_lm() -> Made:
    def call(m: nn.Module, i: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return logits(m, i, a).reshape(-1, VOCABULARY)

    model = tf.BertForMaskedLM(tf.BertConfig(tie_word_embeddings=False, **TEXT))
    return Wrap(model, call), masked(), labels(VOCABULARY, 3 * LENGTH)


@family
def bert_tagger() -> Made:
    def call(m: nn.Module, i: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return logits(m, i, a).transpose(1, 2)

    config = tf.BertConfig(num_labels=5, classifier_dropout=0.0, **TEXT)
    return Wrap(tf.BertForTokenClassification(config), call), masked(), labels(5, 3, LENGTH)


@family
def distilbert() -> Made:
    config = tf.DistilBertConfig(
        dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=VOCABULARY, dropout=0.0,
        max_position_embeddings=32, attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=3,
    )  # fmt: skip
    return text_classifier(tf.DistilBertForSequenceClassification(config))


@family
def roberta() -> Made:
    config = tf.RobertaConfig(num_labels=3, classifier_dropout=0.0, **TEXT)
    return text_classifier(tf.RobertaForSequenceClassification(config))


@family
def albert() -> Made:
    config = tf.AlbertConfig(num_labels=3, embedding_size=16, classifier_dropout_prob=0.0, **TEXT)
    return text_classifier(tf.AlbertForSequenceClassification(config))


@family
def electra() -> Made:
    config = tf.ElectraConfig(num_labels=3, embedding_size=16, classifier_dropout=0.0, **TEXT)
    return text_classifier(tf.ElectraForSequenceClassification(config))


@family
def minilm() -> Made:
    class Sentence(nn.Module):
        """Mean over the mask, unit length, linear: a sentence encoder with a head."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = tf.BertModel(tf.BertConfig(**TEXT)), nn.Linear(32, 4)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            states = self.encoder(ids, attention_mask=mask).last_hidden_state
            weights = mask[..., None].float()
            mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            return self.head(functional.normalize(mean, p=2, dim=1))

    return Sentence(), masked(), labels(4, 3)


def _gpt2(**kwargs: Any) -> Made:
    config = tf.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=32, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False, **kwargs,
    )  # fmt: skip
    return language_model(tf.GPT2LMHeadModel(config))


@family
def gpt2() -> Made:
    return _gpt2()


@family
def gpt2_eager() -> Made:
    return _gpt2(attn_implementation="eager")


@family
def llama() -> Made:
    config = tf.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, vocab_size=VOCABULARY, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    return language_model(tf.LlamaForCausalLM(config))


@family
def t5_encoder() -> Made:
    config = tf.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=50, dropout_rate=0.0
    )
    call = Pooled(tf.T5EncoderModel(config), lambda m, i, a: m(i, a).last_hidden_state)
    return call, masked(), labels(4, 3)


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


# --- images


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


# --- sound and sequences


@family
def wav2vec2() -> Made:
    config = tf.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        conv_dim=(16, 16, 16), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_labels=4,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, classifier_proj_size=16,
        hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, final_dropout=0.0,
        feat_proj_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0, apply_spec_augment=False,
    )  # fmt: skip
    return classifier(tf.Wav2Vec2ForSequenceClassification(config), (torch.randn(3, 800),))


@family
def whisper_encoder() -> Made:
    config = tf.WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=60,
        max_source_positions=20, max_target_positions=16, num_mel_bins=8, dropout=0.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    encoder = tf.WhisperModel(config).encoder
    call = Pooled(encoder, lambda m, x: m(x).last_hidden_state)
    return call, (torch.randn(3, 8, 40),), labels(4, 3)


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


# --- export and the steps


def export(net: nn.Module, inputs: Any, path: Path, exporter: str, opset: int) -> None:
    names = [f"in{i}" for i in range(len(inputs))]
    common: dict[str, Any] = {
        "opset_version": opset, "input_names": names, "output_names": ["logits"]
    }  # fmt: skip
    if exporter == "new":  # not optimised: that gives parameters other names
        program = torch.onnx.export(net, inputs, dynamo=True, optimize=False, **common)
        program.save(path, external_data=False)
        return
    mode = torch.onnx.TrainingMode.PRESERVE  # EVAL would fold normalisations into convolutions
    torch.onnx.export(
        net, inputs, path, dynamo=False, do_constant_folding=False, training=mode,
        dynamic_axes={n: {0: "batch"} for n in (*names, "logits")}, **common,
    )  # fmt: skip


def steps(net: nn.Module, inputs: Any, target: torch.Tensor, is_training: bool) -> list[float]:
    """The losses of three AdamW steps."""
    net.train(is_training)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-6, weight_decay=0.0)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(*inputs), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main(folder: Path, chosen: list[str]) -> None:
    """Export the chosen families, or all."""
    warnings.filterwarnings("ignore")
    for name in chosen or FAMILIES:
        for exporter, opset, is_training in EXPORTS:
            torch.manual_seed(0)
            net, inputs, target = FAMILIES[name]()
            for p in net.parameters():  # the old exporter merges parameters that are equal
                p.data += 0.02 * torch.randn_like(p)
            net.train(is_training)
            if name in DOUBLE:
                net, inputs = net.double(), tuple(x.double() for x in inputs)
            tag = f"{name}-{exporter}-{opset}-{'train' if is_training else 'eval'}"
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    export(net, inputs, folder / f"{tag}.onnx", exporter, opset)
            except Exception as error:  # the exporter cannot: nothing to compare
                (folder / f"{tag}.onnx").unlink(missing_ok=True)
                print(f"NOT EXPORTED {tag}: {type(error).__name__}", flush=True)
                continue
            every = net.named_parameters(remove_duplicate=False)
            names = [n for n, p in every if p.requires_grad]
            given = {f"in{i}": x.numpy() for i, x in enumerate(inputs)}
            losses = steps(net, inputs, target, is_training)
            np.savez(folder / f"{tag}.npz", losses=losses, target=target, names=names, **given)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
