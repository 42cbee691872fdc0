"""From PyTorch and back: a module as a forward model that trains as the module does.

    from edgegrad.trainer.pytorch import export as torch_export

    exported = torch_export.export(module, example, "forward.onnx")
    trainer = Trainer.from_onnx(exported.model, loss, train=exported.train)
    ...
    torch_export.to_torch(trainer.state, module)

torch and onnxscript are imported when they are used, and need not be installed for anything else.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import (
    DTypeError,
    FileError,
    InputError,
    MissingPackageError,
    ModelError,
    ModelWarning,
    NameNotFoundError,
    ShapeError,
    UnsupportedOpError,
    suggest_nearest,
    warn_user,
)
from engine.base.signatures import check_arguments
from engine.system.paths import Paths
from engine.trainer.pytorch import draws as torch_draws
from engine.trainer.pytorch import gradients as torch_gradients
from engine.trainer.pytorch.halves import warn_of_halves, without_halves
from engine.trainer.pytorch.modes import join_programs
from engine.trainer.pytorch.module_call import ModuleCall, tensors_of
from engine.trainer.pytorch.program import (
    in_mode,
    list_modes,
    program_of,
    restore_modes,
    silently,
)
from engine.training.proximal import is_of_term

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline.support import Support
    from engine.training.state import CheckpointState

OPSET = 18
TOLERANCE = 1e-3  # of outputs, relative to the largest of them if that is above 1
PACKAGES = ("torch", "onnxscript")
ONE_FILE = 1 << 30  # bytes of parameters; with more, they are in a file beside the model
SHOWN = 5  # nodes that a message lists
MASKED = (
    "\nx[mask] has as many rows as the mask has ones, which is not known before; multiply by the "
    "mask, or choose rows by their places: x[torch.arange(len(x)), mask.int().argmax(1)]"
)


@check_arguments
@dataclass(frozen=True, slots=True)
class Exported:
    """A module as a forward model.

    model: the path of the ONNX file.
    inputs, outputs: their names, in order; `x_input` is the argument `x` of a module that has a
        parameter or a buffer `x`.
    train: the parameters that require a gradient, by name, as far as they have one: parameters used
        only inside `detach()` or `no_grad()` do not move in torch either.
    frozen_batch_norm: running means of batch normalisations that the module keeps in evaluation
        mode while it trains, as `frozen_batch_norm` of `generate_artifacts` takes them; None if
        there are none.
    difference: by how much outputs differ from torch's, relative to the largest if above 1.
    """

    model: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    train: tuple[str, ...]
    frozen_batch_norm: tuple[str, ...] | None
    difference: float


@check_arguments
def export(
    module: Any,
    example: Any,
    path: str | os.PathLike[str],
    *,
    axes: Mapping[str, Mapping[int, str]] | None = None,
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
    check_gradients: bool | None = None,
) -> Exported:
    """Write a `torch.nn.Module` as a forward model that trains as the module does.

    `torch.export` exports it in training mode, so that dropouts drop and batch normalisations use
    the batch, and without optimisation, so that every parameter is an initializer under its own
    name.  Submodules that are in evaluation mode while the module is in training mode stay so.  The
    module itself does not change.

    Axis 0 of the first tensor of the example is the batch, and so is axis 0 of every tensor that is
    as long; it may have any size.  Outputs have the keys of a dict or a `ModelOutput` as names, and
    otherwise `output`, or `output_0` and so on; values that are None are left out.  A configuration
    with `use_cache` is exported without a cache.

    Args:
        module: a module on the CPU with parameters of float32 or float64.
        example: the arguments of one call: a tensor, a tuple of arguments, or a mapping of keyword
            arguments.  NumPy arrays can replace tensors.
        path: the file to write.  Its folder is created if it does not exist.
        axes: names of further axes of variable length, by argument: `{"tokens": {1: "length"}}`.
        opset: the ONNX opset to write.
        tolerance: the largest allowed difference from torch's outputs, in evaluation mode and for
            another batch size, relative to the largest output if that is above 1.
        check_gradients: whether to compare the gradients of the example with torch's, in training
            mode, see engine/trainer/pytorch/gradients.py.  Default: if the parameters have at most
            `gradients.MOST_BYTES`.

    Returns:
        Exported: the file, and the names that a trainer needs.

    Raises:
        MissingPackageError: torch or onnxscript is not installed.
        InputError, DTypeError: the module or the example cannot be exported.
        UnsupportedOpError: torch cannot export the module, or edgegrad cannot run it.  The message
            names the line or the submodule, as far as it is known.
        ModelError: the outputs or gradients of the exported model differ from the module's, or a
            parameter that has a gradient in torch would not be trained.
        FileError: the file cannot be written.

    A `ModelWarning` names the nodes through which no gradient can flow.
    """
    torch = import_torch()
    check_module(torch, module)
    _check_norms(torch, module)
    call = ModuleCall.read(torch, module, example, axes)
    given = os.fspath(path)
    # A tensor that has several names is an initializer under one of them.
    trained = [n for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]
    if not trained:
        raise InputError("no parameter of the module requires a gradient")
    frozen = _list_frozen_norms(torch, module)
    with in_mode(module, trains=True), silently(torch), without_halves(torch) as halves:
        program, outputs, moved = program_of(torch, module, call, opset)
    warn_of_halves(halves)
    held = set(program.model.graph.initializers)
    _write(program, module, given)
    _check_support(given, call.sizes())
    try:
        difference = _compare(torch, module, call, given, outputs, tolerance, moved)
    except (ModelError, UnsupportedOpError) as fault:
        if not _add_evaluation(torch, module, call, program, outputs, opset):
            raise
        _write(program, module, given)
        _check_support(given, call.sizes(), answers=True)
        try:
            difference = _compare(torch, module, call, given, outputs, tolerance, moved)
        except (ModelError, UnsupportedOpError):
            raise fault from None
        # Outputs of training mode have not been compared.
        check_gradients = True if check_gradients is None else check_gradients
    known = _with_gradients(given, trained, outputs, call.sizes())
    names = tuple(name for name in trained if name in known)
    norms = tuple(name for name in frozen if name in held)
    if _checks(module, check_gradients):
        left = [name for name in trained if name not in known]
        torch_gradients.compare(torch, module, call, given, outputs, names, left, norms)
    if not names:
        raise InputError(
            "no parameter of the module has a gradient: each is used only in detach() or no_grad()"
        )
    return Exported(
        model=given,
        inputs=tuple(value.name for value in program.model.graph.inputs),
        outputs=tuple(outputs),
        train=names,
        frozen_batch_norm=norms or None,
        difference=difference,
    )


@check_arguments
def to_torch(state: CheckpointState, module: Any) -> list[str]:
    """Write the parameters of a checkpoint into a module, running statistics included.

    state: as for `Trainer.state`, whose parameters have the names that they have in the module.

    Returns the names of the module's parameters and buffers that the state does not have; they stay
    as they are.

    Raises:
        MissingPackageError: torch is not installed.
        NameNotFoundError, ShapeError, DTypeError: a parameter does not fit.  Nothing has changed.
    """
    torch = import_torch("torch")
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
    own = {**dict(module.named_parameters(remove_duplicate=False)),
           **dict(module.named_buffers(remove_duplicate=False))}  # fmt: skip
    pairs = []
    for name, parameter in state.parameters:
        if is_of_term(name, state):
            continue
        if name not in own:
            raise NameNotFoundError(
                f"the module has no parameter or buffer {name!r}{suggest_nearest(name, own)}"
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
    restore_modes(module, list_modes(module))
    written = {id(mine) for mine, _ in pairs}
    return [name for name, mine in own.items() if id(mine) not in written]


# --- what is given


def import_torch(*packages: str) -> Any:
    """Return the package torch, which with all `packages` is installed."""
    missing = [p for p in packages or PACKAGES if importlib.util.find_spec(p) is None]
    if missing:
        raise MissingPackageError(
            f"PyTorch's modules need {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: pip install 'edgegrad[torch]'"
        )
    return importlib.import_module("torch")


def check_module(torch: Any, module: Any) -> None:
    """Refuse a module that is not on the CPU, or that has parameters of other types to train.

    Raises:
        InputError, DTypeError: it is not supported.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
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
                f"module: {name!r} is {value.dtype}; torch.float32 and torch.float64 can be "
                "trained: module.float()"
            )


def _check_norms(torch: Any, module: Any) -> None:
    """Refuse batch normalisations whose statistics are means over all batches so far.

    Raises:
        UnsupportedOpError: there is one that follows the batches.
    """
    for name, part in module.named_modules():
        if (
            isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
            and part.momentum is None
            and part.track_running_stats
            and (part.training or not module.training)
        ):
            raise UnsupportedOpError(
                f"{type(part).__name__} {name!r} has momentum=None: its running statistics are "
                "means over all batches so far; supported: moving averages, such as momentum=0.1, "
                "and statistics that stay, by eval() of that submodule while the module trains"
            )


def _list_frozen_norms(torch: Any, module: Any) -> list[str]:
    """Return the running means of the batch normalisations that stay in evaluation mode."""
    kinds = torch.nn.modules.batchnorm._BatchNorm
    if not module.training:
        return []
    return [
        f"{name}.running_mean" if name else "running_mean"
        for name, part in module.named_modules()
        if isinstance(part, kinds) and not part.training and part.running_mean is not None
    ]


def _write(program: Any, module: Any, path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        program.save(path, external_data=_measure_size(module) > ONE_FILE)
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {error.strerror or error}") from error


def _add_evaluation(
    torch: Any, module: Any, call: ModuleCall, program: Any, outputs: Sequence[str], opset: int
) -> bool:
    """Let a program compute in evaluation mode what the module does there, in place.

    Returns whether it does: torch can export that mode, and has an output of it.
    """
    try:
        with in_mode(module, trains=False), silently(torch), without_halves(torch):
            evaluated, names, _ = program_of(torch, module, call, opset)
            chosen = _name_outputs({name: name for name in names}, outputs)
    except (ModelError, UnsupportedOpError):
        return False
    own = {*dict(module.named_parameters(remove_duplicate=False)),
           *dict(module.named_buffers(remove_duplicate=False))}  # fmt: skip
    join_programs(program, evaluated, chosen, own)
    return True


# --- checks


def _checks(module: Any, asked: bool | None) -> bool:
    """Return whether gradients are compared.

    Raises:
        UnsupportedOpError: they are not, and a submodule has hooks which may change them.
    """
    if asked is None:
        asked = _measure_size(module) <= torch_gradients.MOST_BYTES
    if arguments.check_flag("check_gradients", asked):
        return True
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise UnsupportedOpError(
                f"{type(part).__name__} {name!r} has backward hooks, which are not exported; "
                "remove them, or give check_gradients=True, which accepts hooks that change "
                "nothing"
            )
    return False


def _measure_size(module: Any) -> int:
    """Return the bytes of the parameters."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _check_support(path: str, sizes: Mapping[str, int], *, answers: bool = False) -> None:
    """Refuse a model that the engine cannot run; warn of nodes that pass no gradient on.

    sizes: the sizes of the axes that may have any size, as in the example.
    answers: whether to look at what evaluation computes, without gradients.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.ir.symbols import rename
    from engine.graphs.offline import support
    from engine.graphs.offline.modes import choose_mode
    from engine.graphs.offline.normalize import name_nodes

    graph = name_nodes(onnx_io.load(path))
    if answers:
        choose_mode(graph, trains=False)
    rename(graph, sizes)
    table = support.check_support(onnx_io.to_proto(graph))
    paths = Paths.of(graph.metadata)

    def describe(rows: Sequence[Support]) -> str:
        lines = []
        for row in rows[:SHOWN]:
            lines.append(f"{row.op} {paths.title_node(row.node)}: {row.reason}")
        more = [f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
        return "\n  ".join(["", *lines, *more])

    wrong = [row for row in table if row.status == support.UNSUPPORTED]
    if wrong:
        # Nodes after these lack types for their sake, and would hide the next cause.
        causes = [row for row in wrong if not row.follows] or wrong
        advice = MASKED if any(row.op == "NonZero" and not row.domain for row in causes) else ""
        raise UnsupportedOpError(
            "the engine cannot run these nodes; replace the parts of the module:"
            f"{describe(causes)}{advice}"
        )
    dead = [row for row in table if row.status == support.FORWARD]
    if dead and not answers:
        warn_user(
            "no gradient flows through these nodes: replace the parts of the module, or train only "
            f"parameters after them, by train=[...]:{describe(dead)}",
            ModelWarning,
        )


def _with_gradients(
    path: str, trained: Iterable[str], outputs: Sequence[str], sizes: Mapping[str, int]
) -> set[str]:
    """Return the values of a model that have a gradient if all outputs do.

    trained: the parameters.
    """
    from engine.graphs.offline.differentiate import find_reached
    from engine.graphs.passes.infer import infer

    graph = torch_gradients.open_graph(path, sizes, trained)
    return find_reached(graph, outputs, infer(graph).types)


def _compare(
    torch: Any, module: Any, call: ModuleCall, path: str, outputs: Sequence[str], tolerance: float,
    moved: Sequence[str],
) -> float:  # fmt: skip
    """Return how far the outputs are from torch's, for one row more than in the example.

    Both draw the same random numbers.  A module that drops in evaluation mode, too, is compared
    with dropouts on.

    moved: the buffers that the module changes while it runs forward, for messages.

    Raises:
        ModelError: they are farther than the tolerance, or of other shapes.
    """
    rows = call.rows + 1
    args, kwargs = call.resized(rows)
    with (
        in_mode(module, trains=False),
        silently(torch),
        without_halves(torch),
        torch.enable_grad(),  # which hooks of tensors need
        torch_draws.fix_draws(torch) as draws,
    ):
        expected = dict(tensors_of(torch, module(*args, **kwargs), ""))
    theirs = {name: value.detach().numpy() for name, value in expected.items()}
    if draws.unknown:
        return _skip_comparison(draws.unknown)
    for drops in (False, True) if draws.drawn else (False,):
        graph, unknown = _make_evaluation_graph(path, call.sizes(rows), drops, bool(draws.drawn))
        if unknown:
            return _skip_comparison(unknown)
        try:
            worst = _find_worst(graph, call.feeds(rows), theirs, outputs, tolerance)
        except ModelError as error:
            fault = error
            continue
        if drops:
            warn_user(
                "the module drops in evaluation mode, too, and the evaluation and exports of the "
                "model do not",
                ModelWarning,
            )
        return worst
    because = "; it draws random numbers, perhaps otherwise in both" if draws.drawn else ""
    if moved:
        because += (
            f"; it changes its buffer {moved[0]!r} while it runs forward, and reads it otherwise "
            "in evaluation mode; supported there: the old value of a buffer that then stays as it "
            "is, and the new one of a buffer that changes there, too"
        )
    if draws.packed:
        because += (
            "; pad_packed_sequence pads to the length of the packed batch, as torch does with "
            "total_length=x.shape[1]"
        )
    raise ModelError(f"{fault}{because}")


def _skip_comparison(unknown: Collection[str]) -> float:
    warn_user(
        "outputs are not compared with torch's: the module draws random numbers with "
        f"{', '.join(sorted(unknown))}, which cannot be the same in both",
        ModelWarning,
    )
    return 0.0


def _make_evaluation_graph(
    path: str, sizes: Mapping[str, int], drops: bool, draws: bool
) -> tuple[Graph, set[str]]:
    """Return the graph in evaluation mode, under fixed draws; and random ops that are not known.

    drops: whether dropouts drop.
    draws: whether the module draws random numbers in evaluation mode.

    Raises:
        UnsupportedOpError: the graph draws random numbers, and the module does not.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.ir.symbols import rename
    from engine.graphs.offline.modes import choose_mode
    from engine.graphs.offline.normalize import set_inference_mode
    from engine.graphs.passes import control

    graph = choose_mode(control.unroll(onnx_io.load(path)), trains=False)
    if not drops:
        set_inference_mode(graph)
    if not draws and (node := torch_draws.find_random(graph)) is not None:
        raise UnsupportedOpError(
            f"the module draws random numbers in training mode alone, by {node.op} "
            f"{Paths.of(graph.metadata).title_node(node.name)}, and the exported model would "
            "draw them "
            "in evaluation too; supported: dropouts, and masks of 0 and 1 with a constant chance"
        )
    unknown = set[str]()
    if drops or torch_draws.find_random(graph) is not None:
        rename(graph, sizes)
        unknown = torch_draws.fix(graph)
    return set_inference_mode(graph), unknown


def _find_worst(
    graph: Graph,
    feeds: Sequence[Array],
    expected: Mapping[str, Array],
    outputs: Sequence[str],
    tolerance: float,
) -> float:
    """Return how far the outputs of a graph are from the expected ones.

    Raises:
        ModelError: farther than the tolerance, or they are of other shapes.
    """
    from engine.graphs.io import onnx_io
    from engine.training import backend

    computed = dict(zip(outputs, backend.prepare(onnx_io.to_proto(graph)).run(feeds), strict=True))
    worst = 0.0
    for name, value in _name_outputs(expected, outputs).items():
        ours = computed[name]
        if ours.shape != value.shape:
            raise ModelError(
                f"the exported model returns {name!r} as {list(ours.shape)} for a batch of "
                f"{len(feeds[0])}, and torch as {list(value.shape)}: the module depends on the "
                "size of the batch"
            )
        worst = max(worst, _measure_difference(name, ours, value, tolerance))
    return worst


def _name_outputs(expected: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
    """Return what the module computes in evaluation mode, by the names of the model's outputs.

    Modules with auxiliary heads return less in evaluation mode: outputs of the same names, or one
    tensor alone, which is the first output.

    Raises:
        ModelError: no output is the same in both modes.
    """
    if len(expected) == len(outputs):
        return dict(zip(outputs, expected.values(), strict=True))
    if len(expected) == 1:
        return dict(zip(outputs[:1], expected.values(), strict=True))
    same = {name: value for name, value in expected.items() if name in outputs}
    if not same:
        raise ModelError(
            f"the module returns {', '.join(map(repr, expected))} in evaluation mode and "
            f"{', '.join(map(repr, outputs))} in training mode; supported: one output at least has "
            "the same name in both, or one tensor in evaluation mode, which is the first output"
        )
    return same


def _measure_difference(name: str, ours: Array, theirs: Array, tolerance: float) -> float:
    scale = max(1.0, float(np.abs(theirs).max(initial=0)))
    off = float(np.abs(ours.astype(np.float64) - theirs).max(initial=0)) / scale
    if not off <= tolerance:
        raise ModelError(
            f"the exported model is not the module: output {name!r} is {off:.1e} from torch's, "
            f"relative to the largest value {scale:.3g}, and {tolerance:.0e} is tolerated"
        )
    return off
