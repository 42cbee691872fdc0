"""Quantised weights stay integers: no plan holds them as floats, forward or backward."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from engine.api import CheckpointState, Module
from engine.artifacts import LossType, generate_artifacts
from engine.errors import DTypeError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.graphs.offline.packed_weights import write_product_in_floats
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.training.inference import Session
from tests.support.harness import get_gradient, run

PASS = "read quantised"
N, K = 64, 48  # of the weights
RNG = np.random.default_rng(0)


def model(nodes: str, x: str, **constants: np.ndarray) -> onnx.ModelProto:
    """y of x and of constants, which are what the nodes read besides."""
    proto = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g ({x} x) => (float[A,B] y) {{{nodes}}}"""
    )
    made = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    proto.graph.initializer.extend(made)
    return proto


def integers(*shape: int, dtype: str = "int8") -> np.ndarray:
    return RNG.integers(-128 if dtype == "int8" else 0, 128, shape).astype(dtype)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def scale(*shape: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.05, shape).astype(np.float32)


READERS: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "matmul": ("DequantizeLinear(q, s) y = MatMul(x, d)", {"s": scale()}),
    "columns": ("DequantizeLinear(q, s, z) y = MatMul(x, d)", {"s": scale(K), "z": integers(K)}),
    "rows": ("DequantizeLinear<axis=0>(q, s) y = Gemm<transB=1>(x, d, b)",
             {"q": integers(K, N), "s": scale(K), "b": scale(K)}),
    "blocks": ("DequantizeLinear<axis=0, block_size=16>(q, s) "
               "y = Gemm<alpha=0.5, beta=2.0>(x, d, b)",
               {"s": scale(N // 16, K), "b": scale(1)}),
    "transposed": ("DequantizeLinear<axis=1, block_size=32>(q, s) "
                   "t = Transpose(d) y = MatMul(x, t)",
                   {"q": integers(K, N, dtype="uint8"), "s": scale(K, N // 32)}),
    "fused": ("DequantizeLinear(q, s) y = com.microsoft.FusedMatMul<alpha=2.0>(x, d)",
              {"s": scale(1)}),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_products_read_the_integers(reader: str) -> None:
    nodes, values = READERS[reader]
    graph = onnx_io.load(model(f"d = {nodes}", f"float[5,{N}]", **{"q": integers(N, K)} | values))
    fed = {"x": normal(5, N)}
    wanted = run(graph, fed, without=(PASS,))["y"]
    np.testing.assert_allclose(run(graph, fed)["y"], wanted, rtol=1e-5, atol=1e-5)
    plan = make_plan(graph, {}, target=detect_host(), threads=1)
    assert all("quantised" in step.kernel or "map" in step.kernel for step in plan.steps)
    assert not [b for b in plan.buffers if b.shape in ((N, K), (K, N)) and b.dtype == "f32"]


def test_rows_of_a_table_are_taken_as_integers() -> None:
    nodes = "d = DequantizeLinear<axis=0>(q, s) y = Gather(d, x)"
    graph = onnx_io.load(model(nodes, "int64[5]", q=integers(N, K), s=scale(N)))
    fed = {"x": np.array([0, -1, 7, 63, 7])}
    wanted = run(graph, fed, without=(PASS,))["y"]
    np.testing.assert_array_equal(run(graph, fed)["y"], wanted)
    plan = make_plan(graph, {}, target=detect_host(), threads=1)
    assert [step.kernel for step in plan.steps] == ["quantised_rows_f32"]


def test_activations_and_other_readers_stay_as_they_are() -> None:
    """Results of quantising nodes are not weights; values that others read as floats become
    floats.
    """
    nodes = """a = QuantizeLinear(x, s) b = DequantizeLinear(a, s) d = DequantizeLinear(q, s)
    e = MatMul(d, b) y = Relu(e)"""
    graph = onnx_io.load(model(nodes, f"float[{K},5]", q=integers(N, K, dtype="uint8"), s=scale()))
    plan = make_plan(graph, {}, target=detect_host(), threads=1)
    assert not [step.kernel for step in plan.steps if "quantised" in step.kernel]


def artifacts(
    folder: Path, first: str, frozen: str, values: dict[str, np.ndarray], trained: str = "w"
) -> Module:
    """A training module of h = first(x, w); y = frozen(h)."""
    shape = "batch, 3, 4, 4" if "Conv" in first else "batch, 3"
    out = "A, B, C, D" if "Conv" in first else "A, B"
    proto = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[{shape}] x) => (float[{out}] y) {{ {first} {frozen} }}"""
    )
    made = [numpy_helper.from_array(a, n) for n, a in values.items()]
    proto.graph.initializer.extend(made)
    generate_artifacts(
        proto, requires_grad=[trained], loss=LossType.MSELoss, artifact_directory=folder
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return Module(folder / "training_model.onnx", state, threads=1)


def floats(q: np.ndarray, s: np.ndarray) -> np.ndarray:
    return np.asarray(q.astype(np.float64) * s)


NBITS = "com.microsoft.MatMulNBits<N=32, K=48, bits=8, block_size=16>(h, q, s, , , b)"
LEVELS, STEPS = integers(32, 48, dtype="uint8"), scale(32, 3)
FROZEN: dict[str, tuple[str, str, dict[str, np.ndarray]]] = {
    "qdq": ("h = MatMul(x, w)", "d = DequantizeLinear(q, s) y = MatMul(h, d)",
            {"w": normal(3, 48), "q": integers(48, 32), "s": scale(32)}),
    "nbits": ("h = MatMul(x, w)", f"y = {NBITS}",
              {"w": normal(3, 48), "q": LEVELS.reshape(32, 3, 16), "s": STEPS, "b": scale(32)}),
    "conv": ("h = Conv(x, w)", "d = DequantizeLinear<axis=0>(q, s) y = Conv(h, d)",
             {"w": normal(48, 3, 1, 1), "q": integers(32, 48, 1, 1), "s": scale(32)}),
}  # fmt: skip


@pytest.mark.parametrize("kind", FROZEN)
def test_gradients_flow_through_integers(tmp_path: Path, kind: str) -> None:
    """The gradient equals the same weights' as floats; nothing of their size is a float."""
    first, frozen, values = FROZEN[kind]
    module = artifacts(tmp_path, first, frozen, values)
    w, q, s = (values[n] for n in ("w", "q", "s"))
    if kind == "nbits":
        right = floats(LEVELS - 128.0, STEPS.repeat(16, 1)).T
    else:
        right = floats(q.reshape(q.shape[:2]), s[:, None] if kind == "conv" else s)
        right = right.T if kind == "conv" else right
    x = normal(*((4, 3, 4, 4) if kind == "conv" else (4, 3)))
    flat = x.transpose(0, 2, 3, 1).reshape(-1, 3) if kind == "conv" else x
    left = w.reshape(48, 3).T if kind == "conv" else w
    y = flat @ left @ right + values.get("b", 0.0)
    target = np.zeros((4, 32, 4, 4) if kind == "conv" else (4, 32), np.float32)
    loss = module(x, target)
    np.testing.assert_allclose(loss, np.mean(y**2), rtol=1e-5)
    wanted = flat.T @ (2 * y / y.size) @ right.T
    gradient = get_gradient(module.session.state, "w")
    np.testing.assert_allclose(
        gradient, wanted.T.reshape(w.shape) if kind == "conv" else wanted, rtol=2e-5, atol=1e-6
    )
    plan = module.session.training.plan({"x": x.shape, "target": target.shape})
    assert sum(step.kernel.startswith("quantised_") for step in plan.steps) == 2
    assert not [b for b in plan.buffers if sorted(b.shape)[-2:] == [32, 48] and b.dtype == "f32"]


def test_packed_integers_of_2_bits_have_no_gradient(tmp_path: Path) -> None:
    """Those of 4 and 8 are trained in place."""
    first, frozen, values = FROZEN["nbits"]
    frozen = frozen.replace("bits=8", "bits=2")
    values = {**values, "q": values["q"][..., :4]}
    with pytest.raises(DTypeError, match=r"'q' is u8.* read by MatMulNBits"):
        artifacts(tmp_path, first, frozen, values, trained="q")


@pytest.mark.parametrize("size", [48, 40], ids=["whole blocks", "K"])
def test_an_order_of_rows_that_says_what_blocks_say_changes_nothing(size: int) -> None:
    """The last block may end after K; the node is also read as a product of floats."""
    nodes = "y = com.microsoft.MatMulNBits<N=4, K=40, block_size=16>(x, q, s, {})"
    values = {"q": integers(4, 3, 8).view(np.uint8), "s": scale(12)}
    groups = (np.arange(size) // 16).astype(np.int32)
    x = {"x": normal(2, 40)}
    plain = model(nodes.format(""), "float[2,40]", **values)
    ordered = model(nodes.format(", g"), "float[2,40]", **values, g=groups)
    np.testing.assert_array_equal(
        Session(ordered, threads=1).run(None, x)[0], Session(plain, threads=1).run(None, x)[0]
    )
    graph = onnx_io.load(ordered)
    assert write_product_in_floats(graph, graph.nodes[0])


def test_another_order_of_rows_is_refused() -> None:
    nodes = "y = com.microsoft.MatMulNBits<N=4, K=32, block_size=16>(x, q, s, , g)"
    values = {"q": np.zeros((4, 2, 8), np.uint8), "s": scale(8), "g": np.zeros(32, np.int32)}
    with pytest.raises(
        UnsupportedOpError, match=r"g_idx\) gives rows another group than their block"
    ):
        make_plan(
            onnx_io.load(model(nodes, "float[2,32]", **values)), {}, target=detect_host(), threads=1
        )


def make_lookup(given: Mapping[str, Any], axis: int = 1) -> onnx.ModelProto:
    """Return a model that looks rows up in a table with blocks of 16 along an axis.

    given: `q`, the table; `s`, its scales; `z`, its zero points, which may be absent.
    """
    names = ", z" if "z" in given else ""
    options = f"block_size=16, quantize_axis={axis}"
    proto = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (int64[A] x) => (float[A,B] y) {{
            y = com.microsoft.GatherBlockQuantized<{options}>(q, x, s{names})
        }}"""
    )
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in given.items())
    return proto


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("columns", [32, 48])
def test_rows_of_tables_of_4_bits(kind: str, has_zeros: bool, columns: int) -> None:
    """As onnxruntime's quantiser writes embeddings; 48 columns are an odd number of blocks."""
    import ml_dtypes
    import onnxruntime

    least = -8 if kind == "int4" else 0
    table, zeros = (
        RNG.integers(least, least + 16, (20, n)).astype(np.int8) for n in (columns, columns // 16)
    )
    dtype = np.dtype(getattr(ml_dtypes, kind))
    given = {"q": table.astype(dtype), "s": scale(20, columns // 16)}
    if has_zeros:
        given["z"] = zeros.astype(dtype)
    proto = make_lookup(given)
    graph, x = onnx_io.load(proto), np.array([3, 0, 19, 3])
    peer = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wanted = np.asarray(peer.run(None, {"x": x})[0])
    np.testing.assert_array_equal(run(graph, {"x": x}, threads=1)["y"], wanted)
    # Two elements take a byte, in plans and in files that are written again.
    assert graph.initializers[graph.nodes[0].inputs[0]].nbytes == 10 * columns
    again = onnxruntime.InferenceSession(
        onnx_io.to_bytes(graph), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_array_equal(np.asarray(again.run(None, {"x": x})[0]), wanted)


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_a_table_of_4_bits_has_blocks_across_its_rows(kind: str, has_zeros: bool) -> None:
    """Each column has a scale for 16 rows, and one for the 8 rows at the end."""
    import ml_dtypes
    import onnxruntime

    least = -8 if kind == "int4" else 0
    table, zeros = (RNG.integers(least, least + 16, (n, 20)).astype(np.int8) for n in (40, 3))
    dtype = np.dtype(getattr(ml_dtypes, kind))
    given = {"q": table.astype(dtype), "s": scale(3, 20)}
    if has_zeros:
        given["z"] = zeros.astype(dtype)
    proto = make_lookup(given, axis=0)
    graph, x = onnx_io.load(proto), np.array([3, 0, 39, 17, 3])
    peers = (
        onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        # As it was, and as it is written again.
        for data in (proto.SerializeToString(), onnx_io.to_bytes(graph))
    )
    made = run(graph, {"x": x}, threads=1)["y"]
    for peer in peers:
        np.testing.assert_array_equal(made, np.asarray(peer.run(None, {"x": x})[0]))
    # Two elements take a byte, also after they were written and read again.
    again = onnx_io.load(onnx_io.to_bytes(graph))
    for each in (graph, again):
        assert each.initializers[each.nodes[0].inputs[0]].nbytes == 40 * 10
    np.testing.assert_array_equal(run(again, {"x": x}, threads=1)["y"], made)


def test_a_table_of_4_bits_whose_rows_end_inside_a_byte_is_refused() -> None:
    import ml_dtypes

    proto = make_lookup({"q": np.zeros((5, 17), ml_dtypes.int4), "s": scale(5, 2)})
    with pytest.raises(DTypeError, match=r"reads 'q' with 4 bits .*\[5, 17\].* an even number"):
        onnx_io.load(proto)
