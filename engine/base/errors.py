"""Every error that the engine raises on purpose.

All are subclasses of `EngineError`, so that a caller can catch all of them, and of the matching
built-in exception.  `EngineError` is a `RuntimeError` because onnxruntime-training raises those:
code in which only the import has changed catches the same errors as before.  A message names the
place, the value found and the values supported.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator

COMPARED = 200  # letters of the longest name that `suggest_nearest` looks at
LISTED = 5  # names that a message lists
LETTERS = 4000  # of a message; the middle of longer ones is left out


class EngineError(RuntimeError):
    """Base class of all errors of this package.

    A message holds names and values from the caller's files, which may have any length; if it has
    more than `LETTERS` letters, its middle is left out.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(shorten(a, LETTERS) if isinstance(a, str) else a for a in args))


class ModelError(EngineError, ValueError):
    """An ONNX model is malformed, inconsistent or of the wrong kind."""


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

    index: the number of the node's input with this value.
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
    """A tensor has the wrong shape."""


class DTypeError(EngineError, TypeError):
    """A tensor has the wrong element type, or an argument the wrong type."""


class InputError(EngineError, ValueError):
    """An argument or input has a value that is not allowed, or there are too few or too many."""


class LabelError(InputError, IndexError):
    """A class label, an index or the length of a sequence is out of range."""


class NonFiniteError(EngineError, FloatingPointError):
    """A loss or gradient is NaN or infinite, and the caller asked for this check."""


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
    """A model will probably not train as its author intended; the text gives advice."""


class CacheWarning(UserWarning):
    """Plans or kernels kept on disk are not used; the text gives the reason and advice."""


class CheckpointWarning(UserWarning):
    """A checkpoint of a running training could not be written; the training continues."""


class MissingPackageError(EngineError, ImportError):
    """A package is needed for planning or compiling, and is not installed."""


class GroupError(EngineError, ConnectionError):
    """Ranks of a group differ, or one of them has ended or does not answer."""


class OutOfMemoryError(EngineError, MemoryError):
    """A plan or a state needs more memory than is available."""


class LimitError(EngineError, MemoryError):
    """A model, file or message asks for more than a limit of `engine.base.limits` allows.

    limit: its name in the table.  value: the requested amount.  most: the limit, in its unit.
    """

    def __init__(self, text: str, limit: str = "", value: int = 0, most: int = 0) -> None:
        super().__init__(text)
        self.limit, self.value, self.most = limit, value, most


class BudgetError(EngineError, MemoryError):
    """No plan keeps to a budget of bytes.

    least: the smallest budget in bytes that a plan can keep to.
    """

    def __init__(self, text: str, least: int = 0) -> None:
        super().__init__(text)
        self.least = least

    def add_advice(self, advice: str) -> BudgetError:
        """Return the error with an additional sentence of advice."""
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
        stage: the task of the code inside, such as "the shape rule".
        place: the node (or graph, or kernel) that it works on; or a function that returns its name.
        detail: the node as text, for the report.
        owner: the owner of the code, if it is not part of this package.

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
        raise OutOfMemoryError(f"{where}: {stage} needs more memory than is available") from error
    except Exception as error:
        where = place if isinstance(place, str) else place()
        stopped = f"{where}: {stage} stopped with {type(error).__name__}: {error}"
        whose = f"{stopped}; a defect of {owner or 'edgegrad'}, not of your model or data"
        line = f" and this line:\n  {detail}" if detail else ""
        report = f": report it with this traceback, the output of `edgegrad version`{line}"
        raise InternalError(whose if owner else whose + report) from error


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line of the first caller outside this package and `contextlib`."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.startswith("engine.") or module == "contextlib"


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """Return `"; nearest: 'a', 'b'"` for names close to `name`, or an empty string.

    The comparison takes time proportional to the product of the lengths, so long names are skipped.
    """
    if not isinstance(name, str):
        return ""
    if len(name) > COMPARED:
        return ""
    short = [k for k in known if len(k) <= COMPARED]
    import difflib  # of errors alone

    close = difflib.get_close_matches(name, short, n=3, cutoff=0.6)
    return "; nearest: " + ", ".join(repr(c) for c in close) if close else ""


def join_names(names: Iterable[str], most: int = LISTED, *, quoted: bool = True) -> str:
    """Return the first names of a list, with commas, and how many more there are."""
    every = list(dict.fromkeys(names))
    shown = ", ".join(map(repr, every[:most]) if quoted else every[:most])
    return f"{shown} and {len(every) - most} more" if len(every) > most else shown


def shorten(text: str, letters: int) -> str:
    """Return a text of at most about this many letters, without the middle of a longer one."""
    if len(text) <= letters:
        return text
    head = letters * 2 // 3
    left_out = len(text) - letters
    return f"{text[:head]} [... {left_out} letters ...] {text[len(text) - (letters - head) :]}"


for _value in [*globals().values()]:
    if isinstance(_value, type) and issubclass(_value, EngineError | UserWarning):
        _value.__module__ = "engine.errors"  # where users import it from, as tracebacks show
