"""Updates: the places of parameter updates in a plan that trains and updates.

In a joined graph (graphs/offline/joined.py), the updates come last.  Their calls move forward: the
update of a parameter is placed directly after the last call that touches the parameter, its
gradient, or anything else that the update needs.  So no later call reads the parameter, and its
gradient is live only as long as necessary.

    Before   dW2(g2); dX(W2); dW1(g1); signal(loss, go); adam(go, W1, g1); adam(go, W2, g2)
    After    signal(loss, go); dW2(g2); dX(W2); adam(go, W2, g2); dW1(g1); adam(go, W1, g1)

The signal comes before the first update, and after all calls that can detect bad data, so that a
run with bad data ends before anything has changed.  Calls of the backward pass usually read the
same indices as calls of the forward pass, which have then detected the bad data already; otherwise
the signal comes after them.
"""

from __future__ import annotations

from engine.graphs.planner.draft import Draft, DraftCall
from engine.graphs.planner.gradient_rows import is_update, makes_rows, move_beside
from engine.graphs.planner.lifetimes import list_spans
from engine.graphs.planner.order_bounds import find_dependencies
from engine.kernels.ops.optimizer.signal import update_signal
from engine.plan.plan import FAULT


def settle_updates(draft: Draft) -> None:
    """Move the calls of updates and of their signal to where they belong, in place.

    Groups of calls stay whole.  A draft without a signal stays as it is.
    """
    at = next(
        (n for n, call in enumerate(draft.calls) if call.spec.template == update_signal.name), None
    )
    if at is None:
        return
    signal, rest = draft.calls[at], move_beside(draft.calls[:at] + draft.calls[at + 1 :])
    made = max(
        (n for n, c in enumerate(rest) if c.list_touched("wu") & signal.list_touched("r")),
        default=-1,
    )
    place = max(made, _find_last_report(draft, rest))
    place = next((last for first, last in list_spans(rest) if first <= place <= last), -1) + 1
    calls = [*rest[:place], signal, *rest[place:]]
    ends = [last for first, last in list_spans(calls) for _ in range(first, last + 1)]
    behind: list[int] = []  # of each call, the call after which what needs it may stand
    keys: list[tuple[int, int]] = []
    for n, (call, before) in enumerate(zip(calls, find_dependencies(calls), strict=True)):
        if call.phase == "opt":
            behind.append(max((behind[m] for m in before), default=-1))
            keys.append((behind[n], n + 1))
            if n and makes_rows(calls[n - 1]):
                keys[n - 1] = (behind[n], n)
        else:
            behind.append(ends[n])
            keys.append((n, 0))
    draft.calls = [calls[n] for n in sorted(range(len(calls)), key=keys.__getitem__)]


def move_updates_last(draft: Draft) -> None:
    """Move the calls of updates after all others, in place, so that they part no group of calls.

    A draft without a signal stays as it is.
    """
    if any(call.spec.template == update_signal.name for call in draft.calls):
        draft.calls = move_beside(sorted(draft.calls, key=is_update))


def _find_last_report(draft: Draft, calls: list[DraftCall]) -> int:
    """Return the place of the last call that may be first to meet bad data; -1 if none."""
    indices = _Indices(draft)
    seen: set[object] = set()  # what calls of the forward pass have looked for bad data
    last = -1
    for n, call in enumerate(calls):
        if FAULT in call.list_touched("wu"):
            read = indices.read(call)
            if call.phase == "fwd" and not call.again:
                seen |= read
                last = n
            elif not read or not read <= seen:
                last = n
        indices.note(call)
    return last


class _Indices:
    """Identities of the integers that calls read: equal computations of equal ones are equal."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.known: dict[str, object] = {}

    def read(self, call: DraftCall) -> set[object]:
        """Return the integers that a call reads, as keys; not constants, which are never bad."""
        return {
            self.known.get(name, name)
            for mode, name in call.args
            if mode == "r" and self._is_integer(name) and self.draft.values[name].region != "const"
        }

    def note(self, call: DraftCall) -> None:
        """Remember what a call computes of integers alone."""
        read = [name for mode, name in call.args if name and mode in "ru"]
        if all(map(self._is_integer, read)):
            of = tuple(self.known.get(name, name) for name in read)
            for at, (mode, name) in enumerate(call.args):
                if name and mode == "w":
                    self.known[name] = (call.spec, call.consts, of, at)

    def _is_integer(self, name: str) -> bool:
        return bool(name) and self.draft.values[name].type.dtype[0] in "iu" and name != FAULT
