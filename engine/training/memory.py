"""The memory that all plans of a module share, and the programs that are kept in it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.base.aliases import Array, Bytes
from engine.base.plan_options import DEFAULTS, PlanOptions
from engine.plan.plan import Plan, align
from engine.runtime import mapping
from engine.runtime.arena import allocate
from engine.runtime.constant_steps import MadeValues
from engine.runtime.mapping import MappedFile
from engine.runtime.program import BoundProgram
from engine.system.config import plan_bytes
from engine.system.lock import RunLock
from engine.training.loss_scale import LossScale
from engine.training.state import CheckpointState

if TYPE_CHECKING:
    from engine.kernels.binaries.source import KernelSet


_memories: weakref.WeakSet[Memory] = weakref.WeakSet()


def _renew_locks() -> None:
    """Replace all locks in a forked child, where a thread that held one does not exist."""
    for memory in _memories:
        memory.lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class Memory:
    """The memory that all plans of a module share: work memory, inputs and outputs, constants.

    work, io: these regions, as large as the largest plan so far has needed.
    frozen: the large constants.  laid: by offset, the bytes of those that stay in their file.
    files: the files of these constants.
    constants: the contents of region const by their digests.
    made: what plans make once, by the digests of the steps that make it.
    programs: the programs of the models' plans, the least recently used first; a key has all that
        decides a plan.
    others: programs with inputs and outputs of their own, which their owners keep.
    kernels: the kernel set of all programs.
    planning: the options of the plans; the budget does not count mapped bytes.
    scaling: the scaling of the loss in training steps, by default as the precision needs it; None
        if the loss is not scaled.
    prepared: the names of kernel sets with plans beside the artifacts, which are preferred.
    lock: the lock that a run holds, because runs share the memory.
    """

    def __init__(
        self,
        kernels: KernelSet | None = None,
        planning: PlanOptions = DEFAULTS,
        lock: RunLock | None = None,
    ) -> None:
        """Start without programs.

        lock: the lock of another memory, if runs in both take turns.
        """
        self.work: Bytes = allocate(0)
        self.io: Bytes = allocate(0)
        self.frozen: Bytes = allocate(0)
        self.laid: dict[int, int] = {}
        self.files: tuple[MappedFile, ...] = ()
        self.constants: weakref.WeakValueDictionary[bytes, Bytes] = weakref.WeakValueDictionary()
        self.made: weakref.WeakValueDictionary[bytes, MadeValues] = weakref.WeakValueDictionary()
        self.programs: dict[tuple[Any, ...], BoundProgram] = {}
        self.others: weakref.WeakSet[BoundProgram] = weakref.WeakSet()
        self.planning = planning
        self.scaling = LossScale.choose(planning.precision)
        self.prepared: set[str] = set()
        self._kernels = kernels
        self.lock = RunLock("a step of this model") if lock is None else lock
        _memories.add(self)

    @property
    def kernels(self) -> KernelSet:
        """The set of kernels, chosen when first asked for and then kept.

        It is the best that this process can run, of those that plans have been prepared for if
        there are any.

        Raises:
            EngineError: no kernels can run here.
        """
        if self._kernels is None:
            from engine.kernels.binaries import source

            self._kernels = source.choose_current(self.prepared)
        return self._kernels

    @property
    def mapped(self) -> int:
        """Bytes of region frozen that stay in their file: no memory of this process alone."""
        return sum(self.laid.values())

    @property
    def room(self) -> int | None:
        """The bytes that all regions of a plan may have together: what is mapped is not counted."""
        budget = self.planning.budget
        return None if budget is None else budget + self.mapped

    @property
    def planner_options(self) -> PlanOptions:
        """The options of planners, which count mapped bytes in a budget."""
        return replace(self.planning, budget=self.room)

    def get_regions(self, state: CheckpointState) -> dict[str, Bytes]:
        """Return the bytes of every region that all programs share."""
        return {**state.regions, "work": self.work, "frozen": self.frozen}

    def grow(self, plan: Plan, state: CheckpointState) -> None:
        """Make the shared regions large enough for a plan; bind all programs again if one moves.

        Region grad is made for the first plan that has buffers in it.
        """
        what, work, io = (
            f"plan {plan.name}",
            plan.compute_region_bytes("work"),
            plan.compute_region_bytes("io"),
        )
        moves = work > self.work.nbytes or io > self.io.nbytes
        if work > self.work.nbytes:
            self.work = allocate(work, zero=False, what=what)
        if io > self.io.nbytes:
            self.io = allocate(io, what=what)
        if any(buffer.region == "grad" for buffer in plan.buffers):
            state.allocate_gradients()
        if moves:
            for program in self.others:
                program.bind(self.get_regions(state))
            for program in self.programs.values():
                program.bind({**self.get_regions(state), "io": self.io})

    def use_program(self, key: tuple[Any, ...]) -> BoundProgram | None:
        """Return a program that is kept, from now on the one used last."""
        for latest, kept in reversed(self.programs.items()):
            if latest is key:  # no hash of its many parts is needed
                return kept
            break
        program = self.programs.pop(key, None)
        if program is not None:
            self.programs[key] = program
        return program

    def keep(self, key: tuple[Any, ...], program: BoundProgram) -> None:
        """Keep a new program; programs long not used go while the limit is passed.

        `config.plan_bytes` limits the memory that programs have for themselves, and what they make
        of the weights beyond one copy.
        """
        self.programs[key] = program
        while self._count_bytes() > plan_bytes() and len(self.programs) > 1:
            del self.programs[next(iter(self.programs))]

    def _count_bytes(self) -> int:
        """Return the bytes of all programs, without the largest of their regions made."""
        made = {id(p.made): p.made.memory.nbytes for p in self.programs.values()}
        return sum(p.nbytes for p in self.programs.values()) + sum(sorted(made.values())[:-1])

    def lay_constants(self, arrays: Sequence[Array]) -> list[int]:
        """Make region frozen for large constants and return their offsets there.

        Constants of external data stay in their file, at multiples of `ALIGN` there: the region
        maps the pages of the file.  The caller writes the values of the others.
        """
        mapped = [mapping.find_layable(array) for array in arrays]
        pieces = [piece for piece in mapped if piece is not None]
        places, laid, top = mapping.lay_out(pieces)
        placed = iter(places)
        offsets = []
        for array, piece in zip(arrays, mapped, strict=True):
            if piece is not None:
                offsets.append(next(placed))
            else:
                offsets.append(top)
                top += align(array.nbytes)
        if laid:
            self.frozen = mapping.make_region(top, laid, what="constants")
        else:
            self.frozen = allocate(top, what="constants")
        self.laid = {at: piece.nbytes for at, piece in zip(places, pieces, strict=True)}
        self.files = tuple({id(piece.file): piece.file for piece in pieces}.values())
        return offsets
