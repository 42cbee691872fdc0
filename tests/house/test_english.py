"""Phrases that a native engineer would not write: no page has one, nor has any folder of `CLEAN`.

`python -m tests.house.test_english PATH...` lists them in pages and folders, `--count` counts them.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.places import DOCS, ROOT

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
# Folders whose docstrings, comments and messages keep to the same rules.
CLEAN = ("bench", "engine", "examples", "graphs", "kernels", "tests", "tools")

_NO = r"(?<!there )(?<!there's )"
_MORE = r"(?:longer|more|less|fewer|sooner|later|better|worse|\w+er than)\b"
# Phrases that are banned, and better ones.
BANS = {
    "of which": (r"\bof which\b", "two sentences, or a possessive"),
    "is no": (rf"(?i){_NO}\b(?:is|are|was|were|be) no\b(?! {_MORE})", "is not a"),
    "that of": (r"\b(?:that|those) of\b", "repeat the noun"),
    "tells of": (r"\b(?:tells?|telling|told) of\b", "reports, warns about, lists"),
    "behind": (r"(?i)\bbehind\b", "after"),
    "else": (
        r"(?i)(?<!thing )(?<!one )(?<!body )(?<!where )(?<!what )(?<!or )\belse\b",
        "otherwise",
    ),
    "begin": (r"(?i)\b(?:the|its|their|a|each|at|this|that's|\w+'s) begin\b", "start"),
    "in place of": (r"(?i)\bin place of\b", "instead of"),
    "reckon": (r"(?i)\b(?:reckon|foretell|foretold)\w*", "estimate, predict"),
    "has it": (
        r"(?i)(?<!far )\bas (?:(?:a|an|the|their) )?[`\w.+-]+(?: [`\w.-]+)? (?:has|have) "
        r"(?:it|them)\b",
        "as in",
    ),
    "but for": (r"(?i)\bbut for\b", "except for"),
    "told": (r"(?i)\b(?:is|are|was|were) told\b|\btold by\b|\btells? no\b", "gets, is reported"),
    "go on with": (r"(?i)\bgo(?:es|ing)? on with\b", "continue"),
    "of one's own": (r"\bof one's own\b", "a user's own"),
    "None: it is": (
        r"\bNone: (?:there|it|they|nobody|nothing|none|one is|all (?:do|have))\b",
        "None if it is",
    ),
    "in the making": (r"(?i)\bin the making\b|\bfor want of\b", "that is being made; without"),
    "none of": (r"\b(?:is|are|was|were) none of\b", "is not one of"),
    "stands there": (r"(?i)\bstands? there (?:once|twice)\b", "occurs"),
    "anew": (r"(?i)\banew\b", "again, from the start"),
    "otherwise than": (r"(?i)\botherwise than\b", "not as, in another way than"),
    "allowed are": (
        r"(?i)(?:^|[;:,.] )(?:allowed|supported|missing|given|expected|sent) (?:are|is|was|were) ",
        "at most ... are allowed, supported: ...",
    ),
    "a training": (
        r"\b(?:[Aa]|[Ee]very|[Ee]ach|[Aa]nother) training(?:'s|(?= (?:that|which|may|is|has|ends?|"
        r"starts?|begins?|takes?|writes|with|over)\b)|(?=[.,:;)?]|$))",
        "a training run",
    ),
    "who": (
        r"(?i)(?:\b(?:to|for|by|from|as|than|with)|[.;:]) who\b(?!ever)(?![^.;]*\?)",
        "the user who, whoever",
    ),
}
# No phrase is banned without one of these words, which are found faster.
_ANY = re.compile(
    r"(?i)of which|\b(?:no|else|begin|behind|told|who)\b|\b(?:tell|that of|those of)|in place of"
    r"|reckon|foretell|foretold|\b(?:has|have) (?:it|them)\b|but for|in the making|for want of"
    r"|on with|one's own|none: |none of|stands? there|anew|otherwise than|training"
    r"|(?:allowed|supported|missing|given|expected|sent) (?:are|is|was|were) "
)
# A sentence whose subject is a clause; questions, and "What to do:", are none.
_CLAUSE = re.compile(
    r"(?:^|[.:;!?]\s|^[-*|] *|\| |\*\*)(What|Which|Who|Whether|Whoever|Whatever)\b"
    r"(?! to\b)(?P<rest>[^.?!]*)(?P<end>[.?!]|$)"
)
# Code of other languages in a string, or a list of their keywords: no prose.
_CODE = re.compile(r"[;{]\n|#include|:\n    |\A\s*(?:[a-z_\d]+\s+){12}")
_FOUND = re.compile(r"\s*(?:>>> )?\(?found\b[^=]*=[^=]")  # assigned on a page
_PARTS = re.compile(r"(\n\s*\n|\n(?=\s*\w+(?:, \w+)*: ))")  # of a docstring
_C_COMMENT, _STAR, NEWLINE = re.compile(r"/\*(.*?)\*/", re.DOTALL), r"(?m)^ *\*", "\n"
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
OPENING = re.compile(r"(?:What|Whether|Which|Who|How)\b")


def offences(text: str) -> Iterator[str]:
    """Name each banned phrase of a paragraph, with the words around it."""
    for name, (pattern, better) in BANS.items() if _ANY.search(text) else ():
        for match in re.finditer(pattern, text):
            around = text[max(0, match.start() - 30) : match.end() + 30]
            yield f"{name!r} ({better}): ...{around}..."
    for match in _CLAUSE.finditer(text):
        if match["end"] != "?":
            yield f"a clause as subject: {match[0].strip()[:70]}"


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """The prose of a page: paragraphs, bullets and rows of tables, with the lines they begin at.

    Code, comments and the addresses of links are left out; of headings only the words are kept.
    """

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    page = re.sub(r"^( *)(`{3,}).*?^\1\2`*$", blank, page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"<!--.*?-->", blank, page, flags=re.DOTALL)
    page = _without_code(page)
    page = re.sub(r"\]\([^)\s]*\)", "]", page)
    start, lines = 0, list[str]()
    for number, line in enumerate([*page.splitlines(), ""], 1):
        opens = re.match(r"\s*(?:[-*|#>]|\d+\.)", line)
        if (opens or not line.strip()) and lines:
            yield start, " ".join(lines)
            lines = []
        if line.strip():
            start = start if lines else number
            heading = re.match(r"#+ ", line)
            lines.append(f"{line.strip().rstrip('?')}?" if heading else line.strip())


def nameless(path: Path) -> list[str]:
    """List the lines where functions assign `found`, which does not say what was found."""
    source = path.read_text("utf-8")
    lines = {
        node.lineno
        for function in (ast.walk(ast.parse(source)) if "found" in source else ())
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == "found" and isinstance(node.ctx, ast.Store)
    }
    return [f"{_name(path)}:{line}: 'found' does not say what was found" for line in sorted(lines)]


def on_page(path: Path) -> list[str]:
    """List the offences on a page of Markdown, each with its line; in its code, only `found`."""
    page = path.read_text("utf-8")
    return [
        f"{_name(path)}:{line}: {offence}"
        for line, text in paragraphs(page)
        for offence in offences(text)
    ] + [
        f"{_name(path)}:{line}: 'found' does not say what was found"
        for line, text in enumerate(page.splitlines(), 1)
        if _FOUND.match(text)
    ]


def in_code(path: Path) -> list[str]:
    """List the offences in the docstrings, comments and messages of a Python file."""
    source = path.read_text("utf-8")
    nodes = [*ast.walk(ast.parse(source))]
    docstrings = {node.body[0].lineno: text for node, text in _documented(nodes)}
    texts = [*_paragraphs(docstrings), *_messages(nodes, docstrings), *_comments(source)]
    return [
        f"{_name(path)}:{line}: {offence}"
        for line, text in texts
        for offence in offences(_without_code(" ".join(text.split())))
    ] + [
        f"{_name(path)}:{line}: a docstring begins with {opening[0]!r}"
        for line, text in docstrings.items()
        if (opening := OPENING.match(text))
    ]


def in_c(path: Path) -> list[str]:
    """List the offences in the comments of a C file."""
    source = path.read_text("utf-8")
    return [
        f"{_name(path)}:{source.count(NEWLINE, 0, comment.start()) + 1}: {offence}"
        for comment in _C_COMMENT.finditer(source)
        for offence in offences(_without_code(" ".join(re.sub(_STAR, "", comment[1]).split())))
    ]


def _documented(nodes: Sequence[ast.AST]) -> Iterator[tuple[Documented, str]]:
    """Yield the module, classes and functions that have a docstring, and the docstring."""
    for node in nodes:
        if isinstance(node, Documented) and (text := ast.get_docstring(node)) is not None:
            yield node, text


def _paragraphs(docstrings: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs and argument rows of docstrings, with the lines they begin at."""
    for first, text in docstrings.items():
        line = first
        for part in _PARTS.split(text):
            if part.strip():
                yield line, part
            line += part.count("\n")


def _messages(nodes: Sequence[ast.AST], docstrings: Collection[int]) -> Iterator[tuple[int, str]]:
    """Yield the strings of more than two words that are not docstrings, with their lines."""
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if (
                len(text.split()) > 2 and node.lineno not in docstrings and not _CODE.search(text)
            ):
                yield node.lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments, joined where one goes on from the line before, with their last lines."""
    line, text = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != line + 1 and text:
                yield line, text
                text = ""
            line, text = token.start[0], f"{text} {token.string.lstrip('# ')}".strip()
    if text:
        yield line, text


def _without_code(text: str) -> str:
    return re.sub(r"(`+)(?:(?!\1).)+?\1", "`code`", text)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def files_of(place: str) -> list[Path]:
    """List the Python files of a folder, without this one, which quotes; or a file itself."""
    path = ROOT / place
    return sorted({*path.rglob("*.py")} - {Path(__file__)}) if path.is_dir() else [path]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_page_reads_well(page: Path) -> None:
    assert not on_page(page)


@pytest.mark.parametrize("place", CLEAN)
def test_docstrings_comments_and_messages_read_well(place: str) -> None:
    assert not [text for path in files_of(place) for text in in_code(path)]


def test_comments_of_c_read_well() -> None:
    paths = [p for place in CLEAN for p in (ROOT / place).rglob("*.[ch]")]
    assert len(paths) > 20
    assert not [text for path in paths for text in in_c(path)]


@pytest.mark.parametrize("place", CLEAN)
def test_no_function_assigns_found(place: str) -> None:
    paths = {*files_of(place), *([Path(__file__)] if place == "tests" else [])}
    assert not [text for path in sorted(paths) for text in nameless(path)]


def test_an_assignment_of_found_is_found(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("found: int\n\n\ndef f(found):\n    g(found=1)\n    found = found[0]\n")
    assert [text.split(":")[1] for text in nameless(path)] == ["6"]


@pytest.mark.parametrize(
    ("text", "banned"),
    [
        ("A layer of which only the bias is trained.", "of which"),
        ("The digest is no signature.", "is no"),
        ("The loss is that of the batch.", "that of"),
        ("A warning tells of copies.", "tells of"),
        ("The node behind the product.", "behind"),
        ("It is read, else it is made.", "else"),
        ("Aligned at the begin.", "begin"),
        ("15 MB in place of 47.", "in place of"),
        ("Reckoned from the work.", "reckon"),
        ("A message for who waits.", "who"),
        ("The classes are on axis 1, as ONNX has it.", "has it"),
        ("All of it but for the bias.", "but for"),
        ("The sampler is told the epoch.", "told"),
        ("A file in the making.", "in the making"),
        ("A process goes on with a run.", "go on with"),
        ("A class of one's own.", "of one's own"),
        ("scale: of the loss; None: there is none.", "None: it is"),
        ("It ends. What is left is kept.", "a clause as subject"),
        ("| a key | Whether it is kept. |", "a clause as subject"),
        ("- Who has the turn may step.", "a clause as subject"),
        ("'bird' is none of the classes.", "none of"),
        ("A name that stands there twice.", "stands there"),
        ("Plans are made anew.", "anew"),
        ("It answers otherwise than before.", "otherwise than"),
        ("8 x 8 pixels; allowed are 50.", "allowed are"),
        ("The report of a training.", "a training"),
    ],
)
def test_a_banned_phrase_is_found_once(text: str, banned: str) -> None:
    (offence,) = offences(text)
    assert banned in offence


@pytest.mark.parametrize(
    "text",
    [
        "There is no other way, and it is no longer than that; it is no slower than before.",
        "What is kept? Nothing else, or else an error.",
        "**What to do:** ask someone else who knows.",
        "It begins in place, reads what it needs, and says who may write.",
        "A training step is part of every training run, which none of them knows.",
    ],
)
def test_plain_english_is_let_through(text: str) -> None:
    assert not list(offences(text))


def test_prose_of_a_page_is_found_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# What is kept\n\nA `that of` and\n[of which](behind.md) more.\n\n"
        "```sh\n# that of\n```\n\n<!-- behind -->\n- a\n- One behind\n  another.\n"
        "```pycon\n>>> (found,) = f()\n>>> found == 1\n```\n"
    )
    assert [offence.split(" (")[0] for offence in on_page(page)] == [
        "page.md:3: 'of which'",
        "page.md:12: 'behind'",
        "page.md:15: 'found' does not say what was found",
    ]


def test_text_of_code_is_found_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(
        '"""Whether it runs."""\n\n\ndef f(n):\n    """Return `that of` n."""\n'
        "    # a comment over two lines, of\n    # which one is enough\n"
        '    raise ValueError(f"{n} is no number of this kind")\n'
    )
    assert [offence.split(":")[1] for offence in in_code(path)] == ["1", "8", "7", "1"]


if __name__ == "__main__":
    for each in sys.argv[1:] or [str(p.relative_to(ROOT)) for p in PAGES]:
        if each == "--count":
            continue
        listed = [
            o for f in files_of(each) for o in (in_code(f) if f.suffix == ".py" else on_page(f))
        ]
        if "--count" in sys.argv:
            print(f"{len(listed):5} {each}")
        else:
            print(*listed, sep="\n")
