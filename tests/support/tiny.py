"""A tiny model and data for tests of trainings: 6 features, 8 hidden units, 3 classes, 20 samples.

All tests of `fit` use its few shapes, so that few kernels and plans are made.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from engine import Trainer
from engine.artifacts import AdamW, CrossEntropyLoss
from engine.base.aliases import Array
from engine.trainer.batch_trainer import BatchTrainer

PLAIN = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,6] x, float[6,8] body.weight, float[8] body.bias, float[8,3] head.weight,
   float[3] head.bias) => (float[N,3] scores) {
    h = MatMul(x, body.weight)
    b = Add(h, body.bias)
    r = Tanh(b)
    s = MatMul(r, head.weight)
    scores = Add(s, head.bias)
}"""
DROPPING = PLAIN.replace(
    "r = Tanh(b)",
    """t = Tanh(b)
    ratio = Constant<value = float {0.5}>()
    on = Constant<value = bool {1}>()
    r, mask = Dropout(t, ratio, on)""",
)
NORMED = PLAIN.replace(
    "r = Tanh(b)",
    "n = BatchNormalization(b, norm.scale, norm.bias, norm.mean, norm.var)\n    r = Tanh(n)",
).replace(
    "float[8,3] head",
    """float[8] norm.scale, float[8] norm.bias, float[8] norm.mean, float[8] norm.var,
    float[8,3] head""",
    1,
)
NAMES = ["body.bias", "body.weight", "head.bias", "head.weight"]

X: Array = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
BAD = np.where(np.arange(6) == 2, np.nan, X).astype(np.float32)  # X with a column of NaN
LABELS: Array = (X[:, :3].argmax(1)).astype(np.int64)
BATCH = 8  # so that the third of three batches has 4 samples


def forward(text: str = PLAIN, seed: int = 1) -> onnx.ModelProto:
    """Return the model of a text with random initializers instead of all its inputs except x."""
    proto = parser.parse_model(re.sub(r"([a-z])\.([a-z])", r"\1__\2", text))  # names have no dots
    rng = np.random.default_rng(seed)
    for node in proto.graph.node:
        node.input[:] = [name.replace("__", ".") for name in node.input]
    for value in list(proto.graph.input)[1:]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        made = (rng.standard_normal(shape) / 2).astype(np.float32)
        made = np.abs(made) if "norm" in value.name else made
        proto.graph.initializer.append(numpy_helper.from_array(made, value.name.replace("__", ".")))
        proto.graph.input.remove(value)
    return proto


def make_trainer(text: str = PLAIN, **options: Any) -> Trainer:
    """A trainer of the model; the same arguments make the same one."""
    options = {"optimizer": AdamW(0.05), "threads": 1, "seed": 7, **options}
    loss = options.pop("loss", None) or CrossEntropyLoss()
    return Trainer.from_onnx(forward(text), loss, **options)


def read_values(trainer: BatchTrainer) -> dict[str, bytes]:
    """The bytes of all parameters."""
    return {name: p.data.tobytes() for name, p in trainer.state.parameters}
