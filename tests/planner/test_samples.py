"""Forward passes that go through wide layers sample by sample: which do, and that they are the
same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest

from bench.programs import load
from engine import artifacts
from engine.api import CheckpointState, Module
from engine.graphs.io import onnx_io
from engine.graphs.planner import sample_groups, split
from engine.graphs.planner.planner import make_plan
from engine.inference import Session
from engine.kernels.machine.target import detect_host
from engine.plan.plan import Plan
from engine.quantization import quantize
from tests.support.blocks import list_groups, make_model

# An inverted residual, 3 MiB wide for four samples, and a convolution whose weights are more
# than a sample.
BLOCK = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,16,56,56] x, float[64,16,1,1] w1, float[64,1,3,3] w2, float[16,64,1,1] w3,
   float[512,16,7,7] w4) => (float[N,512,8,8] y) {
    a = Conv(x, w1)
    at = Relu(a)
    b = Conv<group = 64, pads = [1, 1, 1, 1]>(at, w2)
    bt = Relu(b)
    c = Conv(bt, w3)
    d = Add(c, x)
    y = Conv<strides = [7, 7]>(d, w4)
}"""


# The same with a batch norm, then a layer that is trained.
HEAD = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,16,56,56] x, float[64,16,1,1] w1, float[64] s, float[64] b, float[64] m, float[64] v,
   float[64,1,3,3] w2, float[16,64,1,1] w3, float[10,16] w4) => (float[N,10] y) {
    a = Conv(x, w1)
    an = BatchNormalization(a, s, b, m, v)
    at = Relu(an)
    b1 = Conv<group = 64, pads = [1, 1, 1, 1]>(at, w2)
    bt = Relu(b1)
    c = Conv(bt, w3)
    d = Add(c, x)
    p = GlobalAveragePool(d)
    f = Flatten(p)
    y = Gemm<transB = 1>(f, w4)
}"""


def make_block_plan(batch: int, threads: int, answers: bool = True) -> Plan:
    graph = onnx_io.load(make_model(BLOCK))
    shapes = {"x": (batch, 16, 56, 56)}
    return make_plan(graph, shapes, target=detect_host(), threads=threads, answers=answers)


@contextmanager
def taking_whole_batches() -> Iterator[None]:
    """Make plans without samples meanwhile."""
    with mock.patch.object(sample_groups.SampleRuns, "take", return_value=0.0):
        yield


def list_sources(plan: Plan) -> list[tuple[int, list[str]]]:
    """The number of tiles of each group, and its nodes."""
    return [
        (plan.steps[n].tiles, [step.source for step in steps]) for n, steps in list_groups(plan)
    ]


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_wide_layers_run_sample_by_sample(threads: int, answers: bool) -> None:
    """From the copy of the narrow input to the narrow sum; the layer of many weights does not.

    Plans that pack weights in each run, as trimmed builds do, go through the same layers.
    """
    ((tiles, sources),) = list_sources(make_block_plan(4, threads, answers))
    assert tiles == 4
    assert sources == ["x/ToChannelsLast", "FusedConv", "FusedConv", "Conv", "Map"]


def test_they_take_less_memory() -> None:
    plan = make_block_plan(4, 1, answers=False)
    with taking_whole_batches():
        plain = make_block_plan(4, 1, answers=False)
    assert plan.compute_region_bytes("work") < plain.compute_region_bytes("work") / 2


@pytest.mark.parametrize(("batch", "threads"), [(1, 1), (3, 2), (1, 2)])
def test_samples_that_threads_cannot_share_are_not_apart(batch: int, threads: int) -> None:
    groups = list_sources(make_block_plan(batch, threads))
    assert all(tiles > batch for tiles, _ in groups)


@pytest.mark.parametrize("threads", [1, 2])
def test_answers_have_the_same_bits(threads: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 16, 56, 56), np.float32)
    session, plain = (Session(make_model(BLOCK), threads=threads) for _ in range(2))
    with taking_whole_batches():
        whole = plain.run(None, {"x": x})[0]
    assert np.array_equal(session.run(None, {"x": x})[0], whole)
    for n in range(4):
        assert np.array_equal(session.run(None, {"x": x[n : n + 1]})[0][0], whole[n])


def test_layers_in_integers_go_sample_by_sample() -> None:
    """Their values have a quarter of the bytes, so that more samples make a wide value."""
    x = np.random.default_rng(0).standard_normal((8, 16, 56, 56), np.float32)
    graph = quantize(make_model(BLOCK).SerializeToString(), x).graph
    feed = {"x": x}
    program = load(graph, 1, feed)
    with taking_whole_batches():
        plain = load(graph, 1, feed)
    for each in (program, plain):
        each.run()
    assert np.array_equal(program.outputs["y"], plain.outputs["y"])
    plan = program.plan
    groups = [steps for n, steps in list_groups(plan) if plan.steps[n].tiles == len(x)]
    kernels = {step.kernel.split("_u8")[0] for steps in groups for step in steps}
    assert {"integer_gemm", "integer_depthwise"} <= kernels


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A folder with artifacts of `HEAD` that train its last layer."""
    onnx.save(make_model(HEAD), tmp_path / "forward.onnx")
    artifacts.generate_artifacts(
        tmp_path / "forward.onnx",
        requires_grad=["w4"],
        frozen_params=["w1", "s", "b", "m", "v", "w2", "w3"],
        loss=artifacts.LossType.CrossEntropyLoss,
        frozen_batch_norm=True,
        artifact_directory=tmp_path,
    )
    return tmp_path


def plan_and_run(head: Path, kind: str) -> tuple[Plan, list[np.ndarray]]:
    """The plan of a step or an evaluation of four samples; the loss and the gradient."""
    state = CheckpointState.load_checkpoint(head / "checkpoint")
    module = Module(head / "training_model.onnx", state, head / "eval_model.onnx", threads=1)
    module.train() if kind == "training" else module.eval()
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((4, 16, 56, 56), np.float32), np.arange(4)
    loss = module(*batch)
    gradients = [state.regions["grad"].copy()] if kind == "training" else []
    return module.plan(*(array.shape for array in batch)), [loss, *gradients]


@pytest.mark.parametrize("kind", ["training", "eval"])
def test_frozen_layers_run_sample_by_sample(head: Path, kind: str) -> None:
    """Those below the layers that are trained, and all of an evaluation; the bits are the same."""
    plan, results = plan_and_run(head, kind)
    with taking_whole_batches():
        plain, whole = plan_and_run(head, kind)
    assert [tiles for tiles, _ in list_sources(plan)] == [4]
    assert plan.compute_region_bytes("work") < plain.compute_region_bytes("work") / 2
    assert all(np.array_equal(a, b) for a, b in zip(results, whole, strict=True))


# Planes of a picture.
PICTURE = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3,64,64] x, float[32,3,3,3] w1, float[32,1,3,3] w2, float[16,32,1,1] w3,
   float[10,16] w4) => (float[N,10] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w1)
    at = Relu(a)
    b = Conv<group = 32, pads = [1, 1, 1, 1]>(at, w2)
    bt = Relu(b)
    c = Conv(bt, w3)
    p = GlobalAveragePool(c)
    f = Flatten(p)
    y = Gemm<transB = 1>(f, w4)
}"""


def run_picture(batch: int, threads: int) -> tuple[Plan, np.ndarray]:
    """The plan of the quantised model, and its answers."""
    x = np.random.default_rng(0).standard_normal((batch, 3, 64, 64), np.float32)
    graph = quantize(make_model(PICTURE).SerializeToString(), x[:4]).graph
    program = load(graph, threads, {"x": x})
    program.run()
    return program.plan, program.outputs["y"].copy()


@pytest.mark.parametrize("threads", [1, 2])
def test_pictures_are_rounded_and_woven_sample_by_sample(threads: int) -> None:
    """Neither the integers of the whole batch nor their copy channels-last exist."""
    plan, y = run_picture(8, threads)
    first = next(steps for _, steps in list_groups(plan))
    kernels = [step.kernel.split("_u8")[0] for step in first]
    assert kernels[0].startswith("map_")
    assert kernels[1:3] == ["woven_copy", "integer_conv"]
    with taking_whole_batches():
        assert np.array_equal(run_picture(8, threads)[1], y)


# Two blocks; a sample takes 4 MiB inside, 1 MiB between them, and 256 KiB after the second.
BLOCKS = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,16,128,128] x, float[64,16,1,1] w1, float[64,1,3,3] w2, float[16,64,1,1] w3,
   float[64,16,1,1] w4, float[64,1,3,3] w5, float[16,64,1,1] w6) => (float[N,16] y) {
    a = Conv(x, w1)
    b = Conv<group = 64, pads = [1, 1, 1, 1]>(a, w2)
    c = Conv(b, w3)
    d = Conv(c, w4)
    e = Conv<group = 64, pads = [1, 1, 1, 1], strides = [2, 2]>(d, w5)
    f = Conv(e, w6)
    y = ReduceMean<axes = [2, 3], keepdims = 0>(f)
}"""


def plan_blocks(batch: int) -> Plan:
    graph, shapes = onnx_io.load(make_model(BLOCKS)), {"x": (batch, 16, 128, 128)}
    return make_plan(graph, shapes, target=detect_host(), threads=1, answers=True)


def test_segments_are_larger_where_that_lowers_the_peak() -> None:
    """The value between the blocks takes more than all others if there are many samples."""
    many = plan_blocks(32)
    with mock.patch.object(split, "REACHES", (1,)):
        usual = plan_blocks(32)
    assert many.compute_region_bytes("work") < usual.compute_region_bytes("work") / 2
    assert len(list_sources(many)) < len(list_sources(usual))


def test_larger_segments_have_the_same_bits() -> None:
    x = np.random.default_rng(0).standard_normal((8, 16, 128, 128), np.float32)
    made = []
    for reaches in ((1,), (16,)):
        with mock.patch.object(split, "REACHES", reaches):
            made.append(load(onnx_io.load(make_model(BLOCKS)), 1, {"x": x}))
        made[-1].run()
    assert len(list_sources(made[0].plan)) > len(list_sources(made[1].plan))
    assert np.array_equal(made[0].outputs["y"], made[1].outputs["y"])


AVERAGE = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,64,16,16] x, float[512,64,1,1] w) => (float[N,512] y) {
    a = Conv(x, w)
    at = Relu(a)
    y = ReduceMean<axes = [2, 3], keepdims = 0>(at)
}"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_mean_over_pixels_is_computed_with_the_pixels(threads: int) -> None:
    """The wide value that it reads never exists as a whole."""
    x = np.random.default_rng(0).standard_normal((16, 64, 16, 16), np.float32)
    model = make_model(AVERAGE)
    session, target = Session(model, threads=threads), detect_host()
    plan = make_plan(
        onnx_io.load(model), {"x": x.shape}, target=target, threads=threads, answers=True
    )
    assert plan.compute_region_bytes("work") < 16 * 512 * 16 * 16 * 4 / 2
    assert any("reduce_cols" in step.kernel for _, steps in list_groups(plan) for step in steps)
    ones = np.concatenate([session.run(None, {"x": x[n : n + 1]})[0] for n in range(len(x))])
    assert np.array_equal(session.run(None, {"x": x})[0], ones)
