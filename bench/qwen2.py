"""Language models of the form of Qwen2, with random weights of 4 bits, for figures of memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import MS, TensorType
from engine.models.layers import Layers

BITS, BLOCK = 4, 128


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; `heads` of queries, `keys` of keys and values."""

    layers: int = 24
    width: int = 896
    heads: int = 14
    keys: int = 2
    wide: int = 4864
    words: int = 151936


class _Qwen2(Layers):
    def __init__(self, sizes: Sizes, positions: int, quantised: bool) -> None:
        super().__init__()
        self.sizes, self.positions, self.quantised = sizes, positions, quantised
        self.rng = np.random.default_rng(0)
        self.head = sizes.width // sizes.heads

    def add_named(self, op: str, name: str, *inputs: str, domain: str = "", **attrs: object) -> str:
        """Add a node of one output, both called `name`."""
        self.nodes.append(Node(op, inputs, (name,), attrs, domain, name))
        return name

    def add_packed(self, name: str, rows: int, columns: int) -> tuple[str, str]:
        """Random integers of 4 bits [rows, columns / block, block / 2], and their scales."""
        blocks = columns // BLOCK
        numbers = self.rng.integers(0, 256, (rows, blocks, BLOCK * BITS // 8), np.uint8)
        scale = np.full((rows, blocks), columns**-0.5 / 4, np.float32)
        return self.add_constant(f"{name}.weight", numbers), self.add_constant(
            f"{name}.scale", scale
        )

    def add_product(self, x: str, name: str, columns: int, rows: int, bias: bool = False) -> str:
        """Add a linear layer."""
        shift = self.add_vector(f"{name}.bias", rows, 0.0) if bias else ""
        if not self.quantised:
            self.constants[f"{name}.weight"] = np.zeros((columns, rows), np.float32)
            y = self.add_named("MatMul", f"{name}/product", x, f"{name}.weight")
            return self.add_named("Add", name, y, shift) if bias else y
        inputs = [x, *self.add_packed(name, rows, columns), *(["", "", shift] if bias else [])]
        return self.add_named(
            "MatMulNBits", name, *inputs, domain=MS, K=columns, N=rows, bits=BITS, block_size=BLOCK
        )

    def add_norm(self, x: str, name: str) -> str:
        scale = self.add_vector(f"{name}.weight", self.sizes.width, 1.0)
        return self.add_named("RMSNormalization", name, x, scale, axis=-1, epsilon=1e-6)

    def add_rotation(self, x: str, name: str, heads: int) -> str:
        angles = np.outer(
            np.arange(self.positions), 1e6 ** (-np.arange(0, self.head, 2) / self.head)
        )
        tables = [
            self.add_constant(key, f(angles)[None].astype(np.float32))
            for key, f in (("cos", np.cos), ("sin", np.sin))
        ]
        return self.add_named("RotaryEmbedding", name, x, *tables, num_heads=heads)

    def add_block(self, x: str, name: str) -> str:
        """Add a layer: attention with fewer heads of keys and values, and gated products."""
        s = self.sizes
        y = self.add_norm(x, f"{name}.input_layernorm")
        at = f"{name}.self_attn"
        q = self.add_product(y, f"{at}.q_proj", s.width, s.width, bias=True)
        k = self.add_product(y, f"{at}.k_proj", s.width, s.keys * self.head, bias=True)
        v = self.add_product(y, f"{at}.v_proj", s.width, s.keys * self.head, bias=True)
        q = self.add_rotation(q, f"{at}.q_turned", s.heads)
        k = self.add_rotation(k, f"{at}.k_turned", s.keys)
        y = self.add_named(
            "Attention", at, q, k, v, is_causal=1, q_num_heads=s.heads, kv_num_heads=s.keys
        )
        x = self.add_op("Add", x, self.add_product(y, f"{at}.o_proj", s.width, s.width))
        y = self.add_norm(x, f"{name}.post_attention_layernorm")
        gate = self.add_product(y, f"{name}.mlp.gate_proj", s.width, s.wide)
        gate = self.add_op("Mul", gate, self.add_op("Sigmoid", gate))
        y = self.add_op("Mul", gate, self.add_product(y, f"{name}.mlp.up_proj", s.width, s.wide))
        return self.add_op("Add", x, self.add_product(y, f"{name}.mlp.down_proj", s.wide, s.width))


def build_qwen2(sizes: Sizes, positions: int, pieces: int, quantised: bool = True) -> Graph:
    """Return the mean loss from numbers of words x[1, positions] and labels[positions].

    The table of words is the last layer, too.

    pieces: the number of parts of the positions for the last layer and the loss, so that the scores
        of all words exist for one part at a time.
    quantised: weights are random and of 4 bits; otherwise float32 and zero, because plans do not
        depend on them.
    """
    to = _Qwen2(sizes, positions, quantised)
    if quantised:
        table, scale = to.add_packed("model.embed_tokens", sizes.words, sizes.width)
        flat = to.add_constant("table", [sizes.words, sizes.width * BITS // 8])
        rows = to.add_op("Reshape", table, flat)
        y = to.add_named(
            "GatherBlockQuantized", "words", rows, "x", scale, domain=MS, bits=BITS,
            block_size=BLOCK, gather_axis=0, quantize_axis=1,
        )  # fmt: skip
    else:
        table = "model.embed_tokens.weight"
        to.constants[table] = np.zeros((sizes.words, sizes.width), np.float32)
        y = to.add_named("Gather", "words", table, "x", axis=0)
    for i in range(sizes.layers):
        y = to.add_block(y, f"model.layers.{i}")
    y = to.add_op(
        "Reshape", to.add_norm(y, "model.norm"), to.add_constant("rows", [-1, sizes.width])
    )
    lengths = to.add_constant("lengths", [positions // pieces] * pieces)
    parts = to.add_ops("Split", pieces, y, lengths, axis=0)
    labels = to.add_ops("Split", pieces, "labels", lengths, axis=0)
    losses = []
    for i, (part, label) in enumerate(zip(parts, labels, strict=True)):
        name = f"lm_head.{i}"
        if quantised:
            scores = to.add_named(
                "MatMulNBits", name, part, table, scale, domain=MS, K=sizes.width, N=sizes.words,
                bits=BITS, block_size=BLOCK,
            )  # fmt: skip
        else:
            scores = to.add_named("MatMul", name, part, to.add_op("Transpose", table, perm=[1, 0]))
        losses.append(to.add_op("SoftmaxCrossEntropyLoss", scores, label, reduction="sum"))
    total = to.add_op("Sum", *losses) if pieces > 1 else losses[0]
    to.add_named("Div", "mean_loss", total, to.add_number(positions))
    inputs = {"x": TensorType("i64", (1, positions)), "labels": TensorType("i64", (positions,))}
    return Graph(
        "qwen2", inputs, ["mean_loss"], to.constants, to.nodes, {"": 23, MS: 1},
        {"mean_loss": TensorType("f32", ())}, ir_version=10,
    )  # fmt: skip
