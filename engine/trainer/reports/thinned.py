"""A sample of rows in bounded memory: every n-th row, with an n that doubles."""

from __future__ import annotations

import numpy as np

from engine.base.aliases import Array


class Thinned:
    """Every n-th of the rows that were added, so many that they have at most `limit` numbers.

    n starts at 1 and doubles when there are too many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.stride = 1
        self.seen = 0
        self._rows: list[Array] = []
        self._size = 0

    def pick(self, count: int) -> Array:
        """Return which of the next `count` rows are wanted; `add` must then get those."""
        picked = np.arange(-self.seen % self.stride, count, self.stride)
        self.seen += count
        return picked

    def add(self, rows: Array) -> None:
        """Add rows that `pick` has chosen, all of one length."""
        self._rows.append(rows)
        self._size += rows.size
        while self._size > self._limit and len(self.rows) > 1:
            self._rows = [self.rows[::2].copy()]
            self._size = self._rows[0].size
            self.stride *= 2

    @property
    def rows(self) -> Array:
        """The rows that are kept, in their order."""
        if not self._rows:
            return np.zeros((0, 0))
        if len(self._rows) > 1:
            self._rows = [np.concatenate(self._rows)]
        return self._rows[0]
