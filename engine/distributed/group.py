"""Group: the processes that train one model together, each of which is a rank of it.

All ranks call the same methods in the same order, with arrays of the same shape and type.  Nothing
here knows how the bytes travel: `mpi.py` sends them by MPI, tests let threads share memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from engine.base.errors import GroupError

Array = npt.NDArray[Any]
LONGEST = 1 << 30  # bytes of what ranks tell each other: facts and messages, no arrays


class Pending(Protocol):
    """A sum that is under way."""

    def wait(self) -> None:
        """Return when the array holds the sum.

        Raises:
            GroupError: a rank has ended, or does not answer.
        """


class Group(Protocol):
    """Ranks 0 to `size` - 1, of which this process is `rank`."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def size(self) -> int:
        """How many ranks there are, this one included."""

    def sum(self, array: Array) -> None:
        """Replace a contiguous array of float32, float64 or int64 by its sum over all ranks.

        The sum is the same on all ranks, to the last bit.

        Raises:
            GroupError: a rank has ended, or does not answer.
        """

    def start_sum(self, array: Array) -> Pending:
        """Begin what `sum` does; nobody touches the array until `wait` of the result returns.

        Ranks begin their sums in the same order.  Those under way run side by side, while this rank
        computes, and another one need not wait for them.
        """

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace a contiguous array by that of rank `root`.

        Raises:
            GroupError: a rank has ended, or does not answer.
        """

    def gather(self, value: Any) -> list[Any] | None:
        """At rank 0 the values of all ranks in order, None elsewhere; values are what JSON holds.

        Raises:
            GroupError: a rank has ended, or does not answer.
        """

    def barrier(self) -> None:
        """Return when all ranks have called this.

        Raises:
            GroupError: a rank has ended, or does not answer.
        """

    def abort(self, why: str) -> NoReturn:
        """End all ranks at once with an exit status that is not 0; `why` goes to stderr."""


def are_lengths(sizes: Array) -> bool:
    """Return whether numbers can be lengths in bytes of what ranks tell each other.

    Those of a rank that is at another call, as one that has left a training early, can be anything.
    """
    return bool(((sizes >= 0) & (sizes <= LONGEST)).all())


def share(group: Group, value: Any) -> Any:
    """What rank 0 calls this with, on all ranks; values are what JSON holds.

    Raises:
        GroupError: a rank has ended, does not answer, or is at another call.
    """
    text = json.dumps(value).encode() if group.rank == 0 else b""
    size = np.array([len(text)], np.int64)
    group.broadcast(size)
    if not are_lengths(size):
        raise GroupError(
            f"rank 0 told of a message of {size[0]} bytes: it has left what the ranks do together, "
            "or is at another call of it"
        )
    told = np.frombuffer(text, np.uint8).copy() if group.rank == 0 else np.empty(size[0], np.uint8)
    group.broadcast(told)
    return json.loads(told.tobytes())


def everyone(group: Group, value: Any) -> list[Any]:
    """The values of all ranks in order, on all ranks; values are what JSON holds.

    Raises:
        GroupError: a rank has ended, or does not answer.
    """
    found: list[Any] = share(group, group.gather(value))
    return found


def named(ranks: Sequence[int]) -> str:
    """Ranks in a message: "rank 2", "ranks 1, 3"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
