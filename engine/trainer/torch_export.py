"""From PyTorch and back: a module as a forward model that trains as the module does.

    from engine.trainer import torch_export

    exported = torch_export.export(module, example, "forward.onnx")
    trainer = Trainer.from_onnx(exported.model, loss, train=exported.train)
    ...
    torch_export.to_torch(trainer.state, module)

torch and onnxscript are imported when they are used, and need not be installed for anything else.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import inspect
import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import arguments
from engine.errors import (
    DTypeError,
    EngineError,
    FileError,
    InputError,
    MissingPackageError,
    ModelError,
    ModelWarning,
    NameNotFoundError,
    ShapeError,
    UnsupportedOpError,
    nearest,
)

if TYPE_CHECKING:
    from engine.api import CheckpointState
    from engine.graphs.offline.support import Support

Array = np.ndarray[Any, np.dtype[Any]]
OPSET = 18
BATCH = "batch"  # the name of the axis
TOLERANCE = 1e-3  # of outputs, relative to the largest of them if that is above 1
PACKAGES = ("torch", "onnxscript")
ONE_FILE = 1 << 30  # bytes of parameters; with more, they are in a file beside the model
SHOWN = 5  # nodes that a message lists
_TRACE = "pkg.torch.onnx.stack_trace"  # names files of the machine that exports
_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True, slots=True)
class Exported:
    """A module as a forward model.

    model: the path of the ONNX file.
    inputs, outputs: their names, in order.
    train: the parameters that require a gradient, by name, as far as the model has them.
    frozen_batch_norm: parameters of batch normalisations that the module keeps in evaluation mode
        while it trains, as `frozen_batch_norm` of `generate_artifacts` takes them; None if there
        are none.
    difference: of the outputs from torch's, relative to the largest of them if that is above 1.
    """

    model: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    train: tuple[str, ...]
    frozen_batch_norm: tuple[str, ...] | None
    difference: float


def export(
    module: Any,
    example: Any,
    path: str | os.PathLike[str],
    *,
    axes: Mapping[str, Mapping[int, str]] | None = None,
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write a `torch.nn.Module` as a forward model that trains as the module does.

    It is exported by `torch.export` in training mode, so that dropouts drop and batch
    normalisations use the batch, and without optimisation, so that every parameter is an
    initializer under its own name.  Submodules that are in evaluation mode while the module trains
    stay so.  The module is left as it was.

    The axis 0 of every tensor of the example that is as long as that of the first one is the batch,
    which may have any size.  Outputs are named by the keys of a dict or a `ModelOutput`, else
    `output`, or `output_0` and so on; values that are None are left out.  A configuration with
    `use_cache` is exported without a cache.

    Args:
        module: on the CPU, of float32 or float64.
        example: what the module is called with: a tensor, a tuple of arguments, or a mapping of
            keyword arguments; arrays are as good as tensors.
        path: of the file that is written, in a folder that is made if it is missing.
        axes: further axes of any length: names by axis, by input, `{"tokens": {1: "length"}}`.
        opset: of ONNX's operators.
        tolerance: how far the outputs, in evaluation mode and of a batch of another size, may be
            from torch's, relative to the largest of them if that is above 1.

    Raises:
        MissingPackageError: torch or onnxscript is not installed.
        InputError, DTypeError: the module or the example is none that can be exported.
        UnsupportedOpError: torch cannot export the module, or the engine not run it.
        ModelError: the exported model computes something else than the module.
        FileError: the file cannot be written.

    A `ModelWarning` names the nodes through which no gradient can flow.
    """
    torch = _torch()
    _check_module(torch, module)
    call = _Call.read(torch, module, example, axes)
    given = arguments.path("path", path)
    # A tensor that has several names is an initializer under one of them.
    trained = [n for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]
    if not trained:
        raise InputError("no parameter of the module requires a gradient")
    frozen = _frozen_norms(torch, module)
    with _training(module), _silent(torch):
        program, outputs = _program(torch, module, call, arguments.count("opset", opset))
    held = set(program.model.graph.initializers)
    _write(program, module, given)
    _check_support(given, program)
    difference = _compare(
        torch, module, call, given, outputs, arguments.real("tolerance", tolerance)
    )
    return Exported(
        model=given,
        inputs=tuple(value.name for value in program.model.graph.inputs),
        outputs=tuple(outputs),
        train=tuple(name for name in trained if name in held),
        frozen_batch_norm=tuple(name for name in frozen if name in held) or None,
        difference=difference,
    )


def to_torch(state: CheckpointState, module: Any) -> list[str]:
    """Write the parameters of a checkpoint into a module, running statistics included.

    state: as of `Trainer.state`, whose parameters have the names that they have in the module.

    Returns the names of the module's parameters and buffers that the state does not have; they stay
    as they are.

    Raises:
        MissingPackageError: torch is not installed.
        NameNotFoundError, ShapeError, DTypeError: a parameter does not fit.  Nothing has changed.
    """
    torch = _torch("torch")
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module: expected a torch.nn.Module, found {type(module).__name__}")
    own = {**dict(module.named_parameters(remove_duplicate=False)),
           **dict(module.named_buffers(remove_duplicate=False))}  # fmt: skip
    pairs = []
    for name, parameter in state.parameters:
        if name not in own:
            raise NameNotFoundError(
                f"the module has no parameter or buffer {name!r}{nearest(name, own)}"
            )
        value, mine = parameter.data, own[name]
        if tuple(value.shape) != tuple(mine.shape):
            raise ShapeError(
                f"{name!r} is {list(value.shape)} in the checkpoint and {list(mine.shape)} in the "
                "module"
            )
        if not mine.dtype.is_floating_point:
            raise DTypeError(
                f"{name!r} is {value.dtype} in the checkpoint, {mine.dtype} in the module"
            )
        pairs.append((mine, value))
    with torch.no_grad():
        for mine, value in pairs:
            mine.copy_(torch.from_numpy(np.array(value)))
    written = {id(mine) for mine, _ in pairs}
    return [name for name, mine in own.items() if id(mine) not in written]


# --- what is given


def _torch(*packages: str) -> Any:
    """The package torch, which with all `packages` is installed."""
    missing = [p for p in packages or PACKAGES if importlib.util.find_spec(p) is None]
    if missing:
        raise MissingPackageError(
            f"PyTorch's modules need {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: pip install 'edgegrad[torch]'"
        )
    return importlib.import_module("torch")


def _check_module(torch: Any, module: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module: expected a torch.nn.Module, found {type(module).__name__}")
    tensors = [*module.named_parameters(), *module.named_buffers()]
    for name, value in tensors:
        if value.device.type != "cpu":
            raise InputError(
                f"module: {name!r} is on the device {value.device}; models are exported from the "
                "CPU: module.to('cpu')"
            )
    for name, value in module.named_parameters():
        if value.requires_grad and value.dtype not in (torch.float32, torch.float64):
            raise DTypeError(
                f"module: {name!r} is {value.dtype}; trained are torch.float32 and torch.float64: "
                "module.float()"
            )


def _frozen_norms(torch: Any, module: Any) -> list[str]:
    """The names of the scales of batch normalisations that stay in evaluation mode."""
    kinds = torch.nn.modules.batchnorm._BatchNorm
    if not module.training:
        return []
    return [
        f"{name}.weight" if name else "weight"
        for name, part in module.named_modules()
        if isinstance(part, kinds) and not part.training and part.affine
    ]


@dataclass(frozen=True, slots=True)
class _Call:
    """What a module is called with.

    arguments: by the names of the parameters of `forward`, as `inspect.signature` binds them.
    batched: the tensors whose axis 0 is the batch, by identity.
    axes: further axes of any length.
    """

    torch: Any
    signature: inspect.Signature
    arguments: Mapping[str, Any]
    rows: int
    axes: Mapping[str, Mapping[int, str]]

    @classmethod
    def read(
        cls, torch: Any, module: Any, example: Any, axes: Mapping[str, Mapping[int, str]] | None
    ) -> _Call:
        """The arguments of a call.

        Raises:
            InputError: they do not fit the signature, or there is no batch.
        """
        signature = inspect.signature(module.forward)
        positional: Sequence[Any] = ()
        named: dict[str, Any] = {}
        if isinstance(example, Mapping):
            named = {str(name): value for name, value in example.items()}
        else:
            positional = example if isinstance(example, tuple) else (example,)
        try:
            bound = signature.bind(*positional, **named)
        except TypeError as error:
            raise InputError(
                f"example: {error}; {type(module).__name__}.forward takes {signature}"
            ) from None
        tree = torch.utils._pytree
        given = tree.tree_map(functools.partial(_tensor, torch), dict(bound.arguments))
        tensors = [t for t in tree.tree_leaves(given) if isinstance(t, torch.Tensor)]
        away = [str(t.device) for t in tensors if t.device.type != "cpu"]
        if away:
            raise InputError(f"example: a tensor is on the device {away[0]}; expected the CPU")
        if not tensors or not tensors[0].ndim or not tensors[0].shape[0]:
            found = list(tensors[0].shape) if tensors else "no tensor"
            raise InputError(f"example: expected a tensor [batch, ...] first, found {found}")
        named_axes = axes or {}
        lost = [name for name in named_axes if name not in given]
        if lost:
            raise NameNotFoundError(f"axes: no input {lost[0]!r}{nearest(lost[0], given)}")
        return cls(torch, signature, given, int(tensors[0].shape[0]), named_axes)

    def resized(self, rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with a batch of this size: its rows again and again."""

        def fit(value: Any) -> Any:
            if not self._is_batched(value):
                return value
            times = -(-rows // self.rows)
            return value.repeat(times, *[1] * (value.ndim - 1))[:rows]

        made = self.torch.utils._pytree.tree_map(fit, dict(self.arguments))
        bound = inspect.BoundArguments(self.signature, made)
        return bound.args, bound.kwargs

    def dynamic(self) -> dict[str, Any]:
        """The axes that may have any size, as `torch.export` takes them.

        It finds out by itself which of them are the same, and what limits there are, as that of a
        table of positions.
        """
        free = self.torch.export.Dim.DYNAMIC

        def shape(more: Mapping[int, str], value: Any) -> Any:
            return dict.fromkeys(self._names(value, more), free) or None

        tree = self.torch.utils._pytree
        return {
            name: tree.tree_map(functools.partial(shape, self.axes.get(name, {})), value)
            for name, value in self.arguments.items()
        }

    def axis_names(self) -> list[dict[int, str]]:
        """Of each tensor the names of its axes that may have any size, in the model's order."""
        tree = self.torch.utils._pytree
        return [
            self._names(leaf, self.axes.get(name, {}))
            for name, value in self.arguments.items()
            for leaf in tree.tree_leaves(value)
            if isinstance(leaf, self.torch.Tensor)
        ]

    def _names(self, value: Any, more: Mapping[int, str]) -> dict[int, str]:
        if not isinstance(value, self.torch.Tensor):
            return {}
        return {**({0: BATCH} if self._is_batched(value) else {}), **more}

    def _is_batched(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor) and value.ndim > 0 and len(value) == self.rows

    def feeds(self, rows: int) -> list[Array]:
        """The tensors of a batch of this size, in the order of the model's inputs."""
        args, kwargs = self.resized(rows)
        leaves = self.torch.utils._pytree.tree_leaves((args, kwargs))
        return [t.numpy() for t in leaves if isinstance(t, self.torch.Tensor)]


def _tensor(torch: Any, value: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


# --- the export


@contextlib.contextmanager
def _modes(module: Any, trains: bool) -> Iterator[None]:
    """The module in a mode, without a cache of keys and values; as it was afterwards.

    If it trains already, submodules that do not stay so.
    """
    before = {part: part.training for part in module.modules()}
    config = getattr(module, "config", None)
    caches = getattr(config, "use_cache", None)
    try:
        if not (trains and module.training):
            module.train(trains)
        if caches:
            config.use_cache = False  # type: ignore[union-attr]  # it has one
        yield
    finally:
        for part, mode in before.items():
            part.training = mode
        if caches:
            config.use_cache = caches  # type: ignore[union-attr]  # it has one


def _training(module: Any) -> contextlib.AbstractContextManager[None]:
    return _modes(module, trains=True)


@contextlib.contextmanager
def _silent(torch: Any) -> Iterator[None]:
    """Without gradients, without what the exporter prints, and with torch's random numbers kept."""
    level = logging.root.manager.disable
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)


def _program(torch: Any, module: Any, call: _Call, opset: int) -> tuple[Any, list[str]]:
    """The module as ONNX, and the names of its outputs.

    Raises:
        UnsupportedOpError: torch cannot export it.
    """
    names: list[str] = []

    def flattened(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        found = dict(_flat(torch, module.forward(*args, **kwargs), ""))
        names[:] = found
        return tuple(found.values())

    # A shallow copy shares all parameters with the module; only what it returns is another.
    flat = copy.copy(module)
    flat.forward = functools.wraps(module.forward)(flattened)
    args, kwargs = call.resized(max(call.rows, 2))  # torch takes a batch of one row for a constant
    try:
        traced = torch.export.export(
            flat, args, kwargs, dynamic_shapes=call.dynamic(), strict=False
        )
        program = torch.onnx.export(
            traced, dynamo=True, optimize=False, opset_version=opset, verbose=False
        )
    except EngineError:
        raise
    except Exception as error:  # of many classes, most of them private
        raise UnsupportedOpError(
            f"torch cannot export {type(module).__name__}: {_reason(error)}{_advice(error)}"
        ) from error
    graph = program.model.graph
    for node in graph:
        node.metadata_props.pop(_TRACE, None)
    _name_axes(graph, call.axis_names())
    return program, _name_outputs(graph, names)


def _name_axes(graph: Any, names: Sequence[Mapping[int, str]]) -> None:
    """Name the axes of the inputs that may have any size, and all axes of the same size."""
    new = {
        str(value.shape[axis]): name
        for value, axes in zip(graph.inputs, names, strict=True)
        for axis, name in axes.items()
    }
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        for axis, size in enumerate(value.shape or ()):
            if str(size) in new and not isinstance(size, int):
                value.shape[axis] = new[str(size)]


def _name_outputs(graph: Any, names: Sequence[str]) -> list[str]:
    """Name the outputs of a graph; inputs and parameters keep their names, other values make way.

    Returns the names, with `_output` behind those that inputs or parameters have.
    """
    kept = {*graph.initializers, *(value.name for value in graph.inputs)}
    outputs = [f"{name}_output" if name in kept else name for name in names]
    inner = {value.name: value for node in graph for value in node.outputs}
    for name in set(outputs) & set(inner):
        inner[name].name = f"{name}_value"
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name
    return outputs


def _flat(torch: Any, value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors of what a module returns, with the names that they get."""
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
        yield from _flat(torch, part, f"{name}.{key}" if name else key)


def _reason(error: BaseException) -> str:
    """The first line of what the first cause of an error says."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _advice(error: BaseException) -> str:
    """What to do about an error of torch's, as far as it is known."""
    said = str(error)
    if "data-dependent" in said or "DataDependent" in type(error).__name__:
        return (
            "; the module decides by values of tensors: write it with torch.where, or compute the "
            "decision before and pass it as an argument that is no tensor"
        )
    if "specialized" in said or "onstraint" in said:
        return (
            "; is axis 0 of the example the batch? An example is [batch, ...], and the module may "
            "not depend on how many rows there are"
        )
    return ""


def _write(program: Any, module: Any, path: str) -> None:
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        program.save(path, external_data=size > ONE_FILE)
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {error.strerror or error}") from error


# --- checks


def _check_support(path: str, program: Any) -> None:
    """Refuse a model that the engine cannot run; warn of nodes that pass no gradient on."""
    from engine.graphs.offline.support import FORWARD, UNSUPPORTED, supported

    table = supported(path)
    scopes = {
        node.name: _scope(node.metadata_props.get(_SCOPES, "")) for node in program.model.graph
    }

    def told(rows: Sequence[Support]) -> str:
        lines = []
        for row in rows[:SHOWN]:
            place = scopes.get(row.node)
            of = f" of {place}" if place else ""
            lines.append(f"{row.op} {row.node!r}{of}: {row.reason}")
        more = [f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
        return "\n  ".join(["", *lines, *more])

    wrong = [row for row in table if row.status == UNSUPPORTED]
    if wrong:
        raise UnsupportedOpError(
            f"the engine cannot run these nodes; replace the parts of the module:{told(wrong)}"
        )
    dead = [row for row in table if row.status == FORWARD]
    if dead:
        warnings.warn(
            "no gradient flows through these nodes: replace the parts of the module, or train only "
            f"parameters behind them, by train=[...]:{told(dead)}",
            ModelWarning,
            stacklevel=3,
        )


def _scope(scopes: str) -> str:
    """The submodule that a node was made of, by the list that the exporter has written."""
    names = [name.strip(" '\"") for name in scopes.strip("[]").split(",")]
    return names[-2] if len(names) > 1 else ""


def _compare(
    torch: Any, module: Any, call: _Call, path: str, outputs: Sequence[str], tolerance: float
) -> float:
    """How far the outputs are from torch's, for a batch of one row more than the example's.

    Raises:
        ModelError: they are farther than the tolerance, or of other shapes.
    """
    from engine import backend
    from engine.graphs.io import onnx_io
    from engine.graphs.offline.normalize import inference_mode

    rows = call.rows + 1
    args, kwargs = call.resized(rows)
    with _modes(module, trains=False), _silent(torch):
        expected = dict(_flat(torch, module(*args, **kwargs), ""))
    graph = inference_mode(onnx_io.load(path))
    session = backend.prepare(onnx_io.to_proto(graph))
    found = dict(zip(outputs, session.run(call.feeds(rows)), strict=True))
    worst = 0.0
    for (name, ours), theirs in zip(found.items(), expected.values(), strict=True):
        value = theirs.numpy()
        if ours.shape != value.shape:
            raise ModelError(
                f"the exported model returns {name!r} as {list(ours.shape)} for a batch of {rows}, "
                f"and torch as {list(value.shape)}: the module depends on the size of the batch"
            )
        worst = max(worst, _difference(name, ours, value, tolerance))
    return worst


def _difference(name: str, ours: Array, theirs: Array, tolerance: float) -> float:
    scale = max(1.0, float(np.abs(theirs).max(initial=0)))
    off = float(np.abs(ours.astype(np.float64) - theirs).max(initial=0)) / scale
    if not off <= tolerance:
        raise ModelError(
            f"the exported model is not the module: output {name!r} is {off:.1e} from torch's, "
            f"relative to the largest value {scale:.3g}, and {tolerance:.0e} is tolerated"
        )
    return off
