"""Every method with values that nobody should pass: python walk.py BUILD CHECKPOINT CALLS ROUNDS.

By the names of `engine.api`, from Python 3.9 and numpy alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, sys.argv[1])
import mnist  # type: ignore[import-not-found]  # of the build

CODES = mnist._L._CODE
OPENED = getattr(mnist, "Trainer", mnist.Predictor)


def text(word: str) -> Any:
    return None if word == "null" else bytes.fromhex(word[1:]).decode()


def whole(word: str) -> Any:
    return None if word == "null" else int(word)


def real(word: str) -> float:
    return float(np.uint32(int(word)).view(np.float32))


def content(word: str) -> Any:
    return None if word == "null" else Path(word).read_bytes()


def zeros(word: str, dtype: Any) -> Any:
    return None if word == "null" else np.zeros(int(word), dtype)


def tokens(word: str) -> Any:
    """Return so many zeros, or after `=` another number."""
    if word == "null":
        return None
    count, _, value = word.partition("=")
    return np.full(int(count), int(value or 0), np.int32)


def numbers(word: str) -> Any:
    if word == "null":
        return None
    count, _, value = word[2:].partition("=")
    return np.full(int(count), float(value), np.dtype(word[0]))  # f, d and l are NumPy's codes, too


def inputs(word: str) -> Any:
    """Return arrays, in the shapes of a step where they have its elements."""
    if word == "null":
        return None
    given = [] if word == "none" else [numbers(each) for each in word.split(",")]
    phases = live.state._handle.phases[0]
    shapes = [port["shape"] for port in phases["train" if "train" in phases else "infer"][0]]
    for i, shape in enumerate(shapes[: len(given)]):
        given[i] = shape_as(given[i], shape)
    return given


def shape_as(array: Any, shape: Any) -> Any:
    """Return an array in a shape, if it has its elements."""
    return array if array is None or array.size != np.prod(shape) else array.reshape(shape)


def find_parameter(m: Any, index: Any) -> Any:
    """Return a parameter, which Python finds by its name."""
    names = [each["name"] for each in m.state._handle.parameters]
    if index is None or not 0 <= index < len(names):
        raise mnist.InputError("there is none at that index")
    return m.state.parameters[names[index]]


def set_parameter(m: Any, index: Any, values: Any) -> None:
    parameter = find_parameter(m, index)
    parameter.data = shape_as(values, parameter.data.shape)


def set_gradient(m: Any, index: Any, values: Any) -> None:
    gradient = find_parameter(m, index).grad
    if gradient is None:
        raise mnist.InputError("there is none at that index")
    new = np.asarray(values)
    if new.size != gradient.size or new.dtype != gradient.dtype:
        raise mnist.InputError("expected another array")
    gradient[...] = new.reshape(gradient.shape)


def set_property(m: Any, name: Any, value: Any) -> None:
    m.state.properties[name] = value


def tell(answer: Any) -> str:
    return f"ok {'none' if answer is None else int(answer)}"


def done(answer: Any) -> str:
    return "ok"


CALLS: dict[str, Callable[[Any, list[str]], str]] = {
    # @rows@
}


def call(row: list[str]) -> str:
    """Return what a call says."""
    try:
        return CALLS[row[1]](live, row[2:])
    except (mnist.Error, KeyError, MemoryError) as error:
        message = error.args[0] if error.args else ""
        return f"{CODES.index(type(error))} {message}"
    except TypeError as error:  # of a list of arguments that is null
        return f"1 expected other arguments: {error}" if "null" in row else f"other error: {error}"
    except Exception as error:
        return f"other error: {error!r}"


def keep() -> Any:
    """Return all that a checkpoint holds, which a refused call may not change."""
    if hasattr(mnist, "Trainer"):
        kept = live.state.to_bytes(True)
    else:
        kept = live.module.get_contiguous_parameters().tobytes()
    return kept, live.decoder().length if "append" in mnist._C else 0


def read_resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


live = OPENED(None if sys.argv[2] == "-" else sys.argv[2])  # with values of its own
rows = [line.split(" ") for line in Path(sys.argv[3]).read_text().splitlines()]
for index, row in enumerate(rows):
    before = keep()
    said = call(row)
    is_same = said.startswith("ok") or keep() == before
    print(f"{index} {said}{'' if is_same else ' changed'}")
rounds, first = int(sys.argv[4]), 0
for turn in range(rounds):
    for row in rows:
        call(row)
    if turn == rounds // 2:
        first = read_resident()
print(f"grown {max(0, read_resident() - first) >> 20}")
