"""A program for mpirun: the work of a group, and its end; test_mpi.py reads its output."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from engine.distributed import world
from engine.distributed.group import gather_values, share


def main(ending: str) -> None:
    """Try all methods, then end in one way."""
    group = world(patience=1.0)
    assert group is not None
    rank, size = group.rank, group.size
    for kind in (np.float32, np.float64, np.int64):
        array = np.full((2, 3), rank + 1, kind)
        group.sum(array)
        assert (array == size * (size + 1) // 2).all()
    whole = np.arange(3_000_000, dtype=np.float32)
    first, second = group.start_sum(whole), group.start_sum(np.ones(5))
    second.wait()
    first.wait()
    assert np.array_equal(whole, np.arange(3_000_000, dtype=np.float32) * size)
    told = np.full(4, rank, np.int64)
    group.broadcast(told, root=size - 1)
    assert (told == size - 1).all()
    assert group.gather({"rank": rank}) == (None if rank else [{"rank": r} for r in range(size)])
    assert gather_values(group, "x" * rank) == ["x" * r for r in range(size)]
    assert share(group, [rank, "ü", None]) == [0, "ü", None]
    group.wait_for_all()
    if rank == 1 and ending == "raise":
        raise ValueError("a bad sample")
    if rank == 1 and ending == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if ending == "leave":  # to a place where ranks sum something other than lengths of messages
        if rank == 1:
            group.sum(np.full(size, 4.0))
            time.sleep(10)
        gather_values(group, "x")
    group.sum(np.zeros(1))
    print("done", rank, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
