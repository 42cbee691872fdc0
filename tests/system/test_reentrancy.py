"""Calls inside calls: a step that a signal handler starts inside another one is a StateError."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from engine import backend
from engine.api import CheckpointState
from engine.errors import StateError
from engine.runtime.team import get_team
from engine.system.lock import RunLock
from tests.support.interrupts import interrupt_call
from tests.support.mlp import Training

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs signals")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_inside_a_step_is_refused(threads: int) -> None:
    training = Training(threads)
    training.step()
    said = interrupt_call(training.step, training.step)
    assert any(s.startswith("a step of this model is already running on this thread") for s in said)
    plain = Training(threads)
    del training
    assert np.isfinite(plain.step())


def test_a_step_of_another_model_is_refused_or_whole() -> None:
    """Its memory is its own, and the threads are shared."""
    training, other, reference = Training(2), Training(2), Training(2)
    training.step()
    losses: list[float] = [reference.step()]
    assert training.state.to_bytes(True) == reference.state.to_bytes(True)
    actual: list[float] = []
    said = interrupt_call(
        training.step, lambda: actual.append(other.module.eval()(other.x, other.y))
    )
    losses.append(reference.step())
    assert training.state.to_bytes(True) == reference.state.to_bytes(True)
    assert len(set(map(float, actual))) == 1
    assert any(s.startswith("a run of these threads is already running") for s in said)


def test_saving_inside_a_step_is_allowed() -> None:
    """A handler of SIGTERM may save what there is."""
    training = Training(1)
    training.step()
    saved = list[bytes]()
    assert not interrupt_call(training.step, lambda: saved.append(training.state.to_bytes(True)))
    assert saved
    for content in (saved[0], saved[-1]):
        CheckpointState.from_bytes(content)


def test_a_run_of_the_backend_inside_another_is_refused() -> None:
    training = Training(1)
    model = training.module.eval().inference_model_to_bytes(
        [training.module.session.evaluation.graph.nodes[0].outputs[0]]
        if training.module.session.evaluation
        else []
    )
    rep = backend.prepare(model, threads=1)
    expected = rep.run([training.x])
    said = interrupt_call(lambda: rep.run([training.x]), lambda: rep.run([training.x]))
    assert any("a step of this model is already running" in s for s in said)
    np.testing.assert_array_equal(rep.run([training.x])[0], expected[0])


def test_other_threads_wait_for_their_turn() -> None:
    training = Training(1)
    training.step()
    failed = list[BaseException]()

    def work() -> None:
        try:
            for _ in range(20):
                training.module.eval()(training.x, training.y)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_an_error_gives_the_lock_back() -> None:
    lock = RunLock("work")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), lock.take():
            raise KeyboardInterrupt
    with lock.take(), pytest.raises(StateError, match="work is already running"), lock.take():
        pass
    with lock.take():
        pass


def test_a_team_that_is_being_started_is_not_waited_for() -> None:
    """The resolver of kernels runs Python; what interrupts it cannot wait for its end."""

    def resolve(kernels: Any) -> dict[str, int]:
        get_team(3, resolve)
        return {}

    with pytest.raises(StateError, match="the start of worker threads is already running"):
        get_team(3, resolve)


def test_a_handler_that_steps_does_not_hang_a_program() -> None:
    """As the defect was found: alarms during a loop of steps, whose handler steps too."""
    code = f"""if True:
        import signal, sys
        sys.path.insert(0, {os.getcwd()!r})
        from tests.support.mlp import Training
        from engine.errors import StateError
        training, refused = Training(2), 0
        training.step()
        def handler(*_):
            global refused
            try:
                training.step()
            except StateError:
                refused += 1
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        while refused < 3:
            training.step()
        signal.setitimer(signal.ITIMER_REAL, 0)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
