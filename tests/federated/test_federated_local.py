"""A device's part of a round: one trainer serves many clients, and each continues its own state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.errors import CheckpointError, InputError, NonFiniteError, StateError
from engine.federated import parameters
from engine.federated.learner import Kept
from engine.federated.local import Learner
from engine.federated.local_options import LocalOptions, derive_seed
from engine.federated.parameters import Arrays
from tests.support import tiny

DATA = tiny.X, tiny.LABELS
OTHER = tiny.X[:5] * 2, tiny.LABELS[:5]
OPTIONS = LocalOptions(batch_size=8, seed=3, keep_optimizer=True)


def sent(learner: Learner) -> Arrays:
    names = parameters.trainable(learner.trainer) + parameters.list_statistics(learner.trainer)
    return parameters.get(learner.trainer, names)


@pytest.mark.parametrize("keep", [True, False])
def test_a_client_goes_on_where_it_was(keep: bool) -> None:
    """With another client in between, as with a trainer of its own: to the last bit."""
    options = replace(OPTIONS, keep_optimizer=keep)
    learner, alone = Learner(tiny.make_trainer(tiny.DROPPING)), tiny.make_trainer(tiny.DROPPING)
    start, kept = sent(learner), Kept()
    alone.module.session.seed = options.seed
    for _ in range(2):
        learner.begin(start, options, kept)
        learned = learner.train(DATA, options)
        kept = learner.kept(options)
        learner.begin(start, options)
        learner.train(OTHER, options)
        if not keep:
            alone = tiny.make_trainer(tiny.DROPPING)
            alone.module.session.seed = options.seed
        parameters.apply(alone, start)
        history = alone.fit(DATA, batch_size=8, seed=3, progress=False)
        assert learned.examples == len(tiny.X)
        assert learned.loss == history["loss"][-1]
        expected = parameters.get(alone, parameters.trainable(alone))
        assert all(np.array_equal(learned.arrays[n], a) for n, a in expected.items())
    assert kept.numbers == ({"step": 6, "draws": alone.state.draws} if keep else {})


def test_what_no_server_sends_stays_on_the_device() -> None:
    """Running statistics and a head of its own, which the next round begins with."""
    learner = Learner(tiny.make_trainer(tiny.NORMED))
    options = replace(OPTIONS, local=("head.*",), keep_optimizer=False)
    start = {n: a for n, a in sent(learner).items() if n.startswith("body") or n == "norm.scale"}
    with pytest.raises(InputError, match=r"lack the parameter 'norm\.bias'"):
        learner.begin(start, options)
    start["norm.bias"] = sent(learner)["norm.bias"]
    learner.begin(start, options)
    learned = learner.train(DATA, options)
    assert set(learned.arrays) == set(start)
    kept = learner.kept(options)
    names = {name.removeprefix("parameter/") for name in kept.arrays}
    assert names == {"head.weight", "head.bias", "norm.mean", "norm.var"}
    after = tiny.read_values(learner.trainer)
    learner.begin(start, options)
    assert tiny.read_values(learner.trainer) != after
    learner.begin(learned.arrays, options, kept)
    assert tiny.read_values(learner.trainer) == after


def test_the_proximal_term_is_that_of_the_round() -> None:
    learner = Learner(tiny.make_trainer(proximal=True))
    start, options = sent(learner), replace(OPTIONS, epochs=4)
    moved = []
    for mu in (0.0, 10.0):
        learner.begin(start, replace(options, proximal_mu=mu))
        learned = learner.train(DATA, options)
        step = parameters.flatten(parameters.subtract(learned.arrays, start))
        moved.append(np.square(step).sum())
        assert not [name for name in learner.kept(options).arrays if "anchor" in name]
    assert moved[1] < moved[0]
    with pytest.raises(StateError, match="proximal"):
        Learner(tiny.make_trainer()).begin(start, replace(options, proximal_mu=0.1))


def test_what_cannot_be_trained_on_is_refused() -> None:
    learner = Learner(tiny.make_trainer())
    with pytest.raises(StateError, match="begin"):
        learner.train(DATA, OPTIONS)
    learner.begin(sent(learner), OPTIONS)
    for data in (None, (tiny.X[:0], tiny.LABELS[:0]), {"x": tiny.X[:0]}):
        with pytest.raises(InputError, match="no data to train on"):
            learner.train(data, OPTIONS)
    with pytest.raises(InputError, match="no data to evaluate on"):
        learner.evaluate((tiny.X[:0], tiny.LABELS[:0]), OPTIONS)
    with pytest.raises(NonFiniteError):
        learner.evaluate((tiny.X * np.float32(np.inf), tiny.LABELS), OPTIONS)
    wrong = Kept({"optimizer/momentum0/head": np.zeros(3, np.float32)}, {"step": 1})
    with pytest.raises(CheckpointError, match="head"):
        learner.begin(sent(learner), OPTIONS, wrong)
    with pytest.raises(InputError, match="epochs=0"):
        LocalOptions(epochs=0)


def test_seeds_of_neighbours_have_nothing_in_common() -> None:
    seeds = {derive_seed(a, b, c) for a in range(8) for b in range(8) for c in (0, 1, 2**63 + 1)}
    assert len(seeds) == 8 * 8 * 3
    assert all(0 <= seed < 2**32 for seed in seeds)
