"""Errors are the fitting built-ins, too; switches and limits of memory are refused with reasons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from engine import errors
from engine.base.errors import warn_user
from engine.errors import (
    EngineError,
    OutOfMemoryError,
)
from engine.runtime.arena import allocate
from engine.system import config


def test_errors_are_the_fitting_built_ins() -> None:
    kinds = {
        "InternalError": RuntimeError, "ModelError": ValueError,
        "UnsupportedOpError": NotImplementedError,
        "UnknownValueError": NotImplementedError,
        "ShapeError": ValueError, "DTypeError": TypeError, "InputError": ValueError,
        "LabelError": IndexError, "NonFiniteError": FloatingPointError,
        "NameNotFoundError": KeyError, "StateError": RuntimeError, "CheckpointError": ValueError,
        "PlanError": AssertionError, "FileError": OSError, "OutOfMemoryError": MemoryError,
        "BudgetError": MemoryError, "LimitError": MemoryError, "GroupError": ConnectionError,
        "MessageError": ValueError, "NoInfluenceError": ValueError,
        "EngineError": RuntimeError, "MissingPackageError": ImportError,
    }  # fmt: skip
    kept = (c for c in vars(errors).values() if isinstance(c, type))
    actual = {c.__name__: c for c in kept if c.__module__ == errors.__name__}
    for name in ("ModelWarning", "CacheWarning", "CheckpointWarning"):
        assert issubclass(actual.pop(name), UserWarning)
    assert actual.keys() == kinds.keys()
    assert all(issubclass(c, EngineError) and issubclass(c, kinds[n]) for n, c in actual.items())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("THREADS", "x", "EDGEGRAD_THREADS='x': expected a whole number"),
        ("THREADS", "0", "EDGEGRAD_THREADS='0': expected a whole number from 1 to 1024"),
        *(
            ("THREADS", text, "EDGEGRAD_THREADS='.*': expected a whole number from 1 to 1024")
            for text in ("1_0", "+1", "-1", " 1", "1 ", "1.0", "\u0661", "1025", "9" * 5000)
        ),
        ("CHECK_FINITE", "yes", "EDGEGRAD_CHECK_FINITE='yes': expected one of 0, 1"),
        ("DEBUG", "9", "EDGEGRAD_DEBUG='9': expected one of 0, 1, 2"),
        ("TREADS", "1", "unknown switch EDGEGRAD_TREADS.*nearest: 'EDGEGRAD_THREADS'"),
    ],
)
def test_switches(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(config.PREFIX + name, value)
    with pytest.raises(EngineError, match=message):
        config.choose_threads() if "THREADS" in message else config.switch(name)


def test_too_little_memory() -> None:
    with pytest.raises(OutOfMemoryError, match=r"moments: 4611686018427387904 bytes cannot"):
        allocate(2**62, what="moments")


@contextlib.contextmanager
def _warn_on_leaving() -> Iterator[None]:
    yield
    exec("warn_user('text', UserWarning)", {"__name__": "engine.somewhere", "warn_user": warn_user})


def test_a_warning_names_the_line_outside_the_package() -> None:
    with pytest.warns(UserWarning, match="text") as caught, _warn_on_leaving():
        pass
    (warning,) = caught
    assert warning.filename == __file__
