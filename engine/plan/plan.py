"""The plan: what the planner makes and the runtime runs, as immutable data.

A `Plan` says which kernels run in which order on which bytes.  It is made for concrete shapes and a
number of threads.  It holds no code, and nothing that a C program could not hold.  `str(plan)` is
its text.  `verify` (verify.py) checks it once, when it is made or loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from engine.base.element_types import HALVES

ALIGN = 64  # bytes: one cache line, one AVX-512 register
SHOWN = 5  # values to report, the ones that take most memory

# Inputs of a plan that the runtime fills, in region io.
FAULT = "#fault"  # i64, the words STATUS of context.py
NOISE = "#noise"  # i64, its words RANDOM

# Ports of a plan that trains and updates: what the optimizer reads besides states, whether a loss
# that is not finite holds the update back, and the output that says whether the update was done.
RATE, COUNT, CHECK, DONE = "#learning_rate", "#step", "#check_finite", "#updated"

# The factor of the loss in the backward pass, an input of plans that scale it.
LOSS_SCALE = "#loss_scale"

# The rows of each sample's caches that earlier runs have filled, an input of steps of decoders.
FILLED = "#filled"

# How a step uses an argument: it reads, writes, updates (reads and writes) it, or has it as scratch
# memory; "-" means no argument.
Mode = Literal["r", "w", "u", "s", "-"]
Phase = Literal["fwd", "bwd", "opt"]
PHASES: dict[Phase, str] = {"fwd": "forward", "bwd": "backward", "opt": "optimizer"}  # in words

# Regions whose bytes outlive a run.  The content of the others between two runs is not defined.
PERSISTENT = ("param", "frozen", "grad", "state", "const")
REGIONS = (*PERSISTENT, "io", "work", "made")  # made: what steps that run once have made
UNWRITTEN = ("const", "frozen")  # regions whose bytes no step may change
LASTING = (*UNWRITTEN, "param")  # those that steps which run once may read


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel template and its compile-time parameters, from which a kernel is compiled."""

    template: str
    params: tuple[str | int, ...]

    @property
    def symbol(self) -> str:
        """The linker symbol; long parameters are replaced by a digest of them."""
        text = "_".join(str(p) for p in self.params)
        if len(text) > 24 or not text.replace("_", "").isalnum():
            first = f"{self.params[0]}_" if str(self.params[0]).isalnum() else ""
            text = first + hashlib.sha256(repr(self.params).encode()).hexdigest()[:10]
        return f"{self.template}_{text}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a plan: what is compiled, and what every call of it must pass.

    takes: one text for each parameter of the kernel, pointers first.
        "f32*"          a pointer to elements of f32
        "f32|i32|u32*"  a pointer to elements of one of these types, as kernels take that only
                        move data
        "...*"          any number of further pointers, whose types the step gives (`operands`)
        "i64", "f64"    a number
        "i64[7]"        seven further numbers; the last parameter
        "i64[7+]"       seven or more
        "i64[]"         any number
    """

    spec: KernelSpec
    takes: tuple[str, ...]

    @property
    def symbol(self) -> str:
        """The linker symbol."""
        return self.spec.symbol


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor of a plan: a byte range of one region, in use from step `first` to step `last`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    region: str
    offset: int  # bytes from the region's start
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arg:
    """One pointer argument of a step: a buffer.  Mode "-" and buffer -1 are the null pointer.

    Of a step that runs tile by tile:
    tile: bytes of the buffer that belong to one tile; tile i starts at i times as many.  0 if all
        tiles use the same.
    thread: bytes that each thread has for itself, thread t at t times as many; or 0.  If
        tile == thread != 0, the buffer holds one tile per thread; each tile overwrites the previous
        one.
    """

    buffer: int
    mode: Mode
    tile: int = 0
    thread: int = 0

    def move(self, numbered: int) -> int:
        """Return the bytes by which the pointer moves from one tile to the next.

        numbered: as in its step: the kernel finds the tile from the pointer to the whole.
        """
        if numbered:
            return -self.tile if self.thread else 0
        return self.tile

    def __str__(self) -> str:
        if self.buffer < 0:
            return "null"
        tile = f"+{self.tile}" if self.tile else ""
        return f"{self.mode}:%{self.buffer}{tile}{f'@{self.thread}' if self.thread else ''}"


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One kernel call: `symbol(args..., consts..., tid, nthreads)` on every thread.

    A run of steps may be a group, which runs tile by tile: a thread takes a tile, and calls the
    kernels of all steps on it one after another, before it takes its next one.  So a tile that
    one step writes is in the cache when the next one reads it.  The tiles are shared evenly.
    group: for the first step of a group, its number of steps; otherwise 0.
    tiles: for every step of a group, the number of tiles of its rows; otherwise 0.  The
        pointers are moved to the tile, tid is 0 and nthreads 1.
    numbered: the pointers stay, and the kernel finds the tile as if it were a thread: tid is the
        number of the tile, nthreads how many there are.  The last tile may be shorter.

    again: whether it repeats an earlier step, so that what that made need not be kept.
    alone: thread 0 runs it, in the place of every thread in turn, so nobody is waited for between
        two such steps.  A step in a group is never alone.
    """

    kernel: str  # Kernel.symbol
    args: tuple[Arg, ...]
    consts: tuple[int | float, ...]
    source: str  # name of the ONNX node this step came from
    phase: Phase
    inplace: tuple[
        tuple[int, int], ...
    ] = ()  # positions (written, read) in `args` that may share bytes
    barrier: bool = True  # all threads meet before this step
    operands: tuple[str, ...] = ()  # element types of the arguments that the kernel takes as "...*"
    group: int = 0
    tiles: int = 0
    numbered: bool = False
    again: bool = False
    alone: bool = False

    @property
    def title(self) -> str:
        """The name of its node, with a mark if it repeats an earlier step."""
        return f"{self.source} (again)" if self.again else self.source


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the plan: its ONNX name, its buffer, and the shape it has there."""

    name: str
    buffer: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeptValue:
    """A work value that the forward pass makes and the backward pass reads, so that it is kept.

    buffer: its number.
    made, read: the nodes of the forward steps that write it and of the backward steps that read it,
        each once, in the order of the steps.
    """

    buffer: int
    made: tuple[str, ...]
    read: tuple[str, ...]


class _Sealed:
    """The place of a mark that `verify` alone sets on a plan, which nothing can change after.

    It is not a field: a plan that is made from another one, or comes out of a pickle, has no mark.
    """

    __slots__ = ("_is_verified",)


@dataclass(frozen=True, slots=True)
class Plan(_Sealed):
    """A model made ready to run: steps, and the buffers that they work on.

    target: the set of kernels that it is for, or the CPU where they are compiled for one.
    lower_bound: the most work bytes that live at one step; no placement needs less.
    once: how many steps, the first ones, run when the plan is bound, and again only where
        parameters that they read have changed: what they make lies in region made.
    searched: for a plan within a budget, the ways to save memory that were evaluated for its
        ladder, and how many there may be at most.  It is not kept in files.
    precision: for a plan with a chosen precision, which one and why; for one whose values of 16
        bits are only stored, why; not kept in files.
    """

    name: str
    target: str
    threads: int
    regions: tuple[tuple[str, int], ...]  # bytes of each region this plan uses
    buffers: tuple[Buffer, ...]
    steps: tuple[PlanStep, ...]
    kernels: tuple[Kernel, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: tuple[tuple[int, bytes], ...]  # contents of `const` buffers
    lower_bound: int
    once: int = 0
    searched: tuple[int, int] = field(default=(0, 0), compare=False)
    precision: str = field(default="", compare=False)

    @property
    def specs(self) -> tuple[KernelSpec, ...]:
        """Return the kernels to compile for running the plan."""
        return tuple(k.spec for k in self.kernels)

    def compute_region_bytes(self, region: str) -> int:
        """Return the size of a region in bytes, or 0 if the plan does not use it."""
        return dict(self.regions).get(region, 0)

    @property
    def nbytes(self) -> int:
        """The bytes of all regions: what a budget bounds."""
        return sum(size for _, size in self.regions)

    @property
    def ratio(self) -> float:
        """The size of region work over `lower_bound`; 1.0 is the best for this order of steps."""
        return self.compute_region_bytes("work") / self.lower_bound if self.lower_bound else 1.0

    def kept(self) -> tuple[KeptValue, ...]:
        """List the values that the forward pass keeps for the backward pass, largest first.

        Only region work counts; recomputed values, and values that only one of the passes touches,
        are not listed.
        """
        made: dict[int, dict[str, None]] = {}
        read: dict[int, dict[str, None]] = {}
        for step in self.steps:
            for arg in step.args:
                if arg.buffer < 0 or self.buffers[arg.buffer].region != "work":
                    continue
                if step.phase == "fwd" and arg.mode in "wu":
                    made.setdefault(arg.buffer, {})[step.source] = None
                elif step.phase == "bwd" and arg.mode in "ru":
                    read.setdefault(arg.buffer, {})[step.source] = None
        buffers = sorted(made.keys() & read.keys(), key=lambda b: (-self.buffers[b].nbytes, b))
        return tuple(KeptValue(b, tuple(made[b]), tuple(read[b])) for b in buffers)

    @property
    def kept_bytes(self) -> int:
        """The bytes of all that `kept` lists: what lives where the backward pass begins."""
        return sum(self.buffers[k.buffer].nbytes for k in self.kept())

    def count_halves(self) -> int:
        """Count the values in region work that are stored in 16 bits."""
        return sum(b.region == "work" and b.dtype in HALVES for b in self.buffers)

    def summary(self) -> str:
        """Return one line: sizes of the regions, steps, how good the placement is.

        Of a plan with values in 16 bits also their number.  Of a plan that a budget made also the
        search for it, and what holds most of its memory.
        """
        sizes = "  ".join(f"{name} {format_bytes(size)}" for name, size in self.regions if size)
        ways, most = self.searched
        searched = f"  searched {ways:,} of at most {most:,} ways" if most else ""
        held = self.describe_fullest() if most else ""
        halves = self.count_halves()
        chosen = f"  precision {self.precision}" if self.precision else ""
        in_halves = f"  values in 16 bits {halves}" if halves else ""
        return (
            f"plan {self.name}  {self.target}  threads {self.threads}  steps {len(self.steps)}  "
            f"{sizes}  arena/bound {self.ratio:.3f}{in_halves}{chosen}{searched}{held}"
        )

    def find_fullest(self) -> tuple[int, list[Buffer]]:
        """Return the step during which most work bytes live, and the buffers that do, largest
        first.
        """
        work = [b for b in self.buffers if b.region == "work"]
        live = [0] * (len(self.steps) + 1)
        for b in work:
            live[b.first] += b.nbytes
            live[b.last + 1] -= b.nbytes
        now = list(accumulate(live))
        place = now.index(max(now))
        held = [b for b in work if b.first <= place <= b.last]
        return place, sorted(held, key=lambda b: -b.nbytes)

    def describe_fullest(self) -> str:
        """Return the step at which most work bytes are live, and the largest values there."""
        place, held = self.find_fullest()
        if not held:
            return ""
        makers: dict[str, str] = {}  # of the values
        for step in self.steps:
            for arg in step.args:
                if arg.mode in "wu":
                    makers.setdefault(self.buffers[arg.buffer].name, step.title)
        told = ", ".join(
            f"{b.name} {format_bytes(b.nbytes)}"
            + (f" (of {makers[b.name]})" if b.name in makers else "")
            for b in held[:SHOWN]
        )
        return f"; most work bytes live at {self.steps[place].title}: {told}"

    def __str__(self) -> str:
        return "\n".join(self._list_lines()) + "\n"

    def _list_lines(self) -> Iterator[str]:
        yield self.summary()
        for i, b in enumerate(self.buffers):
            shape = ",".join(map(str, b.shape))
            yield (
                f"  %{i} {b.name}  {b.dtype}[{shape}]  {b.region}+{b.offset}  "
                f"live {b.first}..{b.last}"
            )
        for kind, ports in (("input", self.inputs), ("output", self.outputs)):
            for port in ports:
                dims = ",".join(map(str, port.shape))
                yield f"  {kind} {port.name}[{dims}] = %{port.buffer}"
        if self.once:
            yield f"  steps 0..{self.once - 1} once"
        for i, s in enumerate(self.steps):
            args = " ".join(map(str, s.args))
            consts = " ".join(map(str, s.consts))
            bar = "|" if s.barrier else ":" if s.tiles and not s.group else " "
            if s.group:
                yield f"  steps {i}..{i + s.group - 1} in {s.tiles} tiles"
            name = f"{s.kernel}#" if s.numbered else s.kernel
            alone = "alone " if s.alone else ""
            yield f"  {i:3d}{bar}{s.phase} {alone}{name}({args}; {consts})  # {s.title}"
        for k in self.specs:
            yield f"  kernel {k.symbol} = {k.template}({', '.join(map(str, k.params))})"


def format_bytes(n: int) -> str:
    """Return a number of bytes with its unit: B, KiB or MiB."""
    if n < 10 * 1024:
        return f"{n} B"
    return f"{n / 1024:.1f} KiB" if n < 10 * 1024**2 else f"{n / 1024**2:.1f} MiB"


def align(n: int) -> int:
    """Round a byte count up to `ALIGN`."""
    return (n + ALIGN - 1) // ALIGN * ALIGN
