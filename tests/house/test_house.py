"""House rules that no linter knows: reasons, no loose ends."""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from engine.trainer import runs
from engine.training import artifact_set
from tests.support.places import ROOT

PRODUCT = [p for f in ("engine", "graphs", "kernels", "tools") for p in (ROOT / f).rglob("*.py")]
ALL = sorted(PRODUCT + [p for f in ("bench", "tests") for p in (ROOT / f).rglob("*.py")])

C_FILES = sorted(
    path
    for folder in ("tools", "bench", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".c", ".cpp", ".h"}
)
COLUMNS = 100

MARK = re.compile(r"#\s*(fmt:|noqa|type:|---)")  # says nothing about the code
UNSAID = 20  # lines of code for each line of comment in kernels/ops, at most

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
LOOSE_END = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b")
WAIVER = re.compile(r"#\s*(type:\s*ignore|noqa\b)")
REASONED = re.compile(
    r"#\s*(type:\s*ignore\[[\w, -]+\]|noqa: [A-Z]+\d+(, ?[A-Z]+\d+)*)\s+#\s*\S{2}"
)


# The files and folders at the top: the layout that pages and tools rely on.
TOP = {
    *("bench", "docs", "engine", "examples", "graphs", "kernels", "tests", "tools"),
    *(".ci", ".github", ".gitignore", ".pre-commit-config.yaml"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"),
    *("MANIFEST.in", "Makefile", "pyproject.toml", "setup.py"),
}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_top_folder_holds_what_it_always_holds() -> None:
    """Files that a command or a page left there are not committed."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        kept = {path.name for path in ROOT.iterdir()} & TOP  # an unpacked archive
    else:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        kept = {name.split("/")[0] for name in listed.stdout.split("\0") if name}
    assert kept == TOP


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").rglob("*.py")), ids=_name)
def test_only_what_numba_compiles_lacks_annotations(path: Path) -> None:
    """mypy lets these files have untyped functions; here only `@inline` and nested ones may be."""
    tree = ast.parse(path.read_text("utf-8"))
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body):
        if isinstance(node, ast.FunctionDef):
            args = [a for a in ast.walk(node.args) if isinstance(a, ast.arg)]
            typed = node.returns is not None or any(a.annotation for a in args)
            compiled = "inline" in map(ast.unparse, node.decorator_list)
            assert typed or compiled, f"line {node.lineno}: {node.name} has no annotations"


@pytest.mark.parametrize("path", ALL, ids=_name)
def test_no_loose_ends(path: Path) -> None:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        assert not LOOSE_END.search(line), f"line {number}: do it now, or open an issue"
        if WAIVER.search(line):
            assert REASONED.search(line), (
                f"line {number}: name the rule and say why, `# ...  # why`"
            )


@pytest.mark.parametrize("path", PRODUCT, ids=_name)
def test_warnings_name_the_line_of_the_user(path: Path) -> None:
    """`warn_user` finds it; files that run without this package warn for themselves."""
    alone = {"engine/base/errors.py", "engine/alias/edgegrad/__init__.py",
             "engine/federated/trimmed.py"}  # fmt: skip
    assert _name(path) in alone or "warnings.warn(" not in path.read_text("utf-8")


@pytest.mark.parametrize("path", C_FILES, ids=_name)
def test_c_is_written_as_the_rest(path: Path) -> None:
    """The rules of ruff and of the test above hold for C: short lines, no tabs, no loose ends."""
    text = path.read_text("utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        assert len(line) <= COLUMNS, f"line {number} has {len(line)} columns"
        assert "\t" not in line, f"line {number} has a tab"
        assert line == line.rstrip(), f"line {number} ends with spaces"
        assert not LOOSE_END.search(line), f"line {number}: do it now, or open an issue"
    assert text == text.rstrip("\n") + "\n", "a file ends with one newline"


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=_name)
def test_a_skip_says_why(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    reasoned = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        if any(k.arg == "reason" for k in node.keywords)
        or (ast.unparse(node.func) == "pytest.skip" and node.args)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"skip", "skipif", "xfail"}:
            name = ast.unparse(node)
            silent = name.startswith("pytest.") and id(node) not in reasoned
            assert not silent, f"line {node.lineno}: {name} needs a reason"


def _count_lines(source: str) -> Counter[str]:
    """Count the lines with code, except for docstrings, and the lines with comments."""
    documented = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            documented |= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    code, comments = set[int](), 0
    blank = tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments += not MARK.match(token.string)
        elif token.type not in blank:
            code |= {*range(token.start[0], token.end[0] + 1)}
    return Counter(code=len(code - documented), comments=comments)


def test_kernels_say_why() -> None:
    """Maths, orders of sums and blocking do not follow from code: comments have to say them."""
    counts = {p: _count_lines(p.read_text("utf-8")) for p in (ROOT / "kernels/ops").rglob("*.py")}
    total = sum(counts.values(), Counter())
    bare = sorted(counts, key=lambda p: counts[p]["code"] - UNSAID * counts[p]["comments"])[-5:]
    assert total["code"] <= UNSAID * total["comments"], (
        f"{total['code']} lines of code and {total['comments']} of comments; explain why, for "
        f"example in {', '.join(map(_name, bare))}"
    )


def test_lines_of_code_and_comments_are_counted() -> None:
    source = '''"""A module.

of three lines.
"""

# --- a divider
x = (
    1,  # why one
)  # fmt: skip
# a comment
# of two lines


def f():
    """A function."""
    return "# no comment"
'''
    assert _count_lines(source) == {"code": 5, "comments": 3}


# Files of users, of other projects, and parts of names, in comments.
FOREIGN_FILES = {
    *("engine.py", "file.py", "cocoeval.py", "net.py", "client_app.py", "server_app.py"),
    *("_library.py", "_decoder.py", "mnist.py", "mnist_library.py"),
}


def list_named_files(source: str) -> set[str]:
    """Return the Python files that docstrings and comments of a module name."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, DOCUMENTED)]
    texts = [text for node in nodes if (text := ast.get_docstring(node))]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return {name for text in texts for name in re.findall(r"(?<![\w/.<>*])[\w/]+\.py\b", text)}


@pytest.mark.parametrize("folder", ["bench", "engine", "graphs", "kernels", "tools"])
def test_files_that_comments_name_exist(folder: str) -> None:
    """A file that was moved keeps its old name in comments of other files, where nobody looks."""
    paths = [path for path in ALL if _name(path).startswith(f"{folder}/")]
    known = {_name(path) for path in ALL} | {path.name for path in ALL} | FOREIGN_FILES
    lost = {
        f"{_name(path)}: {name}"
        for path in paths
        for name in list_named_files(path.read_text("utf-8"))
        if name not in known and not any(each.endswith(f"/{name}") for each in known)
    }
    assert not lost


def test_a_file_that_a_comment_names_is_found() -> None:
    source = (
        '"""See gone.py and a/b.py, not <name>.py."""\nx = 1  # as in lost.py\ny = "other.py"\n'
    )
    assert list_named_files(source) == {"gone.py", "a/b.py", "lost.py"}


# The names of files that runs and artifacts have, by the module that declares them.
FILE_NAMES = {
    **dict.fromkeys(
        (runs.CONFIG, runs.HISTORY, runs.INFERENCE, runs.LOG, runs.POSITION, runs.REPORT, runs.RUN),
        "engine/trainer/runs.py",
    ),
    **dict.fromkeys((*artifact_set.NAMES, artifact_set.FORWARD), "engine/training/artifact_set.py"),
}


def test_names_of_files_stand_once() -> None:
    again = {
        f"{_name(path)}:{node.lineno} {node.value}"
        for path in PRODUCT
        if any(name in (text := path.read_text("utf-8")) for name in FILE_NAMES)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if FILE_NAMES.get(node.value, _name(path)) != _name(path)
    }
    assert not again
