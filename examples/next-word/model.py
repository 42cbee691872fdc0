"""The network: a small GPT, which predicts the next token at each position of a text.

`python model.py` learns a tokenizer from texts/, and writes tokenizer.json, forward.onnx and
decoder.onnx.  A token is a word or a part of one, with the space before it.

forward.onnx takes a whole text, for training.  decoder.onnx is the same network for generation: it
takes new tokens, and takes and returns the keys and values of the tokens before them.

Blocks are those in GPT-2: norm, attention to earlier positions, norm, feed-forward layer.  Input
embeddings and output scores share one table (Press and Wolf, arXiv:1608.05859).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgegrad.data.tokens import train_tokenizer

VOCABULARY = 600  # the largest number of tokens
LENGTH = 32  # tokens in a window
WIDTH, LAYERS, HEADS = 96, 2, 4


def network(vocabulary: int, seed: int = 0, writes: bool = False) -> onnx.ModelProto:
    """Tokens [batch, LENGTH] to scores [batch, vocabulary, LENGTH] of the next token.

    The scores at a position depend only on the tokens up to it.  The classes are on axis 1, where
    ONNX's losses expect them.

    writes: make the decoder, with caches under the names that exporters use; its scores are
        `logits` [batch, new, vocabulary].  The weights have the same names and values.
    """
    rng = np.random.default_rng(seed)
    nodes, weights = [], []

    def node(op: str, name: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def weight(name: str, *shape: int, deviation: float = 0.02, mean: float = 0) -> str:
        values = mean + deviation * rng.standard_normal(shape)
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def norm(x: str, name: str) -> str:
        scale = weight(f"{name}.scale", WIDTH, deviation=0, mean=1)
        bias = weight(f"{name}.bias", WIDTH, deviation=0)
        return node("LayerNormalization", name, x, scale, bias)

    def linear(x: str, name: str, into: int, out: int, deviation: float = 0.02) -> str:
        product = weight(f"{name}.weight", into, out, deviation=deviation)
        bias = weight(f"{name}.bias", out, deviation=0)
        return node("Add", name, node("MatMul", f"{name}.product", x, product), bias)

    def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    table = weight("tokens.table", vocabulary, WIDTH)
    x = node("Gather", "tokens.vectors", table, "input_ids" if writes else "tokens")
    places = weight("positions", LENGTH, WIDTH)
    if writes:
        places = node("Gather", "positions.vectors", places, "position_ids")
    x = node("Add", "start", x, places)
    caches, presents = [], []
    small = 0.02 / np.sqrt(2 * LAYERS)  # keeps the residual sums small, as in GPT-2
    for number in range(LAYERS):
        name = f"layer{number}"
        y = linear(norm(x, f"{name}.norm1"), f"{name}.qkv", WIDTH, 3 * WIDTH)
        parts = [f"{name}.{part}" for part in ("query", "key", "value")]
        nodes.append(helper.make_node("Split", [y], parts, f"{name}.split", axis=2, num_outputs=3))
        y = f"{name}.attention"
        outputs = [y]
        if writes:
            size = ("batch", HEADS, "past", WIDTH // HEADS)
            for part in ("key", "value"):
                caches.append(value(f"past_key_values.{number}.{part}", TensorProto.FLOAT, *size))
                presents.append(value(f"present.{number}.{part}", TensorProto.FLOAT, *size[:2],
                                      "past+new", size[3]))  # fmt: skip
            parts += ["", caches[-2].name, caches[-1].name]
            outputs += [presents[-2].name, presents[-1].name]
        nodes.append(helper.make_node("Attention", parts, outputs, y, is_causal=1,
                                      q_num_heads=HEADS, kv_num_heads=HEADS))  # fmt: skip
        x = node("Add", f"{name}.attended", x, linear(y, f"{name}.out", WIDTH, WIDTH, small))
        y = linear(norm(x, f"{name}.norm2"), f"{name}.wide", WIDTH, 4 * WIDTH)
        y = linear(node("Gelu", f"{name}.gelu", y), f"{name}.narrow", 4 * WIDTH, WIDTH, small)
        x = node("Add", f"{name}.thought", x, y)
    y = node("MatMul", "logits", norm(x, "norm"), node("Transpose", "table", table, perm=[1, 0]))
    if writes:
        names = ("input_ids", "position_ids")
        inputs = [*(value(name, TensorProto.INT64, "batch", "new") for name in names), *caches]
        results = [value("logits", TensorProto.FLOAT, "batch", "new", vocabulary), *presents]
    else:
        node("Transpose", "scores", y, perm=[0, 2, 1])
        inputs = [value("tokens", TensorProto.INT64, "batch", LENGTH)]
        results = [value("scores", TensorProto.FLOAT, "batch", vocabulary, LENGTH)]
    graph = helper.make_graph(nodes, "gpt", inputs, results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Write tokenizer.json, forward.onnx and decoder.onnx."""
    texts = [path.read_text("utf-8") for path in sorted(Path("texts").rglob("*.txt"))]
    tokenizer = train_tokenizer(texts, VOCABULARY)
    tokenizer.save("tokenizer.json")
    onnx.save(network(tokenizer.get_vocab_size()), "forward.onnx")
    onnx.save(network(tokenizer.get_vocab_size(), writes=True), "decoder.onnx")
    print(
        f"wrote tokenizer.json of {tokenizer.get_vocab_size()} tokens, forward.onnx, decoder.onnx"
    )


if __name__ == "__main__":
    main()
