"""Order: the sequence in which the calls of a draft run, and how long each value then lives."""

from __future__ import annotations

from engine.graphs.planner.lower import Call, Draft
from engine.runtime.plan import align

Lifetimes = dict[str, tuple[int, int]]  # value -> the first and the last call that touch it


def lifetimes(draft: Draft, calls: list[Call]) -> Lifetimes:
    """The first and the last call that touch each value.

    Values of all regions but "work" live throughout the run.
    """
    lives: Lifetimes = {}
    for n, call in enumerate(calls):
        for name in call.touched("rwus"):
            first, _ = lives.get(name, (n, n))
            lives[name] = (first, n)
    end = max(len(calls) - 1, 0)
    for name, value in draft.values.items():
        if value.root == name and value.region != "work":
            lives[name] = (0, end)
    return lives


def peak(draft: Draft, calls: list[Call]) -> int:
    """The most bytes of work values that live at one call: no placement can need less."""
    change = [0] * (len(calls) + 1)
    for name, (first, last) in lifetimes(draft, calls).items():
        value = draft.values[name]
        if value.region == "work":
            change[first] += align(value.nbytes)
            change[last + 1] -= align(value.nbytes)
    top = now = 0
    for c in change:
        now += c
        top = max(top, now)
    return top


def _dependencies(calls: list[Call]) -> list[set[int]]:
    """For each call, the positions of the calls that must come before it.

    These are the writers of what it reads, the readers of what it overwrites, and the writers of
    what it overwrites.
    """
    writer: dict[str, int] = {}
    readers: dict[str, set[int]] = {}
    before: list[set[int]] = []
    for n, call in enumerate(calls):
        need: set[int] = set()
        for name in call.touched("rus"):
            if name in writer:
                need.add(writer[name])
        for name in call.touched("wus"):
            need |= readers.pop(name, set())
            if name in writer:
                need.add(writer[name])
        for name in call.touched("wus"):
            writer[name] = n
        for name in call.touched("ru"):
            readers.setdefault(name, set()).add(n)
        need.discard(n)
        before.append(need)
    return before


def _greedy(draft: Draft, calls: list[Call]) -> list[Call]:
    """An order in which each next call is the one after which the fewest bytes live.

    Of equal ones the first is taken.  This is a heuristic: the best order is NP-hard to find.
    """
    before = _dependencies(calls)
    after: list[list[int]] = [[] for _ in calls]
    for n, need in enumerate(before):
        for m in need:
            after[m].append(n)
    missing = [len(need) for need in before]
    uses: dict[str, int] = {}
    for call in calls:
        for name in call.touched("rwus"):
            uses[name] = uses.get(name, 0) + 1
    sizes = {n: align(v.nbytes) for n, v in draft.values.items() if v.region == "work"}
    alive: set[str] = set()
    ready = [n for n, m in enumerate(missing) if m == 0]
    order: list[Call] = []

    def growth(n: int) -> int:
        """By how many bytes the live memory grows with call n."""
        names = calls[n].touched("rwus")
        born = sum(sizes.get(x, 0) for x in names if x not in alive)
        dead = sum(sizes.get(x, 0) for x in names if uses[x] == 1)
        return born - dead

    while ready:
        n = min(ready, key=lambda n: (growth(n), n))
        ready.remove(n)
        order.append(calls[n])
        for name in calls[n].touched("rwus"):
            uses[name] -= 1
            alive.add(name)
        for m in after[n]:
            missing[m] -= 1
            if missing[m] == 0:
                ready.append(m)
    return order


def order(draft: Draft) -> Draft:
    """Put the calls in the greedy order, if fewer bytes then live at once."""
    if len(draft.calls) < 3000:  # the greedy walk is quadratic in the width of the graph
        candidate = _greedy(draft, draft.calls)
        if peak(draft, candidate) < peak(draft, draft.calls):
            draft.calls = candidate
    return draft
