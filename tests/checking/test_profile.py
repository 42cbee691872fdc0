"""Profiles: sums that agree, states that stay as they are, traces and pages that can be read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.api import CheckpointState, Module, Optimizer
from engine.errors import FileError, InputError, LabelError, ShapeError, StateError
from engine.kernels.binaries import source
from engine.plan.context import STEP
from engine.profiling import PHASES, Profile, StepTime
from engine.profiling.measure import Spans, compute_waits, forward_node, lay_boxes
from engine.profiling.scaling import BARRIER, Balance, measure_balance, predict_seconds
from engine.runtime.roofline import SIZES, Roofline, measure
from engine.runtime.timing import Clock, Stopwatch
from engine.tools import cli
from engine.tools.dev.browser import browser
from tests.support.blocks import make_model
from tests.support.needs import needs_browser
from tests.support.places import GOLDENS, ROOT
from tests.support.tied_words import DEEP, TIED

ROOFLINE = Roofline(2, 200e9, ((1 << 14, 400e9), (1 << 20, 200e9), (1 << 26, 50e9)))


def opened(name: str = "mlp", threads: int = 2) -> tuple[Module, Optimizer, list[np.ndarray]]:
    """A golden model after one step, and the inputs of that."""
    folder = GOLDENS / name
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx",
                    threads=threads, seed=1)  # fmt: skip
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    trace = np.load(folder / "trace.npz")
    inputs = [trace["x"][0], trace["y"][0]]
    module(*inputs)
    optimizer.step()
    return module, optimizer, inputs


@pytest.fixture(scope="module")
def taken() -> Profile:
    """A profile of a small model with its update, on two threads."""
    module, optimizer, inputs = opened()
    return module.profile(*inputs, optimizer=optimizer, repeats=3)


def step(
    phase: str = "forward", busy: tuple[float, ...] = (3e-3, 1e-3), **changed: object
) -> StepTime:
    """A step that takes 2 ms of two threads, and 1 ms of waiting."""
    values = {
        "plan": "training model", "number": 0, "phase": phase, "kernel": "gemm_f32_0_0",
        "node": "fc<1>", "barrier": True, "busy": busy, "wait": 1e-3, "flops": 300_000_000,
        "nbytes": 6_000_000, "limit": 1.5e-3, "spans": ((0.0, 3e-3), (0.0, 1e-3)),
    } | changed  # fmt: skip
    return StepTime(**values)  # type: ignore[arg-type]  # as in the fields


MADE = Profile(
    "a model", ROOFLINE,
    (step(), step("backward", spans=((3e-3, 6e-3), (3e-3, 4e-3))),
     step("optimizer", kernel="adam_f32", node="AdamW", flops=0, limit=0.3e-3, busy=(1e-3, 1e-3),
          wait=0.0, spans=((6e-3, 7e-3), (6e-3, 7e-3)))),
    (8e-3, 7e-3, 9e-3),
)  # fmt: skip


# --- sums


def test_totals_are_those_of_the_steps() -> None:
    total = MADE.total
    assert MADE.seconds == 8e-3
    assert total.seconds == pytest.approx(7e-3)
    assert total.wait == pytest.approx(2e-3)
    assert total.gflops == pytest.approx(600e6 / 7e-3 / 1e9)
    assert total.gigabytes == pytest.approx(18e6 / 7e-3 / 1e9)
    assert total.roofline == pytest.approx(3.3 / 7)
    assert total.imbalance == pytest.approx(7 / 5)
    assert [t.name for t in MADE.by_phase] == list(PHASES.values())
    assert [(t.name, t.phase, t.steps) for t in MADE.by_kernel] == [
        ("gemm_f32_0_0", "forward", 1), ("gemm_f32_0_0", "backward", 1),
        ("adam_f32", "optimizer", 1),
    ]  # fmt: skip
    assert [(t.name, t.phase, t.steps) for t in MADE.by_node] == [
        ("fc<1>", "", 2), ("AdamW", "optimizer", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["phase", "kernel", "node", "step"])
def test_every_way_to_sum_gives_the_whole(by: str, taken: Profile) -> None:
    for profile in (MADE, taken):
        actual = profile.by(by)
        assert sum(t.seconds for t in actual) == pytest.approx(profile.total.seconds)
        assert sum(t.share for t in actual) == pytest.approx(1)
        for field in ("steps", "barriers", "flops", "nbytes"):
            assert sum(getattr(t, field) for t in actual) == getattr(profile.total, field)


def test_another_way_to_sum_is_refused() -> None:
    with pytest.raises(InputError, match=r"by='kernels': expected one of .*; nearest: 'kernel'"):
        MADE.by("kernels")


def test_what_is_waited_for_is_the_slowest_thread() -> None:
    begin = np.array([[0.0, 2.0, 5.0], [0.0, 1.0, 5.0]])
    end = np.array([[2.0, 4.0, 6.0], [1.0, 5.0, 8.0]])
    run = Spans(begin, end, end - begin)
    assert compute_waits(run, [True, False, True]).tolist() == [0.0, 0.5, 1.0]
    assert run.seconds == 8.0


def test_steps_that_take_turns_are_drawn_one_behind_another() -> None:
    """The second and third run tile by tile, so that each begins before the other ends."""
    begin = np.array([[0.0, 2.0, 3.0, 9.0]])
    end = np.array([[2.0, 7.0, 8.0, 10.0]])
    run = Spans(begin, end, np.array([[2.0, 2.0, 3.0, 1.0]]))
    first, last = lay_boxes(run)
    assert first.tolist() == [[0.0, 2.0, 4.0, 9.0]]
    assert last.tolist() == [[2.0, 4.0, 7.0, 10.0]]


@pytest.mark.parametrize(
    ("source", "node"),
    [("fc1", "fc1"), ("fc1_Grad/Gemm_0", "fc1"), ("/l/MatMul_Grad/Sum_2/ToPlain", "/l/MatMul")],
)
def test_a_gradient_counts_with_its_node(source: str, node: str) -> None:
    assert forward_node(source) == node


def test_the_limit_of_a_step_is_its_operations_or_its_bytes() -> None:
    assert ROOFLINE.memory == 50e9
    assert [ROOFLINE.find_bandwidth(n) for n in (1, 1 << 14, 1 << 15, 1 << 30)] == [
        400e9, 400e9, 200e9, 50e9,
    ]  # fmt: skip
    assert ROOFLINE.compute_seconds(200, 4, [(50, 1 << 30)]) == 1e-9
    assert ROOFLINE.compute_seconds(200, 8, [(50, 1 << 30)]) == 2e-9
    assert ROOFLINE.compute_seconds(400, 2, [(50, 1 << 30)]) == 1e-9
    assert ROOFLINE.compute_seconds(200, 4, [(500, 1 << 30), (400, 1 << 10)]) == pytest.approx(
        11e-9
    )


# --- what is measured


def test_a_profile_has_the_steps_of_its_plans(taken: Profile) -> None:
    module, _, inputs = opened()
    plan = module.plan(*(a.shape for a in inputs))
    mine = [s for s in taken.steps if s.plan == "training model"]
    assert [s.number for s in mine] == list(range(len(plan.steps)))
    assert [s.barrier for s in mine] == [s.barrier for s in plan.steps]
    assert {s.plan for s in taken.steps} == {"training model", "optimizer model"}
    assert {s.phase for s in taken.steps} == set(PHASES.values())
    assert len(taken.runs) == 3
    for s in taken.steps:
        assert len(s.busy) == len(s.spans) == taken.threads == 2
        assert min(s.busy) > 0
        assert s.wait >= 0
        assert all(begin < end for begin, end in s.spans)
    for thread in range(2):
        spans = [s.spans[thread] for s in taken.steps]
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    layers = [t for t in taken.by_node if t.flops]
    assert sum(t.flops for t in layers) == taken.total.flops


def test_a_box_ends_when_its_step_ended() -> None:
    """Its start and its length, as seconds, are often a bit more than its end together."""
    rng = np.random.default_rng(0)
    starts, lengths = rng.integers(1, 1 << 24, (2, 1000, 1)).astype(np.float64)
    run = Spans(starts * 1e-9, (starts + lengths) * 1e-9, lengths * 1e-9)
    assert (run.begin + run.busy > run.end).any()
    _, last = lay_boxes(run)
    assert (last <= run.end).all()


def test_a_profile_leaves_the_training_as_it_was() -> None:
    module, optimizer, inputs = opened("cnn")
    same, other, _ = opened("cnn")
    module.profile(*inputs, optimizer=optimizer, repeats=2)
    assert optimizer.steps == other.steps == 1
    state, expected = module.session.state, same.session.state
    assert state.draws == expected.draws
    assert {n: m.tobytes() for n, m in state.regions.items()} == {
        n: m.tobytes() for n, m in expected.regions.items()
    }
    for m, o in ((module, optimizer), (same, other)):
        m(*inputs)  # adds to the gradients, as no reset was asked for
        o.step()
    assert state.to_bytes(include_optimizer_state=True) == expected.to_bytes(
        include_optimizer_state=True
    )


def test_an_eval_step_has_a_profile() -> None:
    module, optimizer, inputs = opened()
    module.eval()
    actual_profile = module.profile(*inputs, repeats=1)
    assert {s.phase for s in actual_profile.steps} == {"forward"}
    with pytest.raises(StateError, match="an eval step has no update"):
        module.profile(*inputs, optimizer=optimizer)


def test_what_cannot_be_profiled_is_refused_and_changes_nothing() -> None:
    module, optimizer, (x, y) = opened()
    _, other, _ = opened()
    before = {n: m.tobytes() for n, m in module.session.state.regions.items()}
    with pytest.raises(StateError, match="the optimizer belongs to another module"):
        module.profile(x, y, optimizer=other)
    with pytest.raises(InputError, match="repeats=0: expected 1 or more"):
        module.profile(x, y, repeats=0)
    with pytest.raises(InputError, match="takes 2 inputs"):
        module.profile(x)
    with pytest.raises(ShapeError, match="'input': expected 2 dim"):
        module.profile(x[0], y)
    with pytest.raises(LabelError, match="label 99"):
        module.profile(x, np.full_like(y, 99), optimizer=optimizer)
    assert {n: m.tobytes() for n, m in module.session.state.regions.items()} == before


@pytest.mark.parametrize("threads", [1, 4])
def test_any_number_of_threads(threads: int) -> None:
    module, _, inputs = opened(threads=threads)
    actual_profile = module.profile(*inputs, repeats=1)
    assert actual_profile.threads == threads
    assert {len(s.busy) for s in actual_profile.steps} == {threads}


def test_a_thread_without_a_call_has_no_time() -> None:
    watch = Stopwatch(np.zeros(2, STEP.dtype), 2, 0, Clock())
    watch._spans["begin"][0], watch._spans["end"][0] = (10, 40), (30, 90)
    watch._spans["busy"][0], watch._spans["calls"][0] = (20, 50), (1, 1)
    watch._spans[1, 0] = (20, 50, 30, 1)
    begin, end, busy = (a / watch.seconds for a in watch.read())
    assert begin.round().tolist() == [[0, 30], [10, 40]]
    assert end.round().tolist() == [[20, 80], [40, 40]]
    assert busy.round().tolist() == [[20, 50], [30, 0]]
    assert not watch.read()[2].any()


def test_a_machine_has_limits() -> None:
    measured = measure(1, source.choose_current().resolve)
    assert measured is measure(1, source.choose_current().resolve)
    assert measured.flops > 0
    assert tuple(size for size, _ in measured.streams) == SIZES
    speeds = [speed for _, speed in measured.streams]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] > 0


# --- messages


def test_a_profile_prints_as_tables() -> None:
    lines = str(MADE).splitlines()
    assert lines[0] == "a model, 2 threads: 8.000 ms, the median of 3 runs (7.000 to 9.000)"
    assert lines[1] == (
        "3 steps, 3 barriers; 28.6 % of the time is lost at them; the busiest thread has 1.400 "
        "times the mean"
    )
    assert "by kernel     phase      steps     ms     %  GFLOP/s  GB/s  % roof" in str(MADE)
    assert MADE.table("node", 1).splitlines()[2].split() == ["1", "more", "1", "1.000", "14.3"]
    assert len(MADE.table("step", 0).splitlines()) == 4


def test_tables_shorten_names_of_hundreds_of_letters() -> None:
    """TensorFlow Lite joins the names of all layers that became one."""
    name = ";".join(f"model/batch_normalization_{i}/FusedBatchNormV3" for i in range(6))
    made = Profile("a model", ROOFLINE, (step(node=name),), (8e-3,))
    assert max(map(len, made.table("node").splitlines())) < 160
    assert "model/batch_normalization_0/...alization_5/FusedBatchNormV3" in made.table("node")
    assert made.as_dict()["by_node"][0]["name"] == name


def test_the_dictionary_is_json_with_all_of_it(taken: Profile) -> None:
    data = json.loads(json.dumps(taken.as_dict(), allow_nan=False))
    assert data["threads"] == 2
    assert len(data["steps"]) == len(taken.steps)
    assert data["total"]["steps"] == len(taken.steps)
    assert [row["name"] for row in data["by_phase"]] == [t.name for t in taken.by_phase]
    assert {row["bytes"] for row in data["roofline"]["streams"]} == set(SIZES)


def events(path: Path) -> list[dict[str, object]]:
    """The events of a trace, each checked against the format."""
    content = json.loads(path.read_text("utf-8"))
    assert set(content) == {"traceEvents", "displayTimeUnit"}
    for event in content["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "args"} <= set(event)
        assert event["ph"] in ("M", "X")
        if event["ph"] == "X":
            assert set(event) == {"name", "ph", "pid", "tid", "args", "cat", "ts", "dur"}
            assert event["ts"] >= 0
            assert event["dur"] >= 0
        else:
            assert event["name"] in ("process_name", "thread_name")
            assert set(event["args"]) == {"name"}
    actual_content: list[dict[str, object]] = content["traceEvents"]
    return actual_content


def test_a_trace_has_a_track_for_each_thread(taken: Profile, tmp_path: Path) -> None:
    taken.chrome_trace(tmp_path / "trace.json")
    actual_events = events(tmp_path / "trace.json")
    tracks = [e["tid"] for e in actual_events if e["name"] == "thread_name"]
    assert tracks == [0, 1]
    boxes = [e for e in actual_events if e["ph"] == "X"]
    assert len(boxes) == 2 * len(taken.steps)
    assert {e["cat"] for e in boxes} == set(PHASES.values())


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    for write in (MADE.chrome_trace, MADE.html):
        with pytest.raises(FileError, match="nowhere"):
            write(tmp_path / "nowhere" / "file")


@pytest.fixture(scope="module")
def page(taken: Profile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "profile.html"
    taken.html(path)
    return path


def test_a_page_tells_names_as_text(tmp_path: Path) -> None:
    MADE.html(tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text("utf-8")
    assert "fc&lt;1&gt;" in text
    assert "fc<1>" not in text


def test_a_page_without_products_says_so(tmp_path: Path) -> None:
    only = Profile("an update", ROOFLINE, MADE.steps[2:], MADE.runs)
    only.html(tmp_path / "p.html")
    assert "No step multiplies matrices" in (tmp_path / "p.html").read_text("utf-8")


@needs_browser
def test_a_browser_shows_the_page(page: Path) -> None:
    with browser() as actual_browser:
        shown = actual_browser.open_page(page)
        names = shown.ask("[...document.querySelectorAll('main > section')].map(s => s.id)")
        assert names == ["summary", "kernels", "nodes", "roofline", "threads"]
        shown.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert shown.ask("document.documentElement.scrollWidth <= innerWidth")
        assert shown.complaints() == []


# --- the command


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, written = tmp_path / "t.json", tmp_path / "p.html"
    words = ["profile", str(GOLDENS / "mlp"), "--threads", "2", "--repeats", "2"]
    assert cli.main([*words, "--by", "phase", "--trace", str(trace), "--html", str(written)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("training model and optimizer, 2 threads: ")
    assert "by phase" in out
    assert "by kernel" not in out
    assert events(trace)
    assert written.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 2


@pytest.mark.parametrize("name", ["lstm", "transformer", "mobilenet", "bce"])
def test_inputs_are_made_up_for_any_model(name: str) -> None:
    words = ["profile", str(GOLDENS / name), "--threads", "1", "--repeats", "1", "--json"]
    assert cli.main(words) == 0


def test_the_command_makes_a_model_trainable(capsys: pytest.CaptureFixture[str]) -> None:
    model = GOLDENS / "mlp" / "forward.onnx"
    assert cli.main(["profile", str(model), "--repeats", "1"]) == 0
    assert "backward" in capsys.readouterr().out


def test_the_command_profiles_answers_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(make_model(DEEP), path)
    words = ["profile", str(path), "--inference", "--threads", "2", "--repeats", "2"]
    assert cli.main([*words, "--batch", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("answer, 2 threads: ")
    assert "by phase" in out
    assert "backward" not in out


def test_answers_take_words_in_range(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(make_model(TIED), path)
    assert cli.main(["profile", str(path), "--inference", "--repeats", "1", "--json"]) == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nowhere"], 1, "nowhere: no such file or folder"),
        (["mlp", "--inference"], 1, "mlp"),
        (["."], 1, "no file 'training_model.onnx'"),
        (["mlp", "--batch", "0"], 2, "0 is not in the range"),
        (["mlp", "--by", "colour"], 2, "'colour' is not one of"),
        (["mlp", "--trace", "nowhere/t.json"], 1, "nowhere"),
    ],
)
def test_bad_words_are_told(
    words: list[str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(GOLDENS)
    assert cli.main(["profile", *words]) == status
    assert said in capsys.readouterr().err


def test_the_help_imports_nothing_that_profiles() -> None:
    code = (
        "import sys; from engine.tools import cli; cli.main(['profile', '--help']);"
        "sys.exit(bool({'numpy', 'engine.profiling', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert done.returncode == 0


# --- more threads than cores


def test_between_barriers_the_busiest_thread_or_the_memory_decides() -> None:
    steps = (
        step(busy=(1.0, 2.0)), step(busy=(2.0, 0.5), barrier=False),  # 3.0 and 2.5 s
        step(busy=(1.0, 1.0), uncached=4 * 50_000_000_000),  # 4 s for the memory
        step(busy=(1.0, 0.0), barrier=False, plan="optimizer model"),
    )  # fmt: skip
    shared = measure_balance(Profile("", ROOFLINE, steps, (9.0,)))
    assert [busiest for busiest, _ in shared.stretches] == [3.0, 1.0, 1.0]
    alone = Balance(1, ((9.0, 0),), 1.0)
    assert predict_seconds(alone, 10.0, shared) == pytest.approx(1 + 3 + 4 + 1 + 6 * BARRIER)
    assert predict_seconds(alone, 10.0, alone) == 10.0


def test_processor_time_leaves_out_what_others_run() -> None:
    module, optimizer, inputs = opened(threads=3)
    before = time.process_time()
    profile = module.profile(*inputs, optimizer=optimizer, repeats=3, processor_time=True)
    assert 0 < sum(sum(each.busy) for each in profile.steps) < time.process_time() - before
