"""Templates of projects: the folders of examples/, which `edgegrad new` copies.

A template consists of the folder's own files of the kinds below, and its tests/, without the files
that its programs have written into other folders.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from engine.base.errors import FileError, InputError, NameNotFoundError, StateError, suggest_nearest
from engine.system import files
from engine.tools.trimmed.staging import staged

# Beside tools/, in a checkout as where the package is installed.
FOLDER = Path(__file__).resolve().parents[2] / "examples"
SUFFIXES = (".py", ".md", ".toml", ".txt", ".csv", ".onnx")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def list_templates() -> dict[str, str]:
    """Return the templates by name, with the title of their README."""
    titles = {}
    for readme in sorted(FOLDER.glob("*/README.md")):
        first = readme.read_text("utf-8").partition("\n")[0]
        titles[readme.parent.name] = first.lstrip("# ").strip()
    return titles


def list_contents(name: str) -> list[Path]:
    """Return the files of a template, relative to its folder.

    Raises:
        NameNotFoundError: there is no such template; the message has the nearest ones.
    """
    known = list_templates()
    if name not in known:
        raise NameNotFoundError(
            f"no template {name!r}{suggest_nearest(name, known)}; there are "
            f"{', '.join(known) or 'none'}"
        )
    source = FOLDER / name
    paths = (*source.iterdir(), *source.glob("tests/*"))
    members = [path for path in paths if path.is_file() and path.suffix in SUFFIXES]
    return sorted(path.relative_to(source) for path in members)


def copy(name: str, folder: Path) -> list[Path]:
    """Copy a template into a new or empty folder; return the paths of the files.

    Raises:
        NameNotFoundError: there is no such template.
        InputError: the folder's name is not suitable for a project.
        StateError: the folder is not empty.
        FileError: the folder cannot be written.
    """
    made = list_contents(name)
    title = Path(os.path.abspath(folder)).name
    if not _NAME.fullmatch(title):
        raise InputError(
            f"{title!r} is not a name for a project: expected letters, digits, '-', '_' and '.', "
            "beginning with a letter or a digit"
        )
    if folder.exists() and not folder.is_dir():
        raise StateError(f"{folder} is a file: give another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise StateError(f"{folder} is not empty: give another name, nothing was overwritten")
    with staged(folder) as place:
        for path in made:
            content = files.read(str(FOLDER / name / path), "template")
            if path.name == "pyproject.toml":
                content = _fill(content.decode("utf-8"), Path(os.path.abspath(folder))).encode()
            target = place / path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"cannot write {target}: {files.describe_error(error)}") from error
            files.write(str(target), [content])
    return [folder / path for path in made]


def _fill(text: str, folder: Path) -> str:
    """Return the pyproject.toml of an app of Flower, with the project's name and where its runs are
    kept.

    Flower's server runs an app in a folder of its own, so that the path has to be a whole one.  A
    name there has letters, digits and hyphens, and begins with a letter.
    """
    title = re.sub(r"[^A-Za-z0-9]+", "-", folder.name).strip("-")
    title = title if title[:1].isalpha() else f"app-{title}"
    runs = json.dumps(os.fspath(folder / "runs"), ensure_ascii=False)
    text = re.sub(r'(?m)^name = "[^"]*"', lambda _: f'name = "{title}"', text, count=1)
    return re.sub(r'(?m)^output = "runs"', lambda _: f"output = {runs}", text, count=1)


def list_first_commands(name: str) -> list[str]:
    """Return the first commands that the README of a template shows."""
    text = (FOLDER / name / "README.md").read_text("utf-8")
    block = re.search(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL)
    return [] if block is None else block[1].strip().splitlines()
