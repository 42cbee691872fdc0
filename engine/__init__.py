"""Train ONNX models on the device: artifacts in, trained ONNX out."""

__version__ = "0.1.0"
