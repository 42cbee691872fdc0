"""Losses, models and optimizers built from blocks: the DSL of `onnxruntime.training.onnxblock`.

    import edgegrad.onnxblock as onnxblock

    class WeightedLoss(onnxblock.Block):
        def __init__(self):
            self.loss, self.scale = onnxblock.loss.MSELoss(), onnxblock.blocks.Constant(0.5)
            self.times = onnxblock.blocks.Mul()

        def build(self, output):
            return self.times(self.scale(), self.loss(output))

    generate_artifacts(model, ["w"], loss=WeightedLoss(), optimizer=onnxblock.optim.SGD())

A block appends nodes to the one model that `base` or `empty_base` has opened, an `onnx.ModelProto`
that it may also change by hand: `self.base`.
"""

from __future__ import annotations

from engine.onnxblock import blocks, loss, optim
from engine.onnxblock.blocks import Block
from engine.onnxblock.checkpoints import load_checkpoint_to_model, save_checkpoint
from engine.onnxblock.model_accessor import base, custom_op_library, empty_base
from engine.onnxblock.models import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
