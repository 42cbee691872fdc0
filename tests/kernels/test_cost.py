"""The cost model: seconds of steps, by their work and what a machine can do."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench.efficiency import write_table
from engine.errors import InputError
from engine.graphs.planner.planner import make_plan
from engine.kernels.analysis import cost
from engine.kernels.analysis.cost import (
    get_nominal,
    predict_seconds,
    predict_steps,
    read_efficiencies,
)
from engine.kernels.analysis.flops import NULL, Task, Use, list_tasks, measure_calls
from engine.kernels.loops.gemm import GEMM_WORDS, gemm_mixed
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_templates
from engine.models.mobilenets import build_mobilenet_v2
from engine.plan.plan import KernelSpec
from engine.runtime.roofline import Roofline

MAP = "a:f32[] b:f32[] -> y:f32[] = add(a,b)"


def call(formula: str, *names: str, nbytes: int) -> Task:
    uses = tuple(Use(n, "w" if n == names[-1] else "r", nbytes, nbytes // 4) for n in names)
    return Task(KernelSpec("map", (formula, 0)), uses, ())


def test_every_row_is_of_a_kernel() -> None:
    assert {name.split(".")[0] for name in read_efficiencies()} <= list_templates().keys()


def test_the_table_is_what_the_bench_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "efficiency.txt"
    path.write_text("gemm 0.50\nlstm 0.86\n")
    write_table({"usual": [("gemm", 9, 1.5, 0.912), ("conv", 3, 0.0, 0.0)]}, path)
    monkeypatch.setattr(cost, "EFFICIENCY", path)
    assert read_efficiencies.__wrapped__() == {"conv": 0.01, "gemm": 0.91, "lstm": 0.86}
    with pytest.raises(InputError, match="--page needs the subject usual alone, got mlp"):
        write_table({"mlp": []}, path)


def test_bytes_that_are_in_a_cache_take_less() -> None:
    """Recently written values are closer than values written long ago."""
    first = call(MAP, "a", "b", "c", nbytes=1 << 20)
    again = call(MAP, "c", "c", "d", nbytes=1 << 20)
    other = call(MAP, "e", "f", "g", nbytes=1 << 28)
    near = predict_seconds([first, again], 1)[1]
    far = predict_seconds([first, other, again], 1)[2]
    assert near < far


def test_products_of_16_bits_take_half_as_long() -> None:
    words = GEMM_WORDS.pack(
        m=512, n=512, k=512, lda=512, ldb=512, ldc=512, mode=0, grid=(1, 1, 1), kc=256, nc=512,
        panel=0, batch=(1, 1, 1), a_step=(0, 0, 0), b_step=(0, 0, 0),
    )  # fmt: skip
    machine = Roofline(1, 1e9, ((1 << 20, 1e12), (1 << 30, 1e12)))
    wide, half = (
        Task(
            KernelSpec(*gemm_mixed("f32", "bf16", "f32", "bf16", P, 0, 0)),
            (NULL,) * 6,
            (0, 0, *words.values),
        )
        for P in ("f32", "bf16")
    )
    assert predict_seconds([wide], 1, machine)[0] == pytest.approx(
        2 * predict_seconds([half], 1, machine)[0], 1e-3
    )
    limits = [
        machine.compute_seconds(done.flops, done.itemsize, done.moves)
        for done in measure_calls([wide, half], 1)
    ]
    assert limits == [2 * 512**3 / 1e9, 512**3 / 1e9], "a profile's"


def test_half_the_bytes_gain_where_memory_holds_them() -> None:
    """In a cache, widening and rounding take as long as the bytes of float32."""
    gains = []
    for size in (1 << 16, 1 << 28):
        wide = call(MAP, "a", "b", "y", nbytes=size)
        wide = wide._replace(uses=(*wide.uses[:2], wide.uses[2]._replace(mode="u")))
        uses = tuple(use._replace(nbytes=use.nbytes // 2) for use in wide.uses)
        half = Task(KernelSpec("map", (MAP.replace("f32[]", "bf16[]"), 0)), uses, ())
        seconds = [predict_seconds([task, task], 1, again=True)[1] for task in (wide, half)]
        gains.append(seconds[0] / seconds[1])
    near, far = gains
    assert near < 1.1
    assert far == pytest.approx(2, 0.05)


def test_formulas_of_many_instructions_take_longer() -> None:
    plain = call(MAP, "a", "b", "y", nbytes=1 << 20)
    costly = call(MAP.replace("add(a,b)", "erf(tanh(exp(add(a,b))))"), *"aby", nbytes=1 << 20)
    assert predict_seconds([plain], 1)[0] < predict_seconds([costly], 1)[0]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_faster_machine_takes_less(threads: int) -> None:
    """Each step; and the nominal machine is the same every time."""
    shape = (3, 96, 96)
    plan = make_plan(
        build_mobilenet_v2(shape), {"x": (2, *shape)}, target=detect_host(), threads=threads
    )
    usual = get_nominal(threads)
    steps = predict_steps(plan)
    assert steps == predict_steps(plan, usual)
    assert all(math.isfinite(t) and t > 0 for t in steps)
    streams = tuple((size, 2 * speed) for size, speed in usual.streams)
    faster = predict_steps(plan, Roofline(threads, 2 * usual.flops, streams))
    assert all(a < b for a, b in zip(faster, steps, strict=True))
    calls = list_tasks(plan)
    assert len(calls) == len(plan.steps)
    assert steps == predict_seconds([*calls, *calls], threads)[len(calls) :]  # runs again and again
