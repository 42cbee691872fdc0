"""Unfreezing: parameters that are trained from some epoch on, by patterns of their names.

Running statistics of batch normalisations, and ranges of rounded values, may likewise stay as they
are from some epoch on.

A change of what is trained is a change of the models: artifacts are made again, of the forward
model with the values of now, so that nothing is computed for gradients that nobody takes.  Values,
what the optimizer keeps of parameters that were trained before, its count of steps, the learning
rate and the count of random draws go from the old artifacts to the new ones.  A parameter that
begins later counts its own steps, as corrections of its moments need.

Checkpoints are of the artifacts that the trainer was made with, whatever is trained when they are
written, so that everybody who has these can load them.  Parameters that have not been trained yet
have no moments there.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import InputError, ModelWarning, NameNotFoundError, StateError
from engine.checkpoint import storage
from engine.system.paths import KEY, Paths
from engine.trainer.artifact_folder import provide_folder, remove_with
from engine.training.artifact_set import CHECKPOINT, FORWARD, PROPERTY
from engine.training.statistics import list_statistics

if TYPE_CHECKING:
    from engine.graphs.offline.optim_types import OptimizerSpec, OptimType
    from engine.onnxblock import Block
    from engine.trainer.batch_trainer import BatchTrainer


class Unfreezing:
    """The parameters that are trained in each epoch, and whether statistics move.

    Args:
        trainer: made of a forward model or of a run, so that its artifacts can be
            made again; what it trains is what can be unfrozen.
        given: patterns of names, with `*` and `?`, and the epoch from which the parameters that
            they match are trained.  The first pattern that matches a name counts; parameters that
            none matches are not trained.
        loss: the loss of the artifacts during the run; None for the trainer's own.
        statistics: the epoch from which running statistics and ranges stay, or None.
        what: the argument that asks for it, in messages.

    Raises:
        StateError: the trainer was made of artifacts, or of a run with a loss or an optimizer that
            is not of this package; or it was made with a sparse update; or its normalisations
            share initial statistics, which the file holds once.
        NameNotFoundError: a pattern matches nothing that the trainer trains.
        InputError: nothing is trained in epoch 0; or an epoch is negative; or no statistics move.
    """

    def __init__(
        self,
        trainer: BatchTrainer,
        given: Mapping[str, int],
        loss: Any = None,
        statistics: int | None = None,
        what: str = "unfreeze=",
    ) -> None:
        if not isinstance(given, Mapping):
            raise InputError(
                f"unfreeze={given!r}; expected patterns of names and epochs, as a dict"
            )
        if trainer.recipe is None or trainer.forward is None:
            raise StateError(
                f"{what} makes artifacts again, and this trainer has no forward model, or not the "
                "loss and the optimizer that they were made with: make it by Trainer.from_onnx"
            )
        if trainer.recipe.options.update is not None:
            raise StateError(
                f"{what} makes artifacts again, and would lose the choice of the sparse update "
                "that this trainer was made with: give only one of the two"
            )
        if trainer.recipe.options.proximal:
            raise StateError(
                f"{what} makes artifacts again, and this trainer has a proximal term, whose "
                "anchors would be lost: give only one of the two"
            )
        self.trainer, self.loss, self.statistics = trainer, loss, statistics
        self._now = (False, False)  # whether artifacts have the run's loss, and fixed statistics
        self.constants: dict[str, Array] = {}  # values of what artifacts hold as constants for now
        made = trainer.state.content(include_optimizer_state=False)
        self._made_trained, self._made_frozen = list(made.trainable), list(made.frozen)
        self._made_by = str(trainer.state.trained_by)
        self.plan = {str(pattern): arguments.count(pattern, e) for pattern, e in given.items()}
        self.epochs: dict[str, int] = {}  # from which a parameter is trained
        known = trainer.state.trainable_names()
        self._paths = paths = Paths.of(trainer.learner.session.training.interface.notes, KEY)
        for pattern, epoch in self.plan.items():
            if epoch < 0:
                raise InputError(f"unfreeze: {pattern!r} from epoch {epoch}; expected 0 or more")
            matched = [name for name in known if paths.matches(name, pattern)]
            if not matched:
                raise NameNotFoundError(
                    f"unfreeze: {pattern!r} matches none of the {len(known)} parameters that are "
                    f"trained{paths.suggest_nearest(pattern, known)}"
                )
            for name in matched:
                self.epochs.setdefault(name, epoch)
        if 0 not in self.epochs.values():
            raise InputError(f"unfreeze={self.plan}: nothing is trained in epoch 0")
        if statistics is not None:
            self._check_statistics()

    def _check_statistics(self) -> None:
        """Check that statistics move, and that the forward model has an initializer for each.

        Raises:
            InputError, StateError: it is not so.
        """
        from engine.graphs.io import onnx_io

        model = self.trainer.learner.session.training
        moving = list_statistics(model.graph, self._made_frozen)
        if not moving:
            raise InputError(
                f"freeze_statistics={self.statistics}: the training moves no running statistics "
                "and no ranges; expected a model with batch normalisation, or qat="
            )
        assert self.trainer.forward is not None
        known = onnx_io.load(self.trainer.forward).initializers
        shared = [name for name in moving if name not in known]
        if shared:
            raise StateError(
                f"freeze_statistics={self.statistics}: the model's file holds the initial value "
                f"of {shared[0]!r} for several normalisations; export it with one for each"
            )

    def enter(self, epoch: int) -> None:
        """Let the trainer train what is to be trained in an epoch.

        Raises:
            EngineError: as `generate_artifacts`.
        """
        wanted = [name for name, first in self.epochs.items() if first <= epoch]
        is_fixed = self.statistics is not None and epoch >= self.statistics
        self._train(wanted, (self.loss is not None, is_fixed))

    def leave(self) -> None:
        """Let the trainer train what it was made to train.

        Raises:
            EngineError: as `generate_artifacts`.
        """
        self._train(self._made_trained, (False, False))

    def write_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, as `Trainer.save` of the trainer as it was made.

        Raises:
            FileError: it cannot be written; the old one is as it was.
        """
        now = self.trainer.state.content(include_optimizer_state=True)
        known = {**self.constants, **now.trainable, **now.frozen}
        content = replace(
            now,
            trainable={name: known[name] for name in self._made_trained},
            frozen={name: known[name] for name in self._made_frozen},
            properties={**now.properties, PROPERTY: self._made_by},
        )
        storage.write(content, path)

    def _train(self, wanted: list[str], form: tuple[bool, bool]) -> None:
        """Let the trainer train these parameters, if it does not already.

        form: whether with the run's loss, instead of its own, and with fixed statistics.
        """
        is_same = set(wanted) == set(self.trainer.state.trainable_names())
        if is_same and form == self._now:
            return
        with provide_folder(None) as folder:
            self._make(wanted, folder, *form)
            self.trainer.take_over(folder)
        self._now = form
        remove_with(self.trainer.module, folder)

    def _make(self, wanted: list[str], folder: str, has_loss: bool, is_fixed: bool) -> None:
        """Write artifacts that train these parameters, and the state of now as their checkpoint."""
        from engine.graphs.io import onnx_io
        from engine.graphs.offline.parameters import list_parameters

        trainer, recipe = self.trainer, self.trainer.recipe
        assert recipe is not None
        assert trainer.forward is not None
        graph = onnx_io.load(trainer.forward)
        self.constants |= {name: p.data.copy() for name, p in trainer.state.parameters}
        for name in self.constants.keys() & graph.initializers.keys():
            graph.initializers[name] = self.constants[name]
        frozen = [name for name in list_parameters(graph) if name not in wanted]
        forward = os.path.join(folder, FORWARD)
        onnx_io.save(graph, forward)
        with warnings.catch_warnings():  # of the model, which was warned about when it was read
            warnings.simplefilter("ignore", ModelWarning)
            optimizer = _restrict(recipe.optimizer, wanted, self._paths)
            loss = self.loss if has_loss else recipe.loss
            options = recipe.options
            if is_fixed:
                options = replace(options, frozen_batch_norm=True)
            made_by = replace(recipe, optimizer=optimizer, loss=loss, options=options)
            made_by.make(forward, wanted, frozen, folder)
        path = os.path.join(folder, CHECKPOINT)
        made = storage.read(path)
        now = trainer.state.content(include_optimizer_state=True)
        groups = [
            replace(g, states={n: s for n, s in g.states.items() if n in made.trainable})
            for g in now.optimizer_groups
        ]
        properties = {**now.properties, PROPERTY: made.properties[PROPERTY]}
        storage.write(replace(made, optimizer_groups=groups, properties=properties), path)
        for name in (*made.trainable, *made.frozen):
            del self.constants[name]


def _restrict(
    optimizer: OptimType | OptimizerSpec | Block | str | None, names: list[str], paths: Paths
) -> OptimType | OptimizerSpec | Block | str | None:
    """Return an optimizer whose groups hold only parameters of these names.

    A group that has none is left out, since an optimizer refuses it.
    """
    from engine.graphs.offline.optim_types import Method

    if not isinstance(optimizer, Method) or not optimizer.groups:
        return optimizer
    left, groups = list(names), []
    for group in optimizer.groups:
        mine = [n for n in left if any(paths.matches(n, pattern) for pattern in group.match)]
        left = [n for n in left if n not in mine]
        if mine:
            groups.append(replace(group, match=mine))
    options: dict[str, Any] = {"groups": groups}  # of the subclass, a dataclass
    return replace(optimizer, **options)
