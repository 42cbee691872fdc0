"""SSA form: each variable of numba's IR is assigned once, and phi nodes join the paths.

Before    x = 0              After    x = 0
          jump 2                      jump 2
    2:    branch c, 4, 6        2:    x.1 = phi(x from 0, x.2 from 4)
    4:    x = x + 1                   branch c, 4, 6
          jump 2                4:    x.2 = x.1 + 1
    6:    return x                    jump 2
                                6:    return x.1

Phi nodes are in the iterated dominance frontiers of the assigning blocks, and are made where a use
is reached by one (Choi et al., Incremental computation of static single assignment form).  numba
does the same, but goes through all statements of a function for each variable; here, each variable
has a list of its places.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from numba.core import ir, ir_utils
from numba.core.analysis import compute_cfg_from_blocks

Place = tuple[int, int]  # the label of a block, and the number of a statement in it
AT_TOP = -1  # the number of a join, which is before all statements


def assign_once(blocks: Mapping[int, Any]) -> None:
    """Rewrite blocks so that each variable is assigned once, by a statement or a join."""
    graph = compute_cfg_from_blocks(blocks)
    defined, used = _list_places(blocks)
    dominators = graph.dominators()
    frontiers: dict[int, set[int]] = {}
    joins = defaultdict[int, list[Any]](list)
    for name, places in defined.items():
        if len(places) > 1 or not _leads_to(places[0], used[name], dominators):
            frontiers = frontiers or _complete(graph.dominance_frontier())
            variable = _Variable(name, blocks, graph, frontiers)
            variable.rename(places)
            variable.replace(used[name])
            for label, join in variable.joins.items():
                joins[label].insert(0, join)
    for label, made in joins.items():
        blocks[label].body = made + blocks[label].body


def find_values(blocks: Mapping[int, Any]) -> set[str]:
    """Return the variables that need no memory: assigned once, and before each use.

    That is on every path, and in the order of labels, in which blocks are written.
    """
    defined, used = _list_places(blocks)
    dominators = compute_cfg_from_blocks(blocks).dominators()
    return {
        name
        for name, places in defined.items()
        if len(places) == 1
        and all(places[0] < use for use in used[name])
        and _leads_to(places[0], used[name], dominators)
    }


def _list_places(
    blocks: Mapping[int, Any],
) -> tuple[dict[str, list[Place]], defaultdict[str, list[Place]]]:
    """Return where each variable is assigned, and where it is used."""
    defined, used = defaultdict[str, list[Place]](list), defaultdict[str, list[Place]](list)
    for label, block in blocks.items():
        for i, statement in enumerate(block.body):
            if isinstance(statement, ir.Assign):
                defined[statement.target.name].append((label, i))
            for name in {variable.name for variable in _list_used(statement)}:
                used[name].append((label, i))
    return defined, used


def _list_used(statement: Any) -> Any:
    """Return the variables that a statement reads, or deletes."""
    if not isinstance(statement, ir.Assign):
        return statement.list_vars()
    value = statement.value
    if isinstance(value, ir.Var):
        return (value,)
    return value.list_vars() if isinstance(value, ir.Inst) else ()


def _leads_to(place: Place, uses: list[Place], dominators: Mapping[int, set[int]]) -> bool:
    """Return whether all uses lie in blocks that are reached through the block of an assignment."""
    return all(place[0] in dominators[label] for label, _ in uses)


def _complete(frontiers: Mapping[int, set[int]]) -> dict[int, set[int]]:
    """Return the iterated frontiers: what the frontiers of frontiers add to each."""
    whole = {label: set(labels) for label, labels in frontiers.items()}
    grows = True
    while grows:
        grows = False
        for labels in whole.values():
            size = len(labels)
            labels.update(*[whole[label] for label in labels])
            grows = grows or len(labels) > size
    return whole


class _Variable:
    """Variable that is assigned more than once, or not on every path to a use.

    joins: the statements that join what reaches a block, by its label.
    """

    def __init__(
        self, name: str, blocks: Mapping[int, Any], graph: Any, frontiers: Mapping[int, set[int]]
    ) -> None:
        self.name, self.blocks, self.graph, self.frontiers = name, blocks, graph, frontiers
        self.joins: dict[int, Any] = {}
        self._scope = next(iter(blocks.values())).scope
        self._defined = defaultdict[int, list[tuple[int, Any]]](list)  # number, new variable
        self._meet: set[int] = set()  # blocks where assignments meet

    def rename(self, places: list[Place]) -> None:
        """Give a name of its own to the target of each assignment but the first."""
        for count, (label, i) in enumerate(places):
            body = self.blocks[label].body
            old = body[i]
            target = old.target
            if count:
                target = self._scope.redefine(self.name, loc=old.loc)
                body[i] = ir.Assign(target=target, value=old.value, loc=old.loc)
            self._defined[label].append((i, target))
            self._meet |= self.frontiers[label]

    def replace(self, places: list[Place]) -> None:
        """Let each use read the variable that reaches it."""
        for label, i in places:
            body = self.blocks[label].body
            statement = body[i]
            before = (target for at, target in reversed(self._defined[label]) if at < i)
            target = next(before, None) or self._find_at_top(label, statement.loc)
            if target is ir.UNDEFINED or target.name == self.name:
                continue
            renamed = {self.name: target}
            if not isinstance(statement, ir.Assign):
                body[i] = copy.copy(statement)
                ir_utils.replace_vars_stmt(body[i], renamed)
                continue
            value = target
            if not isinstance(statement.value, ir.Var):
                value = copy.copy(statement.value)
                ir_utils.replace_vars_inner(value, renamed)
            body[i] = ir.Assign(target=statement.target, value=value, loc=statement.loc)

    def _find_at_top(self, label: int, loc: Any) -> Any:
        """Return what reaches the start of a block, where it may have to be joined."""
        for at in self._walk_up(label):
            if at in self._meet:
                return self._join(at)
            above = self.graph.immediate_dominators()[at]
            if above != at and self._defined[above]:
                return self._defined[above][-1][1]
        return ir.UNDEFINED

    def _walk_up(self, label: int) -> Iterator[int]:
        """Yield a block, the nearest that all paths to it pass, the nearest to that, and so on."""
        above = self.graph.immediate_dominators()
        yield label
        while above[label] != label:
            label = above[label]
            yield label

    def _join(self, label: int) -> Any:
        """Return the variable that joins what reaches a block from its predecessors."""
        loc = self.blocks[label].loc
        target, join = self._scope.redefine(self.name, loc=loc), ir.Expr.phi(loc=loc)
        # It is there before its operands are, since a loop joins what it has joined.
        self.joins[label] = ir.Assign(target=target, value=join, loc=loc)
        self._defined[label].insert(0, (AT_TOP, target))
        for before, _ in self.graph.predecessors(label):
            own = self._defined[before]
            join.incoming_values.append(own[-1][1] if own else self._find_at_top(before, loc))
            join.incoming_blocks.append(before)
        return target
