"""The C functions of a library of `edgegrad build`, and models as handles; numpy and ctypes."""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np

NAME = "model"
HERE = Path(__file__).resolve().parent
INFO = json.loads((HERE / "manifest.json").read_text("utf-8"))


class Error(RuntimeError):
    """Base of all errors of a build."""


InputError: Any = type("InputError", (Error, ValueError), {})
LabelError: Any = type("LabelError", (InputError, IndexError), {})
CheckpointError: Any = type("CheckpointError", (Error, ValueError), {})
FileError: Any = type("FileError", (Error, OSError), {})
StateError: Any = type("StateError", (Error,), {})
PlanError: Any = type("PlanError", (Error, ValueError), {})
_CODE = (Error, InputError, LabelError, CheckpointError, FileError, StateError, MemoryError,
         KeyError, PlanError)  # fmt: skip
_POINTER = ctypes.c_void_p
_KINDS: dict[str, Any] = {
    "p": _POINTER, "i": ctypes.c_int, "n": ctypes.c_size_t, "f": ctypes.c_float,
    "l": ctypes.c_int64, "s": ctypes.c_char_p, "0": None,
}  # fmt: skip
# function: its result, then its arguments, by the letters above
_FUNCTIONS = """destroy: 0p, message: sp, build: s, train_step: ippp, eval_step: ippp, infer: ippp,
optimizer_step: ip, lazy_reset_grad: 0p, get_learning_rate: fp, set_learning_rate: ipf,
get_step: lp, parameter: ppi, gradient: ppi, parameters_size: npi, get_parameters: ippni,
set_parameters: ippni, checkpoint_size: npi, save_to: ippni, save: ipsi, property_count: ip,
get_property: ipippppp, set_property_int: ipsl, set_property_float: ipsf, set_property_string: ipss,
set_seed: 0pl, batch_count: ip, batch_size: lpi, set_batch: ipl, input_count: ipi,
output_count: ipi, input_info: tpii, output_info: tpii, parameter_count: ip, parameter_info: tpi"""
_FUNCTIONS += ", create_from: ipsns" if "phases" in INFO else ", create_from_plan: ipsnsns"


class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_int),
                ("dims", ctypes.POINTER(ctypes.c_int64)), ("bytes", ctypes.c_size_t),
                ("trainable", ctypes.c_int)]  # fmt: skip


_KINDS["t"] = ctypes.POINTER(_Tensor)
_DTYPES = ("", "f4", "u1", "i1", "u2", "i2", "i4", "i8", "", "?", "", "f8", "u4", "u8")
functions: dict[str, Any] = {}
_library = ctypes.CDLL(str(HERE / INFO["library"]))
for _name, _letters in re.findall(r"(\w+): (\w+)", _FUNCTIONS):
    functions[_name] = getattr(_library, f"{NAME}_{_name}")
    functions[_name].restype, *functions[_name].argtypes = (_KINDS[k] for k in _letters)
if functions["build"]().decode() != INFO["build"]:
    raise Error(f"{HERE}: library and manifest are of different builds")


def _info(found: Any) -> dict[str, Any]:
    t = found.contents
    return {
        "name": t.name.decode(),
        "dtype": np.dtype(_DTYPES[t.dtype]).name,
        "shape": t.dims[: t.rank],
        "trainable": bool(t.trainable),
    }


def _read(source: Any, what: str) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if os.path.exists(f"{os.fspath(source)}.odtc-new"):
        raise FileError(f"{what} {source} was not completely written; load it with the engine")
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {what} '{source}': {error.strerror}") from None


class Handle:
    """A model of the library; calls of several threads wait for one another."""

    def __init__(self, source: Any, plan: Any) -> None:
        self.lock, self.pointer = threading.Lock(), _POINTER()
        message = ctypes.create_string_buffer(INFO["sizes"]["message"])
        self.inference, self.model = INFO.get("inference"), b""
        given, create = [_read(source, "checkpoint")], "create_from"
        if "phases" not in INFO:
            if plan is None:
                raise PlanError("this library takes the plans of a model as a file: plan=...")
            given, create = [_read(plan, "plan"), *given], "create_from_plan"
        sized = [x for data in given for x in (data, len(data))]
        code = functions[create](ctypes.byref(self.pointer), *sized, message)
        if code:
            raise _CODE[code](message.value.decode(errors="replace"))
        if plan is not None:  # behind the plans: a line of JSON, the inference model
            sizes = (int.from_bytes(given[0][at : at + 8], "little") for at in (16, 24))
            rest = given[0][sum(sizes) :]
            line, _, self.model = rest.partition(b"\n")
            self.inference = json.loads(line)
        elif self.inference:
            self.model = (HERE / f"{NAME}.onnx").read_bytes()
        m = self.pointer
        count = functions["parameter_count"](m)
        self.parameters = [_info(functions["parameter_info"](m, i)) for i in range(count)]
        count = functions["batch_count"](m)
        self.batches = [functions["batch_size"](m, i) for i in range(count)]
        self.phases = [self._ports(batch) for batch in self.batches]

    def _ports(self, batch: int) -> dict[str, tuple[list[dict[str, Any]], ...]]:
        """Inputs and outputs by phase."""
        found: dict[str, tuple[list[dict[str, Any]], ...]] = {}
        m = self.pointer
        functions["set_batch"](m, batch)
        for p, phase in enumerate(("train", "eval", "infer")):
            if functions["output_count"](m, p):
                ins, outs = functions["input_count"](m, p), functions["output_count"](m, p)
                found[phase] = (
                    [_info(functions["input_info"](m, p, i)) for i in range(ins)],
                    [_info(functions["output_info"](m, p, i)) for i in range(outs)],
                )
        return found

    def __del__(self) -> None:
        if "pointer" in self.__dict__:
            functions["destroy"](self.pointer)

    def call(self, name: str, *arguments: Any, batch: int | None = None) -> None:
        with self.lock:
            if batch is not None:
                functions["set_batch"](self.pointer, batch)
            code = functions[name](self.pointer, *arguments)
            if code:
                raise _CODE[code](functions["message"](self.pointer).decode(errors="replace"))

    def view(self, address: int, info: dict[str, Any]) -> np.ndarray:
        """The tensor at an address, a view that keeps the model alive."""
        kind = np.dtype(info["dtype"])
        size = int(np.prod(info["shape"], dtype=np.int64)) * kind.itemsize
        memory = (ctypes.c_char * size).from_address(address)
        memory.owner = self
        return np.ndarray(info["shape"], kind, memory)


def check(array: np.ndarray, info: dict[str, Any], what: str, batches: Any = ()) -> None:
    if list(array.shape) != info["shape"] or array.dtype != info["dtype"]:
        found = f"{array.dtype}{list(array.shape)}"
        more = f" (batches: {', '.join(map(str, batches))})" if len(batches) > 1 else ""
        expected = f"{info['dtype']}{info['shape']}{more}"
        raise InputError(f"{what}: this build has {expected}, got {found}")
