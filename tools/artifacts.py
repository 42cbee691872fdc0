"""Artifacts of a forward model whose parameters are chosen by patterns of names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from engine.artifacts import generate_artifacts, save_forward
from engine.errors import ModelWarning, caller_level
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline import ties
from engine.graphs.offline.parameters import matching, parameters
from engine.graphs.offline.precision import HALVES, as_singles, has_half_weights
from engine.graphs.offline.sparse import choose_and_split
from engine.loss_types import Loss
from engine.optim_types import OptimizerSpec
from engine.runtime import files
from engine.runtime.mapping import LARGE
from engine.sparse import SparseUpdate


@dataclass(frozen=True, slots=True)
class Written:
    """The names of the parameters that artifacts train and keep, and how many values they have."""

    trained: Sequence[str]
    frozen: Sequence[str]
    trained_values: int
    frozen_values: int


def write_artifacts(
    source: str | os.PathLike[str] | bytes,
    graph: Graph,
    folder: str | os.PathLike[str],
    *,
    train: Sequence[str],
    loss: Loss | None,
    optimizer: OptimizerSpec | None,
    loss_inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    frozen_batch_norm: bool | Sequence[str] | None = None,
    update: SparseUpdate | None = None,
    whole: Sequence[str] = (),
    proximal: bool = False,
    tie: Sequence[Sequence[str]] | str | None = None,
) -> Written:
    """Write the artifacts of a forward model.

    source, graph: the model's file or bytes, and what was read from it.
    train: patterns of parameters, see `matching`.
    outputs: further outputs of the training and the eval model.
    update: what is trained of the parameters that `train` names.
    whole: names of parameters that are trained beside adapters.
    proximal: whether trained parameters are also pulled to anchors, see `engine.proximal`.
    tie: what is trained as one, see `generate_artifacts`.

    Raises:
        EngineError: as `generate_artifacts`.
    """
    if has_half_weights(graph):
        warnings.warn(HALVES, ModelWarning, stacklevel=caller_level())
        graph = as_singles(graph.copy())
        if onnx_io.nbytes(graph) >= LARGE:
            files.make_folder(os.fspath(folder))
            source = save_forward(graph, os.fspath(folder))
        else:
            source = onnx_io.to_bytes(graph)
    trained = matching(graph, train)
    trained += [name for name in whole if name not in trained]
    chosen = set(trained)
    frozen = [name for name in parameters(graph) if name not in chosen]
    generate_artifacts(
        source,
        requires_grad=trained,
        frozen_params=frozen,
        loss=loss,
        optimizer=optimizer,
        artifact_directory=folder,
        additional_output_names=list(outputs) or None,
        loss_input_names=list(loss_inputs) or None,
        frozen_batch_norm=frozen_batch_norm,
        update=update,
        proximal=proximal,
        tie=tie,
    )
    if tie is not None:
        graph = graph.copy()
        trained, frozen = ties.tie(graph, tie, trained, frozen)
    if update is not None:
        graph = graph.copy()
        trained, frozen, _ = choose_and_split(graph, update, trained, frozen)
    values = [sum(graph.initializers[n].size for n in names) for names in (trained, frozen)]
    return Written(trained, frozen, *values)
