"""Steps that run once: what follows from constants is made when a plan is bound, and kept.

tests/training/test_following.py has the same for parameters, which change.
"""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

from engine.errors import InputError, PlanError
from engine.graphs.planner.planner import make_plan
from engine.inference import Session
from engine.kernels.machine.target import detect_host
from engine.plan import plan_file
from engine.plan.plan import Plan
from engine.plan.verify import verify
from engine.runtime.constant_steps import digest_once
from engine.runtime.program import BoundProgram
from tests.support.blocks import make_model

# A block whose weights are so large that they stay constants of the file.
BLOCK = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,32,9,9] x, float[64,32,1,1] w1, float[64] scale, float[64] shift, float[64] mean,
   float[64] var, float[64,1,3,3] w2, float[64,64,3,3] w3) => (float[N,64,9,9] y) {
    a = Conv(x, w1)
    b = BatchNormalization(a, scale, shift, mean, var)
    c = Relu(b)
    d = Conv<group = 64, pads = [1, 1, 1, 1]>(c, w2)
    y = Conv<pads = [1, 1, 1, 1]>(d, w3)
}"""


@pytest.fixture
def session() -> Session:
    return Session(make_model(BLOCK), threads=2)


# Products with a matrix stored as rows and one as columns: of several blocks of K, and of a last
# panel that is not whole.
PRODUCTS = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,32,9,9] x, float[81,900] w1, float[77,900] w2, float[77] b2) => (float[N,77] y) {
    r = ReduceMean<axes = [1], keepdims = 0>(x)
    shape = Constant<value = int64[2] {-1, 81}>()
    f = Reshape(r, shape)
    h = MatMul(f, w1)
    y = Gemm<transB = 1>(h, w2, b2)
}"""


def make_input(batch: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(batch).standard_normal((batch, 32, 9, 9), np.float32)}


def find_programs(session: Session) -> list[BoundProgram]:
    return list(session._calls.model.memory.programs.values())


def find_plan(session: Session) -> Plan:
    session.run(None, make_input())
    return find_programs(session)[-1].plan


def test_weights_are_folded_and_packed_once(session: Session) -> None:
    plan = find_plan(session)
    kinds = [step.kernel.split("_f32")[0] for step in plan.steps]
    assert plan.once == sum("pack" in kind or "filters" in kind for kind in kinds) + sum(
        "/Mul" in step.source for step in plan.steps
    )
    assert all("pack" not in kind for kind in kinds[plan.once :])
    assert plan.compute_region_bytes("made") > 0
    assert f"steps 0..{plan.once - 1} once" in str(plan)


@pytest.mark.parametrize("threads", [1, 2])
def test_factors_of_products_are_packed_once(threads: int) -> None:
    """For any number of rows: plans of all batches share the panels."""
    session, other = (Session(make_model(PRODUCTS), threads=threads) for _ in range(2))
    other._calls.model.answers = False
    plain: list[Plan] = []
    for batch in (1, 3, 40):
        feed = make_input(batch)
        (expected,) = other.run(None, feed)
        (answer,) = session.run(None, feed)
        assert np.allclose(answer, expected, rtol=1e-5, atol=1e-5)
        plain.append(find_programs(other)[-1].plan)
        plan = find_programs(session)[-1].plan
        packed = [step.kernel for step in plan.steps[: plan.once]]
        assert packed == ["gemm_pack_f32_0", "gemm_pack_f32_1"]
    assert np.array_equal(answer, expected)  # of many rows, panels only lie elsewhere
    assert not any("pack" in step.kernel for plan in plain for step in plan.steps)


def test_steps_that_run_once_are_not_profiled(session: Session) -> None:
    (before,) = session.run(None, make_input())
    profile = session.profile(make_input(), repeats=2)
    plan = find_plan(session)
    assert [step.number for step in profile.steps] == list(range(plan.once, len(plan.steps)))
    assert {step.phase for step in profile.steps} == {"forward"}
    assert all(sum(step.busy) > 0 for step in profile.steps)
    assert np.array_equal(session.run(None, make_input())[0], before)
    with pytest.raises(InputError, match="the model also takes the inputs"):
        session.profile({})
    with pytest.raises(InputError, match="repeats"):
        session.profile(make_input(), repeats=0)


def test_answers_are_those_of_a_plan_without(session: Session) -> None:
    first = session.run(None, make_input())[0]
    assert np.array_equal(session.run(None, make_input())[0], first)
    other = Session(make_model(BLOCK), threads=2)
    other._calls.model.answers = False
    plain = find_plan(other)
    assert plain.once == plain.compute_region_bytes("made") == 0
    assert np.array_equal(other.run(None, make_input())[0], first)


def test_further_shapes_and_moved_memory_keep_answers(session: Session) -> None:
    """A larger batch moves the memory that all plans share, so all are bound again."""
    first = session.run(None, make_input())[0]
    large = session.run(None, make_input(40))[0]
    assert np.array_equal(session.run(None, make_input())[0], first)
    assert np.array_equal(session.run(None, make_input(40))[0], large)


def test_they_run_when_a_plan_is_bound_and_not_again(session: Session) -> None:
    session.run(None, make_input())
    (program,) = find_programs(session)
    first = program.made.memory.view(np.uint8).copy()
    program.made.memory.view(np.uint8)[...] = 0
    session.run(None, make_input())
    assert not program.made.memory.any()
    program.bind(program._memory)
    session.run(None, make_input())
    made = program.made.memory.view(np.uint8)
    assert np.count_nonzero(made != first) == 0


def test_plans_for_several_shapes_share_what_they_make_of_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of which one copy does not count in the memory for plans, as all plans need it."""
    session = Session(make_model(PRODUCTS), threads=1)
    answers = {batch: session.run(None, make_input(batch))[0] for batch in (20, 40, 30, 1)}
    programs = find_programs(session)
    assert all(p.plan.once for p in programs)
    assert len({id(p.made) for p in programs}) == 1
    memory = session._calls.model.memory
    assert memory._count_bytes() == sum(p.nbytes for p in programs)
    made = programs[0].made
    monkeypatch.setattr(BoundProgram, "_run_once", lambda *_: pytest.fail("made again"))
    for batch, expected in answers.items():
        assert np.array_equal(session.run(None, make_input(batch))[0], expected)
    memory.programs.clear()
    assert made in memory.made.values()
    del made, programs
    gc.collect()
    assert not memory.made


def test_what_is_made_of_other_constants_is_not_shared(session: Session) -> None:
    plan = find_plan(session)
    read = {a.buffer for step in plan.steps[: plan.once] for a in step.args}
    changed = set()
    for place, (n, data) in enumerate(plan.constants):
        other = list(plan.constants)
        other[place] = n, bytes([data[0] ^ 1]) + data[1:]
        if digest_once(replace(plan, constants=tuple(other))) != digest_once(plan):
            changed.add(n)
    assert changed == {n for n, _ in plan.constants} & read != set()


def test_a_sum_into_zeros_runs_each_time() -> None:
    """A value that a later call adds to is not the same in each run."""
    from engine.graphs.planner.constant_calls import take_once
    from engine.graphs.planner.draft import Draft, DraftCall, Value
    from engine.kernels.vocabulary.op import TensorType
    from engine.plan.plan import KernelSpec, Mode

    draft = Draft()
    for name, region in (("w", "frozen"), ("x", "io"), ("a", "work"), ("b", "work"), ("y", "io")):
        draft.values[name] = Value(name, TensorType("f32", (4,)), name, region)

    def call(source: str, *args: tuple[Mode, str]) -> DraftCall:
        return DraftCall(KernelSpec("map", ("f32",)), args, (), source, "fwd", ())

    draft.calls = [
        call("packed", ("r", "w"), ("w", "a")),
        call("begun", ("r", "w"), ("w", "b")),
        call("added", ("r", "x"), ("u", "b")),
        call("answer", ("r", "a"), ("r", "b"), ("w", "y")),
    ]
    assert [c.source for c in take_once(draft)] == ["packed"]
    assert [c.source for c in draft.calls] == ["begun", "added", "answer"]
    assert [draft.values[name].region for name in "ab"] == ["made", "work"]


def test_files_keep_them(session: Session) -> None:
    plan = find_plan(session)
    (again,) = plan_file.from_bytes(plan_file.to_bytes([plan], plan.target), plan.target)
    assert again.once == plan.once
    assert str(again) == str(plan)


def test_what_breaks_their_rules_is_refused(session: Session) -> None:
    plan = find_plan(session)
    bad = [
        (replace(plan, once=-1), "-1 steps that run once"),
        (replace(plan, once=len(plan.steps) + 1), "steps that run once, of"),
        (replace(plan, once=len(plan.steps)), "runs once, and touches"),
        (replace(plan, once=plan.once - 1), "which is made once"),
    ]
    for broken, message in bad:
        with pytest.raises(PlanError, match=message):
            verify(broken)


def test_trainings_make_nothing_once() -> None:
    from tests.support.golden_plans import make_golden_plan

    assert make_golden_plan("cnn", 8, 1).once == 0


def test_a_constant_answer_is_made_each_time() -> None:
    """It lies where callers read it, not in what is kept."""
    from engine.graphs.io import onnx_io

    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x) => (float[2] y) { y = Add(x, x) }"""
    from onnx import parser

    graph = onnx_io.load(parser.parse_model(text))
    assert make_plan(graph, {}, target=detect_host(), threads=1, answers=True).once == 0
