"""Calls that every binding is put through: python drill.py BUILD CHECKPOINT STEPS OUT SESSIONS.

By the names of `engine.api`, from Python 3.9 and numpy alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, sys.argv[1])
import mnist  # type: ignore[import-not-found]  # of the build

NAMES = {
    mnist.InputError: "BAD_INPUT", mnist.LabelError: "BAD_LABEL", mnist.FileError: "BAD_FILE",
    mnist.CheckpointError: "BAD_CHECKPOINT", mnist.StateError: "BAD_STATE",
}  # fmt: skip


class Session:
    """A model with its optimizer, by a path or the content of a checkpoint."""

    def __init__(self, source: Any) -> None:
        self.state = mnist.CheckpointState.load_checkpoint(source)
        self.module = mnist.Module(None, self.state)
        self.optimizer = mnist.Optimizer(None, self.module)

    def train(self, k: int) -> int:
        """Take a step of the drill; returns the bits of its loss."""
        rate, x, y = read(k)
        self.optimizer.set_learning_rate(rate)
        loss = self.module.train()(x, y)
        if not self.optimizer.is_joined and k != 3:  # the fifth step adds to these gradients
            self.optimizer.step()
            self.module.lazy_reset_grad()
        return take_bits(loss)

    def save(self) -> None:
        mnist.CheckpointState.save_checkpoint(self.state, sys.argv[4], True)


def take_bits(value: Any) -> int:
    """Return a number of float32 as the integer of its bits."""
    return int(np.asarray(value, np.float32).reshape(-1)[:1].view(np.int32)[0])


def read(k: int) -> tuple[float, Any, Any]:
    """Return the learning rate, the inputs and the labels of a step."""
    samples, labels = (int(np.prod(info["shape"])) for info in ports)
    step = content[k * (4 + 4 * samples + 8 * labels) :]
    x = np.frombuffer(step, np.float32, samples, 4).reshape(ports[0]["shape"])
    y = np.frombuffer(step, np.int64, labels, 4 + 4 * samples).reshape(ports[1]["shape"])
    return float(np.frombuffer(step, np.float32, 1)[0]), x, y


def say(fact: bool) -> str:
    return "true" if fact else "false"


def refuse(call: Callable[[], Any]) -> None:
    try:
        call()
        print("not refused")
    except mnist.Error as error:
        print(f"refused {NAMES[type(error)]}: {error}")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def turn() -> None:
    for _ in range(50):
        opened.module(x, y)
        opened.optimizer.step()


sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # stdout is a text file
content = Path(sys.argv[3]).read_bytes()
model = Session(sys.argv[2])
ports = model.state._handle.first_phases["train"][0]
for k in range(9):
    print("loss", model.train(k))
_, x, y = read(9)
print("eval", take_bits(model.module.eval()(x, y)))
print("predicted", mnist.Trainer(sys.argv[2]).predict(x).size)
model.state.properties["note"] = "gr\u00fc\u00df"
model.state.properties["count"] = 9007199254740993
print("property", model.state.properties["note"], model.state.properties["count"])

before = model.state.to_bytes(True)
model.module.train()
refuse(lambda: model.module(x[1:], y))
refuse(lambda: model.module(x, np.full_like(y, 10)))
refuse(lambda: model.optimizer.set_learning_rate(float("nan")))
refuse(lambda: model.module.copy_buffer_to_parameters(np.zeros(1, np.float32)))
refuse(lambda: Session(before[: len(before) // 2]))
refuse(lambda: Session("missing"))
print("unchanged", say(before == model.state.to_bytes(True)))

resumed = Session(before)
refuse(resumed.optimizer.step)
print("round trip", say(before == resumed.state.to_bytes(True)))
model.save()
opened = Session(sys.argv[4])
loss = model.train(9)
print("loss", loss)
print("alike", say(resumed.train(9) == loss == opened.train(9)))
model.save()
done, other = opened.optimizer.get_step(), threading.Thread(target=turn)
other.start()
turn()
other.join()
print("turns", opened.optimizer.get_step() - done)
values = model.module.get_contiguous_parameters(True)
resumed.module.copy_buffer_to_parameters(values)
same = np.array_equal(values, resumed.module.get_contiguous_parameters(True))
print("parameters", values.size, say(same))
refuse(lambda: model.module.copy_buffer_to_parameters(values.astype("f8")))
Path(f"{sys.argv[4]}.onnx").write_bytes(model.module.inference_model_to_bytes())
model.optimizer.set_step(10)
mnist.LinearLRScheduler(model.optimizer, 20, 40, 0.5)
print("rate", model.optimizer.get_learning_rate())

sessions, first = int(sys.argv[5]), 0
for k in range(sessions):
    Session(before)
    first = resident() if k == sessions // 2 else first
print("grown", max(0, resident() - first) >> 20)
