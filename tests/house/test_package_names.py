"""`edgegrad` and `engine` are one package, and a user's own `engine` does not break it."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

import edgegrad
import edgegrad.artifacts
import edgegrad.trainer.schedules
import engine
import engine.artifacts
import engine.trainer.schedules
from tests.support import package_user
from tests.support.places import ALIAS, DOCS, PATHS, ROOT

OURS = ROOT / "engine/__init__.py"
# Names of `engine.reports` that say too little at the top of the package.
NOT_AT_THE_TOP = {"SECTIONS", "RunRecord", "Section", "default"}


def run(folder: Path, *words: str, paths: str = PATHS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )


def output(folder: Path, *words: str) -> str:
    done = run(folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_both_names_are_one_package() -> None:
    assert edgegrad is engine
    assert edgegrad.artifacts is engine.artifacts
    assert sys.modules["edgegrad.trainer.schedules"] is engine.trainer.schedules
    assert importlib.import_module("edgegrad.kernels.ops.registry") is importlib.import_module(
        "engine.kernels.ops.registry"
    )


def test_modules_keep_what_they_know_of_themselves() -> None:
    # Both are loaded again, which makes new classes: none that another module knows.
    for name in ("edgegrad", "edgegrad.base.representation"):
        module = importlib.import_module(name)
        spec = module.__spec__
        assert spec is not None
        assert spec.name == module.__name__ == name.replace("edgegrad", "engine")
        assert spec.origin == module.__file__
        assert importlib.reload(module) is module is sys.modules[name]
    assert "class Cosine" in inspect.getsource(edgegrad.trainer.schedules)
    assert files("edgegrad").joinpath("__init__.py").read_bytes() == OURS.read_bytes()
    assert files("edgegrad.drawing").joinpath("page.css").is_file()


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'edgegrad\.nothing'"):
        importlib.import_module("edgegrad.nothing")
    with pytest.raises(ModuleNotFoundError, match=r"'edgegrad\.proximal' is not a package"):
        importlib.import_module("edgegrad.proximal.nothing")


@pytest.mark.parametrize("maker", ["edgegrad", "engine"])
@pytest.mark.parametrize("reader", ["edgegrad", "engine", "pickle"])
def test_pickles_made_under_either_name_load(maker: str, reader: str, tmp_path: Path) -> None:
    made = output(
        tmp_path, "-c",
        f"import pickle, {maker} as e; print(pickle.dumps((e.AdamW(lr=0.5), e.Cosine, e)[:2]))",
    )  # fmt: skip
    assert pickle.loads(ast.literal_eval(made)) == (engine.AdamW(lr=0.5), engine.Cosine)
    code = f"import pickle, {reader} as e; f = pickle.loads({made.strip()}); print(f[0].lr); "
    assert (
        output(tmp_path, "-c", code + "import edgegrad; assert f[1] is edgegrad.Cosine") == "0.5\n"
    )


@pytest.mark.parametrize("module", ["edgegrad", "edgegrad.tools.cli", "engine"])
def test_python_runs_the_command(module: str, tmp_path: Path) -> None:
    assert output(tmp_path, "-m", module, "version").startswith(f"edgegrad {engine.__version__}\n")


# --- the names at the top


def test_the_top_has_what_its_modules_offer() -> None:
    at_top = set(vars(engine)["__all__"])
    for name in ("api", "artifacts", "data", "trainer", "reports"):
        module = importlib.import_module(f"engine.{name}")
        expected = set(module.__all__) - (NOT_AT_THE_TOP if name == "reports" else set())
        assert expected <= at_top, f"{name}: {sorted(expected - at_top)}"
        for each in expected:
            assert getattr(edgegrad, each) is getattr(module, each), each
            at_top.discard(each)
    assert {n for n in at_top if not inspect.ismodule(getattr(engine, n))} == {
        *("EngineError", "Lora", "Qat", "Quantization", "Quantized", "Session"),
        *("prepare_qat", "quantize", "supported"),
    }
    public = {m.removesuffix(".__init__").split(".")[0] for m in stubs()}
    assert {n for n in at_top if inspect.ismodule(getattr(engine, n))} == public - {
        *("federated", "proximal", "tools")  # what rests on the package, and what few need
    }


def test_every_name_is_one_that_dir_lists() -> None:
    listed = dir(edgegrad)
    assert set(vars(engine)["__all__"]) | {"__version__", "__doc__"} <= set(listed)
    assert not [name for name in listed if name.startswith("_") and not name.startswith("__")]
    assert all(getattr(edgegrad, name) is not None for name in vars(engine)["__all__"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Trainr", "module 'edgegrad' has no attribute 'Trainr'; nearest: 'Trainer'"),
        ("AdamWs", "nearest: 'AdamW', 'Adam'"),
        ("zz", "module 'edgegrad' has no attribute 'zz'$"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        getattr(edgegrad, name)


def test_a_module_that_is_not_imported_yet_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", "import edgegrad; edgegrad.federated")
    assert "has no attribute 'federated' until `import edgegrad.federated`" in done.stderr


def test_the_import_loads_no_more_than_the_package() -> None:
    """NumPy comes with the first name that needs it."""
    code = "import sys; before = {*sys.modules}; import {}; print(*({*sys.modules} - before))"
    first, second = (
        {*output(ROOT, "-S", "-c", code.replace("{}", name, 1)).split()}
        for name in ("engine", "edgegrad")
    )
    assert {name for name in first if name.startswith("engine")} == {
        *("engine", "engine.base", "engine.base.package", "engine.base.public_names")
    }
    assert second - first == {"edgegrad"}
    assert not {"numpy", "typing_extensions", "difflib"} & second


# --- for type checkers


def stubs() -> dict[str, str]:
    """Return the text of every stub, by the name of its module."""
    root = ALIAS / "edgegrad"
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path.read_text("utf-8")
        for path in root.rglob("*.pyi")
    }


def test_checkers_find_the_modules_that_people_import() -> None:
    """Each has a stub, which is one line; `tests/support/package_user.py` is checked by mypy."""
    for name, text in stubs().items():
        module = name.removesuffix(".__init__")
        assert text == f"from engine.{module} import *\n"
        place = ROOT / "engine" / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), module
    told = {name.removesuffix(".__init__") for name in stubs()}
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    for path in pages:
        if path.suffix in (".md", ".py"):
            text = re.sub(r"```(java|kotlin)\n.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
            for module in re.findall(r"(?:from|import) edgegrad\.([a-z_.]+)", text):
                assert module in told, f"{path}: {module} has no stub in engine/alias/edgegrad"
    assert package_user.list_kinds() == (engine.Trainer, engine.AdamW)


# --- a user's own `engine`

USER = """\
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import edgegrad as eg
    from edgegrad.artifacts import AdamW
    import engine, engine.trainer
print(*(w.message for w in told), sep="\\n")
assert engine is eg and engine.Trainer is eg.Trainer and AdamW is eg.AdamW
assert told[0].filename == __file__
print(eg.__file__)
"""


def make_file(folder: Path) -> Path:
    (folder / "engine.py").write_text("raise AssertionError('mine was run')\n")
    return folder / "engine.py"


def make_package(folder: Path) -> Path:
    (folder / "engine").mkdir()
    (folder / "engine/__init__.py").write_text("raise AssertionError('mine was run')\n")
    return folder / "engine/__init__.py"


@pytest.mark.parametrize("make", [make_file, make_package])
def test_a_file_of_that_name_beside_a_script_is_told_and_harmless(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    own = make(tmp_path)
    (tmp_path / "script.py").write_text(USER)
    assert output(tmp_path, "script.py").splitlines() == [
        f"{own} has the name of the package that edgegrad is built on; `import engine` gives "
        "edgegrad's; rename the file",
        str(OURS),
    ]
    said = output(tmp_path, "-W", "ignore", "-m", "edgegrad", "version")
    assert said.startswith("edgegrad ")


def test_a_folder_without_init_is_told_where_it_comes_first(tmp_path: Path) -> None:
    """As in an editable install, whose finder is asked last; on one `sys.path` packages win."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "script.py").write_text(USER)
    done = run(tmp_path, "script.py", paths=str(ALIAS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'engine'} has the name of the package")


def test_a_script_of_that_name_runs(tmp_path: Path) -> None:
    own = tmp_path / "engine.py"
    own.write_text(USER)
    assert output(tmp_path, "engine.py").startswith(f"{own} has the name")


def test_a_reload_does_not_run_a_file_of_that_name(tmp_path: Path) -> None:
    make_file(tmp_path)
    code = "import edgegrad, importlib; print(importlib.reload(edgegrad).__file__)"
    assert output(tmp_path, "-W", "ignore", "-c", code) == f"{OURS}\n"


def test_a_foreign_engine_that_came_first_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "engine.py"
    own.write_text("mine = 1\n")
    done = run(tmp_path, "-c", "import engine; print(engine.mine); import edgegrad")
    assert done.stdout == "1\n"
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {own} was imported as 'engine', the name of the package that edgegrad is "
        f"built on, {OURS}: rename the file, or import edgegrad before it, and `import engine` "
        "gives edgegrad's"
    )


def test_an_engine_without_a_file_is_refused(tmp_path: Path) -> None:
    code = "import sys, types; sys.modules['engine'] = types.ModuleType('engine'); import edgegrad"
    done = run(tmp_path, "-c", code)
    assert "ImportError: <module 'engine'> was imported as 'engine'" in done.stderr


def test_nobody_is_told_without_a_cause(tmp_path: Path) -> None:
    assert output(tmp_path, "-W", "error", "-c", "import edgegrad, engine, edgegrad.api") == ""


def test_the_folder_of_the_second_name_is_no_module() -> None:
    done = run(ROOT, "-c", "import engine.alias.edgegrad", paths=str(ROOT))
    assert "ImportError: import edgegrad, not engine.alias.edgegrad" in done.stderr


def test_a_lost_folder_is_told(tmp_path: Path) -> None:
    place = tmp_path / "deep/site/edgegrad"
    place.mkdir(parents=True)
    text = (ALIAS / "edgegrad/__init__.py").read_text("utf-8")
    (place / "__init__.py").write_text(text, "utf-8")
    done = run(tmp_path, "-c", "import edgegrad", paths=str(place.parent))
    assert f"{place.parent}: the folder 'engine' of edgegrad is missing here" in done.stderr


def test_spawned_processes_find_the_package(tmp_path: Path) -> None:
    """They import the script first, and so `edgegrad`, before they load what they are given."""
    make_file(tmp_path)
    (tmp_path / "script.py").write_text(
        "import multiprocessing\n"
        "import warnings\n"
        "warnings.simplefilter('ignore')\n"
        "import edgegrad as eg\n"
        "def rate(optimizer): return optimizer.lr\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(rate, [eg.AdamW(lr=0.25)]))\n"
    )
    assert output(tmp_path, "script.py") == "[0.25]\n"
