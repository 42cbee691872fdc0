"""Teams: native threads that run tables of steps together.

A process has one team for each number of threads, which all its programs share.  A resolver gives
the addresses of the compiled kernels.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import EngineError, StateError
from engine.plan.context import CLAIM, CONTEXT, SPINS, STOP
from engine.plan.plan import Kernel, KernelSpec
from engine.plan.words import LINE
from engine.system.lock import RunLock

Resolver = Callable[[Iterable[KernelSpec | Kernel]], Mapping[str, int]]

LAUNCH, WORKER = KernelSpec("launch", ("i64",)), KernelSpec("worker", ("i64",))

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_HALF = 256  # bytes that are set aside for a mutex, and for a condition


def _find_sleep_functions() -> dict[str, int]:
    """Return the addresses of the platform's functions that the executor's context names."""
    if sys.platform == "win32":
        lib: Any = ctypes.WinDLL("kernel32")
        names = {
            "lock": "AcquireSRWLockExclusive",
            "unlock": "ReleaseSRWLockExclusive",
            "wait": "SleepConditionVariableSRW",
            "wake": "WakeAllConditionVariable",
            "give": "SwitchToThread",
        }
    else:
        lib = ctypes.CDLL(None)
        names = {
            "lock": "pthread_mutex_lock",
            "unlock": "pthread_mutex_unlock",
            "wait": "pthread_cond_wait",
            "wake": "pthread_cond_broadcast",
            "give": "sched_yield",
        }
    return {k: ctypes.cast(getattr(lib, n), ctypes.c_void_p).value or 0 for k, n in names.items()}


# Places of the words that every run reads or writes.  As fields of a structured array they take
# 1.5 us, as much as two empty runs; as integers 0.3.
_TABLE, _STEPS, _STATUS, _PHASE = (
    CONTEXT.members[name].offset for name in ("table", "steps", "status", "phase")
)


def _make_context(threads: int) -> Array:
    """Return one `CONTEXT` record with its claims, all 0, at the start of a cache line."""
    memory = np.zeros(CONTEXT.size + threads * CLAIM.size + LINE, np.int64)
    start = -(memory.ctypes.data // 8) % LINE
    return memory[start : start + CONTEXT.size].view(CONTEXT.dtype)


class Team:
    """Threads that run tables of steps together; the calling thread is thread 0."""

    def __init__(self, threads: int, resolve: Resolver) -> None:
        self.threads = threads
        code = resolve((LAUNCH, WORKER))
        self._launch = _ENTRY(code[LAUNCH.symbol])
        self._worker = _ENTRY(code[WORKER.symbol])
        self._run_lock = RunLock("a run of these threads")
        self._sync = np.zeros(2 * _HALF, np.uint8)  # zero bytes are a valid mutex and condition
        context = _make_context(threads)
        self._address = context.ctypes.data
        self._words, self._integers = context[0], context.view(np.int64).data
        self._words["team"] = threads
        for name, address in _find_sleep_functions().items():
            self._words[name] = address
        self._words["mutex"] = self._sync.ctypes.data
        self._words["condition"] = self._sync.ctypes.data + _HALF
        self._words["spins"] = SPINS if threads <= (os.cpu_count() or 1) else 1
        self._workers: list[threading.Thread] = []
        for tid in range(1, threads):
            thread = threading.Thread(
                target=self._serve, args=(tid,), daemon=True, name=f"edgegrad-{tid}"
            )
            try:
                thread.start()
            except RuntimeError as error:
                self.stop()
                raise EngineError(
                    f"threads={threads}: the system started only {tid} ({error}); ask for fewer"
                ) from error
            self._workers.append(thread)

    def _serve(self, tid: int) -> None:
        """Run a worker thread; `self` keeps the words that it works on alive."""
        self._worker(self._address, tid, self.threads)

    def run(self, table: int, steps: int, status: int, runners: int) -> None:
        """Run a table of steps and return when every thread's share is done.

        table, status: addresses of the steps and of the status words; a first status word other
        than 0 ends the run at the next barrier.
        runners: 1 if all steps are thread 0's alone, or all threads.

        Raises:
            StateError: the team was stopped, or this thread is inside a run of it.
        """
        self._run_lock.hold(self._run, table, steps, status, runners)

    def _run(self, table: int, steps: int, status: int, runners: int) -> None:
        """Do the same, with the lock held."""
        words = self._integers
        if words[_PHASE] == STOP:
            raise StateError("the worker threads were stopped: the interpreter is exiting")
        words[_TABLE], words[_STEPS], words[_STATUS] = table, steps, status
        self._launch(self._address, 0, runners)

    def stop(self) -> None:
        """End the threads; the team cannot run afterwards."""
        with self._run_lock.take():
            self._words["phase"] = STOP
            if self._workers:
                _wake(self._words)
            for thread in self._workers:
                thread.join()
            self._workers = []


def _wake(words: Any) -> None:
    """Wake sleeping threads from Python, as the executor's `_publish` does."""
    lock, wake, unlock = (
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(int(words[name]))
        for name in ("lock", "wake", "unlock")
    )
    lock(int(words["mutex"]))
    wake(int(words["condition"]))
    unlock(int(words["mutex"]))


_teams: dict[tuple[int, Resolver], Team] = {}
_teams_lock = RunLock("the start of worker threads")


def get_team(threads: int, resolve: Resolver) -> Team:
    """Return the team of that many threads that this process has; it is made when first needed."""
    existing = _teams.get((threads, resolve))
    if existing is not None:
        return existing
    with _teams_lock.take():
        key = (threads, resolve)
        if key not in _teams:
            _teams[key] = Team(threads, resolve)
        return _teams[key]


def _stop_teams() -> None:
    for t in _teams.values():
        t.stop()  # it stays in the table, so that no new one is started now


def _forget_teams() -> None:
    """Start over in a forked child, which has no thread but this one."""
    _teams_lock.renew()
    _teams.clear()


atexit.register(_stop_teams)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_teams)
