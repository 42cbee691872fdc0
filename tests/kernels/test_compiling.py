"""Compiling what the cache lacks: by whom, how often, what is said of it, and what goes wrong."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.errors import FileError, InternalError
from engine.kernels.binaries import fingerprint, load, source, workers
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.kernel import Body, kernel
from engine.plan.plan import KernelSpec
from engine.runtime.team import LAUNCH, WORKER
from engine.system import progress
from engine.tools.actions import demo

SMALL = tuple(  # kernels of two modules that compile fast
    KernelSpec(name, (dtype,))
    for name in ("total_loss", "label_weights", "likelihood")
    for dtype in ("f32", "f64")
)
FEW = SMALL[: workers.FEW]


@kernel("y: update T[...]  n: i64", T=("f32",))
def of_a_user(target: Target, T: str) -> Body:
    """A kernel that a new process does not know; for these tests."""

    def body(y, n, tid, nthreads):
        for i in range(n):
            y[i] = 0.0

    return body


class Watched:
    """The processes that were started to compile, and the kernels that were compiled here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[workers.Process] = []
        self.here: list[KernelSpec] = []
        start, compile_kernel = workers.start_processes, load.compile_kernel

        def started(count: int) -> list[workers.Process]:
            actual_started = start(count)
            self.processes += actual_started
            return actual_started

        def compiled(spec: KernelSpec, target: Target, **options: Any) -> bytes:
            self.here.append(spec)
            return compile_kernel(spec, target, **options)

        monkeypatch.setattr(workers, "start_processes", started)
        monkeypatch.setattr(load, "compile_kernel", compiled)

    def ended(self) -> bool:
        """Return whether no process, nor any child of one, is left after a while."""
        groups = {process.program.pid for process in self.processes}
        for _ in range(600):
            running = [p for p in self.processes if p.program.poll() is None]
            if not running and not any(s != "Z" and g in groups for s, g in processes()):
                return True
            time.sleep(0.1)
        return False


def processes() -> Iterator[tuple[str, int]]:
    """The state and the group of every process, where the system says that in /proc."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            yield state, int(group)


class Deadly:
    """In the place of a job: whoever unpacks it ends."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without a file."""
    monkeypatch.setenv("EDGEGRAD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def watched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """A machine of two cores, on which nothing has been compiled."""
    forget()
    monkeypatch.setenv("EDGEGRAD_KERNELS", "native")
    monkeypatch.setattr(workers, "count_cores", lambda: 2)
    yield Watched(monkeypatch)
    forget()


def forget() -> None:
    """End what has been started, as if nothing had been."""
    workers.stop()
    load._coming.clear()


def files(folder: Path) -> list[str]:
    """The kinds of the files in a cache, in order."""
    return sorted(p.name.partition(".")[2] for p in folder.rglob("*") if p.is_file())


def objects(*specs: KernelSpec) -> dict[str, bytes]:
    return load.get_codes(specs, detect_host(), load.OBJECT)


# --- who compiles


@pytest.mark.parametrize(("system", "programs"), [("linux", 1), ("darwin", 2)])
def test_many_kernels_are_compiled_side_by_side_once(
    system: str, programs: int, watched: Watched, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux" and system == "linux":
        pytest.skip("needs Linux")
    here = SimpleNamespace(platform=system, executable=sys.executable, path=sys.path)
    monkeypatch.setattr(workers, "sys", here)
    actual_objects = objects(*SMALL)
    assert list(actual_objects) == [spec.symbol for spec in SMALL]
    assert all(
        code[:4] == b"\x7fELF" or sys.platform != "linux" for code in actual_objects.values()
    )
    assert (len(watched.processes), watched.here) == (2, [])
    assert len({process.program.pid for process in watched.processes}) == programs
    assert files(cache) == ["bc"] * len(SMALL) + ["o"] * len(SMALL)
    workers.stop()
    assert objects(*SMALL) == actual_objects
    assert len(watched.processes) == 2


def test_processes_make_what_is_made_here(watched: Watched) -> None:
    codes = load.get_codes(SMALL, detect_host(), load.SMALL_BITCODE)
    assert (len(watched.processes), watched.here) == (2, [])
    for spec in SMALL[:2]:
        assert load.compile_kernel(spec, detect_host(), small=True) == codes[spec.symbol]


def test_few_kernels_are_compiled_here(watched: Watched) -> None:
    objects(*FEW)
    assert (watched.processes, watched.here) == ([], list(FEW))


def test_as_many_processes_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_measure_memory", lambda: 8 << 30)
    for cores, kernels, expected in [
        (1, 100, 1), (2, 4, 1), (2, 5, 2), (2, 100, 2), (8, 12, 3), (64, 1000, 16)
    ]:  # fmt: skip
        monkeypatch.setattr(workers, "count_cores", lambda n=cores: n)
        assert workers.count_useful(kernels) == expected
    monkeypatch.setattr(workers, "count_cores", lambda: 64)
    monkeypatch.setattr(workers, "_measure_memory", lambda: 1 << 30)
    assert workers.count_useful(1000) == 2
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert workers.count_useful(1000) == 0
    monkeypatch.delattr(sys, "frozen")
    monkeypatch.setattr(sys, "executable", "/opt/editor/bin/editor")
    assert workers.count_useful(1000) == 0


def test_a_container_has_the_memory_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "CONTROL_GROUPS", tmp_path)
    machine = workers._measure_memory()
    (tmp_path / "memory.max").write_text("max\n")
    assert workers._measure_memory() == machine
    (tmp_path / "memory.max").write_text("104857600\n")
    assert workers._measure_memory() == 104857600
    monkeypatch.delattr(os, "sysconf", raising=False)
    (tmp_path / "memory.max").unlink()
    assert workers._measure_memory() > 1 << 38


def test_what_takes_longest_is_compiled_first(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[KernelSpec] = []

    def submit(self: workers.Pool, jobs: Any, processes: int) -> list[Any]:
        asked.extend(job.spec for job in jobs)
        return [concurrent.futures.Future() for _ in jobs]

    monkeypatch.setattr(workers.Pool, "submit", submit)
    product = KernelSpec("gemm", ("f32", 0, 0))
    coming = load._submit([*reversed(SMALL), product], detect_host(), load.OBJECT)
    alike = ["label_weights", "label_weights", "likelihood", "likelihood"]
    names = [*alike, "total_loss", "total_loss"]
    assert [(s.template, s.params[0]) for s in asked] == [
        ("gemm", "f32"),
        *zip(names, ("f32", "f64") * 3, strict=True),
    ]
    assert list(coming) == asked


def take(pool: workers.Pool, module: str, end: int) -> tuple[str, str, int]:
    """Return the kernel, the module and the end of the next job of a process."""
    taken = pool._take(module, end)
    assert taken is not None
    (job, _), end = taken
    return job.spec.template, job.module, end


def make_waiting(*names: tuple[str, str]) -> workers.Pool:
    """Return a pool with jobs of these kernels and modules."""
    pool = workers.Pool()
    for name, module in names:
        job = workers.CompileJob(module, KernelSpec(name, ()), detect_host(), False, False)
        pool._waiting[module].append((job, concurrent.futures.Future()))
    return pool


def test_a_process_goes_on_with_its_module(watched: Watched) -> None:
    pool = make_waiting(("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"))
    order, module, end = [], "", 0
    for _ in range(4):
        name, module, end = take(pool, module, end)
        order.append(name)
    assert order == ["a", "c", "b", "d"]
    assert not pool._waiting


def test_two_processes_take_a_module_from_opposite_ends(watched: Watched) -> None:
    pool = make_waiting(*((name, "x") for name in "abcde"), ("f", "y"))
    states, order = [("", 0), ("", 0)], ""
    for turn in (0, 1, 1, 0, 0, 1):
        name, module, end = take(pool, *states[turn])
        states[turn] = module, end
        order += name
    assert order == "aedbcf"
    assert not pool._waiting
    assert not pool._joined


def test_kernels_of_users_are_compiled_here(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(list_templates(), "of_a_user", of_a_user)
    own = KernelSpec("of_a_user", ("f32",))
    assert next(iter(objects(own, *SMALL))) == own.symbol
    assert (len(watched.processes), watched.here) == (2, [own])


def test_the_executor_gets_a_head_start(watched: Watched, cache: Path) -> None:
    for _ in range(2):
        load.start_early(detect_host())
        assert list(load._coming) == [(detect_host(), LAUNCH), (detect_host(), WORKER)]
    assert len(objects(LAUNCH, WORKER)) == 2
    assert not load._coming
    assert (len(watched.processes), watched.here) == (2, [])
    load.start_early(detect_host())
    assert not load._coming


def test_kernels_of_a_plan_follow_the_executor(watched: Watched, cache: Path) -> None:
    """They are asked for as soon as they are known, if the processes were started early."""
    target = detect_host()
    load.compile_ahead(SMALL, target)
    assert not load._coming
    load.start_early(target)
    load.compile_ahead([*SMALL, SMALL[0]], target)
    assert load._coming.keys() == {(target, spec) for spec in (LAUNCH, WORKER, *SMALL)}
    assert len(objects(LAUNCH, WORKER, *SMALL)) == 2 + len(SMALL)
    assert not load._coming
    load.start_early(target)
    load.compile_ahead(SMALL, target)
    assert not load._coming
    assert (len(watched.processes), watched.here) == (2, [])


FORKED = """
import os
from engine.kernels.compiler import frontend
from engine.kernels.binaries import serve

ready = []
os.fork = lambda: ready.append(frontend._make_contexts.cache_info().currsize) or 1
serve.answer = lambda jobs, answers, ready: None
out = os.dup(1)
serve.main([os.pipe(), os.pipe()])
os.write(out, repr(ready).encode())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_processes_are_forked_when_the_compiler_is_ready() -> None:
    """Each would get it ready for itself, in the time of several kernels."""
    words = [sys.executable, "-c", FORKED]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # as workers.py starts it
    done = subprocess.run(words, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.stdout == "[1, 1]", done.stderr


def test_who_compiles_nothing_imports_nothing_for_it(watched: Watched) -> None:
    """A warm start pays for no pool, no processes and no log."""
    code = (
        "import sys\n"
        "from engine.kernels.binaries import load\n"
        "from engine.kernels.machine.target import detect_host\n"
        "from engine.runtime.team import LAUNCH, WORKER\n"
        "load.start_early(detect_host())\n"
        "load.get_linker(detect_host()).get_addresses((LAUNCH, WORKER))\n"
        "print(*sorted({'concurrent.futures', 'engine.kernels.binaries.workers', 'logging', 'tqdm',"
        " 'numba'} & set(sys.modules)))\n"
    )
    objects(LAUNCH, WORKER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_plan_asks_once_for_all_that_it_lacks(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor, as the kernels of the plan, so that all are compiled side by side."""
    from engine.api import CheckpointState, Module
    from engine.models.images import build_mlp
    from engine.tools.benchmark.workload import write_artifacts

    asked = []

    def resolve(self: source.KernelSet, kernels: Any) -> dict[str, int]:
        asked.append([k.symbol for k in kernels])
        return {symbol: 1 for symbol in asked[-1]}

    write_artifacts(build_mlp(), tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    assert len(load._coming) == 2, "processes start before the model is planned"
    monkeypatch.setattr(source.KernelSet, "resolve", resolve)
    module.session.training.get_program([(4, 784), (4,)])
    assert asked[0][:2] == [LAUNCH.symbol, WORKER.symbol]
    assert len(asked[0]) > 10


def test_processes_start_before_a_model_is_built(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.trainer import architectures
    from engine.trainer.trainer import Trainer

    begun = []

    def begin(*_: Any, **__: Any) -> Any:
        begun.append(len(load._coming))
        raise KeyboardInterrupt

    monkeypatch.setattr(architectures, "begin", begin)
    with pytest.raises(KeyboardInterrupt):
        Trainer.from_model("mlp", input_shape=(20,), classes=2)
    assert begun == [2]  # the executor's kernels are being compiled
    with pytest.raises(FileError):
        Trainer.from_onnx("missing.onnx", "cross_entropy")
    assert len(watched.processes) == 2


# --- what goes wrong


@pytest.mark.parametrize("which", [0, 1])  # on Linux, the second is a fork of the first
def test_a_process_that_ends_costs_time_only(
    which: int, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = workers._ask
    killed: list[KernelSpec] = []

    def kill_one(process: workers.Process, job: Any) -> Any:
        if process is watched.processes[which] and not killed:
            killed.append(job.spec)
            job = Deadly()
        return ask(process, job)

    monkeypatch.setattr(workers, "_ask", kill_one)
    assert len(objects(*SMALL)) == len(SMALL)
    assert (len(watched.processes), watched.here) == (2, killed)
    assert len(killed) == 1


def test_processes_that_cannot_start_cost_time_only(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_START", "raise SystemExit(1)")
    assert len(objects(*SMALL[:5])) == 5
    assert (len(watched.processes), watched.here) == (2, list(SMALL[:5]))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert len(load.get_codes(SMALL[:5], detect_host(), load.SMALL_BITCODE)) == 5


def test_an_error_is_that_of_compiling_here(watched: Watched) -> None:
    wrong = KernelSpec("total_loss", ("no_such_type",))
    with pytest.raises(InternalError) as here:
        load.compile_kernel(wrong, detect_host())
    with pytest.raises(InternalError) as beside:
        objects(*SMALL, wrong)
    assert str(beside.value) == str(here.value)
    assert watched.here == [wrong, wrong]
    assert len(watched.processes) == 2


def test_a_cache_that_cannot_be_written_loses_no_result(
    watched: Watched, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_bytes(b"")
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    assert len(objects(*SMALL)) == len(SMALL)
    assert (len(watched.processes), watched.here) == (2, [])
    assert f"not kept for the next start: {cache} cannot be written" in caplog.text
    assert "EDGEGRAD_CACHE_DIR chooses another folder" in caplog.text
    monkeypatch.setattr("engine.system.cache.find_cache_dir", lambda: None)
    assert load._say_where().startswith("not kept for the next start: there is no home folder; ")


def test_an_interrupt_ends_the_processes_and_leaves_whole_files(
    watched: Watched, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = concurrent.futures.wait

    def interrupted(*args: Any) -> Any:
        done, pending = real(*args)
        if done:
            signal.raise_signal(signal.SIGINT)
        return done, pending

    monkeypatch.setattr(concurrent.futures, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        objects(*SMALL)
    assert len(watched.processes) == 2
    assert watched.ended()
    assert not [kind for kind in files(cache) if kind not in ("bc", "o")]
    monkeypatch.setattr(concurrent.futures, "wait", real)
    assert len(objects(*SMALL)) == len(SMALL)


def test_two_programs_share_a_cold_cache(cache: Path) -> None:
    script = (
        "from engine.kernels.binaries import load, workers\n"
        "from engine.kernels.machine.target import detect_host\n"
        "from engine.plan.plan import KernelSpec\n"
        "workers.count_cores = lambda: 2\n"
        f"specs = [KernelSpec(*row) for row in {[(s.template, s.params) for s in SMALL]}]\n"
        "print(len(load.get_codes(specs, detect_host(), load.OBJECT)))\n"
    )
    programs = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(2)
    ]
    answers = [program.communicate()[0].split() for program in programs]
    assert answers == [[str(len(SMALL)).encode()]] * 2
    assert files(cache) == ["bc"] * len(SMALL) + ["o"] * len(SMALL)
    assert all(load._read(spec, detect_host(), load.OBJECT) is not None for spec in SMALL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")
def test_a_forked_child_has_processes_of_its_own(cache: Path) -> None:
    """Processes of its parent end with the parent, although the child lives on."""
    script = (
        "import os, sys, warnings\n"
        "from engine.kernels.binaries import load, workers\n"
        "from engine.kernels.machine.target import detect_host\n"
        "from engine.plan.plan import KernelSpec\n"
        "warnings.simplefilter('ignore')  # of threads of the pool\n"
        "workers.count_cores = lambda: 2\n"
        f"specs = [KernelSpec(*row) for row in {[(s.template, s.params) for s in SMALL]}]\n"
        "load.start_early(detect_host())\n"
        "load.get_codes(specs[:5], detect_host(), load.OBJECT)\n"
        "mine = workers.pool()\n"
        "if child := os.fork():\n"
        "    processes = list(mine._processes)\n"
        "    mine._processes.clear()\n"
        "    for process in processes: process.close()\n"
        "    ended = [process.program.wait(60) for process in processes]\n"
        "    print('end of input', len(ended), flush=True)\n"
        "    sys.exit(os.waitpid(child, 0)[1])\n"
        "assert workers.pool() is not mine and not load._coming\n"
        "sys.stdin.read()\n"
        "assert len(load.get_codes(specs, detect_host(), load.SMALL_BITCODE)) == len(specs)\n"
        "os._exit(0)\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "end of input 2\n"
    program.communicate()
    assert program.returncode == 0


def test_processes_end_when_there_is_nothing_to_do(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "IDLE", 0.0)
    objects(*SMALL)
    for process in watched.processes:
        process.program.wait(60)
    assert watched.ended()


def test_who_carries_code_does_not_decide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of what distributes the work leaves every compiled kernel as it is."""

    def digest() -> bytes:
        fingerprint._digest.cache_clear()
        return fingerprint._digest("engine.kernels.loops.gemm")

    edited = tmp_path / "edited.py"
    edited.write_text("# edited\n")
    before = digest()
    for module, same in [("binaries.workers", True), ("binaries.serve", True),
                         ("binaries.load", True), ("compiler.lower", False)]:  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setitem(fingerprint.list_sources(), f"engine.kernels.{module}", edited)
            assert (digest() == before) == same, module
    assert digest() == before


# --- what is said


class Terminal(io.StringIO):
    """A stderr that a person watches, who knows when something has been said."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.said.set()


def work(total: int) -> None:
    text, note = "compiling {count} kernels for this CPU", "once, kept in /home/{me}/cache"
    with progress.WorkProgress(text, total, note) as p:
        for _ in range(total):
            p.count(1)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All work lasts."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)


def test_nothing_is_said_of_what_is_fast(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    work(5)
    with progress.announced("planning"):
        pass
    assert (caplog.records, terminal.getvalue()) == ([], "")


@pytest.mark.usefixtures("at_once")
def test_of_what_lasts_beginning_and_end_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    work(5)
    assert [(r.name, r.levelname, r.message) for r in caplog.records] == [
        ("edgegrad", "WARNING", message)
        for message in (
            "compiling 1/5 kernels for this CPU: about 1 s left; once, kept in /home/{me}/cache",
            "compiling 5/5 kernels for this CPU: done in 0 s",
        )
    ]


@pytest.mark.usefixtures("at_once")
def test_the_time_left_follows_from_shares_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter([0.0, *[0.5] * 3, *[6.0] * 9])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(progress, "PATIENCE", 0.4)
    with progress.WorkProgress("work {count}", 4) as p:
        p.count(0, 0.05)
        assert not caplog.records
        p.count(1, 0.7)
    assert [r.message for r in caplog.records] == ["work 1/4: about 2 s left"]


@pytest.mark.usefixtures("at_once")
def test_what_fails_is_not_called_done(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        with progress.WorkProgress("work {count}", 2) as p:
            p.count()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [r.message for r in caplog.records] == ["work 0/2"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.usefixtures("at_once")
def test_a_terminal_without_a_size_gets_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A container's has none; a bar would show nothing there."""
    parent, child = os.openpty()
    with open(parent, "rb", 0), open(child, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert terminal.isatty()
        work(5)
    assert len(caplog.records) == 2


@pytest.mark.usefixtures("at_once")
def test_a_terminal_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    work(5)
    shown = terminal.getvalue().split("\r")
    assert shown[1].startswith("compiling 1/5 kernels for this CPU |")
    assert shown[-1].startswith("compiling 5/5 kernels for this CPU |")
    assert "left; once, kept in /home/{me}/cache" in shown[1]
    assert not caplog.records


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_the_level_of_the_logger_silences_both(
    stream: Callable[[], io.StringIO],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "stderr", quiet := stream())
    caplog.set_level(logging.ERROR, "edgegrad")
    work(5)
    with progress.announced("planning"):
        time.sleep(0.01)
    assert (caplog.records, quiet.getvalue()) == ([], "")


@pytest.mark.usefixtures("at_once")
def test_planning_is_announced_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress.announced("planning the training model"):
        assert terminal.said.wait(60)
    assert terminal.getvalue() == "planning the training model\n"


def test_the_bar_of_the_demo_starts_after_what_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step plans and compiles: an estimate that counted it would be wrong."""
    events: list[str] = []

    class Bar:
        def __init__(self, **_: Any) -> None:
            events.append("bar")

        def set_postfix_str(self, *_: Any, **__: Any) -> None: ...
        def update(self, count: int) -> None: ...
        def close(self) -> None:
            events.append("end")

    class Model:
        def __call__(self, x: Any, y: Any) -> tuple[float, Any]:
            events.append("step")
            return 1.0, np.zeros((len(x), 10))

        def lazy_reset_grad(self) -> None: ...

    class Rule:
        def step(self) -> None:
            events.append("update")

    monkeypatch.setattr(demo, "tqdm", Bar)
    monkeypatch.setattr(demo, "LinearLRScheduler", lambda *_: Rule())
    module: Any = Model()
    optimizer: Any = Rule()
    x, y = np.zeros((3 * demo.BATCH, 1, 8, 8), np.float32), np.zeros(3 * demo.BATCH, np.int64)
    seconds = demo.train(module, optimizer, x, y, 2)
    assert len(seconds) == 6
    step = ["step", "update", "update"]
    assert events == 2 * [*step, "bar", *step, *step, "end"]
