"""Model families exported from library code train as PyTorch trains them.

    EDGEGRAD_BENCH_PEERS=path/to/python python -m bench.families [NAME ...]
    EDGEGRAD_BENCH_PEERS=path/to/python python -m bench.families --record

The peers' Python needs torch and transformers.  Prints, for each family, exporter and opset, the
largest difference of three training losses (AdamW) from PyTorch's, and exits with 1 where one is
above `TOLERANCE`.  `--record` keeps the models and losses named in `RECORDED` in
tests/data/families, where tests/test_families.py trains them without PyTorch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx

from engine import artifacts
from engine.api import CheckpointState, Module, Optimizer
from engine.errors import EngineError
from engine.runtime.config import switch

TOLERANCE = 1e-4
DATA = Path(__file__).parents[1] / "tests" / "data" / "families"
RECORDED = (  # as different as five can be, by both exporters, in both modes
    "bert-old-14-train",
    "gpt2-new-18-train",
    "lstm_tagger-old-17-eval",
    "unet-old-14-train",
    "vit-old-17-eval",
)


def losses(
    model: onnx.ModelProto, data: dict[str, np.ndarray], folder: Path, *, is_training: bool
) -> list[float]:
    """Three training losses of the engine; what was exported in eval mode keeps its statistics."""
    parameters = set(data["names"].tolist())
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    held = [i for i in model.graph.initializer if i.data_type in floats]
    artifacts.generate_artifacts(
        model,
        requires_grad=[i.name for i in held if i.name in parameters],
        frozen_params=[i.name for i in held if "running" in i.name],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.AdamW(adam_mode=0, eps=1e-6, weight_decay=0.0),
        frozen_batch_norm=not is_training,
        artifact_directory=folder,
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(1e-3)
    inputs = [data[f"in{i}"] for i in range(sum(k.startswith("in") for k in data))]
    found = []
    for _ in range(3):
        found.append(float(np.asarray(module(*inputs, data["target"])).reshape(-1)[0]))
        optimizer.step()
        module.lazy_reset_grad()
    return found


def compare(path: Path, folder: Path) -> tuple[list[float], list[float]]:
    """The engine's and PyTorch's losses of a model; artifacts are written to `folder`."""
    with np.load(path.with_suffix(".npz")) as file:
        data = dict(file)
    found = losses(onnx.load(path), data, folder, is_training=path.stem.endswith("train"))
    return found, data["losses"].tolist()


def check(path: Path) -> bool:
    """Train one model; print what came out and say whether it is as PyTorch's."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found, expected = compare(path, Path(folder))
        except EngineError as error:
            print(f"{path.stem:32} {type(error).__name__}: {str(error)[:300]}", flush=True)
            return False
    worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    verdict = "" if worst <= TOLERANCE else f"  WRONG: {found} PyTorch {expected}"
    seconds = time.perf_counter() - start
    print(f"{path.stem:32} {worst:8.1e} {seconds:6.1f} s{verdict}", flush=True)
    return worst <= TOLERANCE


def record(folder: Path) -> None:
    """Keep what the tests train, without the exporter's traces of its own source lines."""
    DATA.mkdir(exist_ok=True)
    for tag in RECORDED:
        model = onnx.load(folder / f"{tag}.onnx")
        for traced in (model, model.graph, *model.graph.node, *model.graph.value_info):
            del traced.metadata_props[:]
        for node in model.graph.node:
            node.ClearField("doc_string")
        onnx.save(model, DATA / f"{tag}.onnx")
        with np.load(folder / f"{tag}.npz") as file:
            np.savez_compressed(DATA / f"{tag}.npz", **dict(file))


def main(chosen: list[str]) -> int:
    """Export and check, or record; the exit status."""
    records = "--record" in chosen
    if records:
        chosen = [tag.partition("-")[0] for tag in RECORDED]
    python = switch("BENCH_PEERS")
    if not python:
        raise SystemExit("EDGEGRAD_BENCH_PEERS names no Python with torch and transformers")
    with tempfile.TemporaryDirectory() as name:
        script = Path(__file__).with_name("family_models.py")
        subprocess.run([python, script, name, *chosen], check=True, stderr=subprocess.DEVNULL)
        if records:
            record(Path(name))
            return 0
        results = [check(path) for path in sorted(Path(name).glob("*.onnx"))]
    print(f"{sum(results)} of {len(results)} models train as in PyTorch")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
