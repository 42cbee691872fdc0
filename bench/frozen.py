"""Memory of processes that train a small part of a model: constants in their file, and copied.

A row each for constants inside the model files, and as external data, which stays in its file; for
making the artifacts, and for three steps.  `anonymous` is what the process alone has at the end,
`file` what it has mapped (libraries as well as weights, which the system may drop), and `peak` the
largest sum of both, in MiB.
`qwen` has the sizes of Qwen2.5-0.5B: random weights of 4 bits in blocks of 32, 256 positions, and
adapters of rank 8 on queries and values, which alone are trained.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bench.measuring import MIB, call_fresh, read_memory, run_for_output
from bench.processes import SCRIPTS
from bench.rows import Bench, Cells
from engine import artifacts
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import MS, TensorType
from engine.tools.benchmark.workload import select_parameters
from engine.tools.benchmark.workloads import WORKLOADS

BLOCK, RANK, STEPS = 32, 8, 3


class _Qwen:
    """Nodes of a decoder with weights of 4 bits."""

    def __init__(self, positions: int, layers: int, width: int, inner: int, heads: int,
                 groups: int, words: int) -> None:  # fmt: skip
        self.positions, self.width, self.words = positions, width, words
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.rng = np.random.default_rng(0)
        self.nodes: list[Node] = []
        self.values: dict[str, np.ndarray] = {}
        angles = np.arange(positions)[:, None] / 10000.0 ** (np.arange(0, self.size, 2) / self.size)
        self.values["cos"], self.values["sin"] = (
            f(angles).astype(np.float32) for f in (np.cos, np.sin)
        )
        self.values["positions"] = np.arange(positions)[None]
        packed, scales = self.add_weights("words", words, width)
        x = self.op(
            "GatherBlockQuantized", packed, "x", scales, domain=MS, bits=4, block_size=BLOCK
        )
        for i in range(layers):
            x = self.add_layer(x, f"l{i}", inner)
        y = self.add_linear(self.add_norm(x, "last"), "head", words, width)
        self.values["flat"] = np.array([-1, words])
        self.nodes.append(Node("Reshape", (y, "flat"), ("scores",), {}, name="scores"))

    def op(self, op: str, *inputs: str, domain: str = "", **attrs: object) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(Node(op, inputs, (name,), attrs, domain, name))
        return name

    def add_weights(self, name: str, rows: int, columns: int) -> tuple[str, str]:
        """Return a matrix of 4 bits, two numbers a byte, and its scales."""
        self.values[f"{name}.q"] = self.rng.integers(0, 256, (rows, columns // 2), np.uint8)
        scale = np.full((rows, columns // BLOCK), 0.2 / columns**0.5, np.float32)
        self.values[f"{name}.s"] = scale
        return f"{name}.q", f"{name}.s"

    def add_linear(self, x: str, name: str, rows: int, columns: int) -> str:
        packed, scales = self.add_weights(name, rows, columns)
        shape = (rows, columns // BLOCK, BLOCK // 2)
        self.values[packed] = self.values[packed].reshape(shape)
        return self.op(
            "MatMulNBits", x, packed, scales, domain=MS, N=rows, K=columns, bits=4,
            block_size=BLOCK,
        )  # fmt: skip

    def add_adapted(self, x: str, name: str, rows: int, columns: int) -> str:
        down = self.rng.standard_normal((columns, RANK)).astype(np.float32) / columns**0.5
        self.values[f"{name}.lora_a"] = down
        self.values[f"{name}.lora_b"] = np.zeros((RANK, rows), np.float32)
        low = self.op("MatMul", self.op("MatMul", x, f"{name}.lora_a"), f"{name}.lora_b")
        return self.op("Add", self.add_linear(x, name, rows, columns), low)

    def add_norm(self, x: str, name: str) -> str:
        self.values[f"{name}.scale"] = np.ones(self.width, np.float32)
        return self.op(
            "SimplifiedLayerNormalization", x, f"{name}.scale", axis=-1, epsilon=1e-6
        )  # fmt: skip

    def add_layer(self, x: str, name: str, inner: int) -> str:
        width, narrow = self.width, self.groups * self.size
        h = self.add_norm(x, f"{name}.n1")
        q, k = (
            self.add_adapted(h, f"{name}.q", width, width),
            self.add_linear(h, f"{name}.k", narrow, width),
        )
        v = self.add_adapted(h, f"{name}.v", narrow, width)
        q, k = (
            self.op("RotaryEmbedding", t, "cos", "sin", "positions", num_heads=n)
            for t, n in ((q, self.heads), (k, self.groups))
        )
        seen = self.op(
            "Attention", q, k, v, q_num_heads=self.heads, kv_num_heads=self.groups, is_causal=1
        )
        x = self.op("Add", x, self.add_linear(seen, f"{name}.o", width, width))
        h = self.add_norm(x, f"{name}.n2")
        gate, up = (self.add_linear(h, f"{name}.{n}", inner, width) for n in ("gate", "up"))
        gate = self.op("Mul", gate, self.op("Sigmoid", gate))
        return self.op(
            "Add", x, self.add_linear(self.op("Mul", gate, up), f"{name}.down", width, inner)
        )

    def make_graph(self) -> Graph:
        inputs = {"x": TensorType("i64", (1, self.positions))}
        graph = Graph("qwen", inputs, ["scores"], self.values, self.nodes, {"": 23, MS: 1})
        graph.types["scores"] = TensorType("f32", (self.positions, self.words))
        return graph


def _build_qwen() -> Graph:
    return _Qwen(256, 24, 896, 4864, 14, 2, 151936).make_graph()


def _build_minilm() -> Graph:
    return WORKLOADS["minilm"].build()


MODELS: dict[str, tuple[Callable[[], Graph], Callable[[Graph], list[str]]]] = {
    "mobilenet_head": (
        WORKLOADS["mobilenet_head"].build,
        lambda g: select_parameters(g, WORKLOADS["mobilenet_head"].trained),
    ),
    "minilm_last": (_build_minilm, lambda g: select_parameters(g, ("l4.", "l5.", "fc."))),
    "qwen": (_build_qwen, lambda g: [n for n in g.initializers if ".lora_" in n]),
}


def write(name: str, folder: Path, external: bool) -> None:
    """Write the artifacts of a model, and a batch."""
    make, trained = MODELS[name]
    graph = make()
    names = trained(graph)
    if name == "qwen":
        batch = graph.inputs["x"].dims
        x, y = np.arange(256)[None] % 1000, np.arange(256)
        assert x.shape == batch
    else:
        x, y = WORKLOADS["minilm" if name == "minilm_last" else name].batch()
    np.savez(folder / "batch.npz", x=x, y=y)
    path = folder / "forward.onnx"
    onnx_io.save_sharing({str(path): graph}, str(path) + ".data")
    del graph
    artifacts.generate_artifacts(
        str(path), names, loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, artifact_directory=folder, frozen_batch_norm=True,
        external_data=external,
    )  # fmt: skip


def measure_held() -> list[float]:
    """Return the memory of this process: anonymous, of files, and the peak of both, in MiB."""
    return [read_memory(field) / MIB for field in ("RssAnon", "RssFile", "VmHWM")]


def make(name: str, folder: Path, external: bool) -> list[float]:
    """Write the artifacts of a model; return the memory of this process."""
    write(name, folder, external)
    return measure_held()


def measure(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield two rows a way; each is a process of its own."""
    for way in ("inside", "external"):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            yield way, "making", *call_fresh(make, name, folder, way == "external"), None
            command = [sys.executable, SCRIPTS / "frozen.py", folder, STEPS]
            run_for_output(command)  # keeps kernels and plans
            reply = json.loads(run_for_output(command))
            sizes = (size / MIB for size in reply["memory"].values())
            yield way, "training", *sizes, "{0:.4f} to {2:.4f}".format(*reply["losses"])


BENCHES = (
    Bench(
        "frozen",
        "memory of training a small part of a model: constants in their file, and copied",
        {name: name for name in MODELS},
        ("constants", "what", "anonymous:.0f", "file:.0f", "peak:.0f", "losses"),
        measure,
    ),
)
