"""Batches that are trained on in parts: as if whole, or refused by the node that mixes samples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

from engine import Trainer
from engine.artifacts import SGD, AdamW, CrossEntropyLoss, MSELoss
from engine.custom import Grad, Op, Samples, register, same_as, unregister
from engine.errors import BudgetError, InputError, LabelError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.sample_flow import find_loss
from engine.graphs.offline.sample_values import LossValue, MixedError
from engine.quantization import quantize
from tests.support.plan_records import NONE, Work
from tests.support.tied_words import DEEP, IDS, TIED, WORDS, read_content
from tests.support.tiny import (
    DROPPING,
    LABELS,
    NORMED,
    PLAIN,
    X,
    forward,
    make_trainer,
    read_values,
)

IGNORING = np.where(np.arange(20) % 3 == 0, -100, LABELS)
WEIGHTS = np.array([0.5, 1.0, 3.0], np.float32)
TARGETS = np.random.default_rng(5).standard_normal((20, 3)).astype(np.float32)


def fill(text: str) -> str:
    """Give w and its scales and zero points values."""
    text = text.replace("uint8[6,6] w", f"uint8[6,6] w = {{{', '.join(['130'] * 36)}}}")
    text = text.replace("float[6] ws", f"float[6] ws = {{{', '.join(['0.1'] * 6)}}}")
    return text.replace("uint8[6] wz", f"uint8[6] wz = {{{', '.join(['9'] * 6)}}}")


def close(one: Trainer, two: Trainer) -> None:
    """Parameters and moments are equal within the rounding of another order of sums."""
    for name in ("param", "state"):
        a, b = (t.state.regions[name].view(np.float32) for t in (one, two))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (CrossEntropyLoss(), LABELS),
        (CrossEntropyLoss(reduction="sum"), LABELS),
        (CrossEntropyLoss(ignore_index=-100), IGNORING),
        (CrossEntropyLoss(ignore_index=-100, weight=WEIGHTS), IGNORING),
        (MSELoss(), TARGETS),
    ],
    ids=["mean", "sum", "ignored labels", "class weights", "squares"],
)
@pytest.mark.parametrize("parts", [3, 20])
def test_parts_are_the_whole_batch(loss: Any, target: Any, parts: int) -> None:
    """20 samples in parts of 7, 7 and 6, or one by one."""
    optimizer = SGD(0.05, momentum=0.9)
    whole = make_trainer(PLAIN, loss=loss, optimizer=optimizer)
    parted = make_trainer(PLAIN, loss=loss, optimizer=optimizer, micro_batches=parts)
    for _ in range(3):
        assert parted.step(X, target) == pytest.approx(whole.step(X, target), rel=1e-5)
    close(parted, whole)
    assert parted.steps == 3
    assert f"in {parts} parts" in parted.plan.summary()


def test_samples_of_words_and_of_several_rows_are_kept_apart() -> None:
    text = TIED.replace("float {0.25}", "float {0.0}")
    whole, parted = make_trainer(text), make_trainer(text, micro_batches=4)
    assert parted.step(IDS, WORDS) == pytest.approx(whole.step(IDS, WORDS), rel=1e-5)
    close(parted, whole)


@pytest.mark.parametrize("samples", [Samples.FIRST_AXIS, Samples.MIXED])
def test_an_op_of_ones_own_holds_samples_as_it_declares(samples: Samples) -> None:
    """Not as the op of ONNX that has its name."""
    op = Op(
        name="Softmax",
        domain="my.ops",
        infer=same_as(0),
        expand=lambda nodes: (nodes.op("Neg", nodes.x(0)),),
        samples=samples,
    )
    text = """<ir_version: 8, opset_import: ["": 17, "my.ops": 1]>
        g (float[N,4] x) => (float y) { a = my.ops.Softmax(x) y = ReduceMean<keepdims = 0>(a) }"""
    register(op)
    try:
        graph = onnx_io.load(parser.parse_model(text))
        if samples is Samples.MIXED:
            with pytest.raises(MixedError, match=r"\(Softmax\) is not known to keep samples apart"):
                find_loss(graph, {"x": (6, 4)}, {"x": 1})
        else:
            assert find_loss(graph, {"x": (6, 4)}, {"x": 1}) == LossValue(is_mean=True)
    finally:
        unregister(op)


QUANTISED = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[N,6] x) => (float y)
    <float s = {0.05}, uint8 z = {128}, uint8[6,6] w, float[6] ws, uint8[6] wz> {
        q = QuantizeLinear(x, s, z)
        $
        f = DequantizeLinear(r, s, z)
        y = ReduceMean<keepdims = 0>(f) }"""


@pytest.mark.parametrize(
    "layer",
    [
        "r = Identity(q)",
        "r = QLinearMatMul(q, s, z, w, s, z, s, z)",
        "r = com.microsoft.QGemm<transB = 1>(q, s, z, w, ws, wz, , s, z)",
        "r = com.microsoft.QLinearAdd(q, s, z, q, s, z, s, z)",
        "r = com.microsoft.QLinearConcat<axis = 1>(s, z, q, s, z, q, s, z)",
        "t = Transpose(q) r = QLinearMatMul(w, s, z, t, s, z, s, z)",
        "i = MatMulInteger(q, w, z, z) k = Cast<to = 1>(i) r = QuantizeLinear(k, s, z)",
    ],
)
def test_samples_go_through_integers_apart(layer: str) -> None:
    """They are followed through what operators on integers stand for."""
    graph = onnx_io.load(parser.parse_model(fill(QUANTISED.replace("$", layer))))
    assert find_loss(graph, {"x": (4, 6)}, {"x": 1}) == LossValue(is_mean=True)


@pytest.mark.parametrize(
    ("layer", "error"),
    [
        ("d, ds, dz = DynamicQuantizeLinear(x) r = Identity(d)", "reduces the samples"),
        ("t = Transpose(q) r = com.microsoft.QLinearSoftmax(t, s, z, s, z)", "over the samples"),
    ],
)
def test_integers_that_mix_samples_are_refused(layer: str, error: str) -> None:
    graph = onnx_io.load(parser.parse_model(fill(QUANTISED.replace("$", layer))))
    with pytest.raises(MixedError, match=error):
        find_loss(graph, {"x": (6, 6)}, {"x": 1})


def load_packed(text: str) -> Graph:
    """A model whose weights q, of 4 bits, and scales s are given for `$`."""
    numbers, scales = ", ".join(["130"] * 128), ", ".join(["0.1"] * 8)
    constants = f"<uint8[8,1,16] q = {{{numbers}}}, float[8,1] s = {{{scales}}}>"
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g'
    return onnx_io.load(parser.parse_model(f"{head} {text.replace('$', constants)}"))


MULTIPLIED = """p = com.microsoft.MatMulNBits<K = 32, N = 8, bits = 4, block_size = 32>(t, q, s)
    y = ReduceMean<keepdims = 0>(p)"""


def test_samples_go_through_packed_weights_apart() -> None:
    """Rows of a table, then a product, as in language models of 4 bits."""
    graph = load_packed(f"""(int64[N,5] i) => (float y) $ {{
        z = Constant<value_ints = [8, 16]>() r = Reshape(q, z)
        t = com.microsoft.GatherBlockQuantized<bits = 4, block_size = 32>(r, i, s)
        {MULTIPLIED} }}""")
    assert find_loss(graph, {"i": (4, 5)}, {"i": 1}) == LossValue(is_mean=True)


def test_samples_that_packed_weights_add_up_are_refused() -> None:
    graph = load_packed(f"(float[N,6] x) => (float y) $ {{ t = Transpose(x) {MULTIPLIED} }}")
    with pytest.raises(MixedError, match=r"\(MatMulNBits\) works along the samples"):
        find_loss(graph, {"x": (32, 6)}, {"x": 1})


def test_a_head_on_integers_trains_within_a_budget() -> None:
    """In parts that give what the whole batch gives."""
    model = quantize(forward(), X).to_bytes()

    def make(**options: Any) -> Trainer:
        return Trainer.from_onnx(
            model, CrossEntropyLoss(), SGD(0.05), train="head", threads=1, **options
        )

    whole = make()
    whole.step(X, LABELS)
    budget = whole.plan_of(X, LABELS).nbytes - 64
    parted = make(memory_budget=budget)
    parted.step(X, LABELS)
    assert "parts" in parted.plan.summary()
    for name, value in whole.state.parameters:
        np.testing.assert_allclose(parted.state.parameters[name].data, value.data, rtol=1e-5)


def test_what_a_budget_takes_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later process neither tries the whole batch again nor reads a graph to part it."""
    work, folder = Work(monkeypatch, tmp_path / "plans"), tmp_path / "artifacts"
    model = quantize(forward(), X).to_bytes()
    whole = Trainer.from_onnx(
        model, CrossEntropyLoss(), SGD(0.05), train="head", threads=1, folder=folder
    )
    budget = whole.plan_of(X, LABELS).nbytes - 64

    def train() -> Trainer:
        trainer = Trainer(folder, threads=1, memory_budget=budget)
        trainer.step(X, LABELS)
        return trainer

    before, after = train(), train()
    assert work.of(train) == NONE
    assert before.plan.summary() == after.plan.summary()
    # The second time the refusal comes from the record, with the same words.
    texts = []
    for _ in range(2):
        with pytest.raises(BudgetError) as refused:
            Trainer(folder, threads=1, memory_budget=1000).step(X, LABELS)
        texts.append((str(refused.value), refused.value.least))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("is_crossing", [False, True])
def test_the_gradient_of_an_op_of_ones_own_is_followed(is_crossing: bool) -> None:
    """The op keeps samples apart; its gradient is what its rule says."""

    def grad(grad: Grad, dy: str) -> tuple[str]:
        mean = grad.op("ReduceMean", dy, axes=[0], keepdims=1)
        if is_crossing:
            return (grad.op("Sub", dy, mean),)
        return (grad.op("Clip", dy, grad.const(-0.001, "f32"), grad.const(0.001, "f32")),)

    op = Op(
        name="Kept",
        domain="mine",
        infer=same_as(0),
        expand=lambda nodes: (nodes.op("Tanh", nodes.x(0)),),
        grad=grad,
        samples=Samples.FIRST_AXIS,
    )
    text = PLAIN.replace('["": 17]', '["": 17, "mine": 1]').replace("= Tanh", "= mine.Kept")
    register(op)
    try:
        options: dict[str, Any] = {"optimizer": SGD(0.05)}
        whole, parted = (
            make_trainer(text, **options),
            make_trainer(text, micro_batches=3, **options),
        )
        loss = whole.step(X, LABELS)
        if is_crossing:
            with pytest.raises(
                InputError, match=r"'Kept_\d_Grad/Sub_1' \(Sub\) of the gradient of"
            ):
                parted.step(X, LABELS)
        else:
            assert parted.step(X, LABELS) == pytest.approx(loss, rel=1e-5)
            close(parted, whole)
    finally:
        unregister(op)


# The gradients noted between `b` and `r`, as the `backward` of an autograd.Function: `d` is the
# gradient of its output, `e` its own.  These treat each sample for itself, or sum over them.
TOLD = """t = Tanh(b)
    k = engine.StopGradient(t)
    d = engine.Cotangent(k)
    """
WITH_BIAS = TOLD.replace("Tanh(b)", "Add(b, body.bias)")
ALONE = {
    "reversed": f"{TOLD} e = Neg(d) r = engine.Redirect(k, d, t, e)",
    "straight through": f"{TOLD} e = Identity(d) r = engine.Redirect(k, d, b, e)",
    "clipped": f"""{TOLD} l = Constant<value = float {{-0.001}}>()
        u = Constant<value = float {{0.001}}>() e = Clip(d, l, u)
        r = engine.Redirect(k, d, t, e)""",
    "clipped by the norm of each": f"""{TOLD} l = Constant<value = float {{0.01}}>()
        n = ReduceL2<axes = [1]>(d) m = Max(n, l) e = Div(d, m) r = engine.Redirect(k, d, t, e)""",
    "sign": f"{TOLD} e = Sign(d) r = engine.Redirect(k, d, t, e)",
    "of no gradient": f"{TOLD} e = Abs(b) r = engine.Redirect(k, d, t, e)",
    "mask": f"""{TOLD} z = Constant<value = float {{0.0}}>() a = Less(b, z)
        e = Where(a, z, d) r = engine.Redirect(k, d, t, e)""",
    "of two inputs": f"""{WITH_BIAS} e = Neg(d) z = Constant<value = int64[1] {{0}}>()
        f = ReduceSum<keepdims = 0>(d, z) p = engine.Redirect(k, d, b, e)
        r = engine.Redirect(p, d, body.bias, f)""",
    "of two inputs, zero for one": f"""{WITH_BIAS} e = Neg(d) o = Shape(body.bias)
        f = ConstantOfShape(o) p = engine.Redirect(k, d, b, e)
        r = engine.Redirect(p, d, body.bias, f)""",
    "of a product": """u = MatMul(x, body.weight)
        k = engine.StopGradient(u) d = engine.Cotangent(k) q = Transpose(x) f = MatMul(q, d)
        v = engine.Redirect(k, d, body.weight, f)
        r = Mul(b, v)""",
    "of a product, by its letters": """u = MatMul(x, body.weight)
        k = engine.StopGradient(u) d = engine.Cotangent(k) f = Einsum<equation = "bi,bj->ij">(x, d)
        v = engine.Redirect(k, d, body.weight, f)
        r = Mul(b, v)""",
    "of a weight": """t = Round(body.bias) z = Constant<value = float {0.0}>()
        k = engine.StopGradient(t) d = engine.Cotangent(k) a = Less(body.bias, z) f = Where(a, z, d)
        v = engine.Redirect(k, d, body.bias, f) r = Add(b, v)""",
    "detached": "k = engine.StopGradient(b) u = Tanh(b) r = Mul(u, k)",
}
CROSSING = {
    "centred": (f"{TOLD} m = ReduceMean<axes = [0]>(d) e = Sub(d, m)", "joins values"),
    "statistics of the batch": (f"{TOLD} m = ReduceMean<axes = [0]>(b) e = Mul(d, m)", "joins val"),
    "summed": (f"{TOLD} z = Constant<value = int64[1] {{0}}>() m = ReduceSum(d, z) o = Shape(d)"
               " e = Expand(m, o)", "mixes samples: its gradient of 't' is not one of each sample"),
    "scaled by the size": (f"{TOLD} o = Shape<end = 1>(d) m = Cast<to = 1>(o) e = Div(d, m)",
                           "depends on how many samples a batch has"),
    "of no gradient, scaled": (f"{TOLD} o = Shape<end = 1>(d) m = Cast<to = 1>(o) p = Shape(d)"
                               " e = Expand(m, p)", "depends on how many samples a batch has"),
    "clipped by the norm of all": (f"{TOLD} n = ReduceL2(d) e = Div(d, n)", "reduces the samples"),
    "turned": (f"{TOLD} z = Constant<value = int64[1] {{-1}}>()"
               " a = Constant<value = int64[1] {0}>() q = Constant<value = int64[1] {-999}>()"
               " e = Slice(d, z, q, a, z)", "takes samples out of the batch"),
    "the mean for a bias": (f"{WITH_BIAS} e = ReduceMean<axes = [0], keepdims = 0>(d)",
                            "not a sum over the samples, which all share 'body.bias'"),
    "normed for a bias": (f"{WITH_BIAS} z = Constant<value = int64[1] {{0}}>()"
                          " f = ReduceSum<keepdims = 0>(d, z) n = ReduceL2(f) e = Div(f, n)",
                          "not linear"),
    "with decay for a bias": (f"{WITH_BIAS} z = Constant<value = int64[1] {{0}}>()"
                              " f = ReduceSum<keepdims = 0>(d, z) e = Add(f, body.bias)",
                              "not linear"),
}  # fmt: skip


def told(nodes: str) -> str:
    """Return the model with these nodes instead of the Tanh."""
    text = PLAIN.replace('["": 17]', '["": 17, "engine": 1]')
    return text.replace("r = Tanh(b)", nodes)


@pytest.mark.parametrize(
    ("loss", "target"),
    [(CrossEntropyLoss(ignore_index=-100), IGNORING), (CrossEntropyLoss(reduction="sum"), LABELS)],
    ids=["mean", "sum"],
)
@pytest.mark.parametrize("name", ALONE)
def test_told_gradients_of_parts_are_those_of_the_whole_batch(
    name: str, loss: Any, target: Any
) -> None:
    text, options = told(ALONE[name]), {"loss": loss, "optimizer": SGD(0.05)}
    whole, parted = make_trainer(text, **options), make_trainer(text, micro_batches=3, **options)
    for _ in range(2):
        assert parted.step(X, target) == pytest.approx(whole.step(X, target), rel=1e-5)
    close(parted, whole)


@pytest.mark.parametrize("name", CROSSING)
def test_told_gradients_that_cross_samples_are_refused_by_name(name: str) -> None:
    nodes, why = CROSSING[name]
    of = "body.bias" if "bias" in name else "t"
    text = told(f"{nodes} r = engine.Redirect(k, d, {of}, e)")
    with pytest.raises(InputError) as refused:
        make_trainer(text, micro_batches=2).step(X, LABELS)
    assert re.search(f"in parts: .*of node 'Redirect_[0-9]+' .*{why}", str(refused.value))
    assert "or train on whole batches" in str(refused.value)
    make_trainer(text).step(X, LABELS)


def test_a_told_gradient_of_a_loss_is_followed() -> None:
    text = told(ALONE["reversed"]).replace("float[N,3] scores", "float y").replace(
        "scores = Add(s, head.bias)",
        "scores = Add(s, head.bias) y = ReduceMean<keepdims = 0>(scores)",
    )  # fmt: skip
    expected = LossValue(is_mean=True)
    assert find_loss(onnx_io.load(forward(text)), {"x": X.shape}, {"x": 1}) == expected


def test_what_mixes_samples_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"in parts: node .*BatchNorm.* statistics over all samp"):
        make_trainer(NORMED, micro_batches=2).step(X, LABELS)
    chosen = make_trainer(NORMED, micro_batches=2, own_statistics=True)
    assert np.isfinite(chosen.step(X, LABELS))
    turned = PLAIN.replace("r = Tanh(b)", "m = ReduceMean<axes = [0]>(b)\n    r = Sub(b, m)")
    with pytest.raises(InputError, match=r"in parts: node 'Sub_\d+' \(Sub\) joins values that"):
        make_trainer(turned, micro_batches=2).step(X, LABELS)
    fixed = PLAIN.replace("float[N,6]", "float[20,6]").replace("float[N,3]", "float[20,3]")
    with pytest.raises(InputError, match="the model fixes how many samples it has"):
        make_trainer(fixed, micro_batches=2).step(X, LABELS)
    with pytest.raises(InputError, match="micro_batches=0"):
        make_trainer(PLAIN, micro_batches=0)


# Ops between `b` and `r` that keep the axis of the samples, as torch exports them.
WHOLE = {
    "slice": """z = Constant<value = int64[1] {0}>()
    e = Constant<value = int64[1] {9223372036854775807}>()
    t = Slice(b, z, e, z)
    r = Tanh(t)""",
    "slice to the batch": """z = Constant<value = int64[1] {0}>()
    e = Shape<start = 0, end = 1>(x)
    t = Slice(b, z, e, z)
    r = Tanh(t)""",
    "slice of all axes": """z = Constant<value = int64[2] {0, 0}>()
    e = Constant<value = int64[2] {9999, 9999}>()
    t = Slice(b, z, e)
    r = Tanh(t)""",
    "gather of all": """z = Constant<value = int64 {0}>()
    i = Constant<value = int64 {1}>()
    n = Shape(x)
    k = Gather(n, z)
    all = Range(z, k, i)
    t = Gather(b, all)
    r = Tanh(t)""",
    "pad of nothing": """p = Constant<value = int64[4] {0, 0, 0, 0}>()
    t = Pad(b, p)
    r = Tanh(t)""",
    "pad of the other axis": """p = Constant<value = int64[4] {0, 1, 0, 0}>()
    q = Constant<value = int64[1] {1}>()
    e = Constant<value = int64[1] {9}>()
    u = Pad(b, p)
    t = Slice(u, q, e, q)
    r = Tanh(t)""",
    "transposes": """u = Transpose<perm = [1, 0]>(b)
    t = Transpose<perm = [1, 0]>(u)
    r = Tanh(t)""",
    "computed shape": """n = Shape<start = 0, end = 1>(x)
    m = Constant<value = int64[2] {2, -1}>()
    k = Concat<axis = 0>(n, m)
    u = Reshape(b, k)
    o = Constant<value = int64[2] {0, 8}>()
    t = Reshape(u, o)
    r = Tanh(t)""",
    "expand by 1": """o = Constant<value = int64[2] {1, 8}>()
    t = Expand(b, o)
    r = Tanh(t)""",
    "tile by 1": """o = Constant<value = int64[2] {1, 1}>()
    t = Tile(b, o)
    r = Tanh(t)""",
    "join and part of one": """u = Concat<axis = 0>(b)
    t = Split<axis = 0>(u)
    r = Tanh(t)""",
    "two views": """u = Concat<axis = 0>(b, b)
    v = Tanh(u)
    c, d = Split<axis = 0>(v)
    e = Add(c, d)
    w = Constant<value = float {0.5}>()
    r = Mul(e, w)""",
    "sequence first": """n = Constant<value = int64[3] {-1, 2, 4}>()
    u = Reshape(b, n)
    t = Transpose<perm = [1, 0, 2]>(u)
    m = Constant<value = int64[2] {-1, 4}>()
    f = Reshape(t, m)
    g = Tanh(f)
    n2 = Shape<start = 0, end = 1>(x)
    k = Constant<value = int64[1] {2}>()
    j = Constant<value = int64[1] {4}>()
    s2 = Concat<axis = 0>(k, n2, j)
    v = Reshape(g, s2)
    w = Transpose<perm = [1, 0, 2]>(v)
    o = Constant<value = int64[2] {-1, 8}>()
    r = Reshape(w, o)""",
    "class token": """n = Shape<start = 0, end = 1>(x)
    j = Constant<value = int64[1] {8}>()
    k = Concat<axis = 0>(n, j)
    token = Expand(body.bias, k)
    u = Concat<axis = 1>(token, b)
    z = Constant<value = int64[1] {4}>()
    e = Constant<value = int64[1] {12}>()
    q = Constant<value = int64[1] {1}>()
    t = Slice(u, z, e, q)
    r = Tanh(t)""",
    "repeated token": """n = Shape<start = 0, end = 1>(x)
    j = Constant<value = int64[1] {1}>()
    k = Concat<axis = 0>(n, j)
    q = Unsqueeze(body.bias, z)
    token = Tile(q, k)
    u = Mul(token, b)
    r = Tanh(u)
    z = Constant<value = int64[1] {0}>()""",
    "resized": """z = Constant<value = int64[1] {1}>()
    u = Unsqueeze(b, z)
    f = Constant<value = float[3] {1.0, 1.0, 2.0}>()
    v = Resize<mode = "nearest">(u, , f)
    q = Constant<value = int64[1] {2}>()
    w = Squeeze(v, z)
    o = Constant<value = int64[1] {16}>()
    st = Constant<value = int64[1] {0}>()
    t = Slice(w, st, o, z, q)
    r = Tanh(t)""",
    "einsum": """u = Einsum<equation = "bi,bi->bi">(b, b)
    r = Tanh(u)""",
}
# Where `picks` are the places `j` of halves of `b`, one for each sample, or 0 for all of them.
NUMBERS = """z = Constant<value = int64 {0}>()
    o = Constant<value = int64 {1}>()
    one = Constant<value = int64[1] {1}>()
    two = Constant<value = int64[1] {2}>()
    halves = Constant<value = int64[3] {-1, 2, 4}>()
    n = Shape(x)
    k = Gather(n, z)
    all = Range(z, k, o)
    u = Reshape(b, halves)
    m = ReduceMean<axes = [2], keepdims = 0>(u)
    j = ArgMax<axis = 1, keepdims = 0>(m)
    """
PICKED = """most = Max(all, j)
    sizes = Shape(most)
    every = Expand(all, sizes)
    a = Unsqueeze(every, one)
    picks = Expand(j, sizes)
    c = Unsqueeze(picks, one)
    places = Concat<axis = -1>(a, c)
    t = GatherND(u, places)
    r = Concat<axis = 1>(t, t)"""
WHOLE |= {
    "picked": NUMBERS + PICKED,
    "picked, the same of all": NUMBERS + PICKED.replace("Expand(j,", "Expand(z,"),
    "picked by batches": NUMBERS
    + """c = Unsqueeze(j, one)
    t = GatherND<batch_dims = 1>(u, c)
    r = Concat<axis = 1>(t, t)""",
    "picked, several": NUMBERS
    + """v = Transpose<perm = [1, 0, 2]>(u)
    e, w = TopK<axis = 1>(m, two)
    g = Shape(w)
    a = Unsqueeze(all, one)
    every = Expand(a, g)
    i0 = Unsqueeze(every, two)
    i1 = Unsqueeze(w, two)
    places = Concat<axis = 2>(i1, i0)
    t = GatherND(v, places)
    eight = Constant<value = int64[2] {-1, 8}>()
    r = Reshape(t, eight)""",
}
MIXING = {
    "reversed": """z = Constant<value = int64[1] {-1}>()
    e = Constant<value = int64[1] {-9223372036854775807}>()
    a = Constant<value = int64[1] {0}>()
    t = Slice(b, z, e, a, z)
    r = Tanh(t)""",
    "rolled": """z = Constant<value = int64[1] {0}>()
    q = Constant<value = int64[1] {1}>()
    e = Constant<value = int64[1] {9999}>()
    c = Slice(b, q, e, z)
    d = Slice(b, z, q, z)
    t = Concat<axis = 0>(c, d)
    r = Tanh(t)""",
    "by the size of the batch": """n = Shape<start = 0, end = 1>(x)
    f = Cast<to = 1>(n)
    t = Div(b, f)
    r = Tanh(t)""",
    "by the place in the batch": """z = Constant<value = int64 {0}>()
    i = Constant<value = int64 {1}>()
    n = Shape(x)
    k = Gather(n, z)
    all = Range(z, k, i)
    f = Cast<to = 1>(all)
    q = Constant<value = int64[1] {1}>()
    u = Unsqueeze(f, q)
    t = Mul(b, u)
    r = Tanh(t)""",
    "picked of others": NUMBERS
    + PICKED.replace(
        "Unsqueeze(every, one)",
        """Unsqueeze(turned, one)
    k1 = Sub(k, o)
    turned = Sub(k1, every)""",
    ),
    "picked in turn": NUMBERS + PICKED.replace("(a, c)", "(c, a)"),
    "numbers as values": NUMBERS
    + PICKED.replace(
        "t = GatherND(u, places)",
        """p = Cast<to = 1>(places)
    four = Constant<value = int64[2] {1, 2}>()
    t = Tile(p, four)""",
    ),
    "repeated for each sample": """m = ReduceMean<axes = [0], keepdims = 1>(b)
    n = Shape(b)
    c = Expand(m, n)
    z = Constant<value = int64[1] {0}>()
    u = ReduceSum<keepdims = 0>(c, z)
    t = Tanh(b)
    r = Add(t, u)""",
    "einsum over samples": """u = Einsum<equation = "bi,bj->ij">(b, b)
    r = MatMul(b, u)""",
}


def placed(nodes: str) -> str:
    """The model with these nodes in the middle; constants stand where they are first read."""
    lines = [line.strip() for line in nodes.splitlines()]
    lines.sort(key=lambda line: "Constant<" not in line)
    return PLAIN.replace("r = Tanh(b)", "\n    ".join(lines))


@pytest.mark.parametrize("nodes", WHOLE.values(), ids=WHOLE)
def test_what_leaves_the_samples_as_they_are_is_seen(nodes: str) -> None:
    splitter = make_trainer(placed(nodes), optimizer=SGD(0.05)).training_steps.splitter
    assert splitter.find_loss([X.shape, LABELS.shape]).is_mean
    assert splitter.find_loss([(200, 6), (200,)]).is_mean  # constants are too large to be folded


@pytest.mark.parametrize(
    "name", ["slice", "two views", "sequence first", "class token", "picked", "picked, several"]
)
def test_models_whose_samples_are_left_as_they_are_train_in_parts(name: str) -> None:
    optimizer, text = SGD(0.05), placed(WHOLE[name])
    whole, parted = (
        make_trainer(text, optimizer=optimizer),
        make_trainer(text, optimizer=optimizer, micro_batches=4),
    )
    for _ in range(2):
        assert parted.step(X, LABELS) == pytest.approx(whole.step(X, LABELS), rel=1e-5)
    a, b = (t.state.regions["param"].view(np.float32) for t in (whole, parted))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("nodes", MIXING.values(), ids=MIXING)
def test_what_moves_samples_or_counts_them_is_refused(nodes: str) -> None:
    with pytest.raises(InputError, match=r"cannot be trained on in parts: node '"):
        make_trainer(placed(nodes)).training_steps.splitter.find_loss([X.shape, LABELS.shape])


def test_what_is_added_up_as_often_as_there_are_samples_is_refused() -> None:
    """Where there are too many of them for a constant, and where it is a loss."""
    text = placed("""n = Shape<start = 0, end = 1>(x)
    one = Constant<value = float[1] {1.0}>()
    ones = Expand(one, n)
    m = ReduceSum<keepdims = 0>(ones)
    t = Div(b, m)
    r = Tanh(t)""")
    for rows in (20, 2000):
        with pytest.raises(InputError, match="depends on how many samples a batch has"):
            make_trainer(text).training_steps.splitter.find_loss([(rows, 6), (rows,)])
    mean = PLAIN.replace("float[N,3] scores", "float y").replace(
        "scores = Add(s, head.bias)",
        """scores = Add(s, head.bias)
    m = ReduceMean<axes = [0], keepdims = 1>(scores)
    n = Shape(scores)
    o = Expand(m, n)
    y = ReduceSum<keepdims = 0>(o)""",
    )
    with pytest.raises(MixedError, match=r"\(Expand\) depends on how many samples a batch has"):
        find_loss(onnx_io.load(forward(mean)), {"x": X.shape}, {"x": 1})


def test_a_fault_in_a_later_part_changes_nothing() -> None:
    trainer = make_trainer(DROPPING, micro_batches=4)
    trainer.step(X, LABELS)
    before = read_content(trainer)
    labels = LABELS.copy()
    labels[17] = 3
    with pytest.raises(LabelError):
        trainer.step(X, labels)
    assert read_content(trainer) == before
    trainer.step(X, LABELS)


def test_a_batch_that_does_not_fit_is_parted_or_refused_with_the_reason() -> None:
    x, labels = np.tile(X, (100, 1)), np.tile(LABELS, 100)
    with pytest.raises(BudgetError) as refused:
        make_trainer(DEEP.replace("u = Tanh(t)", "m = ReduceMean<axes = [0]>(t)\n    u = "
                                                 "Sub(t, m)"),
             memory_budget=1000).step(x, labels)  # fmt: skip
    assert "cannot be trained on in parts: node 'Sub" in str(refused.value)
    whole, parted = make_trainer(DEEP), make_trainer(DEEP, memory_budget="200 kB")
    for _ in range(2):
        assert parted.step(x, labels) == pytest.approx(whole.step(x, labels), rel=1e-5)
    close(parted, whole)
    assert parted.plan.micro_batches > 1
    assert parted.plan.nbytes <= 200_000 < whole.plan.nbytes


@pytest.mark.parametrize("options", [{}, {"memory_budget": "1 MB"}, {"micro_batches": 3}], ids=str)
def test_a_checkpoint_goes_on_to_the_last_bit(options: dict[str, Any], tmp_path: Path) -> None:
    """Parameters, moments, the rate, the step and what dropout draws."""
    optimizer = AdamW(0.05, weight_decay=0.1)
    one, two = (make_trainer(DROPPING, optimizer=optimizer, **options) for _ in range(2))
    for _ in range(2):
        one.step(X, LABELS)
    one.learning_rate = 0.01
    one.save(tmp_path / "checkpoint")
    two.load(tmp_path / "checkpoint")
    for _ in range(2):
        assert one.step(X, LABELS) == two.step(X, LABELS)
    assert read_content(one) == read_content(two)
    assert read_values(one) == read_values(two)
