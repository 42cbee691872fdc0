"""Interface to the C functions of a library of `edgegrad build`, with numpy and ctypes.

For Python 3.9 or newer and numpy 1.19 or newer, which Raspberry Pi OS 11 has.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NAME = "model"
HERE = Path(__file__).resolve().parent
INFO = json.loads((HERE / "manifest.json").read_text("utf-8"))
HAS_OWN_VALUES = "phases" in INFO and "checkpoint" not in INFO  # of a decoder alone


class Error(RuntimeError):
    """Base of all errors of a build."""


InputError: Any = type("InputError", (Error, ValueError), {})
LabelError: Any = type("LabelError", (InputError, IndexError), {})
CheckpointError: Any = type("CheckpointError", (Error, ValueError), {})
FileError: Any = type("FileError", (Error, OSError), {})
StateError: Any = type("StateError", (Error,), {})
PlanError: Any = type("PlanError", (Error, ValueError), {})
CPUError: Any = type("CPUError", (Error,), {})
_CODE = (Error, InputError, LabelError, CheckpointError, FileError, StateError, MemoryError,
         KeyError, PlanError, CPUError)  # fmt: skip
_POINTER = ctypes.c_void_p
_KINDS: dict[str, Any] = {
    "p": _POINTER, "i": ctypes.c_int, "n": ctypes.c_size_t, "f": ctypes.c_float,
    "l": ctypes.c_int64, "s": ctypes.c_char_p, "0": None,
}  # fmt: skip
# Rows `function:letters`, of its result and its arguments: written from the header's declarations.
_FUNCTIONS = """@functions@"""
# The names of numpy for types of elements, by the numbers of the header's enum.
_NAMES = "@dtypes@"


class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_int),
                ("dims", ctypes.POINTER(ctypes.c_int64)), ("bytes", ctypes.c_size_t),
                ("trainable", ctypes.c_int)]  # fmt: skip


_KINDS["t"] = ctypes.POINTER(_Tensor)
_DTYPES = _NAMES.split(",")
functions: dict[str, Any] = {}
_library = ctypes.CDLL(str(HERE / INFO["library"]))
for _name, _letters in re.findall(r"(\w+):(\w+)", _FUNCTIONS):
    functions[_name] = getattr(_library, f"{NAME}_{_name}")
    functions[_name].restype, *functions[_name].argtypes = (_KINDS[k] for k in _letters)
if functions["build"]().decode() != INFO["build"]:
    raise Error(f"{HERE}: library and manifest are of different builds")


# --- what callers pass, as C takes it


def convert_path(value: Any, what: str) -> str:
    """Return a path as text; `what` is its name in errors."""
    try:
        path = os.fsdecode(value)
    except TypeError:
        raise InputError(f"{what}: expected a path, got {value!r}") from None
    if not path or "\0" in path:
        raise InputError(f"{what}: {path!r} is not a path")
    return path


def convert_text(value: Any, what: str) -> bytes:
    """Return text in C's form."""
    if not isinstance(value, str) or "\0" in value:
        raise InputError(f"{what}: expected text without null characters, got {value!r}")
    try:
        return value.encode()
    except UnicodeError:
        raise InputError(f"{what}: {value!r} cannot be written as UTF-8") from None


def convert_whole(value: Any, what: str) -> int:
    """Return a whole number of 64 bits."""
    if not isinstance(value, (int, np.integer, np.bool_)) or not -(2**63) <= int(value) < 2**63:
        raise InputError(f"{what}: expected a whole number of 64 bits, got {value!r}")
    return int(value)


def convert_number(value: Any, what: str) -> float:
    """Return a finite number that float32 can hold."""
    try:
        value_ = ctypes.c_float(value).value
    except TypeError:
        value_ = math.nan
    if not math.isfinite(value_):
        raise InputError(f"{what}: expected a finite number, got {value!r}")
    return value_


def convert_array(value: Any, dtype: Any, what: str) -> np.ndarray:
    """Return a value as an array.

    Numbers in lists get this element type; integers only if they are whole and in range.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{what}: {error}") from None
    if isinstance(value, np.ndarray) or dtype is None:
        return array
    with np.errstate(all="ignore"):
        made = array.astype(dtype) if array.dtype.kind in "biuf" else None
    if made is None or (made.dtype.kind in "iu" and not np.array_equal(made, array)):
        raise InputError(f"{what}: expected numbers that {dtype} can hold, got {array.dtype}")
    return made


def check(array: np.ndarray, info: dict[str, Any], what: str, batches: Any = ()) -> None:
    if list(array.shape) != info["shape"] or array.dtype != info["dtype"]:
        description = f"{array.dtype}{list(array.shape)}"
        more = f" (batches: {', '.join(map(str, batches))})" if len(batches) > 1 else ""
        expected = f"{info['dtype']}{info['shape']}{more}"
        raise InputError(f"{what}: this build has {expected}, got {description}")


# --- models


def describe_port(found: Any) -> dict[str, Any]:
    """Return the name, type and shape of a tensor of C."""
    t = found.contents
    return {
        "name": t.name.decode(),
        "dtype": _DTYPES[t.dtype],
        "shape": t.dims[: t.rank],
        "trainable": bool(t.trainable),
    }


def _read(source: Any, what: str) -> bytes | None:
    if source is None and HAS_OWN_VALUES:
        return None
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    path = convert_path(source, what)
    if os.path.exists(f"{path}.odtc-new"):
        raise FileError(f"{what} '{path}' was not completely written; load it with the engine")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {what} '{path}': {error.strerror}") from None


def write(path: str, content: bytes) -> None:
    """Put a file with this content at a path in one step; an error leaves what was there."""
    place = os.path.realpath(path)  # a symbolic link is followed, not replaced
    temporary = f"{place}.{os.getpid()}-{threading.get_ident()}.tmp"
    try:
        if os.path.isdir(place):
            raise IsADirectoryError(None, "it is a folder")
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise FileError(f"cannot write '{path}': {error.strerror}") from None


class Handle:
    """Model of the library; calls from several threads wait for one another.

    A signal handler runs between two lines of Python in the main thread, so it can interrupt a call
    there.  A call that it makes itself could only wait for ever, and is a StateError.  So is one in
    a forked process, which lacks the threads of the model.
    """

    def __init__(self, source: Any, plan: Any) -> None:
        self.lock, self.busy, self.pointer = threading.RLock(), False, _POINTER()
        self.process = os.getpid()
        message = ctypes.create_string_buffer(INFO["sizes"]["message"])
        self.inference, self.model = INFO.get("inference"), b""
        given, create = [_read(source, "checkpoint")], "create_from"
        if "phases" not in INFO:
            if plan is None:
                raise PlanError("this library takes the plans of a model as a file: plan=...")
            given, create = [_read(plan, "plan"), *given], "create_from_plan"
        first = given[0] or b""
        sized = [x for data in given for x in (data, len(data or b""))]
        code = functions[create](ctypes.byref(self.pointer), *sized, message)
        if code:
            why = message.value.decode(errors="replace")
            is_path = isinstance(source, (str, os.PathLike))
            if _CODE[code] is CheckpointError and is_path:
                why = f"{os.fspath(source)}: {why}"
            raise _CODE[code](why)
        if plan is not None:  # after the plans: a line of JSON, the inference model
            sizes = (int.from_bytes(first[at : at + 8], "little") for at in (16, 24))
            rest = first[sum(sizes) :]
            line, _, self.model = rest.partition(b"\n")
            self.inference = json.loads(line)
        elif self.inference:
            self.model = (HERE / f"{NAME}.onnx").read_bytes()
        m = self.pointer
        count = functions["parameter_count"](m)
        self.parameters = [describe_port(functions["parameter_info"](m, i)) for i in range(count)]
        count = functions["batch_count"](m)
        self.batches = [functions["batch_size"](m, i) for i in range(count)]
        self.phases = [self._list_ports(batch) for batch in self.batches]

    @property
    def first_phases(self) -> dict[str, tuple[list[dict[str, Any]], ...]]:
        """Inputs and outputs by phase, with the first batch size; none for a decoder alone."""
        return self.phases[0] if self.phases else {}

    @property
    def buffer(self) -> tuple[str, str]:
        """The end of the names of functions that take all parameters, and the element type."""
        types = {p["dtype"] for p in self.parameters if p["trainable"]}
        return ("_f64", "float64") if types == {"float64"} else ("", "float32")

    def _list_ports(self, batch: int) -> dict[str, tuple[list[dict[str, Any]], ...]]:
        """Return inputs and outputs by phase."""
        phases: dict[str, tuple[list[dict[str, Any]], ...]] = {}
        m = self.pointer
        functions["set_batch"](m, batch)
        for p, phase in enumerate(("train", "eval", "infer")):
            if functions["output_count"](m, p):
                ins, outs = functions["input_count"](m, p), functions["output_count"](m, p)
                phases[phase] = (
                    [describe_port(functions["input_info"](m, p, i)) for i in range(ins)],
                    [describe_port(functions["output_info"](m, p, i)) for i in range(outs)],
                )
        return phases

    def __del__(self) -> None:
        if "process" in self.__dict__ and not self._is_forked():
            functions["destroy"](self.pointer)

    def _is_forked(self) -> bool:
        return INFO["threads"] > 1 and os.getpid() != self.process

    @contextlib.contextmanager
    def turn(self, what: str) -> Iterator[None]:
        """Keep other threads from calling the model during the block."""
        with self.lock:
            if self.busy:
                raise StateError(f"{what}: called inside another call, as by a signal handler")
            if self._is_forked():
                raise StateError(f"{what}: the model was made before a fork; load it again here")
            try:
                self.busy = True
                yield
            finally:
                self.busy = False

    def call(self, name: str, *arguments: Any, batch: int | None = None) -> None:
        with self.turn(name):
            if batch is not None:
                functions["set_batch"](self.pointer, batch)
            self.check(functions[name](self.pointer, *arguments))

    def check(self, code: int | None) -> None:
        """Raise the error for the code that a C function returned."""
        if code:
            raise _CODE[code](functions["message"](self.pointer).decode(errors="replace"))

    # @if checkpoint_size@
    def read_content(self, include_optimizer_state: bool) -> bytes:
        """Return the checkpoint."""
        with self.turn("save_to"):
            size = functions["checkpoint_size"](self.pointer, include_optimizer_state)
            out = ctypes.create_string_buffer(size)
            self.check(functions["save_to"](self.pointer, out, size, include_optimizer_state))
        return out.raw

    # @end@
    def view(self, address: int, info: dict[str, Any]) -> np.ndarray:
        """Return the tensor at an address, a view that keeps the model alive."""
        kind = np.dtype(info["dtype"])
        size = int(np.prod(info["shape"], dtype=np.int64)) * kind.itemsize
        memory = (ctypes.c_char * size).from_address(address)
        memory.owner = self
        return np.ndarray(info["shape"], kind, memory)
