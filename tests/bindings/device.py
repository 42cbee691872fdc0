"""Training by the Python interface of a build, on a device: python device.py BUILD STEPS OUT.

Takes the steps of a drill by the names of `engine.api`, from Python 3.9 and numpy alone, and prints
what a drill prints of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, sys.argv[1])
import mnist  # type: ignore[import-not-found]  # of the build


def say(word: str, value: Any) -> None:
    """Print a number of float32 as the integer of its bits."""
    print(word, int(np.asarray(value, np.float32).reshape(-1)[:1].view(np.int32)[0]))


build, content = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()
state = mnist.CheckpointState.load_checkpoint(build / "checkpoint")
module = mnist.Module(None, state)
optimizer = mnist.Optimizer(None, module)
phases = state._handle.first_phases["train"][0]
samples, labels = (int(np.prod(info["shape"])) for info in phases)
size = 4 + 4 * samples + 8 * labels
for k in range(10):
    step = content[k * size : (k + 1) * size]
    x = np.frombuffer(step, np.float32, samples, 4).reshape(phases[0]["shape"])
    y = np.frombuffer(step, np.int64, labels, 4 + 4 * samples).reshape(phases[1]["shape"])
    if k == 9:
        say("eval", module.eval()(x, y))
        before = state.to_bytes(True)
        try:
            module.train()(x, y + 10)
            print("not refused")
        except mnist.LabelError as error:
            print("refused", error)
        print("unchanged", state.to_bytes(True) == before)
    optimizer.set_learning_rate(float(np.frombuffer(step, np.float32, 1)[0]))
    say("loss", module.train()(x, y))
    if k != 3:
        optimizer.step()
        module.lazy_reset_grad()
mnist.CheckpointState.save_checkpoint(state, sys.argv[3], True)
again = mnist.CheckpointState.load_checkpoint(sys.argv[3])
print("round trip", again.to_bytes(True) == state.to_bytes(True))
