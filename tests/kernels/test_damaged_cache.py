"""The cache of kernels: damaged, read-only, and written by several at once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from engine.errors import (
    CacheWarning,
)
from engine.kernels.binaries import load
from engine.kernels.machine.target import detect_host
from engine.runtime.team import LAUNCH
from tests.support.thread_calls import run_in_threads

BITCODE = b"BC\xc0\xde" * 100  # as it begins; nothing here reads more of it


class Compiler:
    """In the place of the compiler: counts, and returns what would be code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
        self.calls = 0
        monkeypatch.setattr(load, "compile_kernel", self.compile)
        if folder is not None:
            monkeypatch.setenv("EDGEGRAD_CACHE_DIR", str(folder))

    def compile(self, *_: Any, **__: Any) -> bytes:
        self.calls += 1
        return BITCODE

    def ask(self) -> int:
        """Return how often it compiled for one request, whose answer must be right."""
        before = self.calls
        assert load.get_bitcode(LAUNCH, detect_host()) == BITCODE
        return self.calls - before


def test_a_damaged_cache_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch, tmp_path)
    assert (compiler.ask(), compiler.ask()) == (1, 0)
    (file,) = tmp_path.rglob("*.bc")
    whole = file.read_bytes()
    for n in (0, 5, 32, 33, len(whole) - 1):
        file.write_bytes(whole[:n])
        assert (compiler.ask(), compiler.ask()) == (1, 0)
    file.write_bytes(whole[:-1] + b"?")
    assert (compiler.ask(), compiler.ask()) == (1, 0)
    file.unlink()
    file.mkdir()
    with pytest.warns(CacheWarning, match="is not a regular file"):
        assert compiler.ask() == 1
    assert compiler.ask() == 1
    assert list(tmp_path.rglob("*")) == [file.parent, file]  # no temporary file


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert Compiler(monkeypatch, tmp_path / "file").ask() == 1
    for name in ("EDGEGRAD_CACHE_DIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "home", nobody)
        assert Compiler(patch, None).ask() == 1

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert Compiler(monkeypatch, tmp_path / "full").ask() == 1
    assert not [p for p in (tmp_path / "full").rglob("*") if p.is_file()]


def test_writers_of_one_cache_do_not_disturb_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, wrong = Compiler(monkeypatch, tmp_path), []

    def work() -> None:
        for _ in range(30):
            if load.get_bitcode(LAUNCH, detect_host()) != BITCODE:
                wrong.append(1)
            for file in tmp_path.rglob("*.bc"):
                file.unlink(missing_ok=True)

    run_in_threads([work] * 4)
    assert not wrong
    assert compiler.calls > 4
