"""Process of the benchmark that answers, by a session of this package or by onnxruntime's.

    python -m engine.tools.benchmark.answering (edgegrad|onnxruntime) MODEL FEED THREADS

FEED: an .npz with the inputs in order.  A first answer is made at once and reported.  Every further
line on standard input is `answer N`; the reports are lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from engine.tools.benchmark.child import measure_peak_memory


def open_session(side: str, model: str, threads: int) -> Any:
    """Return a session of one side."""
    if side == "edgegrad":
        from engine.inference import Session

        return Session(model, threads=threads)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def main(side: str, model: str, path: str, threads: int) -> None:
    """Answer until standard input ends; what libraries print must not look like an answer."""
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = open_session(side, model, threads)
    with np.load(path) as content:
        inputs = session.get_inputs()
        feed = {each.name: content[f"arr_{i}"] for i, each in enumerate(inputs)}
    session.run(None, feed)
    print(json.dumps({}), file=reports, flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line.split()[1])):
            start = time.perf_counter()
            session.run(None, feed)
            seconds.append(time.perf_counter() - start)
        report = {"seconds": seconds, "memory": measure_peak_memory()}
        print(json.dumps(report), file=reports, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
