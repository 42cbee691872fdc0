"""Large models, and the memory that making their artifacts takes.

KIND, of `run`, is what is done between them:

    lora      `Trainer.from_onnx(lora=)`
    full      artifacts that train all parameters, which the checkpoint has then
    adapted   a model with adapters, written; and merged into its weights again
    check     what `edgegrad ops` asks

Files of weights are sparse: they read as zeros, and take no room.  Linux only.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.measuring import anonymous_growth


def make(
    folder: Path, layers: int, side: int, *, inline: bool, seed: int | None = None, gap: int = 0
) -> Path:
    """Write `model.onnx`, layers of x w + b with ReLU; return its path.

    side: the size of the matrices w0, w1, ..., which are zeros, so that the file is sparse.
    inline: whether they are in the file itself; otherwise they are in `model.data` beside it.
    seed: use random numbers instead of zeros.
    gap: bytes before each matrix in `model.data`.
    """
    nodes, tensors, value, at = [], [], "x", 0
    nbytes = side * side * 4
    for i in range(layers):
        w = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[side, side])
        w.data_location = TensorProto.EXTERNAL
        at += gap
        for key, number in (("location", "model.data"), ("offset", at), ("length", nbytes)):
            w.external_data.add(key=key, value=str(number))
        at += nbytes
        b = TensorProto(name=f"b{i}", data_type=TensorProto.FLOAT, dims=[side])
        b.raw_data = bytes(4 * side)
        tensors += [w, b]
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"], name=f"layer{i}"))
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"], name=f"bias{i}"))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [f"v{i}"], name=f"relu{i}"))
        value = f"v{i}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", side]) for n in ("x", value)]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    if inline:
        _write_inline(model, path, side, seed)
        return path
    path.write_bytes(model.SerializeToString())
    with open(folder / "model.data", "wb") as file:
        for values in _draw_matrices(seed, layers, side):
            file.write(bytes(gap))
            file.write(values)
        file.truncate(at)
    return path


def _draw_matrices(seed: int | None, layers: int, side: int) -> list[bytes]:
    if seed is None:
        return []
    rng = np.random.default_rng(seed)
    scale = np.float32(side**-0.5)
    return [
        (rng.standard_normal((side, side), np.float32) * scale).tobytes() for _ in range(layers)
    ]


def _write_inline(model: onnx.ModelProto, path: Path, side: int, seed: int | None) -> None:
    """Write the model with its matrices as `raw_data`, whose zeros are holes in the file.

    The graph is written twice, at first without a matrix: protobuf joins fields that stand twice.
    """
    from engine.graphs.io.weights import encode_varint

    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    wide = [t for t in model.graph.initializer if len(t.dims) == 2]
    small = [t for t in model.graph.initializer if len(t.dims) == 1]
    del rest.graph.initializer[:]
    rest.graph.initializer.extend(small)
    heads = [
        TensorProto(name=t.name, data_type=t.data_type, dims=t.dims).SerializeToString()
        + b"\x4a" + encode_varint(side * side * 4)
        for t in wide
    ]  # fmt: skip
    fields = [b"\x2a" + encode_varint(len(h) + side * side * 4) + h for h in heads]
    values = _draw_matrices(seed, len(wide), side)
    total = sum(map(len, fields)) + len(wide) * side * side * 4
    with open(path, "wb") as file:
        file.write(rest.SerializeToString())
        file.write(b"\x3a" + encode_varint(total))
        for i, field in enumerate(fields):
            file.write(field)
            if values:
                file.write(values[i])
            else:
                file.seek(side * side * 4, 1)
        file.truncate(file.tell())


def run(kind: str, path: Path, folder: Path) -> None:
    """Do what a row measures, with files in a folder."""
    from engine import Trainer, artifacts, lora
    from engine.graphs.io import onnx_io
    from engine.graphs.offline.support import check_support

    if kind == "lora":
        Trainer.from_onnx(path, "mse", "adamw", lora="layer", folder=folder, threads=1)
    elif kind == "full":
        artifacts.generate_artifacts(
            path,
            requires_grad=list(onnx_io.load(path).initializers),
            loss=artifacts.LossType.MSELoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
        )
    elif kind == "adapted":
        folder.mkdir(exist_ok=True)
        lora.adapt(path, "layer").save(folder / "adapted.onnx")
        lora.merge(folder / "adapted.onnx", folder / "merged.onnx")
    else:
        check_support(path)


def measure_growth(kind: str, path: Path, folder: Path) -> int:
    """Return how many bytes the anonymous memory of this process grows at most.

    A small model is done first, so that what is imported does not count.
    """
    with tempfile.TemporaryDirectory() as first:
        run(kind, make(Path(first), 2, 64, inline=False), Path(first) / "out")
    with anonymous_growth() as growth:
        run(kind, path, folder)
    return growth[0]
