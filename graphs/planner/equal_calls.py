"""Equal calls: of calls that compute the same from the same values only the first is made.

A node may become several calls, so nodes that differ may have equal ones: three products that each
round their input are three nodes with one rounding.  Calls are equal if kernel, numbers and all
that they read are the same, and if each of these values is written once at most.

    Before   q = round(x); a = product(q, u); r = round(x); b = product(r, v)
    After    q = round(x); a = product(q, u); b = product(q, v)

The result of the first call then lives until the last reader of the others' results.  They are left
out where the most bytes that live at once do not rise by that.

*Requires* calls in an order in which they can run.  *Ensures* that order of those that are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.graphs.passes.simplify import SMALL
from engine.graphs.planner.constant_calls import list_same
from engine.graphs.planner.draft import Draft, DraftCall
from engine.graphs.planner.lifetimes import Tally


def share_equal_calls(draft: Draft, *, keeps: bool, is_tight: bool) -> None:
    """Drop the calls of a draft that are equal to earlier ones, in place.

    keeps: whether what is the same in each run is made once and kept: such calls are equal to
        earlier ones wherever these are.
    is_tight: whether plans are to keep to a budget, which may be far below the most bytes that live
        in this order: nothing but small results may live longer.
    """
    keys = _list_keys(draft)
    if max(Counter(key for key in keys if key is not None).values(), default=0) < 2:
        return
    is_same = list_same(draft) if keeps else [False] * len(draft.calls)
    lives = _Lives(draft, is_tight=is_tight)
    instead: dict[str, str] = {}  # of results that are not made
    first: dict[object, DraftCall] = {}
    kept = list[DraftCall]()
    for place, (call, key) in enumerate(zip(draft.calls, keys, strict=True)):
        if any(name in instead for _, name in call.args):
            args = tuple([(mode, instead.get(name, name)) for mode, name in call.args])
            call = replace(call, args=args)
        if key is not None:
            reads = tuple([name for mode, name in call.args if mode == "r"])
            other = first.get((key, reads))
            if other is not None:
                new, old = _list_results(call), _list_results(other)
                if is_same[place] or lives.can_extend(old, new, place):
                    instead |= zip(new, old, strict=True)
                    continue
            first[key, reads] = call
        kept.append(call)
    draft.calls = kept
    for name, value in list(draft.values.items()):
        if name in instead:
            del draft.values[name]
        elif value.root in instead:
            draft.values[name] = replace(value, root=instead[value.root])


def _list_keys(draft: Draft) -> list[object]:
    """Return of each call what equal ones share besides what they read; None if it has no equals.

    Calls that are made again on purpose, so that their results need not be kept, have none.
    """
    values = draft.values
    writers = Counter(name for call in draft.calls for name in call.list_touched("wu"))
    keys = list[object]()
    for call in draft.calls:
        results, reads = _list_results(call), call.list_touched("r")
        is_alone = (
            bool(results)
            and not call.again
            and not call.list_touched("u")
            and all(values[name].region == "work" and writers[name] == 1 for name in results)
            and all(writers[name] <= (values[name].region == "work") for name in reads)
        )
        modes = "".join(mode if name else "-" for mode, name in call.args)
        keys.append((call.spec, call.consts, call.phase, modes) if is_alone else None)
    return keys


def _list_results(call: DraftCall) -> list[str]:
    """Return the values that a call writes, in the order of its arguments."""
    return [name for mode, name in call.args if mode == "w" and name]


class _Lives:
    """The bytes that live at each call of a draft, while some results come to live longer."""

    def __init__(self, draft: Draft, *, is_tight: bool) -> None:
        self.sizes = {name: value.nbytes for name, value in draft.values.items()}
        self.last = {name: n for n, call in enumerate(draft.calls) for _, name in call.args}
        self.live = np.array(Tally(draft).count_live(range(len(draft.calls))), np.int64)
        self.most = 0 if is_tight else int(self.live.max(initial=0))

    def can_extend(self, old: Sequence[str], new: Sequence[str], place: int) -> bool:
        """Let results live as long as what an equal call at a place makes; return whether they can.

        If not, all is as it was.
        """
        begin = min(min(self.last[name] for name in old), place)
        longer = self.live[begin:place].copy()
        for name in old:
            # From the last reader on, which may have written to its bytes.
            longer[self.last[name] - begin :] += self.sizes[name]
        is_small = sum([self.sizes[name] for name in old]) <= SMALL
        if not is_small and longer.max(initial=0) > self.most:
            return False
        self.live[begin:place] = longer
        for name, other in zip(old, new, strict=True):
            self.last[name] = max(self.last[name], self.last[other])
        return True
