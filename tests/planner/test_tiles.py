"""Groups of steps that run tile by tile: what they compute, how plans show them, what is refused.

The models are blocks as image networks and transformers repeat them, large enough for several
tiles: 2 MiB a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.passes import count_traffic
from engine.api import CheckpointState, Module
from engine.artifacts import AdamW, MSELoss, generate_artifacts
from engine.base.aliases import Array
from engine.errors import PlanError
from engine.graphs.planner import planner
from engine.kernels.machine.target import Target, make
from engine.plan import plan_file
from engine.plan.plan import Arg, Plan
from engine.plan.verify import verify
from engine.runtime.team import get_team
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from engine.training import plan_cache
from engine.training.memory import Memory
from engine.training.model import Model
from tests.support.blocks import list_groups, make_model
from tests.support.builds import load, needs_cc
from tests.support.plans import with_step
from tests.support.sleepers import asleep

TARGET = make("x86_64-unknown-linux-gnu", "x86-64-v3", "", "avx2")
BATCH = 8

# An inverted residual, with an activation whose gradient has no jumps.
BLOCK = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,16,32,32] x, float[64,16,1,1] w1, float[64] scale1, float[64] shift1, float[64] mean1,
   float[64] var1, float[64,1,3,3] w2, float[64] scale2, float[64] shift2, float[64] mean2,
   float[64] var2, float[16,64,1,1] w3, float[16] scale3, float[16] shift3, float[16] mean3,
   float[16] var3) => (float[N,16,32,32] y) {
    a = Conv(x, w1)
    an, ma, va = BatchNormalization<training_mode = 1>(a, scale1, shift1, mean1, var1)
    at = Tanh(an)
    b = Conv<group = 64, pads = [1, 1, 1, 1]>(at, w2)
    bn, mb, vb = BatchNormalization<training_mode = 1>(b, scale2, shift2, mean2, var2)
    bt = Tanh(bn)
    c = Conv(bt, w3)
    cn, mc, vc = BatchNormalization<training_mode = 1>(c, scale3, shift3, mean3, var3)
    y = Add(cn, x)
}"""
TRAINED = ["w1", "scale1", "shift1", "w2", "scale2", "shift2", "w3", "scale3", "shift3"]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("block")
    generate_artifacts(
        make_model(BLOCK),
        loss=MSELoss(),
        optimizer=AdamW(),
        requires_grad=TRAINED,
        artifact_directory=folder,
    )
    return folder


def plan_of(folder: Path, threads: int = 2, target: Target = TARGET, batch: int = BATCH) -> Plan:
    """The training plan of a block, for a fixed target whatever this machine is."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    training = str(folder / "training_model.onnx")
    session = Model(training, state, Memory(), threads, "training model", target)
    return session.plan({name: (batch, 16, 32, 32) for name in ("x", "target")})


@pytest.fixture(scope="module")
def plan(artifacts: Path) -> Plan:
    return plan_of(artifacts)


# --- what is made


def test_plan_text(plan: Plan, golden: Callable[[str, str], None]) -> None:
    golden("block.plan.txt", str(plan))


def test_a_block_passes_over_memory_in_a_few_groups(plan: Plan) -> None:
    """Each chain between two sums over all rows is one group."""
    actual = [
        [re.sub(r"_f32.*|_[0-9a-f]{10}$", "", s.kernel) for s in g] for _, g in list_groups(plan)
    ]
    assert actual[:3] == [
        ["conv", "channel_moments_cols"],
        ["depthwise", "channel_moments_cols"],
        ["map", "conv", "channel_moments_cols"],
    ]
    backward = ["map", "map", "map", "conv", "conv_dw", "channel_sums_cols"]
    assert any(sorted(steps) == sorted(backward) for steps in actual[3:])


def test_tiles_cover_what_steps_write(plan: Plan) -> None:
    for _, steps in list_groups(plan):
        for step in steps:
            for arg in step.args:
                if arg.mode in ("w", "u"):
                    buffer = plan.buffers[arg.buffer]
                    parts = step.tiles if arg.tile else plan.threads
                    assert (arg.tile or arg.thread) * parts == 4 * np.prod(buffer.shape)


def test_a_target_with_a_larger_cache_gets_fewer_tiles(artifacts: Path, plan: Plan) -> None:
    large = plan_of(artifacts, target=replace(TARGET, tile_bytes=2 * TARGET.tile_bytes))
    most = [max(steps[0].tiles for _, steps in list_groups(p)) for p in (plan, large)]
    assert most[1] < most[0]


def test_rows_that_cannot_be_cut_run_whole(artifacts: Path) -> None:
    whole = plan_of(artifacts, target=replace(TARGET, tile_bytes=1 << 30))
    assert not list(list_groups(whole))


def test_groups_take_little_more_memory(artifacts: Path, plan: Plan) -> None:
    whole = plan_of(artifacts, target=replace(TARGET, tile_bytes=1 << 30))
    assert plan.compute_region_bytes("work") <= 1.2 * whole.compute_region_bytes("work")


def test_what_is_made_again_takes_a_tile(plan: Plan) -> None:
    """A group makes again, tile by tile, what it needs of the forward pass and nobody else does."""
    (again,) = (b for b in plan.buffers if b.name == "bt_again")
    assert again.nbytes * 16 == 4 * BATCH * 64 * 32 * 32
    assert {s.phase for s in plan.steps[again.first : again.last + 1]} == {"bwd"}


def test_groups_move_fewer_bytes(artifacts: Path, plan: Plan) -> None:
    whole = plan_of(artifacts, target=replace(TARGET, tile_bytes=1 << 30))
    before, after = (
        sum(t.read + t.written for t in count_traffic(made).values()) for made in (whole, plan)
    )
    assert after < 0.75 * before


def test_a_plan_file_keeps_groups(plan: Plan) -> None:
    (read,) = plan_file.from_bytes(plan_file.to_bytes([plan], plan.target), plan.target)
    assert read == plan


# --- what is computed


def module(
    folder: Path, threads: int, monkeypatch: pytest.MonkeyPatch, *, grouped: bool
) -> tuple[CheckpointState, Module]:
    """A module whose plans have groups, or none."""
    if not grouped:
        monkeypatch.setattr(planner, "group", lambda *_: None)
        monkeypatch.setattr(plan_cache, "digest_sources", lambda: "without groups")
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return state, Module(folder / "training_model.onnx", state, threads=threads)


def step(made: tuple[CheckpointState, Module], batch: int) -> tuple[float, Array]:
    """The loss and all gradients of a step on random data, which are the same each time."""
    state, trained = made
    rng = np.random.default_rng(batch)
    x, target = (rng.standard_normal((batch, 16, 32, 32)).astype(np.float32) for _ in range(2))
    trained.lazy_reset_grad()
    loss = float(trained(x, target))
    return loss, state.regions["grad"].view(np.float32).copy()


@pytest.mark.parametrize("batch", [8, 5])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_groups_compute_what_steps_do(
    artifacts: Path, threads: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiled = module(artifacts, threads, monkeypatch, grouped=True)
    loss, gradients = step(tiled, batch)
    again, same = step(tiled, batch)
    assert loss == again
    assert np.array_equal(gradients, same)
    alone, expected = step(module(artifacts, threads, monkeypatch, grouped=False), batch)
    assert loss == pytest.approx(alone, rel=1e-6)
    assert np.linalg.norm(gradients - expected) < 2e-5 * np.linalg.norm(expected)


def test_groups_compute_the_same_while_the_others_sleep(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = module(artifacts, 3, monkeypatch, grouped=True)
    loss, gradients = step(made, BATCH)
    (program,) = made[1].session.memory.programs.values()
    with asleep(get_team(3, program._resolve)):
        again, same = step(made, BATCH)
    assert again == loss
    assert np.array_equal(same, gradients)


def test_a_module_takes_further_batches(artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are counted for each batch, whichever was planned first."""
    made = module(artifacts, 2, monkeypatch, grouped=True)
    first = step(made, 8)[1]
    second = step(made, 6)[1]
    assert np.array_equal(step(made, 8)[1], first)
    other = module(artifacts, 2, monkeypatch, grouped=True)
    assert np.array_equal(step(other, 6)[1], second)


def test_a_group_is_one_step_of_a_stepwise_run(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = module(artifacts, 2, monkeypatch, grouped=True)
    _, gradients = step(made, BATCH)
    trained = made[1]
    (program,) = trained.session.memory.programs.values()
    units = list(program.run_stepwise())
    members = {n + k for n, g in list_groups(program.plan) for k in range(1, len(g))}
    assert units == [n for n in range(len(program.plan.steps) + 1) if n not in members]
    trained.lazy_reset_grad()
    assert np.array_equal(step(made, BATCH)[1], gradients)
    watch = program.make_stopwatch()
    program.run(watch=watch)
    _, _, busy = watch.read()
    assert busy.shape == (2, len(program.plan.steps))
    for n, group in list_groups(program.plan):
        assert (busy[:, n : n + len(group)] > 0).all()  # both threads have tiles of every step
    trained.lazy_reset_grad()
    assert np.array_equal(step(made, BATCH)[1], gradients)


@needs_cc
@pytest.mark.parametrize("threads", [1, 2])
def test_a_trimmed_build_runs_groups(
    artifacts: Path, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(artifacts, tmp_path, Options("mnist", resolve("native"), PlanRequest((BATCH,), threads)))
    trainer = load(tmp_path).Trainer()
    made = module(artifacts, threads, monkeypatch, grouped=True)
    loss, _ = step(made, BATCH)
    rng = np.random.default_rng(BATCH)
    x, target = (rng.standard_normal((BATCH, 16, 32, 32)).astype(np.float32) for _ in range(2))
    assert float(trainer.step(x, target)) == loss


# --- what is refused


def with_arg(made: Plan, n: int, at: int, **changes: Any) -> Plan:
    """The plan with another argument of step n."""
    args = list(made.steps[n].args)
    args[at] = replace(args[at], **changes)
    return with_step(made, n, args=tuple(args))


def first_cut(made: Plan, modes: str) -> tuple[int, int, Arg]:
    """The first argument of a group that has tiles, and its place."""
    return next(
        (n + k, at, arg)
        for n, steps in list_groups(made)
        for k, s in enumerate(steps)
        for at, arg in enumerate(s.args)
        if arg.tile and arg.mode in modes
    )


def test_corrupted_groups_are_refused(plan: Plan) -> None:
    n, steps = next(list_groups(plan))
    tiles = steps[0].tiles
    written = first_cut(plan, "w")
    read = next(
        (n + k, at, a)
        for n, g in list_groups(plan)
        for k, s in enumerate(g)
        for at, a in enumerate(s.args)
        if a.tile and a.mode == "r" and any(b.buffer == a.buffer for o in g[:k] for b in o.args)
    )
    numbered = next(n + k for n, g in list_groups(plan) for k, s in enumerate(g) if s.numbered)
    bad = [
        (with_arg(plan, numbered, 0, thread=64), "does not get a thread's number"),
        (with_step(plan, n, group=len(plan.steps) + 1), "a group of"),
        (with_step(plan, n, group=-1), "a group of"),
        (with_step(plan, n, group=0), "tiles in a group of 0 steps"),
        (with_step(plan, n, tiles=0), "0 tiles"),
        (with_step(plan, n + 1, tiles=tiles + 1), "other tiles"),
        (with_step(plan, n + 1, barrier=True), "a barrier"),
        (with_step(plan, 0, numbered=True), "number of a tile"),
        (with_arg(plan, *written[:2], tile=written[2].tile * 2), "bytes in all"),
        (with_arg(plan, *written[:2], tile=written[2].tile // 2), "bytes in all"),
        (with_arg(plan, *written[:2], tile=-64), "is cut into tiles of -64"),
        (with_arg(plan, *written[:2], tile=0), "all tiles write the whole"),
        (with_arg(plan, *written[:2], thread=64), "bytes in all"),
        (with_arg(plan, *read[:2], tile=0), "is read in other tiles"),
        (with_arg(plan, *read[:2], tile=read[2].tile // 2), "is read in other tiles"),
        (with_arg(plan, 0, 0, tile=64), "bytes in all"),
    ]
    for broken, message in bad:
        with pytest.raises(PlanError, match=message):
            verify(broken)


def test_buffers_live_through_all_of_a_group(plan: Plan) -> None:
    for n, steps in list_groups(plan):
        last = n + len(steps) - 1
        for i in {a.buffer for s in steps for a in s.args if a.buffer >= 0}:
            buffer = plan.buffers[i]
            assert buffer.first <= n
            assert last <= buffer.last
            if buffer.region == "work" and buffer.first == n < last:
                buffers = list(plan.buffers)
                buffers[i] = replace(buffer, first=n + 1)
                with pytest.raises(PlanError, match=r"lives|share bytes"):
                    verify(replace(plan, buffers=tuple(buffers)))


def test_threads_meet_behind_a_group(plan: Plan) -> None:
    """Steps after a group that read its results have a barrier before them."""
    n, steps = next(list_groups(plan))
    after = n + len(steps)
    assert plan.steps[after].barrier
    with pytest.raises(PlanError, match="since the last barrier"):
        verify(with_step(plan, after, barrier=False))
