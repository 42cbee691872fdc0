"""Train ONNX models on the device: artifacts in, trained ONNX out."""

from typing import Any

__version__ = "0.1.0"


def set_seed(seed: int) -> None:
    """Draw other random numbers from here on, see `engine.runtime.noise`."""
    from engine.runtime import noise

    noise.set_seed(seed)


def supported(model: Any) -> Any:
    """What of an ONNX model (a path, bytes or `ModelProto`) can be trained: a table of its nodes.

    Each row has the fields node, op, domain, opset, status and reason; `print` shows the table.
    """
    from engine import backend

    return backend.supported(model)
