"""LoRA beside training a whole model: what is trained, planned bytes, memory of the process, time.

    python -m bench.lora [--positions N] [--steps N] [--budget BYTES] [MODEL ...]

MODEL is gpt2 (GPT-2 small, float32) or qwen2 (Qwen2.5-0.5B, 4 bits); by default both.  Weights are
random, the batch is one text of 256 words, adapters have rank 8 and stand at queries and values;
GPT-2 has these and the keys in one matrix.  Every training is a process of its own that finds its
plans and kernels in the cache.  `process` is its peak memory as the system counts it, `own` what of
it is no page of a file after the last step: weights of adapted models stay in theirs.  Qwen2.5-0.5B
as a whole, in float32, is planned and not run.  With --budget, as "64 MB", adapted models are
trained once more in so many bytes, those of the weights in their file left aside.

Published: 361 MB, and 136 MB with gradients of its own kind, for LoRA of Qwen2.5-0.5B at 256 words
(MeSP, as its paper counts them).
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.qwen2 import Sizes, qwen2
from engine import artifacts, lora
from engine.errors import EngineError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline import training
from engine.graphs.offline.parameters import parameters
from engine.graphs.planner.pipeline import Planner
from engine.kernels.target import host
from engine.runtime.plan import align
from engine.tools.workloads.pre_norm import gpt2
from engine.trainer.trainer import Trainer

RANK, PIECES, THREADS = 8, 8, 1
REGIONS = ("param", "frozen", "grad", "state", "const", "io", "work")
GPT2: dict[str, int] = {"words": 50257, "layers": 12, "width": 768, "heads": 12}


@dataclass(frozen=True)
class Row:
    """What one training takes.

    regions: bytes by name.  peak, own: of the process, in bytes.  seconds: of a step.
    """

    model: str
    trained: int
    regions: Mapping[str, int]
    peak: int | None = None
    own: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        mb = [f"{self.regions.get(name, 0) / 1e6:8.1f}" for name in REGIONS]
        total = sum(self.regions.values()) / 1e6
        peak, own = ("-" if n is None else f"{n / 1e6:.0f}" for n in (self.peak, self.own))
        took = "-" if self.seconds is None else f"{self.seconds:.2f}"
        return (
            f"{self.model:18} {self.trained:>12,} {' '.join(mb)} {total:8.1f} {peak:>8} {own:>6} "
            f"{took:>6}"
        )


HEAD = " ".join(
    [
        f"{'':18}",
        f"{'trained':>12}",
        *(f"{n:>8}" for n in REGIONS),
        "   total",
        " process",
        "   own",
        "     s",
    ]
)


def language_model(name: str, positions: int, *, quantised: bool = True) -> Graph:
    """A model of this name."""
    if name == "gpt2":
        return gpt2(positions, **GPT2)
    return qwen2(Sizes(), positions, PIECES if quantised else 1, quantised)


def write(name: str, folder: Path, positions: int, *, adapts: bool) -> None:
    """Write the artifacts and a batch of a training."""
    graph = language_model(name, positions)
    path = folder / "forward.onnx"
    if adapts:
        pattern = r"\.qkv\." if name == "gpt2" else r"self_attn\.(q|v)_proj"
        lora.adapt(graph, lora.Lora(pattern, rank=RANK)).save(path)
    else:
        onnx_io.save(graph, path)
    words = graph.initializers["words.w" if name == "gpt2" else "model.embed_tokens.weight"].shape[
        0
    ]
    batch = np.random.default_rng(0).integers(0, words, (2, positions))
    np.savez(folder / "batch.npz", x=batch[:1], y=batch[1])
    artifacts.generate_artifacts(
        path,
        requires_grad=lora.parameters(path) if adapts else parameters(graph),
        loss=artifacts.LossType.CrossEntropyLoss if name == "gpt2" else None,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )


def trained(folder: Path, steps: int, budget: str | None) -> Row:
    """Train artifacts here, and tell what it took."""
    trainer = Trainer(folder, threads=THREADS, memory_budget=budget)
    with np.load(folder / "batch.npz") as file:
        batch = file["x"], file["y"]
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        trainer.step(*batch)
        times.append(time.perf_counter() - begin)
    memory, state = trainer.module._memory, trainer.state
    plans = [program.plan for program in memory.programs.values()]
    names = ("param", "grad", "state")
    found = {name: state.regions[name].nbytes for name in names if name in state.regions}
    found |= {"frozen": memory.frozen.nbytes, "work": memory.work.nbytes, "io": memory.io.nbytes}
    found["const"] = sum(plan.region_bytes("const") for plan in plans)
    count = sum(state.slots[name].size for name in state.trainable_names())
    name = f"{folder.name} {budget or ''}".strip()
    return Row(name, count, found, _bytes("VmHWM"), _bytes("RssAnon"), median(times[1:] or times))


def _bytes(field: str) -> int:
    """What Linux tells of the memory of this process."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.partition(f"{field}:")[2].split()[0]) * 1024


def planned_whole(positions: int) -> Row:
    """Qwen2.5-0.5B trained whole in float32, by its plan; its weights are zeros, never read."""
    graph = language_model("qwen2", positions, quantised=False)
    names = [n for n in parameters(graph) if n not in ("cos", "sin")]
    sizes = [align(4 * graph.initializers[n].size) for n in names]
    count = sum(graph.initializers[n].size for n in names)
    made = training.make_artifacts(graph, training.Choice(tuple(names), ()), None, []).training
    shapes = {n: t.dims for n, t in made.inputs.items()}
    loss = made.outputs[:1]
    plan = Planner(made, target=host(), threads=THREADS, outputs=loss).plan(shapes)
    total = sum(sizes)
    found = {"param": total, "grad": total, "state": 2 * total, "work": plan.region_bytes("work")}
    return Row("qwen2 whole", count, found)


def measured(
    name: str, positions: int, steps: int, *, adapts: bool, budgets: Sequence[str] = ("",)
) -> Iterator[Row]:
    """Trainings in processes of their own, each after one that has filled the caches."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, f"{name} {'LoRA' if adapts else 'whole'}")
        folder.mkdir()
        write(name, folder, positions, adapts=adapts)
        gc.collect()
        for budget in budgets:
            command = [sys.executable, "-m", "bench.lora", "--run", str(folder)]
            command += ["--budget", budget] if budget else []
            said = ""
            for count in (1, steps):
                words = [*command, "--steps", str(count)]
                done = subprocess.run(words, capture_output=True, text=True)
                if done.returncode:
                    raise EngineError(f"{folder.name}: {done.stderr[-2000:]}")
                said = done.stdout.splitlines()[-1]
            found: dict[str, Any] = json.loads(said)
            yield Row(**found)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row a training; see the head of this file."""
    parser = argparse.ArgumentParser(prog="python -m bench.lora")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="gpt2 or qwen2")
    parser.add_argument("--positions", type=int, default=256, metavar="N")
    parser.add_argument("--steps", type=int, default=4, metavar="N")
    parser.add_argument("--budget", metavar="BYTES", help='a further training, as "64 MB"')
    parser.add_argument("--run", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.run:
        print(json.dumps(asdict(trained(args.run, args.steps, args.budget))))
        return 0
    print(f"megabytes, {args.positions} words, {THREADS} thread\n{HEAD}")
    for name in args.models or ("gpt2", "qwen2"):
        if name == "qwen2":
            print(planned_whole(args.positions), flush=True)
        else:
            for row in measured(name, args.positions, args.steps, adapts=False):
                print(row, flush=True)
        budgets = ["", *([args.budget] if args.budget else [])]
        for row in measured(name, args.positions, args.steps, adapts=True, budgets=budgets):
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
