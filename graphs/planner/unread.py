"""Unread: calls that make nothing anybody reads are left out of a draft."""

from __future__ import annotations

from engine.graphs.planner.lower import Draft


def drop_unread(draft: Draft) -> None:
    """Drop the calls whose results no call reads and do not outlive the run, and their constants.

    A node may read a value for its shape alone, as ConvGrad reads x where only dx is wanted: the
    graph then has a node that makes the value for it, and no kernel ever reads what that makes.

    Before   z_again = map(x); dx = convolve_back(dy, w)
    After    dx = convolve_back(dy, w)
    """
    wanted = {name for name, value in draft.values.items() if value.region not in ("work", "const")}
    kept = []
    for call in reversed(draft.calls):
        if any(name in wanted for mode, name in call.args if mode in "wu"):
            wanted.update(name for mode, name in call.args if mode in "ru")
            kept.append(call)
    draft.calls = kept[::-1]
    touched = {name for call in kept for _, name in call.args}
    gone = [n for n, v in draft.values.items() if v.region == "const" and n not in touched]
    for name in gone:
        del draft.values[name]
