"""Workloads and their twins in PyTorch: a check of weights, losses and multiply-adds.

The Python of EDGEGRAD_BENCH_PEERS needs PyTorch.  A row of a workload has its trained parameters,
the multiply-adds of a forward pass, and the losses of training steps; it is WRONG if the two
differ.
"""

from __future__ import annotations

import json
import math
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring import ROOT, run_for_output
from bench.processes import find_peer_python
from bench.programs import Training
from bench.rows import WRONG, Bench, Cells
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.parameters import list_parameters
from engine.graphs.passes.infer import bind, infer
from engine.tools.benchmark.workload import Workload, select_parameters
from engine.tools.benchmark.workloads import WORKLOADS

STEPS = 2
SAMPLES = 2  # of a batch
RATE = 1e-4  # of learning
TOLERANCE = 1e-3  # of a loss, by the first one: AdamW's first step takes rounding for gradients


def list_torch_weights(graph: Graph) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the parameters in the order of their first use, as PyTorch's layers hold them.

    Queries, keys and values of their own layers become the thirds of one; gates of an LSTM change
    their order, and its biases are two.
    """
    trained = set(list_parameters(graph))
    seen: set[str] = set()
    parts: dict[tuple[str, str], np.ndarray] = {}
    for node in graph.nodes:
        for at, name in enumerate(node.inputs):
            if name not in trained or name in seen:
                continue
            seen.add(name)
            value = graph.initializers[name]
            if node.op == "LSTM":
                yield from _reorder_gates(name, value, is_bias=at == 3)
            elif name.rpartition(".")[0].endswith((".q", ".k", ".v")):
                layer, part, end = name.rsplit(".", 2)
                parts[part, end] = value.T
                if (part, end) == ("v", "bias"):
                    for each in ("weight", "bias"):
                        thirds = [parts[third, each] for third in "qkv"]
                        yield f"{layer}.qkv.{each}", np.concatenate(thirds)
            else:
                yield name, value.T if node.op == "MatMul" else value


def _reorder_gates(name: str, value: np.ndarray, is_bias: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Reorder the gates: ONNX has iofc, PyTorch ifgo, where g is c."""
    halves = np.split(value[0], 2) if is_bias else [value[0]]
    for i, half in enumerate(halves):
        blocks = np.split(half, 4)
        yield f"{name}.{i}", np.concatenate([blocks[g] for g in (0, 2, 3, 1)])


def multiply_adds(graph: Graph, x: Sequence[int]) -> int:
    """Return the multiply-adds of products and convolutions of a forward pass, the only ones
    PyTorch counts.

    x: the shape of the input.
    """
    bound = bind(graph, {"x": x})
    types = infer(bound).types

    def count(node: Node) -> int:
        if node.op not in {"Conv", "Gemm", "MatMul"}:
            return 0
        outputs = math.prod(map(int, types[node.outputs[0]].shape))
        a, b = (types[name].shape for name in node.inputs[:2])
        return outputs * (math.prod(map(int, b[1:])) if node.op == "Conv" else int(a[-1]))

    return sum(map(count, bound.nodes))


def compute_losses(folder: Path) -> list[float]:
    """Return the losses of `STEPS` training steps by this engine."""
    made = Training(folder, 1)
    made.optimizer.set_learning_rate(RATE)
    return [made.step() for _ in range(STEPS)]


def compare(work: Workload, python: str) -> tuple[int, int, list[float], str]:
    """Return parameters, multiply-adds and losses of a workload, and how its twin differs."""
    with tempfile.TemporaryDirectory() as name:
        folder = work.write(Path(name), SAMPLES)
        graph = work.build()
        weights: dict[str, Any] = dict(list_torch_weights(graph))
        np.savez(folder / "weights.npz", **weights)
        command = [python, "-m", "bench.twins.steps", work.name, folder, STEPS, RATE]
        theirs = json.loads(run_for_output(command, ROOT))
        ours = compute_losses(folder)
    trained = sum(graph.initializers[p].size for p in select_parameters(graph, work.trained))
    adds = multiply_adds(graph, (SAMPLES, *work.x[1:]))
    is_same = trained == theirs["trained"] and np.allclose(
        ours, theirs["losses"], rtol=0, atol=TOLERANCE * ours[0]
    )
    is_same &= adds == theirs["multiply_adds"] or work.name == "lstm"
    return trained, adds, ours, "" if is_same else f"the twin has {theirs}"


def measure(work: Workload, _: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload."""
    trained, adds, ours, difference = compare(work, find_peer_python())
    verdict = f"{WRONG}: {difference}" if difference else None
    yield trained, adds / 1e6, " ".join(f"{loss:.5f}" for loss in ours), verdict


BENCHES = (
    Bench(
        "same",
        "whether the workloads and their twins in PyTorch are the same models",
        WORKLOADS,
        ("parameters:,", f"M multiply-adds of {SAMPLES} samples:,.1f", "losses", "verdict"),
        measure,
    ),
)
