"""Common subexpression elimination: of calls that compute the same, only the first one is kept.

One node may become several calls, so different nodes may have equal calls: three products that each
round the same input share one rounding.  Calls are equal if their kernels, numbers and inputs are
the same, and each of these inputs is written at most once.

    Before   q = round(x); a = product(q, u); r = round(x); b = product(r, v)
    After    q = round(x); a = product(q, u); b = product(q, v)

The result of the first call then stays live until the last reader of the others.  Calls are removed
only if this does not raise the peak of live bytes.

*Requires* calls in an executable order.  *Ensures* the order of the remaining calls.
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
    """Remove the calls of a draft that are equal to earlier ones, in place.

    keeps: whether results that are the same in each run are computed once and kept; such calls may
        be anywhere.
    is_tight: whether plans must fit in a budget, which may be far below the peak of this order:
        then only small results may live longer.
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
    """Return the key that equal calls share, besides their inputs, for each call; None if none.

    Calls that repeat others on purpose, so that results need not be kept, have no key.
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
    """The live bytes at each call of a draft, while live ranges of some results are extended."""

    def __init__(self, draft: Draft, *, is_tight: bool) -> None:
        self.sizes = {name: value.nbytes for name, value in draft.values.items()}
        self.last = {name: n for n, call in enumerate(draft.calls) for _, name in call.args}
        self.live = np.array(Tally(draft).count_live(range(len(draft.calls))), np.int64)
        self.most = 0 if is_tight else int(self.live.max(initial=0))

    def can_extend(self, old: Sequence[str], new: Sequence[str], place: int) -> bool:
        """Extend the live ranges of results to the end of an equal call's, if this is allowed.

        Returns whether it was; if not, nothing changes.
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
