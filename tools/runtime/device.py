"""Training of one model from Python: numpy, and the library this file lies beside.

    t = Trainer("checkpoint")
    loss = t.step(x, labels)          # forward, backward, optimizer step
    t.save("checkpoint")

`CheckpointState`, `Module` and `Optimizer` have the names and meaning of `engine.api`; paths of
models are taken and not read, because the library is made of one model and for fixed shapes.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NAME = "model"
HERE = Path(__file__).resolve().parent
INFO = json.loads((HERE / "manifest.json").read_text("utf-8"))
PHASES = ("train", "eval", "infer")


class Error(RuntimeError):
    """Base of all errors of this module."""


class InputError(Error, ValueError):
    """A call has wrong inputs: number, element type, shape or value."""


class LabelError(InputError, IndexError):
    """A class label is out of range; nothing has changed."""


class CheckpointError(Error, ValueError):
    """A checkpoint is damaged, or of another model."""


class FileError(Error, OSError):
    """A file is missing or could not be written."""


class StateError(Error):
    """A call in the wrong order, or of a phase that this build lacks."""


_ERRORS = (Error, InputError, LabelError, CheckpointError, FileError, StateError, MemoryError,
           KeyError)  # fmt: skip

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_FLOATS = ctypes.POINTER(ctypes.c_float)
_TYPES: dict[str, tuple[Any, ...]] = {  # function -> (result, arguments)
    "create": (_INT, _POINTER, ctypes.c_char_p, ctypes.c_char_p),
    "create_from": (_INT, _POINTER, ctypes.c_char_p, _SIZE, ctypes.c_char_p),
    "destroy": (None, _POINTER),
    "message": (ctypes.c_char_p, _POINTER),
    "build": (ctypes.c_char_p,),
    "train_step": (_INT, _POINTER, _POINTER, _POINTER),
    "eval_step": (_INT, _POINTER, _POINTER, _POINTER),
    "infer": (_INT, _POINTER, _POINTER, _POINTER),
    "optimizer_step": (_INT, _POINTER),
    "lazy_reset_grad": (None, _POINTER),
    "get_learning_rate": (ctypes.c_float, _POINTER),
    "set_learning_rate": (_INT, _POINTER, ctypes.c_float),
    "get_step": (ctypes.c_int64, _POINTER),
    "parameter": (_POINTER, _POINTER, _INT),
    "gradient": (_POINTER, _POINTER, _INT),
    "parameters_size": (_SIZE, _INT),
    "get_parameters": (_INT, _POINTER, _POINTER, _SIZE, _INT),
    "set_parameters": (_INT, _POINTER, _POINTER, _SIZE, _INT),
    "checkpoint_size": (_SIZE, _POINTER, _INT),
    "save_to": (_INT, _POINTER, _POINTER, _SIZE, _INT),
    "save": (_INT, _POINTER, ctypes.c_char_p, _INT),
}


def _load() -> dict[str, Any]:
    library = ctypes.CDLL(str(HERE / INFO["library"]))
    functions = {}
    for name, (result, *arguments) in _TYPES.items():
        functions[name] = getattr(library, f"{NAME}_{name}")
        functions[name].restype, functions[name].argtypes = result, arguments
    if functions["build"]().decode() != INFO["build"]:
        raise Error(f"{HERE}: library and manifest are of different builds")
    return functions


_C = _load()


class _Handle:
    """A model of the library; calls of several threads wait for one another."""

    def __init__(self, source: str | os.PathLike[str] | bytes) -> None:
        self.lock, self.pointer = threading.Lock(), _POINTER()
        message = ctypes.create_string_buffer(INFO["sizes"]["message"])
        out = ctypes.byref(self.pointer)
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            code = _C["create_from"](out, data, len(data), message)
        else:
            code = _C["create"](out, os.fsencode(source), message)
        if code:
            raise _ERRORS[code](message.value.decode(errors="replace"))

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            _C["destroy"](self.pointer)
            self.pointer = None

    def call(self, name: str, *arguments: Any) -> None:
        with self.lock:
            code = _C[name](self.pointer, *arguments)
            if code:
                raise _ERRORS[code](_C["message"](self.pointer).decode(errors="replace"))

    def view(self, address: int, info: dict[str, Any]) -> np.ndarray:
        """The tensor at an address, a view that keeps the model alive."""
        kind = np.dtype(info["dtype"])
        count = int(np.prod(info["shape"], dtype=np.int64))
        memory = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
        memory.owner = self
        return np.ndarray(info["shape"], kind, memory)


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
        new, target = np.asarray(value), self.data
        if new.shape != target.shape or new.dtype != target.dtype:
            raise InputError(
                f"parameter {self.name!r}: {target.dtype}{target.shape}, got "
                f"{new.dtype}{new.shape}"
            )
        target[...] = new

    @property
    def grad(self) -> np.ndarray | None:
        address = _C["gradient"](self._handle.pointer, self._index)
        return self._handle.view(address, self._info) if address else None


class Parameters:
    """The parameters by name; iterating gives (name, Parameter) sorted by name."""

    def __init__(self, state: CheckpointState) -> None:
        self._all = {p["name"]: Parameter(state, i) for i, p in enumerate(INFO["parameters"])}

    def __getitem__(self, name: str) -> Parameter:
        return self._all[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._all[name].data = value

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return iter(sorted(self._all.items()))

    def __len__(self) -> int:
        return len(self._all)


class CheckpointState:
    """All that a training remembers; made by `load_checkpoint` or `from_bytes`."""

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle
        self.parameters = Parameters(self)

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str] | bytes) -> CheckpointState:
        return cls(_Handle(checkpoint_uri))

    @classmethod
    def from_bytes(cls, data: bytes) -> CheckpointState:
        return cls(_Handle(data))

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = False,
    ) -> None:
        state._handle.call("save", os.fsencode(checkpoint_uri), int(include_optimizer_state))

    def to_bytes(self, include_optimizer_state: bool = False) -> bytes:
        include = int(include_optimizer_state)
        size = _C["checkpoint_size"](self._handle.pointer, include)
        out = ctypes.create_string_buffer(size)
        self._handle.call("save_to", out, size, include)
        return out.raw


class Module:
    """The model: a call is a training step, or in eval mode an evaluation step."""

    def __init__(self, train_model_uri: Any, state: CheckpointState, eval_model_uri: Any = None,
                 device: str = "cpu", session_options: Any = None) -> None:  # fmt: skip
        self.training, self._state, self._handle = True, state, state._handle

    def __call__(self, *user_inputs: Any) -> Any:
        return self._run("train" if self.training else "eval", user_inputs)

    def infer(self, *user_inputs: Any) -> Any:
        """Forward without loss and labels."""
        return self._run("infer", user_inputs)

    def _run(self, phase: str, given: Sequence[Any]) -> Any:
        if phase not in INFO["phases"]:
            raise StateError(f"this build has no {phase} phase")
        spec = INFO["phases"][phase]
        values = [np.asarray(v) for v in given if v is not None]
        if len(values) != len(spec["inputs"]):
            raise InputError(f"{phase} takes {[i['name'] for i in spec['inputs']]}")
        arrays = []
        for array, info in zip(values, spec["inputs"], strict=True):
            if list(array.shape) != info["shape"] or array.dtype != info["dtype"]:
                raise InputError(
                    f"input {info['name']!r}: this build takes {info['dtype']}{info['shape']}, "
                    f"got {array.dtype}{list(array.shape)}"
                )
            arrays.append(np.ascontiguousarray(array))
        outputs = [np.empty(info["shape"], info["dtype"]) for info in spec["outputs"]]
        ins, outs = ((_POINTER * len(a))(*(x.ctypes.data for x in a)) for a in (arrays, outputs))
        name = {"train": "train_step", "eval": "eval_step", "infer": "infer"}[phase]
        self._handle.call(name, ins, outs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def train(self, mode: bool = True) -> Module:
        self.training = bool(mode)
        return self

    def eval(self) -> Module:
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        with self._handle.lock:
            _C["lazy_reset_grad"](self._handle.pointer)

    def input_names(self) -> list[str]:
        return [i["name"] for i in INFO["phases"]["train" if self.training else "eval"]["inputs"]]

    def output_names(self) -> list[str]:
        return [o["name"] for o in INFO["phases"]["train" if self.training else "eval"]["outputs"]]

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
            known = spec and spec["outputs"]
            raise StateError(f"this build exports {known}; choose by edgegrad build --output")
        model = bytearray((HERE / spec["file"]).read_bytes())
        for name, place in spec["places"].items():
            raw = self._state.parameters[name].data.tobytes()
            model[place : place + len(raw)] = raw
        return bytes(model)

    def export_model_for_inferencing(
        self,
        inference_model_uri: str | os.PathLike[str],
        graph_output_names: Sequence[str] | None = None,
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

    def __init__(self, checkpoint: str | os.PathLike[str] | bytes = HERE / "checkpoint") -> None:
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
        return self.module.infer(*inputs)

    def save(self, path: str | os.PathLike[str]) -> None:
        CheckpointState.save_checkpoint(self.state, path, include_optimizer_state=True)

    def export(self, path: str | os.PathLike[str]) -> None:
        self.module.export_model_for_inferencing(path)
