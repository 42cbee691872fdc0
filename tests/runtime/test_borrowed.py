"""Large inputs: a run reads them where the caller has them, or a copy where it cannot."""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from engine import Trainer
from engine.artifacts import SGD
from engine.errors import DTypeError, LabelError
from engine.inference import Session
from engine.plan.lending import LEAST_LENT, list_lent_inputs
from engine.runtime.program import BoundProgram

# Large floats, bytes and indices, and a small input.
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,300] x, uint8[N,1200] picture, int64[M] at, float[1] less)
=> (float[N,8] h, float[M,300] rows, float[N,1] light) {
    h = MatMul(x, w)
    lower = Sub(x, less)
    rows = Gather(lower, at)
    shown = Cast<to = 1>(picture)
    light = ReduceMean<axes = [1]>(shown)
}"""
BATCH = 64
Feed = dict[str, np.ndarray]


def make_session(threads: int = 1) -> Session:
    model: onnx.ModelProto = parser.parse_model(MODEL)
    w = np.random.default_rng(9).standard_normal((300, 8), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return Session(model, threads=threads)


@pytest.fixture(params=[1, 2])
def session(request: pytest.FixtureRequest) -> Session:
    return make_session(request.param)


def make_feed(seed: int = 0) -> Feed:
    rng = np.random.default_rng(seed)
    return {
        "x": place(rng.standard_normal((BATCH, 300), np.float32)),
        "picture": place(rng.integers(0, 256, (BATCH, 1200), np.uint8)),
        "at": rng.integers(0, BATCH, 9000),
        "less": np.ones(1, np.float32),
    }


def place(values: np.ndarray, offset: int = 16) -> np.ndarray:
    """A copy that begins so many bytes after a page does, as large arrays of NumPy do with 16."""
    raw = np.zeros(values.nbytes + 2 * mmap.PAGESIZE, np.uint8)
    begin = -raw.ctypes.data % mmap.PAGESIZE + offset
    made = raw[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


def find_program(session: Session) -> BoundProgram:
    (program,) = session._calls.model.memory.programs.values()
    return program


def list_copied(session: Session, feed: Feed) -> set[str]:
    """The inputs that a run copies into its own memory."""
    program = find_program(session)
    for array in program.inputs.values():
        array[...] = 0
    session.run(None, feed)
    return {name for name, array in program.inputs.items() if array.any()}


def check_answers(session: Session, feed: Feed) -> None:
    """Compare with a session that copies all."""
    plain = make_session(session._calls.model.threads)
    plain.run(None, feed)
    find_program(plain)._borrowable = {}
    for mine, other in zip(session.run(None, feed), plain.run(None, feed), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_large_floats_and_bytes_are_not_copied(session: Session) -> None:
    feed = make_feed()
    assert all(feed[name].nbytes >= LEAST_LENT for name in ("x", "picture", "at"))
    check_answers(session, feed)
    assert list_copied(session, feed) == {"at", "less"}


def test_the_plan_says_which(session: Session) -> None:
    session.run(None, make_feed())
    ports = list_lent_inputs(find_program(session).plan)
    assert [port.name for port in ports] == ["x", "picture"]


def reverse_rows(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x[::-1])[::-1]


def take_columns(x: np.ndarray) -> np.ndarray:
    return np.repeat(x, 2, axis=1)[:, ::2]


def transpose(x: np.ndarray) -> np.ndarray:
    return np.asfortranarray(x)


def shift_bytes(x: np.ndarray) -> np.ndarray:
    return place(x, 17)


def end_page(x: np.ndarray) -> np.ndarray:
    """The last element ends a page, and a register that begins at it would reach the next one."""
    return place(x, -x.nbytes % mmap.PAGESIZE)


@pytest.mark.parametrize(
    "change",
    [reverse_rows, take_columns, transpose, shift_bytes, end_page],
    ids=lambda f: f.__name__,
)
def test_arrays_that_kernels_cannot_read_are_copied(
    session: Session, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    feed = make_feed()
    session.run(None, feed)
    changed = feed | {"x": change(feed["x"])}
    np.testing.assert_array_equal(changed["x"], feed["x"])
    check_answers(session, changed)
    assert list_copied(session, changed) == {"x", "at", "less"}


def test_memory_that_ends_with_its_page_is_read(session: Session) -> None:
    """The page after the last byte may not belong to this process."""
    session.run(None, make_feed())
    memory = mmap.mmap(-1, BATCH * 1200)
    picture = np.frombuffer(memory, np.uint8).reshape(BATCH, 1200)
    picture[...] = make_feed()["picture"]
    check_answers(session, make_feed() | {"picture": picture})


def test_read_only_arrays_stay_where_they_are(session: Session) -> None:
    feed = make_feed()
    session.run(None, feed)
    feed["x"].flags.writeable = False
    check_answers(session, feed)
    assert "x" not in list_copied(session, feed)


def test_each_run_reads_its_own_array(session: Session) -> None:
    first, second = make_feed(1), make_feed(2)
    for feed in (first, second, first, second | {"x": reverse_rows(second["x"])}, first):
        check_answers(session, feed)
    first["x"] *= 2  # between two runs, in place
    check_answers(session, first)


def test_arrays_are_let_go_after_a_run(session: Session) -> None:
    feed = make_feed()
    session.run(None, feed)
    gone = weakref.ref(feed["x"])
    del feed
    assert gone() is None


def test_a_failed_run_gives_them_back(session: Session) -> None:
    feed = make_feed()
    session.run(None, feed)
    before = find_program(session)._args.copy()
    with pytest.raises(LabelError, match="index 64"):
        session.run(None, feed | {"at": np.full(9000, BATCH)})
    np.testing.assert_array_equal(find_program(session)._args, before)
    check_answers(session, feed)


def test_other_types_are_refused(session: Session) -> None:
    feed = make_feed()
    for x in (feed["x"].astype(np.float64), feed["x"].astype(">f4")):
        with pytest.raises(DTypeError, match="input 'x': expected float32"):
            session.run(None, feed | {"x": x})


def test_threads_share_a_session(session: Session) -> None:
    feeds = [make_feed(seed) for seed in range(4)]
    expected = [session.run(None, feed) for feed in feeds]
    wrong = list[int]()

    def run(n: int) -> None:
        for _ in range(20):
            for mine, other in zip(session.run(None, feeds[n]), expected[n], strict=True):
                if not np.array_equal(mine, other):
                    wrong.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(feeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- training

LAYERS = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,300] x) => (float[N,300] y) {
    h = MatMul(x, w1)
    r = Relu(h)
    s = MatMul(x, w3)
    t = MatMul(r, w2)
    y = Add(s, t)
}"""
SAMPLES = 256


def make_trainer() -> Trainer:
    model: onnx.ModelProto = parser.parse_model(LAYERS)
    rng = np.random.default_rng(3)
    for name, shape in (("w1", (300, SAMPLES)), ("w2", (SAMPLES, 300)), ("w3", (300, 300))):
        w = rng.standard_normal(shape, np.float32) / 16
        model.graph.initializer.append(numpy_helper.from_array(w, name))
    return Trainer.from_onnx(model, "cross_entropy", SGD(lr=0.1), threads=1)


def find_programs(trainer: Trainer) -> list[BoundProgram]:
    return list(trainer.learner.session.memory.programs.values())


def read_parameters(trainer: Trainer) -> np.ndarray:
    return trainer.learner.session.state.regions["param"].copy()


def make_batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = place(rng.standard_normal((SAMPLES, 300), np.float32))
    return x, rng.integers(0, 300, SAMPLES)


def test_steps_are_the_same_to_the_last_bit() -> None:
    """As one plan, as two, and evaluated; the arrays are others in each step."""
    mine, plain = make_trainer(), make_trainer()
    for seed in range(4):
        for step in ("step", "accumulate", "evaluate_batch"):
            losses = []
            for trainer in (mine, plain):
                if trainer is plain:
                    for program in find_programs(plain):
                        program._borrowable = {}
                x, labels = make_batch(seed)
                losses.append(call(trainer, step, x, labels))
                if step == "accumulate":
                    trainer.update()
            assert losses[0] == losses[1]
        np.testing.assert_array_equal(read_parameters(mine), read_parameters(plain))


def call(trainer: Trainer, step: str, x: np.ndarray, labels: np.ndarray) -> float:
    if step == "evaluate_batch":
        return float(
            trainer.learner.session.run(trainer.learner.session.require_eval(), [x, labels])[0]
        )
    return float(getattr(trainer, step)(x, labels))


@pytest.mark.parametrize("name", ["w1", "w2"])
def test_a_step_that_is_given_its_own_parameters_reads_them_as_they_were(name: str) -> None:
    """An update may come before the last gradient for which the input is read."""
    mine, plain = make_trainer(), make_trainer()
    _, labels = make_batch(0)
    for trainer in (mine, plain):
        own = trainer.learner.session.state.view("param", name)
        own = own.reshape(SAMPLES, 300)
        for _ in range(3):
            trainer.step(own if trainer is mine else own.copy(), labels)
    np.testing.assert_array_equal(read_parameters(mine), read_parameters(plain))


def test_parts_of_a_batch_are_read_in_place() -> None:
    trainer, (x, labels) = make_trainer(), make_batch(0)
    trainer.step(x, labels)
    (program,) = (p for p in find_programs(trainer) if p._borrowable)
    program.inputs["x"][...] = 0
    half = np.concatenate([x, x])
    trainer.step(place(half)[SAMPLES // 2 : SAMPLES // 2 + SAMPLES], labels)
    assert not program.inputs["x"].any()
