"""Training steps of a trimmed build against the engine's, in turns in one process.

    python -m bench.built [WORKLOAD [THREADS [TURNS]]]

Both run forward, backward and optimizer step on the same data, and the order of the two changes
with every turn.  Prints the medians and the ratio, build by engine.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from engine.api import CheckpointState, Module, Optimizer
from engine.tools.trimmed.build import Options, build
from engine.tools.trimmed.targets import resolve
from engine.tools.workloads import WORKLOADS


def seconds(call: Callable[[], Any]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main(argv: list[str]) -> None:
    """Print one row."""
    name = argv[0] if argv else "mobilenet"
    threads = int(argv[1]) if len(argv) > 1 else 1
    turns = int(argv[2]) if len(argv) > 2 else 40
    workload = WORKLOADS[name]
    x, y = workload.batch()
    with tempfile.TemporaryDirectory() as work:
        folder = workload.write(Path(work) / "artifacts")
        build(folder, Path(work) / "out", Options("net", resolve("native"), [len(x)], threads))
        spec: Any = importlib.util.spec_from_file_location("net", Path(work) / "out" / "net.py")
        net = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(net)
        trainer = net.Trainer(folder / "checkpoint")
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state, threads=threads)
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)

        def ours() -> None:
            module(x, y)
            optimizer.step()
            module.lazy_reset_grad()

        both: list[tuple[Callable[[], Any], list[float]]] = [
            (ours, []), (lambda: trainer.step(x, y), [])
        ]  # fmt: skip
        for turn in range(turns + 2):
            for call, found in both[:: 1 if turn % 2 else -1]:
                took = seconds(call)
                if turn > 1:  # the first two touch the memory
                    found.append(took)
    (_, engine), (_, built) = both
    ratio = median(b / e for b, e in zip(built, engine, strict=True))
    print(
        f"{name}, {threads} threads, {turns} turns: engine {1e3 * median(engine):.1f} ms, "
        f"build {1e3 * median(built):.1f} ms, least {1e3 * min(engine):.1f} and "
        f"{1e3 * min(built):.1f} ms; build / engine {ratio:.3f}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
