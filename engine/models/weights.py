"""Weights from files, by the names of parameters: ONNX, safetensors, and PyTorch's own."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.base.errors import InputError, ModelError, ShapeError
from engine.checkpoint import safetensors
from engine.data.packages import require
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.models.catalog import Architecture
from engine.system import files

_ENDS = ("weight", "bias", "running_mean", "running_var")  # of the names of parameters
_TORCH = (".pth", ".pt", ".bin")
_WRAPPERS = ("state_dict", "model")  # under which training scripts save parameters
_SHOWN = 3  # names in a message

Arrays = Mapping[str, np.ndarray[Any, Any]]


def read(path: str | os.PathLike[str]) -> Arrays:
    """Return the parameters of a file by name; its suffix tells the format.

    Raises:
        FileError: it cannot be read.
        InputError: the suffix is not known, or the file has no parameters.
        CheckpointError, ModelError: it is damaged.
        MissingPackageError: a file of PyTorch needs torch, which is not installed.
    """
    place = os.fspath(path)
    suffix = os.path.splitext(place)[1].lower()
    if suffix == ".onnx":
        return onnx_io.load(place).initializers
    if suffix == ".safetensors":
        return safetensors.decode(files.read(place, "weights"), place)[0]
    if suffix in _TORCH:
        return _read_torch(place)
    raise InputError(
        f"weights {place!r}: the suffix {suffix!r} is not known; supported: .onnx, .safetensors, "
        f"{', '.join(_TORCH)}"
    )


def _read_torch(path: str) -> Arrays:
    """Return the parameters of a file of `torch.save`; no code in it runs."""
    torch = require("torch", "torch", f"weights {path!r}")
    file = io.BytesIO(files.read(path, "weights"))
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"weights {path!r}: not a file of parameters that torch.load reads with "
            f"weights_only=True: {str(error).splitlines()[0]}"
        ) from error
    for name in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    tensors = content if isinstance(content, Mapping) else {}
    arrays = {
        str(name): value.float().numpy() if value.is_floating_point() else value.numpy()
        for name, value in tensors.items()
        if isinstance(value, torch.Tensor)
    }
    if not arrays:
        raise InputError(f"weights {path!r}: no parameters by name, as in a state_dict")
    return arrays


def take_over(graph: Graph, kind: Architecture, path: str | os.PathLike[str]) -> list[str]:
    """Give a graph the parameters of a file; return the names of those that stay random.

    These are parameters of the last layer, where the file has them for another number of outputs.

    Raises:
        ModelError: the file lacks parameters, or has others: it is of another architecture.
        ShapeError: a parameter before the last layer has another shape.
        EngineError: as `read`.
    """
    values, place = read(path), os.fspath(path)
    mine = [
        name for name, value in graph.initializers.items() if value.dtype.kind == "f" and value.ndim
    ]
    missing = [name for name in mine if name not in values]
    own = set(mine)
    others = [name for name in values if name.rpartition(".")[2] in _ENDS and name not in own]
    for names, what in ((missing, "lacks"), (others, "has other ones,")):
        if names:
            shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
            raise ModelError(
                f"weights {place!r}: {kind.name} has {len(mine)} parameters, and the file {what} "
                f"{len(names)}: {shown}"
            )
    random = []
    for name in mine:
        value, here = values[name], graph.initializers[name]
        if value.shape == here.shape:
            graph.initializers[name] = np.ascontiguousarray(value, np.float32)
        elif name.startswith(kind.head):
            random.append(name)
        else:
            raise ShapeError(
                f"weights {place!r}: {name!r} is {list(value.shape)}; {kind.name} for such "
                f"samples has {list(here.shape)}: give the input_shape that the weights are for"
            )
    return random
