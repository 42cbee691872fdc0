"""Artifacts of a forward model, and a count of the values that they train."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from engine.graphs.offline import ties
from engine.graphs.offline.sparse import choose_and_split
from engine.trainer.forward import Forward
from engine.trainer.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Written:
    """Names of the parameters that artifacts train and keep, and the number of their values."""

    trained: Sequence[str]
    frozen: Sequence[str]
    trained_values: int
    frozen_values: int


def write_artifacts(
    forward: Forward, folder: str | os.PathLike[str], recipe: Recipe, train: Sequence[str]
) -> Written:
    """Write the artifacts of a forward model.

    train: patterns of parameters, see `matching`.

    Raises:
        EngineError: as `generate_artifacts`.
    """
    trained, frozen = recipe.write(forward, train, folder)
    graph, options = forward.graph, recipe.options
    if options.ties is not None:
        graph = graph.copy()
        trained, frozen = ties.tie(graph, options.ties, trained, frozen)
    if options.update is not None:
        graph = graph.copy()
        trained, frozen, _ = choose_and_split(graph, options.update, trained, frozen)
    values = [sum(graph.initializers[n].size for n in names) for names in (trained, frozen)]
    return Written(trained, frozen, *values)
