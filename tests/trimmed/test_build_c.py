"""Trimmed builds from C and C++: contracts, hostile input, no allocation, no library but libc."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from engine.api import CheckpointState
from engine.checkpoint import storage
from engine.tools.trimmed import binary
from engine.tools.trimmed.link import link
from engine.tools.trimmed.targets import TARGETS, resolve
from tests.support.builds import (
    LIBC,
    SANITIZE,
    WARNINGS,
    compile_c,
    list_sources,
    load,
    make_build,
    make_library,
    make_source,
    needs_cc,
    plan_file,
    run,
    write_source,
)
from tests.support.places import DRIVERS, GOLDENS
from tests.support.shown import shows

pytestmark = needs_cc

THREADS = {
    "pthread_create", "pthread_join", "pthread_cond_broadcast", "pthread_cond_destroy",
    "pthread_cond_init", "pthread_cond_wait", "pthread_mutex_destroy", "pthread_mutex_init",
    "pthread_mutex_lock", "pthread_mutex_unlock", "sched_yield",
}  # fmt: skip
NM = "llvm-nm-19"
LINKER = {
    "__heap_base",
    "__indirect_function_table",
    "__memory_base",
    "__stack_pointer",
    "__table_base",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with optimizer state and properties of every kind."""
    path = tmp_path_factory.mktemp("state") / "checkpoint"
    trainer = load(make_build("mlp")).Trainer()
    trainer.step(np.zeros((4, 64), np.float32), np.arange(4))
    for name, value in (("epoch", 3), ("loss", 0.25), ("note", "hello")):
        trainer.state.properties[name] = value
    trainer.save(path)
    return path


@pytest.mark.parametrize("threads", [1, 2])
def test_the_library_needs_nothing_but_libc(threads: int) -> None:
    needs = binary.read(make_build("mlp", threads) / "libmnist.so").needs
    assert needs <= LIBC | (THREADS if threads > 1 else set())


@pytest.mark.parametrize("threads", [1, 2])
def test_a_freestanding_build_needs_nothing_at_all(threads: int, tmp_path: Path) -> None:
    folder = make_build("mlp", threads, freestanding=True)
    whole = ("-Wl,--whole-archive", folder / "libmnist.a", "-Wl,--no-whole-archive")
    shared = compile_c(tmp_path / "x.so", "-shared", "-nostdlib", *whole)
    assert binary.read(shared).needs == set()
    flags = ("-std=c11", *WARNINGS, "-DEDGEGRAD_FREESTANDING", f"-I{folder}", "-pthread")
    driver = DRIVERS / "freestanding.c"
    program = compile_c(tmp_path / "x", *flags, driver, folder / "libmnist.a")
    losses = [float.fromhex(line) for line in run(program, folder / "checkpoint").split()]
    trainer = load(make_build("mlp", threads)).Trainer()
    x = np.array([np.float32(i % 7) / np.float32(7) for i in range(256)], np.float32)
    expected = [float(trainer.step(x.reshape(4, 64), np.arange(4))) for _ in range(5)]
    assert losses == expected


@pytest.mark.skipif(not shutil.which(NM), reason="needs llvm-nm, which reads all formats")
@pytest.mark.parametrize("target", TARGETS)
def test_a_freestanding_runtime_needs_no_libc(target: str, tmp_path: Path) -> None:
    """Nor a compiler's library: its C, for every target."""
    platform = resolve(target)
    made = make_source("mnist", threads=2 if platform.pthread or platform.is_wasm else 1)
    write_source(made, tmp_path)
    archive = link(
        [], [tmp_path / "library.c"], platform, tmp_path / "library.a", kind="static",
        defines={"EDGEGRAD_FREESTANDING": ""}, size=True, threads=False, freestanding=True,
        compiler="zig",
    )  # fmt: skip
    names = []
    for kind in ("--undefined-only", "--defined-only"):
        listed = subprocess.check_output([NM, kind, "--just-symbol-name", archive], text=True)
        symbols = {line for line in listed.split() if not line.endswith(":")}
        names.append({symbol.removeprefix("_" * (platform.form == "macho")) for symbol in symbols})
    data = {name for name in names[0] if name.startswith(made.link_name(""))}
    needs = names[0] - names[1] - data
    assert needs <= (LINKER if platform.is_wasm else set())


@pytest.mark.parametrize(
    ("compiler", "standard", "source"),
    [("gcc", "c11", "example.c"), ("g++", "c++17", "example.cpp")],
)
@shows("C", "Linux, x86-64", "run")
def test_examples_compile_without_warnings_and_train(
    compiler: str, standard: str, source: str, tmp_path: Path
) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    folder = make_build("mlp", 2)
    flags = (f"-std={standard}", "-pedantic", *WARNINGS, f"-I{folder}")
    library = (f"-L{folder}", "-lmnist", f"-Wl,-rpath,{folder}")
    example = folder / "src" / source
    program = compile_c(tmp_path / "example", *flags, example, *library, compiler=compiler)
    out = run(program, folder / "checkpoint", tmp_path / "new")
    assert out.count("loss") == 20
    state = CheckpointState.load_checkpoint(tmp_path / "new")
    assert state.groups[0].step == 20
    assert state.learning_rate == pytest.approx(0.01)


@pytest.mark.parametrize("define", ["", "-DEDGEGRAD_FREESTANDING"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_library_compiles_without_warnings(threads: int, define: str, tmp_path: Path) -> None:
    folder = make_build("mlp", threads)
    strict = ("-std=c11", "-pedantic", *WARNINGS, "-Wshadow", "-Wconversion", "-O2")
    flags = (*strict, *filter(None, [define]), f"-I{folder}")
    compile_c(tmp_path / "x.o", *flags, "-c", folder / "src" / "mnist.c")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("c") / "hostile"
    return compile_c(
        out, *WARNINGS, *SANITIZE, DRIVERS / "hostile.c", *list_sources(make_build("mlp"))
    )


def test_hostile_checkpoints_never_crash(hostile: Path, checkpoint: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_bytes(storage.encode(storage.read(checkpoint), checksum=False)[0])
    accepted, refused = map(int, re.findall(r"\d+", run(hostile, bare, "17", "3000")))
    assert accepted > 100, "without a checksum changes of values alone are accepted"
    assert refused > 3000
    accepted_with, _ = map(int, re.findall(r"\d+", run(hostile, checkpoint, "501", "3000")))
    assert accepted_with * 10 < accepted, "bytes that had the new value already"


def test_a_changed_value_names_the_file_and_the_checksum(checkpoint: Path, tmp_path: Path) -> None:
    data = bytearray(checkpoint.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad").write_bytes(data)
    face = load(make_build("mlp"))
    with pytest.raises(face.CheckpointError, match=r"bad: checkpoint: checksum: .* damaged"):
        face.Trainer(tmp_path / "bad")


def test_every_truncation_is_refused(hostile: Path) -> None:
    run(hostile, GOLDENS / "mlp" / "checkpoint", "1", "3000")


def test_calls_in_any_order_are_safe(checkpoint: Path, tmp_path: Path) -> None:
    driver = DRIVERS / "calls.c"
    program = compile_c(
        tmp_path / "calls", *WARNINGS, *SANITIZE, driver, *list_sources(make_build("mlp", 2)), "-lm"
    )
    assert run(program, checkpoint, tmp_path) == "ok\n"


@pytest.mark.parametrize("kind", ["build", "library"])
def test_every_refusal_says_what_was_found(kind: str, checkpoint: Path, tmp_path: Path) -> None:
    """tests/c/refusals.c is a table of calls, codes and messages; no call touches the file."""
    folder = make_build("mlp") if kind == "build" else make_library()
    driver = DRIVERS / "refusals.c"
    program = compile_c(
        tmp_path / "refusals", *WARNINGS, *SANITIZE, driver, *list_sources(folder), "-lm"
    )
    mine = tmp_path / "checkpoint"
    shutil.copy(checkpoint, mine)
    plans = [] if kind == "build" else [plan_file(GOLDENS / "mlp", "4")]
    assert run(program, mine, tmp_path, *plans).endswith(", 0 wrong\n")
    assert mine.read_bytes() == checkpoint.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "refusals"]


@pytest.mark.skipif(not shutil.which("ld"), reason="needs GNU ld, which wraps symbols")
def test_no_step_allocates(checkpoint: Path, tmp_path: Path) -> None:
    wrap = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc")]
    driver = DRIVERS / "allocations.c"
    program = compile_c(
        tmp_path / "count", *WARNINGS, driver, *list_sources(make_build("mlp")), *wrap
    )
    match = re.match(r"creation (\d+) steps (\d+)", run(program, checkpoint))
    assert match is not None
    assert int(match[1]) > 0, "the counter works"
    assert int(match[2]) == 0
