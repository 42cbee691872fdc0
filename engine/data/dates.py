"""Parts of dates, which become features of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Dates = npt.NDArray[np.datetime64]


def _count_since(dates: Dates, unit: str, within: str) -> npt.NDArray[Any]:
    """Return how many of a unit have passed in a larger one."""
    whole = dates.astype(f"M8[{within}]").astype(f"M8[{unit}]")
    return np.asarray(dates.astype(f"M8[{unit}]") - whole).astype(np.int64)


PARTS: dict[str, Callable[[Dates], npt.NDArray[Any]]] = {
    "year": lambda d: d.astype("M8[Y]").astype(np.int64) + 1970,
    "month": lambda d: _count_since(d, "M", "Y") + 1,
    "day": lambda d: _count_since(d, "D", "M") + 1,
    "weekday": lambda d: (d.astype("M8[D]").astype(np.int64) + 3) % 7,  # Monday is 0
    "day_of_year": lambda d: _count_since(d, "D", "Y") + 1,
    "hour": lambda d: _count_since(d, "h", "D"),
    "minute": lambda d: _count_since(d, "m", "h"),
    "days": lambda d: d.astype("M8[s]").astype(np.int64) / 86400,  # since the beginning of 1970
}


def compute_part(dates: Dates, part: str) -> npt.NDArray[np.float64]:
    """Return a part of each date as a number; NaN where the date is missing."""
    missing = np.isnat(dates)
    known = np.where(missing, np.datetime64(0, "s"), dates)
    return np.where(missing, np.nan, PARTS[part](known).astype(np.float64))
