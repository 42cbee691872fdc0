"""Parameters that travel: names and order, what is refused, differences, one buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import (
    DTypeError,
    EngineError,
    InputError,
    NameNotFoundError,
    NonFiniteError,
    ShapeError,
)
from engine.federated import parameters
from tests.support import tiny


def test_the_buffer_is_that_of_onnxruntime() -> None:
    """In the order of the training model, and of trained parameters alone."""
    trainer = tiny.make_trainer(tiny.NORMED)
    names = parameters.trainable(trainer)
    mine = parameters.get(trainer, names)
    buffer = trainer.module.get_contiguous_parameters(trainable_only=True)
    assert np.array_equal(parameters.flatten(mine), buffer)
    assert parameters.trainable(trainer.module) == names
    again = parameters.unflatten(buffer * 2, mine)
    assert all(np.array_equal(again[name], mine[name] * 2) for name in names)
    with pytest.raises(ShapeError, match="elements, the buffer"):
        parameters.unflatten(buffer[1:], mine)


def test_running_statistics_are_known_by_name() -> None:
    assert parameters.list_statistics(tiny.make_trainer(tiny.NORMED)) == ["norm.mean", "norm.var"]
    assert parameters.list_statistics(tiny.make_trainer(tiny.NORMED, frozen_batch_norm=True)) == []
    assert parameters.list_statistics(tiny.make_trainer()) == []


def test_what_was_learned_is_added_to_what_was_sent() -> None:
    trainer = tiny.make_trainer()
    names = parameters.trainable(trainer)
    sent = parameters.get(trainer, names)
    trainer.step(tiny.X[:8], tiny.LABELS[:8])
    new = parameters.get(trainer, names)
    learned = parameters.subtract(new, sent)
    assert any(array.any() for array in learned.values())
    parameters.apply(trainer, parameters.add(sent, learned))
    for name in names:
        np.testing.assert_allclose(trainer.state.parameters[name].data, new[name], rtol=1e-6)
    with pytest.raises(InputError, match=r"'head\.bias' is not in the base"):
        parameters.subtract(new, {n: a for n, a in sent.items() if n != "head.bias"})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"head.bias": None}, InputError, r"lack the parameter 'head\.bias'.*another architecture"),
        ({"head.bais": np.zeros(3, "f4")}, NameNotFoundError, r"nearest: 'head\.bias'"),
        ({"head.bias": np.zeros(4, "f4")}, ShapeError, r"'head\.bias': shape \[3\], got \[4\]"),
        ({"head.bias": np.zeros(3)}, DTypeError, r"'head\.bias': float32, got float64"),
        ({"head.bias": np.array([0, np.nan, 0], "f4")}, NonFiniteError, r"element \[1\] is nan"),
    ],
)
def test_wrong_arrays_are_refused_by_name(
    change: dict[str, Any], kind: type[EngineError], message: str
) -> None:
    trainer = tiny.make_trainer()
    before = tiny.read_values(trainer)
    arrays = parameters.get(trainer, parameters.trainable(trainer))
    given: dict[str, Any] = {name: array + 1 for name, array in arrays.items()} | change
    given = {name: array for name, array in given.items() if array is not None}
    with pytest.raises(kind, match=message):
        parameters.apply(trainer, given)
    assert tiny.read_values(trainer) == before


def test_parameters_of_a_module_are_those_of_its_trainer() -> None:
    trainer = tiny.make_trainer()
    assert parameters.trainable(trainer.module) == parameters.trainable(trainer)
    assert parameters.trainable(trainer)
