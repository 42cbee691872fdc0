"""Dense convolutions of known networks: forward, dX and dW, one thread, direct and by Winograd.

GFLOP/s and percent of the FMA peak count the operations of the convolution, so Winograd's
algorithm, which computes with fewer, can exceed the peak.  The time is that of the kernels of
convolutions, without what changes layouts.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.pipeline import make_plan
from engine.kernels.compiler.load import addresses
from engine.kernels.target import host
from engine.kernels.vocabulary.op import TensorType
from engine.kernels.work import work
from engine.runtime.arena import allocate
from engine.runtime.program import Program
from engine.runtime.roofline import measure

# name: images, channels, size, filters, size of a filter, padding, stride
LAYERS = {
    "cnn-1": (64, 1, 28, 32, 3, 0, 1),
    "cnn-2": (64, 32, 26, 64, 3, 0, 1),
    "resnet-first": (8, 3, 224, 64, 7, 3, 2),
    "resnet-64": (8, 64, 56, 64, 3, 1, 1),
    "resnet-128-half": (8, 64, 56, 128, 3, 1, 2),
    "resnet-128": (8, 128, 28, 128, 3, 1, 1),
    "resnet-256": (8, 256, 14, 256, 3, 1, 1),
    "resnet-512": (8, 512, 7, 512, 3, 1, 1),
    "resnet50-1x1": (8, 256, 56, 64, 1, 0, 1),
    "vgg-first": (2, 3, 224, 64, 3, 1, 1),
    "mobilenet-first": (8, 3, 224, 32, 3, 1, 2),
    "pictures-last": (2, 64, 112, 3, 3, 1, 1),
    "mask-last": (2, 32, 112, 1, 3, 1, 1),
    "mask-last-5x5": (1, 32, 128, 1, 5, 2, 1),
    "vgg-128": (2, 128, 112, 128, 3, 1, 1),
}
WHAT = {"Y": ("Conv", ("x", "w"), ("y",)), "dX": ("ConvGrad", ("dy", "x", "w"), ("y",)),
        "dW": ("ConvGrad", ("dy", "x", "w"), ("", "y"))}  # fmt: skip


@pytest.fixture(scope="module")
def peak() -> float:
    return measure(1, addresses).flops / 1e9


def layer(name: str, what: str) -> Program:
    """The program of one direction of a layer, its inputs random and stored channels-last."""
    n, ci, size, co, taps, pad, stride = LAYERS[name]
    out = (size + 2 * pad - taps) // stride + 1
    op, ins, outs = WHAT[what]
    types = {
        "x": TensorType("f32", (n, ci, size, size), last=True),
        "w": TensorType("f32", (co, ci, taps, taps)),
        "dy": TensorType("f32", (n, co, out, out), last=True),
    }
    attrs = {"pads": [pad] * 4, "strides": [stride] * 2}
    node = Node(op, ins, outs, attrs, "" if what == "Y" else "com.microsoft", "layer")
    opsets = {"": 17, "com.microsoft": 1, "engine": 1}
    graph = Graph(name, {i: types[i] for i in sorted(ins)}, ["y"], {}, [node], opsets)
    plan = make_plan(graph, {}, target=host(), threads=1)
    program = Program(plan, addresses, {"work": allocate(plan.region_bytes("work"))})
    rng = np.random.default_rng(0)
    for array in program.inputs.values():
        if array.dtype == np.float32:
            array[...] = rng.standard_normal(array.shape)
    return program


def rows() -> list[Any]:
    """Every direction of every layer by each algorithm that it can have."""
    return [
        pytest.param(name, what, how, id=f"{name}-{what}-{how}")
        for name, (*_, taps, _, stride) in LAYERS.items()
        for what in WHAT
        for how in (["direct", "auto"] if (taps, stride) == (3, 1) else ["direct"])
    ]


@pytest.mark.parametrize(("name", "what", "how"), rows())
def bench_conv(
    benchmark: Any, peak: float, monkeypatch: pytest.MonkeyPatch, name: str, what: str, how: str
) -> None:
    monkeypatch.setenv("EDGEGRAD_CONVOLUTION", how)
    program = layer(name, what)
    plan, watch, times = program.plan, program.stopwatch(), []
    templates = {kernel.symbol: kernel.spec.template for kernel in plan.kernels}
    mine = [templates[step.kernel].startswith(("conv", "winograd")) for step in plan.steps]

    def run() -> None:
        program.run(watch=watch)
        _, _, busy = watch.read()
        times.append(float(busy[0, mine].sum()))

    benchmark(run)
    rate = sum(step.flops for step in work(plan)) / statistics.median(times) / 1e9
    chosen = "winograd" if any(t.startswith("winograd") for t in templates.values()) else "direct"
    percent = round(100 * rate / peak)
    benchmark.extra_info |= {"algorithm": chosen, "gflops": round(rate, 1), "percent": percent}
    print(f"\n{name} {what} {chosen}: {rate:.1f} GFLOP/s, {percent} % of {peak:.1f}")
