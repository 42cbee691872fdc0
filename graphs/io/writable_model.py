"""Graphs that users write as ONNX models."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, Union

from engine.base.aliases import StrPath
from engine.base.signatures import check_arguments

if TYPE_CHECKING:
    import onnx

    from engine.graphs.ir.graph import Graph

Model: TypeAlias = Union["onnx.ModelProto", StrPath, bytes, "Graph"]


@check_arguments
class WritableModel:
    """Base class of results that are a model."""

    __slots__ = ()
    graph: Graph

    def save(self, path: StrPath) -> None:
        """Write the model; large weights go to `<path>.data`.

        Raises:
            FileError: a file cannot be written.
        """
        from engine.graphs.io import onnx_io

        onnx_io.save(self.graph, path)

    def to_bytes(self) -> bytes:
        """Return the model as bytes.

        Raises:
            ModelError: the model is too large for this; use `save`.
        """
        from engine.graphs.io import onnx_io

        return onnx_io.to_bytes(self.graph)
