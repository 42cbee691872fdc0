"""Plans of a path, an ONNX model or a folder of artifacts; and checks of plan files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from engine.base.errors import (
    BudgetError,
    InputError,
    NameNotFoundError,
    PlanError,
    suggest_nearest,
)
from engine.checking import Subject, advise
from engine.checking.subject import Opened
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.analysis.bounds import check, find_machine
from engine.kernels.machine.target import Target
from engine.plan.plan import Plan
from engine.plan.plan_file import MAGIC, PlanReader, Tables
from engine.plan.verify import verify
from engine.system import files
from engine.system.paths import Paths
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.plans import (
    bind_shapes,
    count_samples,
    find_batch_shapes,
    list_artifacts,
    make_plans,
)
from engine.tools.trimmed.progress import StagePrinter
from engine.training import plan_cache
from engine.training.large_constants import freeze_constants
from engine.training.membership import Membership
from engine.training.memory import Memory
from engine.training.model import Model, open_optimizer
from engine.training.planning import NotJoinableError
from engine.training.state import CheckpointState


def open_models(
    files: Mapping[str, Path], target: Target, asked: PlanRequest, ranks: int | None = None
) -> Opened | None:
    """Return the models of a training step of artifacts, ready to be planned; None without an
    optimizer.

    ranks: the number of ranks that share the step, each with one of the batches; None: the step has
        one process.

    Raises:
        EngineError: a model cannot be read.
    """
    if "optimizer" not in files:
        return None
    train = _open_training(files, target, asked)
    update = open_optimizer(files["optimizer"], train.state, train.memory, asked.threads, target)
    freeze_constants([train], train.memory)
    train.ranks = None if ranks is None else Membership(ranks)
    return Opened(train, update)


def _open_training(files: Mapping[str, Path], target: Target, asked: PlanRequest) -> Model:
    state = CheckpointState.load_checkpoint(files["checkpoint"])
    memory = Memory(planning=asked.planning)
    return Model(files["train"], state, memory, asked.threads, "training model", target)


def plan_models(
    path: Path,
    target: Target,
    asked: PlanRequest,
    progress: StagePrinter,
    models: Opened | None = None,
    ranks: int | None = None,
) -> dict[str, Plan]:
    """Return the plans of a model, or of all models in a folder of artifacts, by titles.

    Plans of artifacts begin with the steps of training, one plan each.  With a budget or ranks
    there are no others.

    models: the models of a step of artifacts, from `open_models`; None opens them.
    ranks: as in `open_models`.

    Raises:
        InputError: ranks are given for a path other than artifacts with an optimizer model.
        BudgetError: no plan keeps to the budget.
        EngineError: a model cannot be read or planned.
    """
    if ranks is not None and "optimizer" not in (list_artifacts(path) if path.is_dir() else ()):
        raise InputError(f"{path}: ranks share a training step, which takes a folder of artifacts")
    if path.is_dir():
        return _of_artifacts(path, target, asked, progress, models, ranks)
    return _of_model(path, target, asked)


def add_titles(plan: Plan, paths: Paths) -> Plan:
    """Return a plan for reading: its steps name the submodule of their node, where it is known."""
    return replace(
        plan, steps=tuple(replace(s, source=paths.label_node(s.source)) for s in plan.steps)
    )


def find_paths(path: Path) -> Paths:
    """Return where the nodes of a model, or of the training model of artifacts, are in a module."""
    model = list_artifacts(path)["train"] if path.is_dir() else path
    return Paths.of(onnx_io.load(model).metadata)


def _of_model(path: Path, target: Target, asked: PlanRequest) -> dict[str, Plan]:
    graph = onnx_io.load(path)
    given = dict(asked.shapes)
    declared = {name: t.shape for name, t in graph.inputs.items()}
    for name in given:
        if name not in declared:
            raise NameNotFoundError(f"{path}: no input {name!r}{suggest_nearest(name, declared)}")
    by_title = {}
    is_open = any(isinstance(d, str) for shape in declared.values() for d in shape[:1])
    unsaid = count_samples(declared, given) if is_open else None
    for batch in asked.batches or (unsaid,):
        shapes = bind_shapes(declared, batch, given, f"model {path.name}", graph)
        title = path.name if batch is None else f"{path.name}, batch {batch}"
        by_title[title] = make_plan(
            graph, shapes, target=target, threads=asked.threads, options=asked.planning
        )
    return by_title


def _of_artifacts(
    folder: Path,
    target: Target,
    asked: PlanRequest,
    progress: StagePrinter,
    models: Opened | None,
    ranks: int | None,
) -> dict[str, Plan]:
    files = list_artifacts(folder)
    models = models or open_models(files, target, asked, ranks)
    train = models.train if models else _open_training(files, target, asked)
    asked = replace(asked, batches=asked.batches or [_count_samples(train, asked)])
    steps = {
        f"step, batch {batch}": plan
        for batch, plan in plan_training_steps(files, target, asked, progress, models).items()
    }
    if asked.planning.budget is not None or ranks is not None:
        return steps
    planned = make_plans(files, target, asked, progress)
    by_title = steps | {
        f"{phase}, batch {batch}": plan
        for batch, by_phase in planned.batches.items()
        for phase, plan in by_phase.items()
    }
    if "optimizer" in planned.plans:
        by_title["optimizer"] = planned.plans["optimizer"]
    return by_title


def _count_samples(train: Model, asked: PlanRequest) -> int:
    """Return the samples of a step where no batch size is asked for."""
    declared = {name: train.interface.inputs[name].shape for name in train.inputs}
    return count_samples(declared, asked.shapes)


def plan_training_steps(
    files: Mapping[str, Path],
    target: Target,
    asked: PlanRequest,
    progress: StagePrinter,
    models: Opened | None = None,
) -> dict[int, Plan]:
    """Return the plans of training steps, forward, backward and update, by batch sizes.

    There are none without an optimizer model, or, without a budget, with one that cannot be joined.

    models: as for `plan_models`.

    Raises:
        BudgetError: no plan keeps to the budget; the message says what would help.
        NotJoinableError: there is a budget, and the optimizer model cannot be joined.
    """
    models = models or open_models(files, target, asked)
    if models is None:
        return {}
    train = models.train
    by_batch = {}
    for batch in asked.batches:
        bound = find_batch_shapes(train, batch, asked.shapes, len(asked.batches) > 1)
        progress.say(f"planning a training step, batch {batch}")
        try:
            by_batch[batch] = models.plan_step(bound, asked.planning.budget)
        except NotJoinableError:
            if asked.planning.budget is None and train.ranks is None:
                return {}
            raise
        except BudgetError as error:
            subject = Subject.of(
                files["train"], files["optimizer"], train.state.slots, asked.threads,
                planning=asked.planning,
            )  # fmt: skip
            raise error.add_advice(advise(subject, bound)) from None
    return by_batch


def is_plan_file(path: Path) -> bool:
    """Return whether a path is a file of plans, of a library or of `edgegrad prepare`."""
    if path.is_dir():
        return False
    start = files.read(os.fspath(path), "plan file")[:8]
    return start.startswith((MAGIC, plan_cache.MAGIC[:6]))


def check_file(path: Path) -> list[str]:
    """Check a plan file; the lines say what it holds.

    Raises:
        PlanError: it is damaged, of another version, or a plan in it breaks a rule.
    """
    data = files.read(os.fspath(path), "plan file")
    if not data.startswith(MAGIC):
        return _check_prepared(path)
    try:
        tables = Tables(data)
        if not tables.stripped:
            return _describe_checked(tables)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None
    (target,) = tables.read_texts("head", "target")
    (threads,) = tables.read_column("head", "thread_count")
    return [
        f"plans for a library  {target}  threads {threads}  plans {tables.rows['plan']}  "
        f"steps {tables.rows['step']}  kernels {tables.rows['kernel']}"
    ]


def _describe_checked(tables: Tables) -> list[str]:
    """Return descriptions of the plans of a whole file, after checking all of them.

    Raises:
        PlanError: one does.
    """
    plans = PlanReader(tables).read_plans()
    return [check(verify(p), find_machine(p.target)).summary() for p in plans]


def _check_prepared(path: Path) -> list[str]:
    prepared = plan_cache.Prepared(os.fspath(path))
    made = prepared.made
    damaged = [name for name in prepared.list_names() if prepared.get(name) is None]
    if made is None or damaged:
        raise PlanError(f"{path}: damaged; run `{plan_cache.make_command(os.fspath(path.parent))}`")
    if made.sources != plan_cache.digest_sources():
        raise PlanError(
            f"{path}: made by another version of edgegrad ({made.version}); run "
            f"`{plan_cache.make_command(os.fspath(path.parent))}`"
        )
    for name in prepared.list_names():
        record = prepared.get(name) or b""
        if record.startswith(MAGIC):
            try:
                _describe_checked(Tables(record))
            except PlanError as error:
                raise PlanError(f"{path}: {error}") from None
    models = ", ".join(dict.fromkeys(made.models.values()))
    return [
        f"prepared for kernel set {name}  {target}  threads {threads}  {models}"
        for name, target, threads in made.settings
    ]
