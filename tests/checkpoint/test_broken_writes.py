"""Writes of checkpoints that fail or are killed leave the old file or the new one."""

from __future__ import annotations

import errno
import io
import os
import random
import re
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.checkpoint import storage
from engine.errors import FileError
from tests.support.checkpoints import (
    KINDS,
    PATHS,
    THRESHOLD,
    get_array,
    make_sample,
    put,
    run_python,
    simplify,
)


@pytest.mark.parametrize(
    "limit", [0, 100, 950]
)  # the external data fits 950 bytes, no main file does
@pytest.mark.parametrize(("old", "new"), KINDS)
def test_a_full_disk_leaves_the_old_checkpoint(
    tmp_path: Path, old: str, new: str, limit: int
) -> None:
    path = tmp_path / "ck"
    put(1.0, path, old)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(FileError, match=r"cannot write checkpoint .*ck': File too large"):
            put(2.0, path, new)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


@pytest.mark.parametrize("call", ["replace", "fsync", "open"])
@pytest.mark.parametrize(("old", "new"), KINDS)
def test_any_failing_call_leaves_one_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, call: str
) -> None:
    original = getattr(os, call)
    outcomes, messages = [], []
    for nth in range(1, 20):
        path = tmp_path / str(nth) / "ck"
        path.parent.mkdir()
        put(1.0, path, old)
        calls = 0

        def failing(*args: Any, nth: int = nth) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*args)

        monkeypatch.setattr(os, call, failing)
        try:
            put(2.0, path, new)
        except FileError as error:
            messages.append(str(error))
            outcomes.append(storage.read(path).properties["epoch"])
        else:
            break
        finally:
            monkeypatch.undo()
        content = storage.read(path)
        assert simplify(content) in (simplify(make_sample(1.0)), simplify(make_sample(2.0)))
        assert not [f for f in os.listdir(path.parent) if f.endswith(".tmp")]
        put(3.0, path, new)
        assert simplify(storage.read(path)) == simplify(make_sample(3.0))
        assert set(os.listdir(path.parent)) <= {"ck", "ck.data"}
    else:
        pytest.fail("writing never got through")
    assert outcomes == sorted(outcomes)  # the new one, once it counts, stays
    assert outcomes[0] == (2 if call == "open" and new == "inline" else 1)
    assert all(
        re.fullmatch(r"cannot write checkpoint '.*/ck': No space left on device", message)
        for message in messages
    )


CRASH = """
    import builtins, os
    from engine.checkpoint import storage
    path, nth, threshold = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cp = storage.read(path + ".next")
    count = 0
    def dying(function):
        def call(*args, **kwargs):
            global count
            count += 1
            if count == nth:
                os._exit(9)
            return function(*args, **kwargs)
        return call
    for name in ("replace", "fsync", "unlink", "open"):
        setattr(os, name, dying(getattr(os, name)))
    builtins.open = dying(open)
    storage.write(cp, path, external_threshold=threshold)
"""


@pytest.mark.parametrize(("old", "new"), KINDS)
def test_a_crash_before_any_system_call_leaves_the_old_or_the_new(
    tmp_path: Path, old: str, new: str
) -> None:
    seen = []
    for nth in range(1, 40):
        path = tmp_path / str(nth) / "ck"
        path.parent.mkdir()
        put(1.0, path, old)
        put(2.0, path.parent / "ck.next", "inline")
        code = run_python(CRASH, path, nth, THRESHOLD[new]).returncode
        content = storage.read(path)
        assert simplify(content) in (simplify(make_sample(1.0)), simplify(make_sample(2.0)))
        seen.append(content.properties["epoch"])
        # The next write cleans up all that was left, and the one after a crash counts.
        put(3.0, path, new if nth % 2 else old)
        assert simplify(storage.read(path)) == simplify(make_sample(3.0))
        left = [f for f in os.listdir(path.parent) if not f.endswith(".tmp")]
        assert set(left) <= {"ck", "ck.data", "ck.next"}
        if code == 0:
            break
        assert code == 9
    else:
        pytest.fail("writing never got through")
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (1, 2)


WRITER = """
    import numpy as np
    from engine.checkpoint import storage
    from engine.checkpoint.storage import Checkpoint
    path, threshold = sys.argv[1], int(sys.argv[2])
    pair = [Checkpoint({str(i): np.full(50_000, v, np.float32) for i in range(4)}) for v in (1, 2)]
    while True:
        for cp in pair:
            storage.write(cp, path, external_threshold=threshold)
            print("written", flush=True)
"""


@pytest.mark.parametrize("kind", ["inline", "external"])
def test_kill_9_while_writing_leaves_the_old_or_the_new(tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    path = tmp_path / "ck"
    command = [sys.executable, "-S", "-c", PATHS + textwrap.dedent(WRITER), path]
    for _ in range(15):
        with subprocess.Popen(
            [*map(str, command), str(THRESHOLD[kind])], stdout=subprocess.PIPE, text=True
        ) as process:
            for _ in range(rng.randrange(1, 4)):
                assert process.stdout is not None
                assert process.stdout.readline() == "written\n"
            # The delay only spreads the kills over the phases of a write.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=rng.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
        values = {
            float(v) for a in storage.read(path).trainable.values() for v in np.unique(get_array(a))
        }
        assert values in ({1.0}, {2.0})


def test_a_reader_notices_a_replacement_between_its_two_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ck"
    put(1.0, path, "external")
    original = storage._open

    def racing(name: str) -> io.FileIO:
        file = original(name)
        if name == str(path):
            monkeypatch.setattr(storage, "_open", original)
            put(2.0, path, "external")
        return file

    monkeypatch.setattr(storage, "_open", racing)
    with pytest.raises(FileError, match="it is being replaced; try again"):
        storage.read(path)
    assert simplify(storage.read(path)) == simplify(make_sample(2.0))
