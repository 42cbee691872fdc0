"""Preparation: writing plans beside artifacts, so that no process that trains them has to plan.

The file prepared.plans is for trainers, modules and optimizers that are made from the paths of
these artifacts.  It belongs to this version of edgegrad and to the content of the artifacts.  Plans
with `--target` use the kernels that wheels ship for that device and no others, so that they run
where numba, llvmlite and onnx are not installed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import engine
from engine.base.aliases import Shapes
from engine.base.errors import BudgetError, EngineError, InputError
from engine.base.plan_options import DEFAULTS, PlanOptions
from engine.kernels.binaries import source
from engine.kernels.binaries.source import KernelSet
from engine.kernels.machine.levels import LEVELS, SYSTEMS, Level, list_gains
from engine.plan.plan import Plan
from engine.runtime.arena import allocate
from engine.runtime.team import LAUNCH, WORKER
from engine.tools.trimmed.plans import find_batch_shapes, list_artifacts
from engine.tools.trimmed.progress import SILENT, StagePrinter
from engine.tools.trimmed.targets import resolve
from engine.training import plan_cache
from engine.training.memory import Memory
from engine.training.model import Model, open_models, open_optimizer
from engine.training.planning import GradientUse, NotJoinableError
from engine.training.state import CheckpointState

_SYSTEMS = {"linux": "linux", "darwin": "apple", "win32": "windows"}  # in triples


class Collected(plan_cache.Records):
    """Records in memory, initially empty."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[str, bytes] = {}

    def read_cached(self, name: str) -> bytes | None:
        """Return the record of a key, if this command has made it; the cache folder is not
        asked.
        """
        return self.contents.get(name)

    def put(self, name: str, content: bytes) -> None:
        """Keep a record."""
        self.contents[name] = content


def prepare(
    folder: Path,
    settings: Sequence[tuple[KernelSet, int]],
    shapes: Sequence[tuple[int, Shapes]],
    progress: StagePrinter = SILENT,
    planning: PlanOptions = DEFAULTS,
) -> tuple[Path, int]:
    """Write the plans of the artifacts in a folder: of training, evaluation, prediction, answers of
    a session, update, and of training steps in one.

    settings: kernel sets with numbers of threads.
    shapes: batch sizes, each with the shapes of inputs that it does not determine.
    planning: the options of the trainers that will use the plans.

    Returns the path and the size in bytes of the file.

    Raises:
        BudgetError: no plan of a step keeps to the budget.
        EngineError: a model cannot be read or planned, or the file cannot be written.
    """
    paths = list_artifacts(folder)
    collected, models = Collected(), dict[str, str]()
    for kernels, threads in settings:
        progress.say(f"for {kernels.name}, {threads} thread{'s' if threads > 1 else ''}")
        for model in _plan(paths, kernels, threads, shapes, collected, progress, planning):
            models[model.digest] = model.what
    made = plan_cache.PreparedModels(
        engine.__version__,
        plan_cache.digest_sources(),
        models,
        [(kernels.name, kernels.target.name, threads) for kernels, threads in settings],
    )
    path = folder / plan_cache.PREPARED
    return path, plan_cache.write_prepared(os.fspath(path), made, collected.contents)


def _plan(
    paths: Mapping[str, Path],
    kernels: KernelSet,
    threads: int,
    shapes: Sequence[tuple[int, Shapes]],
    collected: Collected,
    progress: StagePrinter,
    planning: PlanOptions,
) -> list[Model]:
    """Plan all models for a kernel set and a number of threads; returns the models.

    Kernels of a set that this process can run are compiled now, unless they are shipped.
    """
    state = CheckpointState.load_checkpoint(paths["checkpoint"])
    memory = Memory(kernels, planning)
    evaluation = paths.get("eval")
    train, second = open_models(
        paths["train"], evaluation, state, memory, threads, lambda _: collected
    )
    models = [train]
    if second is not None:
        outputs = second.list_model_outputs()
        evaluated = second.select([second.outputs[0], *outputs], "evaluation")
        models += [second, evaluated]
        models += [second.select(outputs, "prediction", answers=each) for each in (False, True)]
    bounds = [(b, given, len(shapes) > 1) for b, given in shapes]
    plans, joined = list[Plan](), False
    if "optimizer" in paths:
        optimizer = paths["optimizer"]
        last = open_optimizer(optimizer, state, memory, threads, records=lambda _: collected)
        progress.say(f"planning the {last.what}")
        layout = last.lay_out_states()
        last.skips_updates()  # which a device asks before its first step
        state.regions["state"] = allocate(layout.nbytes)
        plans.append(last.plan_update(layout))
        with contextlib.suppress(NotJoinableError):  # a Trainer then runs the two models
            for bound in (find_batch_shapes(train, *each) for each in bounds):
                progress.say(f"planning the {GradientUse.what} for {_format_shapes(bound)}")
                plans.append(train.make_plan(bound, update=GradientUse(last, layout)))
            joined = True
    for model, each in itertools.product(models, bounds):
        bound = find_batch_shapes(model, *each)
        progress.say(f"planning the {model.what} for {_format_shapes(bound)}")
        try:
            plans.append(model.make_plan(bound))
        except BudgetError:  # with gradients of its own; steps do without
            if model is not train or not joined:
                raise
    models += [last] if "optimizer" in paths else []
    unkept = [model.what for model in models if model.records is None]
    if unkept:
        raise InputError(
            f"{paths['train'].parent}: plans of the {unkept[0]} cannot be kept: it has "
            "operators of your own"
        )
    if kernels in source.list_usable():
        progress.say("compiling the kernels that are not there yet")
        kernels.resolve({LAUNCH, WORKER, *(kernel for plan in plans for kernel in plan.kernels)})
    return models


def _format_shapes(shapes: Shapes) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def make_kernel_set(name: str) -> KernelSet:
    """Return the kernels of a device that has nothing but what its wheel ships.

    name: an instruction-set level, or a target that `edgegrad targets` lists.

    Raises:
        EngineError: nothing is shipped for it, or this installation ships nothing.
    """
    level = _find_level(name)
    chosen = source.of_level(level, "shipped", level.systems[0])
    if chosen is None:
        raise EngineError(
            f"--target {name}: this installation ships no kernels, so it does not know the ones "
            "for another; install a wheel of edgegrad (in a checkout: python -m "
            "engine.tools.dev.ship)"
        )
    return chosen


def _find_level(name: str) -> Level:
    """Return the level of shipped kernels that a name stands for: the best that its CPU can run.

    Raises:
        EngineError: there is none, or there are several and no best one.
    """
    levels = [level for level in LEVELS if level.name == name]
    if not levels:
        target = resolve(name).target
        systems = [s for s in SYSTEMS if _SYSTEMS[s] in target.triple]
        levels = [v for v in LEVELS if v.arch == target.arch and {*systems} & {*v.systems}]
        gained = list_gains(target)
        levels = [v for v in levels if v.base is None or list_gains(v.make_target()) <= gained]
    if not levels or not {*levels} <= {*levels[0].chain}:
        known = ", ".join(level.name for level in levels or LEVELS)
        raise EngineError(f"--target {name}: give the level of its shipped kernels, one of {known}")
    return levels[0]
