"""NonZero and Unique of constants."""

from __future__ import annotations

import numpy as np

from engine.tools.dev.cases.case import Case

X = np.array([[2, 0, 2], [0, 1, 0]])

CASES = (
    Case("NonZero", (X,)),
    Case("NonZero", (np.array(3.0),), name="nonzero-scalar", reference=lambda x: [[[0]]]),
    Case("Unique", (X,), outs=4, name="unique-sorted"),
    Case(
        "Unique",
        (X,),
        {"sorted": 0},
        outs=4,
        name="unique-in-order",
        reference=lambda x, sorted: [[2, 0, 1], [0, 1, 4], [0, 1, 0, 1, 2, 1], [2, 3, 1]],
    ),
    Case("Unique", (np.array([[3, 1], [2, 0], [3, 1]]),), {"axis": 0}, outs=4, name="unique-rows"),
)
