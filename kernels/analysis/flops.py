"""Floating-point operations of the products of each step of a plan, and the bytes that it moves.

The calls of a draft, which have no place in memory yet, are counted the same way: a `Task` is a
call of either.

A multiply-add counts as two operations, in matrix products, convolutions, attention and recurrent
networks; the operation counts, whatever algorithm computes it.  A convolution by
Winograd's transforms counts as the direct one, and what attention computes again in its backward
pass counts once.  Kernels that multiply declare it (`Template.multiply_adds`).  All others, as
maps, normalisations and updates, count by the bytes they move.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.base.element_types import ITEMSIZE
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.call import KernelCall
from engine.plan.plan import KernelSpec, Mode, Plan


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a step.

    flops: floating-point operations, of all threads.
    itemsize: bytes of a number that it multiplies.
    moves: bytes that it reads and writes, each byte of an operand once, and of how much different
        memory they are.  Bytes that a step of its group has just written are a move of their own,
        for they are only as much memory as a tile a thread.
    """

    flops: int
    itemsize: int
    moves: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """All bytes that it reads and writes."""
        return sum(nbytes for nbytes, _ in self.moves)


class Use(NamedTuple):
    """A pointer that a call passes.

    name: what tells its buffer from others; None is the null pointer.
    nbytes, elements: of the whole buffer.
    tile, thread: as of `Arg`.
    """

    name: Hashable
    mode: Mode
    nbytes: int
    elements: int
    tile: int = 0
    thread: int = 0


NULL = Use(None, "-", 0, 0)


class Task(NamedTuple):
    """A kernel call, of a plan or of a draft.

    uses: its pointers.  All other fields as in `Step`.
    """

    spec: KernelSpec
    uses: tuple[Use, ...]
    consts: tuple[int | float, ...]
    group: int = 0
    tiles: int = 0
    numbered: bool = False


def list_tasks(plan: Plan) -> list[Task]:
    """List the steps of a plan as tasks, with buffers as their numbers."""
    specs = {kernel.symbol: kernel.spec for kernel in plan.kernels}
    sizes = [(buffer.nbytes, math.prod(buffer.shape)) for buffer in plan.buffers]
    return [
        Task(
            specs[step.kernel],
            tuple(
                [
                    Use(a.buffer, a.mode, *sizes[a.buffer], a.tile, a.thread)
                    if a.buffer >= 0
                    else NULL
                    for a in step.args
                ]
            ),
            step.consts,
            step.group,
            step.tiles,
            step.numbered,
        )
        for step in plan.steps
    ]


def measure_work(plan: Plan) -> list[Work]:
    """Measure the work of every step of a plan."""
    return list(measure_calls(list_tasks(plan), plan.threads))


def measure_calls(calls: Sequence[Task], threads: int) -> Iterator[Work]:
    """Measure the work of calls that run one after another on this many threads."""
    for task, written in follow_groups(calls):
        used = {u.name: u for u in task.uses if u.name is not None and u.mode != "s"}
        moves = _count_moved(task, used, written, threads)
        yield Work(2 * count_operations(task), count_factor_bytes(task.spec), moves)


def count_factor_bytes(spec: KernelSpec) -> int:
    """Count the bytes of what a kernel multiplies: half as many, twice as many operations a second.

    All numbers below 4 bytes are widened to float32, except the factors of products in 16 bits and
    of products of integers.
    """
    factors = find_factors(spec)
    if factors:
        return ITEMSIZE[factors]
    return max(ITEMSIZE.get(str(spec.params[0]), 4), 4) if spec.params else 4


def find_factors(spec: KernelSpec) -> str:
    """Return the type of 16 or 8 bits that a kernel multiplies; "" where it is none."""
    template = list_templates()[spec.template]
    if template.multiply_adds and spec.params[:1] in (("u8",), ("i8",)):
        return str(spec.params[0])
    return str(template.bound(spec.params).get("P") or "")


def follow_groups(calls: Sequence[Task]) -> Iterator[tuple[Task, Container[Hashable]]]:
    """Yield every call with the buffers that earlier calls of its group have written."""
    written, end = set[Hashable](), 0  # the end of the group
    for i, task in enumerate(calls):
        if i >= end:
            written, end = set(), i + task.group
        yield task, written
        written |= {u.name for u in task.uses if u.mode in ("w", "u")}


def count_operations(task: Task) -> int:
    """Count the multiply-adds of a call, of all its tiles."""
    if not list_templates()[task.spec.template].multiply_adds:
        return 0
    count = _call(task).multiply_adds()
    if task.tiles and not task.numbered:  # its numbers are for one tile
        count *= task.tiles
    return count


def _count_moved(
    task: Task, used: Mapping[Hashable, Use], written: Container[Hashable], threads: int
) -> tuple[tuple[int, int], ...]:
    """Return the bytes that a call moves, far and near; see `Work`.

    used: what it reads and writes.
    written: the buffers that calls before it in its group have written.
    """
    sizes = count_touched(task, used)
    far, near, footprint, close = 0, 0, 0, 0
    for name, use in used.items():
        times = 2 if use.mode == "u" else 1
        if use.thread:  # a thread has one tile of it, again and again
            near += times * use.thread * task.tiles
            close += sizes[name]
        elif task.tiles and use.mode == "r" and name in written:
            near += sizes[name]
            close += -(-sizes[name] // task.tiles) * threads
        else:
            far += times * sizes[name]
            footprint += sizes[name]
    return tuple((nbytes, memory) for nbytes, memory in ((far, footprint), (near, close)) if nbytes)


def count_touched(task: Task, used: Mapping[Hashable, Use]) -> dict[Hashable, int]:
    """Count the bytes of each buffer that a call touches.

    Of a table whose elements an index chooses a call touches what it moves from or to it: at most
    as much as of any other buffer.
    """
    sizes = {name: use.nbytes for name, use in used.items()}
    template = list_templates()[task.spec.template]
    if template.touches:
        numbers = _call(task).names()
        operands = zip(template.operand_names(len(task.uses)), task.uses, strict=True)
        for use, count in [(u, template.touches[n]) for n, u in operands if n in template.touches]:
            if use.elements:
                itemsize = use.nbytes // use.elements
                sizes[use.name] = min(use.nbytes, itemsize * template.value(count, numbers))
    for at in template.order.tables:
        table = task.uses[at]
        if table.name is not None and table.mode != "w" and len(sizes) > 1:
            most = max([size for name, size in sizes.items() if name != table.name])
            sizes[table.name] = min(table.nbytes, most)
    return sizes


def _call(task: Task) -> KernelCall:
    """Return the call of a task, with the elements of its operands."""
    template = list_templates()[task.spec.template]
    names = template.operand_names(len(task.uses))
    elements = {n: u.elements for n, u in zip(names, task.uses, strict=True) if u.name is not None}
    return KernelCall(template, task.spec.params, task.consts, elements=elements)
