"""From PyTorch and back, as far as it needs no PyTorch: a recorded export, errors, duck typing.

tests/torch has the rest: `make test-torch`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.artifacts import SGD, CrossEntropyLoss
from engine.errors import DTypeError, MissingPackageError, ModelError, NameNotFoundError, ShapeError
from engine.graphs.io.module_paths import SCOPES, find_scope
from engine.trainer.pytorch import export as torch_export
from engine.trainer.pytorch import program as torch_program
from engine.trainer.pytorch.export import to_torch
from engine.trainer.trainer import Trainer
from tests.support.places import FROM_TORCH


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    with np.load(FROM_TORCH / "net.npz") as data:
        return Trainer.from_onnx(
            FROM_TORCH / "net.onnx", CrossEntropyLoss(), SGD(lr=0.1), train=data["train"].tolist(),
            threads=1,
        )  # fmt: skip


def test_a_recorded_export_trains_as_the_module_did(trainer: Trainer) -> None:
    """Three steps, of a batch of another size than the example's, then all parameters."""
    with np.load(FROM_TORCH / "net.npz") as data:
        x, labels = data["x"], data["labels"]
        assert trainer.inputs == ["image", "labels"]
        results = [trainer.step(x, labels) for _ in range(3)]
        assert results == pytest.approx(data["losses"].tolist(), abs=1e-5)
        for name in data["train"].tolist():
            own = trainer.state.parameters[name].data
            np.testing.assert_allclose(own, data[f"after.{name}"], atol=1e-5)


def test_an_export_names_no_files_of_the_machine_that_made_it() -> None:
    content = (FROM_TORCH / "net.onnx").read_bytes()
    assert b"record.py" not in content
    assert b"site-packages" not in content


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ({"torch"}, "need torch, which is not installed: pip install 'edgegrad[torch]'"),
        ({"torch", "onnxscript"}, "need torch and onnxscript, which are not installed: pip"),
        ({"onnxscript"}, "need onnxscript, which is not installed: pip"),
    ],
)
def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, missing: set[str], told: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n in missing else n)
    with pytest.raises(MissingPackageError) as caught:
        torch_export.export(object(), np.ones(2), tmp_path / "net.onnx")
    assert told in str(caught.value)


class Tensor:
    """Tensor of a torch module, as far as weights that come back need it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = SimpleNamespace(is_floating_point=array.dtype.kind == "f")

    def copy_(self, other: np.ndarray) -> None:
        self.array[...] = other


class Module:
    def __init__(self, **tensors: np.ndarray) -> None:
        self.tensors = {n.replace("__", "."): Tensor(a) for n, a in tensors.items()}
        self.training = True

    def modules(self) -> Iterator[Module]:
        return iter([self])

    def train(self, mode: bool = True) -> None:
        self.training = mode

    def named_parameters(self, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        return iter(self.tensors.items())

    def named_buffers(self, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        return iter(())


@pytest.fixture
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that looks like torch."""
    fake: Any = ModuleType("torch")
    fake.nn = SimpleNamespace(Module=Module)
    fake.no_grad = contextlib.nullcontext
    fake.from_numpy = lambda array: array
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)


def blank(trainer: Trainer, **changed: np.ndarray) -> Module:
    """A module with the trainer's names, all ones."""
    own = {n: np.ones(p.data.shape, np.float32) for n, p in trainer.state.parameters}
    return Module(**{**own, **{n.replace("__", "."): a for n, a in changed.items()}})


@pytest.mark.usefixtures("_torch")
def test_parameters_go_back(trainer: Trainer) -> None:
    module = blank(trainer, other=np.ones(2))
    assert to_torch(trainer.state, module) == ["other"]
    for name, parameter in trainer.state.parameters:
        np.testing.assert_array_equal(module.tensors[name].array, parameter.data)


@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"head__weight": np.ones((4, 5))}, ShapeError, r"\[4, 6\] in the checkpoint and \[4, 5\]"),
        ({"head__bias": np.ones(4, np.int64)}, DTypeError, "is float32 in the checkpoint"),
    ],
)
def test_parameters_that_do_not_fit_change_nothing(
    trainer: Trainer, changed: Any, error: type[Exception], message: str
) -> None:
    module = blank(trainer, **changed)
    with pytest.raises(error, match=message):
        to_torch(trainer.state, module)
    assert all((t.array == 1).all() for t in module.tensors.values())


@pytest.mark.usefixtures("_torch")
def test_a_parameter_that_the_module_lacks_is_named(trainer: Trainer) -> None:
    with pytest.raises(NameNotFoundError, match=r"'conv\.weight'; nearest: 'conv\.weights'"):
        to_torch(trainer.state, Module(conv__weights=np.ones(2)))


def test_outputs_may_differ_by_rounding_alone() -> None:
    y, near, far = (np.array([1.0, last]) for last in (1000.0, 1000.5, 998.0))
    assert torch_export._measure_difference("y", near, y, 1e-3) == pytest.approx(5e-4)
    with pytest.raises(ModelError, match=r"'y' is 2\.0e-03 from torch's, relative to the largest"):
        torch_export._measure_difference("y", far, y, 1e-3)
    with pytest.raises(ModelError, match="is nan from torch's"):
        torch_export._measure_difference("y", np.array([np.nan]), np.ones(1), 1e-3)


def test_of_a_chain_of_errors_the_first_cause_is_told_in_one_line() -> None:
    error = RuntimeError("the export failed\nsee the log")
    error.__cause__ = ValueError("\n  expected 4D input \n  more")
    assert torch_program._find_reason(error) == "ValueError: expected 4D input"


@pytest.mark.parametrize(
    ("scopes", "told"),
    [("['', 'block.0.first', 'linear']", "block.0.first"), ("['', 'add']", ""), ("", "")],
)
def test_nodes_know_their_submodule(scopes: str, told: str) -> None:
    node = SimpleNamespace(metadata_props=[SimpleNamespace(key=SCOPES, value=scopes)], name="node")
    assert find_scope(node, is_keras=False) == told
