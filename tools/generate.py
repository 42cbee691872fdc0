"""C source of a trimmed build: the runtime of tools/runtime, and plans as constant data.

Before   plans, whose buffers lie in regions
After    one C file and one header whose names start with the build's; one layout of all regions in
         a single block of memory; constants of all plans in one block, equal ones once
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.checkpoint_bytes import CODES
from engine.plan import ALIGN, FAULT, ITEMSIZE, NOISE, KernelSpec, Plan, align
from engine.session import RESET
from engine.tools.plans import PHASES, Planned

RUNTIME = Path(__file__).parent / "runtime"
PARTS = ("bytes.c", "tables.c", "threads.c", "*", "runtime.c", "parameters.c", "checkpoint_read.c",
         "checkpoint_write.c", "files.c")  # fmt: skip

PROPERTY_BYTES = 4096  # of user properties
REGIONS = ("null", "param", "grad", "state", "work", "io", "const")  # numbers of regions in C

_HEAD = """\
/* Training of one model, made by `edgegrad build`: compile it with its object of kernels. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
"""
_INCLUDES = """
#ifndef EDGEGRAD_FREESTANDING
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <io.h>
#include <process.h>
#include <windows.h>
#define getpid _getpid
#else
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#endif
#endif
"""


def code_of(dtype: str) -> int:
    """ONNX's number of an element type, as checkpoints and the C header have it."""
    return CODES[f"{dtype[0]}{ITEMSIZE[dtype]}"]


# --- layout


@dataclass(slots=True)
class Layout:
    """Where everything lies in the block of memory of a model, bytes from its start."""

    total: int
    places: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, nbytes: int) -> None:
        """Put an area at the end."""
        self.places[name] = self.total
        self.total += align(nbytes)


def handle_bytes(planned: Planned, threads: int) -> int:
    """Room for the struct that starts the block; the C compiler checks that it suffices."""
    return align(2048 + 5 * len(planned.parameters) + 32 * threads)


def lay_out(planned: Planned, threads: int) -> Layout:
    """The layout of a build; the work memory comes last, and is not zeroed."""
    layout = Layout(handle_bytes(planned, threads))
    state = planned.state
    layout.add("properties", PROPERTY_BYTES + 128)
    for phase, plan in planned.plans.items():
        words = sum(len(s.args) + len(s.consts) for s in plan.steps)
        layout.add(f"table {phase}", 8 * (4 * len(plan.steps) + words))
    for region in ("param", "grad"):
        layout.add(region, state.region_bytes(region))
    layout.add("state", planned.moments * state.region_bytes("grad"))
    for phase, plan in planned.plans.items():
        layout.add(f"io {phase}", plan.region_bytes("io"))
    layout.add("work", max(p.region_bytes("work") for p in planned.plans.values()) + ALIGN)
    return layout


class Constants:
    """One block of constant bytes for all plans; equal contents are kept once."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self.data = bytearray()

    def place(self, content: bytes) -> int:
        """Offset of these bytes, a multiple of `ALIGN`."""
        if content not in self._known:
            self._known[content] = len(self.data)
            self.data += content + bytes(-len(content) % ALIGN)
        return self._known[content]


# --- plans


def encode(plan: Plan, kernels: Mapping[str, int], constants: Constants, frozen: bytes) -> bytes:
    """A plan as tools/runtime/runtime.c reads it; kernels: symbol -> index.

    What the plan has in regions const and frozen is moved to `constants`.
    """
    moved = {
        index: constants.place(content.ljust(plan.buffers[index].nbytes, b"\0"))
        for index, content in plan.constants
    }
    for index, b in enumerate(plan.buffers):
        if b.region == "frozen":
            moved[index] = constants.place(frozen[b.offset : b.offset + b.nbytes])
    out = bytearray()
    for step in plan.steps:
        out += _number(kernels[step.kernel])
        out += _number(2 * len(step.args) + step.barrier) + _number(len(step.consts))
        for arg in step.args:
            if arg.buffer < 0:
                out += _number(0)
                continue
            b = plan.buffers[arg.buffer]
            region = "const" if arg.buffer in moved else b.region
            offset = moved.get(arg.buffer, b.offset)
            out += _number(8 * (offset // ALIGN) + REGIONS.index(region))
        for value in step.consts:
            out += _constant(value)
    return bytes(out)


def _number(value: int) -> bytes:
    """7 bits a byte, the lowest first; the high bit says that another byte follows."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _constant(value: int | float) -> bytes:
    if isinstance(value, float):
        return b"\1" + struct.pack("<d", value)
    if not -(2**60) <= value < 2**60:
        return b"\1" + struct.pack("<q", value)
    return _number(2 * (2 * value if value >= 0 else -2 * value - 1))


# --- C text


def quote(text: str) -> str:
    """A C string; octal escapes end after three digits whatever follows."""
    plain = "".join(
        chr(c) if 0x20 <= c < 0x7F and chr(c) not in '"\\?' else f"\\{c:03o}" for c in text.encode()
    )
    return f'"{plain}"'


def _comment(text: str) -> str:
    """Text that may stand in a C comment."""
    return quote(text)[1:-1].replace("*/", "* /").replace("//", "/ /")[:60]


def _array(kind: str, name: str, values: Sequence[int]) -> Iterator[str]:
    yield f"static const {kind} {name}[] = {{"
    for i in range(0, max(len(values), 1), 20):
        yield "    " + " ".join(f"{v}," for v in values[i : i + 20] or [0])
    yield "};"


def _tensor(name: str, dtype: str, shape: Sequence[int], dims: str, trainable: bool) -> str:
    nbytes = ITEMSIZE[dtype]
    for d in shape:
        nbytes *= d
    return f"{{{quote(name)}, {code_of(dtype)}, {len(shape)}, {dims}, {nbytes}, {int(trainable)}}}"


class Source:
    """The generated text of one build."""

    def __init__(self, name: str, planned: Planned, threads: int, build: str) -> None:
        self.name, self.planned, self.threads, self.build = name, planned, threads, build
        self.layout, self.constants = lay_out(planned, threads), Constants()
        self.kernels: list[KernelSpec] = planned.kernels()
        self._indices = {spec.symbol: i for i, spec in enumerate(self.kernels)}
        self._dims: list[int] = []
        self._codes = {
            phase: encode(plan, self._indices, self.constants, planned.frozen)
            for phase, plan in planned.plans.items()
        }
        self.constants.data += bytes(ALIGN)  # kernels may load a whole register at the last element

    def plan_bytes(self) -> int:
        """Bytes of all plans as data."""
        return sum(map(len, self._codes.values()))

    def header(self) -> str:
        """The public header."""
        text = (RUNTIME / "model.h").read_text("utf-8")
        return self.rename(text.replace("/*@constants@*/", "\n".join(self._constants())))

    def source(self) -> str:
        """The whole library but its kernels as one C file."""
        data = "\n".join(self._data())
        parts = [data if part == "*" else (RUNTIME / part).read_text("utf-8") for part in PARTS]
        first = [_HEAD, '#include "model.h"\n', _INCLUDES, *self._declarations()]
        return self.rename("\n".join(first + parts))

    def rename(self, text: str) -> str:
        """Put the build's name in the place of `model`."""
        text = re.sub(r"\bmodel_", f"{self.name}_", text)
        text = re.sub(r"\bMODEL_", f"{self.name.upper()}_", text)
        text = re.sub(r'(include "|\bstruct )model\b', rf"\g<1>{self.name}", text)
        text = re.sub(rf"(struct {self.name} )model;", rf"\g<1>{self.name};", text)
        return re.sub(r"\bmodel(?= \*+\w|, Destroy>)", self.name, text)

    def _constants(self) -> Iterator[str]:
        state, plans = self.planned.state, self.planned.plans
        work = max(p.region_bytes("work") for p in plans.values())
        handle = handle_bytes(self.planned, self.threads)
        rows = [
            ("THREADS", self.threads, "threads of a step, the caller's included"),
            ("PARAMETERS", len(self.planned.parameters), "number of parameter tensors"),
            ("MEMORY_BYTES", self.layout.total, "all memory of a model, the sum of what follows"),
            ("PARAMETER_BYTES", state.region_bytes("param"), "parameters"),
            ("GRADIENT_BYTES", state.region_bytes("grad"), "gradients"),
            ("STATE_BYTES", self.planned.moments * state.region_bytes("grad"), "optimizer"),
            ("WORK_BYTES", work, "work memory of a step, shared by all phases"),
            ("IO_BYTES", sum(p.region_bytes("io") for p in plans.values()), "inputs, outputs"),
            ("HANDLE_BYTES", handle, "bookkeeping; the rest is tables of the plans"),
            ("PROPERTY_BYTES", PROPERTY_BYTES, "user properties"),
            ("MESSAGE_BYTES", 256, "an error message"),
        ]
        for phase in ("train", "eval", "infer"):
            for what, names in (("inputs", self.planned.inputs), ("outputs", self.planned.outputs)):
                count = len(names.get(phase, ()))
                meaning = ", ".join(names.get(phase, ())) or "no such phase"
                rows.append((f"{phase}_{what}".upper(), count, _comment(meaning)))
        for key, value, meaning in rows:
            yield f"#define {'MODEL_' + key:24s} {value} /* {meaning} */"

    def _declarations(self) -> Iterator[str]:
        at = self.layout.places
        yield f"#define BUILD {quote(self.build)}"
        for key, name in (("PARAM_AT", "param"), ("GRAD_AT", "grad"), ("STATE_AT", "state"),
                          ("WORK_AT", "work"), ("PROPERTIES_AT", "properties")):  # fmt: skip
            yield f"#define {key} {at[name]}u"
        yield f"#define GRAD_BYTES {self.planned.state.region_bytes('grad')}u"
        yield f"#define MOMENTS {self.planned.moments}"
        yield f"#define OPTIMIZES {int('optimizer' in self.planned.plans)}"
        yield f"#define TRAINABLE {len(self.planned.state.trainable_names())}"
        yield f"#define LAUNCH {self._indices['launch_i64']}"
        yield f"#define PLANS {len(PHASES)}"
        yield f"#define OPTIMIZER {PHASES.index('optimizer')}"
        places = {"learning_rate": 0, "step": 0}
        if "optimizer" in self.planned.plans:
            places = {name: self._port("optimizer", name) for name in places}
        yield f"#define RATE_AT {places['learning_rate']}u"
        yield f"#define STEP_AT {places['step']}u"

    def _port(self, phase: str, name: str) -> int:
        """Place of a plan's input, 0 if it has none of that name."""
        plan = self.planned.plans[phase]
        for port in plan.inputs:
            if port.name == name:
                return self.layout.places[f"io {phase}"] + plan.buffers[port.buffer].offset
        return 0

    def _data(self) -> Iterator[str]:
        for phase, code in self._codes.items():
            yield from _array("uint8_t", f"code_{phase}", code)
        tables = [*self._parameter_table(), *self._ports(), *self._plans()]
        yield from _array("int64_t", "all_dims", self._dims)
        yield from tables

    def _shape(self, shape: Sequence[int]) -> str:
        self._dims += shape
        return f"all_dims + {len(self._dims) - len(shape)}"

    def _parameter_table(self) -> Iterator[str]:
        slots, names = self.planned.state.slots, list(self.planned.parameters)
        yield "static const struct parameter parameters[] = {"
        for i, name in enumerate(names):
            s = slots[name]
            tensor = _tensor(name, s.dtype, s.shape, self._shape(s.shape), s.trainable)
            yield f"    {{{tensor}, {s.offset}, {s.size}, {int(i < self.planned.listed)}}},"
        yield "};"
        yield "/* Parameters in the order of their names, trainable ones first. */"
        order = sorted(names, key=lambda n: (not slots[n].trainable, n))
        yield from _array("uint32_t", "sorted", [names.index(n) for n in order])

    def _ports(self) -> Iterator[str]:
        for phase, plan in self.planned.plans.items():
            yield f"static const struct port ports_{phase}[] = {{"
            for wanted, ports in (("inputs", plan.inputs), ("outputs", plan.outputs)):
                by_name = {p.name: p for p in ports}
                for name in getattr(self.planned, wanted).get(phase, ()):
                    p = by_name[name]
                    b = plan.buffers[p.buffer]
                    tensor = _tensor(name, b.dtype, p.shape, self._shape(p.shape), False)
                    yield f"    {{{tensor}, {self.layout.places[f'io {phase}'] + b.offset}}},"
            yield "    {{NULL, 0, 0, NULL, 0, 0}, 0},"
            yield "};"

    def _plans(self) -> Iterator[str]:
        at = self.layout.places
        yield "static const struct plan plans[] = {"
        for phase in PHASES:
            plan = self.planned.plans.get(phase)
            if plan is None:
                yield "    {NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL},"
                continue
            counts = [len(w.get(phase, ())) for w in (self.planned.inputs, self.planned.outputs)]
            yield (
                f"    {{code_{phase}, {len(plan.steps)}, {at[f'table {phase}']}, "
                f"{at[f'io {phase}']}, {self._port(phase, FAULT)}, {self._port(phase, RESET)}, "
                f"{self._port(phase, NOISE)}, {counts[0]}, {counts[1]}, ports_{phase}}},"
            )
        yield "};"
