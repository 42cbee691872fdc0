"""Message classes of ONNX, without the rest of the package.

`import onnx` also imports its checker, composer, helpers and their dependencies, which takes three
times as long as the message classes alone.  Reading a model needs only these.  Their file is
executed by itself; protobuf makes one class for each message, so they are the classes of `import
onnx`.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

_NAME = "onnx.onnx_ml_pb2"


def _import_messages() -> ModuleType:
    """Return the module of the message classes.

    Raises:
        ModuleNotFoundError: onnx is not installed.
    """
    known = sys.modules.get(_NAME)
    if known is not None:
        return known
    package = importlib.util.find_spec("onnx")
    folders = package.submodule_search_locations if package is not None else None
    spec = PathFinder.find_spec(_NAME, folders) if folders else None
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'onnx'", name="onnx")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


if TYPE_CHECKING:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        TensorProto,
        TypeProto,
        ValueInfoProto,
    )
else:
    _module = _import_messages()
    AttributeProto = _module.AttributeProto
    FunctionProto = _module.FunctionProto
    GraphProto = _module.GraphProto
    ModelProto = _module.ModelProto
    NodeProto = _module.NodeProto
    TensorProto = _module.TensorProto
    TypeProto = _module.TypeProto
    ValueInfoProto = _module.ValueInfoProto
    from google.protobuf.message import DecodeError  # after onnx, the package to install

__all__ = [
    "AttributeProto",
    "DecodeError",
    "FunctionProto",
    "GraphProto",
    "ModelProto",
    "NodeProto",
    "TensorProto",
    "TypeProto",
    "ValueInfoProto",
]
