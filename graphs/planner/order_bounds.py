"""Lower bounds: the fewest bytes that are live while a call runs, over all possible orders.

When a call runs, some calls have run before it, together with everything that they depend on.  The
order decides which ones; the live bytes belong to values that these calls have touched and that the
others, or the call itself, will touch.  The minimum over all orders is a minimum cut of a flow
network, so it can be computed exactly.  The maximum of these minima over all calls is a lower bound
for every order, and the minimum at the peak of an order shows whether that peak can be lowered.

Source: closures by minimum cuts, Picard, "Maximal closure of a graph and applications to
combinatorial problems", Management Science 22 (1976); flows by Dinic, Soviet Math. Doklady 11
(1970).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.graphs.planner.draft import DraftCall


def find_dependencies(calls: Sequence[DraftCall]) -> list[set[int]]:
    """Return for each call the positions of the calls that must come before it.

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


def find_followers(before: Sequence[set[int]]) -> list[list[int]]:
    """List for each call the positions of those that must come after; from `find_dependencies`."""
    after: list[list[int]] = [[] for _ in before]
    for n, need in enumerate(before):
        for m in need:
            after[m].append(n)
    return after


@dataclass(frozen=True, slots=True)
class LeastCut:
    """The calls that have run when a call runs, if as few bytes as possible live then.

    nbytes: that live, those that the call touches included.
    fewest, most: the positions of the calls that have run; of all such sets the smallest, and the
        largest.
    """

    nbytes: int
    fewest: frozenset[int]
    most: frozenset[int]


class Cuts:
    """Finds the cuts of the calls of a draft."""

    def __init__(self, calls: Sequence[DraftCall], sizes: Mapping[str, int]) -> None:
        """Start without cuts.

        calls: in any order in which they can run.  sizes: as `count_work_bytes` says.
        """
        self.calls, self.sizes = calls, sizes
        self._alone: dict[int, LeastCut] = {}  # cuts where no other call must have run, or not
        self.before = find_dependencies(calls)
        self.after = find_followers(self.before)
        self.users: dict[str, list[int]] = {}  # value -> the calls that touch it
        for n, call in enumerate(calls):
            for name in dict.fromkeys(name for _, name in call.args):
                if sizes.get(name):
                    self.users.setdefault(name, []).append(n)

    def find_least(self, at: int, early: Sequence[int] = (), late: Sequence[int] = ()) -> LeastCut:
        """Return the cut at the call of a position.

        early, late: calls that have run, and that have not, whatever is cut.
        """
        if early or late:
            return self._compute_least(at, early, late)
        if at not in self._alone:
            self._alone[at] = self._compute_least(at, (), ())
        return self._alone[at]

    def _compute_least(self, at: int, early: Iterable[int], late: Iterable[int]) -> LeastCut:
        """Compute what `find_least` returns."""
        early = _find_closure((at, *early), self.before) - {at}
        late = _find_closure((at, *late), self.after)
        free = [n for n in range(len(self.calls)) if n not in early and n not in late]
        net = _Network()
        nodes = {n: net.add_node() for n in free}
        for n in free:
            for m in self.before[n]:
                if m in nodes:
                    net.add_edge(nodes[n], nodes[m], _ENDLESS)
        givers = self._find_givers(at, early, late)
        nbytes = 0
        for name, users in self.users.items():
            size = self.sizes[name]
            if at in users:
                if name not in givers:
                    nbytes += size
                elif givers[name]:
                    net.add_value(size, [nodes[n] for n in givers[name]], True, False)
                continue
            begun, awaited = not early.isdisjoint(users), not late.isdisjoint(users)
            between = [nodes[n] for n in users if n in nodes]
            if begun and awaited:
                nbytes += size
            elif between and len(users) > 1:
                net.add_value(size, between, begun, awaited)
        nbytes += net.fill()
        first, last = net.find_sides()
        return LeastCut(
            nbytes,
            frozenset(early | {n for n in free if nodes[n] in first}),
            frozenset(early | {n for n in free if nodes[n] not in last}),
        )

    def _find_givers(self, at: int, early: set[int], late: set[int]) -> dict[str, list[int]]:
        """Return the values that the call may write into the bytes of one that it reads.

        With each the calls that must have run for that; none if there are several such values,
        since any of them may do.
        """
        names = [name for _, name in self.calls[at].args]
        givers: dict[str, list[int]] = {}
        for written, read in self.calls[at].inplace:
            w, r = names[written], names[read]
            if w == r or w not in self.users or self.sizes[w] != self.sizes.get(r):
                continue
            if names.count(r) > 1:
                continue
            others = [n for n in self.users[r] if n != at]
            if not early.isdisjoint(self.users[w]) or not late.isdisjoint(others):
                continue
            givers[w] = [] if w in givers else [n for n in others if n not in early]
        return givers


def _find_closure(begin: Iterable[int], near: Sequence[Iterable[int]]) -> set[int]:
    """Return these positions, and all that are reached from them."""
    reached, waiting = set(begin), list(begin)
    while waiting:
        for n in near[waiting.pop()]:
            if n not in reached:
                reached.add(n)
                waiting.append(n)
    return reached


_ENDLESS = 1 << 62  # more bytes than any values have
_FROM, _TO = 0, 1  # the nodes between which the flow is


class _Network:
    """A network of nodes, and edges with a capacity in bytes, whose minimum cut is sought.

    Calls that have run are on the side of `_FROM`, the others on the side of `_TO`.
    """

    def __init__(self) -> None:
        self.edges: list[list[int]] = [[], []]  # of each node the edges that leave it
        self.ends: list[int] = []  # of each edge; edge e ^ 1 is e the other way round
        self.residual: list[int] = []  # of each edge, the capacity that is left

    def add_node(self) -> int:
        """Add a node; return its number."""
        self.edges.append([])
        return len(self.edges) - 1

    def add_edge(self, a: int, b: int, capacity: int) -> None:
        """Add an edge."""
        self.edges[a].append(len(self.ends))
        self.edges[b].append(len(self.ends) + 1)
        self.ends += (b, a)
        self.residual += (capacity, 0)

    def add_value(self, nbytes: int, users: Sequence[int], begun: bool, awaited: bool) -> None:
        """Add bytes that live if one of the users has run, and another one has not.

        begun: some call that touches them has run, whatever is cut.  awaited: some has not.
        """
        first = _FROM if begun else self.add_node()
        last = _TO if awaited else self.add_node()
        for user in users:
            if not begun:
                self.add_edge(user, first, _ENDLESS)
            if not awaited:
                self.add_edge(last, user, _ENDLESS)
        self.add_edge(first, last, nbytes)

    def fill(self) -> int:
        """Send the maximum flow; return how much it is."""
        total = 0
        while True:
            level = self._find_levels()
            if level[_TO] < 0:
                return total
            total += self._fill_level(level)

    def _find_levels(self) -> list[int]:
        """Return the distance of each node over edges with residual capacity; -1 if unreachable."""
        level = [-1] * len(self.edges)
        level[_FROM] = 0
        queue = [_FROM]
        for node in queue:
            for e in self.edges[node]:
                if self.residual[e] and level[self.ends[e]] < 0:
                    level[self.ends[e]] = level[node] + 1
                    queue.append(self.ends[e])
        return level

    def _fill_level(self, level: list[int]) -> int:
        """Send a blocking flow along the shortest paths; return how much it is."""
        ends, residual = self.ends, self.residual
        tried = [0] * len(self.edges)  # of each node, how many of its edges lead nowhere
        path: list[int] = []  # edges
        total, node = 0, _FROM
        while True:
            if node == _TO:
                most = min(residual[e] for e in path)
                for e in path:
                    residual[e] -= most
                    residual[e ^ 1] += most
                total += most
                node, path = _FROM, []
            edges = self.edges[node]
            while tried[node] < len(edges):
                e = edges[tried[node]]
                if residual[e] and level[ends[e]] == level[node] + 1:
                    path.append(e)
                    node = ends[e]
                    break
                tried[node] += 1
            else:
                if not path:
                    return total
                node = ends[path.pop() ^ 1]
                tried[node] += 1

    def find_sides(self) -> tuple[set[int], set[int]]:
        """Return the nodes that the source still reaches, and the ones that reach the sink."""
        return self._find_reached(_FROM, 0), self._find_reached(_TO, 1)

    def _find_reached(self, start: int, backwards: int) -> set[int]:
        """Return the nodes reachable over edges with residual capacity, forwards or backwards."""
        reached, waiting = {start}, [start]
        while waiting:
            for e in self.edges[waiting.pop()]:
                if self.residual[e ^ backwards] and self.ends[e] not in reached:
                    reached.add(self.ends[e])
                    waiting.append(self.ends[e])
        return reached
