"""Group of processes, its ranks, that train one model together.

All ranks call the same methods in the same order, with arrays of the same shape and type.  This
file does not depend on the transport: `mpi.py` uses MPI, tests let threads share memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import GroupError

LONGEST = 1 << 30  # bytes of facts and messages between ranks, without arrays


class PendingSum(Protocol):
    """Sum in progress."""

    def wait(self) -> None:
        """Return when the array holds the sum.

        Raises:
            GroupError: a rank has ended, or does not answer.
        """


class RankGroup(Protocol):
    """Ranks 0 to `size` - 1; this process is `rank`."""

    @property
    def rank(self) -> int:
        """Number of this process."""

    @property
    def size(self) -> int:
        """Number of ranks, including this one."""

    def sum(self, array: Array) -> None:
        """Replace a contiguous array of float32, float64 or int64 by its sum over all ranks.

        The sum is the same on all ranks, to the last bit.

        Raises:
            GroupError: a rank has ended, or does not answer.
        """

    def start_sum(self, array: Array) -> PendingSum:
        """Start the operation of `sum`; the array must not be touched until `wait` of the result
        returns.

        Ranks start their sums in the same order.  Sums in progress run concurrently, while this
        rank computes, and later ones need not wait for them.
        """

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace a contiguous array by the array of rank `root`.

        Raises:
            GroupError: a rank has ended, or does not answer.
        """

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks in order at rank 0, None elsewhere; JSON must be able to
        hold them.

        Raises:
            GroupError: a rank has ended, or does not answer.
        """

    def wait_for_all(self) -> None:
        """Return when all ranks have called this.

        Raises:
            GroupError: a rank has ended, or does not answer.
        """

    def abort(self, why: str) -> NoReturn:
        """End all ranks at once with an exit status that is not 0; `why` goes to stderr."""


def are_lengths(sizes: Array) -> bool:
    """Return whether numbers can be lengths in bytes of messages between ranks.

    A rank at another call, for example one that has left a training run early, can send any number.
    """
    return bool(((sizes >= 0) & (sizes <= LONGEST)).all())


def share(group: RankGroup, value: Any) -> Any:
    """Return rank 0's value on all ranks; JSON must be able to hold it.

    Raises:
        GroupError: a rank has ended, does not answer, or is at another call.
    """
    text = json.dumps(value).encode() if group.rank == 0 else b""
    size = np.array([len(text)], np.int64)
    group.broadcast(size)
    if not are_lengths(size):
        raise GroupError(
            f"rank 0 announced a message of {size[0]} bytes: it no longer makes the same calls "
            "ranks, or is at another one"
        )
    told = np.frombuffer(text, np.uint8).copy() if group.rank == 0 else np.empty(size[0], np.uint8)
    group.broadcast(told)
    return json.loads(told.tobytes())


def gather_values(group: RankGroup, value: Any) -> list[Any]:
    """Return the values of all ranks in order, on all ranks; JSON must be able to hold them.

    Raises:
        GroupError: a rank has ended, or does not answer.
    """
    values: list[Any] = share(group, group.gather(value))
    return values


def name_ranks(ranks: Sequence[int]) -> str:
    """Return the name of ranks in a message: "rank 2", "ranks 1, 3"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
