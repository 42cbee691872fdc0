"""Objects: kernels run without LLVM, and what is known of the CPU without it."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import mmap
import platform
import random
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.kernels.binaries import object_files, objects
from engine.kernels.binaries.load import get_linker, get_object
from engine.kernels.machine import hosts
from engine.kernels.machine.target import detect_host
from engine.plan.plan import KernelSpec
from engine.system import cache
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
    from engine.models.images import build_mlp
    from engine.tools.benchmark.workload import write_artifacts

    write_artifacts(build_mlp(), tmp_path)
    for _ in range(2):  # the first one plans and compiles
        words = [sys.executable, "-c", STEP, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@needs_plain
def test_linked_objects_run() -> None:
    linked = objects.link({SUM.symbol: get_object(SUM, detect_host())})
    assert ctypes.c_ubyte.from_address(linked[SUM.symbol]).value  # an instruction
    with pytest.raises(EngineError, match="other: not found in its own object"):
        objects.link({"other": get_object(SUM, detect_host())})


@needs_plain
def test_what_is_not_known_is_left_to_llvm() -> None:
    code = get_object(SUM, detect_host())
    (begin,) = struct.unpack_from("<Q", code, 40)  # of the table of sections
    size, count = struct.unpack_from("<2H", code, 58)
    writable = bytearray(code)
    for at in range(begin, begin + size * count, size):  # all that is loaded can be written
        (flags,) = struct.unpack_from("<Q", writable, at + 8)
        struct.pack_into("<Q", writable, at + 8, flags | 1 if flags & 2 else flags)
    others = {
        "bitcode": b"BC\xc0\xde" * 32,
        "cut short": code[:40],
        "arm": get_object(SUM, resolve("aarch64").target),
        "writable": bytes(writable),
    }
    assert objects.link(others) == {}


def test_the_cpu_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGRAD_CACHE_DIR", str(tmp_path))
    known = hosts.find_host.__wrapped__
    assert known() == detect_host()
    if not (kept := list(tmp_path.glob("host-*"))):
        pytest.skip("this system does not name its CPU")
    other = dataclasses.replace(detect_host(), cpu="kept")
    monkeypatch.setattr(hosts, "detect_host", lambda: other)
    assert known() == detect_host() != other
    entry = cache.Entry(kept[0], "host", kept[0].name)
    for content in (
        b"[]",
        b"[" * 100_000,
        json.dumps(dataclasses.asdict(other) | {"mr": "6"}).encode(),
    ):
        cache.write(entry, content)
        assert known() == other
    kept[0].write_bytes(b"damaged")
    assert known() == other
    monkeypatch.setattr(hosts, "CPUINFO", str(tmp_path / "none"))
    assert known() == other


# --- objects from a disk, which may hold anything

FORMS = (
    "x86-64-v3",
    "aarch64",
    "raspberrypi2",
    "riscv64",
    "macos-arm64",
    "windows-x86_64",
    "wasm32",
    "cortex-m7",
    "rv32imafc",
)
ODD = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 64) - 1)


def changed(rng: random.Random, code: bytes) -> bytes:
    """An object with a few fields set to what they are not, or cut short."""
    actual = bytearray(code)
    for _ in range(rng.randint(1, 3)):
        size, at = rng.choice((1, 2, 4, 8)), rng.randrange(len(actual) - 8)
        near = int.from_bytes(actual[at : at + size], "little") + rng.randint(-9, 9)
        value = rng.choice((rng.choice(ODD), near, len(code), rng.getrandbits(8 * size)))
        actual[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(actual[: rng.randrange(len(actual))] if rng.random() < 0.05 else actual)


@pytest.mark.parametrize("name", FORMS)
def test_any_bytes_are_an_object_or_none(name: str) -> None:
    target = resolve(name).target
    code, rng = get_object(SUM, target), random.Random(15)
    assert object_files.fits(code, SUM.symbol, target)
    assert not object_files.fits(code, "other", target)
    cut = [n for n in range(len(code)) if object_files.fits(code[:n], SUM.symbol, target)]
    assert not cut or name == "wasm32"  # whose sections may end anywhere
    for other in FORMS:
        same = resolve(other).target.machine == target.machine  # the form is what the bytes say
        assert object_files.fits(code, SUM.symbol, resolve(other).target) == same
    answers = Counter(
        object_files.fits(changed(rng, code), SUM.symbol, target) for _ in range(2000)
    )
    assert min(answers.values()) > 20
    assert len(answers) == 2


@needs_plain
def test_damaged_objects_are_linked_into_their_own_pages_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their sections, symbols and distances; nothing is run of what they hold."""
    written: list[tuple[int, int]] = []

    def protect(pages: mmap.mmap) -> int:
        written[:] = [(0, len(pages))]
        return 0

    monkeypatch.setattr(objects, "_protect", protect)
    monkeypatch.setattr(objects, "_pages", [])  # this test's own, which can go
    code, rng, kinds = get_object(SUM, detect_host()), random.Random(15), Counter[str]()
    for _ in range(3000):
        try:
            linked = objects.link({SUM.symbol: changed(rng, code)})
        except EngineError as error:
            kinds[type(error).__name__] += 1
            continue
        kinds[str(len(linked))] += 1
        assert all(0 <= at < written[0][1] for at in linked.values())
        objects._pages.clear()
    assert min(kinds[kind] for kind in ("EngineError", "0", "1")) > 20


@needs_plain
def test_a_distance_that_cannot_be_is_refused() -> None:
    code = get_object(KernelSpec("softmax_rows", ("f32", 1)), detect_host())
    read = object_files.read_elf(code)
    begin = next(s.at for s in read.sections if s.kind == object_files.ADDENDS)
    symbol = "softmax_rows_f32_1"
    assert objects.link({symbol: code})
    for field, value, message in (
        (16, 1 << 40, "a distance of"),
        (16, (1 << 31) + 4096, "a distance of"),
        (0, 1 << 40, ""),
        (0, next(s.length for s in read.sections if s.flags & object_files.EXECUTE) - 3, ""),
        (12, 1 << 30, ""),
    ):
        far = bytearray(code)
        struct.pack_into("<I" if field == 12 else "<Q", far, begin + field, value)
        if not message:
            assert objects.link({symbol: bytes(far)}) == {}
            with pytest.raises(EngineError, match="not found in its own object"):
                get_linker(detect_host()).add(symbol, bytes(far))  # nor is it left to LLVM
            continue
        with pytest.raises(EngineError, match=message):
            objects.link({symbol: bytes(far)})
