"""Loops are found in machine code for AArch64, and LLVM's analyser is asked about them."""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import cores
from bench.boards import Cost, list_costs
from bench.machine_code import CORES, PACKAGES, Instruction, find_loops, find_tool
from engine.plan.plan import KernelSpec

TOOLS = ("aarch64-linux-gnu-objdump", "llvm-mca-19")
needs_llvm = pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {PACKAGES}")


def code(*lines: str) -> list[Instruction]:
    """Instructions at the addresses 0, 4, 8 and so on."""
    return [Instruction(4 * i, line, "kernel") for i, line in enumerate(lines)]


def addresses(lines: Sequence[str]) -> list[list[int]]:
    return [[i.address for i in block.code] for block in find_loops(code(*lines))]


def test_innermost_loops_are_found() -> None:
    add = "fmla v0.4s, v1.4s, v2.s[0]"
    inner = ("ldr q1, [x0], #16", add, "subs x1, x1, #1", "b.ne 4")
    assert addresses(["mov x0, x1", *inner, "ret"]) == [[4, 8, 12, 16]]
    outer = ("add x2, x2, #1", "cbnz x2, 0")
    assert addresses(["mov x0, x1", *inner, *outer]) == [[4, 8, 12, 16]]
    assert addresses([*inner[:3], "b.ne 0", *inner[:3], "b.ne 10"]) == [
        [0, 4, 8, 12],
        [16, 20, 24, 28],
    ]
    assert addresses(["bl 40", "b.ne 0"]) == []
    (block,) = find_loops(code("mov x0, x1", *inner))
    assert (block.multiply_adds, block.vector_memory, block.vectors) == (1, 1, 0.5)


def test_a_tool_that_is_missing_is_named_with_its_package() -> None:
    with pytest.raises(SystemExit, match="no-such-tool is missing: apt-get install llvm-19 "):
        find_tool("no-such-tool")


@needs_llvm
def test_products_of_16_bits_do_more_in_a_cycle() -> None:
    rows = {(row[0], row[1]): float(str(row[-1])) for row in cores.measure_factors(
        ("neoverse-n1", "neoverse-n2"), Namespace()
    )}  # fmt: skip
    assert rows["neoverse-n1", "f16"] > 1.8  # of a vector it does twice as many
    assert rows["neoverse-n2", "bf16"] > 2.5  # `bfdot` alone does twice as many


@needs_llvm
def test_the_product_keeps_the_multiply_adders_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cores, "list_kernels", lambda names: [KernelSpec("gemm", ("f32", 0, 1))])
    assert bench.main(["cores", "--document", str(tmp_path / "page.md")]) == 0
    assert "gemm_f32_0_1" in capsys.readouterr().out
    lines = (tmp_path / "page.md").read_text("utf-8").splitlines()
    at = lines.index("| kernel | cortex-a53 | cortex-a72 | neoverse-n1 |")
    assert lines[at + 2].startswith("| gemm_f32_0_1 | ")
    for core in CORES:
        first, *others = cores.analyse(cores.list_kernels(()), core)["gemm_f32_0_1"]
        assert first.is_product
        assert first.block.multiply_adds >= max(o.block.multiply_adds for o in others)
        assert 0.3 < first.share < 1.01


def test_counts_of_small_batches_go_on_as_a_line() -> None:
    assert Cost(10, 5).extrapolate(Cost(14, 7), 15) == Cost(70, 35)


@needs_llvm
def test_blocks_cost_by_kernel_what_they_take_as_often_as_they_run() -> None:
    """64 multiply-adds on 16 registers, two a cycle; and a block whose code is not known."""
    lines = [f"fmla v{i % 16}.4s, v30.4s, v31.4s" for i in range(64)]
    costs = list_costs({(0, 65): 1000, (4096, 5): 10}, code(*lines, "b.ne 0"))
    assert costs["kernel"].instructions == 65_000
    assert 32_000 <= costs["kernel"].cycles < 35_000
    assert costs[""].instructions == 50
