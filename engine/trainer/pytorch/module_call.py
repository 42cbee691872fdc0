"""The arguments and results of a module of PyTorch, as flat lists of named tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError, NameNotFoundError, suggest_nearest

BATCH = "batch"  # the name of the axis


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """The arguments of a module.

    signature: the signature of its `forward`.
    arguments: by the names of the parameters, as `inspect.signature` binds them.
    rows: the size of the batch, axis 0 of the first tensor and of all that are as long.
    axes: further axes of any length: names by axis, by argument.
    """

    torch: Any
    signature: inspect.Signature
    arguments: Mapping[str, Any]
    rows: int
    axes: Mapping[str, Mapping[int, str]]

    @classmethod
    def read(
        cls, torch: Any, module: Any, example: Any, axes: Mapping[str, Mapping[int, str]] | None
    ) -> ModuleCall:
        """Return the arguments of a call.

        Raises:
            InputError: they do not fit the signature, or there is no batch.
        """
        bound = bind_example(module, example)
        tree = torch.utils._pytree
        given = tree.tree_map(functools.partial(_make_tensor, torch), dict(bound.arguments))
        tensors = [t for t in tree.tree_leaves(given) if isinstance(t, torch.Tensor)]
        away = [str(t.device) for t in tensors if t.device.type != "cpu"]
        if away:
            raise InputError(f"example: a tensor is on the device {away[0]}; expected the CPU")
        if not tensors or not tensors[0].ndim or not tensors[0].shape[0]:
            shape = list(tensors[0].shape) if tensors else "no tensor"
            raise InputError(f"example: expected a tensor [batch, ...] first, got {shape}")
        named_axes = axes or {}
        lost = [name for name in named_axes if name not in given]
        if lost:
            raise NameNotFoundError(
                f"axes: there is no input {lost[0]!r}{suggest_nearest(lost[0], given)}"
            )
        return cls(torch, bound.signature, given, int(tensors[0].shape[0]), named_axes)

    def resized(self, rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with a batch of this size: its first rows, and its last one again.

        Rows that grow, as the offsets of bags of embeddings do, still do then.
        """

        def fit(value: Any) -> Any:
            if not self._is_batched(value):
                return value
            last = value[-1:].expand(max(rows - self.rows, 0), *value.shape[1:])
            return self.torch.cat([value[:rows], last])

        made = self.torch.utils._pytree.tree_map(fit, dict(self.arguments))
        bound = inspect.BoundArguments(self.signature, made)
        return bound.args, bound.kwargs

    def dynamic(self) -> dict[str, Any]:
        """Return the axes that may have any size, as `torch.export` takes them.

        It finds out by itself which of them are the same, and which limits there are, such as the
        length of a table of positions.
        """
        free = self.torch.export.Dim.DYNAMIC

        def make_shape(more: Mapping[int, str], value: Any) -> Any:
            return dict.fromkeys(self._name_axes(value, more), free) or None

        tree = self.torch.utils._pytree
        return {
            name: tree.tree_map(functools.partial(make_shape, self.axes.get(name, {})), value)
            for name, value in self.arguments.items()
        }

    def axis_names(self) -> list[dict[int, str]]:
        """Return the names of the axes of any size of each tensor, in the model's order."""
        return [names for _, names in self._list_named()]

    def sizes(self, rows: int | None = None) -> dict[str, int]:
        """Return the sizes of the named axes in the example, or with a batch of another size."""
        sizes = {
            name: int(tensor.shape[axis])
            for tensor, names in self._list_named()
            for axis, name in names.items()
        }
        return sizes if rows is None else {**sizes, BATCH: rows}

    def _list_named(self) -> list[tuple[Any, dict[int, str]]]:
        tree = self.torch.utils._pytree
        return [
            (leaf, self._name_axes(leaf, self.axes.get(name, {})))
            for name, value in self.arguments.items()
            for leaf in tree.tree_leaves(value)
            if isinstance(leaf, self.torch.Tensor)
        ]

    def _name_axes(self, value: Any, more: Mapping[int, str]) -> dict[int, str]:
        if not isinstance(value, self.torch.Tensor):
            return {}
        return {**({0: BATCH} if self._is_batched(value) else {}), **more}

    def _is_batched(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor) and value.ndim > 0 and len(value) == self.rows

    def feeds(self, rows: int) -> list[Array]:
        """Return the tensors of a batch of this size, in the order of the model's inputs."""
        args, kwargs = self.resized(rows)
        leaves = self.torch.utils._pytree.tree_leaves((args, kwargs))
        return [t.numpy() for t in leaves if isinstance(t, self.torch.Tensor)]


def bind_example(module: Any, example: Any) -> inspect.BoundArguments:
    """Return the arguments of a call of a module, by the names that its `forward` has for them.

    Raises:
        InputError: they do not fit the signature.
    """
    signature = inspect.signature(module.forward)
    positional: Sequence[Any] = ()
    named: dict[str, Any] = {}
    if isinstance(example, Mapping):
        named = {str(name): value for name, value in example.items()}
    else:
        positional = example if isinstance(example, tuple) else (example,)
    try:
        return signature.bind(*positional, **named)
    except TypeError as error:
        raise InputError(
            f"example: {error}; {type(module).__name__}.forward takes {signature}"
        ) from None


def _make_tensor(torch: Any, value: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def tensors_of(torch: Any, value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of what a module returns, with the names that they get."""
    if isinstance(value, torch.Tensor):
        yield name or "output", value
        return
    if value is None:
        return
    if isinstance(value, Mapping):
        parts = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = list(zip(value._fields, value, strict=True))
    elif isinstance(value, tuple | list):
        parts = [(f"output_{i}" if not name else str(i), part) for i, part in enumerate(value)]
    else:
        raise InputError(
            f"module: it returns {name or 'a value'} of type {type(value).__name__}; supported: "
            "tensors, and tuples, lists, dicts and ModelOutputs of them"
        )
    for key, part in parts:
        yield from tensors_of(torch, part, f"{name}.{key}" if name else key)
