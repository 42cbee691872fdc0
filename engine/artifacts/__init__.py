"""The offline phase: from a forward-only ONNX model to all that a device needs to train it.

from engine.artifacts import LossType, OptimType, generate_artifacts

generate_artifacts(
    "forward.onnx",
    requires_grad=["fc.weight", "fc.bias"],
    loss=LossType.CrossEntropyLoss,
    optimizer=OptimType.AdamW,
    artifact_directory="artifacts",
)
"""

from engine import loss_types
from engine.artifacts.generate import generate_artifacts
from engine.base.sparse_update import SparseUpdate
from engine.graphs.offline import optim_types
from engine.graphs.offline.optim_types import *  # noqa: F403  # its __all__ is public here
from engine.loss_types import *  # noqa: F403  # its __all__ is public here

__all__ = ["SparseUpdate", "generate_artifacts"]
__all__ += loss_types.__all__
__all__ += vars(optim_types)["__all__"]
