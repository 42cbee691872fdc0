"""Check that no step of a plan reaches outside its operands.

`verify` (engine/plan/verify.py) knows where operands lie, this module how far kernels reach from
their pointers.  SECURITY.md, "Prepared plans", says which plans are checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from engine.base.element_types import ITEMSIZE
from engine.base.errors import PlanError
from engine.kernels.loops.blocks import Blocks
from engine.kernels.machine.levels import LEVELS
from engine.kernels.machine.target import INSTRUCTION_SETS
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.call import KernelCall, Machine, Reach, reach_into
from engine.kernels.vocabulary.kernel import Template
from engine.plan.plan import Arg, Kernel, Plan, PlanStep


def check(plan: Plan, machine: Machine) -> Plan:
    """Check the reach of every step of a plan that `verify` has let pass, and return it.

    machine: what the plan's kernels are compiled for.

    Raises:
        PlanError: naming the step, the operand, how far the kernel reaches and what is there; or
            what is wrong with the numbers of a step or the parameters of a kernel.
    """
    _ReachCheck(plan, machine).run()
    return plan


class _ReachCheck:
    def __init__(self, plan: Plan, machine: Machine) -> None:
        self.plan, self.machine = plan, machine
        self.constants = dict(plan.constants)
        self.sizes = [ITEMSIZE[b.dtype] * math.prod(b.shape) for b in plan.buffers]
        self.kernels = {kernel.symbol: kernel for kernel in plan.kernels}
        self.known: dict[tuple[Any, ...], None] = {}  # calls that have passed

    def run(self) -> None:
        takes = {symbol: self.find_template(kernel) for symbol, kernel in self.kernels.items()}
        for n, step in enumerate(self.plan.steps):
            own = tuple(self.measure_room(step, a) for a in step.args)
            modes = tuple(a.mode for a in step.args)
            cuts = tuple((a.tile, a.thread) for a in step.args) if step.tiles else ()
            types = tuple(self.plan.buffers[a.buffer].dtype for a in step.args)
            key = (step.kernel, step.consts, step.tiles, step.numbered, own, modes, cuts, types)
            if key in self.known:
                continue
            try:
                self.check_step(step, takes[step.kernel])
            except PlanError as error:
                self.refuse(f"step {n} {step.kernel} ({step.source}): {error}")
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # Parameters and words that no kernel has: a rule cannot compute with them.
                self.refuse(
                    f"step {n} {step.kernel} ({step.source}): {type(error).__name__} {error}"
                )
            if not any(a.buffer in self.constants for a in step.args):
                self.known[key] = None

    def refuse(self, text: str) -> NoReturn:
        raise PlanError(f"plan {self.plan.name}: {text}")

    def find_template(self, kernel: Kernel) -> Template:
        """Return the declaration of a kernel, which the plan must call as it is declared."""
        spec = kernel.spec
        template = list_templates().get(spec.template)
        if template is None or template.is_internal or not template.is_bounded:
            self.refuse(f"kernel {kernel.symbol}: no kernel that plans may call")
        text = "_".join(map(str, spec.params))
        if kernel.symbol == f"{spec.template}_{text}" and any(
            isinstance(p, str) and (p.isdigit() or "_" in p) for p in spec.params
        ):
            self.refuse(f"kernel {kernel.symbol}: its parameters {spec.params} read as others")
        try:
            expected = template.takes(*spec.params)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            self.refuse(f"kernel {kernel.symbol}: parameters {spec.params} ({error})")
        if kernel.takes != expected:
            self.refuse(f"kernel {kernel.symbol} takes {kernel.takes}; it is made for {expected}")
        return template

    def measure_room(self, step: PlanStep, a: Arg) -> int:
        """Return the bytes from an argument's pointer on; in a group, of any tile's pointer."""
        if a.buffer < 0:
            return 0
        size = self.sizes[a.buffer]
        if not step.tiles or step.numbered:
            return size
        return a.thread or size - a.tile * (step.tiles - 1)

    def check_step(self, step: PlanStep, template: Template) -> None:
        """Check one call."""
        params = self.kernels[step.kernel].spec.params
        names = template.operand_names(len(step.args))
        if template.operands is None and len(names) != len(step.args):
            raise PlanError(f"{len(step.args)} operands; it has {len(names)}")
        arguments = dict(zip(names, step.args, strict=True))
        threads = self.plan.threads
        if step.tiles:
            threads = step.tiles if step.numbered else 1
        call = KernelCall(
            template,
            params,
            step.consts,
            threads,
            self.machine,
            {name: self.count(step, a) for name, a in arguments.items()},
            {
                name: ITEMSIZE[self.plan.buffers[a.buffer].dtype] if a.buffer >= 0 else 1
                for name, a in arguments.items()
            },
            {
                name: self.constants[a.buffer]
                for name, a in arguments.items()
                if a.buffer in self.constants
            },
            frozenset(name for name, a in arguments.items() if step.numbered and a.thread),
        )
        reached, written = call.reach(), call.written()
        for at, (name, a) in enumerate(arguments.items()):
            self.check_operand(call, at, name, a, reach_into(reached, name))
            if a.mode == "r" and name in written:
                raise PlanError(f"it writes argument {at} ({name}), which the plan only reads")
        if call.owned:
            self.check_owned(step, call, reached, arguments)

    def count(self, step: PlanStep, a: Arg) -> int:
        """Return the elements from the pointer of an argument on."""
        if a.buffer < 0:
            return 0
        return self.measure_room(step, a) // ITEMSIZE[self.plan.buffers[a.buffer].dtype]

    def check_operand(self, call: KernelCall, at: int, name: str, a: Arg, reach: int) -> None:
        """Check that a call stays inside of one of its operands."""
        if name in call.owned:
            return
        if reach > call.elements[name]:
            label = "null" if a.buffer < 0 else f"%{a.buffer} {self.plan.buffers[a.buffer].name}"
            raise PlanError(
                f"it reaches {reach} elements into argument {at} ({name}), {label}, which has "
                f"{call.elements[name]}"
            )

    def check_owned(
        self, step: PlanStep, call: KernelCall, reached: Reach, arguments: Mapping[str, Arg]
    ) -> None:
        """Check operands that hold one tile per thread, which the kernel finds by itself."""
        tiling = call.template.tiling
        cut = tiling(call.params, step.consts) if tiling is not None else None
        if not isinstance(cut, Blocks):
            raise PlanError("it has no tiles that threads could have each for itself")
        length = int(step.consts[cut.at])
        units = length // cut.per
        if not units or length % cut.per or step.tiles != -(-cut.rows // units):
            raise PlanError(f"{step.tiles} tiles of {length}, {cut.rows} units in all")
        for at, (name, a) in enumerate(arguments.items()):
            if name not in call.owned:
                continue
            size = cut.steps[at] * units
            whole = cut.steps[at] * cut.rows
            reach = reach_into(reached, name) * call.itemsizes[name]
            if size != a.tile or reach > whole:
                raise PlanError(
                    f"tiles of {a.tile} bytes of argument {at} ({name}), which the kernel cuts "
                    f"into tiles of {size}, and reaches {reach} of {whole}"
                )


def find_machine(name: str) -> Machine:
    """Return the machine of a target, by its name or the name of a kernel set for a level.

    Raises:
        PlanError: Python runs no plans for such a target.
    """
    for level in LEVELS:
        if level.name in name.split():
            return Machine.of(level.make_target())
    arch, vector = name.split()[-1].split("/")[0], name.rpartition("/v")[2]
    known = {level.arch for level in LEVELS} & {arch}
    for row in INSTRUCTION_SETS.values():
        if known.intersection(row.architectures) and str(row.vector) == vector:
            return Machine(row.vector, row.mr, row.nv)
    raise PlanError(f"plans for {name!r}, which no process runs")
