"""Post-training quantisation: from a float model and some data to a model of 8-bit integers.

    import edgegrad

    made = edgegrad.quantize("inference.onnx", samples, edgegrad.Quantization(method="entropy"))
    made.save("int8.onnx")

The result holds QuantizeLinear and DequantizeLinear around its products, which onnxruntime and
other runtimes compute in integers.  Importing this needs only numpy.
"""

from engine.quantization.options import Quantization
from engine.quantization.post_training import Quantized, prepare_qat, quantize

__all__ = ["Quantization", "Quantized", "prepare_qat", "quantize"]
