"""Decoders with caches as exporters write them, with random weights: GPT-2 and Qwen2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import MS, TensorType
from engine.models.layers import Layers

BITS, BLOCK = 4, 32


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder.

    keys: heads of keys and values.  positions: rows of the table of positions, or of rotations.
    """

    layers: int
    width: int
    heads: int
    keys: int
    wide: int
    words: int
    positions: int

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads


GPT2_SMALL = DecoderSizes(12, 768, 12, 12, 3072, 50257, 1024)
QWEN2_HALF = DecoderSizes(24, 896, 14, 2, 4864, 151936, 2048)


class _Decoder(Layers):
    """The nodes of a decoder.

    form: the node that adds rows to caches: "concat", a Concat as PyTorch's exporters write it;
        "attention", ONNX's Attention; "grouped", com.microsoft's GroupQueryAttention.
    bits: 4 for MatMulNBits, 32 for MatMul.
    level: accuracy_level of MatMulNBits; 4: what it reads is rounded to 8 bits.
    """

    def __init__(self, sizes: DecoderSizes, form: str, bits: int, seed: int, level: int) -> None:
        super().__init__(seed)
        self.sizes, self.form, self.bits, self.level = sizes, form, bits, level
        self.rng = np.random.default_rng(seed)
        self.inputs = {
            "input_ids": TensorType("i64", ("batch", "new")),
            "attention_mask": TensorType("i64", ("batch", "past+new")),
            "position_ids": TensorType("i64", ("batch", "new")),
        }
        self.presents: list[str] = []
        self.types: dict[str, TensorType] = {}

    def add_integers(self, value: int | list[int]) -> str:
        """Return an integer, or some, as a constant."""
        return self.add_constant(f"integers.{value}", value)

    def add_weight(self, name: str, rows: int, columns: int, deviation: float = 0.02) -> str:
        values = self.rng.standard_normal((rows, columns), np.float32)
        return self.add_constant(name, values * np.float32(deviation))

    def add_product(self, x: str, name: str, columns: int, rows: int, bias: bool) -> str:
        """Add a linear layer [..., columns] to [..., rows]."""
        if self.bits == 32:
            y = self.add_op("MatMul", x, self.add_weight(f"{name}.weight", columns, rows))
        else:
            blocks = columns // BLOCK
            packed = self.rng.integers(0, 256, (rows, blocks, BLOCK * BITS // 8), np.uint8)
            scales = np.full(rows * blocks, 0.02 / 4, np.float32)
            y = self.add_op("MatMulNBits", x, self.add_constant(f"{name}.packed", packed),
                            self.add_constant(f"{name}.scales", scales), K=columns, N=rows,
                            bits=BITS, block_size=BLOCK, accuracy_level=self.level)  # fmt: skip
            self.nodes[-1].domain = MS
        if not bias:
            return y
        shift = self.rng.standard_normal(rows, np.float32) * np.float32(0.02)
        return self.add_op("Add", y, self.add_constant(f"{name}.bias", shift))

    def add_cache(self, layer: int, part: str) -> str:
        """Declare a cache; return the name of the input."""
        s, name = self.sizes, f"{layer}.{part}"
        past, present = f"past_key_values.{name}", f"present.{name}"
        self.inputs[past] = TensorType("f32", ("batch", s.keys, "past", s.head))
        self.types[present] = TensorType("f32", ("batch", s.keys, "past+new", s.head))
        self.presents.append(present)
        return past

    def add_named(self, op: str, inputs: list[str], outputs: list[str], **attrs: object) -> str:
        """Add a node with outputs of these names; return the first."""
        domain = MS if op == "GroupQueryAttention" else ""
        self.nodes.append(Node(op, tuple(inputs), tuple(outputs), attrs, domain, outputs[0]))
        return outputs[0]

    def split_heads(self, x: str, heads: int) -> str:
        shape = self.add_integers([0, 0, heads, self.sizes.head])
        return self.add_op("Transpose", self.add_op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def add_mask(self) -> None:
        """Add what all layers add to their scores: a lowest number where a key is hidden.

        Keys are counted by the size of a cache, as PyTorch's exporters trace it.
        """
        past = self.add_op(
            "Gather", self.add_op("Shape", "past_key_values.0.key"), self.add_integers(2)
        )
        new = self.add_op("Gather", self.add_op("Shape", "input_ids"), self.add_integers(1))
        total = self.add_op("Add", past, new)
        rows = self.add_op(
            "Unsqueeze",
            self.add_op("Range", past, total, self.add_integers(1)),
            self.add_integers([1]),
        )
        columns = self.add_op("Range", self.add_integers(0), total, self.add_integers(1))
        causal = self.add_op("LessOrEqual", columns, rows)
        there = self.add_op("Cast", "attention_mask", to=9)
        there = self.add_op("Unsqueeze", there, self.add_integers([1, 2]))
        seen = self.add_op("And", causal, there)
        lowest = self.add_number(float(np.finfo(np.float32).min))
        self.mask = self.add_op("Where", seen, self.add_number(0), lowest)

    def attend_cached(self, q: str, k: str, v: str, layer: int) -> str:
        """Add the attention of a layer; q, k, v: [batch, new, heads * width]."""
        s, past_key = self.sizes, self.add_cache(layer, "key")
        past_value = self.add_cache(layer, "value")
        present_key, present_value = self.presents[-2:]
        if self.form == "attention":
            outputs = [f"attended.{layer}", present_key, present_value]
            inputs = [q, k, v, "", past_key, past_value]
            return self.add_named(
                "Attention", inputs, outputs, is_causal=1, q_num_heads=s.heads, kv_num_heads=s.keys
            )
        if self.form == "grouped":
            inputs = [q, k, v, past_key, past_value, self.lengths, self.total]
            outputs = [f"attended.{layer}", present_key, present_value]
            return self.add_named(
                "GroupQueryAttention", [*inputs, *self.rotations], outputs, num_heads=s.heads,
                kv_num_heads=s.keys, do_rotary=int(bool(self.rotations)),
            )  # fmt: skip
        q = self.split_heads(q, s.heads)
        k, v = self.split_heads(k, s.keys), self.split_heads(v, s.keys)
        if self.tables:
            q, k = self.rotate(q), self.rotate(k)
        k = self.add_named("Concat", [past_key, k], [present_key], axis=-2)
        v = self.add_named("Concat", [past_value, v], [present_value], axis=-2)
        if s.keys < s.heads:
            k, v = self.repeat(k), self.repeat(v)
        turned = self.add_op("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.add_op("Mul", self.add_op("MatMul", q, turned), self.add_number(s.head**-0.5))
        p = self.add_op("Softmax", self.add_op("Add", scores, self.mask), axis=-1)
        y = self.add_op("Transpose", self.add_op("MatMul", p, v), perm=[0, 2, 1, 3])
        return self.add_op("Reshape", y, self.add_integers([0, 0, s.width]))

    def rotate(self, x: str) -> str:
        """Rotate the halves of heads, as transformers writes it."""
        half = self.sizes.head // 2
        sizes = self.add_integers([half, half])
        left, right = self.add_ops("Split", 2, x, sizes, axis=3)
        turned = self.add_op("Concat", self.add_op("Neg", right), left, axis=3)
        cos, sin = self.tables
        return self.add_op("Add", self.add_op("Mul", x, cos), self.add_op("Mul", turned, sin))

    def repeat(self, x: str) -> str:
        """Repeat heads of keys or values for the heads of queries, as transformers writes it."""
        s = self.sizes
        total = self.add_op("Shape", x, start=2, end=3)
        batch = self.add_op("Shape", x, start=0, end=1)
        wide = self.add_op("Unsqueeze", x, self.add_integers([2]))
        fixed = [self.add_integers([v]) for v in (s.keys, s.heads // s.keys, s.head)]
        shape = self.add_op("Concat", batch, fixed[0], fixed[1], total, fixed[2], axis=0)
        heads = self.add_integers([s.heads])
        flat = self.add_op("Concat", batch, heads, total, fixed[2], axis=0)
        return self.add_op("Reshape", self.add_op("Expand", wide, shape), flat)

    def prepare(self, rotates: bool) -> None:
        """Add what all layers share: masks, lengths, tables of rotations."""
        s = self.sizes
        self.tables: tuple[str, ...] = ()
        self.rotations: list[str] = []
        if rotates:
            steps = 1e6 ** (-np.arange(0, s.head, 2) / s.head)
            angles = np.outer(np.arange(s.positions), steps).astype(np.float32)
            if self.form == "grouped":
                self.rotations = [
                    self.add_constant("cos", np.cos(angles)),
                    self.add_constant("sin", np.sin(angles)),
                ]
            else:
                inverse = self.add_constant("inverse", steps.astype(np.float32)[None, None])
                places = self.add_op("Cast", "position_ids", to=1)
                places = self.add_op("Unsqueeze", places, self.add_integers([2]))
                half = self.add_op("Mul", places, inverse)
                whole = self.add_op("Concat", half, half, axis=-1)
                self.tables = tuple(
                    self.add_op("Unsqueeze", self.add_op(op, whole), self.add_integers([1]))
                    for op in ("Cos", "Sin")
                )
        if self.form == "concat":
            self.add_mask()
        elif self.form == "attention":
            del self.inputs["attention_mask"]
        else:
            count = self.add_op("ReduceSum", "attention_mask", self.add_integers([1]), keepdims=0)
            self.lengths = self.add_op(
                "Cast", self.add_op("Sub", count, self.add_integers(1)), to=6
            )
            total = self.add_op(
                "Gather", self.add_op("Shape", "attention_mask"), self.add_integers(1)
            )
            self.total = self.add_op("Cast", total, to=6)

    def finish(self, x: str, words: int) -> Graph:
        """Return the graph whose scores are this value."""
        self.add_named("Identity", [x], ["logits"])
        self.types["logits"] = TensorType("f32", ("batch", "new", words))
        if self.form == "grouped" and self.rotations:
            del self.inputs["position_ids"]
        opsets = {"": 23 if self.form == "attention" else 17, MS: 1}
        return Graph(
            "decoder", self.inputs, ["logits", *self.presents], self.constants, self.nodes, opsets,
            self.types, ir_version=10,
        )  # fmt: skip


def build_gpt2_decoder(
    sizes: DecoderSizes = GPT2_SMALL, form: str = "concat", bits: int = 32, seed: int = 0,
    level: int = 0,
) -> Graph:  # fmt: skip
    """Return a GPT-2 with caches, and random weights; its last layer is the table of words."""
    to = _Decoder(sizes, form, bits, seed, level)
    s = sizes
    table = to.add_weight("wte", s.words, s.width)
    places = to.add_op("Gather", to.add_weight("wpe", s.positions, s.width), "position_ids")
    x = to.add_op("Add", to.add_op("Gather", table, "input_ids"), places)
    to.prepare(rotates=False)
    for i in range(s.layers):
        y = to.add_layer_norm(x, f"h.{i}.ln_1", s.width)
        q, k, v = to.add_ops(
            "Split", 3, to.add_product(y, f"h.{i}.attn.c_attn", s.width, 3 * s.width, True),
            to.add_integers([s.width] * 3), axis=2,
        )  # fmt: skip
        y = to.add_product(
            to.attend_cached(q, k, v, i), f"h.{i}.attn.c_proj", s.width, s.width, True
        )
        x = to.add_op("Add", x, y)
        y = to.add_layer_norm(x, f"h.{i}.ln_2", s.width)
        y = to.add_product(y, f"h.{i}.mlp.c_fc", s.width, s.wide, True)
        y = to.add_product(to.add_gelu(y), f"h.{i}.mlp.c_proj", s.wide, s.width, True)
        x = to.add_op("Add", x, y)
    x = to.add_layer_norm(x, "ln_f", s.width)
    y = to.add_op("MatMul", x, to.add_op("Transpose", table, perm=[1, 0]))
    return to.finish(y, s.words)


def build_qwen2_decoder(
    sizes: DecoderSizes = QWEN2_HALF, form: str = "concat", bits: int = 32, seed: int = 0,
    level: int = 0,
) -> Graph:  # fmt: skip
    """Return a Qwen2 with caches, and random weights.

    Its last layer is the table of words; with 4 bits it has integers of its own.
    """
    to = _Decoder(sizes, form, bits, seed, level)
    s = sizes
    narrow = s.keys * s.head

    def normalise(x: str, name: str) -> str:
        square = to.add_op("ReduceMean", to.add_op("Pow", x, to.add_number(2)), axes=[-1])
        root = to.add_op("Sqrt", to.add_op("Add", square, to.add_number(1e-6)))
        return to.add_op("Mul", to.add_op("Div", x, root), to.add_vector(name, s.width, 1.0))

    table = to.add_weight("embed_tokens", s.words, s.width)
    x = to.add_op("Gather", table, "input_ids")
    to.prepare(rotates=True)
    for i in range(s.layers):
        name = f"layers.{i}"
        y = normalise(x, f"{name}.input_layernorm")
        q = to.add_product(y, f"{name}.q_proj", s.width, s.width, True)
        k = to.add_product(y, f"{name}.k_proj", s.width, narrow, True)
        v = to.add_product(y, f"{name}.v_proj", s.width, narrow, True)
        y = to.add_product(to.attend_cached(q, k, v, i), f"{name}.o_proj", s.width, s.width, False)
        x = to.add_op("Add", x, y)
        y = normalise(x, f"{name}.post_attention_layernorm")
        gate = to.add_product(y, f"{name}.gate_proj", s.width, s.wide, False)
        gate = to.add_op("Mul", gate, to.add_op("Sigmoid", gate))
        up = to.add_product(y, f"{name}.up_proj", s.width, s.wide, False)
        down = to.add_product(
            to.add_op("Mul", gate, up), f"{name}.down_proj", s.wide, s.width, False
        )
        x = to.add_op("Add", x, down)
    x = normalise(x, "norm")
    if bits == 32:
        y = to.add_op("MatMul", x, to.add_op("Transpose", table, perm=[1, 0]))
    else:
        y = to.add_product(x, "lm_head", s.width, s.words, False)
    return to.finish(y, s.words)
