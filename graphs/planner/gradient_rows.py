"""Embedding gradients by rows: the gradient of a table is computed block by block, in its update.

The gradient of an embedding is as large as the table, and 0 except in the rows that the batch
reads.  In a plan that also updates, only updates read it, and they walk it in order.  So each
update gets its own call that computes the gradient, and both run on one block of rows after
another.  Only one block of the gradient exists per thread.

    Before   gather_grad(index, dy, dx); ...; adam(p, dx, m, v)
    After    index_chains(index, first, next); ...;
             for each of 250 tiles: gather_grad_rows(first, next, dy, dx); adam(p, dx, m, v)

*Ensures* that each row is the same sum in the same order.  If a gradient is read twice, for example
for clipping by its norm, it is computed twice, which costs little because a block stays in the
cache.  A gradient that something else reads, too, for example of a table that is also the weight of
a product, stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from engine.graphs.planner.draft import Draft, DraftCall, TileCut, Value
from engine.kernels.loops.blocks import Blocks
from engine.kernels.machine.target import Target
from engine.kernels.ops.index.gather import gather_grad
from engine.kernels.ops.index.gradient_rows import gather_grad_rows, index_chains
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.op import TensorType
from engine.plan.plan import KernelSpec, Mode

Args: TypeAlias = tuple[tuple[Mode, str], ...]

# Tiles that each thread gets, at least: the others wait for the last one for an eighth of the time
# at most.  By `python -m bench budgets.constants`, with 1 or 64 plans of MiniLM are the same: its
# table has enough tiles, and the cost model takes threads for equal.
TURNS = 8
# Times the blocks of all threads: what a gradient takes that is made in blocks, so that these save
# half of its bytes.  By the same command, with 1 plans of MiniLM are the same; without any blocks
# its steps are 2.7 % longer, and its least budget is 45.8 % instead of 29.5.
WORTH = 2


def makes_rows(call: DraftCall) -> bool:
    """Return whether a call computes rows of a gradient for one reader, to be in its group."""
    return call.spec.template == gather_grad_rows.name


def is_update(call: DraftCall) -> bool:
    """Return whether a call of a group is in an update's group, which cannot be taken apart."""
    return call.phase == "opt"


def make_rows(draft: Draft, target: Target, threads: int) -> None:
    """Replace the gradients of tables that only updates read, in place.

    Each call computes a value of one block per thread.  `pair_calls` makes a group of the call and
    its reader; until then, `move_beside` keeps them next to each other.
    """
    users: dict[str, list[int]] = {}
    tables: dict[int, _TableGradient] = {}
    for n, call in enumerate(draft.calls):
        table = _find_table(draft, call)
        if table is not None:
            tables[n] = table
    for n, call in enumerate(draft.calls if tables else ()):
        for name in dict.fromkeys(name for _, name in call.args if name):
            users.setdefault(name, []).append(n)
    others: dict[int, list[DraftCall]] = {}  # calls in the place of one
    for n, table in tables.items():
        readers = [m for m in users[table.dx.name] if m != n]
        lengths = [table.choose_block(draft.calls[m], target, threads) for m in readers]
        if not readers or not all(lengths):
            continue
        others[n] = [table.chain_rows(draft)]
        for k, (m, length) in enumerate(zip(readers, lengths, strict=True)):
            name = draft.name_fresh(f"{table.dx.name}/rows{k}")
            others[m] = table.make_row_calls(draft, draft.calls[m], name, length, threads)
        del draft.values[table.dx.name]
    draft.calls = [made for n, call in enumerate(draft.calls) for made in others.get(n, [call])]


def move_beside(calls: Sequence[DraftCall]) -> list[DraftCall]:
    """Return the calls, with calls that compute rows directly before their readers."""
    waiting: dict[str, DraftCall] = {}
    ordered: list[DraftCall] = []
    for call in calls:
        if makes_rows(call):
            waiting[call.args[-1][1]] = call
            continue
        ordered += [waiting.pop(name) for _, name in call.args if name in waiting]
        ordered.append(call)
    return ordered


def pair_calls(draft: Draft, maker: DraftCall, reader: DraftCall) -> list[DraftCall]:
    """Return the group of a call that computes rows of a gradient, and its reader."""
    dx = draft.values[maker.args[-1][1]]
    rows, inner = map(int, maker.consts[:2])
    length = dx.type.dims[1]
    tiles = -(-rows * inner // length)
    return [
        _cut(call, dx, length, TileCut(group, tiles, True, ()))
        for call, group in ((maker, 2), (reader, 0))
    ]


@dataclass(frozen=True, slots=True)
class _TableGradient:
    """A call that computes the gradient of a table [n, inner] from the gradient of the rows read.

    dx: the gradient.  index, dy, fault: the other operands of the call.
    first, next: the names of the chains of rows.
    """

    call: DraftCall
    dx: Value
    index: str
    dy: str
    fault: str
    first: str
    next: str
    n: int
    count: int
    inner: int

    def choose_block(self, reader: DraftCall, target: Target, threads: int) -> int:
        """Return the elements of a block that a reader can take; 0 if it needs the whole gradient.

        A block consists of whole rows, and of the units in which the reader works; all bytes that
        the reader touches for a block are about `target.tile_bytes`.
        """
        blocks = _find_blocks(reader)
        modes = [mode for mode, name in reader.args if name == self.dx.name]
        if blocks is None or modes != ["r"] or not is_update(reader):
            return 0
        size = self.n * self.inner
        if -(-size // blocks.unit) != blocks.rows:
            return 0
        if self.dx.nbytes < target.tile_bytes:
            return 0
        least = math.lcm(blocks.unit, self.inner)
        touched = sum(blocks.steps) * (least // blocks.unit)
        most = min(target.tile_bytes // touched, size // (TURNS * threads * least))
        length = least * max(most, 1)
        return length if WORTH * threads * length <= size else 0

    def chain_rows(self, draft: Draft) -> DraftCall:
        """Return the call that chains the rows that were read."""
        for name, size in ((self.first, self.n), (self.next, self.count)):
            draft.add(name, TensorType("i64", (size,)))
        args: Args = (
            ("r", self.index), ("w", self.first), ("w", self.next), ("u", self.fault),
        )  # fmt: skip
        spec = KernelSpec(*index_chains("i64"))
        return replace(self.call, spec=spec, args=args, consts=(self.n, self.count))

    def make_row_calls(
        self, draft: Draft, reader: DraftCall, name: str, length: int, threads: int
    ) -> list[DraftCall]:
        """Return the call that computes rows for a reader, and the reader of this name."""
        T = self.dx.type.dtype
        draft.add(name, TensorType(T, (threads, length)))
        args: Args = (("r", self.first), ("r", self.next), ("r", self.dy), ("w", name))
        spec = KernelSpec(*gather_grad_rows(*self.call.spec.params))
        consts = (self.n, self.inner, 1, self.count)
        made = replace(self.call, spec=spec, args=args, consts=consts, phase=reader.phase)
        read = tuple((mode, name if x == self.dx.name else x) for mode, x in reader.args)
        return [made, replace(reader, args=read)]


def _find_table(draft: Draft, call: DraftCall) -> _TableGradient | None:
    """Return the table whose gradient along its first axis a call computes; None if none."""
    if call.spec.template != gather_grad.name:
        return None
    numbers = gather_grad.named(call.spec.params, call.consts)
    (_, index), (_, dy), (mode, dx), _, (_, fault) = call.args
    value = draft.values[dx]
    n, inner = numbers["n"], numbers["inner"]
    is_whole = mode == "w" and value.region == "work" and value.type.dims[:1] == (n,)
    if not is_whole or numbers["outer"] != 1:
        return None
    first, following = (draft.name_fresh(f"{dx}/{part}") for part in ("first", "next"))
    return _TableGradient(
        call, value, index, dy, fault, first, following, n, numbers["count"], inner
    )


def _find_blocks(call: DraftCall) -> Blocks | None:
    """Return how a call is cut into blocks; None if it is not."""
    rule = list_templates()[call.spec.template].tiling
    tiling = None if rule is None else rule(call.spec.params, call.consts)
    return tiling if isinstance(tiling, Blocks) else None


def _cut(call: DraftCall, dx: Value, length: int, cut: TileCut) -> DraftCall:
    """Return the form of a call for a tile of this many elements of a gradient.

    cut: its tiling, except for the pointers.
    """
    blocks = _find_blocks(call)
    assert blocks is not None
    units = length // blocks.unit
    moves = [
        (step * units, step * units if name == dx.name else 0)
        for (_, name), step in zip(call.args, blocks.steps, strict=True)
    ]
    consts = list(call.consts)
    consts[blocks.at] = units * blocks.per
    return replace(call, consts=tuple(consts), cut=replace(cut, args=tuple(moves)))
