"""Whole models through artifacts, training and export: graphs that people's nets are made of.

Outputs equal onnx.reference in float64, gradients the differences of its losses; one thread and
two, sharing bytes or not, and stock onnxruntime on the exported model agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import CrossEntropyLoss, LossType, OptimType, generate_artifacts
from tests.support.harness import evaluate, get_gradient

CE, MSE, BCE = LossType.CrossEntropyLoss, LossType.MSELoss, LossType.BCEWithLogitsLoss
WEIGHT = np.array([1, 2, 0.5, 3], np.float32)
SEGMENTS = CrossEntropyLoss(ignore_index=1, weight=WEIGHT)

# name: opset, loss, shape of the output after the batch, inputs with their shapes (those that begin
# with x are fed, the others are parameters), nodes in onnx's text form.
MODELS: dict[str, tuple[int, Any, tuple[int, ...], str, str]] = {
    "shared weights": (13, MSE, (6,), "x[N,6] w[6,6] b[6]", """
        h = MatMul(x, w) a = Add(h, b) t = Tanh(a) k = MatMul(t, w) r = Add(k, x)
        s = Add(r, t) wt = Transpose(w) m = MatMul(s, wt) y = Add(m, b)"""),
    "batched products": (15, MSE, (3, 5), "x[N,3,4] w[4,5] b[1,5] u[3,3] g[1]", """
        h = MatMul(x, w) a = Add(h, b) m = MatMul(u, a) s = Softmax<axis=-1>(m)
        p = Mul(s, a) y = Mul(p, g)"""),
    "moved parts": (13, MSE, (11,), "x[N,5] w[5,12] v[8,4]", """
        sizes = Constant<value = int64[3] {3, 4, 5}>()
        shape = Constant<value = int64[3] {0, 2, 2}>()
        one = Constant<value = int64[1] {1}>() end = Constant<value = int64[1] {-9}>()
        last = Constant<value = int64[1] {-1}>() pads = Constant<value = int64[4] {0, 1, 0, 2}>()
        flat = Constant<value = int64[2] {0, -1}>() three = Constant<value = int64[1] {3}>()
        h = MatMul(x, w) p, q, r = Split<axis=1>(h, sizes) q3 = Reshape(q, shape)
        qt = Transpose<perm=[0, 2, 1]>(q3) f = Reshape(qt, flat) z = Slice(r, last, end, one, last)
        e = Pad(p, pads) c = Concat<axis=1>(f, e, z) vt = Transpose(v) fv = MatMul(f, vt)
        top = Slice(fv, one, three, one) y = Concat<axis=-1>(top, z, f)"""),
    "reductions": (13, MSE, (3,), "x[N,2,4,5] w[3,2,2,2] b[3]", """
        axes = Constant<value = int64[2] {1, 3}>()
        c = Conv(x, w, b) a = ReduceMean<axes=[1]>(c) s = ReduceSum<keepdims=1>(c, axes)
        m = ReduceMax<axes=[2, 3]>(c) l = ReduceL2<axes=[-1]>(c) e = ReduceLogSumExp<axes=[1, 2]>(c)
        p = Mul(a, s) q = Mul(m, l) r = Mul(p, e) t = Add(r, q) g = GlobalAveragePool(t)
        y = Flatten(g)"""),
    "convolutions": (13, CE, (4,), "x[N,4,9,8] w[6,2,3,3] b[6] d[12,1,2,3] v[4,12] k[4]", """
        c = Conv<group=2, dilations=[2, 1], pads=[2, 0, 1, 1]>(x, w, b) r = Relu(c)
        m = MaxPool<kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1>(r)
        e = Conv<group=6, auto_pad="SAME_UPPER", strides=[1, 2]>(m, d) t = LeakyRelu<alpha=0.2>(e)
        a = AveragePool<kernel_shape=[2, 2], pads=[1, 0, 0, 1]>(t) g = GlobalMaxPool(a)
        f = Flatten(g) y = Gemm<transB=1>(f, v, k)"""),
    "signals": (11, MSE, (2,), "x[N,3,31] w[5,3,5] b[5] v[35,2]", """
        c = Conv<strides=[2], pads=[2, 2]>(x, w, b) s = Sigmoid(c)
        m = MaxPool<kernel_shape=[3], strides=[2]>(s) f = Flatten(m) y = MatMul(f, v)"""),
    "volumes": (14, CE, (3,), "x[N,2,4,5,6] w[3,2,2,3,2] b[3]", """
        c = Conv<auto_pad="SAME_LOWER", strides=[1, 2, 2]>(x, w, b) t = Tanh(c)
        a = AveragePool<kernel_shape=[2, 2, 2], count_include_pad=1, pads=[1, 0, 0, 0, 1, 0]>(t)
        g = GlobalAveragePool(a) y = Flatten(g)"""),
    "scalars": (13, MSE, (3,), "x[N,3] s[] t[1] u[1,1]", """
        a = Mul(x, s) b = Div(a, t) c = Sub(u, b) q = Mul(s, s) d = Add(c, q) y = Mul(d, s)"""),
    "old forms": (7, MSE, (3,), "x[N,5] w[5,12] b[3]", """
        a = MatMul(x, w) u = Unsqueeze<axes=[1]>(a) q = Squeeze<axes=[1]>(u)
        c = Clip<min=-0.5, max=0.9>(q) d = Dropout<ratio=0.3>(c)
        shape = Constant<value = int64[3] {0, 3, 4}>() h = Reshape(d, shape)
        s = Softmax<axis=2>(h) p = Mul(s, h) r = ReduceSum<axes=[2], keepdims=0>(p)
        y = Sum(r, b, r)"""),
    "two towers": (16, BCE, (1,), "x0[N,4] x1[N,6] v[4,3] w[6,3]", """
        a = MatMul(x0, v) b = MatMul(x1, w) p = Mul(a, b) na = ReduceL2<axes=[1]>(a)
        nb = ReduceL2<axes=[1]>(b) axes = Constant<value = int64[1] {1}>() s = ReduceSum(p, axes)
        n = Mul(na, nb) y = Div(s, n)"""),
    "choices": (13, MSE, (4,), "x[N,5] w[5,4] k[4] e[1]", """
        a = MatMul(x, w) g = Greater(a, k) p = Where(g, a, k)
        m = Max(p, e) i = Min(a, e, k) d = Sub(m, i) o = Abs(d) f = Exp(e) b = Add(o, f)
        r = Pow(b, f) y = Sub(r, a)"""),
    "smooth": (17, MSE, (4,), "x[N,5] w[5,4] b[4]", """
        a = Gemm<alpha=0.5, beta=2.0>(x, w, b) e = Tanh(a) s = Softplus(e) l = Log(s) q = Sqrt(s)
        r = Reciprocal(q) o = LogSoftmax(l) t = Mul(r, o) y = Add(t, a)"""),
    "segmentation": (13, SEGMENTS, (4, 5, 3), "x[N,3,5,3] w[8,3,3,3] b[8] v[4,8,1,1] c[4]", """
        h = Conv<pads=[1, 1, 1, 1]>(x, w, b) r = Relu(h) y = Conv(r, v, c)"""),
    "channels": (13, MSE, (5, 4, 3), "x[N,5,4,3] w[5,5,1,1] s[1,5,1,1] r[4,1] c[3]", """
        a = Conv(x, w) b = Mul(a, s) m = ReduceMean<axes=[2, 3]>(b) d = Sub(b, m)
        e = Mul(d, d) n = ReduceMean<axes=[2, 3]>(e) q = Sqrt(n) z = Div(d, q) f = Add(z, r)
        y = Mul(f, c)"""),
    "dead ends": (13, MSE, (3,), "x[N,4] w[4,3] unused[7]", """
        x1 = Identity(x) w1 = Identity(w) w2 = Identity(w1) a = MatMul(x1, w2) dead = Exp(a)
        b = Identity(a) y = Relu(b)"""),
}  # fmt: skip


Arrays = dict[str, np.ndarray]


def build(name: str) -> tuple[onnx.ModelProto, Arrays, dict[str, tuple[int, ...]]]:
    """The model with its parameters as inputs; their values; the shapes of what is fed."""
    opset, _, _, inputs, nodes = MODELS[name]
    sizes = {item.split("[")[0]: item[item.index("[") :] for item in inputs.split()}
    declared = ", ".join(f"float{size if size != '[]' else ''} {n}" for n, size in sizes.items())
    head = f'<ir_version: 8, opset_import: ["": {opset}]> g ({declared}) => (float y)'
    proto = parser.parse_model(f"{head} {{{nodes}}}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    rng, parameters, fed = np.random.default_rng(len(name)), {}, {}
    for value in proto.graph.input:
        dims = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        if value.name[0] == "x":
            fed[value.name] = dims[1:]
        else:
            drawn = rng.normal(size=dims, scale=0.5)
            parameters[value.name] = np.asarray(drawn + 0.1 * np.sign(drawn), np.float32)
    return proto, parameters, fed


def make_batch(name: str, fed: dict[str, tuple[int, ...]], size: int) -> Arrays:
    """Return inputs, followed by the target."""
    rng = np.random.default_rng(size)
    batch = {n: rng.normal(size=(size, *s)).astype(np.float32) for n, s in fed.items()}
    _, loss, shape, _, _ = MODELS[name]
    if loss in (CE, SEGMENTS):
        return {**batch, "labels": rng.integers(0, shape[0], (size, *shape[1:]))}
    target = rng.normal(size=(size, *shape)).astype(np.float32)
    return {**batch, "target": (target > 0).astype(np.float32) if loss is BCE else target}


def loss_of(name: str, y: np.ndarray, target: np.ndarray) -> float:
    """The loss by its definition."""
    loss = MODELS[name][1]
    if loss is MSE:
        return float(np.mean((y - target) ** 2))
    if loss is BCE:
        return float(np.mean(np.log1p(np.exp(y)) - target * y))
    weight = np.ones(y.shape[1]) if loss is CE else WEIGHT * (np.arange(y.shape[1]) != 1)
    log_p = y - np.log(np.exp(y).sum(1, keepdims=True))
    picked = np.take_along_axis(log_p, target[:, None], 1)[:, 0]
    return float(-(weight[target] * picked).sum() / weight[target].sum())


class Reference:
    """A model in float64."""

    def __init__(self, name: str, proto: onnx.ModelProto) -> None:
        self.name, self.proto = name, proto

    def __call__(self, parameters: Arrays, batch: Arrays) -> tuple[float, np.ndarray]:
        *fed, target = batch
        feeds = {**{n: batch[n] for n in fed}, **parameters}
        (y,) = evaluate(self.proto, {n: a.astype(np.float64) for n, a in feeds.items()})
        return loss_of(self.name, y, batch[target]), y

    def slope(self, parameters: Arrays, batch: Arrays, key: str, way: np.ndarray) -> float:
        """The derivative of the loss along a direction of one parameter."""
        start, h = parameters[key].astype(np.float64), 1e-6
        up, down = (self({**parameters, key: start + s * h * way}, batch)[0] for s in (1, -1))
        return (up - down) / (2 * h)


class Trained:
    """A model's artifacts, loaded."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.state = CheckpointState.load_checkpoint(folder / "checkpoint")
        files = [folder / f"{kind}_model.onnx" for kind in ("training", "eval", "optimizer")]
        self.module = Module(files[0], self.state, files[1], threads=threads)
        self.optimizer = Optimizer(files[2], self.module)

    def gradients(self, batch: Arrays) -> Arrays:
        self.module.train()
        self.module.lazy_reset_grad()
        self.module(*batch.values())
        return {n: get_gradient(self.state, n).copy() for n, _ in self.state.parameters}


def make(name: str, folder: Path) -> tuple[Reference, Arrays, dict[str, tuple[int, ...]]]:
    """Write the artifacts of a model whose parameters are initializers, as in exporters."""
    proto, parameters, fed = build(name)
    forward = onnx.ModelProto()
    forward.CopyFrom(proto)
    forward.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in parameters.items())
    generate_artifacts(
        forward, [n for n in parameters if n != "unused"], loss=MODELS[name][1],
        optimizer=OptimType.SGD, artifact_directory=folder, additional_output_names=["y"],
    )  # fmt: skip
    return Reference(name, proto), parameters, fed


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, parameters, fed = make(name, tmp_path)
    models = [Trained(tmp_path, threads) for threads in (1, 2)]
    rng = np.random.default_rng(0)
    for size in (4, 1):
        batch = make_batch(name, fed, size)
        loss, y = reference(parameters, batch)
        for model in models:
            actual_gradients = model.gradients(batch)
            assert model.module.plan(*[a.shape for a in batch.values()]).ratio <= 1.05
            largest = max(np.linalg.norm(g) for g in actual_gradients.values())
            for key, dw in actual_gradients.items():
                way = rng.normal(size=dw.shape)
                scale = float((np.linalg.norm(dw) + 0.01 * largest) * np.linalg.norm(way))
                expected = reference.slope(parameters, batch, key, way)
                assert np.vdot(dw, way) == pytest.approx(expected, abs=1e-4 * scale), key
            made = model.module.eval()(*batch.values())
            assert made[0] == pytest.approx(loss, rel=1e-5, abs=1e-6)
            np.testing.assert_allclose(made[1], y, rtol=0, atol=1e-5 * np.abs(y).max())
    monkeypatch.setenv("EDGEGRAD_REUSE", "0")
    alone = Trained(tmp_path, 2).gradients(batch)
    for key, dw in actual_gradients.items():
        np.testing.assert_array_equal(alone[key], dw)
    models[1].optimizer.step()
    (expected,) = models[1].module.eval()(*batch.values())[1:]
    data = models[1].module.inference_model_to_bytes(["y"])
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (y,) = session.run(["y"], {i.name: batch[i.name] for i in session.get_inputs()})
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
