"""Names of builds: any identifier that C, C++ and Python leave free, words of the runtime too."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.kernels.target import host
from engine.tools.build import Options, build
from engine.tools.trimmed.bundle import Bundle
from engine.tools.trimmed.generate import PARTS, RUNTIME, Source
from engine.tools.trimmed.names import check_name
from engine.tools.trimmed.plans import artifacts, make_plans
from engine.tools.trimmed.targets import resolve
from tests.builds import GOLDENS, WARNINGS, compile_c, needs_cc, run

STRICT = ("-std=c11", "-pedantic", *WARNINGS, "-Wshadow", "-Wconversion", "-Werror")
# Words of the runtime, of its functions' parameters, of systems' headers, and plain ones.
NAMES = (
    "m", "i", "tell", "next", "put", "plan", "plans", "model", "model_v2", "text", "size", "kernel",
    "read", "write", "index", "open", "close", "handle", "HANDLE", "message", "step", "Model", "X9",
)  # fmt: skip


@functools.cache
def source(name: str, *, library: bool = False, threads: int = 1) -> Source:
    """The generated text of a build of the mlp golden, or of a library of its kernels."""
    planned = make_plans(artifacts(GOLDENS / "mlp"), host(), threads, [2], {})
    specs = planned.kernels()
    symbols = [spec.symbol for spec in specs]
    numbers = {symbol: i for i, symbol in enumerate(symbols)}
    bundle = None if library else Bundle(planned, host(), threads, "0" * 16, numbers)
    return Source(name, host(), threads, "0" * 16, symbols, bundle)


def write(made: Source, folder: Path) -> None:
    (folder / f"{made.name}.h").write_text(made.header())
    (folder / "library.c").write_text(made.source())
    (folder / "selftest.c").write_text(
        made.selftest(
            "#define CHECKPOINT_BYTES 1u\n#define HAS_OPTIMIZER 1\n#define LEARNING_RATE 0.01f\n"
            "static const float recorded[] = {0.5f};\nstatic const double recorded_square_sum = 1;"
        )
    )


@needs_cc
@pytest.mark.parametrize("name", NAMES)
def test_any_free_name_compiles_without_warnings(name: str, tmp_path: Path) -> None:
    assert check_name(name) == name
    write(source(name), tmp_path)
    for file in ("library.c", "selftest.c"):
        compile_c(tmp_path / "x.o", *STRICT, "-fsyntax-only", f"-I{tmp_path}", tmp_path / file)
    write(source(name, library=True, threads=2), tmp_path)
    compile_c(tmp_path / "x.o", *STRICT, "-fsyntax-only", f"-I{tmp_path}", tmp_path / "library.c")


@pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="needs ziglang")
def test_clang_has_no_warnings_and_windows_no_clash(tmp_path: Path) -> None:
    """`tell` and `read` are functions of io.h there."""
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu")
    for name in ("tell", "read"):
        write(source(name, library=True, threads=2), tmp_path)
        files = ("-c", str(tmp_path / "library.c"), "-o", str(tmp_path / "library.o"))
        words = (*zig, *STRICT, f"-I{tmp_path}", *files)
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@needs_cc
@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "c11"), ("g++", "c++20")])
def test_the_header_has_real_names(compiler: str, standard: str, tmp_path: Path) -> None:
    """What users read and editors complete is `mnist_create`: no macro, no mark, no `model_`."""
    for library in (False, True):
        text = source("mnist", library=library).header()
        assert "int mnist_train_step(mnist *m" in text
        assert not re.search(r"@|\bmodel_|\bMODEL_|define mnist_", text)
        write(source("mnist", library=library), tmp_path)
        user = tmp_path / ("user.c" if compiler == "gcc" else "user.cc")
        user.write_text('#include "mnist.h"\nmnist *m; mnist_tensor t; int x = MNIST_OK;\n')
        words = (f"-std={standard}", *WARNINGS, "-pedantic", "-c", user, f"-I{tmp_path}")
        compile_c(tmp_path / "user.o", *words, compiler=compiler)


@needs_cc
def test_several_models_link_into_one_program(tmp_path: Path) -> None:
    platform = resolve("native")
    for name, case in (("tell", "mlp"), ("next", "cnn")):
        build(GOLDENS / case, tmp_path / name, Options(name, platform, [2], static=True))
    lines = ["#include <stdio.h>"]
    for name in ("tell", "next"):
        lines += [
            f'#include "{name}.h"',
            f"static int train_{name}(const char *path)",
            f"{{ {name} *m; if ({name}_create(&m, path, NULL)) return 1;",
            f"int code = {name}_train_step(m, NULL, NULL) || {name}_optimizer_step(m);",
            f"puts({name}_build()); {name}_destroy(m); return code; }}",
        ]
    lines.append("int main(int n, char **a)")
    lines.append("{ return n != 3 || train_tell(a[1]) || train_next(a[2]); }")
    (tmp_path / "both.c").write_text("\n".join(lines))
    libraries = [x for n in ("tell", "next") for x in (f"-I{tmp_path / n}", tmp_path / n)]
    words = [x if isinstance(x, str) else x / f"lib{x.name}.a" for x in libraries]
    program = compile_c(tmp_path / "both", *STRICT, tmp_path / "both.c", *words)
    said = run(program, GOLDENS / "mlp" / "checkpoint", GOLDENS / "cnn" / "checkpoint").split()
    assert len(set(said)) == 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my-model", "letters"), ("9x", "letters"), ("é", "letters"), ("", "letters"),
        ("int", "keyword"), ("class", "keyword"), ("lambda", "keyword"),
        ("_x", "reserved"), ("a__b", "reserved"), ("net_t", "reserved"), ("printf", "C library"),
        ("stdint", "header"), ("windows", "header"), ("json", "Python module"), ("dims", "field"),
    ],
)  # fmt: skip
def test_names_that_are_not_free_are_refused(name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_name(name)


def test_a_name_that_gives_a_word_two_meanings_is_refused() -> None:
    with pytest.raises(ModelError, match="model_find_parameter would have two meanings"):
        source("model_find")


def test_no_word_of_the_runtime_ends_as_a_public_name_does() -> None:
    """Else a build called by the rest of the word would have two functions of one name."""
    public = {word for word in source("model")._aliases() if word.lower().startswith("model_")}
    ends = {word[len("model") :] for word in public | {"model_plan_memory"}}
    for part in (*PARTS, "selftest.c"):
        code = re.sub(r'/\*.*?\*/|"[^"\n]*"', " ", (RUNTIME / part).read_text("utf-8"), flags=re.S)
        own = set(re.findall(r"\b[A-Za-z]\w*", code)) - public
        own = {w for w in own if not w.startswith(("model_", "MODEL_", "pthread_"))}
        assert not {(w, e) for w in own for e in ends if w.endswith(e)}, part
