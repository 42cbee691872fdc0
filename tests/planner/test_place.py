"""Placement and order, as properties over random lifetimes and random graphs of calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.graphs.planner import place as placing
from engine.graphs.planner.assemble import assemble
from engine.graphs.planner.barriers import find_barriers
from engine.graphs.planner.draft import Draft, DraftCall
from engine.graphs.planner.lifetimes import (
    MemoryBlock,
    Tally,
    compute_liveness_bound,
    count_work_bytes,
    find_lifetimes,
    merge_inplace,
)
from engine.graphs.planner.order import find_least_peak, order
from engine.graphs.planner.order_bounds import Cuts
from engine.graphs.planner.place import place
from engine.kernels.vocabulary.op import TensorType
from engine.plan.plan import KernelSpec

NUMBERS = (1, 256, 1)  # of a map: rows, elements of a row, whether threads share them

blocks = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=40
).map(
    lambda rows: [
        MemoryBlock([str(i)], size * 64, min(a, b), max(a, b))
        for i, (size, a, b) in enumerate(rows)
    ]
)


def check_placed(placed: Sequence[MemoryBlock], top: int) -> None:
    """Check that all blocks end below the top, and that none shares bytes while it lives."""
    for i, a in enumerate(placed):
        assert 0 <= a.offset <= top - a.nbytes
        for b in placed[:i]:
            if a.first <= b.last and b.first <= a.last:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def random_blocks(seed: int, count: int, calls: int, life: int) -> list[MemoryBlock]:
    """Blocks of 1 to 39 cache lines that begin at any of some calls."""
    rng = np.random.default_rng(seed)
    births = rng.integers(0, calls, count)
    sizes, lives = rng.integers(1, 40, count), rng.integers(0, life, count)
    return [
        MemoryBlock([], 64 * int(n), int(a), int(a + b))
        for n, a, b in zip(sizes, births, lives, strict=True)
    ]


@given(blocks, st.sampled_from([2, placing.SHARE]), st.sampled_from([0, placing.MANY]))
@settings(max_examples=200, deadline=None)
def test_placement_is_disjoint_and_bounded(
    given_blocks: list[MemoryBlock], share: int, many: int
) -> None:
    """Whichever blocks are large, and where they are too many for orders."""
    with mock.patch.object(placing, "SHARE", share), mock.patch.object(placing, "MANY", many):
        top = place(given_blocks)
    bound = compute_liveness_bound(given_blocks)
    assert bound <= top == max(b.offset + b.nbytes for b in given_blocks)
    check_placed(given_blocks, top)


def test_nothing_to_place_takes_no_bytes() -> None:
    assert place([]) == 0


def test_blocks_that_reach_too_high_are_placed_again() -> None:
    """No order by size, life, birth or death alone meets the bound here."""
    rows = [(4, 1, 5), (1, 1, 3), (4, 4, 8), (2, 6, 9), (3, 6, 7), (1, 5, 9)]
    given_blocks = [MemoryBlock([str(i)], 64 * n, a, b) for i, (n, a, b) in enumerate(rows)]
    assert place(given_blocks) == compute_liveness_bound(given_blocks)


@pytest.mark.parametrize(("count", "seed"), [(20, 2), (40, 0), (40, 32), (60, 35)])
def test_orders_made_from_what_went_wrong_come_near_the_bound(
    count: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first order does not; and the result is the same every time."""
    one, two, plain = (random_blocks(seed, count, 30, 20) for _ in range(3))
    bound, top = compute_liveness_bound(one), place(one)
    assert top <= 1.01 * bound
    check_placed(one, top)
    place(two)
    assert [b.offset for b in one] == [b.offset for b in two]
    monkeypatch.setattr(placing, "ROUNDS", 1)
    assert place(plain) > 1.03 * bound


def random_draft(rng: np.random.Generator, count: int) -> Draft:
    """Calls that read earlier values and write one of their own, some of them in place."""
    draft = Draft()
    draft.add("x", TensorType("f32", (256,)), region="io")
    draft.inputs.append(("x", "x"))
    names = ["x"]
    for n in range(count):
        size = 256 if rng.random() < 0.7 else int(rng.integers(1, 2000))
        name = f"v{n}"
        draft.add(name, TensorType("f32", (size,)))
        sources = rng.choice(names[-6:], size=min(len(names), int(rng.integers(1, 4))))
        reads: list[tuple[Literal["r"], str]] = [("r", str(s)) for s in dict.fromkeys(sources)]
        operands = " ".join(f"{letter}:f32[]" for letter in "abc"[: len(reads)])
        spec = KernelSpec("map", (f"{operands} -> y:f32[] = neg(a)", 0))
        draft.calls.append(
            DraftCall(spec, (*reads, ("w", name)), NUMBERS, name, "fwd", ((len(reads), 0),))
        )  # fmt: skip
        names.append(name)
    draft.add("y", TensorType("f32", (256,)), region="io")
    spec = KernelSpec("map", ("a:f32[] -> y:f32[] = neg(a)", 0))
    draft.calls.append(DraftCall(spec, (("r", names[-1]), ("w", "y")), NUMBERS, "y", "fwd", ()))
    draft.outputs.append(("y", "y", (256,)))
    return draft


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_give_verified_plans(seed: int) -> None:
    draft = random_draft(np.random.default_rng(seed), 40)
    before = compute_liveness_bound(merge_inplace(draft, find_lifetimes(draft, draft.calls)))
    lives = order(draft)
    assert lives == find_lifetimes(draft, draft.calls)
    plan = assemble(draft, "x", 2, {}, "random")
    assert plan.lower_bound <= before
    assert plan.lower_bound <= plan.compute_region_bytes("work")
    assert plan.ratio < 1.25


@pytest.mark.parametrize("seed", range(30))
def test_order_keeps_every_dependency(seed: int) -> None:
    draft = random_draft(np.random.default_rng(seed), 40)
    order(draft)
    written = {"x"}
    for call in draft.calls:
        assert call.list_touched("r") <= written
        written |= call.list_touched("w")


def orders(before: Sequence[set[int]], begin: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """All orders of calls, given what must come before each."""
    if len(begin) == len(before):
        yield begin
    for n, need in enumerate(before):
        if n not in begin and need.issubset(begin):
            yield from orders(before, (*begin, n))


@pytest.mark.parametrize("seed", range(12))
def test_no_order_has_fewer_bytes_at_a_call_than_its_cut(seed: int) -> None:
    """And some order has as few: all orders of eight calls are looked at."""
    draft = random_draft(np.random.default_rng(seed), 7)
    cuts, tally = Cuts(draft.calls, count_work_bytes(draft)), Tally(draft)
    least, peaks = [1 << 60] * len(draft.calls), list[int]()
    for each in orders(cuts.before):
        live = tally.count_live(each)
        peaks.append(max(live))
        for n, nbytes in zip(each, live, strict=True):
            least[n] = min(least[n], nbytes)
    leasts = [cuts.find_least(n) for n in range(len(least))]
    assert [cut.nbytes for cut in leasts] == least
    assert all(cut.fewest <= cut.most for cut in leasts)
    first = range(len(least))
    assert (
        find_least_peak(cuts, first, tally.count_live(first), len(first))
        == max(least)
        <= min(peaks)
    )
    order(draft)
    assert compute_liveness_bound(merge_inplace(draft, find_lifetimes(draft, draft.calls))) == min(
        peaks
    )


@pytest.mark.parametrize("seed", range(10))
def test_bytes_are_tallied_as_blocks_have_them(seed: int) -> None:
    """In the order of the graph, and in one that the planner makes."""
    draft = random_draft(np.random.default_rng(seed), 40)
    for _ in range(2):
        blocks = merge_inplace(draft, find_lifetimes(draft, draft.calls))
        live = [
            sum(b.nbytes for b in blocks if b.first <= n <= b.last) for n in range(len(draft.calls))
        ]
        assert Tally(draft).count_live(range(len(live))) == live
        order(draft)


@pytest.mark.parametrize("seed", range(10))
def test_a_barrier_stands_before_every_conflict(seed: int) -> None:
    draft = random_draft(np.random.default_rng(seed), 30)
    spans = {
        n: (draft.values[n].region, i * 8192, i * 8192 + draft.values[n].nbytes)
        for i, n in enumerate(find_lifetimes(draft, draft.calls))
    }
    meets = find_barriers(draft.calls, spans)
    open_writes: set[str] = set()
    for call, meet in zip(draft.calls, meets, strict=True):
        if meet:
            open_writes = set()
        assert not call.list_touched("r") & open_writes
        open_writes |= call.list_touched("w")


@pytest.mark.parametrize(("count", "life"), [(200, 9), (1000, 1000), (3000, 3000), (20_000, 9)])
def test_blocks_are_placed_again_as_far_as_work_allows(
    count: int, life: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more blocks are compared than `WORK` in all rounds of an order, unless there is one."""
    compared, most = list[int](), 0

    def counted(placement: placing._Placement, order: list[int]) -> list[int]:
        nonlocal most
        compared.append(sum(len(placement.near[n]) for n in order))
        most = max(most, compared[-1])
        return stack(placement, order)

    stack = placing._Placement._stack
    monkeypatch.setattr(placing, "WORK", 300_000)
    monkeypatch.setattr(placing._Placement, "_stack", counted)
    monkeypatch.setattr(placing, "SHARE", 1 << 40)
    place(random_blocks(0, count, count, life))
    assert sum(compared) <= 2 * max(placing.WORK, most)
    assert (not compared) == (count > placing.MANY)
