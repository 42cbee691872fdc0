"""PyTorch's side of tests of LoRA: a language model with hand-written adapters, and its steps.

    python tests/torch/lora_twin.py FOLDER gpt2|qwen2 small|large

Needs torch, transformers, onnxscript and safetensors, and nothing of the engine: it is run as a
script, so that transformers does not take this repository's `kernels` for a package of that name.
Writes FOLDER/<name>.onnx, FOLDER/<name>.npz with a batch and the losses of ten AdamW steps, and the
adapters before and after them as safetensors, by the package: FOLDER/<name>-first, <name>-last.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

RANK, ALPHA, STEPS = 4, 8.0, 10
RATES = {"small": 1e-2, "large": 1e-3}
LAYERS = {"gpt2": ("c_attn", "c_fc"), "qwen2": ("q_proj", "v_proj")}
SIZES = {  # hidden, heads, heads of keys and values, intermediate, layers, vocabulary, positions
    ("gpt2", "small"): (32, 4, 4, 128, 2, 61, 8),
    ("gpt2", "large"): (768, 12, 12, 3072, 2, 512, 32),
    ("qwen2", "small"): (32, 4, 2, 64, 2, 61, 8),
    ("qwen2", "large"): (896, 14, 2, 4864, 2, 512, 32),
}


class Scores(nn.Module):
    """A language model whose scores are of rows of words, as a loss takes them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Any) -> Any:
        scores = self.model(words, use_cache=False).logits
        return scores.reshape(-1, scores.shape[-1])


class Adapted(nn.Module):
    """y = W x + alpha / rank B (A x)"""

    def __init__(self, base: Any, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(inputs, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Any) -> Any:
        return self.base(x) + ALPHA / RANK * self.lora_B(self.lora_A(x))


def model(name: str, size: str) -> Scores:
    """A model with random weights, whose embedding is its last layer, too."""
    hidden, heads, keys, wide, layers, words, positions = SIZES[name, size]
    if name == "gpt2":
        config: Any = transformers.GPT2Config(
            n_embd=hidden, n_head=heads, n_inner=wide, n_layer=layers, vocab_size=words,
            n_positions=positions, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        return Scores(transformers.GPT2LMHeadModel(config))
    config = transformers.Qwen2Config(
        hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=keys, vocab_size=words,
        intermediate_size=wide, num_hidden_layers=layers, max_position_embeddings=positions,
        tie_word_embeddings=True,
    )  # fmt: skip
    return Scores(transformers.Qwen2ForCausalLM(config))


def adapt(net: Any, ends: tuple[str, ...]) -> dict[str, Any]:
    """Replace the layers whose names end so; the new parameters by peft's names."""
    for p in net.parameters():
        p.requires_grad = False
    actual: dict[str, Any] = {}
    for path, layer in [*net.named_modules()]:
        parent, _, last = path.rpartition(".")
        if last in ends:
            sizes = layer.weight.shape if hasattr(layer, "nf") else layer.weight.shape[::-1]
            new = Adapted(layer, *sizes)
            setattr(net.get_submodule(parent), last, new)
            for part in ("lora_A", "lora_B"):
                actual[f"base_model.model.{path}.{part}.weight"] = getattr(new, part).weight
    return actual


def main(folder: Path, name: str, size: str) -> None:
    """See the head of this file."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    net = model(name, size).train()
    *_, words, positions = SIZES[name, size]
    batch, labels = (torch.randint(0, words, (2, positions)) for _ in range(2))
    program: Any = torch.onnx.export(
        net, (batch,), dynamo=True, optimize=False, opset_version=18, input_names=["words"],
        output_names=["scores"], verbose=False,
    )  # fmt: skip
    for value in program.model.graph.all_nodes():  # names files of the machine that made it
        value.metadata_props.clear()
    program.save(folder / f"{name}.onnx", external_data=False)
    parameters = adapt(net, LAYERS[name])

    def save(when: str) -> None:
        place = folder / f"{name}-{when}"
        place.mkdir(exist_ok=True)
        tensors = {n: p.detach().clone().contiguous() for n, p in parameters.items()}
        save_file(tensors, place / "adapter_model.safetensors", {"format": "pt"})

    save("first")
    optimizer = torch.optim.AdamW(parameters.values(), lr=RATES[size], weight_decay=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(batch), labels.reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    save("last")
    np.savez(folder / f"{name}.npz", words=batch, labels=labels.reshape(-1), losses=losses)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
