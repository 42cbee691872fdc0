"""The C++ class of builds, and the one description that it and Python's table come from."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from engine.tools.trimmed.api import ApiFunction, list_functions
from engine.tools.trimmed.generate import RUNTIME
from tests.support.builds import (
    SANITIZE,
    STRICT,
    WARNINGS,
    compile_c,
    list_sources,
    make_build,
    make_source,
    needs_cc,
    run,
    write_source,
)
from tests.support.places import DRIVERS, GOLDENS

LETTERS = {"int": "i", "size_t": "n", "float": "f", "int64_t": "l", "void": "0"}


def find_functions(library: bool) -> dict[str, ApiFunction]:
    header = make_source("mnist", library=library).read_header()
    return {function.name: function for function in list_functions(header)}


@pytest.mark.parametrize("library", [False, True])
def test_the_description_has_every_function_of_the_header(library: bool) -> None:
    header = make_source("mnist", library=library).write_header()
    declared = re.findall(r"^MNIST_API .*?\bmnist_(\w+)\(", header, re.MULTILINE)
    functions = find_functions(library)
    assert list(functions) == declared
    assert {name for name, f in functions.items() if f.makes} >= {"create", "create_in"}
    assert functions["save"].conditions == ("#ifndef EDGEGRAD_FREESTANDING",)
    assert functions["get_property"].fails
    assert not functions["has_phase"].fails


@pytest.mark.parametrize("library", [False, True])
def test_python_calls_functions_as_they_are_declared(library: bool) -> None:
    """Its table has a letter for the result and for each parameter; pointers are of three kinds."""
    functions = find_functions(library)
    text = (RUNTIME / "library.py").read_text("utf-8")
    (table,) = re.findall(r'_FUNCTIONS = """([^"]*)"""', text)
    rows = re.findall(r"(\w+): (\w+)", table)
    own = "create_from_plan" if library else "create_from"
    rows += re.findall(rf"({own}): (\w+)", text)
    assert len(rows) > 30
    for name, letters in rows:
        function = functions[name]
        types = [function.result, *(re.sub(r"\w+$", "", p).strip() for p in function.parameters)]
        expected = "".join(LETTERS.get(t, "p") for t in types)
        assert re.sub("[st]", "p", letters) == expected, name


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
