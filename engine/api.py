"""Training phase, with the names, signatures and meaning of `onnxruntime.training.api`.

    from edgegrad.api import CheckpointState, LinearLRScheduler, Module, Optimizer

    state = CheckpointState.load_checkpoint("artifacts/checkpoint")
    module = Module("artifacts/training_model.onnx", state, "artifacts/eval_model.onnx")
    optimizer = Optimizer("artifacts/optimizer_model.onnx", module)
    for x, labels in batches:
        module.train()
        loss = module(x, labels)
        optimizer.step()
        module.lazy_reset_grad()
    CheckpointState.save_checkpoint(state, "artifacts/checkpoint", include_optimizer_state=True)
    module.export_model_for_inferencing("inference.onnx", ["output"])

Where onnxruntime-training takes a path, bytes are accepted, too.
"""

from __future__ import annotations

from engine.plan.noise import set_seed
from engine.training.module import Module
from engine.training.optimizer import LinearLRScheduler, Optimizer
from engine.training.state import CheckpointState, Parameter, Parameters, Properties

__all__ = [
    "CheckpointState",
    "LinearLRScheduler",
    "Module",
    "Optimizer",
    "Parameter",
    "Parameters",
    "Properties",
    "set_seed",
]
