"""Kernels for other targets: what this CPU can run agrees with its own, all targets compile.

The plainest variant has the narrowest vectors and no fused multiply-add.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from engine.graphs.ir.graph import Graph
from engine.graphs.planner.planner import make_plan
from engine.kernels.binaries.load import get_bitcode, get_object
from engine.kernels.compiler import emit
from engine.kernels.loops.gemm import gemm
from engine.kernels.machine.target import Target
from engine.kernels.ops.conv.few_channels import is_few
from engine.kernels.vector_ir.tile import TURN
from engine.plan.plan import KernelSpec
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases
from engine.tools.dev.cases.case import Case
from engine.tools.trimmed.targets import resolve
from tests.support.harness import run
from tests.support.targets import OTHERS, list_runnable


def first_of_each_op() -> list[Case]:
    """One row an op: enough to meet every kernel's main path."""
    seen: dict[tuple[str, str], Case] = {}
    for case in list_cases():
        seen.setdefault((case.domain, case.op), case)
    return list(seen.values())


def in_turn() -> list[Any]:
    """The first row of each op on each plainer target; in the sample, on one of them in turn."""
    targets = list(list_runnable())
    return [
        pytest.param(
            case,
            target,
            id=f"{case.id}-{target}",
            marks=[pytest.mark.whole] if targets.index(target) != i % len(targets) else [],
        )
        for i, case in enumerate(first_of_each_op())
        for target in targets
    ]


def sliding() -> list[Any]:
    """Convolutions whose kernels slide over pixels, on the plainer targets."""
    rows = [c for c in list_cases() if c.op == "Conv"]
    actual = []
    for case in rows:
        most, least = sorted(OneNode(case).inputs["x1"].shape[:2], reverse=True)
        groups = case.attrs.get("group", 1)
        if least == 1 < groups or is_few(most, least, groups):
            actual.append(case)
    return [
        pytest.param(
            case, target, id=f"{case.id}-{target}", marks=[pytest.mark.whole] if i % 3 else []
        )
        for i, case in enumerate(actual)
        for target in list_runnable()
    ]


@pytest.mark.parametrize(("case", "target"), in_turn())
def test_plainer_variants_agree(case: Case, target: str) -> None:
    one = OneNode(case)
    _agree(one.graph, one, target)


@pytest.mark.parametrize(("case", "target"), sliding())
def test_plainer_gradients_of_windows_agree(case: Case, target: str) -> None:
    one = OneNode(case)
    _agree(backward_of(one)[0], one, target)


def _agree(graph: Graph, one: OneNode, target: str) -> None:
    """The outputs of a graph on a target, on three threads, are those on this machine's own."""
    case = one.case
    expected = run(graph, one.inputs)
    outcome = run(graph, one.inputs, target=list_runnable()[target], threads=3)
    for name, want in expected.items():
        if want.dtype.kind == "f":
            scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
            np.testing.assert_allclose(
                outcome[name], want, rtol=0, atol=2 * case.tol * scale, equal_nan=True
            )
        else:
            np.testing.assert_array_equal(outcome[name], want)


@functools.cache
def kernels_of(target: Target) -> list[KernelSpec]:
    """One kernel spec a template, from the plans of the first cases."""
    actual: dict[str, KernelSpec] = {}
    for case in first_of_each_op():
        one = OneNode(case)
        plan = make_plan(one.graph, {}, target=target, threads=2)
        for spec in plan.specs:
            actual.setdefault(spec.template, spec)
    return list(actual.values())


def parts() -> list[Any]:
    """Each target with a part of the templates; in the sample, each target has another part."""
    return [
        pytest.param(
            name, part, id=f"{name}-{part}", marks=[pytest.mark.whole] if i != part else []
        )
        for i, name in enumerate(OTHERS)
        for part in range(len(OTHERS))
    ]


@pytest.mark.parametrize(("name", "part"), parts())
def test_every_template_compiles_for_every_target(name: str, part: int) -> None:
    """`emit` refuses an object that needs a symbol from outside."""
    others = {"macos-arm64": b"\xcf\xfa\xed\xfe", "windows": b"\x64\x86", "wasm32": b"\0asm"}
    magic = others.get(name.removesuffix("-relaxed"), b"\x7fELF")
    every = [*kernels_of(OTHERS[name]), KernelSpec("launch", ("i64",))]
    for spec in every[part :: len(OTHERS)]:
        assert get_object(spec, OTHERS[name]).startswith(magic), spec


@pytest.mark.parametrize("a_cols", [0, 1])
@pytest.mark.parametrize(
    ("name", "product"), [("wasm32", "mul"), ("wasm32-relaxed", "relaxed_madd")]
)
def test_tiles_of_webassembly_multiply_row_by_row(name: str, product: str, a_cols: int) -> None:
    """An engine keeps this order, and its registers would not hold all factors of A at once."""
    target = resolve(name).target
    spec = KernelSpec(*gemm("f32", a_cols, 0))
    module = llvm.parse_bitcode(get_bitcode(spec, target), llvm.create_context())
    text = emit.make_machine(target).emit_assembly(module)
    for rows in (target.mr, 4):
        symbol = f"tile_f32_{'nt'[a_cols]}_{rows}x{target.nv}x{target.lanes(4)}"
        (code,) = re.findall(rf"^{symbol}:$(.*?)end_function", text, re.DOTALL | re.MULTILINE)
        order = re.findall(rf"v128\.load32_splat|f32x4\.{product}\b", code)
        row = ["v128.load32_splat", *[f"f32x4.{product}"] * target.nv]
        assert order == row * (len(order) // len(row)), symbol
        assert len(order) // len(row) == rows * (TURN + 1)  # a turn, and what is left over
