"""ONNX's backend interface, which runs any model without training; see `engine.training.backend`.

    from edgegrad import backend

    rep = backend.prepare(onnx.load("model.onnx"))
    (y,) = rep.run([x])

`onnx.backend.test.BackendTest(edgegrad.backend, __name__)` runs ONNX's own tests.
"""

from engine.training.backend import (
    Backend,
    Session,
    is_compatible,
    prepare,
    run_model,
    run_node,
    supported,
    supports_device,
)

__all__ = [
    "Backend",
    "Session",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supported",
    "supports_device",
]
