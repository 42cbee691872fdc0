"""Dry runs of a path: a folder of artifacts, or a forward model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.base.aliases import Shapes
from engine.base.element_types import FLOATS
from engine.base.errors import EngineError, InternalError
from engine.base.plan_options import DEFAULTS, PlanOptions
from engine.base.sparse_update import SparseUpdate
from engine.checking import Check, Subject, Suggestion, check, list_faults, sort_by_bytes
from engine.checking.subject import Opened
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.optim_types import OptimizerSpec
from engine.lora import Lora
from engine.loss_types import Loss
from engine.loss_types.several import Losses
from engine.runtime.roofline import Roofline
from engine.system import config
from engine.tools.trimmed.plans import bind_shapes, count_samples, list_artifacts
from engine.tools.trimmed.progress import SILENT, StagePrinter
from engine.trainer import names
from engine.trainer.forward import Forward
from engine.trainer.recipe import Recipe
from engine.training.settings import RecipeOptions
from engine.training.state import CheckpointState

RANK, LAST = 8, 2  # of LoRA, and of the last layers of a sparse update, as they are suggested


@dataclass(frozen=True)
class CheckRequest:
    """Request for a dry run.

    batch: samples of a step; None: as `count_samples`.  shapes: of inputs that it does not
        determine.
    machine: the one whose time is predicted; None for this one.
    variants: whether to look for what takes less.
    planning: options of the plans.
    """

    batch: int | None = None
    shapes: Shapes | None = None
    threads: int | None = None
    machine: Roofline | None = None
    variants: bool = True
    planning: PlanOptions = DEFAULTS


@dataclass(frozen=True)
class TrainingChoices:
    """Options that make a forward model trainable.

    loss: its name; None chooses by the output: cross-entropy for two dimensions, which are samples
        and classes, otherwise the mean square.  Of several outputs, the sum of their losses.
    """

    loss: str | None = None
    optimizer: str = "adamw"
    train: Sequence[str] = ("*",)


def check_path(
    path: Path,
    asked: CheckRequest,
    made: TrainingChoices,
    progress: StagePrinter = SILENT,
    opened: Opened | None = None,
) -> Check:
    """Return a dry run of artifacts, or of a forward model, whose artifacts are made for it and go
    again.

    opened: the models of artifacts, where they are open; their plans are not made again.

    Raises:
        EngineError: as `engine.checking.check`; and a forward model that cannot be read.
    """
    if path.is_dir():
        return _of_artifacts(path, asked, str(path), progress, opened)
    graph = onnx_io.load(path)
    with tempfile.TemporaryDirectory() as folder:
        try:
            progress.say(f"making {path} trainable")
            make_trainable(path, graph, made, Path(folder))
        except InternalError:
            raise
        except EngineError as error:
            faults = tuple(list_faults(path))
            if not faults:
                raise
            threads = config.choose_threads(asked.threads)
            return Check(
                source=str(path), threads=threads, kernels="", faults=faults, why=str(error)
            )
        result = _of_artifacts(Path(folder), asked, str(path), progress)
    if result.why:
        return replace(result, faults=tuple(list_faults(path)) or result.faults)
    if asked.variants and result.figures is not None:
        most = result.figures.nbytes
        more = (
            s
            for s in _suggest_remade(path, graph, asked, made, progress)
            if s.figures.nbytes < most
        )
        result = replace(result, suggestions=sort_by_bytes([*result.suggestions, *more]))
    return result


def _suggest_remade(
    path: Path, graph: Graph, asked: CheckRequest, made: TrainingChoices, progress: StagePrinter
) -> Iterator[Suggestion]:
    """Yield variants of a run with artifacts of their own, possible only for a forward model.

    A variant that the model does not allow is none.
    """
    variants: dict[str, Lora | SparseUpdate] = {
        f"LoRA of rank {RANK} on every layer that can": Lora(".", rank=RANK),
        f"a sparse update: all biases, and the last {LAST} layers": SparseUpdate(
            biases=True, last=LAST
        ),
    }
    for change, variant in variants.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                forward, recipe, train = Forward(path), make_recipe(graph, made), made.train
                if isinstance(variant, Lora):
                    forward.adapt(variant)
                    train = ("*",)  # the adapters alone
                else:
                    recipe = replace(recipe, options=RecipeOptions(update=variant))
                recipe.write(forward, train, folder)
                mine = replace(asked, variants=False, planning=replace(asked.planning, budget=None))
                result = _of_artifacts(Path(folder), mine, change, progress)
            except InternalError:
                raise
            except EngineError:
                continue
        if result.figures is not None:
            yield Suggestion(change, result.figures)


def _of_artifacts(
    folder: Path,
    asked: CheckRequest,
    source: str,
    progress: StagePrinter,
    opened: Opened | None = None,
) -> Check:
    files = list_artifacts(folder)
    progress.say(f"reading {source}")
    slots = CheckpointState.load_checkpoint(files["checkpoint"]).slots
    threads = config.choose_threads(asked.threads)
    subject = Subject.of(
        files["train"], files.get("optimizer"), slots, threads, files.get("eval"), asked.planning
    )
    opened = opened or subject.open()
    model = opened.train
    declared = {name: model.interface.inputs[name].shape for name in model.inputs}
    given = asked.shapes or {}
    batch = asked.batch or count_samples(declared, given)
    shapes = bind_shapes(declared, batch, given, model.what, model.graph)
    progress.say("planning")
    return check(
        subject,
        shapes,
        source=source,
        machine=asked.machine,
        variants=asked.variants,
        opened=opened,
        say=progress.say,
    )


def make_trainable(path: Path, graph: Graph, made: TrainingChoices, folder: Path) -> None:
    """Write the artifacts of a forward model, whose graph has been read, into a folder.

    Raises:
        EngineError: it cannot be trained.
    """
    make_recipe(graph, made).write(Forward(path, graph), made.train, folder)


def make_recipe(graph: Graph, made: TrainingChoices) -> Recipe:
    """Return the recipe by which a forward model becomes trainable."""
    return Recipe(_choose_loss(graph, made.loss), _make_optimizer(made.optimizer), RecipeOptions())


def _choose_loss(graph: Graph, name: str | None) -> Loss | None:
    """Return the loss of a name, or the one that fits; of several outputs, the sum of theirs."""
    if name == "none":
        return None
    types = {output: graph.types.get(output) for output in graph.outputs}
    losses: dict[str, Loss] = {}
    for output, t in types.items():
        fitting = "cross_entropy" if t is None or len(t.shape) == 2 else "mse"
        if t is None or t.dtype in FLOATS:
            losses[output] = names.make_loss(name or fitting, {}, "--loss")
    loss = next(iter(losses.values()), None) or names.make_loss(name or "mse", {}, "--loss")
    return Losses.of(losses) if loss.takes == 1 and len(types) > 1 else loss


def _make_optimizer(name: str) -> OptimizerSpec | None:
    return None if name == "none" else names.make_optimizer(name, {}, "--optimizer")
