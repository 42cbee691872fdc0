"""Machine code for AArch64 as text: its loops, and their speed by LLVM's analyser.

Needs the Debian packages binutils-aarch64-linux-gnu (or llvm) and llvm-19.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = "llvm-19 binutils-aarch64-linux-gnu"
ITERATIONS = 100

# Cores by the names that LLVM has models for, and the 128-bit multiply-adds that each can begin in
# a cycle.  The model of the in-order A53 is pessimistic about loads: compare versions with it.  The
# N1 is the server sibling of the A76 of a Raspberry Pi 5; the "cortex-a76" is an older core's.
CORES = {"cortex-a53": 1.0, "cortex-a72": 1.0, "neoverse-n1": 2.0}

_LINE = re.compile(r"^\s+([0-9a-f]+):\s+(.+)$")
_SYMBOL = re.compile(r"^([0-9a-f]+) <(.+)>:$")
_BRANCH = re.compile(r"(?:b\.\w+|cbn?z|tbn?z|bl?)\s+(?:.*,\s*)?([0-9a-f]+)$")
_ADDRESS = re.compile(r"^((?:adrp?|ldr\w*)\s+\w+,) (?=[0-9a-f]+$)")
_ENDS = re.compile(r"(?:bl|blr|ret|br)\b")
_REGION = re.compile(r"Code Region - (\S+)\n(.*?)Total Cycles:\s+(\d+)", re.S)


@dataclass(frozen=True)
class Instruction:
    """Instruction: its address, its text without comments, and its symbol."""

    address: int
    text: str
    symbol: str

    @property
    def is_multiply_add(self) -> bool:
        return self.text.startswith(("fmla", "fmls", "fmadd", "fmsub"))

    @property
    def is_vector_memory(self) -> bool:
        return re.match(r"(?:ld|st)\w+\s+.*\b[qv]\d", self.text) is not None

    @property
    def is_vector(self) -> bool:
        return re.search(r"\b[qv]\d", self.text) is not None

    def find_target(self) -> int | None:
        """Address that it jumps to, if it is a jump to one."""
        match = _BRANCH.match(self.text)
        return int(match[1], 16) if match else None


@dataclass(frozen=True)
class Block:
    """Instructions that run repeatedly one after another: an innermost loop."""

    code: tuple[Instruction, ...]

    @property
    def name(self) -> str:
        return f"{self.code[0].address:x}"

    @property
    def multiply_adds(self) -> int:
        return sum(i.is_multiply_add for i in self.code)

    @property
    def vector_memory(self) -> int:
        return sum(i.is_vector_memory for i in self.code)

    @property
    def vectors(self) -> float:
        """The share of instructions that work on vectors."""
        return sum(i.is_vector for i in self.code) / len(self.code)


def find_tool(*names: str) -> str:
    """Return the path of the first of these programs that there is.

    Raises:
        SystemExit: there is none; says which packages to install.
    """
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise SystemExit(f"{names[0]} is missing: apt-get install {PACKAGES}")
    return path


def disassemble(path: Path) -> list[Instruction]:
    """Return the code of an object or program for AArch64."""
    objdump = find_tool("aarch64-linux-gnu-objdump", "llvm-objdump-19", "llvm-objdump")
    command = [objdump, "-d", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code, symbol = [], ""
    for line in text.splitlines():
        if heading := _SYMBOL.match(line):
            symbol = heading[2]
        elif parts := _LINE.match(line):
            plain = re.sub(r"//.*|<.*?>", "", parts[2]).strip()
            code.append(Instruction(int(parts[1], 16), plain, symbol))
    return code


def find_loops(code: Sequence[Instruction]) -> Iterator[Block]:
    """Yield the innermost loops that call nothing, in the order of their ends."""
    at = {i.address: n for n, i in enumerate(code)}
    begin = -1  # of the last loop that was found
    for n, instruction in enumerate(code):
        to = instruction.find_target()
        first = n + 1 if to is None else at.get(to, n + 1)
        if first <= n:
            is_inner, begin = first > begin, max(first, begin)
            body = code[first : n + 1]
            if is_inner and not any(_ENDS.match(i.text) for i in body):
                yield Block(tuple(body))


def find_pass(code: Sequence[Instruction], inner: Block, turns: int) -> Block:
    """Return the instructions of a pass of the loop around an innermost one, which turns so often.

    Jumps over products are taken: they are of what is left over where the inner loop does not fit.
    """
    at = {i.address: n for n, i in enumerate(code)}
    first, last = at[inner.code[0].address], at[inner.code[-1].address]
    jumps = [(at.get(i.find_target() or -1, len(code)), n) for n, i in enumerate(code)]
    around = [(to, n) for to, n in jumps if to < first and last < n]
    begin, end = min(around, key=lambda loop: loop[1] - loop[0])
    body, n = list[Instruction](), begin
    while n <= end:
        to = jumps[n][0]
        if n == first:
            body += inner.code * turns
            n = last
        elif n < to <= end and not n < first < to:
            if any(i.is_multiply_add for i in code[n + 1 : to]):
                n = to - 1
        else:
            body.append(code[n])
        n += 1
    return Block(tuple(body))


def estimate_cycles(blocks: Sequence[Block], core: str) -> list[float]:
    """Cycles of one turn of each block, over many, with all data in the first-level cache.

    The analyser knows no branch predictor: jumps out of the middle of a block are left out.
    """
    if not blocks:
        return []
    mca = find_tool("llvm-mca-19", "llvm-mca-20", "llvm-mca-21", "llvm-mca-22", "llvm-mca")
    lines = []
    for number, block in enumerate(blocks):
        body = [_ADDRESS.sub(r"\1 0x", i.text) for i in block.code[:-1] if i.find_target() is None]
        last = block.code[-1]
        body.append(last.text if last.find_target() is None else _to_label(last.text, number))
        lines += [f"# LLVM-MCA-BEGIN r{number}", f".L{number}:", *body, "# LLVM-MCA-END"]
    with tempfile.NamedTemporaryFile("w", suffix=".s") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        command = [
            mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={core}", f"-iterations={ITERATIONS}",
            "-instruction-info=0", "-resource-pressure=0", file.name,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
    numbers: Mapping[str, float] = {
        name: int(total) / ITERATIONS for name, _, total in _REGION.findall(done.stdout)
    }
    if done.returncode or len(numbers) != len(blocks):
        raise SystemExit(f"{Path(mca).name} -mcpu={core}: {done.stderr.strip()[:500]}")
    return [numbers[f"r{number}"] for number in range(len(blocks))]


def _to_label(text: str, number: int) -> str:
    return re.sub(r"[0-9a-f]+$", f".L{number}", text)
