"""From nothing to a first answer, as a user's program would get there.

    python first_answer.py (edgegrad|onnxruntime) FOLDER THREADS

FOLDER: with forward.onnx and batch.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

side, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
model = str(folder / "forward.onnx")
if side == "edgegrad":
    from engine.inference import Session

    session = Session(model, threads=threads)
else:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
batch = np.load(folder / "batch.npz")
session.run(None, {session.get_inputs()[0].name: batch["x"]})
