"""Files of the mlp golden, and artifacts made of it."""

from __future__ import annotations

from typing import Any

import onnx

from engine import artifacts
from engine.artifacts import LossType
from tests.support.mlp import MLP

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


def make_proto(part: str) -> onnx.ModelProto:
    return onnx.load(MLP / f"{part}_model.onnx")


def make_artifact(**options: Any) -> None:
    artifacts.generate_artifacts(
        MLP / "forward.onnx",
        **{"requires_grad": NAMES, "loss": LossType.CrossEntropyLoss, **options},
    )


FILES = {p: MLP / f"{p}_model.onnx" for p in ("training", "eval", "optimizer")}
