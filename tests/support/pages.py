"""Pages of the documentation as programs: `python -m tests.support.pages PAGE` runs one.

The fenced blocks of a page run in order, in the current folder:

    python   statements; the Python blocks of a page share their names
    pycon    a Python session, whose output must be what stands there; "..." is anything
    sh       commands; a block ends with an error at the first that fails
    console  commands after "$ ", whose output must be what stands there

Blocks of other languages are only shown.  A comment that readers do not see changes the block after
it, or adds to the page:

    <!-- file: run.toml -->          the block is written to that file and not run
    <!-- not run: needs a board -->  the block is not run, and why
    <!-- needs: torch -->            the block runs where that package is installed
    <!-- output: of the block above -->  the block has what that one prints; numbers may differ
    <!-- hidden                      statements that run here
    import numpy as np
    -->
"""

from __future__ import annotations

import doctest
import io
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from tests.support.places import PATHS

RUN = ("python", "pycon", "sh", "console", "hidden")
SHOWN = (
    "text",
    "toml",
    "csv",
    "html",
    "json",
    "c",
    "cpp",
    "js",
    "java",
    "kotlin",
    "swift",
    "objc",
    "csharp",
    "rust",
    "go",
    "markdown",
    "bibtex",
)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
SECONDS = 300  # a command that takes longer hangs


@dataclass(frozen=True)
class Block:
    """Code block of a page.

    language: the first word after the fence; "hidden" for a comment, "" for an indented block.
    line: of the block's first line of text in the page, from 1.
    file: where it is written to.
    why: the reason for which it is not run.
    needs: a package without which it is not run.
    output: given if the text is what the block before it prints.
    """

    language: str
    text: str
    line: int
    file: str = ""
    why: str = ""
    needs: str = ""
    output: str = ""


def list_blocks(page: str) -> Iterator[Block]:
    """The code blocks of a page in order.

    Raises:
        ValueError: a comment belongs to no block.
    """
    said: dict[str, str] = {}
    for token in MarkdownIt("commonmark").parse(page):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block":
            match = re.fullmatch(
                r"<!-- *(file|not run|needs|output): (.+?) *-->\s*", token.content, re.DOTALL
            )
            hidden = re.fullmatch(r"<!-- hidden\n(.*)-->\s*", token.content, re.DOTALL)
            if match:
                said["why" if match[1] == "not run" else match[1]] = " ".join(match[2].split())
            elif hidden:
                yield Block("hidden", hidden[1], line + 1)
        elif token.type == "fence":
            language = token.info.split()[0] if token.info else "none"
            if not language.startswith("{"):  # a directive of Sphinx's is text
                yield Block(language, token.content, line + 1, **said)
                said = {}
        elif token.type == "code_block":
            yield Block("", token.content, line)
        elif token.type == "inline" and said:
            raise ValueError(f"line {line}: {said} belongs to no block")


class Failure(Exception):
    """A block did not do what its page says."""


def run(page: Path) -> None:
    """Run the blocks of a page in the current folder.

    Raises:
        Failure: a command failed, or printed something else.
        Exception: whatever a Python block stops with.
    """
    sys.path.insert(0, os.getcwd())
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        environment, printed = _make_environment(Path(folder)), io.StringIO()
        for block in list_blocks(page.read_text("utf-8")):
            place = f"{page}:{block.line}"
            if block.output:
                _check_output(block.text, printed.getvalue(), place)
            elif block.file:
                Path(block.file).parent.mkdir(parents=True, exist_ok=True)
                Path(block.file).write_text(block.text, "utf-8")
            elif block.why or block.language not in RUN or not _is_there(block.needs):
                continue
            elif block.language == "pycon":
                _run_session(block, names, page)
            elif block.language in ("python", "hidden"):
                printed = io.StringIO()
                text = "\n" * (block.line - 1) + block.text  # so that tracebacks name its lines
                with redirect_stdout(printed), redirect_stderr(printed):
                    exec(compile(text, str(page), "exec"), names)
            elif block.language == "sh":
                printed = io.StringIO(_run_commands(block.text, environment, place))
            else:
                _run_console(block, environment, place)


def _check_output(expected: str, printed: str, place: str) -> None:
    """Compare texts without their numbers, which depend on the machine and its speed.

    The lines that an empty cache of kernels adds are left out.

    Raises:
        Failure: they differ.
    """
    printed = re.sub(r"(?m)^compiling \d+/\d+ kernels.*\n", "", printed)
    told, parts = (re.sub(r"\d[\d,.]*", "0", text).split() for text in (expected, printed))
    if told != parts:
        raise Failure(f"{place}: expected:\n{expected}\ngot:\n{printed}")


def _is_there(package: str) -> bool:
    return not package or find_spec(package) is not None


def _make_environment(folder: Path) -> dict[str, str]:
    """Return variables for commands: `python` and `edgegrad` of this checkout."""
    for name, module in (("python", ""), ("python3", ""), ("edgegrad", " -m engine.tools.cli")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": PATHS}


def _run_session(block: Block, names: dict[str, Any], page: Path) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, {}, page.name, str(page), block.line - 1)
    test.globs = names
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    if runner.run(test, out=told.append, clear_globs=False).failed:
        raise Failure("".join(told))


def _run_commands(text: str, environment: dict[str, str], place: str) -> str:
    """Run commands by bash; returns what they print."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise Failure(f"{place}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def _run_console(block: Block, environment: dict[str, str], place: str) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        got = _run_commands(f"{command} || true", environment, place)
        if not doctest.OutputChecker().check_output(expected, got, FLAGS):
            raise Failure(f"{place}: $ {command}\nexpected:\n{expected}\ngot:\n{got}")


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="typer")  # by Flower
    asked = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as empty, chdir(empty):
        run(asked)
