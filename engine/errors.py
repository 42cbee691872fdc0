"""Every error that the engine raises on purpose.

All are an `EngineError`, so that a caller can catch all of them, and each is also the built-in
exception that fits it.  `EngineError` is a `RuntimeError` because onnxruntime-training raises
those: code that has changed its import only still catches what it caught.  A message names the
place, what was found and what is supported.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator

COMPARED = 200  # letters of the longest name that `nearest` looks at
LETTERS = 4000  # of a message; what is between its beginning and its end is left out


class EngineError(RuntimeError):
    """Base of all errors of this package.

    A message holds names and values of the caller's files, which may be of any length; of more than
    `LETTERS` letters the middle is left out.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(a, LETTERS) if isinstance(a, str) else a for a in args))


class ModelError(EngineError, ValueError):
    """An ONNX model is malformed, inconsistent or not of the kind that was expected."""


class UnsupportedOpError(ModelError, NotImplementedError):
    """An operator, opset, attribute or gradient is not supported."""


class NoInfluenceError(ModelError):
    """A parameter that is to be trained has no influence on the loss.

    names: all such parameters.
    """

    def __init__(self, text: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.names = names


class UnknownValueError(UnsupportedOpError):
    """A value that decides shapes is not known before lowering.

    index: which input of the node the value is.
    inputs: the names of the graph inputs on which the value depends.
    """

    def __init__(self, text: str, index: int = 0, inputs: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.index, self.inputs = index, inputs


class InternalError(EngineError):
    """A defect of the package or of an operator registered with it, not of the user's input.

    The exception that the code stopped with is its `__cause__`.
    """


class ShapeError(EngineError, ValueError):
    """A tensor has a shape that does not fit."""


class DTypeError(EngineError, TypeError):
    """A tensor has an element type, or an argument a type, that does not fit."""


class InputError(EngineError, ValueError):
    """An argument or input has a value that is not allowed, or there are too few or too many."""


class LabelError(InputError, IndexError):
    """A class label, an index or the length of a sequence is out of range."""


class NonFiniteError(EngineError, FloatingPointError):
    """A loss or gradient is NaN or infinite, and the caller asked to be told."""


class NameNotFoundError(EngineError, KeyError):
    """A parameter, property, tensor or node of that name does not exist."""

    __str__ = RuntimeError.__str__  # KeyError would print the repr of the message


class StateError(EngineError):
    """A call in the wrong order: no eval model, a nominal checkpoint without values, ..."""


class CheckpointError(EngineError, ValueError):
    """Checkpoint bytes are corrupt, truncated, of another version or inconsistent."""


class MessageError(EngineError, ValueError):
    """A message of a federation is damaged, of another version, or of another model or round."""


class ModelWarning(UserWarning):
    """A model will probably not train as its maker means it to; the text says what to do."""


class CacheWarning(UserWarning):
    """What is kept on disk is not used; the text says why, and what to do."""


class CheckpointWarning(UserWarning):
    """A checkpoint of a running training could not be written; the training goes on."""


class MissingPackageError(EngineError, ImportError):
    """Something must be planned or compiled, and a package that does this is not installed."""


class GroupError(EngineError, ConnectionError):
    """Ranks of a group are not alike, or one of them has ended or does not answer."""


class OutOfMemoryError(EngineError, MemoryError):
    """A plan or a state needs more memory than there is."""


class LimitError(EngineError, MemoryError):
    """A model, file or message asks for more than a limit of `engine.limits` allows.

    limit: its name in the table.  value: what was asked for.  most: what it allows, in its unit.
    """

    def __init__(self, text: str, limit: str = "", value: int = 0, most: int = 0) -> None:
        super().__init__(text)
        self.limit, self.value, self.most = limit, value, most


class BudgetError(EngineError, MemoryError):
    """No plan keeps to a budget of bytes.

    least: the least bytes with which there is a plan.
    """

    def __init__(self, text: str, least: int = 0) -> None:
        super().__init__(text)
        self.least = least

    def advised(self, advice: str) -> BudgetError:
        """The error with a sentence more: what would help."""
        return BudgetError(f"{self}; {advice}", self.least)


class PlanError(EngineError, AssertionError):
    """A plan breaks a rule, or a plan file is damaged, of another version or for other kernels."""


class FileError(EngineError, OSError):
    """A file is missing, unreadable or could not be written."""


@contextlib.contextmanager
def defects(
    stage: str, place: str | Callable[[], str], *, detail: object = "", owner: str = ""
) -> Iterator[None]:
    """Turn every exception of the code inside but an `EngineError` into an `InternalError`.

    Args:
        stage: what the code inside does, as "the shape rule".
        place: the node, or else the graph or kernel, that it does it for; or what tells it.
        detail: what a report should hold: the node as text.
        owner: whose code it is, if it is not part of this package.

    Raises:
        OutOfMemoryError: the code stopped with a MemoryError.
        InternalError: it stopped with anything else; the original exception is the cause.
    """
    try:
        yield
    except EngineError:
        raise
    except MemoryError as error:
        where = place if isinstance(place, str) else place()
        raise OutOfMemoryError(f"{where}: {stage} needs more memory than there is") from error
    except Exception as error:
        where = place if isinstance(place, str) else place()
        stopped = f"{where}: {stage} stopped with {type(error).__name__}: {error}"
        whose = f"{stopped}; a defect of {owner or 'edgegrad'}, not of your model or data"
        line = f" and this line:\n  {detail}" if detail else ""
        report = f": report it with this traceback, the output of `edgegrad version`{line}"
        raise InternalError(whose if owner else whose + report) from error


def caller_level() -> int:
    """The `stacklevel` with which a warning of the function that calls this names its user's line.

    That is the first caller outside of this package.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("engine."):
        frame, level = frame.f_back, level + 1
    return level


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `"; nearest: 'a', 'b'"` for names close to `name`, or an empty string.

    The comparison takes time by the product of the lengths, so long names have none that is close.
    """
    if not isinstance(name, str):
        return ""
    if len(name) > COMPARED:
        return ""
    short = [k for k in known if len(k) <= COMPARED]
    close = difflib.get_close_matches(name, short, n=3, cutoff=0.6)
    return "; nearest: " + ", ".join(repr(c) for c in close) if close else ""


def shortened(text: str, letters: int) -> str:
    """A text of at most about this many letters: of a longer one the middle is left out."""
    if len(text) <= letters:
        return text
    head = letters * 2 // 3
    left_out = len(text) - letters
    return f"{text[:head]} [... {left_out} letters ...] {text[len(text) - (letters - head) :]}"
