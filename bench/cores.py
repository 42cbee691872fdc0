"""Speed of the inner loops of kernels on other ARM cores, by LLVM's analyser.

The kernels come from training steps of the workloads.  They are emitted for each core as builds for
its board have them, and their innermost loops are given to llvm-mca, which knows the pipelines of
the core and takes all data to be in the first-level cache.  `cores` has a row for each kernel,
`cores.loops` one for every loop of the kernels whose names begin with --kernels, `cores.factors`
one for each type that matrix products have factors of, integers of 8 bits among them.  Needs the
Debian packages llvm-19 and binutils-aarch64-linux-gnu.
"""

from __future__ import annotations

import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.machine_code import (
    CORES,
    Block,
    disassemble,
    estimate_cycles,
    find_loops,
    find_pass,
    find_tool,
)
from bench.rows import Bench, Cells, Option
from bench.tables import make_markdown
from engine.kernels.binaries.load import OBJECT, get_codes
from engine.kernels.loops.gemm import gemm, gemm_mixed
from engine.kernels.loops.integer_gemm import integer_gemm
from engine.kernels.vector_ir.tile import RUN
from engine.plan.plan import KernelSpec
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.trimmed import plans
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.targets import resolve

BOARDS = {
    "cortex-a53": "raspberrypi3", "cortex-a72": "raspberrypi4", "neoverse-n1": "raspberrypi5"
}  # fmt: skip
NAMES = ("mobilenet", "resnet18", "minilm", "lstm")
VECTOR = 16  # bytes
PRODUCT = 0.3  # share of multiply-adds in the instructions of a loop that is a product's
# Of a 128-bit instruction, in 32 bits; of smull in 16, which sadalp adds.
MULTIPLY_ADDS = {
    "fmla": 4, "bfdot": 8, "bfmmla": 16, "sdot": 16, "usdot": 16, "smmla": 32, "usmmla": 32,
    "smull": 8, "smull2": 8,
}  # fmt: skip
FACTORS = {
    "f32": KernelSpec(*gemm("f32", 0, 0)),
    "i8": KernelSpec(*integer_gemm("u8", "i32")),
    **{
        half: KernelSpec(*gemm_mixed("f32", half, "f32", "f32", half, 0, 0))
        for half in ("bf16", "f16")
    },
}
PAGE = """\
# Inner loops on cores of ARM

Made by `make bench-cores`, which needs the Debian packages llvm-19 and binutils-aarch64-linux-gnu.
These are estimates, not measurements: kernels are emitted for each core, and LLVM's machine-code
analyser says how many cycles their innermost loops take with all data in the first-level cache.
Models of cores are Cortex-A53 (in order, Raspberry Pi 3), Cortex-A72 (Pi 4) and Neoverse-N1, the
sibling of the Cortex-A76 (Pi 5). The model of the A53 is pessimistic about loads; compare versions
with it.

The kernels come from training steps of {workloads}. A cell of a product says
how many of the 128-bit multiply-adds that the core can start per cycle its largest loop does, and
in parentheses the least and the most for its other loops: edges of tiles, remainders of blocks. A
cell of another kernel gives the bytes of vectors that its largest loop loads and stores per cycle.

{table}
"""


@dataclass(frozen=True)
class Loop:
    """Loop of a kernel on a core: its work in one iteration, and its cycles."""

    block: Block
    cycles: float
    peak: float  # multiply-adds in a cycle

    @property
    def share(self) -> float:
        """Of the multiply-adds that the core can begin."""
        return self.block.multiply_adds / self.cycles / self.peak

    @property
    def bytes(self) -> float:
        """Of vectors, loaded and stored in a cycle."""
        return VECTOR * self.block.vector_memory / self.cycles

    @property
    def is_product(self) -> bool:
        return self.block.multiply_adds >= PRODUCT * len(self.block.code)


def list_kernels(names: Sequence[str]) -> list[KernelSpec]:
    """Return the kernels of training steps of workloads, on one thread."""
    target = resolve(BOARDS["neoverse-n1"]).target
    specs: dict[str, KernelSpec] = {}
    for name in names:
        work = WORKLOADS[name]
        with tempfile.TemporaryDirectory() as folder:
            files = plans.list_artifacts(work.write(Path(folder)))
            made = plans.make_plans(files, target, PlanRequest([work.x[0]])).plans
        for phase in ("train", "optimizer"):
            specs |= {spec.symbol: spec for spec in made[phase].specs}
    return [specs[symbol] for symbol in sorted(specs)]


def analyse(specs: Sequence[KernelSpec], core: str) -> dict[str, list[Loop]]:
    """Return the loops of kernels that work on vectors, by symbol, the one with most work first."""
    blocks: dict[str, list[Block]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.o"
        for symbol, code in get_codes(specs, resolve(BOARDS[core]).target, OBJECT).items():
            path.write_bytes(code)
            inner = find_loops(disassemble(path))
            blocks[symbol] = [b for b in inner if b.vectors >= PRODUCT and b.vector_memory]
    counts = iter(estimate_cycles([b for bodies in blocks.values() for b in bodies], core))
    peak = CORES[core]
    made = {s: [Loop(b, next(counts), peak) for b in bodies] for s, bodies in blocks.items()}
    return {s: sorted(all_loops, key=_make_sort_key, reverse=True) for s, all_loops in made.items()}


def _make_sort_key(loop: Loop) -> tuple[bool, int, int]:
    return loop.is_product, loop.block.multiply_adds, loop.block.vector_memory


def _format_cell(found: Sequence[Loop]) -> str:
    """Return the cell of a kernel on a core."""
    if not found:
        return ""
    first, others = found[0], [loop.share for loop in found[1:] if loop.is_product]
    if not first.is_product:
        return f"{first.bytes:.1f} B"
    rest = f" ({min(others):.0%}–{max(others):.0%})" if others else ""
    return f"{first.share:.0%}{rest}".replace("%", " %")


def list_rows(found: Mapping[str, Mapping[str, list[Loop]]]) -> Iterator[Cells]:
    """Yield products, other kernels, and all elementwise maps in one row; a column is a core.

    found: by core, what `analyse` gives.
    """
    some = next(iter(found.values()))
    has_loops = [s for s in some if all(loops[s] for loops in found.values())]
    maps = [s for s in has_loops if s.startswith("map_")]
    rest = [s for s in has_loops if s not in maps]
    for symbol in sorted(rest, key=lambda s: not some[s][0].is_product):
        yield symbol, *(_format_cell(of[symbol]) for of in found.values())
    if maps:
        speeds = [[of[s][0].bytes for s in maps] for of in found.values()]
        cells = (f"{statistics.median(s):.1f} B ({min(s):.1f}–{max(s):.1f})" for s in speeds)
        yield f"map, {len(maps)} kernels: median", *cells


def analyse_kernels(names: Sequence[str], prefix: str = "") -> dict[str, dict[str, list[Loop]]]:
    """Return the loops of the kernels of workloads, by core and symbol."""
    for tools in (("aarch64-linux-gnu-objdump", "llvm-objdump"), ("llvm-mca-19", "llvm-mca")):
        find_tool(*tools)
    specs = [spec for spec in list_kernels(names) if spec.symbol.startswith(prefix)]
    return {core: analyse(specs, core) for core in CORES}


def measure(names: Sequence[str], _: Namespace) -> Iterator[Cells]:
    """Yield a row for each kernel."""
    return list_rows(analyse_kernels(names))


def measure_loops(names: Sequence[str], options: Namespace) -> Iterator[Cells]:
    """Yield a row for every loop on every core."""
    for core, by_kernel in analyse_kernels(names, options.kernels).items():
        for symbol, kernel_loops in by_kernel.items():
            for loop in kernel_loops:
                block, share = loop.block, 100 * loop.share
                counts = len(block.code), block.multiply_adds, block.vector_memory
                yield core, symbol, block.name, *counts, loop.cycles, share


def measure_factors(names: Sequence[str], _: Namespace) -> Iterator[Cells]:
    """Yield a row for each type of factors on each core, the loop with most work of its product.

    Of float16 it is a whole run: sums of f16, and what adds them to sums of float32.
    """
    for core in names:
        target, least = resolve("aarch64", cpu=core).target, 0.0
        for kind in ("f32", "i8", *target.products):
            spec = FACTORS[kind]
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "kernel.o"
                path.write_bytes(get_codes([spec], target, OBJECT)[spec.symbol])
                code = disassemble(path)
            blocks = [b for b in find_loops(code) if b.vectors >= PRODUCT]
            if kind == "f16":
                inner = max(blocks, key=_count_products)
                steps = _count_products(inner) // (target.mr * target.nv * target.lanes(4))
                blocks = [find_pass(code, inner, RUN // steps)]
            # The last few of a sum have a loop of their own, with as many products in more time.
            counts = zip(map(_count_products, blocks), estimate_cycles(blocks, core), strict=True)
            done, cycles = max(counts, key=lambda pair: (pair[0], -pair[1]))
            least = least or done / cycles
            yield core, kind, done, cycles, done / cycles, done / cycles / least


def _count_products(block: Block) -> int:
    """Count the multiply-adds of elements in a block."""
    halves = sum(i.is_multiply_add and ".8h" in i.text for i in block.code)
    return MULTIPLY_ADDS["fmla"] * halves + sum(
        MULTIPLY_ADDS.get(i.text.split()[0], 0) for i in block.code
    )


def write_page(found: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Write the page of cores."""
    (cells,) = found.values()
    table = make_markdown(["kernel", *CORES], [[str(cell) for cell in row] for row in cells])
    text = PAGE.format(workloads=", ".join(NAMES), table="\n".join(table))
    path.write_text(text, "utf-8")


SUBJECTS = {"usual": NAMES} | {name: (name,) for name in WORKLOADS}
BENCHES = (
    Bench(
        "cores",
        "how fast the inner loops of kernels run on cores of ARM, by LLVM's analyser",
        SUBJECTS,
        ("kernel", *CORES),
        measure,
        usual=("usual",),
        page=write_page,
        document="docs/cores.md",
    ),
    Bench(
        "cores.loops",
        "every loop of some kernels on cores of ARM",
        SUBJECTS,
        ("core", "kernel", "loop", "instructions", "multiply-adds", "vector loads and stores",
         "cycles:.1f", "% of the multiply-adds:.0f"),
        measure_loops,
        usual=("usual",),
        options=(Option("kernels", "", "how the names of the kernels begin"),),
    ),
    Bench(
        "cores.factors",
        "products of float32, of 8-bit integers and of 16-bit floats on cores of ARM",
        {"usual": ("cortex-a72", "neoverse-n1", "neoverse-n2", "neoverse-v1", "neoverse-v2")},
        ("core", "factors", "multiply-adds", "cycles:.1f", "a cycle:.1f", "of float32's:.2f"),
        measure_factors,
        usual=("usual",),
    ),
)  # fmt: skip
