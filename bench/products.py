"""Every matrix product and convolution of a training step, where it runs: time and % of peak.

    python -m bench.products [--threads N] [WORKLOAD ...]

A row is a product as it stands in the plan of the workload: how it is stored, its batch and its
sizes m, n and k (those of convolutions are the pixels, the channels written and the length of the
sums), how often it is there, the time of all of them (medians of 20 steps, from `Module.profile`),
GFLOP/s, and percent of what multiply-adds on registers alone reach on as many threads.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from engine.api import CheckpointState, Module
from engine.kernels.loops.gemm import GEMM_WORDS
from engine.kernels.ops.conv.convolution import CONV_WORDS
from engine.kernels.ops.conv.patches import JOB
from engine.kernels.ops.conv.weight_gradient import DW_WORDS
from engine.runtime.plan import Step
from engine.tools.workloads import WORKLOADS


class Product(NamedTuple):
    """What a step multiplies: the kernel, matrices of a batch, and sizes of each."""

    kernel: str
    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k


def product(step: Step) -> Product | None:
    """The product that a step makes, None if it makes none."""
    template = step.kernel.split("_f32")[0]
    consts = [int(c) for c in step.consts]
    if template == "gemm":
        g = GEMM_WORDS.unpack(consts[2:])
        b0, b1, b2 = g["batch"]
        name = "gemm " + "".join("t" if c == "1" else "n" for c in step.kernel.split("_")[2:])
        return Product(name, b0 * b1 * b2, g["m"], g["n"], g["k"])
    if template == "conv":
        g = CONV_WORDS.unpack(consts)
        words = g["jobs"]
        jobs = [JOB.unpack(words[i : i + JOB.size]) for i in range(0, len(words), JOB.size)]
        depth = sum(j["rows"] * j["depth"] for j in jobs) // sum(j["rows"] for j in jobs)
        rows = sum(j["rows"] for j in jobs)
        return Product("conv", g["groups"], rows, jobs[0]["columns"], depth)
    if template == "conv_dw":
        g = DW_WORDS.unpack(consts)
        j = JOB.unpack(g["job"])
        if g["has_w"]:
            return Product("conv_dw", g["groups"], g["per_group"], j["columns"], j["rows"])
    return None


def table(name: str, threads: int) -> None:
    """Print the products of a workload, the one that takes longest first."""
    inputs = WORKLOADS[name].batch()
    with tempfile.TemporaryDirectory() as folder:
        WORKLOADS[name].write(Path(folder))
        state = CheckpointState.load_checkpoint(Path(folder) / "checkpoint")
        module = Module(Path(folder) / "training_model.onnx", state, threads=threads)
        profile = module.profile(*inputs)
    steps = module.plan(*(array.shape for array in inputs)).steps
    peak = profile.roofline.flops
    found: dict[tuple[str, Product], list[float]] = defaultdict(list)
    for time in profile.steps:
        made = product(steps[time.number])
        if made is not None:
            found[time.phase, made].append(time.seconds)
    flops = sum(p.flops * len(t) for (_, p), t in found.items())
    spent = sum(map(sum, found.values()))
    print(
        f"{name}, {threads} threads, peak {peak / 1e9:.1f} GFLOP/s: "
        f"{1e3 * profile.seconds:.3f} ms, "
        f"of which products {1e3 * spent:.3f} ms, {100 * flops / spent / peak:.1f} % of peak"
    )
    print("phase    kernel   batch      m      n      k   count       ms   GFLOP/s   % of peak")
    for (phase, p), row in sorted(found.items(), key=lambda item: -sum(item[1])):
        rate = p.flops * len(row) / sum(row)
        print(
            f"{phase:8} {p.kernel:8} {p.batch:5} {p.m:6} {p.n:6} {p.k:6} {len(row):7} "
            f"{1e3 * sum(row):8.3f} {rate / 1e9:9.1f} {100 * rate / peak:11.1f}"
        )


def main() -> None:
    """Print the tables of the workloads named on the command line, of MiniLM if none is."""
    parser = argparse.ArgumentParser(prog="bench.products", description=main.__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    for name in given.workloads or ["minilm"]:
        table(name, given.threads)


if __name__ == "__main__":
    main()
