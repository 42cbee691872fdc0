"""Exact scheduling of a window: the order of a few successive calls with the fewest live bytes.

All sets of calls in the window that can have run are enumerated, as far as their number allows: the
live bytes depend only on the set, not on the order of its calls.

Source: Ahn et al., "Ordering chaos: memory-aware scheduling of irregularly wired neural networks
for edge devices", arXiv 2003.02369 (there by dynamic programming over the same sets).
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.graphs.planner.lifetimes import Tally

# Sets of calls that are gone through, at most.  By `python -m bench budgets.constants`, with 10 the
# peak of GPT-2 is 3.4 % higher, and of ResNet-18 0.3 %; with 2000 their ladders are the same.
STATES = 100


def lower(
    tally: Tally, before: Sequence[set[int]], order: Sequence[int], begin: int, end: int
) -> list[int] | None:
    """Return the order, with its calls from `begin` to `end` (excluded) in another one.

    At each of them fewer bytes live than now where most do.  None if no such order was found.

    before: as `dependencies` says.
    """
    calls = order[begin:end]
    stretch = _Stretch(tally, before, calls, order[:begin], order[end:])
    live = tally.count_live(order)[begin:end]
    better = stretch.search(live[0] - stretch.compute_growth(0, 0), max(live))
    return None if better is None else [*order[:begin], *(calls[k] for k in better), *order[end:]]


class _Stretch:
    """Facts about some calls; a set of calls is a number whose bit k stands for call k of them.

    needs: for each call, the set of calls that must have run before.
    users: for each value, the set of calls that touch it.
    begun, awaited: the values that a call before the stretch, and after it, touches.
    """

    def __init__(
        self,
        tally: Tally,
        before: Sequence[set[int]],
        calls: Sequence[int],
        early: Sequence[int],
        late: Sequence[int],
    ) -> None:
        bits = {n: 1 << k for k, n in enumerate(calls)}
        self.sizes = tally.sizes
        self.touched = [tally.touched[n] for n in calls]
        self.pairs = [tally.pairs[n] for n in calls]
        self.needs = [sum(bits[m] for m in before[n] if m in bits) for n in calls]
        self.users: dict[int, int] = {}
        for k, values in enumerate(self.touched):
            for value in values:
                self.users[value] = self.users.get(value, 0) | 1 << k
        self.begun = {v for n in early for v in tally.touched[n] if v in self.users}
        self.awaited = {v for n in late for v in tally.touched[n] if v in self.users}

    def _is_new(self, value: int, run: int) -> bool:
        """Return whether no call has touched a value when the calls of a set have run."""
        return value not in self.begun and not self.users[value] & run

    def _is_last(self, value: int, run: int, k: int) -> bool:
        """Return whether no call will touch a value after call k and the calls of a set."""
        return value not in self.awaited and self.users[value] & ~run == 1 << k

    def compute_growth(self, run: int, k: int) -> int:
        """Return how many bytes more live while call k runs than after the calls of a set."""
        born = sum(self.sizes[v] for v in self.touched[k] if self._is_new(v, run))
        taken: set[int] = set()
        for w, r in self.pairs[k]:
            is_given = self._is_last(r, run, k) and not self._is_new(r, run)
            if is_given and self._is_new(w, run) and taken.isdisjoint((w, r)):
                born -= self.sizes[w]
                taken |= {w, r}
        return born

    def _change(self, run: int, k: int) -> int:
        """Return how many bytes more live after call k than before it."""
        values = self.touched[k]
        born = sum(self.sizes[v] for v in values if self._is_new(v, run))
        return born - sum(self.sizes[v] for v in values if self._is_last(v, run, k))

    def search(self, live: int, limit: int) -> list[int] | None:
        """Return an order of all calls in which fewer bytes than `limit` live at each.

        Calls that can run are tried in their present order.  live: the bytes that live before.
        """
        whole = (1 << len(self.needs)) - 1
        way: list[tuple[int, int, int]] = [(0, live, 0)]  # set, bytes after it, next call to try
        seen = {0}
        order: list[int] = []
        while way:
            run, now, k = way.pop()
            if run == whole:
                return order
            while k < len(self.needs):
                then = run | 1 << k
                is_ready = then != run and self.needs[k] & ~run == 0
                if is_ready and then not in seen and now + self.compute_growth(run, k) < limit:
                    break
                k += 1
            else:
                if order:
                    order.pop()
                continue
            if len(seen) > STATES:
                return None
            seen.add(then)
            way += ((run, now, k + 1), (then, now + self._change(run, k), 0))
            order.append(k)
        return None
