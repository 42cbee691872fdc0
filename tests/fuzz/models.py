"""Small forward models that hold what models may hold: the seeds of mutations of models."""

from __future__ import annotations

import functools

import onnx
from onnx import parser

_HEAD = '<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>\n'

LAYERS = """g (float[N, 6] x) => (float[N, 3] y)
    <float[6, 8] w = {W48}, float[8] b = {W8}, float[8, 3] v = {W24}> {{
    h = MatMul(x, w)  a = Add(h, b)  r = Relu(a)  s = MatMul(r, v)  y = Softmax <axis = -1> (s)
}}"""
IMAGES = """g (float[N, 2, 8, 8] x) => (float[N, 3] y)
    <float[4, 2, 3, 3] w = {W72}, float[4] b = {W4}, float[4] s = {W4}, float[4] m = {W4},
     float[4] q = {W4}, float[4, 3] v = {W12}, float[3] c = {W3}> {{
    k = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    n = BatchNormalization <epsilon = 0.1> (k, s, b, m, q)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (n)
    e = GlobalAveragePool(p)  f = Flatten(e)  y = Gemm(f, v, c)
}}"""
TEXTS = """g (int64[N, T] ids) => (float[N, T, 4] y, float[N, 4] z)
    <float[9, 4] table = {W36}, float[4] s = {W4}, float[4] b = {W4}, float[4, 4] w = {W16},
     int64[1] minus = {{-1}}, int64[1] four = {{4}}, int64[1] one = {{1}}> {{
    e = Gather(table, ids)  n = LayerNormalization(e, s, b)
    size = Shape(ids)  whole = Concat <axis = 0> (size, four)
    flat = Reshape(n, minus)  back = Reshape(flat, whole)
    q = MatMul(back, w)  t = Transpose <perm = [0, 2, 1]> (q)  a = MatMul(q, t)
    p = Softmax <axis = -1> (a)  y = MatMul(p, q)  z = ReduceMean <keepdims = 0> (y, one)
}}"""
CHOICES = """g (float[3] x) => (float[3] y, float[3] z)
    <float[3] w = {W3}, float zero = {{0}}, bool on = {{1}}> {{
    s = ReduceSum <keepdims = 0> (x)  c = Greater(s, zero)  h = Mul(x, w)
    y = If (c) <
        then_branch = a () => (float[3] o) {{ o = Mul(h, x) }},
        else_branch = b () => (float[3] o) <float[3] t = {{1, 2, 3}}> {{ u = Mul(t, x) o = Sin(u) }}
    >
    z = If (on) <then_branch = a () => (float[3] o) {{ o = Neg(x) }},
        else_branch = b () => (float[3] o) {{ o = Abs(x) }}>
}}"""
LOOPS = """g (float[3] x) => (float[3] y, float[4, 3] seen)
    <int64 n = {{4}}, bool go = {{1}}, float one = {{1}}> {{
    y, seen = Loop (n, go, x) <body = b (int64 i, bool c, float[3] s) =>
            (bool k, float[3] u, float[3] p) {{
        k = Identity(c)  f = Cast <to = 1> (i)  g = Add(f, one)  q = Mul(s, g)  u = Sin(q)
        p = Exp(u)
    }}>
}}"""
SCANS = """g (float[2] s, float[2, 3] a, float[3, 2] b) => (float[2] e, float[2, 3] p) {{
    e, p = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_output_axes = [1],
        body = body (float[2] h, float[2] x, float[2] y) => (float[2] k, float[2] o) {{
            t = Add(x, y)  k = Mul(h, t)  o = Tanh(k)
        }}> (s, a, b)
}}"""
LISTS = """g (float[2, 3] x) => (float[2, 3] y, float[3] z) <int64 at = {{1}}> {{
    q = SequenceConstruct(x, x)  y = SequenceAt(q, at)
    parts = SplitToSequence <axis = 0, keepdims = 0> (x)  z = SequenceAt(parts, at)
}}"""
STEPS = """g (float[4, N, 3] x) => (float[4, 1, N, 5] y, float[1, N, 5] h)
    <float[1, 20, 3] w = {W60}, float[1, 20, 5] r = {W100}, float[1, 40] b = {W40}> {{
    y, h = LSTM <hidden_size = 5> (x, w, r, b)
}}"""
BYTES = """g (float[2, 4] x) => (float[2, 3] y)
    <float scale = {{0.1}}, uint8 zero = {{7}}, float[4, 3] w = {W12}, float[3] many = {W3},
     uint8[3] zeros = {{1, 2, 3}}> {{
    q = QuantizeLinear(x, scale, zero)  d = DequantizeLinear(q, scale, zero)
    u = QuantizeLinear <axis = 1> (w, many, zeros)  v = DequantizeLinear <axis = 1> (u, many, zeros)
    y = MatMul(d, v)
}}"""
OURS = """g (float[2, 4] x, float[2, 4] t) => (float[2, 4] y, float[2, 4] d)
    <float[4] s = {W4}, float[4] b = {W4}> {{
    g = com.microsoft.Gelu(x)  y, m, i, k = com.microsoft.SkipLayerNormalization(g, t, s, b)
    d = com.microsoft.GeluGrad(t, x)
}}"""
CALLS = """g (float[3] x) => (float[3] y) { y = own.twice <k = 2.0> (x) }
<domain: "own", opset_import: ["": 17]>
twice <k> (a) => (b) { f = Constant <value_float: float = @k> ()  b = Mul(a, f) }"""
_CALLS_HEAD = '<ir_version: 8, opset_import: ["": 17, "own": 1]>\n'
_OLD = """g (float[2, 3, 8] x) => (float[6, 8] y, float[2, 8] z) <int64[2] s = {{6, 8}}> {{
    y = Reshape(x, s)  d = Dropout <ratio = 0.5> (x)  q = Squeeze <axes = [1]> (e)
    e = ReduceSum <axes = [1]> (d)  z = Clip <min = 0.0, max = 1.0> (q)
}}"""
MODELS = {
    17: (LAYERS, IMAGES, CHOICES, LOOPS, SCANS, LISTS, BYTES, OURS), 18: (TEXTS, STEPS), 9: (_OLD,)
}  # fmt: skip


def _model(text: str, opset: int) -> onnx.ModelProto:
    for n in (100, 72, 60, 48, 40, 36, 24, 16, 12, 8, 4, 3):
        text = text.replace(f"{{W{n}}}", "{{" + ", ".join(f"{i % 5 / 8}" for i in range(n)) + "}}")
    return parser.parse_model((_HEAD + text).format(opset=opset))


@functools.cache
def models() -> tuple[onnx.ModelProto, ...]:
    """The models.  They are read by all and changed by none: copy one before."""
    actual_models = [_model(text, opset) for opset, texts in MODELS.items() for text in texts]
    return (*actual_models, parser.parse_model(_CALLS_HEAD + CALLS))
