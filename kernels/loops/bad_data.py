"""Bad data that kernels meet: they note it in the status words, and go on.

Several threads, and kernels that run side by side, may meet some at once.  They note it in turns,
and what comes first stays, so that the report is the same whoever was faster.

    bad = NO_POSITION
    for i in range(first, last):
        at, bad = ...  # or the lowest position where a value is bad
    report_at(status, INDEX, index, bad, limit)

Taking turns comes after the loop, as it makes one slower even where nothing is bad.
"""

from __future__ import annotations

from engine.kernels.vocabulary.kernel import Intrinsic, inline
from engine.plan.context import BUSY

NO_POSITION = 1 << 62  # the position of bad data where there is none
KINDS = 8  # more than there are, so that one number orders positions and then kinds

exchange = Intrinsic("exchange")
atomic_store = Intrinsic("atomic_store")
pause = Intrinsic("pause")


@inline
def report(status, kind, position, value, limit):
    """Note bad data in the status words, unless the data noted there come before it.

    The first has the lowest position, and of equal ones the lowest kind, then limit.
    """
    known = BUSY
    while known == BUSY:
        pause()
        known = exchange(status.kind, BUSY)
    mine, first = position * KINDS + kind, status.position * KINDS + known
    if known == 0 or mine < first or (mine == first and limit < status.limit):
        status.position, status.value, status.limit = position, value, limit
        known = kind
    atomic_store(status.kind, known)


@inline
def report_at(status, kind, values, position, limit):
    """Note that a value is bad; position: its own, or NO_POSITION if there is no such value."""
    if position != NO_POSITION:
        report(status, kind, position, values[position], limit)
