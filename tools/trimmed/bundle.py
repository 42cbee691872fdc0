"""Plans of a model as one stripped plan file, which the C runtime reads.

A build contains the file as constant data, and its steps apart from it (records.py).  For a library
of kernels, `edgegrad plan` writes it to disk.  The format is described in
`engine/plan/file_schema.py`.  Besides the plans of all phases and batch sizes, the file made here
holds the sizes of memory, the parameters and the batch sizes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.base.element_types import ELEMENT_TYPES, ITEMSIZE
from engine.base.errors import DTypeError
from engine.kernels.binaries.fingerprint import digest_package
from engine.kernels.compiler.calls import Kind
from engine.kernels.machine.target import Target
from engine.plan.plan import (
    ALIGN,
    COUNT,
    DONE,
    FAULT,
    LOSS_SCALE,
    NOISE,
    RATE,
    REGIONS,
    Plan,
    Port,
    align,
)
from engine.plan.plan_file import Writer
from engine.plan.states import FORMS
from engine.runtime.program import list_moves
from engine.runtime.team import LAUNCH, WORKER
from engine.tools.trimmed.decoders import USES
from engine.tools.trimmed.packing import pack
from engine.tools.trimmed.plans import PHASES, Planned
from engine.tools.trimmed.protobuf import find_initializers
from engine.tools.trimmed.records import CalledStep, OperandPlace, StepRecords
from engine.training.model_file import RESET
from engine.training.state import PROGRESS

PARAMETER_ROOM, PORT_ROOM, PLAN_ROOM = 64, 48, 96  # bytes of structs, as plan_read.c asserts
# By the bits of an address, the most bytes that a model may take.
MOST_MEMORY = {32: (1 << 31) - 1, 64: 1 << 46}
# Areas of a model's memory, see `list_areas`, that a memory budget bounds.
BUDGETED = ("parameters", "gradients", "optimizer state", "inputs and outputs", "work memory")
PACKED_PART = 128  # of a model's memory: the most that its plans take there, to be packed
UNPACKING = 512  # bytes of code that unpacks plans, and more than that to be worth it
# Of user properties: a part of the parameters' bytes within limits; and on bare metal.
PROPERTY_PART, LEAST_PROPERTY_BYTES, PROPERTY_BYTES, BARE_PROPERTY_BYTES = 16, 1024, 4096, 256
PROPERTY_HEAD = 32  # bytes of `struct property` of runtime.c, before the name and the text
# Of the learning rate, the loss scale and the counts while a checkpoint is written.
OWN_PROPERTY_ROOM = align(sum(-(-(PROPERTY_HEAD + len(name) + 2) // 8) * 8 for name in PROGRESS))
RUNTIME = (LAUNCH.template, WORKER.template)  # kernels that run plans
# Inputs that the runtime fills: columns of table `plan`, which say where they are.
FILLED = {"fault": FAULT, "reset": RESET, "noise": NOISE, "scale": LOSS_SCALE}
OF_OPTIMIZER = {"rate": "learning_rate", "step": "step"}  # more of the optimizer's plan
OF_JOINED = {"rate": RATE, "step": COUNT}  # and of a plan that trains and updates


def digest_kernels() -> str:
    """Return a digest of the sources of all kernels; a plan and a library fit if theirs are
    equal.
    """
    return digest_package().hex()[:16]


def describe_target(target: Target) -> str:
    """Return the properties of a target on which the words of a plan's steps depend, as text.

    A library refuses a plan whose text differs from its own.
    """
    blocks = (target.mr, target.nv, target.kc, target.mc, target.nc)
    return f"{target.arch}/v{target.vector}/{'x'.join(map(str, blocks))}"


def count_handle_bytes(threads: int, *, has_plans: bool = True) -> int:
    """Return the bytes kept for `struct model`; an assertion in runtime.c checks that they suffice.

    has_plans: whether the plans are part of the library.  Those of one thread run in place.
    """
    return 768 if has_plans and threads == 1 else 1344 + 128 * threads


def count_property_bytes(target: Target, parameters: int) -> int:
    """Return the bytes that are kept for user properties: bare metal has little memory, and small
    models are to need little.

    parameters: the bytes of the parameters.
    """
    if "none" in target.triple.split("-"):
        return BARE_PROPERTY_BYTES
    return min(PROPERTY_BYTES, max(LEAST_PROPERTY_BYTES, align(parameters // PROPERTY_PART)))


class Bundle:
    """Plans of a model for one target as bytes, and the sizes of the memory they need.

    entries: the optimizer's plan, and then for each batch size the plans of training, evaluation
        and inference, in this order; at the end a decoder's, of `USES`.  An entry is None if the
        model has no such phase.
    phases: of each entry: one of PHASES or of USES.
    io: the bytes of the inputs and outputs of each phase.
    tables, constants: the two parts of the file that the runtime reads.
    packs: whether a library has tables and steps packed (packing.py).
    """

    def __init__(
        self,
        planned: Planned,
        target: Target,
        threads: int,
        *,
        is_file: bool = False,
        packs: bool | None = None,
    ) -> None:
        """Write the file.

        is_file: whether the plans are not part of a library: they name their kernels, and a library
            looks them up and checks that the plans were made for it.
        packs: whether a library has its plans packed; None: where it gains by that.
        """
        self.planned, self.target, self.threads = planned, target, threads
        self.entries, self.phases = [planned.plans.get("optimizer")], ["optimizer"]
        for plans in planned.batches.values():
            self.entries += [plans.get(phase) for phase in PHASES[:3]]
            self.phases += PHASES[:3]
        self._areas = list(PHASES)  # phases by their inputs and outputs in memory
        self._inputs, self._outputs = dict(planned.inputs), dict(planned.outputs)
        if planned.decoder is not None:
            self.entries += [planned.decoder.plans.get(use) for use in USES]
            self.phases += USES
            self._areas += USES
            self._inputs |= planned.decoder.inputs
            self._outputs |= planned.decoder.outputs
        self.io = [self._count_io(phase) for phase in self._areas]
        self.moved = self._find_moved_parameters()
        made_for = (digest_kernels(), describe_target(target)) if is_file else ("", "")
        self._out = Writer(*made_for, threads, stripped=True)
        self._numbers = self._write_kernels() if is_file else {}
        self._called: list[list[CalledStep]] = [[] for _ in self.entries]
        for index, plan in enumerate(self.entries):
            self._plan(index, plan, is_file=is_file)
        self._steps = None if is_file else StepRecords(self._called, threads)
        self._add_parameters()
        self._write_sizes()
        # Kernels may load a whole register at the last element.
        self._out.constants += bytes(ALIGN)
        self.constants = bytes(self._out.constants)
        whole = self._out.to_bytes()
        self.tables = whole[: len(whole) - len(self.constants)]
        self.packs = False
        if not is_file:
            self.packs = self._saves_by_packing() if packs is None else packs

    def write_file(self) -> bytes:
        """Return the whole file: the plans, and then a line of JSON and the inference model for
        Python.
        """
        info = json.dumps(describe_inference(self.planned)).encode() + b"\n"
        return self._out.to_bytes(info + (self.planned.inference or b""))

    @property
    def steps(self) -> StepRecords:
        """The steps of a build; a file has them in its tables."""
        assert self._steps is not None, "the plans are a file"
        return self._steps

    @property
    def contents(self) -> dict[str, bytes]:
        """The blocks of the plans in a library, by the ends of symbols."""
        plans = {"tables": self.tables, "steps": self.steps.content}
        if self.packs:
            plans = {name: pack(content) for name, content in plans.items()}
        return plans | {"constants": self.constants}

    # --- sizes

    def _saves_by_packing(self) -> bool:
        """Return whether packed plans save more of the library than code to unpack them takes, and
        whole they are little beside the rest of a model's memory.
        """
        plans = (self.tables, self.steps.content)
        whole = sum(map(len, plans))
        if whole * PACKED_PART > self.count_memory():
            return False
        return whole - sum(len(pack(content)) for content in plans) > UNPACKING

    def _find_moved_parameters(self) -> frozenset[str]:
        """Return the parameters that training steps change in other ways than by updates:
        statistics.
        """
        plans = [each["train"] for each in self.planned.batches.values() if "train" in each]
        runs = [run for plan in plans for run in list_moves(plan)]
        return frozenset(
            name
            for name, slot in self.planned.state.slots.items()
            if any(begin <= slot.offset < end for begin, end in runs)
        )

    @property
    def copies(self) -> int:
        """Number of copies of the moved tensors: before a step, and before steps whose gradients
        wait for an update that may be skipped.
        """
        if not self.moved:
            return 0
        return 1 + (self.planned.skips and not self.planned.is_joined)

    @property
    def kept(self) -> int:
        """Bytes of a copy of all moved tensors."""
        slots = [self.planned.state.slots[name] for name in self.moved]
        return sum(align(slot.size * ITEMSIZE[slot.dtype]) for slot in slots)

    def _count_io(self, phase: str) -> int:
        """Return the bytes of the inputs and outputs of a phase, in the plan that needs the
        most.
        """
        planned = self.planned
        every = [planned.plans, *planned.batches.values()]
        every += [planned.decoder.plans] if planned.decoder else []
        every_plan = [plans[phase] for plans in every if phase in plans]
        return max((align(p.compute_region_bytes("io")) for p in every_plan), default=0)

    def count_region(self, name: str) -> int:
        """Return the bytes of a region of memory that all plans share, such as `param`."""
        if name == "grad" and (self.planned.is_joined or "train" not in self.planned.plans):
            return 0
        return self.planned.state.region_bytes(name)

    @property
    def state(self) -> int:
        """Bytes of the optimizer's states; 0 if no step reads them, as the moment that checkpoints
        of plain descent have.
        """
        read = {
            plan.buffers[a.buffer].region
            for plan in self.entries
            if plan is not None
            for step in plan.steps
            for a in step.args
            if a.buffer >= 0
        }
        return self.planned.states.nbytes if "state" in read else 0

    @property
    def work(self) -> int:
        """Bytes of the work memory, in the plan that needs the most."""
        return max(p.compute_region_bytes("work") for p in self.entries if p)

    def count_memory(self) -> int:
        """Return the bytes of a build's model on the device; see `list_areas`."""
        return sum(self.list_areas().values())

    def list_areas(self) -> dict[str, int]:
        """Return the bytes of each area of a build's model, by what it holds, added up as in
        `lay_out` of plan_read.c.
        """
        rows, n = self._out.count_rows, len(self.planned.parameters)
        caches = self.planned.decoder.cache_bytes if self.planned.decoder else 0
        areas = {
            "parameters": [self.count_region("param")],
            "gradients": [self.count_region("grad")],
            "optimizer state": [self.state],
            "copies of statistics": [self.kept * self.copies],
            "caches of the decoder": [caches],
            "inputs and outputs": [*self.io, -caches],
            "work memory": [align(self.work) + 64],
            "unpacked plans": [len(self.tables) + len(self.steps.content)] if self.packs else [],
            "steps and their words": [8 * self.steps.count_words()],
            "names and shapes": [
                n * PARAMETER_ROOM,
                4 * n,
                4 * n + 4,
                n + 1,
                len(self.entries) * PLAN_ROOM,
                8 * len(self.planned.batches),
                rows("port") * PORT_ROOM,
                8 * (rows("parameter_dim") + rows("port_dim")),
            ],
            "properties": [
                count_property_bytes(self.target, self.count_region("param")) + OWN_PROPERTY_ROOM
            ],
            "bookkeeping": [count_handle_bytes(self.threads)],
        }
        return {name: sum(map(align, sizes)) for name, sizes in areas.items()}

    # --- tables

    def _write_kernels(self) -> dict[str, int]:
        """Write the names of the kernels, for a library that was built without these plans.

        Returns the row of each kernel in the file's table, by symbol.
        """
        text, makers = self._out.add_text, self.planned.makers
        return {
            spec.symbol: self._out.add(
                "kernel", symbol=text(spec.symbol), op=text(makers.get(spec.symbol, spec.template))
            )
            for spec in self.planned.list_kernels()
            if spec.template not in RUNTIME
        }

    def _plan(self, index: int, plan: Plan | None, *, is_file: bool) -> None:
        """Append an entry to the file; the constants of all plans share one block."""
        out, columns = self._out, {"steps": 0}
        if plan is not None:
            located = self._locate_buffers(plan)
            if is_file:
                rows = [self._add_buffer(*place) for place in located]
                for step in plan.steps:
                    buffers = [0 if a.buffer < 0 else 1 + rows[a.buffer] for a in step.args]
                    out.add_step(step, self._numbers[step.kernel], buffers)
            else:
                self._called[index] = self._list_called(index, plan, located)
            ports = self._list_ports(index, plan)
            for port in ports:
                dtype = plan.buffers[port.buffer].dtype
                _find_header_type(port.name, dtype)
                out.add_port(port, dtype, self._add_buffer(*located[port.buffer]))
            places = {p.name: plan.buffers[p.buffer].offset for p in plan.inputs}
            filled = FILLED | (OF_JOINED if index else OF_OPTIMIZER)
            phase = self.phases[index]
            if index and RESET in self._inputs[phase]:
                del filled["reset"]  # an input of the caller's
            columns = {c: 1 + places[name] for c, name in filled.items() if name in places}
            inputs = len(self._inputs[phase]) if index else 0
            if "rate" in columns:  # of all plans that update, as the caller does not see it
                (flag,) = (p for p in plan.outputs if p.name == DONE or not index)
                columns["done"] = 1 + plan.buffers[flag.buffer].offset
            columns |= {"steps": len(plan.steps), "ports": len(ports), "inputs": inputs}
        out.add("plan", **columns)

    def _list_called(
        self, index: int, plan: Plan, located: Sequence[tuple[str, int]]
    ) -> list[CalledStep]:
        """Return the steps of an entry with the places of their operands.

        located: the region of each buffer and its offset there.
        """
        starts, missing = self._place_regions(index), OperandPlace("none", 0)
        kinds: dict[str, Kind] = {"const": "constants"}
        places = [
            OperandPlace(kinds.get(region, "memory"), starts[region] + offset)
            for region, offset in located
        ]
        return [
            (step, [places[a.buffer] if a.buffer >= 0 else missing for a in step.args])
            for step in plan.steps
        ]

    def _locate_buffers(self, plan: Plan) -> list[tuple[str, int]]:
        """Return the region of each buffer and its offset there.

        Buffers of the regions `const` and `frozen` become places in the file's constants.
        """
        moved = {
            index: self._out.place(content.ljust(plan.buffers[index].nbytes, b"\0"))
            for index, content in plan.constants
        }
        for index, b in enumerate(plan.buffers):
            if b.region == "frozen":
                content = self.planned.frozen[b.offset : b.offset + b.nbytes]
                moved[index] = self._out.place(content)
        return [
            ("const", moved[index]) if index in moved else (b.region, b.offset)
            for index, b in enumerate(plan.buffers)
        ]

    def _add_buffer(self, region: str, offset: int) -> int:
        """Return the row of a buffer in the file's table."""
        number = REGIONS.index(region)
        return self._out.add_once("buffer", region=number, line=offset // ALIGN)

    def _place_regions(self, index: int) -> dict[str, int]:
        """Return where the regions begin for an entry, from the parameters on, and 0 for the
        constants; as `lay_out` of plan_read.c has them.
        """
        phase = self._areas.index(self.phases[index])
        sizes = {"param": self.count_region("param"), "grad": self.count_region("grad")}
        sizes |= {"state": self.state, "": self.kept * self.copies}
        sizes |= {"io" if i == phase else f"io {i}": size for i, size in enumerate(self.io)}
        starts, at = {"const": 0}, 0
        for region, size in (sizes | {"work": 0}).items():
            starts[region] = at
            at += align(size)
        return starts

    def _list_ports(self, index: int, plan: Plan) -> list[Port]:
        """Return the inputs and then the outputs of an entry that the caller of a step sees, in
        order.
        """
        if not index:
            return []
        ins, outs = ({p.name: p for p in ports} for ports in (plan.inputs, plan.outputs))
        phase = self.phases[index]
        ports = [
            *(ins[name] for name in self._inputs[phase]),
            *(outs[name] for name in self._outputs[phase]),
        ]
        if phase not in USES:
            return ports
        # The names of caches tell nobody anything; the scores of a step are of one token.
        assert self.planned.decoder is not None
        at = len(self._inputs[phase])
        first = self.planned.decoder.places["CACHES"] if phase == "step" else at + 1
        last = at if phase == "step" else len(ports)
        if phase == "step":
            ports[at] = replace(ports[at], shape=ports[at].shape[1:])
        return [replace(p, name="cache") if first <= i < last else p for i, p in enumerate(ports)]

    def _add_parameters(self) -> None:
        out, slots = self._out, self.planned.state.slots
        names = list(self.planned.parameters)
        for i, name in enumerate(names):
            s = slots[name]
            out.add(
                "parameter",
                name=out.add_text(name),
                dtype=_find_header_type(name, s.dtype),
                trainable=int(s.trainable),
                listed=int(i < self.planned.listed),
                moved=int(name in self.moved),
                line=s.offset // ALIGN,
                rank=out.add_shape("parameter_dim", s.shape),
            )
        for name in sorted(names, key=lambda n: (not slots[n].trainable, n)):
            out.add("order", parameter=names.index(name))

    def _write_sizes(self) -> None:
        out = self._out
        out.add(
            "model",
            param=align(self.count_region("param")),
            grad=align(self.count_region("grad")),
            state=self.state,
            work=align(self.work),
            kept=self.kept // ALIGN,
            copies=self.copies,
        )
        for row in self.planned.states.states:
            wide = np.array(row.initial, np.int64 if row.dtype == "i64" else np.float64).tobytes()
            single = np.array(row.initial, np.float32).tobytes()
            out.add(
                "state",
                form=FORMS.index(row.form),
                dtype=0 if row.dtype is None else ELEMENT_TYPES[row.dtype].onnx,
                initial=int.from_bytes(wide, "little"),
                single=int.from_bytes(single, "little"),
            )
        for size in self.io:
            out.add("io", size=size)
        for batch in self.planned.batches:
            out.add("batch", samples=batch)


def _find_header_type(name: str, dtype: str) -> int:
    """Return the number that the header of a library has for the element type of a tensor.

    Raises:
        DTypeError: it has none.
    """
    element = ELEMENT_TYPES[dtype]
    if element.kind == "half":
        raise DTypeError(f"{name!r} is {element.onnx_name}, a type that trimmed builds lack in C")
    return element.onnx


def describe_inference(planned: Planned) -> dict[str, Any] | None:
    """Return the facts for exporting the inference model on a device, or None.

    outputs: the names of its outputs.
    places: by name of a parameter, the byte offset of its values in the serialised model.
    parts: by name of a parameter that is a part of a weight there, the byte offset of its first
        values, how many runs of bytes it has, and the bytes from run to run.
    """
    if planned.inference is None:
        return None
    slots = planned.state.slots
    places = find_initializers(planned.inference, {*slots, *planned.joined})
    parts: dict[str, tuple[int, int, int]] = {}
    for name, (pair, axis) in planned.joined.items():
        at = places.pop(name, None)
        each = [slots[part] for part in pair]
        inner = [math.prod(s.shape[axis:]) * ITEMSIZE[s.dtype] for s in each]
        if at is not None:
            rows, stride = math.prod(each[0].shape[:axis]), sum(inner)
            parts |= {pair[0]: (at, rows, stride), pair[1]: (at + inner[0], rows, stride)}
    return {"outputs": list(planned.outputs["infer"]), "places": places, "parts": parts}
