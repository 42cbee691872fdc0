"""Attention: the ops of ONNX, and the fused form that planning makes of products and softmax."""
