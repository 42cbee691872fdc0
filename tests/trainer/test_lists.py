"""Predictions for nested lists: of samples, of inputs, or neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.errors import EngineError

ROWS = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.fixture(scope="module")
def features() -> Trainer:
    return Trainer.from_model("mlp", input_shape=(3,), classes=2, seed=0, threads=1)


@pytest.fixture(scope="module")
def tokens() -> Trainer:
    return Trainer.from_model("gru_tagger", classes=2, words=9, seed=0, threads=1)


def test_lists_of_samples_are_an_array(features: Trainer, tokens: Trainer) -> None:
    """They were taken for the arrays of several inputs."""
    expected = features.predict(np.array(ROWS))
    several: list[Any] = [ROWS, [np.array(row) for row in ROWS], [np.array(ROWS)], (ROWS,)]
    for given in several:
        np.testing.assert_array_equal(features.predict(given), expected)
    words = [[1, 2, 3], [4, 5, 6], [7, 8, 0]]
    np.testing.assert_array_equal(tokens.predict(words), tokens.predict(np.array(words)))
    assert np.shape(tokens.predict([[1, 2]])) == (1, 2, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1, 2, 3], [4, 5]], r"sample 0 is \[3\], and sample 1 is \[2\]: pad short ones"),
        ([1, 2, 3], r"a list of 1 axes; expected one of samples, with 2 axes.*\[sample\]"),
        ([[1, 2], [3, "a"]], "input 'x': expected values of type int64"),
        ([], "no arrays and no batches"),
        ([[[[1]]]], "expected 2 dimensions"),
        (["the", "cat"], "field 0 is one value"),
    ],
)
def test_lists_that_are_no_samples(given: Any, message: str, tokens: Trainer) -> None:
    with pytest.raises(EngineError, match=message):
        tokens.predict(given)
