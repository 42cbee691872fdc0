"""Partitions of a data set's samples among the clients of a simulated federation.

    parts = dirichlet(labels, clients=20, alpha=0.3)
    mine = images[parts[7]], labels[parts[7]]

Every function returns a list with one array of indices (int64, ascending) for each client.  Each
sample is in exactly one of them.  The result is a function of the arguments alone: equal labels,
numbers and seeds give equal parts, in every process and on every machine with that NumPy.

By default each client holds at least one sample, and too few samples are refused; with `minimum=0`
clients may stay empty.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.errors import InputError, ShapeError
from engine.base.signatures import AT_LEAST_0, AT_LEAST_1, Range, check_arguments
from engine.data.randomness import PARTITION, check_seed, generator

Indices: TypeAlias = npt.NDArray[np.int64]

ALPHAS = Range(1e-9, 10**9)  # beyond these a client has exactly one class, or all of them


@check_arguments(samples=AT_LEAST_0, clients=AT_LEAST_1, minimum=AT_LEAST_0)
def iid(samples: int, clients: int, seed: int = 0, *, minimum: int = 1) -> list[Indices]:
    """Return samples in random order, dealt out to the clients; sizes differ by one at most.

    Args:
        samples: how many there are.
        clients: how many share them.
        seed: the seed of the order.
        minimum: samples that each client holds at least.

    Raises:
        InputError, DTypeError: a number is out of range, or the samples are too few for `minimum`.
    """
    _check(samples, clients, minimum)
    order = generator(check_seed(seed), PARTITION).permutation(samples)
    return _sort_parts(np.array_split(order, clients))


@check_arguments(clients=AT_LEAST_1, alpha=ALPHAS, minimum=AT_LEAST_0)
def dirichlet(
    labels: Any,
    clients: int,
    alpha: float,
    seed: int = 0,
    *,
    equal_sizes: bool = True,
    minimum: int = 1,
) -> list[Indices]:
    """Return parts with skewed labels: each client's mixture of classes is drawn from a Dirichlet.

    With equal sizes, client after client draws the shares of the classes q ~ Dir(alpha p), where p
    are their shares in all data, then its samples by q without replacement (Hsu, Qi and Brown,
    "Measuring the effects of non-identical data distribution for federated visual classification",
    2019).  Classes that are used up leave q; if nothing of q is left, the client takes what is left
    of all classes.  The last clients therefore have mixtures nearer to the rest than to their q.
    The concentration is the sum over all classes: alpha = 1 with ten equal classes is Dir(0.1, ...,
    0.1), which others call alpha = 0.1.

    With `equal_sizes=False`, class after class is cut into shares q ~ Dir(alpha, ..., alpha) for
    the clients (Yurochkin et al., "Bayesian nonparametric federated learning of neural networks",
    2019), so that sizes are skewed, too.  Clients below `minimum` then get samples of those that
    hold the most, one by one.

    Args:
        labels: the class of each sample, one axis of numbers or texts.
        clients: how many share the samples.
        alpha: the concentration, from 1e-9 to 1e9: near 0 a client has one class, far above 1 all
            clients are alike.
        seed: the seed of the shares, and of the choice of a client's samples from a class.
        equal_sizes: whether sizes differ by one at most.
        minimum: samples that each client holds at least.

    Raises:
        InputError, DTypeError: a number is out of range, or the samples are too few for `minimum`.
        ShapeError: labels have more or fewer axes than one.
    """
    classes, classes_of = _find_groups("labels", labels)
    _check(len(classes_of), clients, minimum)
    draw = generator(check_seed(seed), PARTITION)
    pools = [draw.permutation(np.flatnonzero(classes_of == k)) for k in range(classes)]
    if equal_sizes:
        return _sort_parts(_draw_by_client(pools, clients, alpha, draw))
    return _sort_parts(_fill(_draw_by_class(pools, clients, alpha, draw), minimum))


@check_arguments(clients=AT_LEAST_1, minimum=AT_LEAST_0)
def by_user(
    users: Any, clients: int | None = None, seed: int = 0, *, minimum: int = 1
) -> list[Indices]:
    """Return parts of whole users: one client has all samples of a user, speaker, writer or device.

    Without `clients` there is a client for each user, in the order of their names.  Fewer clients
    share the users: in random order, each user goes to the client that holds the fewest samples.

    Args:
        users: the user of each sample, one axis of numbers or texts.
        clients: how many share the users; None for one per user.
        seed: the seed of the order of the users.
        minimum: samples that each client holds at least.

    Raises:
        InputError, DTypeError: a number is out of range, or there are not enough users that each
            client could hold `minimum` samples.
        ShapeError: users have more or fewer axes than one.
    """
    count, owners = _find_groups("users", users)
    draw = generator(check_seed(seed), PARTITION)
    order = np.arange(count) if clients is None else draw.permutation(count)
    clients = count if clients is None else clients
    if count:
        _check(len(owners), clients, minimum)
    held: list[list[Indices]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, np.int64)
    samples = [np.flatnonzero(owners == user) for user in range(count)]
    for user in order:
        least = int(sizes.argmin())
        held[least].append(samples[user])
        sizes[least] += len(samples[user])
    if len(sizes) and sizes.min() < minimum:
        raise InputError(
            f"users: {count} users cannot be dealt out to {clients} clients so that each holds "
            f"{minimum} samples; with minimum=0 clients may stay empty"
        )
    return _sort_parts([np.concatenate(own) if own else _NOTHING for own in held])


_NOTHING = np.zeros(0, np.int64)


def _check(samples: int, clients: int, minimum: int) -> None:
    """Refuse too few samples for that many clients with a minimum each."""
    if samples < clients * minimum:
        raise InputError(
            f"{samples} samples are too few for {clients} clients with {minimum} or more each; "
            "with minimum=0 clients may stay empty"
        )


def _find_groups(what: str, values: Any) -> tuple[int, npt.NDArray[np.intp]]:
    """Return the number of distinct values, and the index of each element's value."""
    array = arguments.make_array(what, values)
    if array.ndim != 1:
        raise ShapeError(f"{what}: expected one axis, got shape {list(array.shape)}")
    names, indices = np.unique(array, return_inverse=True)
    return len(names), indices.reshape(-1)


def _draw_by_client(
    pools: list[npt.NDArray[np.intp]], clients: int, alpha: float, draw: np.random.Generator
) -> list[npt.NDArray[np.intp]]:
    """Return parts of equal sizes; pools: the samples of each class in random order."""
    left = np.array([len(pool) for pool in pools])
    total, prior = left.sum(), left / max(1, left.sum())
    parts = []
    for client in range(clients):
        wanted = total // clients + (client < total % clients)
        shares = draw.dirichlet(alpha * prior) if total else prior
        own = []
        while wanted:
            shares = np.where(left > 0, shares, 0)
            if not shares.sum():
                shares = left / left.sum()
            taken = np.minimum(draw.multinomial(wanted, shares / shares.sum()), left)
            own += [pools[k][left[k] - n : left[k]] for k, n in enumerate(taken) if n]
            left, wanted = left - taken, wanted - taken.sum()
        parts.append(np.concatenate(own) if own else _NOTHING)
    return parts


def _draw_by_class(
    pools: list[npt.NDArray[np.intp]], clients: int, alpha: float, draw: np.random.Generator
) -> list[npt.NDArray[np.intp]]:
    """Return parts of drawn sizes; pools: the samples of each class in random order."""
    parts: list[list[npt.NDArray[np.intp]]] = [[] for _ in range(clients)]
    for pool in pools:
        ends = np.rint(draw.dirichlet(np.full(clients, alpha)).cumsum() * len(pool)).astype(int)
        for part, piece in zip(parts, np.split(pool, ends[:-1]), strict=True):
            part.append(piece)
    return [np.concatenate(part) if part else _NOTHING for part in parts]


def _fill(parts: list[npt.NDArray[np.intp]], minimum: int) -> list[npt.NDArray[np.intp]]:
    """Return parts of at least `minimum` samples, by moving samples from the largest ones."""
    sizes = np.array([len(part) for part in parts])
    while sizes.min() < minimum:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        parts[poor] = np.append(parts[poor], parts[rich][-1])
        parts[rich] = parts[rich][:-1]
        sizes[poor], sizes[rich] = sizes[poor] + 1, sizes[rich] - 1
    return parts


def _sort_parts(parts: list[npt.NDArray[np.intp]]) -> list[Indices]:
    return [np.sort(part).astype(np.int64) for part in parts]
