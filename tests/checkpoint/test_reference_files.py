"""Checkpoints that onnxruntime-training wrote: read, and written again byte for byte."""

from __future__ import annotations

import numpy as np
import pytest

from engine.checkpoint import storage
from engine.checkpoint.storage import NominalTensor, decode, encode
from tests.support.checkpoints import DTYPES, get_array, simplify
from tests.support.places import CHECKPOINTS

ARTIFACTS = ["l1", "mlp", "lstm", "dtypes", "nominal", "empty"]
RUNTIME = ["dtypes_runtime", "empty_runtime", "properties", "adamw_runtime", "sgd_runtime"]


@pytest.mark.parametrize("name", ARTIFACTS)
def test_artifact_files_of_the_reference_come_out_byte_for_byte(name: str) -> None:
    data = (CHECKPOINTS / name).read_bytes()
    assert encode(decode(data), artifact=True, checksum=False) == (data, None)


@pytest.mark.parametrize("name", RUNTIME)
def test_runtime_files_of_the_reference_come_out_byte_for_byte(name: str) -> None:
    data = (CHECKPOINTS / name).read_bytes()
    assert encode(decode(data), checksum=False) == (data, None)


def test_external_file_of_the_reference_comes_out_byte_for_byte() -> None:
    data = (CHECKPOINTS / "external_runtime").read_bytes()
    external = (CHECKPOINTS / "external_runtime.data").read_bytes()
    cp = decode(data, external)
    assert encode(cp, external_threshold=0, checksum=False) == (data, external)
    assert simplify(storage.read(CHECKPOINTS / "external_runtime")) == simplify(cp)
    np.testing.assert_array_equal(cp.frozen["u64"], np.arange(9, dtype=np.uint64))
    assert get_array(cp.frozen["s"]).shape == ()
    assert cp.frozen["s"] == 2
    assert get_array(cp.frozen["e"]).shape == (0,)


@pytest.mark.parametrize("name", ["dtypes", "dtypes_runtime"])
def test_values_of_every_dtype(name: str) -> None:
    cp = storage.read(CHECKPOINTS / name)
    assert {a.dtype for a in cp.trainable.values()} == set(DTYPES)
    for key, value in cp.trainable.items():
        array = get_array(value)
        expected = np.arange(15).reshape(3, 5)
        if array.dtype == bool:
            expected = expected % 2
        np.testing.assert_array_equal(array, expected.astype(key.removeprefix("z.")))
        for flag in ("owndata", "writeable", "aligned", "c_contiguous"):
            assert getattr(array.flags, flag)
    assert get_array(cp.frozen["frozen.scalar"]).shape == ()
    assert cp.frozen["frozen.scalar"] == 1.5
    assert get_array(cp.frozen["frozen.empty"]).shape == (0, 3)
    assert get_array(cp.frozen["frozen.é"]).tolist() == list(range(7))
    assert (cp.nominal, cp.optimizer_groups, cp.properties) == (False, [], {})


def test_names_keep_their_order() -> None:
    assert list(storage.read(CHECKPOINTS / "mlp").trainable) == [
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    ]


@pytest.mark.parametrize("name", ["nominal", "nominal_runtime"])
def test_nominal_files_hold_types_only(name: str) -> None:
    cp = storage.read(CHECKPOINTS / name)
    assert cp.nominal
    assert cp.trainable["z.float64"] == NominalTensor(np.dtype(np.float64))
    assert {t.dtype for t in cp.trainable.values()} == set(DTYPES)
    assert len(cp.frozen) == 3
    assert simplify(decode(encode(cp)[0])) == simplify(cp)


def test_properties_of_the_reference() -> None:
    properties = storage.read(CHECKPOINTS / "properties").properties
    assert properties == {
        "a_last": "x" * 10,
        "f.1": float(np.float32(0.1)),
        "f0": 0.0,
        "fmax": float(np.finfo(np.float32).max),
        "fneg": -1.0,
        "i0": 0,
        "i1": -1,
        "imax": 2**63 - 1,
        "imin": -(2**63),
        "s": "",
        "sé": "naïve",
    }
    assert {type(v) for n, v in properties.items() if n.startswith("i")} == {int}
    assert {type(v) for n, v in properties.items() if n.startswith("f")} == {float}


@pytest.mark.parametrize(
    ("name", "moments"),
    [("adamw_runtime", ["momentum0", "momentum1"]), ("sgd_runtime", ["momentum0"])],
)
def test_optimizer_state_of_the_reference(name: str, moments: list[str]) -> None:
    cp = storage.read(CHECKPOINTS / name)
    (group,) = cp.optimizer_groups
    assert (group.name, group.step) == ("group0", 3)
    assert group.initial_learning_rate == np.float32(0.001)
    assert list(group.states) == sorted(cp.trainable)
    for parameter, state in group.states.items():
        assert list(state) == moments
        for moment in state.values():
            assert moment.shape == get_array(cp.trainable[parameter]).shape
            assert moment.dtype == np.float32
    assert cp.properties == {"epoch": 3, "loss": 0.25, "note": "hello"}
