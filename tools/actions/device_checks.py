"""Checks of a device: the RAM and flash of a training run's library, and of variants of it.

Every figure comes from a library that was made: the memory that its header asks for, and the bytes
of its code and tables.  Variants are tried in the order in which they cost a user least; the first
that fits ends the search.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from engine.base.errors import BudgetError, EngineError, InternalError
from engine.base.sparse_update import SparseUpdate
from engine.graphs.io import onnx_io
from engine.quantization.post_training import freeze_in_integers
from engine.tools.actions.checks import LAST, TrainingChoices, make_recipe
from engine.tools.trimmed import binary
from engine.tools.trimmed.build import build
from engine.tools.trimmed.bundle import BUDGETED
from engine.tools.trimmed.options import Options
from engine.tools.trimmed.progress import SILENT, StagePrinter
from engine.trainer.forward import Forward
from engine.training.settings import RecipeOptions

# The functions that a program on a board calls, as the one of docs/microcontrollers.md.
CALLS_OF_TRAINING = (
    "create_in", "input", "train_step", "optimizer_step", "lazy_reset_grad", "output", "save_part",
    "message",
)  # fmt: skip
STACK = 4096  # bytes to reserve; firmware of tests fails if calls take more


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that a training run takes on a device.

    change: the options that were added, or another change; empty for the training as it was asked.
    areas: the memory of a model, without the stack, by what it holds.
    flash: code, tables and constants of the library; of an archive for a board, what a program
        needs that trains and keeps checkpoints.
    values: the checkpoint with the first values, which a program usually has in flash, too.
    """

    change: str
    areas: Mapping[str, int]
    flash: int
    values: int

    @property
    def ram(self) -> int:
        """All memory of a model."""
        return sum(self.areas.values())


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a device in bytes; None for any amount."""

    ram: int | None = None
    flash: int | None = None

    def list_excess(self, need: Need) -> dict[str, int]:
        """Return the bytes that are missing, by kind of memory; none if a training run fits."""
        pairs = (("RAM", need.ram, self.ram), ("flash", need.flash + need.values, self.flash))
        return {kind: n - most for kind, n, most in pairs if most is not None and n > most}


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """The needs of a training and of its variants, the training as it was asked first.

    refused: changes that could not be made, with the reasons.
    is_bare: whether the target has no system, which would give a stack.
    """

    target: str
    batches: Sequence[int]
    room: Room
    needs: Sequence[Need]
    refused: Sequence[tuple[str, str]]
    is_bare: bool = False

    @property
    def fits(self) -> bool:
        """True if the training fits as it was asked."""
        return not self.room.list_excess(self.needs[0])

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        rows = [
            {"change": n.change, "ram": n.ram, "flash": n.flash, "checkpoint": n.values,
             "missing": self.room.list_excess(n)}
            for n in self.needs
        ]  # fmt: skip
        return {
            "target": self.target, "batches": list(self.batches), "ram": self.room.ram,
            "flash": self.room.flash, "fits": self.fits, "variants": rows,
            "refused": dict(self.refused),
        }  # fmt: skip

    def write_lines(self) -> Iterator[str]:
        """Yield the lines of a report for people."""
        batches = ", ".join(map(str, self.batches)) or "the model's"
        yield f"training on {self.target}, batch {batches}"
        wide = max(44, *(len(need.change) for need in self.needs))
        yield f"{'':{wide}s}{'RAM':>12s}{'flash':>12s}{'checkpoint':>12s}  bytes"
        for need in self.needs:
            excess = self.room.list_excess(need)
            missing = " and ".join(f"{n:,} bytes of {kind}" for kind, n in excess.items())
            verdict = f"lacks {missing}" if missing else "fits"
            yield (
                f"{need.change or 'as it is':{wide}s}{need.ram:>12,}{need.flash:>12,}"
                f"{need.values:>12,}  {verdict}"
            )
        if self.is_bare:
            yield f"not counted: your own program, and the stack; reserve {STACK:,} bytes for calls"
        for change, why in self.refused:
            yield f"{change}: not possible: {why}"
        if all(map(self.room.list_excess, self.needs)):
            yield (
                "nothing that was tried fits: train fewer layers (SparseUpdate), freeze layers of "
                "int8 (edgegrad quantize --keep-float), or take a smaller model"
            )


def check_device(
    source: Path,
    made: TrainingChoices,
    options: Options,
    room: Room,
    progress: StagePrinter = SILENT,
) -> DeviceCheck:
    """Return the needs of a training run on the target of `options`.

    source: a folder of artifacts, or a forward model, whose artifacts are made for it and go again.

    Raises:
        EngineError: the training as it was asked cannot be built.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        artifacts = source if source.is_dir() else work / "artifacts"
        if not source.is_dir():
            _write_artifacts(source, made, None, artifacts)
        needs = [_measure("", artifacts, options, work, progress)]
        refused: list[tuple[str, str]] = []
        for change, changed, write in _list_variants(options, room, needs[0], source, made):
            if not room.list_excess(needs[-1]):
                break
            try:
                mine = artifacts if write is None else work / str(len(needs))
                if write is not None:
                    write(mine)
                needs.append(_measure(change, mine, changed, work, progress))
            except InternalError:
                raise
            except BudgetError as error:
                refused.append((change, f"the least budget is {error.least:,} bytes"))
            except EngineError as error:
                refused.append((change, str(error)))
    name = options.platform.name
    is_bare = options.platform.is_bare
    return DeviceCheck(name, options.plans.batches, room, needs, refused, is_bare)


def _write_artifacts(
    source: Path, made: TrainingChoices, update: SparseUpdate | None, folder: Path
) -> None:
    """Write the artifacts of a forward model."""
    recipe = make_recipe(onnx_io.load(source), made)
    if update is not None:
        recipe = replace(recipe, options=RecipeOptions(update=update))
    folder.mkdir()
    recipe.write(Forward(source), made.train, str(folder))


def _write_integers(source: Path, made: TrainingChoices, folder: Path) -> None:
    """Write the artifacts of a forward model in int8, whose last layer alone is trained, in floats.

    Without data its values are of no use; its sizes are those that `edgegrad quantize` gives.

    Raises:
        EngineError: the model is quantised, or no two of its products can use integers.
    """
    quantised, trained = freeze_in_integers(os.fspath(source))
    folder.mkdir()
    recipe = make_recipe(quantised.graph, made)
    recipe.write(Forward.of(quantised.graph), trained, str(folder))


def _measure(
    change: str, artifacts: Path, options: Options, work: Path, progress: StagePrinter
) -> Need:
    """Build a library and return what it takes; nothing of it stays.

    Raises:
        EngineError: it cannot be built.
    """
    with tempfile.TemporaryDirectory(dir=work) as folder:
        manifest = build(artifacts, Path(folder) / "build", options, progress)
        library = Path(folder) / "build" / manifest["library"]
        flash = library.stat().st_size
        if options.platform.is_bare:  # of an archive, a program has what its calls reach
            roots = [f"{options.name}_{name}" for name in CALLS_OF_TRAINING]
            flash = binary.count_loaded(library.read_bytes(), roots)
        values = (Path(folder) / "build" / "checkpoint").stat().st_size
    return Need(change, manifest["report"]["areas"], flash, values)


def _set_budget(options: Options, budget: int) -> Options:
    """Return options with a budget."""
    return _change_plans(options, planning=replace(options.plans.planning, budget=budget))


def _change_plans(options: Options, **changes: Any) -> Options:
    """Return options with other plans: `changes` of fields of `PlanRequest`."""
    return replace(options, plans=replace(options.plans, **changes))


def _list_variants(
    options: Options, room: Room, need: Need, source: Path, made: TrainingChoices
) -> Iterator[tuple[str, Options, Callable[[Path], None] | None]]:
    """Yield changes of a training run that take less: a name, the options, and what writes other
    artifacts into a folder.
    """
    sized, excess = "", room.list_excess(need)
    if "flash" in excess:
        options, sized = _change_plans(options, size=True), " --size"
        yield "--size", options, None
    steps = [("", options)]
    if "RAM" in excess:
        yield from _list_smaller_steps(options, room, need, sized)
        words, least = _name_least_step(options)
        steps.append((words, least))
    if source.is_dir():
        return
    update = SparseUpdate(biases=True, last=LAST)
    sparse = partial(_write_artifacts, source, made, update)
    for words, changed in steps if "RAM" in excess else ():
        yield f"SparseUpdate(biases=True, last={LAST}){words}{sized}", changed, sparse
    integers = partial(_write_integers, source, made)
    for words, changed in steps:
        name = f"int8, with the last layer trained in float32{words}{sized}"
        yield name, changed, integers


def _name_least_step(options: Options) -> tuple[str, Options]:
    """Return the change that makes steps least, without a budget, and options with it."""
    joined = _change_plans(options, joined=True)
    if max(options.plans.batches, default=1) > 1:
        return " --batch 1 --joined", _change_plans(joined, batches=[1])
    return " --joined", joined


def _list_smaller_steps(
    options: Options, room: Room, need: Need, sized: str
) -> Iterator[tuple[str, Options, None]]:
    """Yield changes of steps that take less RAM, and train the same."""
    joined, single = _change_plans(options, joined=True), ""
    yield f"--joined{sized}", joined, None
    if max(options.plans.batches, default=1) > 1:
        alone, single = _change_plans(options, batches=[1]), "--batch 1 "
        yield f"--batch 1{sized}, adding up gradients of steps", alone, None
        joined = _change_plans(joined, batches=[1])
        yield f"--batch 1 --joined{sized}", joined, None
    others = sum(n for area, n in need.areas.items() if area not in BUDGETED)
    if room.ram is not None and room.ram > others:
        budget = room.ram - others
        yield f"{single}--joined --budget {budget}{sized}", _set_budget(joined, budget), None
