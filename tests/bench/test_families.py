"""Models of many families train and export as they should; PyTorch's side of it is recorded.

`python -m bench families recorded --record` has written the models and what PyTorch's steps gave.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from bench.families.recorded import DATA, RECORDED, SAMPLED
from bench.families.rewrites import REWRITINGS, Rewriting
from bench.families.rewritten import FOLDED, compare_rewritten
from bench.families.train import LIMITS, compare, find_export_fault, run_elsewhere, train
from engine.errors import InputError
from engine.tools.dev.export_artifacts import OUTPUT, list_batch, list_inputs

TRAINED = [t for t in RECORDED if t not in LIMITS]
REFUSED = [t for t in RECORDED if t in LIMITS]


def test_what_is_recorded_is_what_is_named() -> None:
    assert sorted(path.stem for path in DATA.glob("*.onnx")) == sorted(RECORDED)
    assert set(SAMPLED) < set(RECORDED)


@pytest.mark.parametrize(
    "tag", [t if t in SAMPLED else pytest.param(t, marks=pytest.mark.whole) for t in TRAINED]
)
def test_losses_gradients_and_the_inference_model(tag: str, tmp_path: Path) -> None:
    compared = compare(DATA / f"{tag}.onnx", tmp_path)
    assert compared.fault == ""
    assert None not in (compared.losses, compared.gradients, compared.inference)


@pytest.mark.parametrize("tag", REFUSED)
def test_a_documented_limit_is_refused_and_trains_with_static_axes(
    tag: str, tmp_path: Path
) -> None:
    compared = compare(DATA / f"{tag}.onnx", tmp_path)
    assert compared.fault == f"refused: {LIMITS[tag]} (works with static axes)"
    assert compared.is_limit
    assert not compared.fails
    assert None not in (compared.losses, compared.gradients, compared.inference)


@pytest.mark.parametrize("tag", REFUSED)
def test_a_limit_is_none_where_the_model_with_static_axes_is_wrong(
    tag: str, tmp_path: Path
) -> None:
    onnx.save(onnx.load(DATA / f"{tag}.onnx"), tmp_path / f"{tag}.onnx")
    with np.load(DATA / f"{tag}.npz") as file:
        data = dict(file)
    np.savez(tmp_path / f"{tag}.npz", **data | {"losses": data["losses"] + 0.1})
    (tmp_path / "artifacts").mkdir()
    compared = compare(tmp_path / f"{tag}.onnx", tmp_path / "artifacts")
    assert compared.fault.startswith("with static axes: losses")
    assert compared.fails


def test_a_limit_that_is_none_any_more_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tag = "lstm_tagger-old-17-eval-folded"
    monkeypatch.setitem(LIMITS, tag, "Loop over a symbolic size")
    compared = compare(DATA / f"{tag}.onnx", tmp_path)
    assert "not refused any more" in compared.fault
    assert compared.fails


@pytest.mark.parametrize("opset", [14, 18])
def test_an_export_is_judged_with_the_statistics_that_it_trains_with(
    opset: int, tmp_path: Path
) -> None:
    """The exporter over `torch.export` never writes `training_mode`, whatever the module's mode."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 7, opset_import: ["": {opset}]>
        net (float[4, 2] in0) => (float[4, 2] logits)
        <float[2] scale = {{1, 1}}, float[2] bias = {{0, 0}},
         float[2] mean = {{0, 0}}, float[2] var = {{1, 1}}>
        {{ logits = BatchNormalization (in0, scale, bias, mean, var) }}""")
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    normal = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    data = {"in0": x, "lost": np.empty(0), "logits": normal}
    train, evaluated = tmp_path / "net-new-18-train.onnx", tmp_path / "net-old-17-eval-folded.onnx"
    onnx.save(model, train)
    onnx.save(model, evaluated)
    assert find_export_fault(train, data) == ""
    assert "from PyTorch's" in find_export_fault(train, data | {"logits": normal + 0.1})
    assert "from PyTorch's" in find_export_fault(evaluated, data)
    kept = x / np.sqrt(np.float32(1 + 1e-5))
    assert find_export_fault(evaluated, data | {"logits": kept}) == ""


# --- models that others have written again

SMALL, LARGER = "mixture_of_experts-old-14-train", "lstm_tagger-old-17-eval-folded"
OTHERS = {"onnxslim", "onnxsim", "onnxscript"}  # packages that only the bench needs


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        (SMALL, name) if tag == SMALL else pytest.param(tag, name, marks=pytest.mark.whole)
        for tag in (SMALL, LARGER)
        for name in sorted(REWRITINGS.keys() - OTHERS)
    ],
)
def test_a_rewritten_model_trains_alike(tag: str, name: str, tmp_path: Path) -> None:
    """All models and rewriters: `python -m bench families.rewritten`."""
    rewritten = compare_rewritten(tag, REWRITINGS[name], tmp_path)
    assert not rewritten.fails, rewritten.fault
    if REWRITINGS[name].is_ours:
        assert rewritten.fault == ""


def with_another_weight(model: onnx.ModelProto) -> onnx.ModelProto:
    out = onnx.ModelProto()
    out.CopyFrom(model)
    weight = next(i for i in out.graph.initializer if i.name == "gate.bias")
    values = onnx.numpy_helper.to_array(weight) + 1
    weight.CopyFrom(onnx.numpy_helper.from_array(values * np.float32(3), weight.name))
    return out


def with_a_folded_weight(model: onnx.ModelProto) -> onnx.ModelProto:
    """The bias of the gate is made again of a parameter and a constant that was not there."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    weight = next(i for i in out.graph.initializer if i.name == "gate.bias")
    values = onnx.numpy_helper.to_array(weight)
    half = onnx.numpy_helper.from_array(values - np.float32(0.5), "half")
    rest = onnx.numpy_helper.from_array(np.full_like(values, 0.5), "rest")
    out.graph.initializer.remove(weight)
    out.graph.initializer.extend([half, rest])
    out.graph.node.insert(0, onnx.helper.make_node("Add", ["half", "rest"], ["gate.bias"]))
    return out


def test_a_rewriter_that_changes_a_model_is_told_from_the_engine(tmp_path: Path) -> None:
    rewritten = compare_rewritten(SMALL, Rewriting(with_another_weight, "wrong"), tmp_path)
    assert rewritten.fault.startswith("rewriter: its output in onnxruntime")
    assert not rewritten.fails


def test_a_rewriter_that_folds_a_parameter_is_told(tmp_path: Path) -> None:
    rewritten = compare_rewritten(SMALL, Rewriting(with_a_folded_weight, "folds"), tmp_path)
    assert rewritten.fault == FOLDED
    assert not rewritten.fails


# --- batches of several sizes

DYNAMIC = (SMALL, LARGER, "conv_lstm-old-14-train", "tab_net-old-14-train")


@pytest.mark.parametrize(
    "tag", [t if t in DYNAMIC[:2] else pytest.param(t, marks=pytest.mark.whole) for t in DYNAMIC]
)
def test_batches_of_several_sizes_in_one_process(tag: str, tmp_path: Path) -> None:
    """Each size as onnxruntime runs it, the first once more, to the last bit; none at all not."""
    with np.load(DATA / f"{tag}.npz") as file:
        data = dict(file)
    module = train(onnx.load(DATA / f"{tag}.onnx"), data, tmp_path, is_training=True).module
    module.eval()
    exported = onnx.load_from_string(module.inference_model_to_bytes([OUTPUT]))
    rows = len(data["in0"])
    seen: dict[int, np.ndarray] = {}
    for size in (rows, 1, rows - 1, rows):
        part = {n: a[:size] for n, a in data.items() if n.startswith("in") or n == "target"}
        _, logits = module(*list_batch(part))
        np.testing.assert_allclose(logits, run_elsewhere(exported, part), rtol=1e-4, atol=1e-5)
        before = seen.setdefault(size, np.array(logits))
        np.testing.assert_array_equal(logits, before)
    assert len(list_inputs(data)) == 1
    with pytest.raises(InputError, match="empty"):
        module(*(a[:0] for a in list_batch(data)))
