"""Workload: a model to train, a batch for it, and their artifacts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine import artifacts
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.parameters import list_parameters
from engine.models.layers import CLASSES
from engine.tools.benchmark.child import BATCH
from engine.training.artifact_set import FORWARD


@dataclass(frozen=True)
class Workload:
    """Model to train by cross-entropy and AdamW.

    x: the shape of a batch.
    build: makes the forward graph, of the input x and one output, the scores of the classes.
    words: x holds numbers of words below this; 0 if x is float32.
    classes: labels are below this.
    labels: how many labels a sample has; a batch has them in one row.
    trained: beginnings of the names of the parameters that train; the others are frozen, and so
        are batch normalisations.  Empty: all parameters train.
    title: its name in documents; empty if none has it.
    """

    name: str
    x: tuple[int, ...]
    build: Callable[[], Graph]
    words: int = 0
    classes: int = CLASSES
    labels: int = 1
    trained: tuple[str, ...] = ()
    title: str = ""

    def batch(self, size: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return a fixed random batch of `size` samples; 0 is the size that `x` says.

        Returns x, and the labels as i64[size * labels].
        """
        rng = np.random.default_rng(0)
        shape = (size or self.x[0], *self.x[1:])
        x = (
            rng.integers(0, self.words, shape)
            if self.words
            else rng.standard_normal(shape).astype(np.float32)
        )
        return x, rng.integers(0, self.classes, shape[0] * self.labels).astype(np.int64)

    def write(self, folder: Path, size: int = 0) -> Path:
        """Write the artifacts, and batch.npz with the batch of `size` samples.

        Returns the folder, which is made if it is missing.
        """
        folder.mkdir(parents=True, exist_ok=True)
        x, y = self.batch(size)
        np.savez(folder / BATCH, x=x, y=y)
        return write_artifacts(self.build(), folder, self.trained)


def select_parameters(graph: Graph, trained: tuple[str, ...]) -> list[str]:
    """Return the parameters of a graph whose names begin with one of some texts; empty for all."""
    return [name for name in list_parameters(graph) if name.startswith(trained or "")]


def write_artifacts(graph: Graph, folder: Path, trained: tuple[str, ...] = ()) -> Path:
    """Write artifacts (cross-entropy, AdamW) of a forward graph and return the folder.

    trained: beginnings of the names of the parameters that train; empty for all.
    """
    path = folder / FORWARD
    onnx_io.save(graph, path)
    artifacts.generate_artifacts(
        str(path),
        requires_grad=select_parameters(graph, trained),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        frozen_batch_norm=bool(trained),
    )
    return folder
