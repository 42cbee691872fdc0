"""A process that compiles kernels: jobs come in by one pipe, code goes out by another.

`workers.py` starts it and says what goes through the pipes.  Of the kernels it imports the modules
that declare those it compiles, and nothing of the program that it works for.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys

from engine.kernels.compiler import emit, lower
from engine.kernels.compiler.workers import Code, Job, receive, send


def code(job: Job) -> Code:
    """The optimised bitcode of a kernel, and its object if the job asks for it."""
    declared = importlib.import_module(job.module).KERNELS
    template = next(t for t in declared if t.name == job.spec.template)
    texts = lower.lower(template, job.spec.params, job.spec.symbol, job.target)
    bitcode = emit.optimize(texts, job.spec.symbol, job.target, small=job.small)
    return bitcode, emit.emit_object(bitcode, job.target) if job.machine_code else None


def main() -> None:
    """Answer one job after the other until there are no more."""
    gc.freeze()  # what has been imported stays; looking through it again took a tenth of the time
    gc.set_threshold(200_000)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process ends it
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # nothing else that is printed may pass for an answer
        while True:
            try:
                job = receive(sys.stdin.buffer)
            except EOFError:
                return
            try:
                answer = code(job)
            except Exception:  # told by compiling it where it was asked for
                answer = None
            send(answers, answer)
