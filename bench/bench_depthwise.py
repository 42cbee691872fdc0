"""Depthwise convolutions of known networks: forward, dX and dW, one thread.

GB/s, and percent of what this machine's memory gives: of the images that are read and written, each
byte once, with the kernel alone.  GFLOP/s beside it: windows of 5 may be bound by operations.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest

from bench.bench_conv import WHAT
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.pipeline import make_plan
from engine.kernels.compiler.load import addresses
from engine.kernels.target import host
from engine.kernels.vocabulary.op import TensorType
from engine.kernels.work import work
from engine.runtime.arena import allocate
from engine.runtime.program import Program
from engine.runtime.roofline import Roofline, measure

# name: images, channels, size, taps, stride
LAYERS = {
    "mobilenet-112": (8, 32, 112, 3, 1),
    "mobilenet-112-half": (8, 96, 112, 3, 2),
    "mobilenet-56": (8, 144, 56, 3, 1),
    "mobilenet-56-half": (8, 144, 56, 3, 2),
    "mobilenet-28": (8, 192, 28, 3, 1),
    "mobilenet-14": (8, 384, 14, 3, 1),
    "mobilenet-14-half": (8, 576, 14, 3, 2),
    "mobilenet-7": (8, 960, 7, 3, 1),
    "efficientnet-28": (8, 240, 28, 5, 1),
    "efficientnet-28-half": (8, 144, 56, 5, 2),
    "convnext-56": (8, 96, 56, 7, 1),
}


@pytest.fixture(scope="module")
def limits() -> Roofline:
    return measure(1, addresses)


def layer(name: str, what: str) -> tuple[Program, int]:
    """One direction of a layer, its inputs stored channels-last, and the bytes of its images."""
    n, c, size, taps, stride = LAYERS[name]
    out = (size - 1) // stride + 1
    op, ins, outs = WHAT[what]
    types = {
        "x": TensorType("f32", (n, c, size, size), last=True),
        "w": TensorType("f32", (c, 1, taps, taps)),
        "dy": TensorType("f32", (n, c, out, out), last=True),
    }
    attrs = {"pads": [taps // 2] * 4, "strides": [stride] * 2, "group": c}
    node = Node(op, ins, outs, attrs, "" if what == "Y" else "com.microsoft", "layer")
    opsets = {"": 17, "com.microsoft": 1, "engine": 1}
    graph = Graph(name, {i: types[i] for i in sorted(ins)}, ["y"], {}, [node], opsets)
    plan = make_plan(graph, {}, target=host(), threads=1)
    program = Program(plan, addresses, {"work": allocate(plan.region_bytes("work"))})
    rng = np.random.default_rng(0)
    for array in program.inputs.values():
        array[...] = rng.standard_normal(array.shape)
    return program, 4 * n * c * (size * size + out * out)


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", LAYERS)
def bench_depthwise(benchmark: Any, limits: Roofline, name: str, what: str) -> None:
    program, nbytes = layer(name, what)
    plan, watch, times = program.plan, program.stopwatch(), []
    templates = {kernel.symbol: kernel.spec.template for kernel in plan.kernels}
    mine = [templates[step.kernel].startswith("depthwise") for step in plan.steps]

    def run() -> None:
        program.run(watch=watch)
        _, _, busy = watch.read()
        times.append(float(busy[0, mine].sum()))

    benchmark(run)
    seconds = statistics.median(times)
    rate, flops = nbytes / seconds, sum(step.flops for step in work(plan)) / seconds
    percent = round(100 * rate / limits.bandwidth(nbytes))
    benchmark.extra_info |= {"gbs": round(rate / 1e9, 1), "gflops": round(flops / 1e9, 1)}
    benchmark.extra_info["percent"] = percent
    print(
        f"\n{name} {what}: {1e3 * seconds:.3f} ms, {rate / 1e9:.1f} GB/s, {percent} % of memory, "
        f"{flops / 1e9:.1f} GFLOP/s"
    )
