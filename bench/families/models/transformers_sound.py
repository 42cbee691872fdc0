"""Sound, time series and proteins of transformers."""

from __future__ import annotations

import torch
import transformers as tf
from torch import nn

from bench.families.models.family import (
    LENGTH,
    VOCABULARY,
    Made,
    Pooled,
    Wrap,
    family,
    labels,
    tokens,
)
from bench.families.models.transformers_images import classifier


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
def whisper() -> Made:
    """Both halves of Whisper, teacher forcing."""

    def call(m: nn.Module, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out = m(input_features=x, decoder_input_ids=ids, use_cache=False)
        return out.logits.transpose(1, 2)

    config = tf.WhisperConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=VOCABULARY,
        max_source_positions=10, max_target_positions=16, num_mel_bins=8, dropout=0.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = tf.WhisperForConditionalGeneration(config)
    return Wrap(model, call), (torch.randn(3, 8, 20), tokens()), labels(VOCABULARY, 3, LENGTH)


@family
def vocoder() -> Made:
    """SpeechT5's HiFi-GAN: transposed convolutions and dilated residuals, from mel to samples."""
    config = tf.SpeechT5HifiGanConfig(
        model_in_dim=8, upsample_initial_channel=16, upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8], resblock_kernel_sizes=[3, 5],
        resblock_dilation_sizes=[[1, 3], [1, 3]], normalize_before=True,
    )  # fmt: skip
    model = tf.SpeechT5HifiGan(config)
    return Wrap(model, lambda m, x: m(x)), (torch.randn(2, 6, 8),), torch.randn(2, 96)


@family
def patch_mixer() -> Made:
    config = tf.PatchTSMixerConfig(
        context_length=16,
        prediction_length=4,
        patch_length=4,
        patch_stride=4,
        num_input_channels=2,
        d_model=8,
        num_layers=2,
        dropout=0.0,
        head_dropout=0.0,
        scaling="std",
    )
    model = tf.PatchTSMixerForPrediction(config)
    call = Wrap(model, lambda m, x: m(x, return_loss=False).prediction_outputs)
    return call, (torch.randn(3, 16, 2),), torch.randn(3, 4, 2)


@family
def decision_transformer() -> Made:
    """Returns, states and actions in turns through a GPT-2."""

    def call(
        m: nn.Module, s: torch.Tensor, a: torch.Tensor, r: torch.Tensor, t: torch.Tensor
    ) -> torch.Tensor:
        mask = torch.ones_like(t)
        return m(
            states=s, actions=a, rewards=r, returns_to_go=r, timesteps=t, attention_mask=mask
        ).action_preds

    config = tf.DecisionTransformerConfig(
        state_dim=5, act_dim=2, hidden_size=16, max_ep_len=20, n_layer=1, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, n_positions=32, vocab_size=1, use_cache=False,
    )  # fmt: skip
    given = (torch.randn(2, 4, 5), torch.randn(2, 4, 2), torch.randn(2, 4, 1), labels(20, 2, 4))
    return Wrap(tf.DecisionTransformerModel(config), call), given, torch.tanh(torch.randn(2, 4, 2))
