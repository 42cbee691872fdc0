"""Direction of improvement of a column of the history."""

from typing import Literal

Mode = Literal["min", "max"]  # of a column: whether less or more is better
