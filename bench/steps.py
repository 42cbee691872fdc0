"""Training steps of known models, with other libraries beside them where a Python has them.

It is `edgegrad bench`, and adds for each peer its step and its ratio: the median of its turns over
the median of ours, of processes that take turns.  A Python of --peers has onnxruntime-training-cpu,
torch or both, and is asked which; by default it is EDGEGRAD_BENCH_PEERS.  scripts/peer.py explains
the kinds; ort and torch are the usual ones.  `edgegrad bench --compare` reads what --json writes.

steps.kernels has the kernels of a step, as `edgegrad profile` sums them: what part of their
roofline they reach, and what bounds it, operations or bytes.  Those that take less than --least
percent of the step are left out.

--level holds all sides to an instruction-set level, so that a CPU with AVX-512 stands for one that
has AVX2 alone.  onnxruntime has no switch for that: it cannot take part.
"""

from __future__ import annotations

import math
import subprocess
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.measuring import environment
from bench.processes import SCRIPTS, worker
from bench.programs import written
from bench.rows import THREADS, WRONG, Bench, Cells, Option
from engine.api import CheckpointState, Module, Optimizer
from engine.errors import InputError
from engine.profiling.times import Total
from engine.system import config
from engine.tools.benchmark import measure
from engine.tools.benchmark.energy import find_counters
from engine.tools.benchmark.result import BenchmarkRow, Peer, Result
from engine.tools.benchmark.workloads import USUAL, WORKLOADS
from engine.tools.trimmed.progress import StagePrinter

SCRIPT = SCRIPTS / "peer.py"
KINDS = {  # by the module that a Python must have
    "ort": "onnxruntime.training", "torch": "torch", "torch-plain": "torch",
    "torch-compiled": "torch", "torch-bf16": "torch",
}  # fmt: skip
USUAL_KINDS = ("ort", "torch")
# Variables that hold oneDNN, the loops of PyTorch itself and MKL to a level.
HELD = {
    "x86-64-v3": {
        "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}  # fmt: skip
_ASK = """
import importlib.util, sys
for kind, module in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        print(kind) if importlib.util.find_spec(module) else None
    except ImportError:
        pass
"""


def make_opener(
    python: str, kind: str
) -> Callable[[str, Path, int], AbstractContextManager[measure.Runner]]:
    """Return a function that opens a runner of a kind by a Python; it compiles all that it runs."""

    @contextmanager
    def open_(workload: str, folder: Path, threads: int) -> Iterator[measure.Runner]:
        command = [python, SCRIPT, kind, workload, folder, threads]
        with (
            TemporaryDirectory() as cache,
            worker(command, kind, TORCHINDUCTOR_CACHE_DIR=cache) as made,
        ):
            yield made

    return open_


def find_peers(pythons: Sequence[str], kinds: Sequence[str] = USUAL_KINDS) -> measure.Peers:
    """Return the kinds of peers that some Pythons have, each by the first that has it.

    Raises:
        InputError: one cannot run, or has none.
    """
    installed: dict[str, str] = {}
    for python in pythons:
        words = [word for kind in kinds for word in (kind, KINDS[kind])]
        try:
            done = subprocess.run(
                [python, "-c", _ASK, *words], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise InputError(f"--peers {python}: cannot run it ({error})") from error
        has = done.stdout.split()
        if not has:
            wanted = " nor ".join(dict.fromkeys(KINDS[kind] for kind in kinds))
            raise InputError(f"--peers {python}: has no {wanted}")
        for kind in has:
            installed.setdefault(kind, python)
    return [(kind, make_opener(installed[kind], kind)) for kind in kinds if kind in installed]


@contextmanager
def hold(level: str, kinds: Sequence[str]) -> Iterator[None]:
    """Hold this installation and peers of some kinds to a level; an empty one leaves them alone.

    Raises:
        InputError: peers cannot be held to it.
    """
    if not level:
        yield
        return
    if level not in HELD:
        raise InputError(f"--level {level}: expected one of {', '.join(HELD)}")
    if free := [kind for kind in kinds if KINDS[kind] != "torch"]:
        raise InputError(
            f"--level {level}: {', '.join(free)} uses all that the CPU has; --kinds chooses others"
        )
    with environment(**{config.PREFIX + "LEVEL": level}, **HELD[level]):
        yield


def list_titles(options: Namespace) -> tuple[str, ...]:
    """Return the columns, some of them for each kind of peer; of energy where it is counted."""
    of_peer, own = ["ms:.2f", "ratio:.2f", "start s:.1f"], [*COLUMNS]
    if find_counters():
        of_peer, own = [*of_peer, "J:.4f"], [*own, "J a step:.4f"]
    return (*own, *(f"{kind} {what}" for kind in options.kinds for what in of_peer))


COLUMNS = (
    "batch", "threads", "step ms:.3f", "+- %:.0f", "train/infer:.2f", "GFLOP/s:.1f",
    "% of peak:.0f", "memory MB:.0f", "start s:.2f", "failed",
)  # fmt: skip


def measure_steps(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads, and write all that is known to --json."""
    named = options.peers or [config.switch("BENCH_PEERS")]
    kinds = find_peers(list(filter(None, named)), options.kinds)
    with hold(options.level, [kind for kind, _ in kinds]):
        made = measure.measure(
            [name], options.threads, options.time, options.batch, kinds, StagePrinter()
        )
    if options.json is not None:
        before = options.__dict__.setdefault("made", [])
        before += made.rows
        Result(made.machine, tuple(before)).write(options.json)
    is_metered = bool(find_counters())
    yield from (make_cells(row, options.kinds, is_metered) for row in made.rows)


def make_cells(row: BenchmarkRow, kinds: Sequence[str], is_metered: bool = False) -> Cells:
    """Return the cells of a row; is_metered: whether some are of energy."""
    of_peers = [row.peers.get(kind) for kind in kinds]
    failed = row.failed and (row.failed if math.isfinite(row.step) else f"{WRONG}: {row.failed}")
    return [
        row.batch, row.threads, 1e3 * row.step, 100 * row.spread, row.ratio, row.gflops,
        100e9 * row.gflops / row.peak, row.memory / 1e6, row.start, failed,
        *([row.joules] if is_metered else []),
        *(cell for peer in of_peers for cell in _make_peer_cells(peer, is_metered)),
    ]  # fmt: skip


def _make_peer_cells(peer: Peer | None, is_metered: bool) -> Cells:
    """Return the cells of a peer in a row, which are empty if it took no part."""
    if peer is None:
        return [None] * (3 + is_metered)
    return [1e3 * peer.seconds, peer.ratio, peer.start, *([peer.joules] if is_metered else [])]


def measure_kernels(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each kernel in each phase of a step, the one that takes most time first."""
    with hold(options.level, ()), written(name, options.batch) as folder:
        batch = np.load(folder / "batch.npz")
        for threads in options.threads:
            state = CheckpointState.load_checkpoint(folder / "checkpoint")
            module = Module(folder / "training_model.onnx", state, threads=threads)
            optimizer = Optimizer(folder / "optimizer_model.onnx", module)
            inputs = batch["x"], batch["y"]
            profile = module.profile(*inputs, optimizer=optimizer, repeats=options.repeats)
            for total in profile.by_kernel:
                if 100 * total.share >= options.least:
                    yield threads, *_make_kernel_cells(total, profile.roofline.flops)


def _make_kernel_cells(total: Total, peak: float) -> Cells:
    """Return the cells of a kernel; it is bound by bytes where operations alone take less time."""
    least = total.flops / peak
    bound = "operations" if least > total.limit / 2 else "bytes"
    share = 100 * least / total.seconds if total.flops else None
    return [
        total.name, total.phase, 1e3 * total.seconds, 100 * total.share, share, total.gigabytes,
        100 * total.roofline, bound,
    ]  # fmt: skip


BENCHES = (
    Bench(
        "steps.kernels",
        "kernels of a training step beside what the machine allows",
        {name: name for name in WORKLOADS},
        (
            "threads",
            "kernel",
            "phase",
            "ms:.3f",
            "% of the step:.1f",
            "% of peak:.0f",
            "GB/s:.1f",
            "% of the roofline:.0f",
            "bound",
        ),
        measure_kernels,
        usual=tuple(USUAL),
        options=(
            THREADS,
            Option("batch", 0, "samples of a step; 0: the workload's number"),
            Option("repeats", 12, "runs to take medians over"),
            Option("least", 1.0, "percent of the step of a kernel that has a row"),
            Option("level", "", f"level that kernels are held to, of {', '.join(HELD)}"),
        ),
        small="mlp --threads 1 --batch 2 --repeats 1",
    ),
    Bench(
        "steps",
        "training steps of known models, beside other libraries",
        {name: name for name in WORKLOADS},
        list_titles,
        measure_steps,
        usual=tuple(USUAL),
        options=(
            THREADS,
            Option("time", measure.SECONDS, "seconds of the steps of a row"),
            Option("batch", 0, "samples of a step; 0: the workload's number"),
            Option("peers", (), "Pythons with other libraries"),
            Option("kinds", USUAL_KINDS, f"of {', '.join(KINDS)}"),
            Option("level", "", f"level that all sides are held to, of {', '.join(HELD)}"),
            Option("json", None, "a file for `edgegrad bench --compare`", Path),
        ),
        small="mlp --threads 1 --batch 2 --time 0.01",
    ),
)
