"""Answers of a model, with names and meaning of `onnxruntime.InferenceSession`.

session = edgegrad.Session("trained.onnx")
(y,) = session.run(None, {"x": x})
"""

from __future__ import annotations

from engine.training.decoder import Decoder
from engine.training.inference import NodeArg, Session

__all__ = ["Decoder", "NodeArg", "Session"]
