"""Losses and optimizers of PyTorch, as ones of this package.

    torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    CrossEntropyLoss(label_smoothing=0.1, ignore_index=-100)

    torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    SGD(lr=0.1, momentum=0.9), which trains the parameters that the other one has

A loss that this package lacks, or that is a function of the user's, becomes a part of the module
that is exported: a module which takes the targets, too, and returns its loss first.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.base.errors import (
    InputError,
    ModelWarning,
    UnsupportedOpError,
    join_names,
    warn_user,
)
from engine.graphs.offline.optim_types import OPTIMIZERS, AdamW, Group, OptimizerSpec
from engine.kernels.ops.optimizer.adam import DECOUPLED
from engine.loss_types import LOSSES, CrossEntropyLoss, Loss
from engine.loss_types.base import LossOfScores
from engine.onnxblock import Block
from engine.trainer.pytorch.module_call import bind_example, tensors_of

LOSS = "loss"  # the first output of a module with a loss

_OLD = frozenset({"size_average", "reduce"})  # deprecated; torch derives `reduction` from them
# Options of torch's optimizers that choose how a step is computed, and do not change its result.
_WAYS = frozenset({"capturable", "differentiable", "foreach", "fused"})
_OF_GROUPS = ("lr", "weight_decay")  # options that groups may have of their own
_LOSSES = {kind.__name__: kind for kind in LOSSES.values()}
_OPTIMIZERS = {kind.__name__: kind for kind in OPTIMIZERS.values()}
# Functions of torch.nn.functional with other names than the classes.
_FUNCTIONS = {"binary_cross_entropy_with_logits": "BCEWithLogitsLoss", "kl_div": "KLDivLoss"}


@dataclasses.dataclass(frozen=True, slots=True)
class Objectives:
    """A module as it is exported, and the loss and the optimizer that its artifacts are made with.

    module, example: the user's, or with the loss as the first output and with targets.
    loss: None if the module computes it.
    optimizer: one of this package, if the user gave torch's.
    trained: the parameters of torch's optimizer; None if the user gave none.
    """

    module: Any
    example: Any
    loss: Any
    optimizer: Any
    trained: frozenset[str] | None

    def choose(self, names: Sequence[str]) -> tuple[Any, list[str]]:
        """Return the optimizer and the parameters that it trains.

        names: the exported parameters that have a gradient; a tied one under one of its names.
        """
        if self.trained is None:
            return self.optimizer, [*names]
        members = [[n for n in group.match if n in names] for group in self.optimizer.groups]
        groups = [
            dataclasses.replace(group, match=match)
            for group, match in zip(self.optimizer.groups, members, strict=True)
            if match
        ]
        return (
            dataclasses.replace(self.optimizer, groups=groups),
            [name for name in names if name in self.trained],
        )


def read(
    torch: Any, module: Any, example: Any, loss: Any, optimizer: Any, targets: Any
) -> Objectives:
    """Return what a user gave `Trainer.from_torch`, with losses and optimizers of this package.

    targets: an example of the targets, or a tuple of them, or None.

    Raises:
        InputError, UnsupportedOpError: a loss or an optimizer of torch is not supported.
    """
    trained = None
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer, trained = read_optimizer(torch, optimizer, module)
    values = targets if isinstance(targets, tuple) else () if targets is None else (targets,)
    examples = [torch.as_tensor(value) for value in values]
    if isinstance(loss, Mapping):
        loss = {name: _read_part(torch, name, given) for name, given in loss.items()}
    elif isinstance(loss, type):
        raise InputError(f"loss: {loss.__name__} is a class; give an object: {loss.__name__}()")
    elif is_function(loss):
        own = read_loss(torch, loss, examples)
        if own is None:
            module, example = join_loss(torch, module, example, loss, examples)
        loss = own
    return Objectives(module, example, loss, optimizer, trained)


# --- losses


def is_function(loss: Any) -> bool:
    """Return whether a loss is a function of tensors, such as `torch.nn.CrossEntropyLoss()`."""
    return callable(loss) and not isinstance(loss, Loss | Block)


def _read_part(torch: Any, name: str, given: Any) -> Any:
    """Return the loss of an output, or a pair of it and its weight.

    Raises:
        UnsupportedOpError: it is a function that this package lacks.
    """
    loss, *weight = given if isinstance(given, tuple | list) and given else (given,)
    if is_function(loss):
        own = read_loss(torch, loss, ())
        if own is None:
            raise UnsupportedOpError(
                f"loss: {_name(loss)} of the output {name!r} is not a loss of edgegrad; give one "
                "function of the module's whole output, and an example of its targets"
            )
        loss = own
    return (loss, *weight) if weight else loss


def read_loss(torch: Any, loss: Any, targets: Sequence[Any]) -> Loss | None:
    """Return the loss of this package that a loss of torch is; None if there is none.

    loss: a module of torch.nn, or a function of torch.nn.functional.
    targets: examples of the targets, which may be missing.
    """
    nn = torch.nn
    if isinstance(loss, types.FunctionType | types.BuiltinFunctionType):
        name = _find_class(nn, loss)
        loss = getattr(nn, name)() if name else None
    kind = _LOSSES.get(type(loss).__name__)
    if kind is None or type(loss) is not getattr(nn, kind.__name__, None):
        return None
    fields = _list_fields(kind)
    options: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(loss)).parameters.items():
        if name in _OLD:
            continue
        value = getattr(loss, name)
        if name in fields:
            options[name] = value.numpy() if isinstance(value, torch.Tensor) else value
        elif value != parameter.default:
            return None
    if issubclass(kind, LossOfScores):
        options["from_logits"] = True  # as in PyTorch, even if the module ends with a Softmax
    if kind is CrossEntropyLoss and any(t.is_floating_point() for t in targets):
        options.update(probabilities=True, ignore_index=None)
    return kind(**options)


def _find_class(nn: Any, function: Any) -> str | None:
    """Return the name of the class of torch.nn that is a function of torch.nn.functional."""
    name = function.__name__
    if getattr(nn.functional, name, None) is not function:
        return None
    plain = name.replace("_", "").removesuffix("loss")
    near = {kind.lower().removesuffix("loss"): kind for kind in _LOSSES if hasattr(nn, kind)}
    return _FUNCTIONS.get(name, near.get(plain))


def join_loss(
    torch: Any, module: Any, example: Any, loss: Callable[..., Any], targets: Sequence[Any]
) -> tuple[Any, dict[str, Any]]:
    """Return a module that computes its loss, and an example of its arguments.

    It shares all parameters with the module, takes the targets after its other arguments, and
    returns the loss before its other outputs.

    loss: takes what the module returns, and the targets.
    targets: an example of each.

    Raises:
        InputError: the loss has parameters to train, or is not one number.
    """
    if not targets:
        raise InputError(
            f"loss: {_name(loss)} is exported with the module, which needs an example of what the "
            "loss takes besides the module's output: targets=labels"
        )
    bound = bind_example(module, example)
    parameters = bound.signature.parameters
    if any(parameters[name].kind is inspect.Parameter.VAR_POSITIONAL for name in bound.arguments):
        raise InputError(
            f"example: {type(module).__name__}.forward takes {bound.signature}; all arguments of a "
            "module that is exported with its loss need names"
        )
    names = _name_targets(loss, len(targets), parameters)
    joined = copy.copy(module)
    if isinstance(loss, torch.nn.Module):
        trained = [name for name, p in loss.named_parameters() if p.requires_grad]
        if trained:
            raise InputError(
                f"loss: {_name(loss)} has the parameter {trained[0]!r}, which requires a gradient; "
                "only parameters of the module are trained: make the loss a part of it"
            )
    run = vars(module).get("forward") or types.MethodType(type(module).forward, joined)

    @functools.wraps(module.forward)
    def forward(*args: Any, **kwargs: Any) -> dict[str, Any]:
        values = [kwargs.pop(name) for name in names]
        answers = run(*args, **kwargs)
        result = loss(answers, *values)
        if not isinstance(result, torch.Tensor) or result.ndim:
            got = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise InputError(f"loss: {_name(loss)} returns {got}; expected a tensor of one number")
        outputs = dict(tensors_of(torch, answers, ""))
        if LOSS in outputs:
            raise InputError(f"loss: the module returns an output {LOSS!r} itself; give loss=None")
        return {LOSS: result, **outputs}

    vars(forward)["__signature__"] = _extend_signature(bound.signature, names)
    joined.forward = forward
    return joined, {**bound.arguments, **dict(zip(names, targets, strict=True))}


def _list_fields(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _name(loss: Any) -> str:
    return getattr(loss, "__name__", None) or type(loss).__name__


def _take_fresh(name: str, taken: Any) -> str:
    while name in taken:
        name += "_"
    return name


def _name_targets(loss: Any, count: int, taken: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments of a loss after the first."""
    try:
        parameters = list(inspect.signature(getattr(loss, "forward", loss)).parameters.values())
    except (TypeError, ValueError):  # it is not of Python
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [p.name for p in parameters if p.kind in kinds][1 : count + 1]
    if len(known) < count:
        known = ["target"] if count == 1 else [f"target_{i}" for i in range(count)]
    return [_take_fresh(name, taken) for name in known]


def _extend_signature(signature: inspect.Signature, names: Sequence[str]) -> inspect.Signature:
    """Return a signature with further arguments, which have these names."""
    own = list(signature.parameters.values())
    rest = [p for p in own if p.kind is p.VAR_KEYWORD]
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    return signature.replace(parameters=[*own[: len(own) - len(rest)], *more, *rest])


# --- optimizers


def read_optimizer(torch: Any, given: Any, module: Any) -> tuple[OptimizerSpec, frozenset[str]]:
    """Return the optimizer of this package that a `torch.optim.Optimizer` is, and what it trains.

    given: its parameters are the module's.  Its groups may have a learning rate and a weight decay
        of their own.  A `ModelWarning` says if it has done steps, whose moments are left out.

    Raises:
        UnsupportedOpError: there is no such optimizer, or an option changes its steps otherwise.
        InputError: it has parameters that the module has not.
    """
    title = f"optimizer: torch's {type(given).__name__}"
    kind = _OPTIMIZERS.get(type(given).__name__)
    if kind is None or type(given) is not getattr(torch.optim, kind.__name__, None):
        known = [name for name in _OPTIMIZERS if hasattr(torch.optim, name)]
        raise UnsupportedOpError(f"{title} is not supported; supported: {', '.join(known)}")
    first, *others = given.param_groups
    options = _read_options(given, first)
    if options.pop("decoupled_weight_decay", False):  # which makes an Adam an AdamW
        kind = AdamW
    if kind is AdamW:
        options["adam_mode"] = DECOUPLED
    unknown = [name for name in options if name not in _list_fields(kind)]
    for name in unknown:
        if options.pop(name):
            raise UnsupportedOpError(f"{title} with {name}={first[name]!r} is not supported")
    names: dict[int, list[str]] = {}  # a tied parameter has several
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    trained = [_list_names(group, names, title) for group in given.param_groups]
    groups = [
        _read_group(given, options, group, members, title)
        for group, members in zip(others, trained[1:], strict=True)
    ]
    if any(state.get("step", 1) > 0 for state in given.state.values()):
        warn_user(
            f"{title} has done steps already; its moments are left out, and begin as 0",
            ModelWarning,
        )
    made = kind(**{**options, "groups": groups})
    return made, frozenset(name for members in trained for name in members)


def _read_options(given: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group that decide its steps."""
    read = {name: group[name] for name in given.defaults if name not in _WAYS}
    return {name: v.item() if hasattr(v, "item") else v for name, v in read.items()}


def _list_names(
    group: Mapping[str, Any], names: Mapping[int, Sequence[str]], title: str
) -> list[str]:
    """Return the names of the parameters of a group."""
    strangers = [p for p in group["params"] if id(p) not in names]
    if strangers:
        raise InputError(
            f"{title} has {len(strangers)} parameters that the module has not, the first of shape "
            f"{list(strangers[0].shape)}; make it of module.parameters()"
        )
    return [name for p in group["params"] for name in names[id(p)]]


def _read_group(
    given: Any, options: Mapping[str, Any], group: Mapping[str, Any], members: Sequence[str],
    title: str,
) -> Group:  # fmt: skip
    """Return a group of parameters.  options: of the first group, which are the optimizer's."""
    own = _read_options(given, group)
    for name, value in own.items():
        if name not in _OF_GROUPS and name in options and value != options[name]:
            raise UnsupportedOpError(
                f"{title} has {name}={options[name]!r} and {name}={value!r} in different groups; "
                f"supported: {join_names(_OF_GROUPS)}"
            )
    if own["lr"] and not options["lr"]:
        raise UnsupportedOpError(f"{title}: its first group has the learning rate 0")
    scale = own["lr"] / options["lr"] if options["lr"] else 1.0
    decay = own.get("weight_decay")
    return Group(members, scale, None if decay == options.get("weight_decay") else decay)
