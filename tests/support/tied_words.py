"""A model whose table of words is read first and last, a deeper one, and their data."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine import Trainer
from tests.support.tiny import BATCH

# A table of words that is read forward, backward, and again as the last layer; 9 words are classes.
TIED = """<ir_version: 8, opset_import: ["": 17]>
g (int32[N,4] ids, float[9,6] table, float[6] shift, float[6,6] mix) => (float[N,9] scores) {
    words = Gather(table, ids)
    moved = Add(words, shift)
    t = Tanh(moved)
    ratio = Constant<value = float {0.25}>()
    on = Constant<value = bool {1}>()
    kept, mask = Dropout(t, ratio, on)
    one = ReduceMean<axes = [1], keepdims = 0>(kept)
    mixed = MatMul(one, mix)
    back = Transpose<perm = [1, 0]>(table)
    scores = MatMul(mixed, back)
}"""
IDS = np.random.default_rng(3).integers(0, 9, (BATCH, 4)).astype(np.int32)
WORDS = IDS[:, 0].astype(np.int64)
DEEP = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,6] x, float[6,32] a, float[32,32] b, float[32,32] c, float[32,3] d)
=> (float[N,3] scores) {
    p = MatMul(x, a)
    q = Tanh(p)
    r = MatMul(q, b)
    s = Sigmoid(r)
    t = MatMul(s, c)
    u = Tanh(t)
    scores = MatMul(u, d)
}"""


def read_content(trainer: Trainer) -> tuple[Any, ...]:
    """All that a step may change: parameters, states, and what is counted."""
    state = trainer.state
    regions = {name: state.regions[name].tobytes() for name in ("param", "state")}
    return regions, trainer.steps, state.draws
