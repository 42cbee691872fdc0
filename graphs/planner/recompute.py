"""Rematerialisation: calls of a draft run a second time, so that their results need not be kept.

    Before   z = map(x); conv(z, w, y); ...; conv_dw(dy, z, dw)
    After    z = map(x); conv(z, w, y); ...; z/again = map(x); conv_dw(dy, z/again, dw)

*Requires* calls in the order in which they will run.  *Ensures* that every call reads the same
numbers as before: the repeated call is the same kernel on the same inputs, so results are equal to
the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from engine.graphs.planner.draft import Draft, DraftCall
from engine.graphs.planner.gradient_rows import makes_rows
from engine.kernels.analysis.flops import NULL, Task, Use
from engine.plan.plan import FAULT

NEVER = 1 << 60  # after all calls


@dataclass(frozen=True, slots=True)
class Repeat:
    """Calls that may run again, together: one, or several that write parts of the same value.

    Calls touch what they make at two times, with a gap in between: what calls of the forward pass
    make in that pass and after it, other values before and after the longest gap.

    calls: their places in the draft, in order.
    makes: the values that they write and that are not kept.
    reads: the work values that they read, of others.
    early: the last call before the gap that touches what they make, themselves at least.
    late: the first call after the gap that does; `NEVER` if there is none.
    limit: the last call before which they may run again: the first after them that changes
        something they read, or `NEVER`.
    """

    calls: tuple[int, ...]
    makes: tuple[str, ...]
    reads: tuple[str, ...]
    early: int
    late: int
    limit: int


def find_repeats(draft: Draft) -> dict[int, Repeat]:
    """Return what may run again, by the place of its last call.

    These calls write work values that no other call writes, and nothing else.  A fault does not
    count: a call that finds bad data a second time has reported it before.  Calls that make rows
    for one reader keep their place beside it.
    """
    writers: dict[str, list[int]] = {}
    users: dict[str, list[int]] = {}
    for n, call in enumerate(draft.calls):
        for mode, name in call.args:
            if name:
                users.setdefault(name, []).append(n)
                if mode != "r":
                    writers.setdefault(name, []).append(n)
    kept = {name for name, value in draft.values.items() if value.region != "work"} - {FAULT}
    known: dict[int, Repeat] = {}
    for calls in _join_calls(draft.calls):
        unit = [draft.calls[n] for n in calls]
        touched = {name for call in unit for name in call.list_touched("wus")} - {FAULT}
        makes = {name for call in unit for name in call.list_touched("wu")} - {FAULT}
        if not makes or not kept.isdisjoint(touched) or makes_rows(unit[0]):
            continue
        if not _begins(unit, makes):
            continue
        reads = {name for call in unit for name in call.list_touched("r")} - makes
        changes = [
            m
            for n, call in zip(calls, unit, strict=True)
            for name in call.list_touched("r") - makes
            for m in writers.get(name, ())
            if m > n
        ]
        limit = min(changes, default=NEVER)
        makes = _choose_worth_making(draft, unit, calls[-1], makes, users)
        uses = sorted({n for name in makes for n in users[name]})
        early, late = _find_gap(draft.calls, uses, calls[-1])
        if early < limit:
            work = tuple(x for x in sorted(reads) if draft.values[x].region == "work")
            known[calls[-1]] = Repeat(calls, tuple(sorted(makes)), work, early, late, limit)
    return known


def _choose_worth_making(
    draft: Draft,
    unit: Sequence[DraftCall],
    last: int,
    makes: Collection[str],
    users: Mapping[str, Sequence[int]],
) -> set[str]:
    """Return of what calls write the values that are made again; the others are kept.

    Those are smaller together than the largest, and needed after the gap before it is: to make all
    again for them would be too early for the largest.  A recurrent layer makes its gates, and its
    result, which the gradient of the next layer's weights needs.
    """
    late = {name: _find_gap(draft.calls, users[name], last)[1] for name in makes}
    largest = max(makes, key=lambda name: (draft.values[name].nbytes, name))
    kept = {name for name in makes if late[name] < late[largest] < NEVER}
    is_small = sum(draft.values[name].nbytes for name in kept) < draft.values[largest].nbytes
    is_written = not any(kept & call.list_touched("u") for call in unit)
    return set(makes) - kept if is_small and is_written else set(makes)


def _begins(unit: Sequence[DraftCall], makes: Collection[str]) -> bool:
    """Return whether calls write all that they make before they update or read it."""
    begun = {""}
    for call in unit:
        for mode, name in call.args:
            if mode in "ru" and name in makes and name not in begun:
                return False
        begun |= call.list_touched("w")
    return True


def _join_calls(calls: Sequence[DraftCall]) -> list[tuple[int, ...]]:
    """Return the calls, those together that write the same values."""
    group = list(range(len(calls)))  # of each call the first of those it belongs to
    first: dict[str, int] = {}
    for n, call in enumerate(calls):
        for mode, name in call.args:
            if name and mode in "wu" and name != FAULT:
                other = group[first.setdefault(name, n)]
                if other != group[n]:
                    low, high = sorted((other, group[n]))
                    group = [low if g == high else g for g in group] if high < n else group
                    group[n] = low
    members_of: dict[int, list[int]] = {}
    for n, g in enumerate(group):
        members_of.setdefault(g, []).append(n)
    return [tuple(members) for members in members_of.values()]


def _find_gap(calls: Sequence[DraftCall], uses: Sequence[int], last: int) -> tuple[int, int]:
    """Return the last use before the gap in some uses, and the first after it; see `Repeat`.

    uses: the places of calls, in order.  last: the last one that writes what the others use.
    """
    if calls[last].phase == "fwd":
        early = max(use for use in uses if calls[use].phase == "fwd")
        return early, next((use for use in uses if use > early), NEVER)
    behind = [use for use in uses if use >= last]
    gaps = ((b - a, a, b) for a, b in pairwise(behind))
    length, early, late = max(gaps, default=(0, last, NEVER))
    return (early, late) if length > 1 else (uses[-1], NEVER)


def find_places(known: Mapping[int, Repeat], chosen: Collection[int]) -> dict[int, int] | None:
    """Return before which call each chosen one runs again; None if one would run too late.

    It is the first late call that needs what it makes, where other calls that run again are late,
    too.  Calls that nobody needs late do not run again.
    """
    makers = {name: n for n in chosen for name in known[n].makes}
    need = {n: known[n].late for n in chosen}
    for n in sorted(chosen, reverse=True):
        if need[n] == NEVER:
            continue
        if need[n] > known[n].limit:
            return None
        for name in known[n].reads:
            maker = makers.get(name)
            if maker is not None and need[n] > known[maker].early:
                need[maker] = min(need[maker], need[n])
    return {n: place for n, place in need.items() if place != NEVER}


def repeat(draft: Draft, known: Mapping[int, Repeat], chosen: Collection[int]) -> list[int]:
    """Let chosen calls of a draft run again, in place.

    known: as `find_repeats` says of this draft.

    Returns of each call its place before; -1 of those that run again.

    Raises:
        ValueError: one of them would read what was changed since it first ran.
    """
    need = find_places(known, chosen)
    if need is None:
        raise ValueError("a call cannot run again after calls that change what it reads")
    owner = {n: last for last in need for n in known[last].calls}
    before: dict[int, list[int]] = {}
    for n in sorted(owner):
        before.setdefault(need[owner[n]], []).append(n)
    calls: list[DraftCall] = []
    origins: list[int] = []
    twins: dict[str, str] = {}  # values written again -> the names that they have then
    now: dict[str, str] = {}  # values made again -> the twins that calls read from here on
    for n, call in enumerate(draft.calls):
        for m in before.get(n, ()):
            made = known[owner[m]].makes
            again = _repeat_call(draft, draft.calls[m], twins, now)
            now |= {x: twins[x] for x in draft.calls[m].list_touched("w") if x in made}
            calls.append(replace(again, phase=call.phase))
            origins.append(-1)
        calls.append(_rename_reads(call, now) if now else call)
        origins.append(n)
    draft.calls = calls
    return origins


def _rename_reads(call: DraftCall, now: Mapping[str, str]) -> DraftCall:
    """Return a call that reads values by the names that they now have."""
    if not any(name in now for _, name in call.args):
        return call
    return replace(call, args=tuple([(mode, now.get(name, name)) for mode, name in call.args]))


def _repeat_call(
    draft: Draft, call: DraftCall, twins: dict[str, str], now: Mapping[str, str]
) -> DraftCall:
    """Return a call once more, writing values of its own; `twins` gets their names."""
    args = []
    for mode, name in call.args:
        if name and mode in "ws":
            if name not in twins:
                twins[name] = draft.name_fresh(f"{name}/again")
                draft.add(twins[name], draft.values[name].type)
            args.append((mode, twins[name]))
        else:
            args.append((mode, now.get(name, name)))
    return replace(call, args=tuple(args), again=True)


def make_tasks(draft: Draft, calls: Sequence[DraftCall]) -> list[Task]:
    """Return calls of a draft as the cost model takes them."""
    sizes = {n: (v.nbytes, v.elements) for n, v in draft.values.items()}
    tasks = []
    for call in calls:
        cut = call.cut
        uses = [
            Use(name, mode, *sizes[name], *(cut.args[i] if cut else (0, 0))) if name else NULL
            for i, (mode, name) in enumerate(call.args)
        ]
        numbers = (cut.group, cut.tiles, cut.numbered) if cut else (0, 0, False)
        tasks.append(Task(call.spec, tuple(uses), call.consts, *numbers))
    return tasks
