"""The C++ class of builds, and Python's table and classes: all from the one description."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.tools.trimmed.api import list_functions, write_cpp, write_ctypes
from engine.tools.trimmed.generate import RUNTIME
from tests.support.builds import (
    SANITIZE,
    STRICT,
    WARNINGS,
    compile_c,
    find_functions,
    list_sources,
    make_build,
    make_source,
    needs_cc,
    run,
    write_source,
)
from tests.support.places import DRIVERS, GOLDENS
from tests.support.shown import shows

LETTERS = {"int": "i", "size_t": "n", "float": "f", "int64_t": "l", "void": "0"}


@pytest.mark.parametrize("library", [False, True])
def test_the_description_has_every_function_of_the_header(library: bool) -> None:
    header = make_source("mnist", library=library).write_header()
    declared = re.findall(r"^MNIST_API .*?\bmnist_(\w+)\(", header, re.MULTILINE)
    functions = find_functions(library)
    assert list(functions) == declared
    assert {name for name, f in functions.items() if f.makes} >= {"create", "create_in"}
    conditions = ("#if @NAME@_TRAINS", "#ifndef EDGEGRAD_FREESTANDING")
    assert functions["save"].conditions == conditions
    assert functions["get_property"].fails
    assert not functions["has_phase"].fails


@pytest.mark.parametrize("library", [False, True])
def test_python_calls_functions_as_they_are_declared(library: bool) -> None:
    """Its table has a letter for the result and for each parameter; pointers are of three kinds."""
    functions = find_functions(library)
    text = make_source("mnist", library=library).write_python("library.py")
    (table,) = re.findall(r'_FUNCTIONS = """([^"]*)"""', text)
    rows = re.findall(r"(\w+):(\w+)", table)
    others = {"#if @NAME@_DECODES", *(["#if @NAME@_FEDERATED"] if library else [])}
    there = [name for name, f in functions.items() if not others.intersection(f.conditions)]
    assert [name for name, _ in rows] == [name for name in there if name != "worker"]
    for name, letters in rows:
        function = functions[name]
        types = [function.result, *(re.sub(r"\w+$", "", p).strip() for p in function.parameters)]
        expected = "".join(LETTERS.get(t, "p") for t in types)
        assert re.sub("[st]", "p", letters) == expected, name


def test_a_new_function_is_in_python_and_in_the_class() -> None:
    (function,) = list_functions("@NAME@_API int @name@_set_fancy(@name@ *m, const char *word);\n")
    assert write_ctypes([function]) == "set_fancy:ips"
    assert "Outcome set_fancy(const char *word)" in write_cpp([function])


# Python does these in other ways: from and to bytes, with arrays, by the name of a phase, by its
# own package of federations.
ELSEWHERE = {
    "create", "create_in", "create_from", "worker", "save_part", "is_loaded", "find_parameter",
    "has_phase", "train_step", "eval_step", "get_batch", "input", "output", "set_linear_rate",
    "take_request", "answer_size", "write_answer",
}  # fmt: skip


def test_the_classes_of_python_use_every_function() -> None:
    text = "".join(
        (RUNTIME / file).read_text("utf-8") for file in ("decoder.py", "device.py", "library.py")
    )
    called = set(re.findall(r'"(\w+)"', text))
    called |= {name + end for name in re.findall(r'f"(\w+){end}"', text) for end in ("", "_f64")}
    assert set(find_functions(library=False)) - ELSEWHERE - called == set()


@needs_cc
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("define", ["-DHOSTED", "-DEDGEGRAD_FREESTANDING"])
def test_the_class_compiles_without_warnings(library: bool, define: str, tmp_path: Path) -> None:
    """For names, too, that the class uses itself."""
    for name in ("mnist", "m", "Model", "made", "check"):
        write_source(make_source(name, library=library, threads=2), tmp_path)
        user = tmp_path / "user.cc"
        user.write_text(f'#include "{name}.hpp"\nauto use = &{name}_cpp::Model::train_step;\n')
        flags = (*WARNINGS, "-pedantic", "-std=c++17", define, f"-I{tmp_path}", "-c")
        compile_c(tmp_path / "user.o", *flags, user, compiler="g++")


@needs_cc
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("flags", [("-fno-exceptions", "-fno-rtti"), ("-ffreestanding",)])
def test_the_class_without_exceptions_returns_codes(
    library: bool, flags: tuple[str, ...], tmp_path: Path
) -> None:
    """For names, too, that the class uses itself; an outcome that nobody looks at is a warning."""
    for name in ("mnist", "m", "Model", "made", "check", "model", "code", "message", "Outcome"):
        write_source(make_source(name, library=library, threads=2), tmp_path)
        user = tmp_path / "user.cc"
        use = f"bool use({name}_cpp::Model &m) {{ return bool(m.train_step(nullptr, nullptr)); }}"
        user.write_text(f'#include "{name}.hpp"\n{use}\n')
        words = (*WARNINGS, "-pedantic", "-std=c++17", *flags, f"-I{tmp_path}", "-c")
        compile_c(tmp_path / "user.o", *words, user, compiler="g++")
        user.write_text(
            f'#include "{name}.hpp"\nvoid use({name}_cpp::Model &m) {{ m.infer(0, 0); }}\n'
        )
        done = subprocess.run(
            ["g++", *words, user, "-o", "/dev/null"], capture_output=True, text=True
        )
        assert "nodiscard" in done.stderr, done.stderr


@needs_cc
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@shows("C++17", "Linux, x86-64", "run")
def test_the_class_trains_and_throws(tmp_path: Path) -> None:
    folder = make_build("mlp")
    sources = [str(word) for word in list_sources(folder)]
    objects = [word for word in sources if word.endswith(".o")]
    code = compile_c(tmp_path / "mnist.o", *SANITIZE, "-c", f"-I{folder}", folder / "src/mnist.c")
    flags = (*STRICT, *SANITIZE, "-std=c++17", f"-I{folder}")
    program = compile_c(
        tmp_path / "wrapper", *flags, DRIVERS / "wrapper.cpp", code, *objects, compiler="g++"
    )
    assert run(program, GOLDENS / "mlp" / "checkpoint") == "ok\n"
