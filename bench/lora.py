"""LoRA and training a whole model: parameters, planned bytes, memory of the process, time.

Models are gpt2 (GPT-2 small, float32) and qwen2 (Qwen2.5-0.5B, 4 bits).  Weights are random, the
batch is one text of 256 words, adapters have rank 8 and belong to queries and values; GPT-2 has
these and the keys in one matrix.  Every training run is a separate process that finds its plans and
kernels in the cache.  `process` is its peak memory as the system counts it, `own` its part outside
mapped files after the last step: weights of adapted models stay in their files.  Qwen2.5-0.5B as a
whole, in float32, is planned but not run.  With --budget, such as "64 MB", adapted models are also
trained in this number of bytes, not counting weights in their files.

Published: 361 MB, and 136 MB with gradients of its own kind, for LoRA of Qwen2.5-0.5B at 256 words
(MeSP, as its paper counts them).
"""

from __future__ import annotations

import gc
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bench.measuring import MB, call_fresh, read_memory, time_rounds
from bench.qwen2 import Sizes, build_qwen2
from bench.rows import Bench, Cells, Option
from engine import artifacts, lora
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline import training
from engine.graphs.offline.parameters import list_parameters
from engine.graphs.planner.planner import Planner
from engine.kernels.machine.target import detect_host
from engine.models.pre_norm import build_gpt2
from engine.plan.plan import align
from engine.trainer.trainer import Trainer

RANK, PIECES, THREADS = 8, 8, 1
REGIONS = ("param", "frozen", "grad", "state", "const", "io", "work")
GPT2: dict[str, int] = {"words": 50257, "layers": 12, "width": 768, "heads": 12}


@dataclass(frozen=True)
class Row:
    """Memory and time of one training.

    regions: bytes by name.  peak, own: of the process, in bytes.  seconds: of a step.
    """

    model: str
    trained: int
    regions: Mapping[str, int]
    peak: int | None = None
    own: int | None = None
    seconds: float | None = None

    @property
    def cells(self) -> Cells:
        """The cells of the row; bytes in MB."""
        sizes = [self.regions.get(name, 0) for name in REGIONS]
        own = [None if n is None else n / MB for n in (self.peak, self.own)]
        return [
            self.model, self.trained, *(n / MB for n in sizes), sum(self.regions.values()) / MB,
            *own, self.seconds,
        ]  # fmt: skip


def make_language_model(name: str, positions: int, *, quantised: bool = True) -> Graph:
    """Return a model of this name."""
    if name == "gpt2":
        return build_gpt2(positions, **GPT2)
    return build_qwen2(Sizes(), positions, PIECES if quantised else 1, quantised)


def write(name: str, folder: Path, positions: int, *, adapts: bool) -> None:
    """Write the artifacts and a batch of a training run."""
    graph = make_language_model(name, positions)
    path = folder / "forward.onnx"
    if adapts:
        pattern = r"\.qkv\." if name == "gpt2" else r"self_attn\.(q|v)_proj"
        lora.adapt(graph, lora.Lora(pattern, rank=RANK)).save(path)
    else:
        onnx_io.save(graph, path)
    table = "words.weight" if name == "gpt2" else "model.embed_tokens.weight"
    words = len(graph.initializers[table])
    batch = np.random.default_rng(0).integers(0, words, (2, positions))
    np.savez(folder / "batch.npz", x=batch[:1], y=batch[1])
    artifacts.generate_artifacts(
        path,
        requires_grad=lora.parameters(path) if adapts else list_parameters(graph),
        loss=artifacts.LossType.CrossEntropyLoss if name == "gpt2" else None,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )


def train_once(folder: Path, steps: int, budget: str | None) -> Row:
    """Train artifacts here, and tell what it took."""
    trainer = Trainer(folder, threads=THREADS, memory_budget=budget)
    with np.load(folder / "batch.npz") as file:
        batch = file["x"], file["y"]
    times = time_rounds(lambda: trainer.step(*batch), steps, warm_up=0)
    held, state = trainer.learner.session.memory, trainer.state
    plans = [program.plan for program in held.programs.values()]
    names = ("param", "grad", "state")
    sizes = {name: state.regions[name].nbytes for name in names if name in state.regions}
    sizes |= {"frozen": held.frozen.nbytes, "work": held.work.nbytes, "io": held.io.nbytes}
    sizes["const"] = sum(plan.compute_region_bytes("const") for plan in plans)
    count = sum(state.slots[name].size for name in state.trainable_names())
    name = f"{folder.name} {budget or ''}".strip()
    return Row(
        name, count, sizes, read_memory("VmHWM"), read_memory("RssAnon"), median(times[1:] or times)
    )


def plan_whole(positions: int) -> Row:
    """Return the row of Qwen2.5-0.5B trained whole in float32, by its plan; its weights are
    zeros.
    """
    graph = make_language_model("qwen2", positions, quantised=False)
    names = [n for n in list_parameters(graph) if n not in ("cos", "sin")]
    sizes = [align(4 * graph.initializers[n].size) for n in names]
    count = sum(graph.initializers[n].size for n in names)
    made = training.make_artifacts(graph, training.Choice(tuple(names), ()), None, []).training
    shapes = {n: t.dims for n, t in made.inputs.items()}
    loss = made.outputs[:1]
    plan = Planner(made, target=detect_host(), threads=THREADS, outputs=loss).plan(shapes)
    total = sum(sizes)
    region_bytes = {
        "param": total,
        "grad": total,
        "state": 2 * total,
        "work": plan.compute_region_bytes("work"),
    }
    return Row("qwen2 whole", count, region_bytes)


def measure_rows(
    name: str, positions: int, steps: int, *, adapts: bool, budgets: Sequence[str] = ("",)
) -> Iterator[Row]:
    """Trainings in processes of their own, each after one that has filled the caches."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, f"{name} {'LoRA' if adapts else 'whole'}")
        folder.mkdir()
        write(name, folder, positions, adapts=adapts)
        gc.collect()
        for budget in budgets:
            call_fresh(train_once, folder, 1, budget or None)
            yield call_fresh(train_once, folder, steps, budget or None)


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row a training run: of the whole model, with adapters, and within --budget."""
    positions, steps = options.positions, options.steps
    if name == "qwen2":
        yield plan_whole(positions).cells
    else:
        yield from (row.cells for row in measure_rows(name, positions, steps, adapts=False))
    budgets = ["", *([options.budget] if options.budget else [])]
    rows = measure_rows(name, positions, steps, adapts=True, budgets=budgets)
    yield from (row.cells for row in rows)


BENCHES = (
    Bench(
        "lora",
        "LoRA beside training a whole model; memory in MB, one thread",
        {"gpt2": "gpt2", "qwen2": "qwen2"},
        ("training", "trained:,", *(f"{name}:.1f" for name in REGIONS), "total:.1f", "process:.0f",
         "own:.0f", "s:.2f"),
        measure,
        options=(
            Option("positions", 256, "words of the text"),
            Option("steps", 4, "of each training run"),
            Option("budget", "", "a further training in so many bytes, as 64MB"),
        ),
    ),
)  # fmt: skip
