"""Functions begin with a verb: one of verbs.txt, or what takes its place.

`python -m tests.house.test_function_names FOLDER...` lists the functions of folders that do not.

A function that returns a bool may begin with a verb in the third person (`is_`, `has_`, `fits_`), a
conversion or a copy with `to_`, `as_`, `from_`, `of`, `with_` or `without_`, and a callback with
`on_`.  Not held to it are

- properties, and names that begin and end with `_`, which Python or a notebook calls;
- functions that a decorator declares, such as kernels and commands, and context managers, which
  are read after `with`;
- methods of the names that `edgegrad` offers, functions that a page calls, and methods that
  override one of a base class;
- the words of the rules of ops and kernels: methods of the classes that rules take (`RULES`);
- functions that stand for code, which are called as the code: rules (`RULES`: by the type of their
  first argument and of their result), and functions that return an expression, vectors of IR,
  a compiled function or an op (`CODE`; in files that import llvmlite `Any` is IR);
- functions within functions that are handed on as a value, such as the body of a loop;
- functions that are called as the elementary function that they compute;
- functions in the places of `REFERENCES`, which are called as an op, a loss or a network is.

Their docstrings say what the functions do, in the imperative: none begins with an article, a
preposition or a verb in the third person.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from engine.kernels.vocabulary.expression import FUNCTIONS
from tests.support.needs import require_flower
from tests.support.offered import list_offered
from tests.support.places import DOCS, ROOT
from tests.support.source_files import list_files, name_file

# The folders whose functions are held to the rule; the others are yet to be renamed.
ROOMS = ("engine", "kernels", "graphs", "tools", "bench", "tests/support")

# References in NumPy, and networks that others would call by the same name.
REFERENCES = ("tools/dev/cases", "bench/families/models", "tests/support/make_losses.py")
VERBS = frozenset((ROOT / "tests/house/verbs.txt").read_text("utf-8").split())
OTHER_OPENINGS = {"to", "as", "from", "of", "on", "with", "without"}
ASSERTIONS = {"is", "has", "needs", "are", "was", "were", "had", "can", "may", "must", "should"}
# Decorators that leave a function what its name says.
PLAIN = {
    "abstractmethod", "cache", "check_arguments", "classmethod", "errstate", "lru_cache",
    "overload", "override", "staticmethod", "wraps",
}  # fmt: skip
ABSTRACT = {"ABC", "Generic", "NamedTuple", "Protocol", "TypedDict"}
ELEMENTARY = {n for n in vars(np) if isinstance(getattr(np, n), np.ufunc)} | {
    n for n in vars(math) if not n.startswith("_")
}
# Rules of ops and kernels: what they take first, and the results for which they are called as what
# they compute: types and constants, names of values, operands, reach and tiles.
_NAMES = r"(list|tuple)\[(str|, | \| None|\.\.\.)+\]|str"
RULES = {
    "Site": r"(tuple\[)?(TensorType|Array|, |\.\.\.)+\]?",
    "Nodes": _NAMES,
    "Grad": _NAMES,
    "Lowering": r"None|(list\[)?Operand\]?",
    "KernelCall": r"Reach|int|dict\[str, int\]|Tiling|Iterator\[int\]",
    "Parameters": r"Tiling|Blocks",
}
# Types of code: expressions, vectors of IR, compiled functions and what is declared with them.
CODE = {
    "Body",
    "Callable",
    "Expr",
    "Formulas",
    "Inline",
    "Intrinsic",
    "Lanes",
    "Op",
    "Pair",
    "Rule",
}
IR = {"Any", "Emit", "Grid"}  # in files that import llvmlite, whose values have no types
LIBRARIES = {"click", "torch"}  # whose classes share names with ours
Function = ast.FunctionDef | ast.AsyncFunctionDef
# Openings of docstrings that do not say what a function does; `A x + b` is a formula.
NOT_VERBS = re.compile(
    r"(?:The|An?|As|Of|No|Nothing|Those|Inside|About|Every|Where|When|In|On|By|One|Each|All|Raises|"
    r"Returns)\b(?! [=+*x-])"
)


def in_third_person(verb: str) -> str:
    """Return the form of a verb after "it"."""
    if re.search(r"(s|x|z|ch|sh|o)$", verb):
        return f"{verb}es"
    return f"{verb[:-1]}ies" if re.search(r"[^aeiou]y$", verb) else f"{verb}s"


THIRD_PERSON = ASSERTIONS | {in_third_person(verb) for verb in VERBS}


def opens_with_a_verb(function: Function) -> bool:
    word = function.name.strip("_").split("_")[0]
    if word in VERBS or word in OTHER_OPENINGS or function.name.startswith("test_"):
        return True
    returns = ast.unparse(function.returns) if function.returns else ""
    return word in THIRD_PERSON and (
        returns in ("", "bool", "pytest.MarkDecorator") or returns.startswith("Type")
    )


def is_declared(function: Function) -> bool:
    """Return whether a decorator makes it something else than the function of its name."""
    names = [re.split(r"[(\[]", ast.unparse(d))[0].split(".")[-1] for d in function.decorator_list]
    return any(name not in PLAIN for name in names)


def name_base(base: ast.expr) -> str:
    """Return the name of a base class, with its module if that is a library."""
    name = ast.unparse(base).split("[")[0]
    return name if name.split(".")[0] in LIBRARIES else name.split(".")[-1]


@cache
def classes() -> dict[str, tuple[set[str], set[str]]]:
    """Return the bases and the methods of every class of the repository, by its name."""
    known: dict[str, tuple[set[str], set[str]]] = {}
    for path in list_files("engine", "kernels", "graphs", "tools", "bench", "tests"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases, methods = known.setdefault(node.name, (set(), set()))
                bases |= {name_base(b) for b in node.bases}
                methods |= {n.name for n in node.body if isinstance(n, Function)}
    return known


def overrides(owner: str, method: str, seen: frozenset[str] = frozenset()) -> bool:
    """Return whether a base of a class has a method, or may have it: a class of a library."""
    for base in classes().get(owner, (set(), set()))[0] - ABSTRACT - seen:
        if base not in classes():
            return not method.startswith("_")
        if method in classes()[base][1] or overrides(base, method, seen | {owner}):
            return True
    return False


@cache
def words_of_rules() -> set[str]:
    """Return the methods of the classes that rules of ops and kernels take."""
    return {name for owner in RULES if owner in classes() for name in classes()[owner][1]}


def is_rule(function: Function) -> bool:
    """Return whether it takes the argument of a rule and returns a part of such a rule's result."""
    arguments = [a for a in function.args.posonlyargs + function.args.args if a.arg != "self"]
    if not arguments or not arguments[0].annotation or not function.returns:
        return False
    results = RULES.get(ast.unparse(arguments[0].annotation))
    returns = ast.unparse(function.returns).removesuffix(" | None")
    return results is not None and re.fullmatch(results, returns) is not None


def returns_code(function: Function, *, writes_ir: bool) -> bool:
    """Return whether its result is code, or a few pieces of code."""
    returns = re.sub(
        r"Callable\[.*", "Callable", ast.unparse(function.returns) if function.returns else ""
    )
    parts = set(re.findall(r"\w+", returns)) - {"tuple", "list", "None"}
    return bool(parts) and parts <= (CODE | IR if writes_ir else CODE)


def handed_on(tree: ast.AST) -> set[Function]:
    """Return the functions within functions that are used as a value, not only called."""
    known = set[Function]()
    for outer in (node for node in ast.walk(tree) if isinstance(node, Function)):
        called = {id(node.func) for node in ast.walk(outer) if isinstance(node, ast.Call)}
        values = {
            node.id
            for node in ast.walk(outer)
            if isinstance(node, ast.Name) and id(node) not in called
        }
        known |= {n for n in ast.walk(outer) if isinstance(n, Function) and n.name in values} - {
            outer
        }
    return known


@cache
def pages() -> str:
    """Return the text of all pages."""
    return "\n".join(p.read_text("utf-8") for p in [ROOT / "README.md", *DOCS.rglob("*.md")])


def is_documented(path: Path, owner: str, name: str) -> bool:
    """Return whether a page calls a function of a module, or a public method."""
    if name.startswith("_") or owner.startswith("_"):
        return False
    return bool(re.search(rf"{'' if owner else rf'{path.stem}'}\.{name}\(", pages()))


def functions(
    node: ast.AST, owners: tuple[str, ...] = (), kind: str = ""
) -> Iterator[tuple[Function, str, str]]:
    """Yield every function in a tree, its qualified name, and its class if it is a method."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, ".".join((*owners, child.name)), kind
            yield from functions(child, (*owners, child.name))
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, (*owners, child.name), child.name)
        else:
            yield from functions(child, owners, kind)


def verbless(path: Path) -> list[str]:
    """List the functions of a file that break the rule, each with its line."""
    place = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if place.startswith(REFERENCES):
        return []
    parts = Path(place).with_suffix("").parts if place else ()
    parts = parts if parts[:1] in ((), ("engine",), ("bench",), ("tests",)) else ("engine", *parts)
    module = ".".join(parts).removesuffix(".__init__")
    tree = ast.parse(path.read_text("utf-8"))
    writes_ir, values = "llvmlite" in ast.dump(tree), handed_on(tree)
    return [
        f"{name_file(path) if parts else path.name}:{function.lineno}: {qualified}"
        for function, qualified, owner in functions(tree)
        if not (
            opens_with_a_verb(function)
            or function.name == "main"
            or re.fullmatch(r"_.*_", function.name)
            or is_declared(function)
            or is_rule(function)
            or returns_code(function, writes_ir=writes_ir)
            or function in values
            or function.name.strip("_") in ELEMENTARY | set(FUNCTIONS) | {"philox"}
            or function.name.startswith("pytest_")  # pytest calls it
            or (module, qualified) in list_offered()
            or (owner and qualified in {name for _, name in list_offered()})
            or (owner and (function.name in words_of_rules() or overrides(owner, function.name)))
            or (("." not in qualified or owner) and is_documented(path, owner, function.name))
        )
    ]


def list_nominal(path: Path) -> list[str]:
    """List the functions of a file whose docstrings do not begin with a verb, with their lines."""
    place = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    return [
        f"{place or path.name}:{function.lineno}: {qualified}"
        for function, qualified, _ in functions(ast.parse(path.read_text("utf-8")))
        if not place.startswith(REFERENCES)
        and not (is_declared(function) and "contextmanager" not in ast.dump(function))
        and NOT_VERBS.match(ast.get_docstring(function) or "")
    ]


@pytest.mark.parametrize("room", [room for room in ROOMS if not room.startswith("tests")])
def test_docstrings_of_functions_begin_with_a_verb(room: str) -> None:
    assert not [line for path in list_files(room) for line in list_nominal(path)]


def test_a_docstring_that_begins_with_a_noun_is_found(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    texts = ("Return a row.", "The rows.", "A x + b.", "As `rows`.", "Raises InputError.")
    path.write_text("".join(f'def f():\n    """{text}"""\n' for text in texts))
    assert [int(line.split(":")[1]) for line in list_nominal(path)] == [3, 7, 9]


@pytest.mark.parametrize("room", ROOMS)
def test_functions_begin_with_a_verb(room: str) -> None:
    require_flower()  # which modules import whose names are read
    assert not [line for path in list_files(room) for line in verbless(path)]


def test_a_function_named_by_a_noun_is_found(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(
        "def rows(x): ...\ndef list_rows(x): ...\ndef fits(x) -> bool: ...\n"
        "def fits_of(x) -> int: ...\n@kernel\ndef gemm(x): ...\ndef exp(x): ...\n"
        "class Heap:\n    def size(self): ...\n    @property\n    def width(self): ...\n"
        "    def grow(self):\n        def amount(): ...\n"
        "class Pile(Heap):\n    def size(self): ...\n"
    )
    assert [text.split(": ")[1] for text in verbless(path)] == [
        "rows", "fits_of", "Heap.size", "Heap.grow.amount", "Pile.size",
    ]  # fmt: skip


def test_verbs_are_in_order() -> None:
    text = (ROOT / "tests/house/verbs.txt").read_text("utf-8").split()
    assert text == sorted(set(text))


if __name__ == "__main__":
    for room in sys.argv[1:] or ROOMS:
        print(*(line for path in list_files(room) for line in verbless(path)), sep="\n")
