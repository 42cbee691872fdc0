"""Compiling kernels side by side, in processes that are started for it.

A process takes about half a second to start and then waits for jobs.  It imports numba and the
vocabulary of kernels, and nothing of the program that started it: no `__main__` that would have to
be written for it, and no fork of a process with threads.  On Linux one process starts, and forks
into as many as are wanted once it has imported what they share and compiled a first kernel.

A process is given kernels of one module one after the other, since these call the same inline
functions, which a process compiles once; then of the module with most, so that few are shared.  Of
a shared module two processes begin at opposite ends: neighbours have most in common, such as the
register tiles of products.
The code comes back through a pipe, and the process that asked for it writes the cache.

A process that fails at a kernel says only that.  One that ends is not replaced, and when none is
left, the remaining jobs fail.  The process that asked then compiles the kernel itself, and gets the
error as its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.base import package
from engine.kernels.machine.target import Target
from engine.plan.plan import KernelSpec
from engine.system.config import count_cores
from engine.system.progress import get_logger

IDLE = 10.0  # seconds after which a process without a job ends
FEW = 4  # kernels that are compiled sooner than another process has started
MEMORY = 512 << 20  # bytes that there must be for one process, which uses less than half
CONTROL_GROUPS = Path("/sys/fs/cgroup")  # where Linux says what a container may use
SERVER = "engine.kernels.binaries.serve"
_START = (  # looking for garbage took a tenth of the front end's time, after 200,000 objects again
    "import gc; gc.set_threshold(2_000_000); "
    "import sys, json; sys.path, pipes = json.loads(sys.argv[1]); "
    f"from {SERVER} import main; main(pipes)"
)


@dataclass(frozen=True, slots=True)
class CompileJob:
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


def count_useful(kernels: int) -> int:
    """Return how many processes to compile kernels with; 0 where none can be started."""
    program = Path(sys.executable or "").stem.lower()
    if getattr(sys, "frozen", False) or not program.startswith("python"):
        return 0  # a program with an interpreter in it: what it would do with arguments is open
    most = min(count_cores(), _measure_memory() // MEMORY)
    return min(most, -(-kernels // FEW))


def _measure_memory() -> int:
    """Return the bytes of memory of this machine or container; many where it does not say."""
    sizes = [1 << 40]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(ValueError, OSError):  # there is none, or it is "max"
            sizes.append(int((CONTROL_GROUPS / name).read_text()))
    return min(sizes)


@dataclass(eq=False)
class Process:
    """A process that answers jobs until there are no more.

    program: what was started; on Linux that has made the others of its group, when it was ready.
    jobs, answers: pipes.  They keep nothing that a forked child would write when it closes them.
    """

    program: subprocess.Popen[bytes]
    jobs: IO[bytes]
    answers: IO[bytes]

    def close(self) -> None:
        """Close the pipes, which ends the process."""
        for pipe in (self.jobs, self.answers):
            with contextlib.suppress(OSError):
                pipe.close()


def start_processes(count: int) -> list[Process]:
    """Start processes, as a group of their own that no Ctrl-C reaches.

    Raises:
        OSError: none can be started.
    """
    group: dict[str, Any] = {"process_group": 0}
    if sys.platform == "linux":  # elsewhere a fork loses more than threads
        return _spawn(count, **group)
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        group = {"creationflags": flags}
    processes: list[Process] = []
    for _ in range(count):
        try:
            processes += _spawn(1, **group)
        except OSError:
            if not processes:
                raise
            break
    return processes


def _spawn(count: int, **group: Any) -> list[Process]:
    """Return a program that answers from so many processes; the first has its standard streams."""
    pairs = [(os.pipe(), os.pipe()) for _ in range(count - 1)]
    theirs = [(jobs[0], answers[1]) for jobs, answers in pairs]
    ours = [(jobs[1], answers[0]) for jobs, answers in pairs]
    root = str(package.FOLDER.parent)
    try:
        program = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps([[root, *sys.path], theirs])],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # so that NumPy starts no threads
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[end for pair in theirs for end in pair],
            **group,
        )
    except OSError:
        for end in [end for pair in ours for end in pair]:
            os.close(end)
        raise
    finally:
        for end in [end for pair in theirs for end in pair]:
            os.close(end)
    assert program.stdin is not None
    assert program.stdout is not None
    return [
        Process(program, program.stdin, program.stdout),
        *(Process(program, open(j, "wb", 0), open(a, "rb", 0)) for j, a in ours),
    ]


class Pool:
    """Processes that compile, each with a thread here that waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: defaultdict[str, deque[tuple[CompileJob, Future[Code]]]] = defaultdict(deque)
        self._joined = Counter[str]()  # processes that have begun with jobs of a module
        self._processes: list[Process] = []
        self._stopped = False

    @property
    def running(self) -> bool:
        """True while there are processes."""
        return bool(self._processes)

    def submit(self, jobs: Sequence[CompileJob], processes: int) -> list[Future[Code]]:
        """Have jobs done by at least that many processes: slow ones first, similar ones together.

        The results are code, or the exception `Failed`.
        """
        futures = [Future[Code]() for _ in jobs]
        with self._changed:
            for job, future in zip(jobs, futures, strict=True):
                self._waiting[job.module].append((job, future))
            if processes > len(self._processes):
                self._start(processes - len(self._processes))
            self._fail_without_processes()
            self._changed.notify_all()
        return futures

    def _start(self, count: int) -> None:
        """Start more processes, if that is possible; the caller must hold the lock."""
        try:
            started = start_processes(count)
        except OSError as error:
            get_logger().debug("processes that compile kernels could not be started: %r", error)
            return
        for process in started:
            thread = threading.Thread(
                target=self._pass_jobs, args=(process,), daemon=True, name="edgegrad-compile"
            )
            try:
                thread.start()
                self._processes.append(process)
            except RuntimeError:  # the system gives no more threads
                process.close()

    def stop(self) -> None:
        """End all processes at once; jobs that are not done fail."""
        with self._changed:
            self._stopped = True
            programs = {process.program: None for process in self._processes}
            for program in programs:
                _kill(program)
            self._changed.notify_all()
        for program in programs:
            program.wait()
        with self._changed:
            waiting = [future for group in self._waiting.values() for _, future in group]
            self._waiting.clear()
        for future in waiting:
            future.set_exception(Failed("stopped"))

    def forget(self) -> None:
        """Close, in a forked child, the pipes, which belong to the parent."""
        for process in self._processes:
            process.close()
            process.program.returncode = 0  # it is not this process's to wait for

    def _pass_jobs(self, process: Process) -> None:
        """Pass jobs to a process until there are no more; a thread runs this."""
        module, end = "", 0
        try:
            while taken := self._take(module, end):
                (job, future), end = taken
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
            get_logger().debug("a process that compiles kernels has ended: %r", error)
        finally:
            with self._changed:
                if process in self._processes:
                    self._processes.remove(process)
                last = all(other.program is not process.program for other in self._processes)
                self._fail_without_processes()
            process.close()
            if last:
                process.program.wait()

    def _take(self, module: str, end: int) -> tuple[tuple[CompileJob, Future[Code]], int] | None:
        """Return the next job, and from which end of the jobs of its module, 0 or -1; waits `IDLE`.

        It is from this end of this module, or else of the module with most.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or bool(self._waiting), IDLE)
            if self._stopped or not self._waiting:
                return None
            if module not in self._waiting:
                module = max(self._waiting, key=lambda name: len(self._waiting[name]))
                end = -(self._joined[module] % 2)
                self._joined[module] += 1
            jobs = self._waiting[module]
            taken = jobs.pop() if end else jobs.popleft()
            if not jobs:
                del self._waiting[module], self._joined[module]
            return taken, end

    def _fail_without_processes(self) -> None:
        """Let all jobs fail if no process is left; the caller must hold the lock."""
        if not self._processes:
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


def _ask(process: Process, job: CompileJob) -> Code | None:
    """Pass a job to a process and wait for its answer."""
    send(process.jobs, job)
    answer: Code | None = receive(process.answers)
    return answer


def _kill(program: subprocess.Popen[bytes]) -> None:
    """End a program and the processes of its group."""
    if sys.platform == "win32":
        program.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)


_pool: Pool | None = None


def pool() -> Pool:
    """Return the pool of this process."""
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
    """Forget, in a forked child, the threads and processes of the parent."""
    global _pool
    if _pool is not None:
        _pool.forget()
    _pool = None


atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
