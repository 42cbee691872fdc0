"""Names of builds: any identifier that C, C++ and Python leave free, words of the runtime too."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.tools.trimmed.build import build
from engine.tools.trimmed.generate import PARTS, RUNTIME
from engine.tools.trimmed.names import check_name, make_name
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.builds import (
    STRICT,
    WARNINGS,
    compile_c,
    make_source,
    needs_cc,
    run,
    write_source,
)
from tests.support.places import GOLDENS

# Words of the runtime, of its functions' parameters, of systems' headers, and plain ones.
NAMES = (
    "m", "i", "tell", "next", "put", "plan", "plans", "model", "model_v2", "text", "size", "kernel",
    "read", "write", "index", "open", "close", "handle", "HANDLE", "notes", "step", "Model", "X9",
)  # fmt: skip


def check_syntax(file: Path, *flags: str) -> None:
    """Compile a file of C or C++ with every warning an error; the header lies beside it."""
    compiler, standard = ("g++", "c++17") if file.suffix == ".cpp" else ("gcc", "c11")
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    words = (*STRICT, f"-std={standard}", *flags, f"-I{file.parent}", "-c", str(file))
    compile_c(file.with_suffix(".o"), *words, compiler=compiler)


@needs_cc
@pytest.mark.parametrize("name", NAMES)
def test_any_free_name_compiles_without_warnings(name: str, tmp_path: Path) -> None:
    assert check_name(name) == name
    write_source(make_source(name), tmp_path)
    for file in ("library.c", "selftest.c"):
        check_syntax(tmp_path / file)
    write_source(make_source(name, library=True, threads=2), tmp_path)
    check_syntax(tmp_path / "library.c")


@needs_cc
@pytest.mark.parametrize("library", [False, True])
def test_every_c_file_of_the_runtime_compiles_without_warnings(
    library: bool, tmp_path: Path
) -> None:
    """With and without threads and a C library; a new file must be part of what is compiled."""
    parts = {*PARTS, "model.h", "model.hpp", "selftest.c", "device.c"}
    parts |= {"example.c", "example.cpp", "bionic.h"}
    assert {p.name for p in RUNTIME.iterdir() if p.suffix not in {".py", ""}} == parts
    examples = {"example.c"} if library else {"example.c", "example.cpp", "device.c", "selftest.c"}
    for threads in (1, 2):
        write_source(make_source("mnist", library=library, threads=threads), tmp_path)
        for define in ("-O2", "-DEDGEGRAD_FREESTANDING"):
            check_syntax(tmp_path / "library.c", define)
    for file in sorted(examples):
        check_syntax(tmp_path / file)


@pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="needs ziglang")
def test_clang_has_no_warnings_and_windows_no_clash(tmp_path: Path) -> None:
    """`tell` and `read` are functions of io.h there."""
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu")
    for name in ("tell", "read"):
        write_source(make_source(name, library=True, threads=2), tmp_path)
        files = ("-c", str(tmp_path / "library.c"), "-o", str(tmp_path / "library.o"))
        words = (*zig, *STRICT, "-std=c11", f"-I{tmp_path}", *files)
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@needs_cc
@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "c11"), ("g++", "c++20")])
def test_the_header_has_real_names(compiler: str, standard: str, tmp_path: Path) -> None:
    """Users read, and editors complete, `mnist_create`: no macro, no mark, no `model_`."""
    for library in (False, True):
        text = make_source("mnist", library=library).write_header()
        assert "int mnist_train_step(mnist *m" in text
        assert not re.search(r"@|\bmodel_|\bMODEL_|define mnist_", text)
        write_source(make_source("mnist", library=library), tmp_path)
        user = tmp_path / ("user.c" if compiler == "gcc" else "user.cc")
        user.write_text('#include "mnist.h"\nmnist *m; mnist_tensor t; int x = MNIST_OK;\n')
        words = (f"-std={standard}", *WARNINGS, "-pedantic", "-c", user, f"-I{tmp_path}")
        compile_c(tmp_path / "user.o", *words, compiler=compiler)


@needs_cc
def test_several_models_link_into_one_program(tmp_path: Path) -> None:
    platform = resolve("native")
    for name, case in (("tell", "mlp"), ("next", "cnn")):
        build(
            GOLDENS / case, tmp_path / name, Options(name, platform, PlanRequest([2]), static=True)
        )
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
    program = compile_c(tmp_path / "both", *STRICT, "-std=c11", tmp_path / "both.c", *words)
    said = run(program, GOLDENS / "mlp" / "checkpoint", GOLDENS / "cnn" / "checkpoint").split()
    assert len(set(said)) == 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my-model", "letters"), ("9x", "letters"), ("é", "letters"), ("", "letters"),
        ("int", "keyword"), ("edgegrad", "macros"), ("class", "keyword"), ("lambda", "keyword"),
        ("_x", "reserved"), ("a__b", "reserved"), ("net_t", "reserved"), ("printf", "C library"),
        ("stdint", "header"), ("message", "header"), ("windows", "header"),
        ("json", "Python module"), ("dims", "field"),
    ],
)  # fmt: skip
def test_names_that_are_not_free_are_refused(name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_name(name)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("mnist", "mnist"), ("my-model", "my_model"), ("2nd-gesture", "model_2nd_gesture"),
        ("net v1.2", "net_v1_2"), ("Gemüse", "Gemuse"), ("", "model"), ("数字", "model"),
        ("_a__b_", "a_b"), ("int", "int_model"), ("json", "json_model"), ("net_t", "net_t_model"),
    ],
)  # fmt: skip
def test_any_folder_gives_a_build_a_name(folder: str, name: str) -> None:
    """And the message about another name says one that would do."""
    assert make_name(folder) == check_name(name) == name
    if not (folder.isidentifier() and folder.isascii()):
        with pytest.raises(ModelError, match=f"no digit first, such as '{name}'"):
            check_name(folder)


def test_a_name_that_gives_a_word_two_meanings_is_refused() -> None:
    with pytest.raises(ModelError, match="model_find_parameter would have two meanings"):
        make_source("model_find")


def test_no_word_of_the_runtime_ends_as_a_public_name_does() -> None:
    """Otherwise a build named like the rest of the word would have two functions of one name."""
    public = {
        word for word in make_source("model")._list_aliases() if word.lower().startswith("model_")
    }
    ends = {word[len("model") :] for word in public | {"model_plan_memory"}}
    for part in (*PARTS, "selftest.c"):
        code = re.sub(r'/\*.*?\*/|"[^"\n]*"', " ", (RUNTIME / part).read_text("utf-8"), flags=re.S)
        own = set(re.findall(r"\b[A-Za-z]\w*", code)) - public
        own = {w for w in own if not w.startswith(("model_", "MODEL_", "pthread_"))}
        assert not {(w, e) for w in own for e in ends if w.endswith(e)}, part
