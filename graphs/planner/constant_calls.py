"""Calls that run only once, because their results depend only on constants and parameters.

An inference model would fold and pack the same weights in every run.  Its plans have a region
`made` for the results of such calls, which come first: they run when a plan is bound, and again
only if a parameter that they read has changed.  Training plans do not use this, because the region
takes as many bytes as the weights.

    Before   w2 = map(w, scale); b = conv_pack(w2); y = conv(x, b)      # every run
    After    w2 = map(w, scale); b = conv_pack(w2)                      # once
             y = conv(x, b)                                             # every run
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from engine.graphs.planner.draft import Draft, DraftCall
from engine.plan.plan import LASTING


def take_once(draft: Draft) -> list[DraftCall]:
    """Take the calls out of a draft that need to run only once; return them, in their order.

    Those of their results that other calls read are in region made then.
    """
    values, is_same = draft.values, list_same(draft)
    once = [call for call, same in zip(draft.calls, is_same, strict=True) if same]
    others = [call for call, same in zip(draft.calls, is_same, strict=True) if not same]
    made = {name for call in once for name in call.list_touched("w")}
    kept = made & {name for call in others for name in call.list_touched("r")}
    for name, value in values.items():
        if value.root in kept:
            values[name] = replace(value, region="made")
    draft.calls = others
    return once


def list_same(draft: Draft) -> list[bool]:
    """Return for each call whether its results depend only on parameters and constants."""
    values = draft.values
    writers = Counter(name for call in draft.calls for name in call.list_touched("wus"))
    lasting = {name for name, value in values.items() if value.region in LASTING}
    lasting -= writers.keys()
    same: set[str] = set()  # values that are the same in each run
    is_same = list[bool]()
    for call in draft.calls:
        made, read = call.list_touched("w"), call.list_touched("r")
        is_same.append(
            bool(made and read)
            and not call.list_touched("u")
            and all(name in same or name in lasting for name in read)
            and all(values[name].region == "work" and writers[name] == 1 for name in made)
        )
        if is_same[-1]:
            same |= made
    return is_same
