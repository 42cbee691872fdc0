"""Post-training quantisation: from a float model and some data to a model with 8-bit integers.

    import edgegrad

    made = edgegrad.quantize("inference.onnx", samples, edgegrad.Quantization(method="entropy"))
    made.save("int8.onnx")

The result has QuantizeLinear and DequantizeLinear nodes around its products, which onnxruntime and
other runtimes compute in integers.  Importing this module needs only numpy.
"""

from engine.quantization.options import Qat, Quantization
from engine.quantization.post_training import Quantized, prepare_qat, quantize

__all__ = ["Qat", "Quantization", "Quantized", "prepare_qat", "quantize"]
