"""Losses as ONNX nodes at the end of a graph, with the meaning that they have in torch."""
