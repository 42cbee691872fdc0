"""Answers that go through wide layers sample by sample: which do, and that they are the same."""

from __future__ import annotations

import numpy as np
import pytest

from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.inference import Session
from engine.kernels.machine.target import detect_host
from engine.plan.plan import Plan
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


def make_block_plan(batch: int, threads: int, answers: bool = True) -> Plan:
    graph = onnx_io.load(make_model(BLOCK))
    shapes = {"x": (batch, 16, 56, 56)}
    return make_plan(graph, shapes, target=detect_host(), threads=threads, answers=answers)


def list_sources(plan: Plan) -> list[tuple[int, list[str]]]:
    """The number of tiles of each group, and its nodes."""
    return [
        (plan.steps[n].tiles, [step.source for step in steps]) for n, steps in list_groups(plan)
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_wide_layers_run_sample_by_sample(threads: int) -> None:
    """From the narrow input to the narrow sum; the layer of many weights does not."""
    ((tiles, sources),) = list_sources(make_block_plan(4, threads))
    assert tiles == 4
    assert sources == ["FusedConv", "FusedConv", "Conv", "Map"]


def test_they_take_less_memory() -> None:
    plain, plan = (make_block_plan(4, 1, answers) for answers in (False, True))
    assert plan.compute_region_bytes("work") < plain.compute_region_bytes("work") / 2


@pytest.mark.parametrize(("batch", "threads"), [(1, 1), (3, 2), (1, 2)])
def test_samples_that_threads_cannot_share_are_not_apart(batch: int, threads: int) -> None:
    groups = list_sources(make_block_plan(batch, threads))
    assert all(tiles > batch for tiles, _ in groups)


@pytest.mark.parametrize("threads", [1, 2])
def test_answers_have_the_same_bits(threads: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 16, 56, 56), np.float32)
    session, plain = (Session(make_model(BLOCK), threads=threads) for _ in range(2))
    plain._calls.model.answers = False
    whole = plain.run(None, {"x": x})[0]
    assert np.array_equal(session.run(None, {"x": x})[0], whole)
    for n in range(4):
        assert np.array_equal(session.run(None, {"x": x[n : n + 1]})[0][0], whole[n])
