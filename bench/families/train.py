"""Engine's side of the comparison: train an exported model, export it, run that elsewhere.

    python -m bench.families.train FOLDER/TAG.onnx

Prints one line of JSON, the fields of `Comparison`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from engine.api import CheckpointState, Module, Optimizer
from engine.base.aliases import Array
from engine.errors import EngineError
from engine.tools.dev.export_artifacts import (
    OUTPUT,
    cut_first_line,
    list_batch,
    list_inputs,
    write_artifacts,
)
from engine.tools.dev.exports import split_tag

TOLERANCE = 1e-4  # of losses and of what an exported model gives
GRADIENT_TOLERANCE = 1e-3  # of the largest element of a gradient
SYMBOLIC_LOOP = "Loop over a symbolic size"
LIMITS = {  # by export: what docs/compatibility.md says is refused, to be trained with static axes
    "embedding_bag-old-14-train": SYMBOLIC_LOOP,
    "embedding_bag-old-17-eval-folded": SYMBOLIC_LOOP,
}
REFUSALS = {SYMBOLIC_LOOP: "UnknownValueError: Loop "}  # how the engine says so
WRONG = {  # by export: what its exporter writes wrongly; written rightly, its output is PyTorch's
    "box_head-old-14-train": "RoiAlign of opset 14 has no half_pixel",
    "graph_attention-old-14-train": "ScatterElements of opset 14 has no reduction to add with",
}


@dataclass(slots=True)
class Comparison:
    """Differences of a model's training and inference model from PyTorch's and onnxruntime's.

    losses: the largest difference of three losses.  gradients: the largest difference of the first
        gradients, relative to their largest element.  inference: the largest difference between the
        outputs of the engine's eval model and of its inference model in stock onnxruntime, relative
        to the largest of them, if that is above 1.  fault: a description, or "".  is_ours: whether
        it is the engine's fault. is_limit: whether it is one of `LIMITS`; the numbers then refer to
        static axes.
    """

    losses: float | None = None
    gradients: float | None = None
    inference: float | None = None
    fault: str = ""
    is_ours: bool = True
    is_limit: bool = False

    @property
    def fails(self) -> bool:
        """True if the engine misbehaves."""
        return bool(self.fault) and self.is_ours and not self.is_limit


@dataclass(frozen=True, slots=True)
class Trained:
    """Results of three steps, and the module that made them."""

    module: Module
    losses: list[float]
    gradients: dict[str, Array]


def train(
    model: onnx.ModelProto, data: dict[str, Array], folder: Path, *, is_training: bool
) -> Trained:
    """Write a model's artifacts, and train three steps."""
    parameters = write_artifacts(model, data, folder, is_training=is_training)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(1e-3)
    losses: list[float] = []
    gradients: dict[str, Array] = {}
    for _ in range(3):
        outputs = module(*list_batch(data))
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        losses.append(float(np.reshape(loss, ())))
        if not gradients:
            gradients = {n: np.array(state.parameters[n].grad) for n in parameters}
        optimizer.step()
        module.lazy_reset_grad()
    return Trained(module, losses, gradients)


def measure_gradient_difference(
    found: dict[str, Array], data: dict[str, Array]
) -> tuple[float, str]:
    """Return the largest relative difference of a gradient from PyTorch's, and whose it is.

    A gradient that is far smaller than the others is compared with a thousandth of the largest.
    Those of parameters that the exporter transposed are left out.
    """
    pairs = {
        n: (g, data[f"grad.{n}"])
        for n, g in found.items()
        if f"grad.{n}" in data and data[f"grad.{n}"].shape == g.shape
    }
    scale = max((float(np.abs(b).max(initial=0)) for _, b in pairs.values()), default=0.0)
    worst = (0.0, "")
    for name, (a, b) in pairs.items():
        allowed = float(np.abs(b).max(initial=0)) + 1e-3 * scale
        off = float(np.abs(a - b).max(initial=0)) / allowed if allowed else 0.0
        worst = max(worst, (off, name)) if not np.isnan(off) else (float("nan"), name)
    return worst


def run_elsewhere(
    model: onnx.ModelProto, data: dict[str, Array], *, optimises: bool = True
) -> Array:
    """Return a model's `OUTPUT` by stock onnxruntime, which may rewrite the graph if `optimises`.

    Where that has no kernel, as for convolutions in float64, onnx's reference does it.
    """
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as HasNoKernel

    wanted = {i.name for i in model.graph.input}
    given = {n: x for i, x in enumerate(list_inputs(data)) if (n := f"in{i}") in wanted}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimises:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except HasNoKernel:
        outputs: Any = ReferenceEvaluator(model).run([OUTPUT], given)
        return np.asarray(outputs[0])
    return np.asarray(session.run([OUTPUT], given)[0])


def check_valid(model: onnx.ModelProto) -> None:
    """Raise what the onnx checker raises, with strict inference of shapes."""
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def measure_relative(found: Array, expected: Array) -> float:
    """Return the largest difference, relative to the largest value if that is above 1."""
    if found.shape != expected.shape:
        return float("inf")
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    return float(np.abs(found - expected).max(initial=0)) / scale


def measure_inference_difference(module: Module, data: dict[str, Array]) -> float:
    """Return the difference of the inference model from the eval model; raise if it is invalid."""
    module.eval()
    outputs = module(*list_batch(data))
    ours = outputs[1] if isinstance(outputs, tuple) else outputs
    exported = onnx.load_from_string(module.inference_model_to_bytes([OUTPUT]))
    check_valid(exported)
    return measure_relative(
        np.reshape(run_elsewhere(exported, data), np.shape(ours)), np.asarray(ours)
    )


def set_training_mode(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose normalisations use the statistics of the batch.

    The exporter over `torch.export` does not write `training_mode`, whatever the module's mode is.
    """
    out = onnx.ModelProto()
    out.CopyFrom(model)
    for i, node in enumerate(out.graph.node):
        if node.op_type == "BatchNormalization":
            kept = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("training_mode", 1)])
            if len(node.output) == 1:
                node.output.extend([f"running_mean_of_node_{i}", f"running_var_of_node_{i}"])
    return out


def find_export_fault(path: Path, data: dict[str, Array]) -> str:
    """Return the fault of the exported model itself, or "".

    onnxruntime runs it as it is written: its optimiser takes some normalisations in training mode
    for others.
    """
    if data["lost"].size:
        return f"it folded {', '.join(data['lost'].tolist()[:3])}: another model"
    model = onnx.load(path)
    if split_tag(path.stem)[1].trains:
        model = set_training_mode(model)
    try:
        check_valid(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return f"invalid: {cut_first_line(error)}"
    try:
        off = measure_relative(run_elsewhere(model, data, optimises=False), data[OUTPUT])
    except Exception as error:  # onnxruntime's own, of many classes
        return f"onnxruntime cannot run it: {cut_first_line(error)}"
    if off <= 1e-3:
        return ""
    why = f": {WRONG[path.stem]}" if path.stem in WRONG else ""
    return f"its output in onnxruntime is {off:.0e} from PyTorch's{why}"


def with_axes_of(data: dict[str, Array], model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose inputs have the shapes of the data."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    for i in out.graph.input:
        axes = i.type.tensor_type.shape.dim
        for axis, size in zip(axes, data[i.name].shape, strict=True):
            axis.dim_value = size
    return out


def compare(path: Path, folder: Path) -> Comparison:
    """Train and export one model; artifacts are written to `folder`.

    Of `LIMITS`, a model has to be refused as it is and to train with static axes.
    """
    with np.load(path.with_suffix(".npz")) as file:
        data = dict(file)
    comparison = compare_as_it_is(path, data, folder)
    limit = LIMITS.get(path.stem)
    if limit is None:
        return comparison
    if not comparison.fault:
        comparison.fault = "it is not refused any more, but is in LIMITS"
    elif comparison.fault.startswith(REFUSALS[limit]):
        static = folder / path.name
        onnx.save(with_axes_of(data, onnx.load(path)), static)
        comparison = compare_as_it_is(static, data, folder)
        comparison.is_limit = not comparison.fault
        comparison.fault = (
            f"with static axes: {comparison.fault}"
            if comparison.fault
            else f"refused: {limit} (works with static axes)"
        )
    return comparison


def compare_as_it_is(path: Path, data: dict[str, Array], folder: Path) -> Comparison:
    """Train and export one model as it is; as many losses are compared as `data` has."""
    comparison = Comparison()
    is_training = split_tag(path.stem)[1].trains
    try:
        trained = train(onnx.load(path), data, folder, is_training=is_training)
        expected = data["losses"].tolist()
        differences = np.subtract(trained.losses[: len(expected)], expected)
        comparison.losses = float(np.max(np.abs(differences)))
        comparison.gradients, whose = measure_gradient_difference(trained.gradients, data)
        if not comparison.losses <= TOLERANCE:
            comparison.fault = f"losses {trained.losses}, PyTorch {expected}"
        elif not comparison.gradients <= GRADIENT_TOLERANCE:
            comparison.fault = f"the gradient of {whose}"
    except EngineError as error:
        comparison.fault = cut_first_line(error)
    if comparison.fault:
        export = find_export_fault(path, data)
        comparison.fault, comparison.is_ours = (
            (f"exporter: {export}", False) if export else (comparison.fault, True)
        )
        return comparison
    try:
        comparison.inference = measure_inference_difference(trained.module, data)
        if not comparison.inference <= TOLERANCE:
            off = f"{comparison.inference:.0e}"
            comparison.fault = f"the inference model is {off} from the eval model"
    except Exception as error:  # the checker's and onnxruntime's own, of many classes
        comparison.fault, comparison.is_ours = blame(path, data, error)
    return comparison


def blame(path: Path, data: dict[str, Array], error: Exception) -> tuple[str, bool]:
    """Return the fault of an inference model, and whether it arose after the export."""
    said = cut_first_line(error)
    try:
        model = onnx.load(path)
        check_valid(model)
        run_elsewhere(model, data)
    except Exception as original:  # as above
        return f"inference: neither does the exporter's own run: {cut_first_line(original)}", False
    return f"inference: {said}", True


def main(path: str) -> None:
    """Print how one model compares."""
    with tempfile.TemporaryDirectory() as folder:
        json.dump(asdict(compare(Path(path), Path(folder))), sys.stdout)
    print()


if __name__ == "__main__":
    main(sys.argv[1])
