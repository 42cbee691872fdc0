"""Peak memory of whole processes that train five steps, of this engine and of its peers.

With a budget, as 150MB, our training keeps to it.  EDGEGRAD_BENCH_PEERS adds the peers.

`memory.int8` trains the last layer of a model in float32 and of the same model in integers, on one
thread.  `own` is the part of the process that this work adds to Python, NumPy, the package and the
batch.  Its time is the median of the steps.  With a budget, training of integers keeps to it in a
further row; float32 has none.

`memory.builds` plans the same trainings for trimmed builds, which have neither Python nor NumPy,
and runs none: their memory is what the plan says, and their code.

`memory.resident` trains a model by SGD: all layers or the last ones (--last) of the float32 model
and of its integers in place; and the last layer of the integers in float32, where everything else
is frozen.  Normalisations keep their statistics.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.measuring import MIB, call_fresh, run, run_for_output
from bench.processes import SCRIPTS
from bench.rows import Bench, Cells, Option
from bench.steps import USUAL_KINDS, find_peers
from engine.artifacts import SGD, LossType, SparseUpdate, generate_artifacts
from engine.graphs.io import onnx_io
from engine.graphs.offline.head import unfreeze_head
from engine.graphs.offline.integer_training import list_resident
from engine.graphs.offline.parameters import list_parameters
from engine.quantization import Quantization, quantize
from engine.system.config import switch
from engine.tools.benchmark.workload import write_artifacts
from engine.tools.benchmark.workloads import USUAL, WORKLOADS
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.plans import list_artifacts, make_plans
from engine.tools.trimmed.targets import resolve

STEPS = 5
_REGIONS = (
    ("io", "batch"), ("frozen", "frozen"), ("const", "packed"), ("param", "trained"),
    ("grad", "gradients"), ("work", "work"),
)  # fmt: skip


def write(name: str, folder: Path) -> None:
    """Write the artifacts of a workload."""
    WORKLOADS[name].write(folder)


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload."""
    with tempfile.TemporaryDirectory() as folder:
        call_fresh(write, name, Path(folder))
        ours = [sys.executable, SCRIPTS / "first_step.py", folder, STEPS]
        ours += [options.budget] if options.budget else []
        run(ours)  # fills the kernel cache: compiling needs memory too, once
        row: list[float | None] = [run(ours).peak / MIB]
        python = switch("BENCH_PEERS")
        there = {kind for kind, _ in find_peers([python])} if python else set()
        for who in USUAL_KINDS:
            peer = [python, SCRIPTS / "peer.py", who, name, folder, 2]
            row.append(run(peer, f"{STEPS}\n").peak / MIB if who in there else None)
        yield row


def write_heads(name: str, folder: Path, size: int) -> None:
    """Write artifacts that train the last layer of a workload, in float32 and in integers."""
    work, integers = WORKLOADS[name], folder / "int8"
    work.write(folder / "float", size)
    x, y = work.batch(size)
    graph = quantize(onnx_io.to_bytes(work.build()), x).graph
    integers.mkdir()
    np.savez(integers / "batch.npz", x=x, y=y)
    write_artifacts(graph, integers, tuple(unfreeze_head(graph)))


def measure_heads(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each size of a batch and each way: without a budget, and within --budget."""
    for size in options.batch:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            call_fresh(write_heads, name, folder, size)
            for budget in dict.fromkeys(("", options.budget)):
                f_peak, f_time, f_own = train_head(folder / "float", "")
                i_peak, i_time, i_own = train_head(folder / "int8", budget)
                yield (
                    size, budget, f_peak / MIB, i_peak / MIB, i_peak / f_peak, f_own / MIB,
                    i_own / MIB, i_own / f_own, 1e3 * f_time, 1e3 * i_time,
                )  # fmt: skip


def measure_builds(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each size of a batch and type: what a build takes beside its code."""
    target = resolve("native").target
    for size in options.batch:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            call_fresh(write_heads, name, folder, size)
            least = 0.0
            for kind in ("float", "int8"):
                made = make_plans(list_artifacts(folder / kind), target, PlanRequest([size]))
                plan = made.plans["train"]
                sizes = {of: plan.compute_region_bytes(of) for of in dict(_REGIONS)}
                # A build has the constants that its steps read, and no others.
                sizes["frozen"] = sum(b.nbytes for b in plan.buffers if b.region == "frozen")
                total = sum(sizes.values())
                least = least or total
                yield size, kind, *(n / MIB for n in (*sizes.values(), total)), total / least


def write_sides(name: str, folder: Path, size: int, last: int) -> None:
    """Write artifacts of each way in which `memory.resident` trains a model of a workload."""
    work = WORKLOADS[name]
    x, y = work.batch(size)
    forward = onnx_io.to_bytes(work.build())
    sparse = SparseUpdate(last=last)
    in_place = replace(sparse, integers=True)
    sides: dict[str, tuple[bytes, list[str], SparseUpdate | None]] = {
        "float32, all": (forward, list_parameters(onnx_io.load(forward)), None),
        "float32, sparse": (forward, [], sparse),
    }
    int8 = quantize(forward, x)
    for kind, made in (("int8", int8), ("int4", quantize(forward, x, Quantization(weight_bits=4)))):
        model = made.to_bytes()
        sides |= {
            f"{kind}, sparse in place": (model, [], in_place),
            f"{kind}, all in place": (model, list_resident(onnx_io.load(model)), None),
        }
    trained = unfreeze_head(int8.graph)
    sides["int8, frozen but the head"] = onnx_io.to_bytes(int8.graph), trained, None
    for side, (model, names, update) in sides.items():
        generate_artifacts(
            model, names, loss=LossType.CrossEntropyLoss, optimizer=SGD(),
            artifact_directory=folder / side, update=update, frozen_batch_norm=True,
        )  # fmt: skip
        np.savez(folder / side / "batch.npz", x=x, y=y)


def measure_sides(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each size of a batch and each way."""
    for size in options.batch:
        with tempfile.TemporaryDirectory() as place:
            call_fresh(write_sides, name, Path(place), size, options.last)
            for folder in sorted(Path(place).iterdir()):
                peak, seconds, own = train_head(folder, options.budget)
                weights = (folder / "checkpoint").stat().st_size
                yield size, folder.name, weights / MIB, peak / MIB, own / MIB, 1e3 * seconds


def train_head(folder: Path, budget: str) -> tuple[float, float, float]:
    """Return the peak in bytes, the seconds of a step, and the bytes that the training adds."""
    command = [sys.executable, SCRIPTS / "peak.py", folder, 1, STEPS, *([budget] if budget else [])]
    run_for_output(command)  # keeps kernels and plans
    peak, seconds, own = json.loads(run_for_output(command))
    return peak, seconds, own


BENCHES = (
    Bench(
        "memory",
        "peak memory of whole processes that train five steps, in MiB",
        {name: name for name in WORKLOADS},
        ("edgegrad:.0f", *(f"{kind}:.0f" for kind in USUAL_KINDS)),
        measure,
        usual=tuple(USUAL),
        options=(Option("budget", "", "of our plans, as 150MB"),),
        small="mlp",
    ),
    Bench(
        "memory.int8",
        "peak memory in MiB of processes that train the last layer, in float32 and in integers",
        {name: name for name in WORKLOADS if name.endswith("_head")},
        (
            "batch", "budget", "float32:.0f", "int8:.0f", "int8 / float32:.2f", "float32 own:.0f",
            "int8 own:.0f", "own ratio:.2f", "float32 ms:.2f", "int8 ms:.2f",
        ),
        measure_heads,
        usual=("mobilenet_head",),
        options=(
            Option("batch", (8, 32), "sizes of batches"),
            Option("budget", "", "of integers alone, in further rows, as 12MB"),
        ),
        small="mobilenet_v3_head --batch 1",
    ),
    Bench(
        "memory.builds",
        "memory in MiB of builds that train the last layer, in float32 and in integers, but code",
        {name: name for name in WORKLOADS if name.endswith("_head")},
        ("batch", "type", *(f"{title}:.2f" for _, title in _REGIONS), "all:.1f", "ratio:.2f"),
        measure_builds,
        usual=("mobilenet_head",),
        options=(Option("batch", (1, 8), "sizes of batches"),),
        small="mobilenet_v3_head --batch 1",
    ),
    Bench(
        "memory.resident",
        "peak memory in MiB of training float32, frozen integers, and integers in place",
        {name: name for name in USUAL},
        ("batch", "trained", "checkpoint:.1f", "process:.0f", "own:.0f", "ms:.1f"),
        measure_sides,
        usual=("mobilenet",),
        options=(
            Option("batch", (1, 8), "sizes of batches"),
            Option("last", 8, "layers of a sparse update"),
            Option("budget", "", "of all plans, as 100MB"),
        ),
        small="mlp --batch 1 --last 1",
    ),
)  # fmt: skip
