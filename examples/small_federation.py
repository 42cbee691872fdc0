"""Three devices learn digits together: one with edgegrad, one with a trimmed build, one in C.

This federation does not need Flower: messages are files in a folder for each device.  The program
needs scikit-learn for the digits, and a C compiler called cc or the package ziglang.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from sklearn.datasets import load_digits

from edgegrad import Trainer
from edgegrad.artifacts import SGD
from edgegrad.federated import parameters
from edgegrad.federated.device import Device
from edgegrad.federated.folder import ANSWER, Folder, serve
from edgegrad.federated.learners import learner_of
from edgegrad.federated.message import Message, fingerprint
from edgegrad.tools import cli
from edgegrad.tools.trimmed.link import link
from edgegrad.tools.trimmed.targets import resolve

ROUNDS, BATCH = 4, 16
CONFIG = {"local-epochs": 2, "batch-size": BATCH, "learning-rate": 0.1}

# The model, and its training for this machine as a library.  For another board: --target.
rng = np.random.default_rng(0)
weights = {
    "fc1.weight": rng.standard_normal((32, 64)) / 8,
    "fc1.bias": np.zeros(32),
    "fc2.weight": rng.standard_normal((10, 32)) / np.sqrt(32),
    "fc2.bias": np.zeros(10),
}
graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["images", "fc1.weight", "fc1.bias"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "fc2.weight", "fc2.bias"], ["scores"], transB=1),
    ],
    "digits",
    [helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["batch", 64])],
    [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["batch", 10])],
    [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
trainer = Trainer.from_onnx(model, "cross_entropy", SGD(0.1), folder="artifacts", threads=1)
words = ["build", "artifacts", "--batch", str(BATCH), "--name", "digits", "--federated"]
if cli.main([*words, "-o", "build"]):
    raise SystemExit("the build failed")

# Every device has 400 digits of its own; the rest are for the test.
found = load_digits()
images, labels = (found.data / 16).astype(np.float32), found.target.astype(np.int64)
order = rng.permutation(len(labels))
owns = [(images[part], labels[part]) for part in np.split(order[:1200], 3)]
test = images[order[1200:]], labels[order[1200:]]


class InC:
    """A device that is the program build/src/device.c; here it is started for every request."""

    def __init__(self, folder: str, data: tuple[np.ndarray, np.ndarray]) -> None:
        self.folder, self.program = Folder(folder), Path("device").resolve()
        made = Path("build")
        code, sources = (made / "src/kernels.o").read_bytes(), ["src/digits.c", "src/device.c"]
        link(
            [code], [made / name for name in sources], resolve("native"), self.program,
            kind="executable", include=[made, made / "src"], threads=False,
        )  # fmt: skip
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, array in zip(("images", "labels"), data, strict=True):
            array.tofile(Path(folder, f"{name}.bin"))

    def serve(self) -> None:
        for request in self.folder.requests():
            answer = request.name.removesuffix(".safetensors") + ANSWER
            checkpoint = Path("build/checkpoint").resolve()
            subprocess.run(
                [self.program, checkpoint, request.name, answer, "images.bin", "labels.bin"],
                cwd=self.folder.place, check=True,
            )  # fmt: skip


class InPython:
    """A device with a trainer, of edgegrad or of a build; on a board this is its whole program."""

    def __init__(self, folder: str, data: object, trainer: object) -> None:
        self.folder, self.device = Folder(folder), Device(learner_of(trainer), data)

    def serve(self) -> None:
        serve(self.folder, self.device, seconds=0)


sys.path.insert(0, "build")
import digits  # noqa: E402  # it was built above

devices: list[InPython | InC] = [
    InPython("devices/0", owns[0], Trainer("artifacts", threads=1)),
    InPython("devices/1", owns[1], digits.Trainer()),
    InC("devices/2", owns[2]),
]
arrays = {key: value.astype(np.float32) for key, value in weights.items()}
for number in range(ROUNDS):
    request = Message("train", fingerprint(arrays), number, arrays, CONFIG)
    answers = []
    for device in devices:
        device.folder.ask(request)
        device.serve()
        answer = device.folder.answer_to(request)
        assert answer is not None
        assert answer.kind == "trained", answer.reason
        answers.append(answer)
    counts = [answer.metrics["num-examples"] for answer in answers]
    arrays = {
        key: np.average([a.arrays[key] for a in answers], axis=0, weights=counts).astype("f4")
        for key in arrays
    }
    parameters.apply(trainer, arrays)
    accuracy = trainer.evaluate(test, metrics="accuracy")["accuracy"]
    print(f"round {number + 1}: {accuracy:.1%} of the test digits")
assert accuracy > 0.85
trainer.export("inference.onnx")
