"""Recipe: what the artifacts of a forward model are made with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.artifacts import generate_artifacts
from engine.loss_types import Loss, LossType
from engine.onnxblock import Block
from engine.optim_types import OptimizerSpec, OptimType
from engine.sparse import SparseUpdate
from engine.trainer import names

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Recipe:
    """Arguments of `generate_artifacts` that stay the same whatever is trained of a model."""

    loss: LossType | Loss | Block | str | None
    optimizer: OptimType | OptimizerSpec | Block | str | None
    loss_inputs: Sequence[str] | None
    frozen_batch_norm: bool | Sequence[str] | None
    update: SparseUpdate | None = None
    proximal: bool = False
    tie: Sequence[Sequence[str]] | str | None = None

    def make(
        self,
        model: onnx.ModelProto | str | os.PathLike[str] | bytes,
        train: Sequence[str],
        frozen: Sequence[str],
        folder: str | os.PathLike[str],
    ) -> None:
        """Write the artifacts of a model; train, frozen: names of its parameters.

        Raises:
            EngineError: as `generate_artifacts`.
        """
        loss, optimizer = self.loss, "adamw" if self.optimizer is None else self.optimizer
        if isinstance(loss, str):
            loss = names.chosen(names.losses(), loss, "loss")()
        if isinstance(optimizer, str):
            optimizer = names.chosen(names.optimizers(), optimizer, "optimizer")()
        generate_artifacts(
            model,
            requires_grad=train,
            frozen_params=frozen,
            loss=loss,
            optimizer=optimizer,
            artifact_directory=folder,
            loss_input_names=self.loss_inputs,
            frozen_batch_norm=self.frozen_batch_norm,
            update=self.update,
            proximal=self.proximal,
            tie=self.tie,
        )
