"""The test suite of onnxruntime-training, run against this package.

    python -m tests.support.peer_suite PATH

PATH is a checkout of microsoft/onnxruntime at v1.19.2, or a folder with the two files

    orttraining/orttraining/test/python/orttraining_test_ort_apis_onnxblock.py
    orttraining/orttraining/test/python/orttraining_test_ort_apis_py_bindings.py

which are not part of this repository.  Needs torch beside this package's `dev` dependencies.
Copies of the files, changed by `REWRITES`, are run by pytest.  Prints each test that differs from
what the peer expects, and why, and exits with 1 if a test fails that `DIFFERS` does not name, or
one that it names passes.  docs/compatibility.md holds the same table.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import artifacts, backend
from engine.api import CheckpointState, Module, Optimizer
from engine.base.aliases import Array
from engine.checkpoint.storage import Checkpoint

FOLDER = Path("orttraining", "orttraining", "test", "python")
FILES = ("orttraining_test_ort_apis_onnxblock.py", "orttraining_test_ort_apis_py_bindings.py")
REWRITES = (
    # The imports, as a project changes them.
    ("import onnxruntime.training.onnxblock as onnxblock", "import engine.onnxblock as onnxblock"),
    ("from onnxruntime.training.api import", "from engine.api import"),
    ("from onnxruntime.training import artifacts", "from engine import artifacts"),
    # Runs graphs with training operators.
    ("onnxruntime.InferenceSession(", "peer_suite.Session("),
    ("import onnxruntime\n", "import onnxruntime\nfrom tests import peer_suite\n"),
    # Where PyTorch's side of a comparison runs, and which of its exporters has these options.
    ('device = "cuda"', 'device = "cpu"'),
    ("export_params=True,", "export_params=True, dynamo=False,"),
)

_DEVICE = "`device` is `cpu`"
_LIBRARY = "native custom operators are not loaded; the test also needs a library built with CUDA"
DIFFERS = {
    "test_save_ort_format": "ORT format models are made by onnxruntime itself",
    "test_cuda_execution_provider": _DEVICE,
    "test_get_and_set_parameter_values[cuda]": _DEVICE,
    "test_ort_custom_ops": _LIBRARY,
}


class Session:
    """Substitute for `onnxruntime.InferenceSession` in the suite: it runs graphs of every kind.

    A training graph is run by a Module, whose state has the parameters that it is given.  An
    optimizer graph is run by an Optimizer, on gradients that it is given.
    """

    def __init__(self, path: str, providers: Sequence[str] = ()) -> None:
        self.path, self.model = path, onnx.load(path)

    def run(self, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names."""
        if "gradients" in inputs:
            return [self.update(inputs)]
        parameters = {n: a for n, a in inputs.items() if f"{n}{_BUFFER}" in inputs}
        if not parameters:
            outputs = [o.name for o in self.model.graph.output]
            table = dict(zip(outputs, backend.prepare(self.model).run(inputs), strict=True))
            return [table[name] for name in names]
        state = CheckpointState(Checkpoint(trainable=parameters, frozen={}))
        module = Module(self.path, state)
        loss = module(*(inputs[name] for name in module.input_names()))
        return [loss, *(np.array([True]) for _ in names[1:])]  # the gradients were accumulated

    def update(self, inputs: Mapping[str, Any]) -> Any:
        """Run the optimizer: the parameters after it, or the clipped gradients of a graph of those.

        Clipped gradients are what a step of SGD at the learning rate 1 takes off zeros.
        """
        gradients, model = inputs["gradients"], self.model
        values = inputs.get("params", [np.zeros_like(g) for g in gradients])
        rate = float(inputs.get("learning_rate", np.array([1.0]))[0])
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder)
            artifacts.generate_artifacts(
                _make_sums(values), [f"p{i}" for i in range(len(values))], artifact_directory=base
            )
            state = CheckpointState.load_checkpoint(base / "checkpoint")
            module = Module(base / "training_model.onnx", state)
            if "params" not in inputs:
                model = _with_sgd(model)
            optimizer = Optimizer(model.SerializeToString(), module)
            optimizer.set_learning_rate(rate)
            for i, gradient in enumerate(gradients):
                grad = state.parameters[f"p{i}"].grad
                assert grad is not None
                grad[...] = gradient
            optimizer.step()
            sign = 1 if "params" in inputs else -1
            return [sign * np.array(state.parameters[f"p{i}"].data) for i in range(len(values))]


_BUFFER = "_grad.accumulation.buffer"


def _make_sums(values: Sequence[Array]) -> onnx.ModelProto:
    """A model of the initializers p0, p1, ...: its input times the sum of their elements."""
    nodes = [
        helper.make_node("ReduceSum", [f"p{i}"], [f"s{i}"], keepdims=0) for i in range(len(values))
    ]
    nodes.append(helper.make_node("Sum", [f"s{i}" for i in range(len(values))], ["sum"]))
    nodes.append(helper.make_node("Mul", ["x", "sum"], ["y"]))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "sums",
        [value("x", TensorProto.FLOAT, [])],
        [value("y", TensorProto.FLOAT, [])],
        [onnx.numpy_helper.from_array(a, f"p{i}") for i, a in enumerate(values)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _with_sgd(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph that clips gradients, as an optimizer model that uses them."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    clipped = out.graph.node[-1].output[0]
    inputs = ["learning_rate", "params", clipped]
    out.graph.node.append(
        helper.make_node("SGDOptimizerV2", inputs, ["done"], domain="com.microsoft")
    )
    sequence = helper.make_tensor_sequence_value_info
    out.graph.input.extend(
        [
            helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("step", TensorProto.INT64, [1]),
            sequence("params", TensorProto.FLOAT, None),
            sequence("first_order_moments", TensorProto.FLOAT, None),
        ]
    )
    del out.graph.output[:]
    out.graph.output.append(helper.make_tensor_value_info("done", TensorProto.BOOL, [1]))
    return out


def rewrite(text: str) -> str:
    """A file of the suite with its imports changed, and what else `REWRITES` names."""
    for before, after in REWRITES:
        text = text.replace(before, after)
    return text


class _Report:
    """Collects the outcome of every test: an empty text, or why it failed."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("::")[-1]
        self.outcomes.setdefault(name, "")
        if not report.passed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.outcomes[name] = str(crash.message if crash else report.longrepr).split("\n")[0]


def run(source: Path) -> dict[str, str]:
    """The outcome of each test of the suite: an empty text, or why it failed."""
    folder = source / FOLDER if (source / FOLDER).is_dir() else source
    with tempfile.TemporaryDirectory() as copies:
        for name in FILES:
            text = rewrite((folder / name).read_text("utf-8"))
            Path(copies, name).write_text(text, "utf-8")
        report = _Report()
        paths = [os.path.join(copies, name) for name in FILES]
        options = [
            "-q",
            "--no-header",
            "--no-summary",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            copies,
        ]
        with warnings.catch_warnings():
            sys.path.insert(0, copies)  # one of the files imports the other
            pytest.main([*options, "-W", "ignore", "-c", os.devnull, *paths], plugins=[report])
            sys.path.remove(copies)
            for name in FILES:
                sys.modules.pop(Path(name).stem, None)
    return report.outcomes


def main(argv: Sequence[str]) -> int:
    """Run the suite and print what differs; see the head of this file."""
    if len(argv) != 1:
        print(__doc__)
        return 2
    outcomes = run(Path(argv[0]))
    failed = {name: why for name, why in outcomes.items() if why}
    unexpected = failed.keys() - DIFFERS.keys()
    passed = DIFFERS.keys() - failed.keys()
    width = max(map(len, (*failed, *DIFFERS)))
    for name, why in failed.items():
        known = DIFFERS.get(name, "NOT EXPECTED")
        print(f"{name.ljust(width)}  {known}\n{' ' * width}    {why}")
    for name in sorted(passed):
        print(f"{name.ljust(width)}  passes or is not there, but is listed")
    print(f"{len(outcomes)} tests, {len(outcomes) - len(failed)} passed, {len(failed)} differ")
    return 1 if unexpected or passed or not outcomes else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
