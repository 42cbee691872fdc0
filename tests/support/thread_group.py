"""A group of threads in one process, each a rank: `engine.distributed.group.RankGroup` for tests.

Sums are made by the last thread to come, in the order of the ranks, so that they repeat to the last
bit.  A rank that fails breaks the group: all others get a `GroupError` at their next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import numpy as np

from engine.base.aliases import Array
from engine.errors import GroupError

SECONDS = 60.0  # that a rank waits for others before it gives up
Result = TypeVar("Result")


@dataclass
class _Meeting:
    """One call that all ranks make: what each of them brings, and whether all have come."""

    brought: dict[int, Any] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None


class _Room:
    """Where the threads of a group meet: their calls, by the number of the call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.meetings: dict[int, _Meeting] = {}
        self.broken = ""

    def join_meeting(
        self, number: int, rank: int, thing: Any, join: Callable[[list[Any]], Any]
    ) -> _Meeting:
        """Bring a thing to the meeting of this number; the last to come joins all of them."""
        with self.lock:
            if self.broken:
                raise GroupError(self.broken)
            meeting = self.meetings.setdefault(number, _Meeting())
            meeting.brought[rank] = thing
            if len(meeting.brought) == self.size:
                meeting.result = join([meeting.brought[r] for r in range(self.size)])
                del self.meetings[number]
                meeting.done.set()
        return meeting

    def wait(self, meeting: _Meeting) -> Any:
        """The result of a meeting, when all have come."""
        if not meeting.done.wait(SECONDS):
            self.break_up("a rank does not answer")
        if self.broken and meeting.result is None:
            raise GroupError(self.broken)
        return meeting.result

    def break_up(self, why: str) -> None:
        """Let all waiting and all later calls fail."""
        with self.lock:
            self.broken = self.broken or why
            for meeting in self.meetings.values():
                meeting.done.set()


class ThreadPending:
    """A sum that is under way."""

    def __init__(self, room: _Room, meeting: _Meeting, array: Array) -> None:
        self._room, self._meeting, self._array = room, meeting, array

    def wait(self) -> None:
        self._array[...] = self._room.wait(self._meeting)


class ThreadGroup:
    """Place of one thread in the group.

    calls: for every sum so far, the method, the number of elements and their type.
    """

    def __init__(self, room: _Room, rank: int) -> None:
        self._room, self.rank, self.size = room, rank, room.size
        self._count = 0
        self.calls: list[tuple[str, int, str]] = []

    def _meet(self, thing: Any, join: Callable[[list[Any]], Any]) -> _Meeting:
        self._count += 1
        return self._room.join_meeting(self._count, self.rank, thing, join)

    def sum(self, array: Array) -> None:
        self.calls.append(("sum", array.size, array.dtype.name))
        array[...] = self._room.wait(self._meet(array.copy(), _sum))

    def start_sum(self, array: Array) -> ThreadPending:
        self.calls.append(("start", array.size, array.dtype.name))
        return ThreadPending(self._room, self._meet(array.copy(), _sum), array)

    def broadcast(self, array: Array, root: int = 0) -> None:
        array[...] = self._room.wait(self._meet(array.copy(), lambda all_: all_[root]))

    def gather(self, value: Any) -> list[Any] | None:
        actual = self._room.wait(self._meet(value, list))
        return list(actual) if self.rank == 0 else None

    def wait_for_all(self) -> None:
        self._room.wait(self._meet(True, any))

    def abort(self, why: str) -> NoReturn:
        self._room.break_up(why)
        raise GroupError(why)


def _sum(arrays: list[Array]) -> Array:
    """The sum in the order of the ranks, which all bring arrays of one shape and type."""
    assert len({(a.shape, a.dtype) for a in arrays}) == 1, [(a.shape, a.dtype) for a in arrays]
    total = arrays[0].copy()
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            total += array
    return total


def run(size: int, rank: Callable[[ThreadGroup], Result]) -> list[Result | BaseException]:
    """Return the results of the function for each of `size` threads, or raise its error."""
    room = _Room(size)
    actual: list[Any] = [None] * size

    def run_rank(number: int) -> None:
        try:
            actual[number] = rank(ThreadGroup(room, number))
        except BaseException as error:
            actual[number] = error
            room.break_up(f"rank {number} has ended: {error}")

    threads = [threading.Thread(target=run_rank, args=(n,)) for n in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return actual
