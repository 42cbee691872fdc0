"""Python interface of a trimmed build: needs Python 3.9, numpy, and the library next to this file.

    # @if train_step@
    t = Trainer("checkpoint"); loss = t.step(x, labels); t.save("checkpoint")
    # @end@
    # @if infer !train_step@
    p = Predictor("checkpoint"); scores = p.predict(x)
    # @end@
    # @if append !train_step !infer@
    d = Predictor().decoder(); scores = d.append(tokens)
    # @end@

# @if train_step@
`CheckpointState`, `Module` and `Optimizer` work as in `edgegrad.api`.  They accept paths of models
but do not read them, because the library contains one model, planned for fixed shapes.  A library
of kernels for a set of ops takes the plans as a file: `Trainer("checkpoint", plan="model.plan")`.
# @end@
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

NAME = "model"
HERE = Path(__file__).resolve().parent


def _load(name: str) -> Any:
    """Return the module next to this one that calls the library."""
    spec: Any = importlib.util.spec_from_file_location(f"{__name__}_library", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_L = _load(f"{NAME}_library")
Error, InputError, LabelError, StateError = _L.Error, _L.InputError, _L.LabelError, _L.StateError
CheckpointError, FileError, PlanError = _L.CheckpointError, _L.FileError, _L.PlanError
if TYPE_CHECKING:
    File = str | os.PathLike[str]
_C, _check = _L.functions, _L.check
_OWN = None if _L.HAS_OWN_VALUES else HERE / "checkpoint"


class Parameter:
    """Parameter; `data` and `grad` are views of the model's memory, which you may write to."""

    def __init__(self, state: CheckpointState, index: int) -> None:
        self._handle, self._index = state._handle, index
        self._info = self._handle.parameters[index]
        self.name, self.requires_grad = self._info["name"], bool(self._info["trainable"])

    @property
    def data(self) -> np.ndarray:
        address = _C["parameter"](self._handle.pointer, self._index)
        if not address:
            raise StateError("a nominal checkpoint has no values; set them all first")
        view: np.ndarray = self._handle.view(address, self._info)
        return view

    @data.setter
    def data(self, value: Any) -> None:
        new = _L.convert_array(value, None, f"parameter {self.name!r}")
        _check(new, self._info, f"parameter {self.name!r}")
        self.data[...] = new

    # @if gradient@
    @property
    def grad(self) -> np.ndarray | None:
        address = _C["gradient"](self._handle.pointer, self._index)
        return self._handle.view(address, self._info) if address else None

    # @end@


class Parameters(dict[str, Parameter]):
    """Parameters by name; iterating gives (name, Parameter) sorted by name."""

    def __iter__(self) -> Any:
        return iter(sorted(self.items()))

    def __setitem__(self, name: str, value: Any) -> None:
        self[name].data = value

    def __missing__(self, name: object) -> Parameter:
        raise KeyError(f"no parameter {name!r}; there are {', '.join(n for n, _ in self)}")


class Properties:
    """User data kept with a checkpoint: int, float (kept as float32) or str by name."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __iter__(self) -> Iterator[tuple[str, int | float | str]]:
        for i in range(len(self)):
            name, text, kind = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
            whole, real = ctypes.c_int64(), ctypes.c_float()
            out = map(ctypes.byref, (name, kind, whole, real, text))
            self._handle.call("get_property", i, *out)
            value = (whole.value, real.value, (text.value or b"").decode())[kind.value]
            yield (name.value or b"").decode(), value

    def __len__(self) -> int:
        return int(_C["property_count"](self._handle.pointer))

    def __getitem__(self, name: str) -> int | float | str:
        known = dict(self)
        if name not in known:
            raise KeyError(f"no property {name!r}; there are {', '.join(known) or 'none'}")
        return known[name]

    # @if set_property_int@
    def __setitem__(self, name: str, value: int | float | str) -> None:
        label = _L.convert_text(name, "the name of a property")
        if isinstance(value, str):
            text = _L.convert_text(value, f"property {name!r}")
            self._handle.call("set_property_string", label, text)
        elif isinstance(value, (float, np.floating)):
            self._handle.call("set_property_float", label, float(value))
        else:
            whole = _L.convert_whole(value, f"property {name!r}")
            self._handle.call("set_property_int", label, whole)

    # @end@


class CheckpointState:
    """State of a training run; made by `load_checkpoint` or `from_bytes`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        names = [p["name"] for p in handle.parameters]
        self.parameters = Parameters((n, Parameter(self, i)) for i, n in enumerate(names))
        self.properties = Properties(handle)

    @classmethod
    def load_checkpoint(
        cls, checkpoint_uri: File | bytes | None, plan: File | bytes | None = None
    ) -> CheckpointState:
        return cls(_L.Handle(checkpoint_uri, plan))

    from_bytes = load_checkpoint

    # @if save@
    @staticmethod
    def save_checkpoint(
        state: CheckpointState, checkpoint_uri: File, include_optimizer_state: bool = False
    ) -> None:
        path = os.fsencode(_L.convert_path(checkpoint_uri, "checkpoint"))
        _check_state(state)._handle.call("save", path, bool(include_optimizer_state))

    def to_bytes(self, include_optimizer_state: bool = False) -> bytes:
        content: bytes = self._handle.read_content(bool(include_optimizer_state))
        return content

    # @end@


def _check_state(value: Any) -> CheckpointState:
    if not isinstance(value, CheckpointState):
        raise InputError(f"state: expected a CheckpointState, got {value!r}")
    return value


class Module:
    # @if train_step@
    """Model: a call is a training step, or in eval mode an evaluation step."""

    # @end@
    # @if !train_step@
    """Model of this build."""
    # @end@

    def __init__(self, train_model_uri: Any, state: CheckpointState, *_: Any, **__: Any) -> None:
        self.training, self._state = True, _check_state(state)
        self._handle = self._state._handle

    # @if train_step@
    def __call__(self, *user_inputs: Any) -> Any:
        return self._run("train" if self.training else "eval", user_inputs)

    # @end@
    def _run(self, phase: str, given: Sequence[Any]) -> Any:
        handle, values = self._handle, [v for v in given if v is not None]
        if phase not in handle.first_phases:
            there = ", ".join(handle.first_phases) or "none"
            raise StateError(f"this build has no {phase} phase; it has {there}")
        ins = handle.phases[0][phase][0]
        if len(values) != len(ins):
            raise InputError(f"{phase} takes {[i['name'] for i in ins]}, got {len(values)} inputs")
        names = [f"input {info['name']!r}" for info in ins]
        arrays = [_L.convert_array(v, ins[k]["dtype"], names[k]) for k, v in enumerate(values)]
        shapes = [list(array.shape) for array in arrays]
        fits = [[i["shape"] for i in each[phase][0]] == shapes for each in handle.phases]
        at = fits.index(True) if any(fits) else 0
        ins, outs = handle.phases[at][phase]
        for k, array in enumerate(arrays):
            _check(array, ins[k], names[k], handle.batches)
        arrays = [np.ascontiguousarray(array) for array in arrays]
        outputs = [np.empty(info["shape"], info["dtype"]) for info in outs]
        ports = ((ctypes.c_void_p * len(a))(*(x.ctypes.data for x in a)) for a in (arrays, outputs))
        name = phase if phase == "infer" else f"{phase}_step"
        handle.call(name, *ports, batch=handle.batches[at])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    # @if train_step@
    def train(self, mode: bool = True) -> Module:
        self.training = bool(mode)
        return self

    def eval(self) -> Module:
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        self._handle.call("lazy_reset_grad")

    def set_seed(self, seed: int) -> None:
        """Set the seed of dropout's random numbers; initially 0."""
        self._handle.call("set_seed", _L.convert_whole(seed, "seed"))

    def get_draws(self) -> int:
        """Return the number of steps that have drawn random numbers; checkpoints keep it."""
        return int(_C["get_draws"](self._handle.pointer))

    def set_draws(self, draws: int) -> None:
        self._handle.call("set_draws", _L.convert_whole(draws, "draws"))

    # @end@
    def get_cpu(self) -> str:
        """Return the name of the CPU, or level of CPUs, whose code this model runs."""
        return str(_C["cpu"](self._handle.pointer).decode())

    # @if train_step@
    def input_names(self, side: int = 0) -> list[str]:
        phase = "train" if self.training else "eval"
        return [t["name"] for t in self._handle.phases[0][phase][side]]

    def output_names(self) -> list[str]:
        return self.input_names(1)

    # @end@
    def get_parameters_size(self, trainable_only: bool = True) -> int:
        return int(_C["parameters_size"](self._handle.pointer, int(trainable_only)))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> np.ndarray:
        end, dtype = self._handle.buffer
        out = np.empty(self.get_parameters_size(trainable_only), dtype)
        self._handle.call(f"get_parameters{end}", out.ctypes.data, out.size, int(trainable_only))
        return out

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        values = np.ascontiguousarray(_L.convert_array(buffer, None, "the buffer"))
        end, dtype = self._handle.buffer
        if values.dtype != dtype:
            raise InputError(f"the buffer is {values.dtype}: this model has {dtype}")
        given = (values.ctypes.data, values.size, int(trainable_only))
        self._handle.call(f"set_parameters{end}", *given)

    def inference_model_to_bytes(self, graph_output_names: Sequence[str] | None = None) -> bytes:
        """Return the forward model with the current parameters; the build chose its outputs."""
        spec = self._handle.inference
        if spec is None or list(graph_output_names or spec["outputs"]) != spec["outputs"]:
            raise StateError(
                f"this build exports {spec and spec['outputs']}; choose others by edgegrad build "
                "--output"
            )
        model = bytearray(self._handle.model)
        places = {name: (place, 1, 0) for name, place in spec["places"].items()}
        for name, (place, rows, stride) in {**places, **spec.get("parts", {})}.items():
            raw = self._state.parameters[name].data.tobytes()
            size = len(raw) // rows
            for i in range(rows):
                at = place + i * stride
                model[at : at + size] = raw[i * size : (i + 1) * size]
        return bytes(model)

    def export_model_for_inferencing(
        self, inference_model_uri: File, graph_output_names: Sequence[str] | None = None
    ) -> None:
        path = _L.convert_path(inference_model_uri, "inference model")
        _L.write(path, self.inference_model_to_bytes(graph_output_names))


# @if train_step@
class Optimizer:
    """Optimizer, which updates the trainable parameters from their gradients."""

    def __init__(self, optimizer_uri: Any, module: Module) -> None:
        if not isinstance(module, Module):
            raise InputError(f"module: expected a Module, got {module!r}")
        self._handle = module._handle

    @property
    def is_joined(self) -> bool:
        """True if training steps update the parameters themselves; `step` is then an error."""
        return bool(_C["is_joined"](self._handle.pointer))

    def step(self) -> None:
        self._handle.call("optimizer_step")

    def set_learning_rate(self, learning_rate: float) -> None:
        self._handle.call("set_learning_rate", _L.convert_number(learning_rate, "learning rate"))

    def get_learning_rate(self) -> float:
        return float(_C["get_learning_rate"](self._handle.pointer))

    def get_step(self) -> int:
        return int(_C["get_step"](self._handle.pointer))

    def set_step(self, step: int) -> None:
        self._handle.call("set_step", _L.convert_whole(step, "step"))

    def get_skipped(self) -> int:
        """Return the number of skipped updates, including those before a checkpoint."""
        return int(_C["get_skipped"](self._handle.pointer))

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in the next step; None if the loss is not scaled."""
        return _C["get_loss_scale"](self._handle.pointer) or None

    def set_loss_scale(self, scale: float) -> None:
        """Set the factor of the loss in the next step, from 1 to 16,777,216."""
        self._handle.call("set_loss_scale", _L.convert_number(scale, "loss scale"))


class LinearLRScheduler:
    """Learning rate that rises linearly from 0 for the warm-up, then falls linearly to 0."""

    def __init__(
        self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise InputError(f"optimizer: expected an Optimizer, got {optimizer!r}")
        self._optimizer = optimizer
        self._given = (
            _L.convert_number(initial_lr, "initial_lr"),
            _L.convert_whole(warmup_step_count, "warmup_step_count"),
            _L.convert_whole(total_step_count, "total_step_count"),
        )
        self.step()

    def step(self) -> None:
        """Set the learning rate for the optimizer's next step."""
        self._optimizer._handle.call("set_linear_rate", *self._given)


# @end@
class Predictor:
    """Model and checkpoint in one, for inference.

    outputs: names of what the model computes.
    batches: the numbers of samples that there are plans for.
    """

    def __init__(
        self, checkpoint: File | bytes | None = _OWN, plan: File | bytes | None = None
    ) -> None:
        self._plan = plan
        self.load(checkpoint)
        handle = self.state._handle
        self.outputs = [info["name"] for info in handle.first_phases.get("infer", ([], []))[1]]
        self.batches = list(handle.batches)

    def load(self, checkpoint: File | bytes | None) -> None:
        """Take the values of a checkpoint; this replaces `state` and `module`."""
        self.state = CheckpointState.load_checkpoint(checkpoint, self._plan)
        self.module = Module(None, self.state)

    # @if infer@
    def predict(self, *inputs: Any) -> Any:
        return self.module._run("infer", inputs)

    def predict_batch(self, *inputs: Any) -> dict[str, np.ndarray]:
        """Return the outputs for a batch without labels, by name."""
        results = self.predict(*inputs)
        every = results if isinstance(results, tuple) else (results,)
        return {name: every[i] for i, name in enumerate(self.outputs)}

    # @end@
    def decoder(self) -> Any:
        """Return the model's decoder, which continues a text with the current parameters."""
        if "append" not in _C:
            raise StateError("this build has no decoder; edgegrad build --positions makes one")
        return _load(f"{NAME}_decoder").DeviceDecoder(self.state._handle, _L)


# @if train_step@
class Trainer(Predictor):
    """Model, optimizer and checkpoint in one.

    inputs: names of the inputs of a training step.
    """

    def __init__(
        self, checkpoint: File | bytes | None = _OWN, plan: File | bytes | None = None
    ) -> None:
        super().__init__(checkpoint, plan)
        self.inputs = [info["name"] for info in self.state._handle.first_phases["train"][0]]

    def load(self, checkpoint: File | bytes | None) -> None:
        """Continue from a checkpoint; this replaces `state`, `module` and `optimizer`."""
        super().load(checkpoint)
        self.optimizer = Optimizer(None, self.module)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self.optimizer.get_learning_rate()

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.optimizer.set_learning_rate(rate)

    @property
    def steps(self) -> int:
        """Number of updates, including those before a checkpoint."""
        return self.optimizer.get_step()

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in the next step; None if the loss is not scaled."""
        return self.optimizer.loss_scale

    def step(self, *inputs: Any) -> Any:
        """Run one training step; return the loss, or all outputs of the training model."""
        result = self.module.train()(*inputs)
        if not self.optimizer.is_joined:
            self.optimizer.step()
            self.module.lazy_reset_grad()
        return result

    # @if eval_step@
    def evaluate(self, *inputs: Any) -> Any:
        """Return the loss of a batch, or all outputs of the evaluation model, without training."""
        return self.module.eval()(*inputs)

    # @end@
    def save(self, path: File) -> None:
        CheckpointState.save_checkpoint(self.state, path, include_optimizer_state=True)


# @end@
