"""Lines of progress: the time so far, and what the rest of a build may take."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.progress import WEIGHTS, Part, StagePrinter
from engine.tools.trimmed.targets import resolve
from tests.support.builds import needs_cc
from tests.support.places import GOLDENS


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_rest_is_estimated_from_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    stages = StagePrinter(clock=clock)
    stages.expect(Counter[Part]({"planning": 2, "kernels": 2, "linking": 1}))
    stages.begin("planning", "one")  # nothing has been measured
    clock.now = 2.0
    stages.begin("planning", "two")  # 2 s as the first, and the others by their weights
    clock.now = 4.0
    for k in stages.count_each("kernels", range(4)):
        clock.now += 3.0 * (k < 3)  # a line at 3 s: a quarter, so 12 s in all
    clock.now = 16.0
    stages.begin("kernels", "again")  # 12 s as the first
    clock.now = 28.0
    stages.begin("linking", "last")
    stages.end()
    stages.say("done")
    rates = 2 + 2 * (2 * WEIGHTS["kernels"] + WEIGHTS["linking"]) / WEIGHTS["planning"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[  0.0 s] one"
    assert lines[1] == f"[  2.0 s, about {rates:.0f} s left] two"
    assert lines[3].startswith("[  7.0 s, about ")
    assert lines[3].endswith("] kernels: 1 of 4")
    assert lines[-1] == "[ 28.0 s] done"
    linking = (2 / WEIGHTS["planning"] + 12 / WEIGHTS["kernels"]) / 2 * WEIGHTS["linking"]
    assert lines[-3] == f"[ 16.0 s, about {12 + linking:.0f} s left] again"


def test_nothing_is_said_about_the_rest_where_more_may_follow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    stages = StagePrinter(is_open=True, clock=clock)
    stages.expect(Counter[Part]({"planning": 2}))
    stages.begin("planning", "one")
    clock.now = 200.0
    stages.begin("planning", "two")
    assert capsys.readouterr().err == "[  0.0 s] one\n[200.0 s] two\n"


@needs_cc
def test_a_build_announces_each_of_its_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For two platforms and a package: none is left at its end, and its last line has no rest."""
    stages = StagePrinter()
    options = Options(
        "mnist",
        resolve("wasm32"),
        PlanRequest([4]),
        bindings=["js"],
        also=[resolve("wasm32-relaxed")],
    )
    build(GOLDENS / "mlp", tmp_path, options, stages)
    stages.end()
    stages.say("done")
    lines = capsys.readouterr().err.splitlines()
    assert "left" not in lines[-1]
    middle = next(line for line in lines if "planning for wasm32-relaxed" in line)
    assert " s left] " in middle
    assert sum("the package for JavaScript" in line for line in lines) == 2


@needs_cc
def test_packages_with_the_same_library_share_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C# and Rust take the build's own, and Kotlin takes Java's, which has native methods."""
    stages = StagePrinter()
    languages = ["java", "kotlin", "csharp", "rust"]
    build(
        GOLDENS / "mlp",
        tmp_path,
        Options("mnist", resolve("native"), PlanRequest([4]), bindings=languages),
        stages,
    )
    stages.end()
    stages.say("done")
    lines = capsys.readouterr().err.splitlines()
    assert "left" not in lines[-1]
    assert [line.partition("] ")[2] for line in lines if "linking" in line] == [
        "linking for native",
        "the package for Java: linking for native",
        "linking the self-test",
    ]
    made: dict[bytes, set[str]] = {}
    for path in tmp_path.rglob("libmnist.so"):
        made.setdefault(path.read_bytes(), set()).add(path.relative_to(tmp_path).parts[0])
    assert sorted(map(sorted, made.values())) == [
        ["csharp", "libmnist.so", "rust"], ["java", "kotlin"],
    ]  # fmt: skip
