"""Losses over classes that are adapted to the data: weights of classes, and shares of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base.errors import InputError
from engine.loss_types import LOSSES, CrossEntropyLoss, FocalLoss, LossType, NLLLoss
from engine.trainer import names


def adapt(loss: Any, weight: npt.NDArray[np.float32] | None, mixes: Sequence[str]) -> Any:
    """Return a loss with factors of classes, and of shares of classes where labels are mixed.

    Args:
        loss: as `Trainer.from_onnx` takes it.
        weight: one factor for each class; None to leave the loss as it is.
        mixes: the changes of data that mix labels, by name; none: labels are numbers of classes.

    Raises:
        InputError: the loss has no classes, has weights already, or does not take shares.
    """
    if isinstance(loss, str):
        loss = names.choose_named(names.list_losses(), loss, "loss")()
    if isinstance(loss, LossType):
        loss = LOSSES[loss]()
    if weight is not None:
        loss = _add_weight(loss, weight)
    if mixes and not (isinstance(loss, CrossEntropyLoss) and loss.probabilities):
        if not isinstance(loss, CrossEntropyLoss):
            raise InputError(
                f"augment={mixes[0]!r} mixes labels, and {_name_loss(loss)} does not take "
                "shares of "
                "classes: expected CrossEntropyLoss"
            )
        loss = replace(loss, probabilities=True)
    return loss


def check_single(outputs: Sequence[str], *, has_weight: bool, mixes: Sequence[str]) -> None:
    """Refuse weights of classes and changes that mix labels where several outputs have a loss each.

    outputs: their names; empty: there is a single loss.

    Raises:
        InputError: something is asked for that needs a single loss.
    """
    if outputs and mixes:
        raise InputError(
            f"augment={mixes[0]!r} mixes the features and the last target alone; the losses of "
            f"this model have a target for each of the outputs {outputs}"
        )
    if outputs and has_weight:
        raise InputError(
            f"class_weight= is for a single loss; this model has one for each of the outputs "
            f"{outputs}: give the factors to one of them, such as loss={{{outputs[0]!r}: "
            "CrossEntropyLoss(weight=...)}"
        )


def _add_weight(loss: Any, weight: npt.NDArray[np.float32]) -> Any:
    if isinstance(loss, FocalLoss) and loss.activation == "softmax":
        name = "alpha"
    elif isinstance(loss, CrossEntropyLoss | NLLLoss):
        name = "weight"
    else:
        raise InputError(
            f"class_weight= is for losses over classes: {_name_loss(loss)} is none; expected "
            "CrossEntropyLoss, NLLLoss, or FocalLoss with activation='softmax'"
        )
    if getattr(loss, name) is not None:
        raise InputError(
            f"class_weight=, and {_name_loss(loss)} has its own {name}=: give only one of the two"
        )
    options: dict[str, Any] = {name: weight}  # of the subclass, a dataclass
    return replace(loss, **options)


def _name_loss(loss: Any) -> str:
    return "a model that computes its own loss" if loss is None else type(loss).__name__
