"""Every matrix product and convolution of a training step, where it runs: time and % of peak.

A row is a product as it stands in the plan of the workload: how it is stored, its batch and its
sizes m, n and k (for convolutions the pixels, the written channels and the length of the sums), how
often it is there, the time of all of them (medians of 20 steps, from `Module.profile`), GFLOP/s,
and percent of the speed of multiply-adds on registers with as many threads.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from bench.programs import Training, written
from bench.rows import Bench, Cells, Option
from engine.kernels.ops.conv.patches import list_jobs
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.call import KernelCall
from engine.tools.benchmark.workloads import WORKLOADS


class Product(NamedTuple):
    """Product of a step: the kernel, matrices of a batch, and sizes of each."""

    kernel: str
    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k


def find_product(call: KernelCall) -> Product | None:
    """Return the product that a call makes; None if it makes none."""
    match call.template.name:
        case "gemm":
            name = "gemm " + "".join("t" if call.flag(at) else "n" for at in (1, 2))
            return Product(name, math.prod(call.batch), call.m, call.n, call.k)
        case "conv":
            jobs = list_jobs(call.jobs)
            rows = sum(q["rows"] for q in jobs)
            depth = sum(q["rows"] * q["depth"] for q in jobs) // rows
            return Product("conv", call.groups, rows, jobs[0]["columns"], depth)
        case "conv_dw" if call.has_w:
            (q,) = list_jobs(call.job)
            return Product("conv_dw", call.groups, call.per_group, q["columns"], q["rows"])
    return None


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the products of a workload, the one that takes longest first, and all of them."""
    for threads in options.threads:
        with written(name) as folder:
            made = Training(folder, threads)
            profile = made.module.profile(made.x, made.y)
        plan = made.module.plan(made.x.shape, made.y.shape)
        specs = {kernel.symbol: kernel.spec for kernel in plan.kernels}
        peak = profile.roofline.flops
        spans: dict[tuple[str, Product], list[float]] = defaultdict(list)
        for time in profile.steps:
            step = plan.steps[time.number]
            spec = specs[step.kernel]
            call = KernelCall(list_templates()[spec.template], spec.params, step.consts)
            if (one := find_product(call)) is not None:
                spans[time.phase, one].append(time.seconds)
        for (phase, p), times in sorted(spans.items(), key=lambda item: -sum(item[1])):
            rate = p.flops * len(times) / sum(times)
            yield threads, phase, *p, len(times), 1e3 * sum(times), rate / 1e9, 100 * rate / peak
        flops = sum(p.flops * len(times) for (_, p), times in spans.items())
        spent = sum(map(sum, spans.values()))
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
