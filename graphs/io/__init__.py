"""ONNX files, and all else that only the onnx package knows."""
