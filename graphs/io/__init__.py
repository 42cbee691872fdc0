"""ONNX files, and everything that needs the onnx package."""
