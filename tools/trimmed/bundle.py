"""Plans of a model as one run of bytes: what the C runtime reads, from itself or from a file.

`tools/trimmed/runtime/plan_read.c` has the grammar.  Large numbers are places, which are multiples
of 64.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.checkpoint.contents import CODES
from engine.element_types import NUMPY
from engine.kernels.compiler.fingerprint import package_digest
from engine.kernels.target import Target
from engine.runtime.context import STEP
from engine.runtime.plan import ALIGN, FAULT, NOISE, Plan, Port, align
from engine.runtime.states import FORMS, State
from engine.tools.trimmed.plans import PHASES, Planned
from engine.tools.trimmed.protobuf import initializer_places
from engine.training.session import RESET

MAGIC, VERSION = b"EGPB", 1
HEAD = struct.Struct("<4sIQQI36x")
REGIONS = ("null", "param", "grad", "state", "work", "io", "const")  # numbers of regions in C
PARAMETER_ROOM, PORT_ROOM, PLAN_ROOM = 64, 48, 96  # bytes of structs of plan_read.c
PROPERTY_BYTES = 4096  # of user properties


def code_of(dtype: str) -> int:
    """ONNX's number of an element type, as checkpoints and the C header have it."""
    return CODES[np.dtype(NUMPY[dtype])]


def kernels_digest() -> str:
    """What plans and libraries that fit each other share: the text of all kernels."""
    return package_digest().hex()[:16]


def target_text(target: Target) -> str:
    """A target as plans name it: what decides the words that kernels are given."""
    blocks = (target.mr, target.nv, target.kc, target.mc, target.nc)
    return f"{target.arch}/v{target.vector}/{'x'.join(map(str, blocks))}"


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


class Bundle:
    """The plans of a model for one target; the sizes of what a model of them takes."""

    def __init__(
        self, planned: Planned, target: Target, threads: int, build: str,
        numbers: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """numbers: those of kernels in the library these plans are part of; None: by name."""
        self.planned, self.target, self.threads, self.build = planned, target, threads, build
        self.specs = [spec for spec in planned.kernels() if spec.template not in RUNTIME]
        self.numbers = numbers
        self._known = numbers or {spec.symbol: i for i, spec in enumerate(self.specs)}
        self.constants = Constants()
        self.io = [self._io(phase) for phase in PHASES]
        self.entries = [planned.plans.get("optimizer")]
        for plans in planned.batches.values():
            self.entries += [plans.get(phase) for phase in PHASES[:3]]
        self.codes = [
            encode(p, self._known, self.constants, planned.frozen) if p else b""
            for p in self.entries
        ]
        self.constants.data += bytes(ALIGN)  # kernels may load a whole register at the last element
        self.bytes = self._encode()

    def _plans(self, phase: str) -> list[Plan]:
        """The plans of a phase, one a batch."""
        planned = self.planned
        every = [planned.plans, *planned.batches.values()]
        return [plans[phase] for plans in every if phase in plans]

    def _io(self, phase: str) -> int:
        return max((align(p.region_bytes("io")) for p in self._plans(phase)), default=0)

    def region(self, name: str) -> int:
        """Bytes of a region that all plans share."""
        return self.planned.state.region_bytes(name)

    @property
    def work(self) -> int:
        """Bytes of the work memory of the plan that needs most."""
        return max(p.region_bytes("work") for p in self.entries if p)

    @property
    def tables(self) -> int:
        """Bytes of the tables of steps."""
        sizes = (STEP.size * len(p.steps) + _words(p) if p else 0 for p in self.entries)
        return sum(align(8 * size) for size in sizes)

    def memory(self, file: bool = False) -> int:
        """Bytes of a model: plan_read.c lays it out so; `file`: it keeps a copy of the plans."""
        n, state = len(self.planned.parameters), self.planned.state
        dims = sum(len(s.shape) for s in state.slots.values()) + self._port_dims()
        areas = [
            handle_bytes(self.threads), len(self.bytes) if file else 0, n * PARAMETER_ROOM, 4 * n,
            4 * n + 4, n + 1, len(self.entries) * PLAN_ROOM, 8 * len(self.planned.batches),
            4 * self._named(), self._port_count() * PORT_ROOM, 8 * dims, self.tables,
            PROPERTY_BYTES + 128, self.region("param"), self.region("grad"),
            self.planned.states.nbytes, *self.io, self.work + 64,
        ]  # fmt: skip
        return sum(map(align, areas))

    def _named(self) -> int:
        return 0 if self.numbers else len(self.specs)

    def _ports(self, index: int) -> list[Port]:
        """Inputs, then outputs of a plan, as the caller sees them."""
        plan, phase = self.entries[index], PHASES[(index - 1) % 3] if index else "optimizer"
        if plan is None or not index:
            return []
        ins, outs = ({p.name: p for p in ports} for ports in (plan.inputs, plan.outputs))
        return [
            *(ins[name] for name in self.planned.inputs[phase]),
            *(outs[name] for name in self.planned.outputs[phase]),
        ]

    def _port_count(self) -> int:
        return sum(len(self._ports(i)) for i in range(len(self.entries)))

    def _port_dims(self) -> int:
        return sum(len(p.shape) for i in range(len(self.entries)) for p in self._ports(i))

    def _encode(self) -> bytes:
        planned, state = self.planned, self.planned.state
        names, slots = list(planned.parameters), state.slots
        out = bytearray(_text(kernels_digest()) + _text(target_text(self.target)))
        out += _text(self.build)
        dims = sum(len(slots[n].shape) for n in names) + self._port_dims()
        for value in (
            self.threads, len(names), len(state.trainable_names()), len(planned.states.states),
            len(planned.batches), self._port_count(), dims, self._named(),
            align(self.region("param")), align(self.region("grad")), align(self.work),
            len(self.constants.data), self.tables, planned.states.nbytes, *self.io,
        ):  # fmt: skip
            out += number(value)
        for k, row in enumerate(planned.states.states):
            out += _state(row, planned.states.flat(k)[0])
        for spec in self.specs[: self._named()]:
            out += _text(spec.symbol) + _text(planned.makers.get(spec.symbol, spec.template))
        for i, name in enumerate(names):
            s = slots[name]
            out += _tensor(name, s.dtype, s.shape, s.trainable)
            out += number(s.offset // ALIGN) + number(int(i < planned.listed))
        for name in sorted(names, key=lambda n: (not slots[n].trainable, n)):
            out += number(names.index(name))
        for batch in planned.batches:
            out += number(batch)
        for i, plan in enumerate(self.entries):
            out += self._plan(i, plan) if plan else number(0)
        return bytes(out) + bytes(-len(out) % ALIGN) + bytes(self.constants.data)

    def _plan(self, index: int, plan: Plan) -> bytes:
        out = bytearray(number(len(plan.steps)) + number(_words(plan)))
        places = {p.name: plan.buffers[p.buffer].offset for p in plan.inputs}
        for name in (FAULT, RESET, NOISE, "learning_rate", "step"):
            out += number(1 + places[name] if name in places else 0)
        ports = self._ports(index)
        ins = len(self.planned.inputs[PHASES[(index - 1) % 3]]) if index else 0
        out += number(ins) + number(len(ports) - ins) + number(len(self.codes[index]))
        for port in ports:
            b = plan.buffers[port.buffer]
            out += _tensor(port.name, b.dtype, port.shape, False) + number(1 + b.offset)
        return bytes(out + self.codes[index])

    def file(self) -> bytes:
        """A plan file: behind the plans a line of JSON and the inference model, for Python."""
        info = json.dumps(inference_info(self.planned)).encode() + b"\n"
        content = self.bytes + info + (self.planned.inference or b"")
        return (
            HEAD.pack(MAGIC, VERSION, len(self.bytes), len(content), zlib.crc32(content)) + content
        )


def inference_info(planned: Planned) -> dict[str, Any] | None:
    """The outputs of the inference model, and where it keeps the bytes of parameters."""
    if planned.inference is None:
        return None
    places = initializer_places(planned.inference, set(planned.state.slots))
    return {"outputs": list(planned.outputs["infer"]), "places": places}


RUNTIME = ("launch", "worker")  # kernels that run plans


def handle_bytes(threads: int) -> int:
    """Room for the struct that starts a model; the C compiler checks that it suffices."""
    return 2048 + 64 * threads


def _words(plan: Plan) -> int:
    return sum(len(s.args) + len(s.consts) for s in plan.steps)


# --- bytes


def encode(plan: Plan, kernels: Mapping[str, int], constants: Constants, frozen: bytes) -> bytes:
    """A plan as tools/trimmed/runtime/runtime.c reads it; kernels: symbol -> index.

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
        out += number(kernels[step.kernel])
        out += number(2 * len(step.args) + step.barrier) + number(len(step.consts))
        for arg in step.args:
            if arg.buffer < 0:
                out += number(0)
                continue
            b = plan.buffers[arg.buffer]
            region = "const" if arg.buffer in moved else b.region
            offset = moved.get(arg.buffer, b.offset)
            out += number(8 * (offset // ALIGN) + REGIONS.index(region))
        for value in step.consts:
            out += constant(value)
    return bytes(out)


def number(value: int) -> bytes:
    """7 bits a byte, the lowest first; the high bit says that another byte follows."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def constant(value: int | float) -> bytes:
    """A word of a step: a small integer, or 8 bytes."""
    if isinstance(value, float):
        return b"\1" + struct.pack("<d", value)
    if not -(2**60) <= value < 2**60:
        return b"\1" + struct.pack("<q", value)
    return number(2 * (2 * value if value >= 0 else -2 * value - 1))


def _state(row: State, dtype: str) -> bytes:
    """Form, element type, and the halves of 8 bytes that begin with the initial value."""
    bits = np.array(row.initial, NUMPY[dtype]).tobytes().ljust(8, b"\0")
    halves = struct.unpack("<II", bits)
    return b"".join(map(number, (FORMS.index(row.form), code_of(dtype), *halves)))


def _text(text: str) -> bytes:
    raw = text.replace("\0", "").encode()
    return number(len(raw)) + raw + b"\0"


def _tensor(name: str, dtype: str, shape: Sequence[int], trainable: bool) -> bytes:
    out = _text(name) + number(code_of(dtype)) + number(int(trainable)) + number(len(shape))
    return out + b"".join(map(number, shape))
