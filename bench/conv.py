"""Convolutions of known networks: forward, dX and dW, one thread, the kernel alone.

conv            dense ones, direct and by Winograd.  GFLOP/s and percent of the FMA peak count the
                operations of the convolution, so Winograd's algorithm, which computes with fewer,
                can exceed the peak.
conv.depthwise  GB/s of the images that are read and written, each byte once, and percent of what
                this machine's memory gives.  GFLOP/s beside it: windows of 5 may be bound by
                operations.

Times are of the kernels of convolutions, without conversions of layouts.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from statistics import median

from bench.measuring import environment, measure_limits, repeat
from bench.programs import count_operations, load
from bench.rows import Bench, Cells
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.runtime.program import BoundProgram

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
# name: images, channels, size, taps, stride
DEPTHWISE = {
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
DIRECTIONS = {
    "Y": ("Conv", ("x", "w"), ("y",)),
    "dX": ("ConvGrad", ("dy", "x", "w"), ("y",)),
    "dW": ("ConvGrad", ("dy", "x", "w"), ("", "y")),
}

Layer = tuple[int, int, int, int, int, int, int, int]


def list_layers() -> Mapping[str, tuple[Layer, str, str]]:
    """Return every direction of every dense layer, by each algorithm that it can have."""
    return {
        f"{name}-{what}-{how}": ((n, ci, size, co, taps, pad, stride, 1), what, how)
        for name, (n, ci, size, co, taps, pad, stride) in LAYERS.items()
        for what in DIRECTIONS
        for how in (["direct", "auto"] if (taps, stride) == (3, 1) else ["direct"])
    }


def list_depthwise_layers() -> Mapping[str, tuple[Layer, str, str]]:
    """Return every direction of every depthwise layer."""
    return {
        f"{name}-{what}": ((n, c, size, c, taps, taps // 2, stride, c), what, "auto")
        for name, (n, c, size, taps, stride) in DEPTHWISE.items()
        for what in DIRECTIONS
    }


def make_program(layer: Layer, what: str) -> BoundProgram:
    """Return the program of one direction of a layer, its images stored channels-last."""
    n, ci, size, co, taps, pad, stride, group = layer
    out = (size + 2 * pad - taps) // stride + 1
    op, ins, outs = DIRECTIONS[what]
    types = {
        "x": TensorType("f32", (n, ci, size, size), last=True),
        "w": TensorType("f32", (co, ci // group, taps, taps)),
        "dy": TensorType("f32", (n, co, out, out), last=True),
    }
    attrs = {"pads": [pad] * 4, "strides": [stride] * 2, "group": group}
    node = Node(op, ins, outs, attrs, "" if what == "Y" else "com.microsoft", "layer")
    opsets = {"": 17, "com.microsoft": 1, "engine": 1}
    return load(Graph("layer", {i: types[i] for i in sorted(ins)}, ["y"], {}, [node], opsets))


def measure_kernels(program: BoundProgram, *templates: str) -> float:
    """Return the seconds of the kernels of a program whose templates begin so."""
    plan, watch, times = program.plan, program.make_stopwatch(), list[float]()
    names = {kernel.symbol: kernel.spec.template for kernel in plan.kernels}
    mine = [names[step.kernel].startswith(templates) for step in plan.steps]

    def run() -> None:
        program.run(watch=watch)
        _, _, busy = watch.read()
        times.append(float(busy[0, mine].sum()))

    repeat(run)
    return median(times)


def measure(row: tuple[Layer, str, str], _: Namespace) -> Iterator[Cells]:
    """Yield the row of a dense layer."""
    layer, what, how = row
    with environment(EDGEGRAD_CONVOLUTION=how):
        program = make_program(layer, what)
    took = measure_kernels(program, "conv", "winograd")
    rate = count_operations(program) / took
    templates = {kernel.spec.template for kernel in program.plan.kernels}
    is_winograd = any(template.startswith("winograd") for template in templates)
    chosen = "winograd" if is_winograd else "direct"
    yield chosen, 1e3 * took, rate / 1e9, 100 * rate / measure_limits().flops


def measure_depthwise(row: tuple[Layer, str, str], options: Namespace) -> Iterator[Cells]:
    """Yield the row of a depthwise layer."""
    layer, what = row[:2]
    n, c, size, _, _, _, stride, _ = layer
    program = make_program(layer, what)
    took = measure_kernels(program, "depthwise")
    nbytes = 4 * n * c * (size**2 + ((size - 1) // stride + 1) ** 2)
    rate, flops = nbytes / took, count_operations(program) / took
    share = 100 * rate / measure_limits().find_bandwidth(nbytes)
    yield 1e3 * took, rate / 1e9, share, flops / 1e9


BENCHES = (
    Bench(
        "conv",
        "dense convolutions of known networks: forward, dX and dW",
        list_layers,
        ("algorithm", "ms:.3f", "GFLOP/s:.1f", "% of peak:.0f"),
        measure,
        small="cnn-1-Y-direct",
    ),
    Bench(
        "conv.depthwise",
        "depthwise convolutions of known networks",
        list_depthwise_layers,
        ("ms:.3f", "GB/s:.1f", "% of memory:.0f", "GFLOP/s:.1f"),
        measure_depthwise,
        small="mobilenet-7-Y",
    ),
)
