"""Checkpoint files of onnxruntime-training's format."""
