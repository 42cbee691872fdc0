"""Reaches of the kernels that choose, sort and move elements.

An index that a kernel reads at run time it compares with a limit among its numbers; the reach is
that of the largest index below this limit.
"""

from __future__ import annotations

from engine.kernels.reach.call import Table

TABLE: Table = {}
STATUS = 4  # words of a status
