"""The work of steps: operations of known models and layers, bytes of what they touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.planner import make_plan
from engine.kernels.analysis.flops import NULL, Task, Use, count_touched, measure_work
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.kernel import Intrinsic
from engine.kernels.vocabulary.op import TensorType
from engine.models.mobilenets import build_mobilenet_v2
from engine.plan.plan import KernelSpec, Mode
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.dev import ship
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases


def operations(graph: Graph, **shapes: tuple[int, ...]) -> int:
    """Multiply-adds of a graph's plan."""
    plan = make_plan(graph, shapes, target=detect_host(), threads=1)
    return sum(step.flops for step in measure_work(plan)) // 2


def intrinsics(function: Callable[..., Any], seen: set[int]) -> set[str]:
    """The names of the intrinsics that a function of a kernel calls, itself or not."""
    if id(function) in seen:
        return set()
    seen.add(id(function))
    used = [cell.cell_contents for cell in function.__closure__ or ()]
    used += [v for n, v in function.__globals__.items() if n in function.__code__.co_names]
    names = {value.name for value in used if isinstance(value, Intrinsic)}
    called = (value for value in used if hasattr(value, "__kernel_inline__"))
    return names.union(*(intrinsics(value, seen) for value in called))


def test_every_kernel_that_multiplies_counts_it() -> None:
    """Those that have a register tile, or dot products of windows; no other has."""
    multiplies = {
        "tile", "dots", "window_dots", "tap_dots", "filter_dots", "filter_tap_dots",
        "integer_tile", "integer_squares", "integer_windows", "block_dot", "block_tile",
        "block_rest",
    }  # fmt: skip
    specs = {spec.template: spec for spec in ship.list_kernels()}
    mixed = KernelSpec("gemm_mixed", ("f32", "bf16", "f32", "bf16", "f32", 0, 0))
    specs[mixed.template] = mixed  # no wheel has it
    names = {
        name
        for name, spec in specs.items()
        if intrinsics(list_templates()[name].build(detect_host(), *spec.params), set()) & multiplies
    }
    declared = {name for name, template in list_templates().items() if template.multiply_adds}
    assert names == declared


@pytest.mark.parametrize(("causal", "pairs"), [(0, 128 * 128), (1, 128 * 129 // 2)])
def test_attention_counts_the_keys_that_are_seen(causal: int, pairs: int) -> None:
    """Two products forward, four backward: what is computed again does not count."""
    batch, heads, rows, width = 2, 3, 128, 8  # fewer scores a head would be products
    inputs = {n: TensorType("f32", (batch, heads, rows, width)) for n in "qkv"}
    node = Node("Attention", tuple("qkv"), ("y",), {"is_causal": causal}, name="attention")
    graph = Graph("one", inputs, ["y"], {}, [node], {"": 23})
    assert operations(graph) == batch * heads * pairs * 2 * width


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    [
        ("mlp", 784 * 500 + 500 * 10),
        ("cnn", 26 * 26 * 32 * 9 + 24 * 24 * 64 * 32 * 9 + 9216 * 128 + 128 * 10),
        # torchvision's models have 1000 classes: 990 outputs more of all inputs of the last layer
        ("mobilenet", 300_774_272 - 990 * 1280),
        ("resnet18", 1_814_073_344 - 990 * 512),
        ("resnet50", 4_089_184_256 - 990 * 2048),
    ],
)
def test_models_have_the_operations_that_are_known_of_them(name: str, multiply_adds: int) -> None:
    workload = WORKLOADS[name]
    assert operations(workload.build(), x=(2, *workload.x[1:])) == 2 * multiply_adds


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 6, 9, 9), (8, 6, 3, 3), {}),
    "stride": ((2, 6, 9, 9), (8, 6, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "groups": ((2, 6, 9, 9), (8, 3, 3, 3), {"group": 2}),
    "few": ((2, 12, 9, 9), (3, 12, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "depthwise": ((2, 6, 9, 9), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    "depthwise stride": ((2, 6, 9, 9), (6, 1, 3, 3), {"group": 6, "strides": [2, 2]}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    x, w, attrs = CONVOLUTIONS[name]
    pads, strides = attrs.get("pads", [0] * 4), attrs.get("strides", [1, 1])
    out = [(x[2 + i] + 2 * pads[i] - w[2 + i]) // strides[i] + 1 for i in range(2)]
    node = Node("Conv", ("x", "w"), ("y",), attrs, name="conv")
    inputs = {"x": TensorType("f32", x), "w": TensorType("f32", w)}
    graph = Graph("one", inputs, ["y"], {}, [node], {"": 17})
    assert operations(graph) == x[0] * out[0] * out[1] * w[0] * w[1] * w[2] * w[3]


def test_recurrent_layers_count_both_products() -> None:
    """Of the inputs of all steps, and of the states of all steps."""
    steps, batch, features, hidden = 5, 3, 4, 8
    weights = {"w": (1, 4 * hidden, features), "r": (1, 4 * hidden, hidden)}
    inputs = {"x": TensorType("f32", (steps, batch, features))}
    node = Node("LSTM", ("x", "w", "r"), ("y",), {"hidden_size": hidden}, name="lstm")
    values = {name: np.zeros(shape, np.float32) for name, shape in weights.items()}
    graph = Graph("one", inputs, ["y"], values, [node], {"": 17})
    assert operations(graph) == steps * batch * 4 * hidden * (features + hidden)


def test_a_table_counts_as_far_as_it_is_read() -> None:
    table = {"words": np.zeros((50_000, 16), np.float32)}
    node = Node("Gather", ("words", "x"), ("y",), {"axis": 0}, name="gather")
    graph = Graph("one", {"x": TensorType("i64", (10,))}, ["y"], table, [node], {"": 17})
    plan = make_plan(graph, {}, target=detect_host(), threads=1)
    (step,) = [
        w for s, w in zip(plan.steps, measure_work(plan), strict=True) if "gather" in s.kernel
    ]
    assert step.flops == 0
    assert step.nbytes < 3 * 10 * 16 * 4


@pytest.mark.parametrize(
    ("kernel", "uses", "expected"),
    [
        ("quantised_rows", {"q": ("r", 800), "index": ("r", 16), "y": ("w", 80)}, {"q": 80}),
        ("scatter_elements", {"index": ("r", 80), "u": ("r", 40), "y": ("u", 20)}, {}),
        ("scatter_nd", {"index": ("r", 16), "u": ("r", 40), "y": ("u", 400)}, {"y": 40}),
        ("gather_grad_rows", {"next": ("r", 16), "dy": ("r", 90), "dx": ("w", 60)}, {"dy": 60}),
    ],
)
def test_what_an_index_chooses_of_is_the_table(
    kernel: str, uses: dict[str, tuple[Mode, int]], expected: dict[str, int]
) -> None:
    """Its signature names it: it is neither the largest operand, nor one of a kernel's name."""
    template = list_templates()[kernel]
    operands = [
        Use(p.name, uses[p.name][0], uses[p.name][1], 1) if p.name in uses else NULL
        for p in template.parameters
        if p.is_pointer
    ]
    task = Task(KernelSpec(kernel, ("f32",)), tuple(operands), ())
    used = {use.name: use for use in operands if use is not NULL}
    sizes = {name: nbytes for name, (_, nbytes) in uses.items()}
    assert count_touched(task, used) == {**sizes, **expected}


def test_every_case_has_work_that_can_be_counted() -> None:
    """A sample of all ops, forward and backward: no kernel's words are misread."""
    rows = list_cases()
    for case in rows[:: max(1, len(rows) // 60)]:
        one = OneNode(case)
        for graph in [one.graph, *([backward_of(one)[0]] if case.grad else [])]:
            plan = make_plan(graph, {}, target=detect_host(), threads=1)
            for step, work in zip(plan.steps, measure_work(plan), strict=True):
                assert work.flops >= 0
                for nbytes, footprint in work.moves:
                    assert 0 < footprint <= nbytes
                    # Steps of a group move the bytes of one of its tiles for each tile.
                    assert step.tiles or nbytes <= 2 * footprint


def test_what_a_group_has_just_written_is_near() -> None:
    """Of MobileNetV2, whose groups read again what they write, tile by tile."""
    plan = make_plan(
        build_mobilenet_v2((3, 96, 96)), {"x": (2, 3, 96, 96)}, target=detect_host(), threads=2
    )
    work = measure_work(plan)
    grouped = [w for s, w in zip(plan.steps, work, strict=True) if s.tiles]
    near = [w for w in grouped if len(w.moves) == 2]
    assert near
    for step in near:
        nbytes, close = step.moves[1]
        assert close < nbytes
    whole = [w for s, w in zip(plan.steps, work, strict=True) if not s.tiles]
    assert all(len(w.moves) <= 1 for w in whole)
