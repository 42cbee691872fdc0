"""Losses that are not finite: the run ends, and the message names where that began."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.artifacts import SGD, MSELoss
from engine.data import batches
from engine.errors import NonFiniteError, OutOfMemoryError
from engine.trainer import nonfinite
from engine.trainer.fit import Callback, Fit
from engine.training import nonfinite as search
from tests.support.tiny import BATCH, DROPPING, LABELS, PLAIN, X, make_trainer, read_values

DATA = (X, LABELS)
QUIET: dict[str, Any] = {"batch_size": BATCH, "progress": False}
# The logarithm of what may be 0 or negative, in the middle of the model.
LOGS = PLAIN.replace("r = Tanh(b)", "t = Relu(b)\n    r = Log(t)")
# A mask of -inf that softmax turns into zeros, and the logarithm of these.
MASKED = PLAIN.replace(
    "r = Tanh(b)",
    """low = Constant<value = float {-1e38}>()
    ten = Constant<value = float {10.0}>()
    inf = Mul(low, ten)
    zero = Constant<value = float {0.0}>()
    off = Less(b, zero)
    masked = Where(off, inf, b)
    shares = Softmax(masked)
    tenfold = Mul(shares, ten)
    r = Log(tenfold)""",
)


class Watch(Callback):
    """Keeps the values from before every batch."""

    def __init__(self) -> None:
        self.values: list[dict[str, bytes]] = []
        self.error: BaseException | None = None

    def on_epoch_begin(self, fit: Fit) -> None:
        self.values.append(read_values(fit.trainer))

    def on_batch_end(self, fit: Fit) -> None:
        self.values.append(read_values(fit.trainer))

    def on_fit_end(self, fit: Fit) -> None:
        self.error = fit.error


def yielding(*given: Any) -> Any:
    """Data that yields these batches, and does not look for NaN in them."""

    def source() -> Iterator[Any]:
        yield from given

    return batches(source, allow_nan=True)


def test_the_node_that_makes_it_is_named(tmp_path: Path) -> None:
    trainer, watch = make_trainer(LOGS), Watch()
    text = (
        r"epoch 0, batch 0 \(after 0 steps\): the loss is (nan|inf|-inf); the first tensor that is "
        r"not finite is 'r' with -inf in \d+ of 64 values, computed from finite values by the "
        r"nodes? .*'Log_\d+', which read 'h' from -?[\d.]+ to [\d.]+, .*\. "
        r"The parameters have not been updated with this batch"
    )
    with pytest.raises(NonFiniteError, match=text):
        trainer.fit(DATA, callbacks=[watch], folder=tmp_path, shuffle=False, **QUIET)
    assert read_values(trainer) == watch.values[-1]
    assert isinstance(watch.error, NonFiniteError)
    assert not (tmp_path / "last").exists()


def test_infinities_that_softmax_takes_away_are_not_blamed() -> None:
    text = (
        r"the first tensor that is not finite is 'r' with -inf in \d+ of 64 values, computed from "
        r"finite values by the nodes? ('Mul_\w+', )?'Log_\d+', which read "
        r"'shares' from 0 to 0\.\d+\."
    )
    with pytest.raises(NonFiniteError, match=text):
        make_trainer(MASKED).fit(DATA, shuffle=False, **QUIET)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_an_input_is_named_with_its_place(value: float, word: str) -> None:
    x = X.copy()
    x[11, 4] = value
    data = yielding((x[:8], LABELS[:8]), (x[8:16], LABELS[8:16]))
    text = (
        r"epoch 0, batch 1 \(after 1 steps\): the loss is nan; "
        rf"input 'x' has {word} at \[3, 4\]\."
    )
    trainer = make_trainer(PLAIN.replace("Tanh", "Identity"))
    with pytest.raises(NonFiniteError, match=text):
        trainer.fit(data, progress=False)


def test_a_target_is_named() -> None:
    trainer = make_trainer(loss=MSELoss())
    targets = np.zeros((8, 3), np.float32)
    targets[2, 1] = np.nan
    targets[5, 0] = np.nan
    text = r"the loss is nan; input 'target.*' has NaN at \[2, 1\] and 1 more such values?\."
    with pytest.raises(NonFiniteError, match=text):
        trainer.fit(yielding((X[:8], targets)), progress=False)


def test_a_parameter_is_named_with_the_update_that_spoiled_it() -> None:
    class Spoil(Callback):
        def on_step_end(self, fit: Fit) -> None:
            if fit.step == 2:
                fit.trainer.state.parameters["body.weight"].data[3, 5] = np.nan

    text = (
        r"epoch 0, batch 2 \(after 2 steps\): the loss is nan; parameter 'body.weight' has NaN at "
        r"\[3, 5\]: the update of step 2 or one before it made it so"
    )
    with pytest.raises(NonFiniteError, match=text):
        make_trainer().fit(DATA, callbacks=[Spoil()], **QUIET)


def test_a_parameter_that_was_bad_from_the_beginning() -> None:
    trainer = make_trainer()
    trainer.state.parameters["head.bias"].data[1] = np.nan
    text = r"parameter 'head.bias' has NaN at \[1\]: it was so before the first update"
    with pytest.raises(NonFiniteError, match=text):
        trainer.fit(DATA, **QUIET)


def test_a_learning_rate_that_is_too_high_ends_with_finite_checkpoints(tmp_path: Path) -> None:
    """The loss is finite, the update is not: seen before a checkpoint is written, at the latest."""
    trainer = make_trainer(PLAIN.replace("Tanh", "Identity"), optimizer=SGD(1e30))
    with pytest.raises(NonFiniteError, match=r"clip_grad= of the optimizer often helps"):
        trainer.fit(DATA, epochs=5, folder=tmp_path, checkpoint_every=1, **QUIET)
    for place in (tmp_path / "checkpoints").iterdir():
        again = make_trainer(PLAIN.replace("Tanh", "Identity"), optimizer=SGD(1e30))
        again.load(place / "checkpoint")
        assert all(np.isfinite(p.data).all() for _, p in again.state.parameters)


def test_what_is_drawn_at_random_is_drawn_again() -> None:
    """The second computation drops the same numbers, otherwise the node would differ."""
    text = DROPPING.replace("s = MatMul(r, head", "q = Log(r)\n    s = MatMul(q, head")
    trainer, seen = make_trainer(text.replace("t = Tanh(b)", "t = Exp(b)")), []

    class Look(Callback):
        def on_fit_end(self, fit: Fit) -> None:
            seen.append(fit.trainer.state.draws)

    with pytest.raises(NonFiniteError, match=r"first tensor .* 'q' with -inf in \d+ of 64"):
        trainer.fit(DATA, callbacks=[Look()], **QUIET)
    assert seen == [1]


def test_the_search_touches_no_gradient_and_no_count() -> None:
    trainer = make_trainer(DROPPING)
    trainer.accumulate(X[:8], LABELS[:8])
    kept = trainer.state.regions["grad"].tobytes(), trainer.state.draws, read_values(trainer)
    told = nonfinite.make_error(trainer.training_steps, (X[:8], LABELS[:8]), np.nan, "batch 0")
    assert "computed once more, it was finite" in str(told)
    assert kept == (
        trainer.state.regions["grad"].tobytes(),
        trainer.state.draws,
        read_values(trainer),
    )


def test_the_gradient_of_the_last_update_is_told_of() -> None:
    class Spoil(Callback):
        def on_step_end(self, fit: Fit) -> None:
            if fit.batch == 3:
                parameter = fit.trainer.state.parameters["head.bias"]
                assert parameter.grad is not None
                parameter.grad[2] = parameter.data[2] = np.inf

    text = r"'head\.bias' has inf at \[2\]: .* made it so, and its gradient has inf at \[2\]\. Earl"
    with pytest.raises(NonFiniteError, match=text):
        make_trainer().fit(DATA, accumulate=3, callbacks=[Spoil()], **QUIET)


def test_the_run_can_go_on_after_it(tmp_path: Path) -> None:
    class Spoil(Callback):
        def on_step_end(self, fit: Fit) -> None:
            if fit.step == 5:
                fit.trainer.state.parameters["body.bias"].data[0] = np.inf

    plain, trainer = make_trainer(), make_trainer()
    with pytest.raises(NonFiniteError, match=r"parameter 'body\.bias' has inf"):
        trainer.fit(DATA, epochs=3, folder=tmp_path, callbacks=[Spoil()], **QUIET)
    trainer.fit(DATA, epochs=3, folder=tmp_path, resume=True, **QUIET)
    plain.fit(DATA, epochs=3, **QUIET)
    assert read_values(trainer) == read_values(plain)


def test_nodes_that_one_kernel_computes_are_all_named() -> None:
    text = LOGS.replace("r = Log(t)", "q = Log(t)\n    r = Neg(q)")
    message = r"not finite is 'r' with inf .* by the nodes .*'Log_\d+', 'Neg_\d+', which"
    with pytest.raises(NonFiniteError, match=message):
        make_trainer(text).fit(DATA, shuffle=False, **QUIET)


def test_a_module_that_looks_itself_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGRAD_CHECK_FINITE", "1")
    with pytest.raises(NonFiniteError, match=r"the loss is nan; the first tensor .* 'Log_\d+'"):
        make_trainer(LOGS).fit(DATA, shuffle=False, **QUIET)


def test_without_room_for_the_search_the_loss_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*given: Any, **more: Any) -> Any:
        raise OutOfMemoryError("memory: 99 bytes cannot be allocated")

    monkeypatch.setattr(search, "allocate", allocate)
    with pytest.raises(NonFiniteError, match="its origin could not be determined: memory: 99"):
        make_trainer(LOGS).fit(DATA, shuffle=False, **QUIET)
