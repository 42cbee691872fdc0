"""Parts of gradients that a file names: within the inputs, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UnsupportedOpError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes.infer import infer
from engine.kernels.vocabulary.op import OURS, TensorType

TYPES = {"a": TensorType("f32", (4, 5)), "b": TensorType("f64", (8,))}


def infer_with(**places: Any) -> None:
    node = Node("ClipFactor", ("a", "b"), ("factor",), {"max_norm": 1.0, **places}, domain=OURS)
    infer(Graph("g", dict(TYPES), ["factor"], {}, [node], {"": 17, OURS: 1}))


def test_parts_within_the_inputs_are_taken() -> None:
    infer_with()
    infer_with(begins=[0, 8, 4], sizes=[8, 12, 4], counts=[2, 1])


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            {"begins": [0], "sizes": [4], "counts": [-(2**31)]},
            r"counts is \[-2147483648\]; .* 2 num",
        ),
        ({"begins": [0], "sizes": [4], "counts": [2, -1]}, r"counts is \[2, -1\]; .* 2 numbers"),
        ({"begins": [0], "sizes": [4]}, r"counts is \[\]; .* 2 numbers from 0 on, one per input"),
        (
            {"begins": [0], "sizes": [4, 4], "counts": [1, 1]},
            "begins has 1 numbers and sizes 2; .* 2, the sum",
        ),
        (
            {"begins": [0, 0], "sizes": [21, 4], "counts": [1, 1]},
            "begins and sizes select elements 0 to 21 of input 0",
        ),
        (
            {"begins": [0, 5], "sizes": [4, 4], "counts": [1, 1]},
            "begins and sizes select elements 5 to 9 of input 1",
        ),
        (
            {"begins": [-1, 0], "sizes": [4, 4], "counts": [1, 1]},
            "begins and sizes select elements -1 to 3 of input 0",
        ),
        (
            {"begins": [0, 0], "sizes": [4, -4], "counts": [1, 1]},
            "begins and sizes select elements 0 to -4 of input 1",
        ),
    ],
)
def test_parts_that_are_not_within_are_refused(places: dict[str, Any], message: str) -> None:
    """A kernel would read memory of other values."""
    with pytest.raises(UnsupportedOpError, match=rf"^engine::ClipFactor .*: {message}"):
        infer_with(**places)
