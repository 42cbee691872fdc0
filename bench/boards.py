"""Time of a training step on a Raspberry Pi 5: a model from counts, without measurement.

A program that trains a workload on one thread runs under qemu, whose plugin counts how often each
block of instructions is executed.  llvm-mca says how many cycles a block takes on a Neoverse-N1,
the sibling of the board's Cortex-A76, with its data in the first-level cache.  Counts are straight
lines over the batch size, so small batches are counted (`--counted`) and the line through the first
two goes on to `--batch`; a third tells how straight it is.

The seconds of a kernel are the time of its cycles, shared by `THREADS` cores of `CLOCK`, or the
time to move the bytes of its steps that do not fit into the caches, at `MEMORY` bytes a second,
whichever is longer.  Cache misses of what fits, branch mispredictions, imbalance of threads and the
clock's changes are not in it.

Needs the Debian packages qemu-user, gcc-aarch64-linux-gnu, llvm-19 and binutils-aarch64-linux-gnu.
"""

from __future__ import annotations

import re
import tempfile
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.instructions import Program, build_program, compile_plugin
from bench.machine_code import Block, Instruction, disassemble, estimate_cycles
from bench.rows import Bench, Cells, Option
from engine.errors import InputError
from engine.kernels.analysis.flops import measure_work
from engine.tools.benchmark.workload import Workload
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.trimmed import plans
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.targets import resolve

TARGET, CORE = "raspberrypi5", "neoverse-n1"
THREADS, CLOCK = 4, 2.4e9
MEMORY = 10e9  # bytes a second of all cores, about
CACHES = 2 << 20  # bytes of the third-level cache
HOT = 0.99  # share of the instructions whose blocks are analysed
# Seconds of a whole training step of 16 images of 224x224 by PyTorch on a Raspberry Pi 5, as
# published.
PUBLISHED = {"resnet18": 5.84, "mobilenet": 7.22, "mobilenet_v3": 2.37, "vit": 2.99}
NAMES = (*PUBLISHED, *(f"{name}_head" for name in PUBLISHED))
_BLOCK = re.compile(r"^block ([0-9a-f]+) (\d+) (\d+)$", re.M)

Executed = Mapping[tuple[int, int], int]  # how often, by address and number of instructions


@dataclass(frozen=True)
class Cost:
    """Cost of a kernel: instructions, and cycles of one core."""

    instructions: float
    cycles: float

    def extrapolate(self, other: Cost, at: float) -> Cost:
        """Return the point `at` of the line that begins here at 0 and goes through `other` at 1."""
        return Cost(
            self.instructions + at * (other.instructions - self.instructions),
            self.cycles + at * (other.cycles - self.cycles),
        )


NOTHING = Cost(0, 0)


@dataclass(frozen=True)
class BoardRow:
    """Row of the table.

    bend: how far the third count is from the line through the first two, by itself; None if it was
        not counted.
    seconds: the seconds of a step.  memory_seconds: the part in kernels that wait for memory.
    """

    workload: str
    instructions: float
    cycles: float
    bend: float | None
    nbytes: int
    seconds: float
    memory_seconds: float

    @property
    def cells(self) -> Cells:
        """The cells of the row."""
        bend = None if self.bend is None else 100 * self.bend
        return [
            self.instructions / 1e9, bend, self.instructions / self.cycles, self.nbytes / 1e9,
            self.seconds, 100 * self.memory_seconds / self.seconds, PUBLISHED.get(self.workload),
        ]  # fmt: skip


def count_executed(built: Program, plugin: Path) -> Counter[tuple[int, int]]:
    """Return how often the blocks of one step are executed: counts with a step less counts
    without.
    """
    counts: list[Counter[tuple[int, int]]] = []
    for steps in (0, 1):
        blocks: Counter[tuple[int, int]] = Counter()
        for address, size, times in _BLOCK.findall(built.run(f"{plugin},blocks=on", steps)):
            blocks[int(address, 16), int(size)] += int(times)
        counts.append(blocks)
    counts[1].subtract(counts[0])
    return +counts[1]


def list_costs(found: Executed, code: Sequence[Instruction]) -> dict[str, Cost]:
    """Return the cost of the executed blocks by symbol of the program.

    Blocks that are executed least get as many cycles for an instruction as the others have.
    """
    at = {i.address: n for n, i in enumerate(code)}
    order = sorted(found, key=lambda block: found[block] * block[1], reverse=True)
    total = sum(times * size for (_, size), times in found.items())
    hot, seen = [], 0
    for block in order:
        if seen < HOT * total and block[0] in at:
            hot.append(block)
            seen += found[block] * block[1]
    bodies = [Block(tuple(code[at[a] : at[a] + size])) for a, size in hot]
    turns = dict(zip(hot, estimate_cycles(bodies, CORE), strict=True))
    usual = sum(found[block] * turn for block, turn in turns.items()) / seen
    instructions, spent = defaultdict[str, float](float), defaultdict[str, float](float)
    for (address, size), times in found.items():
        symbol = code[at[address]].symbol if address in at else ""
        instructions[symbol] += times * size
        spent[symbol] += times * turns.get((address, size), usual * size)
    return {symbol: Cost(n, spent[symbol]) for symbol, n in instructions.items()}


def count_moved(folder: Path, batch: int) -> tuple[dict[str, int], int]:
    """Return the bytes beyond the caches by kernel, and the bytes of all steps."""
    target = resolve(TARGET).target
    made = plans.make_plans(
        plans.list_artifacts(folder), target, PlanRequest([batch], THREADS)
    ).plans
    moved_bytes, total = defaultdict[str, int](int), 0
    for phase in ("train", "optimizer"):
        for step, done in zip(made[phase].steps, measure_work(made[phase]), strict=True):
            total += done.nbytes
            moved_bytes[step.kernel] += sum(n for n, memory in done.moves if memory > CACHES)
    return dict(moved_bytes), total


def count_model(workload: Workload, batch: int, counted: Sequence[int]) -> BoardRow:
    """Count, and go on to the batch."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        folder = workload.write(place / workload.name, batch)
        plugin = compile_plugin(place)
        points = []
        for size in counted:
            built = build_program(folder, TARGET, size, place)
            points.append(list_costs(count_executed(built, plugin), disassemble(built.file)))
        large, nbytes = count_moved(folder, batch)
    symbols = set().union(*points)
    step = counted[1] - counted[0]

    def sum_costs(at: float) -> dict[str, Cost]:
        return {
            s: points[0].get(s, NOTHING).extrapolate(points[1].get(s, NOTHING), at) for s in symbols
        }

    bend = None
    for size, point in zip(counted[2:], points[2:], strict=True):
        real = sum(cost.instructions for cost in point.values())
        line = sum(cost.instructions for cost in sum_costs((size - counted[0]) / step).values())
        bend = abs(line - real) / real
    kernel_costs = sum_costs((batch - counted[0]) / step)
    seconds = memory_seconds = 0.0
    for symbol, cost in kernel_costs.items():
        of_core, of_memory = cost.cycles / CLOCK / THREADS, large.get(symbol, 0) / MEMORY
        seconds += max(of_core, of_memory)
        memory_seconds += of_memory if of_memory > of_core else 0
    return BoardRow(
        workload.name,
        sum(cost.instructions for cost in kernel_costs.values()),
        sum(cost.cycles for cost in kernel_costs.values()),
        bend, nbytes, seconds, memory_seconds,
    )  # fmt: skip


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload.

    Raises:
        InputError: fewer than two batches are to be counted.
    """
    if len(options.counted) < 2:
        raise InputError("--counted: expected two batch sizes or more")
    yield count_model(WORKLOADS[name], options.batch, options.counted).cells


BENCHES = (
    Bench(
        "boards",
        "what a training step should take on a Raspberry Pi 5: a model, made of counts",
        {name: name for name in WORKLOADS},
        ("10^9 instructions:.3g", "% off the line:.1f", "instructions a cycle:.2f", "GB moved:.2g",
         "model, s:.3g", "% of it for memory:.0f", "PyTorch, published, s:.2f"),
        measure,
        usual=NAMES,
        options=(
            Option("batch", 16, "samples of a step"),
            Option("counted", (1, 2), "batch sizes that are counted"),
        ),
    ),
)  # fmt: skip
