"""Python face of a build under another Python, such as Raspberry Pi OS 11's.

    python3.9 -m venv old && old/bin/pip install numpy==1.19.5
    python -m tests.support.old_python old/bin/python

The other Python needs numpy alone.  It trains, evaluates, predicts, saves and exports; its losses,
its checkpoint and its model must equal this Python's.  CI has no other Python; there
`tests/trimmed/test_build_face.py` checks the syntax.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.builds import make_build

PROGRAM = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import mnist
x, y = (np.arange(256) % 7).reshape(4, 64).astype(np.float32) / 7, np.arange(4)
t = mnist.Trainer()
schedule = mnist.LinearLRScheduler(t.optimizer, 1, 5, 0.1)
for _ in range(3):
    print(float(t.step(x, y)).hex())
    schedule.step()
print(float(t.evaluate(x, y)).hex(), t.predict(x).tobytes().hex()[:32])
t.state.properties["epoch"] = 3
t.state.properties["loss"] = 0.5
t.state.properties["note"] = "old"
print(dict(t.state.properties), dict(t.state.parameters).keys())
t.module.copy_buffer_to_parameters(t.module.get_contiguous_parameters())
t.save(sys.argv[2] + "/checkpoint")
t.module.export_model_for_inferencing(sys.argv[2] + "/model.onnx")
for name in ("checkpoint", "model.onnx"):
    with open(sys.argv[2] + "/" + name, "rb") as file:
        print(name, hashlib.sha256(file.read()).hexdigest())
try:
    t.optimizer.set_learning_rate(-1)
except mnist.InputError as error:
    print(error)
"""


def run_under(python: str, folder: Path) -> str:
    """Return the output of the program under a Python."""
    with tempfile.TemporaryDirectory() as work:
        words = [python, "-c", PROGRAM, str(folder), work]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main(pythons: list[str]) -> None:
    """Compare each Python with this one."""
    for threads in (1, 2):
        folder = make_build("mlp", threads)
        expected = run_under(sys.executable, folder)
        for python in pythons:
            if run_under(python, folder) != expected:
                raise SystemExit(
                    f"{python}, {threads} threads:\n{run_under(python, folder)}{expected}"
                )
            print(f"{python}, {threads} threads: as here")


if __name__ == "__main__":
    main(sys.argv[1:])
