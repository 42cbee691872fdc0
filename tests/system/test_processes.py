"""Processes: forks at any moment, pools, signals that stop, limits of threads and memory, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from engine.checkpoint import storage
from engine.checkpoint.storage import Checkpoint
from tests.support.interrupts import interrupt_call
from tests.support.places import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")

BEGIN = """
    import multiprocessing, os, signal, sys, threading, time, warnings
    warnings.simplefilter("ignore")  # of forks with threads: that is what this is about
    signal.alarm(400)
    import numpy as np
    from engine.api import CheckpointState, Module, Optimizer
    from engine.errors import StateError
    from pathlib import Path

    GOLDENS = Path("tests/data/goldens")

    def made(threads=2):
        folder = GOLDENS / "mlp"
        trace = np.load(folder / "trace.npz")
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        train, evaluation = folder / "training_model.onnx", folder / "eval_model.onnx"
        module = Module(train, state, evaluation, threads=threads)
        module.batch = trace["x"][0], trace["y"][0]
        return module

    def loss(module):
        return float(module.eval()(*module.batch))

    def in_child(work):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            signal.alarm(200)  # which ends it, should it hang
            status = 1
            try:
                status = 0 if work() else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
"""


def run(code: str, *words: object, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if cache is not None:
        env["EDGEGRAD_CACHE_DIR"] = str(cache)
    script = textwrap.dedent(BEGIN) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        cwd=ROOT, env=env, text=True, capture_output=True, timeout=500, check=False,
    )  # fmt: skip


def succeed(code: str, *words: object, cache: Path | None = None) -> str:
    outcome = run(code, *words, cache=cache)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


HELD = """
    inside, go = threading.Event(), threading.Event()

    def hold():
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go.wait(200)

    def begun(call):
        thread = threading.Thread(target=call)
        thread.start()
        assert inside.wait(200)
        return thread

    def refused(call, text):
        try:
            call()
        except StateError as error:
            return f"another thread of its parent was {text}" in str(error)
"""


def test_a_fork_while_another_thread_compiles() -> None:
    """The child runs what was planned, and a message says that it cannot compile."""
    code = """
    from engine.kernels.binaries.load import Linker
    known, new = made(), made()
    expected = loss(known)
    addresses = Linker.get_addresses

    def slow(self, kernels):
        hold()
        return addresses(self, kernels)

    Linker.get_addresses = slow
    thread = begun(lambda: loss(new))
    in_child(lambda: loss(known) == expected)
    in_child(lambda: refused(lambda: loss(made()), "compiling kernels"))
    in_child(lambda: os.execv(sys.executable, [sys.executable, "-c", "pass"]))
    go.set()
    thread.join()
    in_child(lambda: loss(made()) == loss(new) == expected)

    def daemon():
        if os.fork():
            os._exit(0)
        os.setsid()
        Path(sys.argv[1]).write_text(repr(loss(known) == expected))
        return True

    in_child(daemon)
    while not Path(sys.argv[1]).exists() or not Path(sys.argv[1]).read_text():
        time.sleep(0.02)
    assert Path(sys.argv[1]).read_text() == "True"
    """
    with tempfile.TemporaryDirectory() as folder:
        succeed(HELD + code, Path(folder) / "daemon")


def test_pools_of_processes() -> None:
    """Each way to start them, after steps of the parent."""
    code = """
    from concurrent.futures import ProcessPoolExecutor
    from tests.support.mlp import run_step
    expected = run_step(0)
    for way in ("fork", "spawn", "forkserver"):
        with ProcessPoolExecutor(2, multiprocessing.get_context(way)) as pool:
            assert list(pool.map(run_step, range(3))) == [expected] * 3, way
    """
    succeed(code)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_that_compile_end_with_their_parent(
    number: signal.Signals, tmp_path: Path
) -> None:
    code = """
    from engine.kernels.binaries import load, workers
    from engine.kernels.machine.target import detect_host
    workers.count_cores = lambda: 2
    load.start_early(detect_host())
    print(*(process.program.pid for process in workers.pool()._processes), flush=True)
    time.sleep(60)
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), "EDGEGRAD_CACHE_DIR": str(tmp_path)}
    script = textwrap.dedent(BEGIN) + textwrap.dedent(code)
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        children = {int(word) for word in parent.stdout.readline().split()}
        parent.send_signal(number)
    assert children
    end = time.monotonic() + 60
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < end, "a process that compiles outlives its parent"
        time.sleep(0.05)


def test_a_process_that_is_stopped_goes_on() -> None:
    code = """
    module = made()
    expected = loss(module)
    child = os.fork()
    if child == 0:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert loss(module) == expected
        os._exit(7)
    for _ in range(5):
        time.sleep(0.05)
        os.kill(child, signal.SIGSTOP)
        time.sleep(0.05)
        os.kill(child, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    succeed(code)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of addresses that is kept")
def test_memory_that_the_system_refuses() -> None:
    """The error is one of ours, and a MemoryError; what fits is run afterwards."""
    code = """
    import resource
    from engine.errors import EngineError
    module = made(threads=1)
    expected = loss(module)
    x, y = module.batch
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
    try:
        module(np.broadcast_to(x[:1], (2_000_000, x.shape[1])), np.zeros(2_000_000, np.int64))
    except MemoryError as error:
        assert isinstance(error, EngineError), error
        print(error)
    assert loss(module) == expected
    """
    assert "bytes" in succeed(code)


def test_a_save_inside_a_save(tmp_path: Path) -> None:
    """A handler may save to the path that is being written: what is left is whole."""
    content = Checkpoint({"w": np.ones(100, np.float32)}, properties={"epoch": 1})
    for threshold in (1 << 30, 0):

        def save(path: Path = tmp_path / str(threshold), threshold: int = threshold) -> None:
            storage.write(content, path, external_threshold=threshold)

        save()
        said = interrupt_call(save, save, {"storage.py", "files.py"})
        assert not said
        actual_content = storage.read(tmp_path / str(threshold))
        np.testing.assert_array_equal(actual_content.trainable["w"], np.ones(100, np.float32))


@pytest.mark.parametrize("words", [["version"], ["switches"]])
def test_output_that_cannot_be_written(words: list[str]) -> None:
    """A full disk and a closed output end a command with a line, and no traceback."""
    for end, output in ((1, "/dev/full"), (0, None)):
        command = f"{sys.executable} -m engine.tools.cli {' '.join(words)}"
        command += f" > {output}" if output else " >&-"
        outcome = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
        assert outcome.returncode == end, outcome.stderr
        assert "Traceback" not in outcome.stderr
