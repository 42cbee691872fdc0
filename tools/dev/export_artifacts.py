"""Artifacts of a model that PyTorch has exported, and the data beside it."""

from __future__ import annotations

from pathlib import Path

import onnx

from engine import artifacts
from engine.base.aliases import Array

OUTPUT = "logits"  # of a model whose loss is added here


def list_inputs(data: dict[str, Array]) -> list[Array]:
    """Return the inputs of a model, without its target."""
    return [data[f"in{i}"] for i in range(sum(k.startswith("in") for k in data))]


def list_batch(data: dict[str, Array]) -> list[Array]:
    """Return the inputs of a model, and its target if it has one."""
    return list_inputs(data) + ([data["target"]] if "target" in data else [])


def write_artifacts(
    model: onnx.ModelProto, data: dict[str, Array], folder: Path, *, is_training: bool
) -> list[str]:
    """Write a model's artifacts, with AdamW; return the names of the trained parameters.

    Models exported in eval mode keep their statistics.
    """
    names = set(data["names"].tolist())
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    held = [i.name for i in model.graph.initializer if i.data_type in floats]
    parameters = [name for name in held if name in names]
    loss = None
    if "target" in data:
        is_number = data["target"].dtype.kind == "f"
        kinds = artifacts.LossType
        loss = kinds.MSELoss if is_number else kinds.CrossEntropyLoss
    artifacts.generate_artifacts(
        model,
        requires_grad=parameters,
        frozen_params=[n for n in held if "running" in n and n not in names],
        loss=loss,
        optimizer=artifacts.AdamW(adam_mode=0, eps=1e-6, weight_decay=0.0),
        frozen_batch_norm=not is_training,
        additional_output_names=[OUTPUT] if loss is not None else None,
        artifact_directory=folder,
    )
    return parameters


def cut_first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line it says, of no more than 200 characters."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}"[:200]
