"""The readers of builds under changed files: a share of what `python -m tests.fuzz.native` runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from engine.tools.dev.emulators import find_emulator
from engine.tools.trimmed.generate import RUNTIME
from engine.tools.trimmed.link import link
from engine.tools.trimmed.targets import resolve
from tests.fuzz import native
from tests.support.builds import (
    SANITIZE,
    WARNINGS,
    make_build,
    make_build_for,
    needs_cc,
    write_types,
)
from tests.support.needs import needs_emulator
from tests.support.places import DRIVERS

pytestmark = needs_cc

COUNTS = {"checkpoint": 6000, "plan": 600, "message": 20_000}
EMULATED = [
    pytest.param("message", "raspberrypi2", marks=needs_emulator("raspberrypi2")),
    pytest.param("message", "raspberrypi4", marks=needs_emulator("raspberrypi4")),
    pytest.param("checkpoint", "raspberrypi2", marks=needs_emulator("raspberrypi2")),
    pytest.param(
        "checkpoint", "raspberrypi4", marks=[needs_emulator("raspberrypi4"), pytest.mark.whole]
    ),
]
FAULTS = {
    "bytes after the end": "return size > 40 && data[9] == 0xFF ? data[size] : 1;",
    "an overflow": "int n = 0x7FFFFFFF; return size > 40 && data[9] == 0xFF ? n + data[9] : 1;",
    "a promise": "if (size > 40 && data[9] == 0xFF) abort(); return 1;",
    "no end": "for (volatile int i = 1; size > 40 && data[9] == 0xFF && i;) ; return 1;",
}


@pytest.mark.parametrize("reader", native.READERS)
def test_no_changed_file_breaks_a_reader(reader: str, tmp_path: Path) -> None:
    done = native.run(reader, COUNTS[reader], 1, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    taken, refused, kept, ways = map(int, re.findall(r"\d+", done.stdout))
    assert taken + refused >= COUNTS[reader]
    assert min(taken, kept) > 5, "changes of values alone are taken"
    assert ways > 300, "what the reader runs through is seen"


@pytest.mark.parametrize("fault", FAULTS)
def test_the_loop_finds_a_fault_and_leaves_the_input(fault: str, tmp_path: Path) -> None:
    """It needs two ways one after the other: a size, and a byte."""
    loop = (DRIVERS / "fuzz.c").read_text().replace("LONGEST = 20", "LONGEST = 1")
    (tmp_path / "fuzz.c").write_text(loop)
    (tmp_path / "reader.c").write_text(
        '#include "fuzz.h"\n#include <stdlib.h>\nconst char *const fuzz_words[] = {0};\n'
        "void fuzz_mend(unsigned char *data, size_t size) { (void)data; (void)size; }\n"
        f"int fuzz_take(const unsigned char *data, size_t size) {{ {FAULTS[fault]} }}\n"
    )
    (tmp_path / "first").write_bytes(bytes(41))
    include = f"-I{DRIVERS}"
    objects = []
    for name, flags in (
        ("fuzz", ("-O2", "-D_POSIX_C_SOURCE=200809L", "-DSANITIZED")),
        ("reader", (*SANITIZE, native.GUIDED)),
    ):
        objects.append(tmp_path / f"{name}.o")
        source = tmp_path / f"{name}.c"
        words = ["cc", "-std=c11", *WARNINGS, *flags, include, "-c", source, "-o", objects[-1]]
        subprocess.run(list(map(str, words)), check=True)
    out, failed = tmp_path / "program", tmp_path / "failed"
    subprocess.run(["cc", *SANITIZE, *map(str, objects), "-o", str(out)], check=True)

    def status(*words: object) -> int:
        command = [out, *words]
        return subprocess.run(list(map(str, command)), capture_output=True).returncode

    assert status(1, 20_000, failed, "-", tmp_path / "first") != 0
    content = failed.read_bytes()
    assert len(content) > 40
    assert content[9] == 0xFF
    assert status(1, 0, tmp_path / "again", "-", failed) != 0
    assert (tmp_path / "again").read_bytes() == content
    assert status(1, 0, tmp_path / "again", "-", tmp_path / "first") == 0


@pytest.mark.parametrize(("reader", "target"), EMULATED)
def test_other_processors_read_alike(reader: str, target: str, tmp_path: Path) -> None:
    """Inputs that took a new path here give the same answers on ARM with 32 and 64 bits."""
    platform, emulator = resolve(target), find_emulator(target)
    assert emulator is not None
    is_model = reader == "checkpoint"
    folder = make_build_for(target, "mlp") if is_model else make_build("mlp")
    (tmp_path / "kept").mkdir()
    done = native.run(reader, COUNTS[reader] // 3, 2, tmp_path, tmp_path / "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    inputs = sorted((tmp_path / "kept").iterdir())
    words = ["1", "0", str(tmp_path / "failed"), "-", *map(str, inputs)]
    here = subprocess.run([tmp_path / reader, *words], capture_output=True, text=True, check=True)
    drivers = [DRIVERS / "fuzz.c", DRIVERS / f"fuzz_{reader}.c"]
    program = link(
        [(folder / "src" / "kernels.o").read_bytes()] if is_model else [],
        [*drivers, *([folder / "src" / "mnist.c"] if is_model else [])],
        platform, tmp_path / "there", kind="executable", threads=False, compiler="zig",
        include=[folder, DRIVERS, RUNTIME, write_types()], defines={"_POSIX_C_SOURCE": "200809L"},
    )  # fmt: skip
    there = emulator.run(program, *words)
    assert there.splitlines()[0] == here.stdout.splitlines()[0]
    assert len(inputs) > 20
