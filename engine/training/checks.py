"""Checks that models and the state of a module belong together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.base.element_types import NUMPY, PAIRED, SUPPORTED, find_gradient_type
from engine.base.errors import DTypeError, ModelError, ShapeError, suggest_nearest
from engine.training.bound_model import BoundModel
from engine.training.model_file import BUFFER, RESET
from engine.training.state import Slot


def check(model: BoundModel, slots: Mapping[str, Slot]) -> None:
    """Check that a model and the state have the same parameters, of the same types.

    Raises:
        ModelError, ShapeError, DTypeError: naming the parameter and both sides.
    """
    for name in model.parameters:
        _check_type(model, name, name, slots[name])
    for name in model.buffers:
        owner = name[: -len(BUFFER)]
        if owner not in slots or not slots[owner].trainable:
            known = [n for n, s in slots.items() if s.trainable]
            raise ModelError(
                f"the {model.what} accumulates a gradient of {owner!r}, which is not a "
                f"trainable parameter of the checkpoint{suggest_nearest(owner, known)}"
            )
        gradient = replace(slots[owner], dtype=find_gradient_type(slots[owner].dtype))
        shape = model.interface.inputs[name].shape
        if slots[owner].dtype in PAIRED and shape == _widen_pairs(slots[owner].shape):
            gradient = replace(gradient, shape=_widen_pairs(slots[owner].shape))
        _check_type(model, name, owner, gradient)
    fixed = sorted(slots.keys() & set(model.interface.constants))
    if fixed:
        raise ModelError(
            f"the {model.what} holds {fixed} as constants, the checkpoint as parameters: it is "
            "an inference or forward model, or belongs to another checkpoint"
        )
    for name in model.inputs:
        dtype = model.interface.inputs[name].dtype
        if dtype not in NUMPY:
            raise DTypeError(
                f"the {model.what} has the input {name!r} of {dtype}; supported: {SUPPORTED}"
            )


def _widen_pairs(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the gradient of integers of 4 bits, two in each byte."""
    return (*shape[:-1], 2 * shape[-1]) if shape else shape


def _check_type(model: BoundModel, name: str, owner: str, slot: Slot) -> None:
    """Check that an input has the type of its parameter; `owner` is the name of that."""
    t = model.interface.inputs[name]
    if t.dtype != slot.dtype:
        raise DTypeError(
            f"parameter {owner!r} is {t.dtype} in the {model.what}, but {slot.dtype} in the state"
        )
    if all(isinstance(d, int) for d in t.shape) and t.shape != slot.shape:
        raise ShapeError(
            f"parameter {owner!r} is {list(t.shape)} in the {model.what}, but "
            f"{list(slot.shape)} in the checkpoint"
        )


def check_training(model: BoundModel, slots: Mapping[str, Slot]) -> None:
    """Check that a model accumulates the gradients of all trainable parameters.

    Raises:
        ModelError: it does not, or it has no flag that resets the gradients.
    """
    trained = {n[: -len(BUFFER)] for n in model.buffers}
    missing = [n for n, s in slots.items() if s.trainable and n not in trained]
    if missing:
        raise ModelError(
            f"the {model.what} accumulates no gradient of {missing}, trainable in the "
            "checkpoint: it is an eval model, or belongs to another checkpoint"
        )
    reset = model.interface.inputs.get(RESET)
    if model.buffers and (reset is None or (reset.dtype, reset.shape) != ("b1", (1,))):
        raise ModelError(
            f"the {model.what} has the input {RESET!r} as {reset or 'nothing'}; expected b1[1]"
        )


def check_eval(model: BoundModel) -> None:
    """Check that a model accumulates no gradients.

    Raises:
        ModelError: it accumulates gradients.
    """
    if model.buffers:
        owners = [n[: -len(BUFFER)] for n in model.buffers]
        raise ModelError(
            f"the {model.what} accumulates gradients of {owners}: it is a training model"
        )
