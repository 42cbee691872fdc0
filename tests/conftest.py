"""Options, fixtures and reports that all tests share."""

from __future__ import annotations

import functools
import gc
import os
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from engine.graphs.planner import planner
from engine.graphs.planner.single_thread import list_with_alone
from engine.kernels.binaries import load, workers
from engine.system import cache
from engine.training import plan_cache
from tests.support.places import PLANS
from tests.support.shared import VARIABLE, find_shared_folder


@pytest.fixture(autouse=True, scope="session")
def _plans_are_made_anew() -> Generator[None]:
    """Keep no plans: what earlier runs have left on disk must not decide what a test sees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cache, "find_folder", lambda: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _threads_share_all() -> Generator[None]:
    """Let threads share steps that are too small to gain by it: most tests have no others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "list_with_alone", lambda draft, target, threads: draft.calls)
        yield


@pytest.fixture(autouse=True)
def _small_steps_are_alone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let one thread run small steps in tests that are marked `alone`, as it does elsewhere."""
    if request.node.get_closest_marker("alone"):
        monkeypatch.setattr(planner, "list_with_alone", list_with_alone)


@pytest.fixture(autouse=True)
def _draws_follow_from_the_name(request: pytest.FixtureRequest) -> None:
    """Begin the random generators of a test's module from its name, whatever ran before it."""
    name = zlib.crc32(request.node.nodeid.encode())
    for value in vars(request.module).values() if hasattr(request, "module") else ():
        if isinstance(value, np.random.Generator):
            seed = np.random.SeedSequence(0, spawn_key=(name,))
            value.bit_generator.state = type(value.bit_generator)(seed).state


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from what the code does"
    )
    parser.addoption(
        "--whole", action="store_true", help="run at length, too, what is otherwise sampled"
    )
    parser.addoption(
        "--no-skips", action="store_true",
        help="a test that needs a tool this machine lacks fails, as in CI, and is not skipped",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("shared", deadline=None)  # a test is not wrong where time is short
    settings.load_profile("shared")
    config.pluginmanager.register(_Compiling(config))
    if not hasattr(config, "workerinput"):  # before workers of pytest-xdist start, which inherit it
        os.environ.pop(VARIABLE, None)  # of a run in which this one is a test
        find_shared_folder()
    # A background job begins with interrupts ignored; tests of interrupts send some.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Compile natively even if this checkout ships kernels, also in processes that tests start.
    os.environ.setdefault("EDGEGRAD_KERNELS", "native")


def pytest_collection_finish() -> None:
    """Let garbage collections pass over the tests themselves, which are a million objects."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --whole, deselect what repeats a sample at length."""
    if config.option.whole:
        return
    left_out = [i for i in items if i.get_closest_marker("whole")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [i for i in items if not i.get_closest_marker("whole")]


class _Compiling:
    """Says that kernels are being compiled, which is what a first run spends its time on.

    A process that runs tests counts what it compiles, or has compiled.  The report of each test
    carries the count to the process that prints, which may be another (pytest-xdist).
    """

    NAME = "kernels compiled"

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.here = 0  # compiled in this process since the last report
        self.everywhere = 0
        self.next = 1  # the count at which a line is due
        compile_kernel = load.compile_kernel

        @functools.wraps(compile_kernel)
        def counted(*args: Any, **kwargs: Any) -> bytes:
            self.here += 1
            return compile_kernel(*args, **kwargs)

        load.compile_kernel = counted
        submit = workers.Pool.submit

        @functools.wraps(submit)
        def submitted(
            pool: workers.Pool, jobs: Sequence[workers.CompileJob], processes: int
        ) -> Any:
            self.here += len(jobs)
            return submit(pool, jobs, processes)

        if hasattr(config, "workerinput"):  # of pytest-xdist, which keeps every core busy
            vars(workers)["count_cores"] = lambda: 1
        setattr(workers.Pool, submit.__name__, submitted)  # a method, as wrapped here

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self.here:
            report.user_properties.append((self.NAME, self.here))
            self.here = 0
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print at the first kernel, and then whenever the number has doubled, from 100 on."""
        counts = [int(str(n)) for name, n in report.user_properties if name == self.NAME]
        self.everywhere += sum(counts)
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or self.everywhere < self.next:
            return
        terminal.ensure_newline()
        if self.next == 1:
            terminal.write_line(
                f"compiling kernels, once: they are kept in {cache.find_cache_dir()}"
            )
        else:
            terminal.write_line(f"compiled {self.everywhere} kernels")
        self.next = max(100, 2 * self.everywhere)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under --no-skips, a skip because a tool is missing is a failure."""
    report = yield
    if item.config.getoption("--no-skips") and _lacking(report):
        report.outcome, report.longrepr = "failed", f"{_lacking(report)} (--no-skips)"
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say in plain words what did not run here."""
    reports = terminalreporter.stats.get("skipped", [])
    for reason, count in sorted(Counter(filter(None, map(_lacking, reports))).items()):
        terminalreporter.write_line(f"NOT RUN: {count} tests, each {reason}", yellow=True)
    if not config.option.whole:
        terminalreporter.write_line("Some tests took samples; `make test-all` runs them at length.")


def _lacking(report: Any) -> str:
    """Return the reason of a skip for a missing tool, `needs ...`, or an empty string."""
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return ""
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    return reason if reason.startswith("needs ") else ""


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file of tests/golden, or write the file under --update-golden."""

    def check(name: str, text: str) -> None:
        path = PLANS / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{name}: run pytest --update-golden and review the change"

    return check
