"""Partitions of a data set among clients: properties over random labels, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import DTypeError, InputError, ShapeError
from engine.federated.partition import Indices, by_user, dirichlet, iid

LABELS = np.random.default_rng(0).integers(0, 10, 2000)


def holds_each_once(parts: Sequence[Indices], samples: int) -> bool:
    """Return whether every sample is in one part, and every part is ascending."""
    ascending = all((np.diff(part) > 0).all() for part in parts)
    whole = np.concatenate([np.zeros(0, np.int64), *parts])
    return ascending and whole.dtype == np.int64 and (np.sort(whole) == np.arange(samples)).all()


def classes_held(parts: Sequence[Indices]) -> float:
    """The number of classes that it would take to be as mixed as a client is, on average."""
    shares = [np.bincount(LABELS[part], minlength=10) / len(part) for part in parts]
    return float(np.mean([1 / (share**2).sum() for share in shares]))


def equal(some: Sequence[Indices], others: Sequence[Indices]) -> bool:
    return len(some) == len(others) and all(map(np.array_equal, some, others))


@given(
    st.lists(st.integers(-3, 5), max_size=60),
    st.integers(1, 80),
    st.floats(-9, 9),
    st.integers(0, 99),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_each_sample_is_with_one_client(
    labels: list[int], clients: int, magnitude: float, seed: int, equal_sizes: bool
) -> None:
    """More clients than samples, no samples, and concentrations of all magnitudes among them."""
    count, alpha = len(labels), 10**magnitude
    minimum = count // clients
    array = np.array(labels, np.int64)
    skewed = dirichlet(array, clients, alpha, seed, equal_sizes=equal_sizes, minimum=minimum)
    dealt = iid(count, clients, seed, minimum=minimum)
    users = by_user(array, clients, seed, minimum=0)
    for parts in (skewed, dealt, users):
        assert len(parts) == clients
        assert holds_each_once(parts, count)
    for parts in (skewed, dealt):
        assert min(map(len, parts)) >= minimum
    for parts in (skewed,) * equal_sizes + (dealt,):
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    owner = {user: {k for k, part in enumerate(users) if user in array[part]} for user in labels}
    assert all(len(clients) == 1 for clients in owner.values())
    again = dirichlet(array, clients, alpha, seed, equal_sizes=equal_sizes, minimum=minimum)
    assert equal(skewed, again)


@pytest.mark.parametrize("equal_sizes", [True, False])
def test_a_small_alpha_is_more_skewed(equal_sizes: bool) -> None:
    mixed = [
        classes_held(dirichlet(LABELS, 20, alpha, equal_sizes=equal_sizes))
        for alpha in (0.1, 0.3, 1, 100)
    ]
    assert mixed == sorted(mixed)
    assert mixed[0] < 2.5
    assert mixed[-1] > 8  # even by chance, 100 samples have not ten of each class


def test_shares_follow_the_dirichlet() -> None:
    """The variance of a share q of Dir(alpha p) is p (1 - p) / (alpha + 1), for all but the last
    clients, whom fewer classes are left."""
    labels = np.repeat(np.arange(4), 25_000)
    parts = dirichlet(labels, 400, 3.0)[:200]
    shares = np.array([np.bincount(labels[part], minlength=4) / len(part) for part in parts])
    np.testing.assert_allclose(shares.mean(0), 0.25, atol=0.04)
    np.testing.assert_allclose(shares.var(0), 0.25 * 0.75 / 4, rtol=0.25)


def test_another_seed_is_another_partition() -> None:
    for first, second in (
        (iid(99, 4, 0), iid(99, 4, 1)),
        (dirichlet(LABELS, 4, 1, 0), dirichlet(LABELS, 4, 1, 1)),
        (by_user(LABELS, 4, 0), by_user(LABELS, 4, 1)),
    ):
        assert not equal(first, second)


def test_what_a_seed_gives_stays() -> None:
    """Runs are compared across versions: a partition is part of what a seed stands for."""
    labels = np.arange(8) % 2
    assert [part.tolist() for part in dirichlet(labels, 3, 2.0, 7)] == [
        [0, 2, 4],
        [1, 3, 6],
        [5, 7],
    ]
    assert [part.tolist() for part in iid(7, 3, 7)] == [[2, 3, 6], [0, 1], [4, 5]]


def test_users_are_whole_and_named_by_anything() -> None:
    names = np.array(["eve", "bob", "eve", "ann", "bob", "eve"])
    assert [part.tolist() for part in by_user(names)] == [[3], [1, 4], [0, 2, 5]]
    assert sorted(len(part) for part in by_user(names, 2)) == [3, 3]
    assert by_user(names, 5, minimum=0)[4].size == 0
    assert by_user([]) == []


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: iid(3, 4), InputError, "3 samples are too few for 4 clients with 1 or more"),
        (lambda: iid(-1, 4, minimum=0), InputError, "samples=-1"),
        (lambda: iid(3, 0), InputError, "clients=0"),
        (lambda: iid(3, 2, minimum=-1), InputError, "minimum=-1"),
        (lambda: iid(3, 2, seed=-1), InputError, "seed=-1"),
        (lambda: iid(3, 1.5), DTypeError, "clients: expected a whole number"),  # type: ignore[arg-type]  # refused
        (lambda: dirichlet(LABELS, 20, 0), InputError, "alpha=0: expected from 1e-09"),
        (lambda: dirichlet(LABELS, 20, float("nan")), InputError, "alpha nan is not finite"),
        (lambda: dirichlet(LABELS, 20, 1e10), InputError, "to 1000000000"),
        (lambda: dirichlet(LABELS[:, None], 20, 1), ShapeError, r"labels.*\[2000, 1\]"),
        (lambda: dirichlet(LABELS, 20, 1, minimum=101), InputError, "2000 samples are too few"),
        (lambda: by_user([1, 1, 1, 2], 3), InputError, "2 users cannot be dealt out to 3 clients"),
    ],
)
def test_what_cannot_be_is_refused(call: object, error: type[Exception], told: str) -> None:
    assert callable(call)
    with pytest.raises(error, match=told):
        call()
