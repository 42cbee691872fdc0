"""Checkpoints are read as they were written, for all contents."""

from __future__ import annotations

import struct
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint.storage import Checkpoint, NominalTensor, OptimizerGroup, decode, encode
from tests.support.checkpoints import DTYPES, get_array, make_sample, simplify

arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)
tensors = st.dictionaries(st.text(max_size=8), arrays, max_size=4)
int64s = st.integers(-(2**63), 2**63 - 1)
float32s = st.floats(width=32)


@st.composite
def optimizer_groups(draw: st.DrawFn) -> OptimizerGroup:
    step = draw(int64s)
    states = draw(st.dictionaries(st.text(max_size=8), tensors, max_size=3))
    late = draw(st.lists(st.sampled_from(sorted(states)), unique=True)) if states else []
    before = {name: draw(st.integers(1, step)) for name in late if step > 0}
    return OptimizerGroup(draw(st.text(max_size=8)), step, draw(float32s), states, before)


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    trainable, frozen = draw(tensors), draw(tensors)
    drawn = st.lists(optimizer_groups(), max_size=2, unique_by=lambda group: group.name)
    groups = draw(drawn)
    values = st.one_of(int64s, float32s, st.text(max_size=20))
    properties = draw(st.dictionaries(st.text(max_size=8), values, max_size=5))
    frozen = {n: a for n, a in frozen.items() if n not in trainable}
    return Checkpoint(trainable, frozen, False, groups, properties)


@given(checkpoints(), st.integers(0, 2000))
@settings(max_examples=150, deadline=None)
def test_round_trip(cp: Checkpoint, threshold: int) -> None:
    data, external = encode(cp, external_threshold=threshold)
    back = decode(data, external)
    assert simplify(back) == simplify(cp)
    assert encode(back, external_threshold=threshold) == (data, external)


@given(tensors, st.integers(0, 500))
@settings(max_examples=100, deadline=None)
def test_round_trip_of_the_artifact_layout(trainable: dict[str, Any], threshold: int) -> None:
    cp = Checkpoint(trainable)
    back = decode(*encode(cp, artifact=True, external_threshold=threshold))
    assert simplify(back) == simplify(cp)
    assert list(back.trainable) == list(trainable)


@given(st.dictionaries(st.text(max_size=8), st.sampled_from(DTYPES), max_size=5), st.booleans())
@settings(max_examples=50, deadline=None)
def test_round_trip_of_nominal_checkpoints(dtypes: dict[str, Any], artifact: bool) -> None:
    cp = Checkpoint({n: NominalTensor(d) for n, d in dtypes.items()}, nominal=bool(dtypes))
    assert simplify(decode(*encode(cp, artifact=artifact, external_threshold=0))) == simplify(cp)


def test_memory_layout_of_the_input_does_not_matter() -> None:
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    wide = np.zeros((4, 12), np.float32)
    wide[:, ::2] = a
    variants = [np.asfortranarray(a), wide[:, ::2], a.astype(">f4"), a[::-1][::-1]]
    for threshold in (0, 10**6):
        expected = encode(Checkpoint({"a": a}), external_threshold=threshold)
        for variant in variants:
            encoded = encode(Checkpoint({"a": variant}), external_threshold=threshold)
            assert encoded == expected


def test_decoded_arrays_do_not_share_memory_with_the_bytes() -> None:
    data = bytearray(encode(make_sample())[0])
    cp = decode(memoryview(data))
    before = simplify(cp)
    data[:] = bytes(len(data))
    assert simplify(cp) == before
    get_array(cp.trainable["fc.weight"])[:] = 7


@pytest.mark.parametrize("value", [0, -1, 1, 2**63 - 1, -(2**63), True, np.int32(7), np.uint8(3)])
def test_integer_properties(value: Any) -> None:
    actual_properties = decode(*encode(Checkpoint(properties={"p": value}))).properties["p"]
    assert (type(actual_properties), actual_properties) == (int, int(value))


@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, -1.5, 1e-45, 3.4e38, np.inf, -np.inf, np.nan])
def test_float_properties_are_float32_to_the_bit(value: Any) -> None:
    for given_value in (value, np.float64(value)):
        actual_properties = decode(*encode(Checkpoint(properties={"p": given_value}))).properties[
            "p"
        ]
        assert type(actual_properties) is float
        assert struct.pack("<f", actual_properties) == struct.pack("<f", value)


@pytest.mark.parametrize("value", ["", "naïve", "\0inside\0", "😀" * 100])
def test_text_properties(value: Any) -> None:
    assert decode(*encode(Checkpoint(properties={"p": value}))).properties["p"] == value
