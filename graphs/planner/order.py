"""Order: the sequence in which the calls of a draft run."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from engine.graphs.planner.lives import Lifetimes, lifetimes, peak, work_bytes
from engine.graphs.planner.lower import Call, Draft


def dependencies(calls: list[Call]) -> list[set[int]]:
    """For each call, the positions of the calls that must come before it.

    These are the writers of what it reads, the readers of what it overwrites, and the writers of
    what it overwrites.
    """
    writer: dict[str, int] = {}
    readers: dict[str, set[int]] = {}
    before: list[set[int]] = []
    for n, call in enumerate(calls):
        need: set[int] = set()
        for mode, name in call.args:
            if not name:
                continue
            if name in writer:
                need.add(writer[name])
            if mode != "r":
                need |= readers.pop(name, set())
        for mode, name in call.args:
            if name and mode != "r":
                writer[name] = n
            if name and mode in "ru":
                readers.setdefault(name, set()).add(n)
        need.discard(n)
        before.append(need)
    return before


def _greedy(calls: list[Call], sizes: Mapping[str, int]) -> list[Call]:
    """An order in which each next call is the one after which the fewest bytes live.

    Of equal ones the first is taken.  This is a heuristic: the best order is NP-hard to find.  The
    time goes with the number of values that calls touch, times its logarithm: the growth of a call
    that is ready changes only when a value it touches becomes alive, or has one use left.
    """
    before = dependencies(calls)
    after: list[list[int]] = [[] for _ in calls]
    for n, need in enumerate(before):
        for m in need:
            after[m].append(n)
    missing = [len(need) for need in before]
    touched = [{name for _, name in call.args if name in sizes} for call in calls]
    users: dict[str, list[int]] = {}  # value -> the calls that touch it
    for n, names in enumerate(touched):
        for name in names:
            users.setdefault(name, []).append(n)
    uses = {name: len(found) for name, found in users.items()}
    alive: set[str] = set()
    ready: dict[int, int] = {}  # call -> by how many bytes the live memory grows with it
    waiting: list[tuple[int, int]] = []  # heap of growths and calls, some of them outdated
    order: list[Call] = []

    def offer(n: int) -> None:
        """Make call n ready, or put its growth right."""
        born = sum(sizes[x] for x in touched[n] if x not in alive)
        dead = sum(sizes[x] for x in touched[n] if uses[x] == 1)
        if ready.get(n) != born - dead:
            ready[n] = born - dead
            heapq.heappush(waiting, (born - dead, n))

    for n, count in enumerate(missing):
        if count == 0:
            offer(n)
    while waiting:
        growth, n = heapq.heappop(waiting)
        if ready.get(n) != growth:
            continue
        del ready[n]
        order.append(calls[n])
        changed: set[int] = set()
        for name in touched[n]:
            uses[name] -= 1
            if name not in alive or uses[name] == 1:
                changed.update(users[name])
            alive.add(name)
        for m in changed & ready.keys():
            offer(m)
        for m in after[n]:
            missing[m] -= 1
            if missing[m] == 0:
                offer(m)
    return order


def order(draft: Draft) -> Lifetimes:
    """Put the calls in the greedy order, if fewer bytes then live at once.

    Returns the lifetimes of the values in the order that the calls then have.
    """
    sizes, lives = work_bytes(draft), lifetimes(draft, draft.calls)
    candidate = _greedy(draft.calls, sizes)
    others = lifetimes(draft, candidate)
    if peak(others, sizes) < peak(lives, sizes):
        draft.calls, lives = candidate, others
    return lives
