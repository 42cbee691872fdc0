"""Checkpoints to write and compare, and processes that write them."""

from __future__ import annotations

import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

from engine.checkpoint import storage
from engine.checkpoint.storage import Checkpoint, NominalTensor, OptimizerGroup
from tests.support.places import ROOT

DTYPES = [np.dtype(t) for t in ("?", *"bBhHiIqQfd")]


def get_array(value: np.ndarray | NominalTensor) -> np.ndarray:
    """Return the value in a complete checkpoint."""
    assert isinstance(value, np.ndarray)
    return value


def simplify(cp: Checkpoint) -> object:
    """Return the contents as values that compare with ==; floats and arrays bit by bit."""

    def simplify_tensor(value: np.ndarray | NominalTensor) -> object:
        if isinstance(value, NominalTensor):
            return value
        return value.dtype, value.shape, value.tobytes()

    def simplify_number(value: object) -> object:
        return struct.pack("<f", value) if isinstance(value, float) else value

    return (
        {n: simplify_tensor(v) for n, v in cp.trainable.items()},
        {n: simplify_tensor(v) for n, v in cp.frozen.items()},
        cp.nominal,
        {
            g.name: (
                g.step,
                simplify_number(g.initial_learning_rate),
                {p: {m: simplify_tensor(a) for m, a in s.items()} for p, s in g.states.items()},
                dict(g.steps_before),
            )
            for g in cp.optimizer_groups
        },
        {n: (type(v), simplify_number(v)) for n, v in cp.properties.items()},
    )


def make_sample(value: float = 1.0, size: int = 40) -> Checkpoint:
    """A checkpoint with something of everything; all its values depend on `value`."""
    weight = np.full((2, size), value, np.float32)
    return Checkpoint(
        trainable={"fc.weight": weight, "fc.bias": np.full(3, value, np.float64)},
        frozen={"mean": np.full(70, int(value), np.int64), "n": np.array(int(value), np.int8)},
        optimizer_groups=[
            OptimizerGroup("group0", int(value), value, {"fc.weight": {"momentum0": weight * 2}})
        ],
        properties={"epoch": int(value), "loss": value, "note": str(value)},
    )


def run_python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            textwrap.dedent(PATHS) + textwrap.dedent(code),
            *map(str, args),
        ],
        text=True,
        check=False,
    )


PATHS = f"import sys; sys.path[:0] = {[str(ROOT), *(p for p in sys.path if p)]!r}\n"
KINDS = [(old, new) for old in ("inline", "external") for new in ("inline", "external")]
THRESHOLD = {"inline": 1 << 30, "external": 0}


def put(value: float, path: str | Path, kind: str) -> None:
    storage.write(make_sample(value), path, external_threshold=THRESHOLD[kind])
