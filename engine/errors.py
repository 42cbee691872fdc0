"""Every error the engine raises on purpose.

One base, `EngineError`, so a caller can catch all of them; each kind is also the built-in that fits
it.  The base is a `RuntimeError` because that is what onnxruntime-training raised: code that moved
by changing an import keeps catching what it caught.  A message names the place, what was found and
what is supported.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class EngineError(RuntimeError):
    """Base of all errors of this package."""


class ModelError(EngineError, ValueError):
    """An ONNX model is malformed, inconsistent or not of the kind that was expected."""


class UnsupportedOpError(ModelError, NotImplementedError):
    """An operator, opset, attribute or gradient that the engine does not have."""


class UnknownValueError(UnsupportedOpError):
    """A value that decides shapes is not known before lowering.

    `index`: which input of the node it is.  `inputs`: the inputs of the graph it depends on.
    """

    def __init__(self, text: str, index: int = 0, inputs: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.index, self.inputs = index, inputs


class InternalError(EngineError):
    """A defect of the package, or of an operator registered with it: never of the user's input.

    The exception that the code stopped with is its `__cause__`.
    """


class ShapeError(EngineError, ValueError):
    """A tensor has a shape that does not fit."""


class DTypeError(EngineError, TypeError):
    """A tensor has an element type, or an argument a type, that does not fit."""


class InputError(EngineError, ValueError):
    """The inputs of a call are wrong in number, or hold values that are not allowed."""


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


class OutOfMemoryError(EngineError, MemoryError):
    """There is less memory than a plan or a state needs."""


class PlanError(EngineError, AssertionError):
    """A plan breaks a rule: a defect of the planner, or a plan file is damaged or for others."""


class FileError(EngineError, OSError):
    """A file is missing, unreadable or could not be written."""


@contextlib.contextmanager
def defects(stage: str, place: str, *, detail: object = "", owner: str = "") -> Iterator[None]:
    """Whatever the code inside stops with, other than an `EngineError`, is a defect: say so.

    Args:
        stage: what the code inside does, as "the shape rule".
        place: the node, or else the graph or kernel, that it does it for.
        detail: what belongs into a report: the node, written out.
        owner: who wrote that code, if it is not part of this package.

    Raises:
        OutOfMemoryError: there was not enough memory.
        InternalError: anything else; the original exception is its cause.
    """
    try:
        yield
    except EngineError:
        raise
    except MemoryError as error:
        raise OutOfMemoryError(f"{place}: {stage} needs more memory than there is") from error
    except Exception as error:
        stopped = f"{place}: {stage} stopped with {type(error).__name__}: {error}"
        whose = f"{stopped}; a defect of {owner or 'edgegrad'}, not of your model or data"
        line = f" and this line:\n  {detail}" if detail else ""
        report = f": report it with this traceback, the output of `edgegrad version`{line}"
        raise InternalError(whose if owner else whose + report) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `"; nearest: 'a', 'b'"` for names close to `name`, or an empty string."""
    if not isinstance(name, str):
        return ""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return "; nearest: " + ", ".join(repr(c) for c in close) if close else ""
