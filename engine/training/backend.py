"""Running any ONNX model, by the interface of `onnx.backend.base.Backend`.

    from edgegrad import backend

    rep = backend.prepare(onnx.load("model.onnx"))
    (y,) = rep.run([x])

Plans are made for concrete shapes.  Where the value of an input decides a shape (the target of a
Reshape, the k of a TopK), that value is part of the plan, and another value is another plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.errors import (
    EngineError,
    InputError,
    InternalError,
    UnknownValueError,
    suggest_nearest,
)
from engine.base.representation import represent
from engine.base.signatures import check_arguments
from engine.checkpoint.storage import Checkpoint
from engine.system import config
from engine.training.large_constants import freeze_constants
from engine.training.memory import Memory
from engine.training.model import Model
from engine.training.model_file import ModelSource
from engine.training.plan_cache import Records
from engine.training.state import CheckpointState

if TYPE_CHECKING:
    from onnx import NodeProto

    from engine.graphs.offline.support import Table

Array = npt.NDArray[Any]


@check_arguments
class Session:
    """Prepared model, with a plan for each combination of input shapes.

    Inputs whose values decide shapes are constants in a plan; other values are another plan.
    """

    def __init__(self, model: ModelSource | Any, threads: int | None = None) -> None:
        self._memory = Memory()
        state = CheckpointState(Checkpoint(trainable={}, frozen={}))
        number = config.choose_threads(threads)
        self._model = Model(model, state, self._memory, number, "model", records=Records)
        freeze_constants([self._model], self._memory)
        self._deciding: list[str] = []  # inputs whose values are part of plans
        self._draws = 0  # runs that drew random numbers

    def __repr__(self) -> str:
        declared = self._model.interface.inputs
        takes = ", ".join(f"{name} {declared[name]}" for name in self._model.inputs)
        return f"Session({takes} -> {', '.join(self._model.outputs)})"

    def run(self, inputs: Sequence[Any] | Mapping[str, Any], **kwargs: Any) -> tuple[Array, ...]:
        """Return the outputs for these inputs, which are given in the order of the model or by
        name.

        Raises:
            InputError, DTypeError, ShapeError: naming the input.
            UnsupportedOpError: naming the node.
        """
        arrays = self._make_arrays(inputs)
        with self._memory.lock.take():
            program = self._make_program(arrays)
            for name, place in program.inputs.items():
                np.copyto(place, arrays[name])
            program.run(self._draws)
            self._draws += program.draws
            return tuple(program.outputs[name].copy() for name in self._model.outputs)

    def _make_arrays(self, given: Sequence[Any] | Mapping[str, Any]) -> dict[str, Array]:
        names = self._model.inputs
        if not isinstance(given, Mapping):
            if len(given) != len(names):
                raise InputError(f"the model takes {len(names)} inputs {names}, got {len(given)}")
            given = dict(zip(names, given, strict=True))
        for name in given:
            if name not in names:
                raise InputError(f"the model has no input {name!r}{suggest_nearest(name, names)}")
        missing = [name for name in names if name not in given]
        if missing:
            raise InputError(f"the model also takes the inputs {missing}")
        return {name: self._model.make_array(name, given[name]) for name in names}

    def _make_program(self, arrays: Mapping[str, Array]) -> Any:
        """Return the program for these inputs; each value that planning asks for becomes part of
        it.
        """
        shapes = [a.shape for a in arrays.values()]
        while True:
            try:
                return self._model.get_program(shapes, {n: arrays[n] for n in self._deciding})
            except UnknownValueError as error:
                new = [n for n in error.inputs if n not in self._deciding]
                if not new:
                    raise
                self._deciding += new


@check_arguments
class Backend:
    """Interface of `onnx.backend.base.Backend`, without importing onnx."""

    __repr__ = represent

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether a model is well-formed and the device supported."""
        try:
            cls.prepare(model, device, **kwargs)
        except InternalError:
            raise
        except EngineError:
            return False
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Session:
        """Return a session that runs a model: a `ModelProto`, a path or bytes.

        threads: as of `engine.api.Module`.

        Raises:
            ModelError, DTypeError, UnsupportedOpError: as when a model is loaded.
            EngineError: another device than a CPU.
        """
        if not cls.supports_device(device):
            raise EngineError(f"device {device!r} is not supported; only 'CPU' is")
        return Session(model, kwargs.get("threads"))

    @classmethod
    def run_model(
        cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Array, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Sequence[Any],
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Run one node on the values of its present inputs.

        outputs_info: ignored.
        opset_version: of the domain of the node, by default the newest that is supported.
        """
        from engine.graphs.io.convert import make_node_model

        opset = kwargs.pop("opset_version", None)
        opset = None if opset is None else arguments.count("opset_version", opset)
        arrays = [arguments.make_array("inputs", value) for value in inputs]
        return cls.run_model(make_node_model(node, arrays, opset), arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether a device, `kind[:number]`, is a CPU."""
        return device.partition(":")[0].upper() == "CPU"


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device


def supported(model: Any) -> Table:
    """Return a table of the nodes of an ONNX model that tells which of them can be trained.

    model: a path, bytes or `ModelProto`.

    Each row has the fields node, op, domain, opset, status and reason; `print` shows the table.

    Raises:
        FileError, ModelError, DTypeError, UnsupportedOpError: the model cannot be read.
    """
    from engine.graphs.offline import support

    return support.check_support(model)
