"""Losses where they are hard: nothing to learn from, perfect answers, extreme scores, flat boxes.

For ordinary values see the comparison with PyTorch in tests/offline/test_losses.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import artifacts
from engine.api import CheckpointState, Module
from engine.errors import InputError, LabelError, ModelError, ShapeError
from engine.loss_types import LOSSES
from engine.trainer.names import choose_named, list_losses
from tests.support.harness import drop_type, get_gradient, make_identity
from tests.support.places import DOCS

Array = np.ndarray[Any, Any]
BOX = [0.2, 0.2, 0.6, 0.9]


def taken(
    folder: Path, loss: artifacts.Loss, inputs: list[Any], *targets: Any, dtype: Any = np.float32
) -> tuple[float, list[Array]]:
    """The loss of values, and its gradients by them; without a warning of numpy's."""
    arrays = {str(i): np.array(x, dtype) for i, x in enumerate(inputs)}
    artifacts.generate_artifacts(
        make_identity(arrays), [f"w{n}" for n in arrays], loss=loss, artifact_directory=folder
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, threads=1)
    given = [np.array(t, dtype if np.array(t).dtype.kind == "f" else None) for t in targets]
    value = float(np.asarray(module(*arrays.values(), *given)))
    return value, [get_gradient(state, f"w{n}") for n in arrays]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_focal_loss_of_extreme_scores(tmp_path: Path, activation: str, gamma: float) -> None:
    """Right answers cost nothing and pull at nothing; wrong ones cost their distance."""
    x = [[1e4, -1e4], [-1e4, 1e4], [200.0, -200.0]]
    right = {"sigmoid": [[1.0, 0], [0, 1], [1, 0]], "softmax": [0, 1, 0]}[activation]
    wrong = {"sigmoid": [[0.0, 1], [1, 0], [0, 1]], "softmax": [1, 0, 1]}[activation]
    loss = artifacts.FocalLoss(drop_type(activation), gamma)
    value, (dx,) = taken(tmp_path / "right", loss, [x], right)
    assert value == 0
    assert not dx.any()
    value, (dx,) = taken(tmp_path / "wrong", loss, [x], wrong)
    spread = 1 if activation == "sigmoid" else 2
    assert value == pytest.approx(spread * (1e4 + 1e4 + 200) / 3)
    signs = [[1, -1], [-1, 1], [1, -1]]
    np.testing.assert_array_equal(np.sign(dx), signs)
    assert np.isfinite(dx).all()


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (artifacts.FocalLoss(ignore_index=-1), np.full((2, 3), -1.0)),
        (artifacts.FocalLoss("softmax", ignore_index=-1), np.full(2, -1)),
        (artifacts.FocalLoss("softmax", alpha=np.ones(3), ignore_index=7), np.full(2, 7)),
        (artifacts.DiceLoss(ignore_index=-100), np.full(2, -100)),
        (artifacts.DiceLoss("sigmoid", ignore_index=2, batch=True), np.full((2, 3), 2.0)),
    ],
)
def test_what_is_all_ignored_costs_nothing(tmp_path: Path, loss: Any, targets: Array) -> None:
    value, (dx,) = taken(tmp_path, loss, [[[1.0, -2, 3], [0, 1, 2]]], targets)
    assert value == 0
    assert not dx.any()


@pytest.mark.parametrize("form", ["xyxy", "cxcywh"])
@pytest.mark.parametrize("kind", [artifacts.GIoULoss, artifacts.CIoULoss])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_flat_and_far_boxes_have_finite_values_and_gradients(
    tmp_path: Path, kind: Any, form: str, dtype: Any
) -> None:
    boxes = [
        BOX, [0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], [0.3, 0.3, 0.3, 0.9], [0.9, 0.9, 0.1, 0.1],
        [0.1, 0.1, 0.4, 0.1], [1e6, 1e6, 2e6, 3e6], [1e-8, 1e-8, 2e-8, 2e-8], [0, 0, 1e-4, 1e6],
    ]  # fmt: skip
    first = [a for a in boxes for _ in boxes]
    second = [b for _ in boxes for b in boxes]
    for reduction in ("sum", "mean"):
        value, (dx,) = taken(
            tmp_path / reduction, kind(form, reduction=reduction), [first], second, dtype=dtype
        )
        assert np.isfinite(value)
        assert np.isfinite(dx).all()
        assert dx.any()


@pytest.mark.parametrize("kind", [artifacts.GIoULoss, artifacts.CIoULoss])
def test_equal_boxes_and_boxes_left_out_cost_nothing(tmp_path: Path, kind: Any) -> None:
    value, (dx,) = taken(tmp_path / "equal", kind(), [[BOX, BOX]], [BOX, BOX])
    assert value == pytest.approx(0, abs=1e-6)
    assert np.isfinite(dx).all()
    loss = kind(weighted=True)
    value, (dx,) = taken(tmp_path / "none", loss, [[BOX]], [[0.0, 0, 1, 1]], np.zeros(1))
    assert value == 0
    assert not dx.any()


def test_dice_of_perfect_answers_and_of_classes_that_are_nowhere(tmp_path: Path) -> None:
    x = np.full((1, 3, 2), -1e4)
    x[0, 0] = 1e4
    for activation, target in (("softmax", [[0, 0]]), ("sigmoid", (x > 0) * 1.0)):
        value, (dx,) = taken(
            tmp_path / activation, artifacts.DiceLoss(drop_type(activation)), [x], target
        )
        assert value == 0
        assert not dx.any()
    value, _ = taken(tmp_path / "wrong", artifacts.DiceLoss(smooth=1e-3), [x], [[1, 1]])
    assert value == pytest.approx(2 / 3, abs=1e-3)


@pytest.mark.parametrize("label", [3, -1])
def test_dice_refuses_labels_that_are_no_class(tmp_path: Path, label: int) -> None:
    with pytest.raises(LabelError):
        taken(tmp_path, artifacts.DiceLoss(), [np.zeros((1, 3, 2))], [[0, label]])


def test_triplets_of_equal_rows_cost_the_margin(tmp_path: Path) -> None:
    x = np.ones((2, 3))
    value, gradients = taken(tmp_path, artifacts.TripletMarginLoss(0.5), [x, x, x])
    assert value == 0.5
    assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_a_batch_without_triplets_costs_nothing(tmp_path: Path, labels: list[int]) -> None:
    x = [[1.0, 2], [1, 2], [0, 1]]
    value, (dx,) = taken(tmp_path, artifacts.BatchHardTripletLoss(), [x], labels)
    assert value == 0
    assert not dx.any()


def test_hard_triplets_of_equal_rows_are_finite(tmp_path: Path) -> None:
    x = np.ones((4, 2))
    value, (dx,) = taken(tmp_path, artifacts.BatchHardTripletLoss(0.5), [x], [0, 0, 1, 1])
    assert value == 0.5
    assert np.isfinite(dx).all()


def test_info_nce_of_one_pair_of_zeros_and_of_large_rows(tmp_path: Path) -> None:
    loss = artifacts.InfoNCELoss()
    value, _ = taken(tmp_path / "one", loss, [[[1.0, 2]], [[3.0, 1]]])
    assert value == 0
    value, gradients = taken(tmp_path / "zeros", loss, [np.zeros((2, 3)), np.ones((2, 3))])
    assert value == pytest.approx(np.log(2))
    assert all(np.isfinite(g).all() for g in gradients)
    plain = artifacts.InfoNCELoss(temperature=1e-3, normalize=False)
    rows = 1e3 * np.eye(3)
    value, gradients = taken(tmp_path / "large", plain, [rows, rows])
    assert value == 0
    rounding = 1e-7 * 1e3 / 1e-3  # of float32, times what the scores' gradients are multiplied by
    assert all(np.abs(g).max() < rounding for g in gradients)


def spoken(folder: Path, x: Any, *targets: Any, **options: Any) -> tuple[float, Array]:
    """The CTC loss of scores [steps, batch, classes], and its gradient."""
    loss = artifacts.CTCLoss(logits=True, **options)
    value, (dx,) = taken(folder, loss, [x], *map(np.array, targets))
    return value, dx


@pytest.mark.parametrize("zero", [False, True])
def test_ctc_of_targets_that_are_too_long(tmp_path: Path, zero: bool) -> None:
    """Two equal labels need three steps; whether the loss is infinite or 0, nothing is learned."""
    value, dx = spoken(tmp_path, np.ones((2, 1, 3)), [[1, 1]], [2], [2], zero_infinity=zero)
    assert value == (0 if zero else np.inf)
    assert not dx.any()


def test_ctc_of_perfect_and_of_extreme_scores(tmp_path: Path) -> None:
    x = np.full((3, 1, 3), -1e4)
    x[[0, 1, 2], 0, [1, 0, 2]] = 1e4
    value, dx = spoken(tmp_path / "right", x, [[1, 2]], [3], [2])
    assert value == pytest.approx(0, abs=1e-6)
    assert not dx.any()
    value, dx = spoken(tmp_path / "wrong", x, [[2, 1]], [3], [2])
    assert value == pytest.approx(4e4 / 2)
    assert np.isfinite(dx).all()
    assert dx[0, 0, 1] > 0 > dx[0, 0, 2]


def test_ctc_of_probabilities_of_zero(tmp_path: Path) -> None:
    """Log-probabilities of -infinity are as good as any."""
    logs = np.full((3, 2, 3), -np.inf)
    logs[:, 0, 1] = 0
    loss = artifacts.CTCLoss(zero_infinity=True, reduction="sum")
    lengths = [np.array([3, 3]), np.array([1, 1])]
    value, (dx,) = taken(tmp_path, loss, [logs], np.array([[1], [2]]), *lengths)
    assert value == 0
    np.testing.assert_array_equal(dx[:, 0], [[0, -1, 0]] * 3)
    assert not dx[:, 1].any()


def test_ctc_without_targets_asks_for_blanks(tmp_path: Path) -> None:
    value, dx = spoken(tmp_path, np.zeros((2, 1, 4)), [[3]], [2], [0])
    assert value == pytest.approx(2 * np.log(4))
    np.testing.assert_allclose(dx[:, 0], [[-0.75, 0.25, 0.25, 0.25]] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("targets", "steps", "lengths", "message"),
    [
        ([[1, 5]], [3], [2], r"label 5 at position 1 is outside \[0, 3\)"),
        ([[-2, 1]], [3], [2], r"label -2 at position 0 is outside \[0, 3\)"),
        ([[1, 2]], [4], [2], r"length 4 at position 0 is outside \[0, 4\)"),
        ([[1, 2]], [3], [3], r"length 3 at position 0 is outside \[0, 3\)"),
        ([[1, 2]], [-1], [1], r"length -1 at position 0 is outside \[0, 4\)"),
    ],
)
def test_ctc_refuses_labels_and_lengths_out_of_range(
    tmp_path: Path, targets: Any, steps: Any, lengths: Any, message: str
) -> None:
    with pytest.raises(LabelError, match=message):
        spoken(tmp_path, np.zeros((3, 1, 3)), targets, steps, lengths)


def test_ctc_reads_no_padding(tmp_path: Path) -> None:
    value, _ = spoken(tmp_path / "a", np.ones((3, 1, 3)), [[1, -9, 77]], [3], [1])
    assert value == spoken(tmp_path / "b", np.ones((3, 1, 3)), [[1]], [3], [1])[0]


@pytest.mark.parametrize(
    ("loss", "shape", "error", "message"),
    [
        (artifacts.CTCLoss(blank=3), (2, 1, 3), InputError, "blank=3; expected a class from 0 to"),
        (artifacts.CTCLoss(), (2, 3), ShapeError, r"expected \[steps, batch, classes\]"),
        (artifacts.CTCLoss(batch_first=True), (2, 3), ShapeError, r"\[batch, steps, classes\]"),
    ],
)
def test_what_ctc_is_of(
    loss: Any, shape: tuple[int, ...], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        artifacts.generate_artifacts(
            make_identity({"0": np.ones(shape)}), ["w0"], loss=loss, artifact_directory=tmp_path
        )


def towers(width: int = 3) -> onnx.ModelProto:
    """Two outputs, x w and z w, of a batch of any size."""
    nodes = [helper.make_node("MatMul", [i, "w"], [f"{i}w"], i) for i in "xz"]
    infos = [helper.make_tensor_value_info(i, TensorProto.FLOAT, ["batch", 4]) for i in "xz"]
    outs = [helper.make_tensor_value_info(f"{i}w", TensorProto.FLOAT, None) for i in "xz"]
    w = np.linspace(-1, 1, 4 * width, dtype=np.float32).reshape(4, width)
    graph = helper.make_graph(nodes, "towers", infos, outs, [onnx.numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_info_nce_takes_batches_of_any_size(tmp_path: Path) -> None:
    """One model, two sizes: the labels follow the batch."""
    loss = artifacts.InfoNCELoss(temperature=1.0, normalize=False, symmetric=False)
    artifacts.generate_artifacts(towers(), ["w"], loss=loss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    assert module.input_names() == ["x", "z"]
    w, rng = state.parameters["w"].data, np.random.default_rng(0)
    for rows in (3, 5):
        x, z = (rng.standard_normal((rows, 4)).astype(np.float32) for _ in "xz")
        scores = (x @ w) @ (z @ w).T
        logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        assert module(x, z) == pytest.approx(-np.diag(logs).mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "target", "error", "message"),
    [
        (
            lambda: artifacts.FocalLoss(drop_type("tanh")),
            None,
            InputError,
            "'tanh'; expected one of 'sigmoid', 'softmax'",
        ),
        (lambda: artifacts.FocalLoss(gamma=-1), None, InputError, "gamma=-1: expected 0 or more"),
        (
            lambda: artifacts.FocalLoss(alpha=2),
            None,
            InputError,
            "alpha=2; expected the factor of posit",
        ),
        (
            lambda: artifacts.FocalLoss("softmax", alpha=np.ones(2)),
            None,
            ShapeError,
            r"shape \[2\]; exp",
        ),
        (
            lambda: artifacts.GIoULoss(drop_type("xywh")),
            None,
            InputError,
            "'xywh'; expected one of 'xyxy', 'cxcywh'",
        ),
        (lambda: artifacts.CIoULoss(), None, ShapeError, r"are f64\[2,3\]; expected \[\.\.\., 4\]"),
        (lambda: artifacts.DiceLoss(smooth=0), None, InputError, "smooth=0: expected above 0"),
        (
            lambda: artifacts.DiceLoss(weight=np.zeros(3)),
            None,
            InputError,
            "factors with a positive sum",
        ),
        (
            lambda: artifacts.DiceLoss(weight=np.ones(2)),
            None,
            ShapeError,
            r"shape \[2\]; expected \[3\]",
        ),
        (
            lambda: artifacts.TripletMarginLoss(),
            None,
            InputError,
            "takes three model outputs; got",
        ),
        (lambda: artifacts.InfoNCELoss(), None, InputError, "takes two model outputs; got"),
        (
            lambda: artifacts.BatchHardTripletLoss(-1),
            None,
            InputError,
            "margin=-1: expected 0 or more",
        ),
        (
            lambda: artifacts.GIoULoss(),
            ["y0", "a", "b", "c"],
            InputError,
            "other names for target, weig",
        ),
        (lambda: artifacts.FocalLoss("softmax"), ["y0", "0"], ModelError, "needs '0' as i64"),
        (
            lambda: artifacts.InfoNCELoss(0),
            ["y0", "y0"],
            InputError,
            "temperature=0: expected above 0",
        ),
        (
            lambda: artifacts.TripletMarginLoss(p=0.5),
            ["y0"] * 3,
            InputError,
            "p=0.5: expected 1 or more",
        ),
        (
            lambda: artifacts.FocalLoss(reduction="max"),
            None,
            InputError,
            "expected one of mean, sum, none",
        ),
    ],
)
def test_what_errors_say(
    loss: Any, target: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        artifacts.generate_artifacts(
            make_identity({"0": np.ones((2, 3))}), ["w0"], loss=loss(), loss_input_names=target,
            artifact_directory=tmp_path,
        )  # fmt: skip


def test_embeddings_have_two_axes(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"'y0' is f64\[2,3,1\]; expected one \[batch, features\]"):
        artifacts.generate_artifacts(
            make_identity({"0": np.ones((2, 3, 1))}), ["w0"], loss=artifacts.BatchHardTripletLoss(),
            artifact_directory=tmp_path,
        )  # fmt: skip
    pair = make_identity({"0": np.ones((2, 3)), "1": np.ones((2, 4))})
    with pytest.raises(ShapeError, match=r"'y1' is f64\[2,4\]; expected 2 of one type"):
        artifacts.generate_artifacts(
            pair, ["w0"], loss=artifacts.InfoNCELoss(), artifact_directory=tmp_path
        )


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every snippet of docs/losses.md, and its detector's loss on a model with two outputs."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "losses.md").read_text("utf-8")
    room: dict[str, Any] = {"__name__": "page"}
    snippets = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    assert len(snippets) == 4
    for snippet in snippets:
        exec(snippet, room)
    model = make_identity(
        {"0": np.zeros((2, 3, 5), np.float32), "1": np.ones((2, 3, 4), np.float32)}
    )
    artifacts.generate_artifacts(
        model, ["w0", "w1"], loss=room["DetectorLoss"](), artifact_directory="detector"
    )
    state = CheckpointState.load_checkpoint("detector/checkpoint")
    module = Module("detector/training_model.onnx", state, threads=1)
    assert module.input_names() == ["0", "1", "objects", "places", "is_object"]
    feeds = [np.zeros((2, 3, 5)), np.ones((2, 3, 4)), -np.ones((2, 3, 5)), np.ones((2, 3, 4))]
    nothing = module(*(f.astype(np.float32) for f in feeds), np.zeros((2, 3), np.float32))
    assert nothing == 0


def test_the_page_has_every_loss() -> None:
    for name in ("cross_entropy", "focal", "ciou", "info_nce"):
        assert choose_named(list_losses(), name, "loss") in LOSSES.values()
    page = (DOCS / "losses.md").read_text("utf-8")
    table = [line for line in page.splitlines() if line.startswith("| `")]
    told = {name for line in table for name in line.split("|")[1].replace("`", " ").split()}
    assert told == set(artifacts.LossType.__members__)
