"""`edgegrad build --federated`: a device needs numpy and the build, and flwr for Flower alone."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import client_sizes
from engine import Trainer
from engine.federated import parameters
from engine.federated.device import Device
from engine.federated.learners import learner_of
from engine.federated.message import Message, fingerprint
from engine.tools import cli
from engine.tools.trimmed import federated
from tests.support.builds import make_samples, needs_cc
from tests.support.newer_python import NewerThan39
from tests.support.places import GOLDENS

pytestmark = needs_cc
# Packages that a device lacks: importing them always fails.
DEVICE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"engine", "numba", "llvmlite", "onnx"}:
            raise ModuleNotFoundError(f"No module named {name!r}: this is a device", name=name)
sys.meta_path.insert(0, Missing())
import numpy as np
import mnist
data = np.load("x.npy"), np.load("labels.npy")
"""
ANSWERS = """
from mnist_federated.device import Device
from mnist_federated.folder import Folder, serve
from mnist_federated.learners import learner_of
assert serve(Folder("."), Device(learner_of(mnist.Trainer()), data, data), seconds=0) == 2
assert "flwr" not in sys.modules
"""
APP = """
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from mnist_federated.message import Message as Asked
from mnist_federated.flower.client import client_app
from mnist_federated.flower.records import arrays_of, to_record
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
asked = Asked.read("000003-train.safetensors")
app = client_app(lambda config: mnist.Trainer(), lambda context: (data, data))
message = Message(RecordDict({"arrays": to_record(asked.arrays)}), 1, "train")
message.metadata.__dict__["_message_id"] = "1"
context = Context(1, 1, {"partition-id": 0}, RecordDict(), {**asked.config, "server-round": 3})
reply = app(message, context)
assert not reply.has_error(), reply.error
metrics = dict(reply.content["metrics"])
asked.trained(arrays_of(reply.content), metrics).write("flower.safetensors")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("build")
    words = [str(GOLDENS / "mlp"), "--batch", "4,3", "--name", "mnist", "--federated", "-o"]
    assert cli.main(["build", *words, str(out)]) == 0
    return out


def test_a_device_needs_the_build_alone(folder: Path, tmp_path: Path) -> None:
    """In a process where this package, its compiler and onnx cannot be imported."""
    x, labels = make_samples(11)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", labels)
    engines = Trainer(GOLDENS / "mlp", threads=1)
    arrays = parameters.get(engines, parameters.trainable(engines))
    config: dict[str, int | float | str] = {
        "batch-size": 4,
        "learning-rate": 0.05,
        "local-epochs": 2,
        "metrics": "accuracy",
    }
    asked = [Message(k, fingerprint(arrays), 3, arrays, config) for k in ("train", "evaluate")]
    for request in asked:
        request.write(tmp_path / f"000003-{request.kind}.safetensors")

    def run(code: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", DEVICE + code], cwd=tmp_path, capture_output=True, text=True,
            env={"PYTHONPATH": str(folder), "PATH": ""}, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    run(ANSWERS)
    device = Device(learner_of(engines), (x, labels), (x, labels))
    for request in asked:
        content = Message.read(tmp_path / f"000003-{request.kind}.answer.safetensors")
        expected = device.answer(request)
        assert content.metrics == expected.metrics
        for name, array in expected.arrays.items():
            np.testing.assert_array_equal(content.arrays[name], array, err_msg=name)
    pytest.importorskip("flwr", reason="needs flwr")
    run(APP)
    content, expected = Message.read(tmp_path / "flower.safetensors"), device.answer(asked[0])
    assert content.metrics == expected.metrics
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(content.arrays[name], array, err_msg=name)


def test_what_is_copied_is_small_and_closed(folder: Path) -> None:
    """The copy does not name its package, and is less than half of it."""
    files = sorted((folder / "mnist_federated").rglob("*.py"))
    for path in files:
        tree = ast.parse(path.read_text("utf-8"))
        named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not [name for name in named if name and name.split(".")[0] == "engine"], path
    assert sum(path.stat().st_size for path in files) < 280_000
    assert len(federated.list_modules()) < 40


def test_the_bench_counts_what_a_device_needs(folder: Path) -> None:
    zipped, held = client_sizes.pack_files(folder)
    library = (folder / "libmnist.so").stat().st_size
    assert library < held < library + 350_000
    assert zipped < held / 2


def test_messages_are_read_by_python_3_9(folder: Path) -> None:
    """As the Python face of builds."""
    package = folder / "mnist_federated"
    for name in ("message", "checkpoint/safetensors", "system/files", "base/errors"):
        checker = NewerThan39()
        text = (package / f"{name}.py").read_text("utf-8")
        checker.visit(ast.parse(text, feature_version=(3, 9)))
        assert not checker.found, name
        assert "from __future__ import annotations" in text


def test_an_archive_has_the_functions_alone(tmp_path: Path) -> None:
    """Python loads shared libraries; and a library of ops has neither."""
    words = ["build", str(GOLDENS / "mlp"), "--batch", "4", "--federated", "--name", "mnist"]
    assert cli.main([*words, "--static", "-o", str(tmp_path / "out")]) == 0
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert "mnist_take_request" in manifest["functions"]
    assert not (tmp_path / "out/mnist_federated").exists()
    (tmp_path / "ops.config").write_text("ai.onnx;13;Relu\n")
    words = ["build", "--ops", str(tmp_path / "ops.config"), "--federated"]
    assert cli.main([*words, "-o", str(tmp_path / "library")]) == 2
