"""Trainings by ranks that are threads: models, steps on parts of a batch, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine import Trainer
from engine.errors import GroupError
from engine.training.membership import Membership
from tests.support.thread_group import ThreadGroup, run
from tests.support.tiny import NORMED, X, make_trainer

# Convolutions with a bias or without, batch norms with channels that are few and many, a residual.
CNN = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3,12,12] x, float[24,3,3,3] a.weight, float[24] an.scale, float[24] an.bias,
   float[24] an.mean, float[24] an.var, float[24,1,3,3] b.weight, float[24] bn.scale,
   float[24] bn.bias, float[24] bn.mean, float[24] bn.var, float[24,24,1,1] c.weight,
   float[24] c.bias, float[24] cn.scale, float[24] cn.bias, float[24] cn.mean, float[24] cn.var,
   float[3,24] d.weight, float[3] d.bias) => (float[N,3] scores) {
    a = Conv<pads = [1, 1, 1, 1]>(x, a.weight)
    an = BatchNormalization(a, an.scale, an.bias, an.mean, an.var)
    ar = Relu(an)
    b = Conv<pads = [1, 1, 1, 1], group = 24>(ar, b.weight)
    bn = BatchNormalization(b, bn.scale, bn.bias, bn.mean, bn.var)
    br = Relu(bn)
    c = Conv(br, c.weight, c.bias)
    cn = BatchNormalization(c, cn.scale, cn.bias, cn.mean, cn.var)
    sum = Add(cn, ar)
    p = GlobalAveragePool(sum)
    f = Flatten(p)
    scores = Gemm<transB = 1>(f, d.weight, d.bias)
}"""
IMAGES = np.random.default_rng(2).standard_normal((20, 3, 12, 12)).astype(np.float32) + 3.0


def name_norms(text: str) -> str:
    """Return the text with names that `tiny` fills with positive numbers for variances."""
    return text.replace("an.", "anorm.").replace("bn.", "bnorm.").replace("cn.", "cnorm.")


MODELS: dict[str, tuple[str, Any]] = {"dense": (NORMED, X), "cnn": (name_norms(CNN), IMAGES)}


def run_step(trainer: Trainer, cut: tuple[int, int], x: Any, labels: Any) -> float:
    """A step on samples cut[0] to cut[1] of a batch; without any it is one that does not count."""
    ranks, (begin, end) = trainer.learner.session.training.ranks, cut
    assert ranks is not None
    ranks.share = ranks.samples = (end - begin) / len(x)
    chosen = slice(begin, end) if end > begin else slice(0, 1)
    return trainer.step(x[chosen], labels[chosen])


def join_trainer(text: str, group: ThreadGroup, statistics: bool = True, **options: Any) -> Trainer:
    """A trainer of one rank."""
    trainer = make_trainer(text, **options)
    trainer.learner.session.training.ranks = Membership(group, statistics=statistics)
    return trainer


def collect_results(found: list[Any]) -> list[Any]:
    """Return the results of ranks; raise the first error that is not due to another rank's end."""
    errors = [each for each in found if isinstance(each, BaseException)]
    for error in sorted(errors, key=lambda each: isinstance(each, GroupError)):
        raise error
    return found


def run_ranks(
    cuts: Sequence[int], work: Callable[[ThreadGroup, tuple[int, int]], Any]
) -> list[Any]:
    """Return the results of the ranks, given their parts of the samples."""
    return collect_results(
        run(len(cuts) - 1, lambda group: work(group, (cuts[group.rank], cuts[group.rank + 1])))
    )
