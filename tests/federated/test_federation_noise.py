"""The noise of private federations: its distribution, its integers, and audits of what it promises.

An audit plays the adversary: it runs a mechanism with and without one client, decides by the
statistic that is best against Gaussian noise, and has from its errors a bound that epsilon cannot
lie below (Clopper and Pearson, 99.9 %).  That must not be above what is promised; and it must be
where the noise is half of what it should be, or the audit would find nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.errors import NonFiniteError
from engine.federated import noise
from engine.federated.privacy import Privacy, epsilon_of

SIGNIFICANT = 5.0  # standard errors


# --- distribution


@pytest.mark.parametrize("bits", [0, 1, 3, 6])
def test_samples_are_those_of_a_discrete_gaussian(bits: int) -> None:
    """By chi squared, of every integer that is expected five times or more."""
    count = 200_000
    gaussian = noise.draw_gaussian(count, bits)
    sizes = np.arange(-40 << bits, (40 << bits) + 1)
    likely = np.exp(-(sizes**2) / (2.0 * 4**bits))
    expected = count * likely / likely.sum()
    seen = np.bincount(gaussian - sizes[0], minlength=sizes.size)
    enough = expected >= 5
    square = float(((seen - expected)[enough] ** 2 / expected[enough]).sum())
    free = int(enough.sum()) - 1
    assert abs(square - free) < SIGNIFICANT * math.sqrt(2 * free)


def test_fine_grids_have_the_moments_of_the_normal_distribution() -> None:
    count = 200_000
    gaussian = noise.draw_gaussian(count, noise.MOST_BITS) / 2.0**noise.MOST_BITS
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        error = SIGNIFICANT * math.sqrt(variance / count)
        assert abs((gaussian**power).mean() - moment) < error, power
    low = (noise.draw_gaussian(count, noise.MOST_BITS) & 0xFF).astype(np.float64)
    assert abs(low.mean() - 127.5) < SIGNIFICANT * 73.9 / math.sqrt(count)  # no coarser grid


@pytest.mark.parametrize(("numerator", "bits"), [(0, 3), (3, 3), (8, 3), (1, 49), (1 << 49, 49)])
def test_events_have_the_probability_of_an_exponential(numerator: int, bits: int) -> None:
    count = 100_000
    events = noise._draw_events(np.full(count, numerator, np.uint64), bits)
    wanted = math.exp(-numerator / 2**bits)
    error = SIGNIFICANT * math.sqrt(wanted * (1 - wanted) / count)
    assert abs(float(events.mean()) - wanted) <= error


def test_noise_is_from_the_generator_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it: with other bytes there the noise is another one, and with none there is none."""
    asked: list[int] = []

    def counted(size: int) -> bytes:
        asked.append(size)
        return bytes(np.random.default_rng(len(asked)).integers(0, 256, size, np.uint8))

    monkeypatch.setattr(os, "urandom", counted)
    one = noise.draw_gaussian(100, 24)
    assert sum(asked) > 8 * 100
    asked.clear()
    assert np.array_equal(noise.draw_gaussian(100, 24), one)


# --- integers


@pytest.mark.parametrize("multiplier", [0.001, 0.1, 1.0, 3.7, 1000.0])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_clipped_updates_are_integers_within_the_norm(multiplier: float, size: int) -> None:
    steps, bits = noise.choose_grid(multiplier)
    assert 2**bits / steps >= multiplier > 2**bits / (steps + 1)
    rng = np.random.default_rng(size)
    for length in (0.0, 0.3, 0.7, 1e30):
        values = rng.standard_normal(size)
        values *= length / np.linalg.norm(values)
        whole, clipped = noise.on_grid(values, 0.7, steps)
        square = sum(int(x) ** 2 for x in whole)  # Python's integers: no rounding
        assert square <= steps**2
        assert clipped == (length > 0.7 * (1 + 1e-12) or square > steps**2) or length == 0.7
        error = np.abs(whole * (0.7 / steps) - values * min(1, 0.7 / max(length, 0.7)))
        assert error.max() <= (1 + 1e-9) * 0.7 / steps + 1e-12


def test_norms_that_rounding_would_exceed_are_shrunk() -> None:
    """Of equal elements whose norm is the limit within a rounding of float64, both sides of it."""
    for size in range(1, 400):
        whole, _ = noise.on_grid(np.full(size, 1 / math.sqrt(size)), 1.0, 1 << 20)
        assert sum(int(x) ** 2 for x in whole) <= 1 << 40


def test_updates_that_are_not_finite_are_refused() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(NonFiniteError, match="norm of an update that is to be clipped"):
            noise.add_noise(np.array([1.0, value]), 1.0, 1.0)


# --- audits

RUNS, DELTA, SURE = 2000, 0.1, 0.999
Mechanism = Callable[[bool], float]


def bounded(hits: int, runs: int, *, above: bool) -> float:
    """Return the bound of Clopper and Pearson for a probability that was hit so often in runs."""
    if hits == (runs if above else 0):
        return float(above)
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        at_most = _at_most(hits, runs, middle) if above else 1 - _at_most(hits - 1, runs, middle)
        is_inside = at_most > 1 - SURE
        low, high = (middle, high) if is_inside == above else (low, middle)
    return (low + high) / 2


def _at_most(hits: int, runs: int, p: float) -> float:
    """Return the probability of at most so many hits."""
    k = np.arange(hits + 1)
    ways = np.array(
        [math.lgamma(runs + 1) - math.lgamma(i + 1) - math.lgamma(runs - i + 1) for i in k]
    )
    return float(np.exp(ways + k * math.log(p) + (runs - k) * math.log1p(-p)).sum())


def test_bounds_are_those_of_clopper_and_pearson() -> None:
    # scipy.stats.beta.ppf(0.999, 11, 990) and ppf(0.001, 10, 991)
    assert bounded(10, 1000, above=True) == pytest.approx(0.0239638, rel=1e-5)
    assert bounded(10, 1000, above=False) == pytest.approx(0.0029695, rel=1e-5)


def measured(mechanism: Mechanism) -> float:
    """Return what epsilon for `DELTA` is at least, by half of the runs; the others have a limit."""
    actual_arrays = {
        there: np.array([mechanism(there) for _ in range(RUNS)]) for there in (False, True)
    }
    half = RUNS // 2

    def least(limit: float, part: slice) -> float:
        right, wrong = (int((actual_arrays[there][part] > limit).sum()) for there in (True, False))
        gain = bounded(right, half, above=False) - DELTA
        return math.log(gain / bounded(wrong, half, above=True)) if gain > 0 else -math.inf

    limits = np.quantile(actual_arrays[False][:half], [0.5, 0.8, 0.9, 0.95, 0.98, 0.99])
    best = max(limits, key=lambda limit: least(float(limit), slice(0, half)))
    return least(float(best), slice(half, None))


def central(privacy: Privacy) -> Mechanism:
    """A server with two clients: one of zeros, and one with an update as large as there may be."""
    pytest.importorskip("flwr", reason="needs flwr")
    from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg

    from engine.federated.flower.private import add_privacy
    from engine.federated.flower.records import from_record, to_record
    from engine.federated.flower.simulation import LocalGrid

    strategy = add_privacy(FedAvg(), privacy)
    sent = to_record({"w": np.zeros(2, np.float32)})
    grid = LocalGrid(Any, 2, {})  # type: ignore[arg-type]  # nobody is asked
    asked = list(strategy.configure_train(1, sent, ConfigRecord({}), grid))
    replies = [
        Message(
            RecordDict(
                {
                    "arrays": to_record({"w": np.array([far, 0], np.float32)}),
                    "metrics": MetricRecord({"num-examples": 1}),
                }
            ),
            reply_to=message,
        )
        for message, far in zip(asked, (0, 100), strict=True)
    ]

    def run(there: bool) -> float:
        arrays, _ = strategy.aggregate_train(1, replies if there else replies[:1])
        assert arrays is not None
        return float(from_record(arrays)["w"][0])

    return run


def local(privacy: Privacy) -> Mechanism:
    """A message of a client whose update is as far to the one side as to the other."""

    def run(there: bool) -> float:
        update = np.array([100.0 if there else -100.0])
        return float(noise.add_noise(update, privacy.clipping_norm, privacy.multiplier)[0])

    return run


AUDITED = {
    "server-fixed": (central, Privacy("server-fixed", 0.5, delta=DELTA, clients=10)),
    "local": (local, Privacy("local", 0.5, epsilon=epsilon_of(0.5, DELTA), delta=DELTA)),
}


@pytest.mark.parametrize(("made", "privacy"), AUDITED.values(), ids=AUDITED)
def test_an_audit_measures_less_than_is_promised_and_finds_half_the_noise(
    made: Callable[[Privacy], Mechanism], privacy: Privacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    promised = privacy.spent(1)
    assert promised == pytest.approx(1.66, abs=0.01)
    _, bits = noise.choose_grid(privacy.multiplier)
    for part, is_caught in ((1, False), (2, True)):
        drawn = noise.draw_gaussian(4 * RUNS, bits) // part  # at once, which is quicker
        pool = iter(drawn.reshape(-1, 2))
        monkeypatch.setattr(noise, "draw_gaussian", lambda count, _, pool=pool: next(pool)[:count])
        actual_measured = measured(made(privacy))
        monkeypatch.undo()
        assert actual_measured > 0
        assert (actual_measured > promised) == is_caught
