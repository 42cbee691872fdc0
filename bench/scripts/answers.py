"""Answers of a model to one batch, by our session or by onnxruntime's.

    python answers.py (edgegrad|onnxruntime) MODEL THREADS

batch.npz is in the folder of the model.  Every line on standard input is a number of answers, and
is answered by `done`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from engine.tools.benchmark.answering import open_session


def main(side: str, model: Path, threads: int) -> None:
    """Serve answers until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print must not look like an answer
    session = open_session(side, str(model), threads)
    with np.load(model.with_name("batch.npz")) as batch:
        feed = {session.get_inputs()[0].name: batch["x"]}
    for line in sys.stdin:
        for _ in range(int(line)):
            session.run(None, feed)
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
