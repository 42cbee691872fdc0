"""Every matrix product and convolution of a training step, where it runs: time and % of peak.

A row is a product as it stands in the plan of the workload: how it is stored, its batch and its
sizes m, n and k (those of convolutions are the pixels, the channels written and the length of the
sums), how often it is there, the time of all of them (medians of 20 steps, from `Module.profile`),
GFLOP/s, and percent of what multiply-adds on registers alone reach on as many threads.
"""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from bench.programs import Training, written
from bench.rows import Bench, Cells, Option
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


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the products of a workload, the one that takes longest first, and all of them."""
    for threads in options.threads:
        with written(name) as folder:
            made = Training(folder, threads)
            profile = made.module.profile(made.x, made.y)
        steps = made.module.plan(made.x.shape, made.y.shape).steps
        peak = profile.roofline.flops
        found: dict[tuple[str, Product], list[float]] = defaultdict(list)
        for time in profile.steps:
            if (one := product(steps[time.number])) is not None:
                found[time.phase, one].append(time.seconds)
        for (phase, p), times in sorted(found.items(), key=lambda item: -sum(item[1])):
            rate = p.flops * len(times) / sum(times)
            yield threads, phase, *p, len(times), 1e3 * sum(times), rate / 1e9, 100 * rate / peak
        flops = sum(p.flops * len(times) for (_, p), times in found.items())
        spent = sum(map(sum, found.values()))
        empty = [None] * 6
        yield threads, "all", *empty, 1e3 * spent, flops / spent / 1e9, 100 * flops / spent / peak
        yield threads, "whole step", *empty, 1e3 * profile.seconds, None, None


BENCHES = (
    Bench(
        "products",
        "every matrix product and convolution of a training step, in place",
        {name: name for name in WORKLOADS},
        ("threads", "phase", "kernel", "batch", "m", "n", "k", "count", "ms:.3f", "GFLOP/s:.1f",
         "% of peak:.1f"),
        measure,
        usual=("minilm",),
        options=(Option("threads", (1,), "numbers of threads"),),
        small="mlp",
    ),
)  # fmt: skip
