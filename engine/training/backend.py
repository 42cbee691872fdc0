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

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import EngineError, InputError, InternalError
from engine.base.representation import represent
from engine.base.signatures import check_arguments
from engine.training import inference
from engine.training.model_file import ModelSource

if TYPE_CHECKING:
    from onnx import NodeProto

    from engine.graphs.offline.support import SupportTable


@check_arguments
class Session:
    """Prepared model: an `engine.inference.Session` whose inputs may go by their order."""

    def __init__(self, model: ModelSource | Any, threads: int | None = None) -> None:
        self._session = inference.Session(model, threads=threads)
        self._names = [each.name for each in self._session.get_inputs()]
        self._bfloats = self._session.list_bfloats()

    def __repr__(self) -> str:
        return repr(self._session)

    def run(self, inputs: Sequence[Any] | Mapping[str, Any], **kwargs: Any) -> tuple[Array, ...]:
        """Return the outputs for these inputs, which are given in the order of the model or by
        name.

        Outputs of bfloat16 are arrays as `onnx.numpy_helper` makes them.

        Raises:
            InputError, DTypeError, ShapeError: naming the input.
            UnsupportedOpError: naming the node.
        """
        if not isinstance(inputs, Mapping):
            names = self._names
            if len(inputs) != len(names):
                raise InputError(f"the model takes {len(names)} inputs {names}, got {len(inputs)}")
            inputs = dict(zip(names, inputs, strict=True))
        outputs = self._session.run(None, inputs)
        if self._bfloats:
            from engine.graphs.io.messages import make_bfloats

            kinds = self._session.get_outputs()
            outputs = [
                make_bfloats(array) if kind.name in self._bfloats else array
                for kind, array in zip(kinds, outputs, strict=True)
            ]
        return tuple(outputs)


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

        threads: as for `engine.api.Module`.

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
        opset_version: the opset of the node's domain, by default the newest that is supported.
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


def supported(model: Any) -> SupportTable:
    """Return a table of the nodes of an ONNX model that tells which of them can be trained.

    model: a path, bytes or `ModelProto`.

    Each row has the fields node, op, domain, opset, status and reason; `print` shows the table.

    Raises:
        FileError, ModelError, DTypeError, UnsupportedOpError: the model cannot be read.
    """
    from engine.graphs.offline import support

    return support.check_support(model)
