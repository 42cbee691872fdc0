"""Wrong values for every parameter of every public function, class and method.

Each parameter gets values of every kind in turn, all others what they may be.  Either the call is
right to take the value, or it ends in an `EngineError` that names the parameter: no TypeError from
inside, no warning of NumPy, nothing that is silently done otherwise.
"""

from __future__ import annotations

from pathlib import Path

MODULES = (
    "engine", "engine.api", "engine.artifacts", "engine.backend", "engine.data", "engine.lora",
    "engine.onnxblock", "engine.onnxblock.blocks", "engine.onnxblock.loss",
    "engine.onnxblock.optim", "engine.profiling", "engine.proximal", "engine.reports",
    "engine.trainer.callbacks", "engine.trainer.history", "engine.trainer.metrics",
    "engine.trainer.runs", "engine.trainer.schedules", "engine.trainer.torch_export",
)  # fmt: skip
MLP = Path(__file__).parent / "data" / "goldens" / "mlp"
