"""Text models of transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf
from torch import nn
from torch.nn import functional

from bench.families.models.family import (
    LENGTH,
    VOCABULARY,
    Made,
    Pooled,
    Wrap,
    family,
    labels,
    masked,
    tokens,
)
from bench.families.models.transformers_images import ENCODER

TEXT: dict[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, **ENCODER}


def logits(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return model(ids, attention_mask=mask).logits


def text_classifier(model: nn.Module) -> Made:
    return Wrap(model, logits), masked(), labels(3, 3)


def language_model(model: nn.Module) -> Made:
    call = Wrap(model, lambda m, i: m(i, use_cache=False).logits.reshape(-1, VOCABULARY))
    return call, (tokens(),), labels(VOCABULARY, 3 * LENGTH)


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


def _gpt2(**kwargs: Any) -> Made:
    config = tf.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=32, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False, **kwargs,
    )  # fmt: skip
    return language_model(tf.GPT2LMHeadModel(config))


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


# --- seq2seq


def seq2seq(model: nn.Module) -> Made:
    """Teacher forcing: the ids of the source and those before each id of the target."""

    def call(m: nn.Module, ids: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        out = m(input_ids=ids, decoder_input_ids=before, use_cache=False)
        return out.logits.reshape(-1, VOCABULARY)

    return Wrap(model, call), (tokens(), tokens()), labels(VOCABULARY, 3 * LENGTH)


SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "max_position_embeddings": 32, "dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip


@family
def bart() -> Made:
    return seq2seq(tf.BartForConditionalGeneration(tf.BartConfig(**SEQ2SEQ)))


@family
def t5() -> Made:
    config = tf.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2,
        vocab_size=VOCABULARY, dropout_rate=0.0, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )  # fmt: skip
    return seq2seq(tf.T5ForConditionalGeneration(config))


@family
def switch_transformer() -> Made:
    """A mixture of experts by a router, in T5's house."""
    config = tf.SwitchTransformersConfig(
        d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=2, num_experts=2,
        vocab_size=VOCABULARY, dropout_rate=0.0, router_jitter_noise=0.0, expert_capacity=64,
        tie_word_embeddings=False,
    )  # fmt: skip
    return seq2seq(tf.SwitchTransformersForConditionalGeneration(config))


# --- other encoders


@family
def deberta_v2() -> Made:
    config = tf.DebertaV2Config(
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4, num_labels=3,
        pooler_dropout=0.0, cls_dropout=0.0, pooler_hidden_size=32, norm_rel_ebd="layer_norm",
        **TEXT,
    )  # fmt: skip
    return text_classifier(tf.DebertaV2ForSequenceClassification(config))


@family
def fnet() -> Made:
    """Fourier transforms instead of attention."""
    config = tf.FNetConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, intermediate_size=64,
        hidden_dropout_prob=0.0, max_position_embeddings=32, num_labels=3,
        pad_token_id=0,
    )  # fmt: skip
    model = tf.FNetForSequenceClassification(config)
    return Wrap(model, lambda m, i: m(i).logits), (tokens(),), labels(3, 3)


# --- other language models

DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "use_cache": False, "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@family
def gemma2() -> Made:
    """Soft caps of scores and logits, norms before and after."""
    config = tf.Gemma2Config(
        num_key_value_heads=2, intermediate_size=48, head_dim=8, sliding_window=4,
        query_pre_attn_scalar=8, attn_implementation="eager", **DECODER,
    )  # fmt: skip
    return language_model(tf.Gemma2ForCausalLM(config))


@family
def falcon() -> Made:
    """One head of keys for all queries, in parallel with the feed-forward layer."""
    config = tf.FalconConfig(
        multi_query=True, parallel_attn=True, new_decoder_architecture=False, bias=False,
        hidden_dropout=0.0, attention_dropout=0.0, **DECODER,
    )  # fmt: skip
    return language_model(tf.FalconForCausalLM(config))


@family
def bloom() -> Made:
    """Linear biases instead of positions."""
    config = tf.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, use_cache=False,
        hidden_dropout=0.0, attention_dropout=0.0, tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    return language_model(tf.BloomForCausalLM(config))


@family
def mixtral() -> Made:
    """Experts chosen by a router."""
    config = tf.MixtralConfig(
        num_key_value_heads=2, intermediate_size=48, num_local_experts=3, num_experts_per_tok=2,
        head_dim=8, **DECODER,
    )  # fmt: skip
    model = tf.MixtralForCausalLM(config)
    if hasattr(model, "set_experts_implementation"):  # the only way that torch.onnx can export
        model.set_experts_implementation("batched_mm")
    return language_model(model)


@family
def mamba() -> Made:
    config = tf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4, conv_kernel=3,
        time_step_rank=4, use_cache=False, tie_word_embeddings=False, pad_token_id=0,
        use_mambapy=False,
    )  # fmt: skip
    return language_model(tf.MambaForCausalLM(config))


@family
def mamba2() -> Made:
    config = tf.Mamba2Config(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=8, conv_kernel=3,
        num_heads=4, head_dim=8, n_groups=2, chunk_size=4, use_cache=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    return language_model(tf.Mamba2ForCausalLM(config))


@family
def rwkv() -> Made:
    config = tf.RwkvConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16,
        intermediate_size=32, context_length=32, use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    return language_model(tf.RwkvForCausalLM(config))


@family
def xl_net() -> Made:
    """Relative positions by a shift of the scores."""
    config = tf.XLNetConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        n_layer=2,
        n_head=4,
        d_inner=64,
        dropout=0.0,
        num_labels=3,
        summary_last_dropout=0.0,
        pad_token_id=0,
    )
    return text_classifier(tf.XLNetForSequenceClassification(config))
