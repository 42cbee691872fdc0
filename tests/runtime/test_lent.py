"""Large outputs of answers: a run writes them to the arrays that the caller gets."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from engine.errors import LabelError
from engine.inference import Session
from engine.plan.lending import LEAST_LENT

# Two large outputs and a small one; other nodes read the first.
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,300] x, int64[M] at)
=> (float[N,400] h, float[N,1] small, float[M,400] rows) {
    h = MatMul(x, w)
    r = Relu(h)
    small = ReduceMax<axes = [1]>(r)
    rows = Gather(r, at)
}"""
BATCH = 60


def make_model() -> onnx.ModelProto:
    model = parser.parse_model(MODEL)
    w = np.random.default_rng(9).standard_normal((300, 400), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return model


def make_feed(seed: int) -> dict[str, np.ndarray]:
    return {
        "x": np.random.default_rng(seed).standard_normal((BATCH, 300), np.float32),
        "at": np.arange(BATCH)[::-1].copy(),
    }


@pytest.fixture(params=[1, 2])
def session(request: pytest.FixtureRequest) -> Session:
    return Session(make_model(), threads=request.param)


def test_answers_are_arrays_of_their_own(session: Session) -> None:
    kept = [session.run(None, make_feed(seed)) for seed in range(3)]
    for seed, (h, small, rows) in enumerate(kept):
        assert h.nbytes >= LEAST_LENT <= rows.nbytes
        assert all(a.flags.writeable and a.flags.c_contiguous for a in (h, small, rows))
        again = session.run(None, make_feed(seed), out={"h": np.empty_like(h)})
        for mine, other in zip((h, small, rows), again, strict=True):
            np.testing.assert_array_equal(mine, other)
        np.testing.assert_array_equal(rows, np.maximum(h, 0)[::-1])
        h[...] = 0
        np.testing.assert_array_equal(session.run(["rows"], make_feed(seed))[0], rows)


def test_one_name_twice_gives_two_arrays(session: Session) -> None:
    first, second = session.run(["h", "h"], make_feed(0))
    np.testing.assert_array_equal(first, second)
    assert not np.shares_memory(first, second)


def test_a_failed_run_takes_them_back(session: Session) -> None:
    h, _, rows = session.run(None, make_feed(0))
    with pytest.raises(LabelError):
        session.run(None, make_feed(0) | {"at": np.full(BATCH, BATCH)})
    out = {"h": np.empty_like(h), "rows": np.empty_like(rows)}
    session.run(None, make_feed(0), out=out)
    np.testing.assert_array_equal(out["h"], h)
    np.testing.assert_array_equal(out["rows"], rows)


def test_outputs_without_elements_are_not_lent() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }"""
    )
    assert Session(model, threads=1).run(None, {"x": np.zeros(0, np.float32)})[0].shape == (0,)
