"""The offline phase: from a forward-only ONNX model to all that a device needs to train it.

    from edgegrad.artifacts import LossType, OptimType, generate_artifacts

    generate_artifacts(
        "forward.onnx",
        requires_grad=["fc.weight", "fc.bias"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory="artifacts",
    )

Names, keyword arguments and files match `onnxruntime.training.artifacts`; its version 1.19.2 runs
the artifacts wherever it has the ops.  Differences: the loss is always called `loss`; class scores
are on axis 1, as in ONNX; BCE with logits is stable; `float64` models work.  If a value of the
model has a name of the artifacts, such as an input `target`, the artifacts use another, `target_1`:
a `Module` lists its inputs and outputs in order.
"""

from typing import TYPE_CHECKING

from engine import loss_types
from engine.artifacts.generate import generate_artifacts as generate_artifacts
from engine.artifacts.specialization import Specialized as Specialized
from engine.artifacts.specialization import specialize as specialize
from engine.base.sparse_update import SparseUpdate as SparseUpdate
from engine.graphs.offline import optim_types
from engine.graphs.offline.optim_types import *
from engine.loss_types import *

if not TYPE_CHECKING:  # checkers take all that is imported above for public
    __all__ = [
        "SparseUpdate", "Specialized", "generate_artifacts", "specialize",
        *loss_types.__all__, *optim_types.__all__,
    ]  # fmt: skip
