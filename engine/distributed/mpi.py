"""Group over MPI, by mpi4py: MPICH, Open MPI and other libraries with this interface.

A separate thread calls MPI.  It starts one call after another, so that all ranks make the same
calls in the same order while they compute, and then polls the calls in progress, so that no rank
waits for ever for a rank that is gone, and Ctrl-C works.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from engine.base.aliases import Array
from engine.base.errors import DTypeError, GroupError, StateError
from engine.distributed.group import are_lengths, name_ranks

_SPIN = 2e-3  # seconds for which a call is polled without a pause
_PAUSE = 1e-4  # seconds between two polls after that
_ROLL_CALL = 3.0  # seconds in which waiting ranks report their presence to each other
_SUMMED = ("float32", "float64", "int64")


class _PendingCall:
    """Call of MPI that is in progress, or waits for earlier ones."""

    def __init__(self, begin: Callable[[], MPI.Request]) -> None:
        self.begin, self.begun = begin, 0.0
        self.request: MPI.Request | None = None  # None before it has begun
        self.error: GroupError | None = None
        self._done = threading.Event()

    def finish(self, error: GroupError | None) -> None:
        """Note how the call has ended."""
        self.error = error
        self._done.set()

    def wait(self) -> None:
        """Return when the call is done; see `PendingSum`."""
        while not self._done.wait(
            1.0
        ):  # in short waits, so that signals are handled on every system
            pass
        if self.error is not None:
            raise self.error


class MpiGroup:
    """All ranks of MPI_COMM_WORLD; see `Group`.

    patience: seconds that a call waits for the other ranks.

    Attributes:
        library: the name and version of the MPI library.

    Raises:
        StateError: the MPI library lets no other thread than the first one call it.
    """

    def __init__(self, patience: float) -> None:
        self.library = MPI.Get_library_version().split("\n")[0].rstrip("\0 ")
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise StateError(f"{self.library} is built without MPI_THREAD_SERIALIZED")
        self._ranks = MPI.COMM_WORLD.Dup()
        self._alarm = MPI.COMM_WORLD.Dup()  # for the roll call, whose messages are separate
        self._patience = patience
        self._calls: queue.SimpleQueue[_PendingCall] = queue.SimpleQueue()
        self._broken: GroupError | None = None
        threading.Thread(target=self._serve, name="edgegrad MPI", daemon=True).start()
        self._hook = sys.excepthook
        sys.excepthook = self._end_all

    @property
    def rank(self) -> int:
        return self._ranks.rank

    @property
    def size(self) -> int:
        return self._ranks.size

    # --- methods of Group

    def sum(self, array: Array) -> None:
        self.start_sum(array).wait()

    def start_sum(self, array: Array) -> _PendingCall:
        if array.dtype.name not in _SUMMED:
            raise DTypeError(f"ranks sum arrays of {', '.join(_SUMMED)}; got {array.dtype}")
        return self._start(lambda: self._ranks.Iallreduce(MPI.IN_PLACE, _require_contiguous(array)))

    def broadcast(self, array: Array, root: int = 0) -> None:
        raw = _require_contiguous(array).reshape(-1).view(np.uint8)
        self._start(lambda: self._ranks.Ibcast(raw, root)).wait()

    def gather(self, value: Any) -> list[Any] | None:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = np.zeros(self.size, np.int64)
        sizes[self.rank] = text.size
        self.sum(sizes)
        if not are_lengths(sizes) or sizes[self.rank] != text.size:
            self._start(self._refuse).wait()
        whole = np.empty(int(sizes.sum()), np.uint8)
        into = [whole, sizes.tolist()] if self.rank == 0 else None
        self._start(lambda: self._ranks.Igatherv(text, into)).wait()
        if self.rank:
            return None
        parts = np.split(whole, np.cumsum(sizes)[:-1])
        return [json.loads(part.tobytes()) for part in parts]

    def wait_for_all(self) -> None:
        self._start(self._ranks.Ibarrier).wait()

    def abort(self, why: str) -> NoReturn:
        text = "".join(
            f"edgegrad: rank {self.rank} of {self.size} on {platform.node()}: {line}\n"
            for line in why.splitlines()
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, text.encode())
        MPI.COMM_WORLD.Abort(1)
        os._exit(1)

    # --- the thread that calls MPI

    def _start(self, begin: Callable[[], MPI.Request]) -> _PendingCall:
        call = _PendingCall(begin)
        self._calls.put(call)
        return call

    def _serve(self) -> None:
        """Start calls in order, and poll all that are in progress until they are done.

        Ranks start the same calls in the same order, so a small sum need not wait for an earlier
        large one.  No call follows one that has failed.
        """
        going: list[_PendingCall] = []
        changed = time.monotonic()  # when a call last began or ended
        while True:
            is_quiet = time.monotonic() - changed > _SPIN
            try:
                call = self._calls.get(not going or is_quiet, _PAUSE if going else None)
            except queue.Empty:
                time.sleep(0)
            else:
                going.append(call)
                changed = time.monotonic()
            count = len(going)
            try:
                going = self._list_unfinished(going)
            except MPI.Exception as error:
                self._broken = GroupError(f"a rank has ended, or its connection: {error}")
            except GroupError as error:
                self._broken = error
            if self._broken is not None:
                for call in going:
                    call.finish(self._broken)
                going = []
            if len(going) < count:
                changed = time.monotonic()

    def _list_unfinished(self, going: list[_PendingCall]) -> list[_PendingCall]:
        """Return the unfinished ones of some calls; the last may not have begun.

        Raises:
            GroupError: one takes longer than the patience, or an earlier one has failed.
        """
        if self._broken is not None:
            raise self._broken
        now, left = time.monotonic(), []
        for call in going:
            if call.request is None:
                call.request, call.begun = call.begin(), now
            if call.request.Test():
                call.finish(None)
            elif now - call.begun > self._patience:
                raise GroupError(
                    f"{self._name_silent()} for {now - call.begun:.0f} s: stopped, hung, or "
                    "cut off "
                    "from the network"
                )
            else:
                left.append(call)
        return left

    def _refuse(self) -> NoReturn:
        """Refuse to continue with ranks that are at different calls.

        Raises:
            GroupError: the message names the ranks that do not notice.
        """
        raise GroupError(
            f"{self._name_silent()}, and its last message belongs to another call: it has left "
            "the ranks' common work, for example because it ended its training run early"
        )

    def _name_silent(self) -> str:
        """Return the names of the ranks that do not report that they wait."""
        here, others = np.zeros(1, np.uint8), [r for r in range(self.size) if r != self.rank]
        sent = [self._alarm.Isend(here, rank) for rank in others]
        heard: dict[int, MPI.Request] = {r: self._alarm.Irecv(here.copy(), r) for r in others}
        begin = time.monotonic()
        while time.monotonic() - begin < _ROLL_CALL and heard:
            heard = {rank: request for rank, request in heard.items() if not request.Test()}
            time.sleep(_PAUSE)
        for request in sent:
            request.Test()
        return (
            f"{name_ranks(sorted(heard))} did not answer" if heard else "no call of MPI has ended"
        )

    def _end_all(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Report an exception that ends this rank, and end the others, which would wait for it."""
        self._hook(kind, error, trace)
        self.abort(f"{kind.__name__}: {error}")


def _require_contiguous(array: Array) -> Array:
    """Return the array itself.

    Raises:
        StateError: its bytes are not contiguous in memory.
    """
    if not array.flags.c_contiguous:
        raise StateError("ranks exchange contiguous arrays")
    return array
