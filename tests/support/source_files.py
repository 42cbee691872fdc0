"""The Python files of this checkout."""

from __future__ import annotations

from pathlib import Path

from tests.support.places import ROOT


def list_files(*folders: str) -> list[Path]:
    """Every Python file of these folders and of those in them; symlinks are not followed."""
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(p for p in paths if p.resolve() == p)


def name_file(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
