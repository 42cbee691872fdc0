"""Objects: kernels run without LLVM, and what is known of the CPU without it."""

from __future__ import annotations

import ctypes
import dataclasses
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.kernels import hosts, objects
from engine.kernels.compiler.load import object_code
from engine.kernels.target import host
from engine.runtime import cache
from engine.runtime.plan import KernelSpec
from engine.tools.trimmed.targets import resolve

SUM = KernelSpec("total_loss", ("f32",))
PLAIN = sys.platform == "linux" and platform.machine() == "x86_64"
needs_plain = pytest.mark.skipif(not PLAIN, reason="other objects are linked by LLVM")
STEP = """
import sys
import numpy as np
from engine.api import CheckpointState, Module, Optimizer
folder = sys.argv[1]
state = CheckpointState.load_checkpoint(folder + "/checkpoint")
module = Module(folder + "/training_model.onnx", state, threads=2)
optimizer = Optimizer(folder + "/optimizer_model.onnx", module)
module(np.ones((4, 784), np.float32), np.zeros(4, np.int64))
optimizer.step()
print(*sorted({"llvmlite", "numba", "onnx", "engine.graphs"} & set(sys.modules)))
"""


@needs_plain
def test_a_warm_start_loads_no_compiler(tmp_path: Path) -> None:
    from engine.tools.workloads.images import mlp
    from engine.tools.workloads.workload import write_artifacts

    write_artifacts(mlp(), tmp_path)
    for _ in range(2):  # the first one plans and compiles
        words = [sys.executable, "-c", STEP, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@needs_plain
def test_linked_objects_run() -> None:
    found = objects.link({SUM.symbol: object_code(SUM, host())})
    assert ctypes.c_ubyte.from_address(found[SUM.symbol]).value  # an instruction
    with pytest.raises(EngineError, match="other: not found in its own object"):
        objects.link({"other": object_code(SUM, host())})


@needs_plain
def test_what_is_not_known_is_left_to_llvm() -> None:
    code = object_code(SUM, host())
    (begin,) = struct.unpack_from("<Q", code, 40)  # of the table of sections
    size, count = struct.unpack_from("<2H", code, 58)
    writable = bytearray(code)
    for at in range(begin, begin + size * count, size):  # all that is loaded can be written
        (flags,) = struct.unpack_from("<Q", writable, at + 8)
        struct.pack_into("<Q", writable, at + 8, flags | 1 if flags & 2 else flags)
    others = {
        "bitcode": b"BC\xc0\xde" * 32,
        "cut short": code[:40],
        "arm": object_code(SUM, resolve("aarch64").target),
        "writable": bytes(writable),
    }
    assert objects.link(others) == {}


def test_the_cpu_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGRAD_CACHE_DIR", str(tmp_path))
    known = hosts.known_host.__wrapped__
    assert known() == host()
    if not (kept := list(tmp_path.glob("host-*"))):
        pytest.skip("this system tells no CPU")
    other = dataclasses.replace(host(), cpu="kept")
    monkeypatch.setattr(hosts, "host", lambda: other)
    assert known() == host() != other
    cache.write(kept[0], b"[]")
    assert known() == other
    kept[0].write_bytes(b"damaged")
    assert known() == other
    monkeypatch.setattr(hosts, "_CPUINFO", str(tmp_path / "none"))
    assert known() == other
