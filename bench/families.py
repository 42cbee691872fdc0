"""Model families exported from library code train as PyTorch trains them.

    EDGEGRAD_BENCH_PEERS=path/to/python python -m bench.families [NAME ...]

The peers' Python needs torch and transformers.  Prints, for each family, exporter and opset, the
largest difference of three training losses (AdamW) from PyTorch's, and exits with 1 where one is
above `TOLERANCE`.
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


def check(path: Path) -> bool:
    """Train one model; print what came out and say whether it is as PyTorch's."""
    with np.load(path.with_suffix(".npz")) as file:
        data = dict(file)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            is_training = path.stem.endswith("train")
            found = losses(onnx.load(path), data, Path(folder), is_training=is_training)
        except EngineError as error:
            print(f"{path.stem:32} {type(error).__name__}: {str(error)[:300]}", flush=True)
            return False
    worst = float(np.max(np.abs(np.array(found) - data["losses"])))
    verdict = "" if worst <= TOLERANCE else f"  WRONG: {found} PyTorch {data['losses'].tolist()}"
    seconds = time.perf_counter() - start
    print(f"{path.stem:32} {worst:8.1e} {seconds:6.1f} s{verdict}", flush=True)
    return worst <= TOLERANCE


def main(chosen: list[str]) -> int:
    """Export and check; the exit status."""
    python = switch("BENCH_PEERS")
    if not python:
        raise SystemExit("EDGEGRAD_BENCH_PEERS names no Python with torch and transformers")
    with tempfile.TemporaryDirectory() as name:
        script = Path(__file__).with_name("family_models.py")
        subprocess.run([python, script, name, *chosen], check=True, stderr=subprocess.DEVNULL)
        results = [check(path) for path in sorted(Path(name).glob("*.onnx"))]
    print(f"{sum(results)} of {len(results)} models train as in PyTorch")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
