"""Subject: the models of a training and the shapes of its parameters, without their values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from engine.base.aliases import Shapes
from engine.base.element_types import NUMPY
from engine.base.plan_options import DEFAULTS, PlanOptions
from engine.checkpoint.contents import Checkpoint, NominalTensor
from engine.plan.plan import Plan
from engine.training.memory import Memory
from engine.training.model import Model, open_models, open_optimizer
from engine.training.model_file import BUFFER, UPDATED
from engine.training.plan_cache import Records
from engine.training.planning import GradientUse, NotJoinableError
from engine.training.state import CheckpointState, Slot

Source = str | os.PathLike[str] | bytes


@dataclass(frozen=True)
class Subject:
    """Models of a training run: everything that the memory and time of a step depend on.

    training, optimizer: the models; without an optimizer there is no update.
    evaluation: the eval model, which a process that trains reads too, if it has one.
    parameters: the element types and shapes of all parameters by name, in the order of the file.
    trained: the names of the trained ones.
    planning: options of the plans.
    """

    training: Source
    optimizer: Source | None
    parameters: Mapping[str, tuple[str, tuple[int, ...]]]
    trained: frozenset[str]
    threads: int
    evaluation: Source | None = None
    planning: PlanOptions = DEFAULTS

    @classmethod
    def of(
        cls,
        training: Source,
        optimizer: Source | None,
        slots: Mapping[str, Slot],
        threads: int,
        evaluation: Source | None = None,
        planning: PlanOptions = DEFAULTS,
    ) -> Subject:
        """Return the subject of models whose parameters have these slots."""
        trained = frozenset(name for name, slot in slots.items() if slot.trainable)
        shapes = {name: (slot.dtype, slot.shape) for name, slot in slots.items()}
        return cls(training, optimizer, shapes, trained, threads, evaluation, planning)

    def make_state(self) -> CheckpointState:
        """Return a state with these parameters, which have no values and take no memory."""
        bare = {
            n: NominalTensor(np.dtype(NUMPY[dtype])) for n, (dtype, _) in self.parameters.items()
        }
        made = CheckpointState(
            Checkpoint(
                trainable={n: t for n, t in bare.items() if n in self.trained},
                frozen={n: t for n, t in bare.items() if n not in self.trained},
                nominal=True,
            )
        )
        made.slots = made.layout({n: shape for n, (_, shape) in self.parameters.items()})
        return made

    def open(self) -> Opened:
        """Return the models of this subject, ready to be planned.

        Raises:
            EngineError: see `open_models`.
        """
        state, memory = self.make_state(), Memory(planning=replace(self.planning, budget=None))
        train, _ = open_models(self.training, None, state, memory, self.threads, Records)
        update = None
        if self.optimizer is not None:
            update = open_optimizer(self.optimizer, state, memory, self.threads, records=Records)
        return Opened(train, update)

    def count_values(
        self, *, trained: bool, packed: Mapping[str, int] = MappingProxyType({})
    ) -> tuple[int, int]:
        """Return how many parameters are trained, or are not, and how many values they have.

        packed: the values of parameters that have several in a byte.
        """
        sizes = [
            packed.get(n, math.prod(s))
            for n, (_, s) in self.parameters.items()
            if (n in self.trained) == trained
        ]
        return len(sizes), sum(sizes)


@dataclass(frozen=True)
class Opened:
    """Open models of a subject.

    made: the plans of training steps so far, by their options and shapes.
    """

    train: Model
    update: Model | None
    made: dict[tuple[object, ...], Plan] = field(default_factory=dict)

    def make_plans(self, shapes: Shapes, budget: int | None = None) -> tuple[Plan, ...]:
        """Return the plans of a training step, as in `Trainer.step`.

        There is one, or two if the optimizer model cannot be joined to the training model.

        budget: the most bytes of all regions, or None.

        Raises:
            BudgetError: no plan keeps to the budget.
            EngineError: the step cannot be planned for these shapes.
        """
        if self.update is not None:
            try:
                return (self.plan_step(shapes, budget),)
            except NotJoinableError:
                pass
        self._set_budget(budget)
        alone = self.train.make_plan(shapes)
        if self.update is None:
            return (alone,)
        return alone, self.update.plan_update(self.update.lay_out_states())

    def plan_step(self, shapes: Shapes, budget: int | None = None) -> Plan:
        """Return the one plan of forward, backward and update; made once for the same arguments.

        Plans of the same shapes within other budgets share a ladder.

        Raises:
            BudgetError: no plan keeps to the budget.
            NotJoinableError: the optimizer model cannot be joined to the training model.
            EngineError: the step cannot be planned for these shapes.
        """
        assert self.update is not None
        self._set_budget(budget)
        key = (self.train.memory.planning, *sorted(shapes.items()))
        if key not in self.made:
            update = GradientUse(self.update, self.update.lay_out_states())
            self.made[key] = self.train.make_plan(shapes, update=update)
        return self.made[key]

    def _set_budget(self, budget: int | None) -> None:
        memory = self.train.memory
        memory.planning = replace(memory.planning, budget=budget)

    def count_batch(self, shapes: Shapes) -> int | None:
        """Return the number of samples in shapes; None if the model fixes that number."""
        symbol = self._find_batch_symbol()
        return None if symbol is None else self._find_sizes(shapes)[symbol]

    def resize_shapes(self, shapes: Shapes, batch: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes for another number of samples, which the model does not fix."""
        from engine.graphs.ir.symbols import evaluate

        symbol = self._find_batch_symbol()
        assert symbol is not None
        sizes = {**self._find_sizes(shapes), symbol: batch}
        changed = {}
        for name, known in shapes.items():
            declared = self.train.interface.inputs[name].shape
            dims = [evaluate(d, sizes) if isinstance(d, str) else d for d in declared]
            changed[name] = tuple(
                d if isinstance(d, int) else before for d, before in zip(dims, known, strict=True)
            )
        return changed

    def _find_batch_symbol(self) -> str | None:
        """Return the symbol of the first dimension of the first input that has one."""
        shapes = (self.train.interface.inputs[name].shape for name in self.train.inputs)
        return next((s[0] for s in shapes if s and isinstance(s[0], str)), None)

    def _find_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return the sizes of all symbols, the earlier inputs first."""
        sizes: dict[str, int] = {}
        for name, known in shapes.items():
            for d, size in zip(self.train.interface.inputs[name].shape, known, strict=True):
                if isinstance(d, str):
                    sizes.setdefault(d, size)
        return sizes


def train_only(subject: Subject, names: Collection[str]) -> Subject:
    """Return the same training with only these of its trained parameters.

    Gradients of the others, and values that only they need, are not computed; batch normalisations
    are not changed.
    """
    from engine.graphs.io import onnx_io

    graph = onnx_io.load(subject.training)
    dropped = {f"{name}{BUFFER}" for name in subject.trained.difference(names)}
    graph.nodes = [n for n in graph.nodes if dropped.isdisjoint(n.inputs)]
    gone = {f"{name.removesuffix(BUFFER)}{UPDATED}" for name in dropped}
    graph.outputs = [name for name in graph.outputs if name not in gone]
    graph.inputs = {name: t for name, t in graph.inputs.items() if name not in dropped}
    return replace(
        subject, training=onnx_io.to_bytes(graph), trained=subject.trained.intersection(names)
    )


def list_layers(subject: Subject) -> list[list[str]]:
    """Return the trained parameters of each layer, in the order in which the forward pass reads
    them.

    A layer begins with a parameter of two dimensions or more.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.passes.simplify import find_ancestors

    graph = onnx_io.load(subject.training)
    graph.outputs = graph.outputs[:1]  # the loss
    forward = find_ancestors(graph)
    names: list[list[str]] = []
    seen = set[str]()
    for node in graph.nodes:
        new = [n for n in node.list_reads() if n in subject.trained and n not in seen]
        if node not in forward or not new:
            continue
        seen.update(new)
        if not names or any(len(subject.parameters[n][1]) > 1 for n in new):
            names.append([])
        names[-1] += new
    return names


def with_optimizer(subject: Subject, build: Callable[[int, Mapping[str, str]], object]) -> Subject:
    """Return the same training with another optimizer.

    build: makes its graph, like `OptimizerSpec.build`.
    """
    from engine.graphs.io import onnx_io
    from engine.graphs.ir.graph import Graph

    graph = onnx_io.load(subject.training)
    kinds = {name: subject.parameters[name][0] for name in sorted(subject.trained)}
    made = build(graph.opsets[""], kinds)
    assert isinstance(made, Graph)
    return replace(subject, optimizer=onnx_io.to_bytes(made))
