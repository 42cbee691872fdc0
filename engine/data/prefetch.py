"""Work done ahead of the one who asks for it, by threads that end with the asking."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def run_ahead(
    tasks: Iterator[Callable[[], T]], depth: int, threads: int = 1
) -> Generator[T, None, None]:
    """Yield the results of tasks, in their order.

    At most `depth` results are finished or being made while the caller works on the one before
    them.  With one thread the tasks run one after another; with more, side by side.  An exception
    of a task reaches the caller in the place of its result, with its own traceback, and ends the
    iteration.  When the iterator is closed, is exhausted or has raised, no task runs any more and
    the threads have ended; closing waits for the tasks that are running.

    Args:
        depth: 0: every task runs when it is asked for, in the caller's thread.
    """
    if depth < 1:
        for task in tasks:
            yield task()
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="edgegrad data")
    pending: deque[Future[T]] = deque()
    try:
        pending.extend(pool.submit(task) for task in islice(tasks, depth))
        while pending:
            result = pending.popleft().result()
            pending.extend(pool.submit(task) for task in islice(tasks, 1))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
