"""Compiling kernels side by side, in processes that are started for it.

A process takes about half a second to start and then waits for jobs.  It imports numba and the
vocabulary of kernels, and nothing of the program that started it: no `__main__` that would have to
be written for it, and no fork of a process with threads.  Where it can it is given kernels of one
module one after the other, since these call the same inline functions, which a process compiles
once.  What it compiles comes back through a pipe, and who asked for it writes the cache.

A process that fails at a kernel says only that.  One that ends is not replaced, and
when none is left, the remaining jobs fail.  Whoever asked then compiles the kernel itself, and has
what went wrong as an error of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import engine
from engine.kernels.target import Target
from engine.runtime.config import usable_cores
from engine.runtime.plan import KernelSpec
from engine.runtime.progress import LOG

IDLE = 5.0  # seconds after which a process without a job ends
FEW = 4  # kernels that are compiled sooner than another process has started
MEMORY = 512 << 20  # bytes of the machine's memory for one process, which uses less than half
SERVER = "engine.kernels.compiler.serve"
_START = f"import sys, json; sys.path = json.loads(sys.argv[1]); from {SERVER} import main; main()"


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to compile.

    module: which declares its template among its `KERNELS`.
    small: as `emit.optimize` says.
    machine_code: whether the object is wanted, besides the bitcode.
    """

    module: str
    spec: KernelSpec
    target: Target
    small: bool
    machine_code: bool


Code = tuple[bytes, bytes | None]  # optimised bitcode, and the object if it was asked for


class Failed(Exception):
    """A job was not done; it says nothing of the kernel."""


def useful(kernels: int) -> int:
    """How many processes compile this many kernels best; 0 where processes cannot be started."""
    program = Path(sys.executable or "").stem.lower()
    if getattr(sys, "frozen", False) or not program.startswith("python"):
        return 0  # a program with an interpreter in it: what it would do with arguments is open
    most = min(usable_cores(), _memory() // MEMORY)
    return min(most, -(-kernels // FEW))


def _memory() -> int:
    """The bytes of memory of this machine; many where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 40


def start_process() -> subprocess.Popen[bytes]:
    """Start a process that answers jobs until its input ends; a Ctrl-C does not reach it."""
    root = str(Path(engine.__file__).resolve().parents[1])
    apart: dict[str, Any] = {"process_group": 0}
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        apart = {"creationflags": flags}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _START, json.dumps([root, *sys.path])],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # NumPy starts no threads that wait
        bufsize=0,  # what a forked child closes must hold nothing that it would write
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **apart,
    )


class Pool:
    """Processes that compile, each with a thread here that waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: defaultdict[str, deque[tuple[Job, Future[Code]]]] = defaultdict(deque)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads = 0

    @property
    def running(self) -> bool:
        """Whether there are processes, or some are being started."""
        return self._threads > 0

    def submit(self, jobs: Sequence[Job], processes: int) -> list[Future[Code]]:
        """Have jobs done by at least that many processes.

        The results are code, or the exception `Failed`.
        """
        futures = [Future[Code]() for _ in jobs]
        with self._changed:
            for job, future in zip(jobs, futures, strict=True):
                self._waiting[job.module].append((job, future))
            with contextlib.suppress(RuntimeError):  # the system gives no more threads
                while self._threads < processes:
                    threading.Thread(
                        target=self._work, daemon=True, name="edgegrad-compile"
                    ).start()
                    self._threads += 1
            self._fail_without_threads()
            self._changed.notify_all()
        return futures

    def stop(self) -> None:
        """End all processes at once; jobs that are not done fail."""
        with self._changed:
            waiting = [future for group in self._waiting.values() for _, future in group]
            self._waiting.clear()
            processes = list(self._processes)
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        for future in waiting:
            future.set_exception(Failed("stopped"))

    def forget(self) -> None:
        """In a forked child: let go of the pipes, which are the parent's."""
        for process in self._processes:
            _close(process)
            process.returncode = 0  # of a process that is not this one's to wait for

    def _work(self) -> None:
        """Life of a thread: start a process, and pass it jobs until there are no more."""
        process, module = None, ""
        try:
            process = start_process()
            with self._changed:
                self._processes.append(process)
            while taken := self._take(module):
                job, future = taken
                module = job.module
                try:
                    answer = _ask(process, job)
                except BaseException:
                    future.set_exception(Failed("the process has ended"))
                    raise
                if answer is None:
                    future.set_exception(Failed("the process could not"))
                else:
                    future.set_result(answer)
        except (OSError, EOFError) as error:
            LOG.debug("a process that compiles kernels could not start or has ended: %r", error)
        finally:
            with self._changed:
                self._threads -= 1
                if process in self._processes:
                    self._processes.remove(process)
                self._fail_without_threads()
            if process is not None:
                _close(process)
                process.wait()

    def _take(self, module: str) -> tuple[Job, Future[Code]] | None:
        """The next job: of this module if there is one, else of that with most; waits `IDLE`."""
        with self._changed:
            if not self._changed.wait_for(lambda: any(self._waiting.values()), IDLE):
                return None
            group = self._waiting[module] or max(self._waiting.values(), key=len)
            return group.popleft()

    def _fail_without_threads(self) -> None:
        """Let all jobs fail if nobody is there to do them; who calls holds the lock."""
        if self._threads == 0:
            for group in self._waiting.values():
                for _, future in group:
                    future.set_exception(Failed("there is no process"))
            self._waiting.clear()


def send(pipe: IO[bytes], value: object) -> None:
    """Write a value, after its length in eight bytes, into a pipe."""
    content = pickle.dumps(value)
    rest = memoryview(len(content).to_bytes(8, "little") + content)
    while rest:
        rest = rest[pipe.write(rest) :]
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Read a value that `send` has written.

    Raises:
        EOFError: there are no more.
    """

    def read(count: int) -> bytes:
        content = b""
        while len(content) < count:
            piece = pipe.read(count - len(content))
            if not piece:
                raise EOFError
            content += piece
        return content

    return pickle.loads(read(int.from_bytes(read(8), "little")))


def _ask(process: subprocess.Popen[bytes], job: Job) -> Code | None:
    """Pass a job to a process and wait for its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    send(process.stdin, job)
    answer: Code | None = receive(process.stdout)
    return answer


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes of a process, which ends it."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()


_pool: Pool | None = None


def pool() -> Pool:
    """The pool of this process."""
    global _pool
    if _pool is None:
        _pool = Pool()
    return _pool


def stop() -> None:
    """End the processes of this process's pool at once, if there are any."""
    global _pool
    stopped, _pool = _pool, None
    if stopped is not None:
        stopped.stop()


def _forget() -> None:
    """A forked child has no threads and no processes of its own."""
    global _pool
    if _pool is not None:
        _pool.forget()
    _pool = None


atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
