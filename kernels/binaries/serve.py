"""A process that compiles kernels: jobs come in by one pipe, code goes out by another.

`workers.py` starts it and says what goes through the pipes.  Of the kernels it imports the modules
that declare those it compiles, and nothing of the program that it works for.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
from collections.abc import Mapping

from engine.kernels.binaries.workers import Code, CompileJob, receive, send
from engine.kernels.compiler import emit, lower
from engine.kernels.loops import executor
from engine.kernels.machine.target import detect_host
from engine.runtime.team import LAUNCH

# The compiler gets ready with its first kernel, which every plan needs.  Processes that are forked
# after it are ready, too, and have its code.
_FIRST = CompileJob(executor.__name__, LAUNCH, detect_host(), small=False, machine_code=True)


def compile_job(job: CompileJob) -> Code:
    """Return the optimised bitcode of a kernel, and its object if the job asks for it."""
    declared = importlib.import_module(job.module).KERNELS
    template = next(t for t in declared if t.name == job.spec.template)
    texts = lower.lower(template, job.spec.params, job.spec.symbol, job.target)
    bitcode = emit.optimize(texts, job.spec.symbol, job.target, small=job.small)
    return bitcode, emit.emit_object(bitcode, job.target) if job.machine_code else None


def main(pipes: list[tuple[int, int]]) -> None:
    """Answer jobs from the standard streams, and in a process more from each pair of pipes."""
    ready = {_FIRST: compile_job(_FIRST)} if pipes else {}
    gc.freeze()  # what has been imported stays
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process ends it
    streams = os.dup(0), os.dup(1)
    os.dup2(2, 0)
    os.dup2(2, 1)  # nothing else that is printed may pass for an answer
    mine = streams
    if pipes and _has_one_thread():
        for pair in pipes:
            if os.fork() == 0:
                mine = pair
                break
    for end in {end for pair in (streams, *pipes) if pair is not mine for end in pair}:
        os.close(end)
    answer(*mine, ready)
    if mine is streams and pipes:
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()


def _has_one_thread() -> bool:
    """Return whether this process may be forked, on Linux: nobody holds a lock in it."""
    return len(os.listdir("/proc/self/task")) == 1


def answer(jobs: int, answers: int, ready: Mapping[CompileJob, Code]) -> None:
    """Answer one job after the other until there are no more; some are done already."""
    with os.fdopen(jobs, "rb") as questions, os.fdopen(answers, "wb") as out:
        while True:
            try:
                job = receive(questions)
            except EOFError:
                return
            try:
                compiled = ready.get(job) or compile_job(job)
            except Exception:  # reported when it is compiled where it was asked for
                compiled = None
            send(out, compiled)
