"""The model to which blocks append; a process has at most one open at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from engine.base.errors import StateError, UnsupportedOpError
from engine.base.signatures import AT_LEAST_1, check_arguments

if TYPE_CHECKING:
    from onnx import ModelProto


@check_arguments
class ModelAccessor:
    """Holds the model to which blocks append, and the path of its base if that was given.

    own: the names of the values that the model had from the beginning.
    targets: the inputs that losses have added, by the names that they usually have.
    """

    def __init__(self, model: ModelProto, model_path: str | None = None) -> None:
        self._model, self._path = model, model_path
        graph = model.graph
        self.own = {v.name for v in (*graph.input, *graph.initializer)}
        self.own.update(name for node in graph.node for name in node.output)
        self.targets: dict[str, str] = {}

    @property
    def model(self) -> ModelProto:
        """The model as it has been built so far."""
        return self._model

    @property
    def path(self) -> str:
        """The path of the base model.

        Raises:
            StateError: no path was given.
        """
        if self._path is None:
            raise StateError("the base model was given without its path: base(model, model_path)")
        return self._path

    @property
    def has_path(self) -> bool:
        """The base model came with a path."""
        return self._path is not None


_GLOBAL_ACCESSOR: ModelAccessor | None = None  # the name is onnxruntime-training's: blocks read it


def get_current() -> ModelAccessor:
    """Return the open accessor.

    Raises:
        StateError: no accessor is open.
    """
    if _GLOBAL_ACCESSOR is None:
        raise StateError("blocks build inside `with onnxblock.base(model):` or `empty_base()`")
    return _GLOBAL_ACCESSOR


@contextmanager
def _opened(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    global _GLOBAL_ACCESSOR
    if _GLOBAL_ACCESSOR is not None:
        raise StateError("a base model is open already: blocks build on one at a time")
    _GLOBAL_ACCESSOR = accessor
    try:
        yield accessor
    finally:
        _GLOBAL_ACCESSOR = None


@check_arguments
@contextmanager
def base(
    model: ModelProto, model_path: str | os.PathLike[str] | None = None
) -> Iterator[ModelAccessor]:
    """Let blocks append to a copy of a model, which is `accessor.model`.

    A copy of a model whose weights are 16-bit floats is float32, and a warning says so.

    model_path: the path of the model, beside which its external data lies.

    Raises:
        StateError: a base is open already.
        InputError: `model` is not a model.
    """
    from engine.graphs.offline import compose

    path = None if model_path is None else os.fspath(model_path)
    own = compose.widen_model(compose.open_model(model, path))
    with _opened(ModelAccessor(own, path)) as accessor:
        yield accessor


@check_arguments(opset_version=AT_LEAST_1)
@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Let blocks append to an empty model of an opset, by default the newest that onnx knows.

    Raises:
        StateError: a base is open already.
    """
    from engine.graphs.offline import compose

    with _opened(ModelAccessor(compose.make_empty(opset_version))) as accessor:
        yield accessor


@check_arguments
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> NoReturn:
    """Refuse native operators, which are not supported.

    Raises:
        UnsupportedOpError: always.
    """
    raise UnsupportedOpError(
        f"custom_op_library({os.fspath(custom_op_library_path)!r}): native custom operators are "
        "not supported"
    )
