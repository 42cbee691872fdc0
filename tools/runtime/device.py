"""Training of one model from Python: numpy, and the library this file lies beside.

    t = Trainer("checkpoint"); loss = t.step(x, labels); t.save("checkpoint")

`CheckpointState`, `Module` and `Optimizer` have the names and meaning of `engine.api`; paths of
models are taken and not read, because the library is made of one model and for fixed shapes.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NAME = "model"
HERE = Path(__file__).resolve().parent
INFO = json.loads((HERE / "manifest.json").read_text("utf-8"))


class Error(RuntimeError):
    """Base of all errors of this module."""


InputError: Any = type("InputError", (Error, ValueError), {})
LabelError: Any = type("LabelError", (InputError, IndexError), {})
CheckpointError: Any = type("CheckpointError", (Error, ValueError), {})
FileError: Any = type("FileError", (Error, OSError), {})
StateError: Any = type("StateError", (Error,), {})
_CODE = (Error, InputError, LabelError, CheckpointError, FileError, StateError, MemoryError)
_POINTER = ctypes.c_void_p
File = str | os.PathLike[str]
_KINDS = {"p": _POINTER, "i": ctypes.c_int, "n": ctypes.c_size_t, "f": ctypes.c_float,
          "l": ctypes.c_int64, "s": ctypes.c_char_p, "0": None}  # fmt: skip
# function: its result, then its arguments, by the letters above
_FUNCTIONS = """create: ipss, create_from: ipsns, destroy: 0p, message: sp, build: s,
train_step: ippp, eval_step: ippp, infer: ippp, optimizer_step: ip, lazy_reset_grad: 0p,
get_learning_rate: fp, set_learning_rate: ipf, get_step: lp, parameter: ppi, gradient: ppi,
parameters_size: ni, get_parameters: ippni, set_parameters: ippni, checkpoint_size: npi,
save_to: ippni, save: ipsi, property_count: ip, get_property: ipippppp,
set_property_int: ipsl, set_property_float: ipsf, set_property_string: ipss,
set_seed: 0pl"""
_C: dict[str, Any] = {}
_library = ctypes.CDLL(str(HERE / INFO["library"]))
for _name, _letters in re.findall(r"(\w+): (\w+)", _FUNCTIONS):
    _C[_name] = getattr(_library, f"{NAME}_{_name}")
    _C[_name].restype, *_C[_name].argtypes = (_KINDS[k] for k in _letters)
if _C["build"]().decode() != INFO["build"]:
    raise Error(f"{HERE}: library and manifest are of different builds")


class _Handle:
    """A model of the library; calls of several threads wait for one another."""

    def __init__(self, source: Any) -> None:
        self.lock, self.pointer = threading.Lock(), _POINTER()
        message = ctypes.create_string_buffer(INFO["sizes"]["message"])
        is_data = isinstance(source, bytes | bytearray | memoryview)
        given = (bytes(source), len(source)) if is_data else (os.fsencode(source),)
        create = _C["create_from" if is_data else "create"]
        code = create(ctypes.byref(self.pointer), *given, message)
        if code:
            raise _CODE[code](message.value.decode(errors="replace"))

    def __del__(self) -> None:
        if "pointer" in self.__dict__:
            _C["destroy"](self.pointer)

    def call(self, name: str, *arguments: Any) -> None:
        with self.lock:
            code = _C[name](self.pointer, *arguments)
            if code:
                raise _CODE[code](_C["message"](self.pointer).decode(errors="replace"))

    def view(self, address: int, info: dict[str, Any]) -> np.ndarray:
        """The tensor at an address, a view that keeps the model alive."""
        kind = np.dtype(info["dtype"])
        size = int(np.prod(info["shape"], dtype=np.int64)) * kind.itemsize
        memory = (ctypes.c_char * size).from_address(address)
        memory.owner = self
        return np.ndarray(info["shape"], kind, memory)


def _check(array: np.ndarray, info: dict[str, Any], what: str) -> None:
    if list(array.shape) != info["shape"] or array.dtype != info["dtype"]:
        found = f"{array.dtype}{list(array.shape)}"
        raise InputError(f"{what}: this build has {info['dtype']}{info['shape']}, got {found}")


class Parameter:
    """One parameter; `data` and `grad` are views: writing into them changes the training."""

    def __init__(self, state: CheckpointState, index: int) -> None:
        self._handle, self._index = state._handle, index
        self._info = INFO["parameters"][index]
        self.name, self.requires_grad = self._info["name"], bool(self._info["trainable"])

    @property
    def data(self) -> np.ndarray:
        address = _C["parameter"](self._handle.pointer, self._index)
        if not address:
            raise StateError("a nominal checkpoint has no values; set them all first")
        return self._handle.view(address, self._info)

    @data.setter
    def data(self, value: Any) -> None:
        new = np.asarray(value)
        _check(new, self._info, f"parameter {self.name!r}")
        self.data[...] = new

    @property
    def grad(self) -> np.ndarray | None:
        address = _C["gradient"](self._handle.pointer, self._index)
        return self._handle.view(address, self._info) if address else None


class Parameters(dict[str, Parameter]):
    """The parameters by name; iterating gives (name, Parameter) sorted by name."""

    def __iter__(self) -> Any:
        return iter(sorted(self.items()))

    def __setitem__(self, name: str, value: Any) -> None:
        self[name].data = value


class Properties:
    """User data kept with a checkpoint: int, float (kept as float32) or str by name."""

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle

    def __iter__(self) -> Iterator[tuple[str, int | float | str]]:
        for i in range(_C["property_count"](self._handle.pointer)):
            name, text, kind = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
            whole, real = ctypes.c_int64(), ctypes.c_float()
            out = map(ctypes.byref, (name, kind, whole, real, text))
            self._handle.call("get_property", i, *out)
            value = (whole.value, real.value, (text.value or b"").decode())[kind.value]
            yield (name.value or b"").decode(), value

    def __getitem__(self, name: str) -> int | float | str:
        return dict(self)[name]

    def __setitem__(self, name: str, value: int | float | str) -> None:
        if not isinstance(value, str | float) and not -(2**63) <= int(value) < 2**63:
            raise InputError(f"property {name!r}: {value} does not fit 64 bits")
        kind = {str: "string", float: "float"}.get(type(value), "int")
        given = value.encode() if isinstance(value, str) else value
        self._handle.call(f"set_property_{kind}", name.encode(), given)


class CheckpointState:
    """All that a training remembers; made by `load_checkpoint` or `from_bytes`."""

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle
        names = [p["name"] for p in INFO["parameters"]]
        self.parameters = Parameters((n, Parameter(self, i)) for i, n in enumerate(names))
        self.properties = Properties(handle)

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: File | bytes) -> CheckpointState:
        return cls(_Handle(checkpoint_uri))

    from_bytes = load_checkpoint

    @staticmethod
    def save_checkpoint(
        state: CheckpointState, checkpoint_uri: File, include_optimizer_state: bool = False
    ) -> None:
        state._handle.call("save", os.fsencode(checkpoint_uri), int(include_optimizer_state))

    def to_bytes(self, include_optimizer_state: bool = False) -> bytes:
        pointer, include = self._handle.pointer, int(include_optimizer_state)
        out = ctypes.create_string_buffer(_C["checkpoint_size"](pointer, include))
        self._handle.call("save_to", out, len(out), include)
        return out.raw


class Module:
    """The model: a call is a training step, or in eval mode an evaluation step."""

    def __init__(self, train_model_uri: Any, state: CheckpointState, *_: Any, **__: Any) -> None:
        self.training, self._state, self._handle = True, state, state._handle

    def __call__(self, *user_inputs: Any) -> Any:
        return self._run("train" if self.training else "eval", user_inputs)

    def _run(self, phase: str, given: Sequence[Any]) -> Any:
        if phase not in INFO["phases"]:
            raise StateError(f"this build has no {phase} phase")
        spec = INFO["phases"][phase]
        values = [v for v in given if v is not None]
        if len(values) != len(spec["inputs"]):
            raise InputError(f"{phase} takes {[i['name'] for i in spec['inputs']]}")
        arrays = []
        for value, info in zip(values, spec["inputs"], strict=True):
            array = np.asarray(value, None if isinstance(value, np.ndarray) else info["dtype"])
            _check(array, info, f"input {info['name']!r}")
            arrays.append(np.ascontiguousarray(array))
        outputs = [np.empty(info["shape"], info["dtype"]) for info in spec["outputs"]]
        ins, outs = ((_POINTER * len(a))(*(x.ctypes.data for x in a)) for a in (arrays, outputs))
        self._handle.call(phase if phase == "infer" else f"{phase}_step", ins, outs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def train(self, mode: bool = True) -> Module:
        self.training = bool(mode)
        return self

    def eval(self) -> Module:
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        self._handle.call("lazy_reset_grad")

    def set_seed(self, seed: int) -> None:
        """Seed of the random numbers of dropout, 0 at first."""
        self._handle.call("set_seed", ctypes.c_int64(seed))

    def input_names(self, which: str = "inputs") -> list[str]:
        return [t["name"] for t in INFO["phases"]["train" if self.training else "eval"][which]]

    def output_names(self) -> list[str]:
        return self.input_names("outputs")

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        return int(_C["parameters_size"](int(trainable_only)))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> np.ndarray:
        out = np.empty(self.get_parameters_size(trainable_only), np.float32)
        self._handle.call("get_parameters", out.ctypes.data, out.size, int(trainable_only))
        return out

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        values = np.ascontiguousarray(buffer)
        if values.dtype != np.float32:
            raise InputError(f"the buffer is {values.dtype}: float32 is supported")
        self._handle.call("set_parameters", values.ctypes.data, values.size, int(trainable_only))

    def inference_model_to_bytes(self, graph_output_names: Sequence[str] | None = None) -> bytes:
        """The forward model with the current parameters, its outputs chosen by the build."""
        spec = INFO["inference"]
        if spec is None or list(graph_output_names or spec["outputs"]) != spec["outputs"]:
            raise StateError(f"this build exports {spec and spec['outputs']}: build --output")
        model = bytearray((HERE / spec["file"]).read_bytes())
        for name, place in spec["places"].items():
            raw = self._state.parameters[name].data.tobytes()
            model[place : place + len(raw)] = raw
        return bytes(model)

    def export_model_for_inferencing(
        self, inference_model_uri: File, graph_output_names: Sequence[str] | None = None
    ) -> None:
        temporary = f"{os.fspath(inference_model_uri)}.{os.getpid()}.tmp"
        Path(temporary).write_bytes(self.inference_model_to_bytes(graph_output_names))
        os.replace(temporary, inference_model_uri)


class Optimizer:
    """Updates the trainable parameters from their gradients."""

    def __init__(self, optimizer_uri: Any, module: Module) -> None:
        self._handle = module._handle

    def step(self) -> None:
        self._handle.call("optimizer_step")

    def set_learning_rate(self, learning_rate: float) -> None:
        self._handle.call("set_learning_rate", learning_rate)

    def get_learning_rate(self) -> float:
        return float(_C["get_learning_rate"](self._handle.pointer))


class Trainer:
    """Model, optimizer and checkpoint in one: the short way."""

    def __init__(self, checkpoint: File | bytes = HERE / "checkpoint") -> None:
        self.state = CheckpointState.load_checkpoint(checkpoint)
        self.module = Module(None, self.state)
        self.optimizer = Optimizer(None, self.module)

    def step(self, *inputs: Any) -> Any:
        """One training step; returns the loss, or all outputs of the training model."""
        result = self.module.train()(*inputs)
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return result

    def evaluate(self, *inputs: Any) -> Any:
        return self.module.eval()(*inputs)

    def predict(self, *inputs: Any) -> Any:
        return self.module._run("infer", inputs)

    def save(self, path: File) -> None:
        CheckpointState.save_checkpoint(self.state, path, include_optimizer_state=True)
