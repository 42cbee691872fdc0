"""Check that no step of a plan reaches outside its operands.

`verify` (engine/runtime/verify.py) knows where operands lie, this module how far kernels reach from
their pointers.  SECURITY.md, "Prepared plans", says which plans are checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from engine.element_types import ITEMSIZE
from engine.errors import PlanError
from engine.kernels.loops.blocks import Blocks
from engine.kernels.reach import conv, index, loops, losses, nets, optimizer, sampling
from engine.kernels.reach.call import OPERANDS, Call, Declared, Machine
from engine.kernels.registry import templates
from engine.kernels.vocabulary.kernel import Template
from engine.runtime.plan import Arg, Kernel, Plan, Step

DECLARED: Mapping[str, Declared] = {
    name: declared
    for family in (conv, index, loops, losses, nets, optimizer, sampling)
    for name, declared in family.TABLE.items()
}
# Kernels of the runtime itself, which call what addresses among their words say: no plan has them.
UNPLANNED = frozenset({"launch", "worker", "timed", "peak", "stream"})


def check(plan: Plan, machine: Machine) -> Plan:
    """Check the reach of every step of a plan that `verify` has let pass, and return it.

    machine: what the plan's kernels are compiled for.

    Raises:
        PlanError: naming the step, the operand, how far the kernel reaches and what is there; or
            what is wrong with the numbers of a step or the parameters of a kernel.
    """
    _Check(plan, machine).run()
    return plan


class _Takes(NamedTuple):
    """What a kernel of a plan takes, by name."""

    template: Template
    declared: Declared
    pointers: tuple[str, ...]
    scalars: tuple[str, ...]
    words: str  # the parameter that is a run of words, or ""


class _Check:
    def __init__(self, plan: Plan, machine: Machine) -> None:
        self.plan, self.machine = plan, machine
        self.constants = dict(plan.constants)
        self.sizes = [ITEMSIZE[b.dtype] * math.prod(b.shape) for b in plan.buffers]
        self.kernels = {kernel.symbol: kernel for kernel in plan.kernels}
        self.known: dict[tuple[Any, ...], None] = {}  # calls that have passed

    def run(self) -> None:
        takes = {symbol: self.takes(kernel) for symbol, kernel in self.kernels.items()}
        for n, step in enumerate(self.plan.steps):
            own = tuple(self.room(step, a) for a in step.args)
            modes = tuple(a.mode for a in step.args)
            cuts = tuple((a.tile, a.thread) for a in step.args) if step.tiles else ()
            types = tuple(self.plan.buffers[a.buffer].dtype for a in step.args)
            key = (step.kernel, step.consts, step.tiles, step.numbered, own, modes, cuts, types)
            if key in self.known:
                continue
            try:
                self.step(step, takes[step.kernel])
            except PlanError as error:
                self.refuse(f"step {n} {step.kernel} ({step.source}): {error}")
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # Parameters and words that no kernel has, of which a rule makes nothing.
                self.refuse(
                    f"step {n} {step.kernel} ({step.source}): {type(error).__name__} {error}"
                )
            if not any(a.buffer in self.constants for a in step.args):
                self.known[key] = None

    def refuse(self, text: str) -> NoReturn:
        raise PlanError(f"plan {self.plan.name}: {text}")

    def takes(self, kernel: Kernel) -> _Takes:
        """The declaration of a kernel, which the plan must call as it is declared."""
        spec = kernel.spec
        template, declared = templates().get(spec.template), DECLARED.get(spec.template)
        if template is None or declared is None or spec.template in UNPLANNED:
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
        pointers = tuple(name for name, kind in template.signature if kind.endswith("*"))
        scalars = tuple(n for n, kind in template.signature if kind in ("i64", "f64"))
        words = next((n for n, kind in template.signature if kind.endswith("[]")), "")
        return _Takes(template, declared, pointers, scalars, words)

    def room(self, step: Step, a: Arg) -> int:
        """Bytes behind the pointer of an argument, of a step in a group of any of its tiles."""
        if a.buffer < 0:
            return 0
        size = self.sizes[a.buffer]
        if not step.tiles or step.numbered:
            return size
        return a.thread or size - a.tile * (step.tiles - 1)

    def step(self, step: Step, takes: _Takes) -> None:
        """Check one call."""
        params = self.kernels[step.kernel].spec.params
        numbers: dict[str, Any] = dict(zip(takes.scalars, step.consts, strict=False))
        fields: Mapping[str, Any] = {}
        layout = takes.template.layouts(params).get(takes.words)
        if layout is not None:
            fields = layout.fields
            numbers |= layout.unpack(step.consts[len(takes.scalars) :])
        names = self.names(takes, len(step.args))
        if len(names) != len(step.args):
            raise PlanError(f"{len(step.args)} operands; it has {len(names)}")
        owned = frozenset(
            name for name, a in zip(names, step.args, strict=True) if step.numbered and a.thread
        )
        contents = {
            name: self.constants[a.buffer]
            for name, a in zip(names, step.args, strict=True)
            if a.buffer in self.constants
        }
        threads = self.plan.threads
        if step.tiles:
            threads = step.tiles if step.numbered else 1
        elements = {name: self.count(step, a) for name, a in zip(names, step.args, strict=True)}
        call = Call(
            params, numbers, threads, self.machine, elements, contents, owned, takes.declared
        )
        call.itemsizes = {
            name: ITEMSIZE[self.plan.buffers[a.buffer].dtype] if a.buffer >= 0 else 1
            for name, a in zip(names, step.args, strict=True)
        }
        call.check({n: v for n, v in numbers.items() if not isinstance(v, float)}, fields)
        reached = takes.declared.reach(call)
        written = self.written(takes, call)
        for at, (name, a) in enumerate(zip(names, step.args, strict=True)):
            self.operand(step, call, at, name, a, self.reach_of(reached, name))
            if a.mode == "r" and name in written:
                raise PlanError(f"it writes argument {at} ({name}), which the plan only reads")
        if owned:
            self.owned(step, takes, call, names)

    def names(self, takes: _Takes, count: int) -> list[str]:
        """The names of the operands of a call: those behind the declared ones by numbers."""
        fixed = list(takes.pointers)
        if takes.template.operands is not None:
            fixed += [f"{OPERANDS}{i}" for i in range(count - len(fixed))]
        return fixed

    def reach_of(self, reached: Mapping[str, int | Sequence[int]], name: str) -> int:
        if name.startswith(OPERANDS):
            found, at = reached.get(OPERANDS, ()), int(name[len(OPERANDS) :])
            assert not isinstance(found, int)
            return found[at] if at < len(found) else 0
        size = reached.get(name, 0)
        assert isinstance(size, int)
        return size

    def written(self, takes: _Takes, call: Call) -> set[str]:
        """The operands that a call writes."""
        found = set(takes.declared.writes)
        if takes.declared.written is not None:
            found |= {f"{OPERANDS}{i}" for i in takes.declared.written(call)}
        return found

    def count(self, step: Step, a: Arg) -> int:
        """The elements behind the pointer of an argument."""
        if a.buffer < 0:
            return 0
        return self.room(step, a) // ITEMSIZE[self.plan.buffers[a.buffer].dtype]

    def operand(self, step: Step, call: Call, at: int, name: str, a: Arg, reach: int) -> None:
        """Check that a call stays inside of one of its operands."""
        if name in call.owned:
            return
        if reach > call.elements[name]:
            label = "null" if a.buffer < 0 else f"%{a.buffer} {self.plan.buffers[a.buffer].name}"
            raise PlanError(
                f"it reaches {reach} elements into argument {at} ({name}), {label}, which has "
                f"{call.elements[name]}"
            )

    def owned(self, step: Step, takes: _Takes, call: Call, names: Sequence[str]) -> None:
        """Check operands of which a thread has one tile at a time, that the kernel finds."""
        tiling = takes.template.tiling
        cut = tiling(call.params, step.consts) if tiling is not None else None
        if not isinstance(cut, Blocks):
            raise PlanError("it has no tiles that threads could have each for itself")
        length = int(step.consts[cut.at])
        units = length // cut.per
        if not units or length % cut.per or step.tiles != -(-cut.rows // units):
            raise PlanError(f"{step.tiles} tiles of {length}, {cut.rows} units in all")
        reached = takes.declared.reach(call)
        for at, (name, a) in enumerate(zip(names, step.args, strict=True)):
            if name not in call.owned:
                continue
            size = cut.steps[at] * units
            whole = cut.steps[at] * cut.rows
            reach = self.reach_of(reached, name) * call.itemsizes[name]
            if size != a.tile or reach > whole:
                raise PlanError(
                    f"tiles of {a.tile} bytes of argument {at} ({name}), which the kernel cuts "
                    f"into tiles of {size}, and reaches {reach} of {whole}"
                )


def undeclared() -> list[str]:
    """The kernels of this package without a declared reach, but for those that no plan has."""
    return sorted(templates().keys() - DECLARED.keys() - UNPLANNED)
