"""The configuration of a run: the content of `run.toml`.

Each table of the file is a dataclass here, each key a field of it, whose text docs/commands.md
shows.  The tables [optimizer] and [schedule] also hold the options of the class that `name`
chooses, and [data.options] the options of the dataset: they are read from their signatures.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.base import arguments
from engine.base import option_tables as tables
from engine.base.errors import InputError, suggest_nearest
from engine.base.fields import declare_option, inherit_option, list_options
from engine.base.signatures import AT_LEAST_0, AT_LEAST_1, BELOW_1, check_arguments
from engine.data.kinds import Name
from engine.graphs.offline.optim_types import OptimizerSpec
from engine.lora import Lora
from engine.loss_types import Loss
from engine.system import files
from engine.trainer import names
from engine.trainer.reports import trackers
from engine.trainer.reports.tracker import Tracker
from engine.trainer.schedules import Schedule
from engine.training.settings import FitOptions, RecipeOptions, StepOptions

Kind = Literal["auto", Name]


@check_arguments
@dataclass(frozen=True, kw_only=True)
class ModelTable(RecipeOptions):
    """The model and its loss, and the choice of trained parameters."""

    path: str = declare_option(
        "",
        "The forward model: an ONNX file, or the name of an architecture such as "
        "mobilenet_v3_small (docs/models.md).",
        flag="--model",
        metavar="PATH|NAME",
    )
    weights: str = declare_option(
        "",
        "The initial weights of an architecture: an ONNX, safetensors or PyTorch file; by default "
        "they are random.",
        flag="--weights",
        metavar="PATH",
    )
    loss: str | Mapping[str, Any] = declare_option(
        "",
        "The loss to minimise; by default cross_entropy or mse, whichever fits the data.  With "
        "`none`, the first output of the model is the loss.  For several outputs, give a table "
        "with the loss of each: its name, a table with options, or a list of one of these and a "
        'weight, as in {scores = "cross_entropy", box = [{name = "huber", delta = 2}, 0.5]}.',
        metavar="NAME",
    )
    loss_options: Mapping[str, Any] = declare_option(
        {}, "Options of the loss, such as {label_smoothing = 0.1}."
    )
    train: Sequence[str] = declare_option(
        ("*",),
        "Parameters to train, such as 'classifier.*'; '!PATTERN' excludes some, and 'head' is the "
        "last layer; by default all.",
        metavar="PATTERN",
    )
    lora: Lora | None = declare_option(
        None,
        "Train adapters instead of the model's parameters, such as "
        '{match = "attn.*(q|v)", rank = 8}: options of Lora (docs/lora.md); by default none.',
    )
    qat: bool = declare_option(
        False,
        "Train with rounded weights and activations, and write inference.onnx as a model of 8-bit "
        "integers (docs/quantization.md).",
    )
    qat_options: Mapping[str, Any] = declare_option(
        {},
        "Options of qat, such as {weight_bits = 4}: those for `edgegrad quantize`, and ranges, "
        "momentum, weight_ranges and norms (docs/quantization.md).",
    )
    head: Literal["auto", "keep", "replace"] = declare_option(
        "auto",
        "Replace the last layer of a classifier: auto, if its number of classes differs from the "
        "data's; keep, never; replace, always.",
    )


@check_arguments
@dataclass(frozen=True, kw_only=True)
class DataTable:
    """The data, and how to make batches from them."""

    path: str = declare_option("", "A folder or a file of data.", flag="--data", metavar="PATH")
    kind: Kind = declare_option("auto", "The kind of data; by default the file names decide.")
    validation: float | str | None = declare_option(
        None,
        "The share of the data to validate with, or the path of other data; 0 for no validation.  "
        "By default the folder val/ if the data have one, otherwise 0.2.",
        BELOW_1,
        metavar="SHARE|PATH",
    )
    test: str = declare_option(
        "",
        "The data to test the best model on at the end: a path, or `split` for the folder test/ "
        "of the data; by default none.",
        metavar="PATH|split",
    )
    batch_size: int | None = declare_option(
        None,
        "Samples per step; by default 32, or the number fixed in the model file.",
        AT_LEAST_1,
        flag="--batch",
    )
    shuffle: bool = declare_option(True, "Use a different order of samples in each epoch.")
    drop_last: bool = declare_option(False, "Leave out a last, smaller batch.")
    balanced: bool = declare_option(False, "Draw samples of all classes equally often.")
    augment: Sequence[str] = declare_option(
        (),
        "Random changes.  Pictures: flip, crop, color, rotate, erase, cutmix; sounds: shift, spec; "
        "both, and arrays: mixup.",
    )
    prefetch: int = declare_option(2, "Batches to prepare ahead.", AT_LEAST_0)
    classes: Sequence[str] = declare_option(
        (), "Names of the classes; by default taken from the data.", flag="--class"
    )
    options: Mapping[str, Any] = declare_option({}, "Options of the dataset, see docs/data.md.")


@dataclass(frozen=True, slots=True)
class ChosenClass:
    """A table: `name` chooses a class, and the other keys are the options of that class."""

    name: str
    options: Mapping[str, Any]


@check_arguments
@dataclass(frozen=True, kw_only=True)
class FitTable(FitOptions, StepOptions):
    """The training run."""

    epochs: int = inherit_option(FitOptions, "epochs", 10)
    seed: int = declare_option(0, "Seed of all random numbers.", AT_LEAST_0)
    metrics: Sequence[str] | None = declare_option(
        None,
        "Metrics besides the loss; by default accuracy for classes, mae for values, perplexity "
        "for texts.",
        flag="--metric",
    )
    patience: int | None = declare_option(
        None, "Stop after this many epochs without improvement.", AT_LEAST_0
    )


@check_arguments
@dataclass(frozen=True, kw_only=True)
class OutputTable:
    """The output of a run."""

    folder: str = declare_option("run", "The folder of the run.", flag="-o, --out", metavar="PATH")
    tensorboard: bool = declare_option(False, "Also write event files for TensorBoard.")
    log: Sequence[str] = declare_option(
        (),
        f"Also log to {', '.join(trackers.list_known())} (docs/reports.md).",
        metavar="NAME",
    )
    log_options: Mapping[str, Mapping[str, Any]] = declare_option(
        {}, 'Options of these logs by name, such as {wandb = {project = "flowers"}}.'
    )


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A whole configuration."""

    model: ModelTable = field(default_factory=ModelTable)
    data: DataTable = field(default_factory=DataTable)
    optimizer: ChosenClass = field(default_factory=lambda: ChosenClass("adamw", {}))
    schedule: ChosenClass = field(default_factory=lambda: ChosenClass("constant", {}))
    fit: FitTable = field(default_factory=FitTable)
    output: OutputTable = field(default_factory=OutputTable)

    @property
    def has_several_losses(self) -> bool:
        """True if several outputs have a loss each."""
        return isinstance(self.model.loss, Mapping)

    def make_loss(self, place: str = "[model] loss") -> Loss | Mapping[str, Any] | None:
        """Return the loss, or a pair of a loss and its weight for each of several outputs; None if
        the model computes it.

        place: the beginning of messages.

        Raises:
            InputError, DTypeError: there is nothing of a name, or an option does not fit.
        """
        given, options = self.model.loss, self.model.loss_options
        if isinstance(given, Mapping):
            if options:
                raise InputError(
                    f"{place}_options: the losses of several outputs have their options beside "
                    "their names"
                )
            return names.make_losses(given, place)
        if given == "none":
            return None
        return names.make_loss(given, options, place)

    def make_optimizer(self) -> OptimizerSpec:
        """Return the optimizer."""
        return names.make_optimizer(self.optimizer.name, self.optimizer.options, "[optimizer]")

    def make_schedule(self) -> Schedule:
        """Return the schedule of the learning rate."""
        return names.make_schedule(self.schedule.name, self.schedule.options, "[schedule]")

    def make_trackers(self) -> list[Tracker]:
        """Return the callbacks that log to other programs.

        Raises:
            InputError, DTypeError: there is nothing of a name, or an option does not fit.
            MissingPackageError: the package that it needs is not installed.
        """
        table, place = self.output, "[output] log"
        named = [*(["tensorboard"] if table.tensorboard else []), *table.log]
        for name in table.log_options:
            if name not in named:
                raise InputError(
                    f"{place}_options: {name!r} is not in log{suggest_nearest(name, named)}"
                )
        folder = Path(table.folder)
        return [
            trackers.make_tracker(name, table.log_options.get(name, {}), place, folder)
            for name in dict.fromkeys(named)
        ]

    def change(self, table: str, **values: Any) -> RunConfig:
        """Return a configuration with other values in a table."""
        return dataclasses.replace(
            self, **{table: dataclasses.replace(getattr(self, table), **values)}
        )


TABLES: dict[str, Any] = {
    "model": ModelTable, "data": DataTable, "optimizer": ChosenClass, "schedule": ChosenClass,
    "fit": FitTable, "output": OutputTable,
}  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        FileError: it cannot be read.
        InputError: it is not TOML; the message has the line.
    """
    data = files.read(str(path), "configuration")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: {error}") from error


def override_values(found: dict[str, Any], changes: Mapping[str, Any], option: str) -> None:
    """Put values in their places; their names are TABLE.KEY, such as fit.epochs.

    Raises:
        InputError: a name is not a place in a table.
    """
    for name, value in changes.items():
        *parts, last = name.split(".")
        if not parts:
            known = [
                f"{t}.{f.name}" for t, kind in TABLES.items() for f in dataclasses.fields(kind)
            ]
            near = [place for place in known if place.endswith(f".{name}")]
            hint = f"; did you mean {near[0]}?" if near else suggest_nearest(name, known)
            raise InputError(
                f"{option} {name}: expected TABLE.KEY=VALUE, such as fit.epochs=3{hint}"
            )
        table = found
        for part in parts:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise InputError(f"{option} {name}: {part!r} is not a table")
        table[last] = value


def make_config(found: Mapping[str, Any], source: str) -> RunConfig:
    """Make a configuration from the tables of a file.

    Raises:
        InputError, DTypeError: an unknown table or key, or a value that does not fit; the message
            names the table.
    """
    made: dict[str, Any] = {}
    for name, table in found.items():
        if name not in TABLES:
            raise InputError(f"{source}: unknown table [{name}]{suggest_nearest(name, TABLES)}")
        place = f"{source} [{name}]"
        if not isinstance(table, Mapping):
            raise InputError(f"{place}: expected a table, got {table!r}")
        if TABLES[name] is ChosenClass:
            made[name] = _choose(table, name, place)
        else:
            made[name] = tables.make(TABLES[name], table, place)
    config = RunConfig(**made)
    if config.model.loss != "":
        config.make_loss(f"{source} [model] loss")  # refuses what does not fit, before any work
    return config


# The table's name where it gives none, and the function that makes what is chosen.
_CHOICES: dict[str, tuple[str, Callable[[str, Mapping[str, Any], str], object]]] = {
    "optimizer": ("adamw", names.make_optimizer),
    "schedule": ("constant", names.make_schedule),
}


def _choose(table: Mapping[str, Any], which: str, place: str) -> ChosenClass:
    rest = dict(table)
    default, make = _CHOICES[which]
    name = arguments.check_text(f"{place}: name", rest.pop("name", default))
    make(name, rest, place)  # refuses what does not fit, before any work
    return ChosenClass(name, rest)


# --- writing


def as_written(config: RunConfig) -> RunConfig:
    """Return the configuration as it is read back from `to_toml`: with lists for tuples."""
    return make_config(tomllib.loads(to_toml(config)), "configuration")


def to_toml(config: RunConfig) -> str:
    """Return the configuration as TOML, from which `make_config` reads the same."""
    lines = []
    for name in TABLES:
        table = getattr(config, name)
        if isinstance(table, ChosenClass):
            values = {"name": table.name, **table.options}
        else:
            values = {f.name: getattr(table, f.name) for f in list_options(type(table))}
        lines.append(f"[{name}]")
        lines += [
            f"{_format_key(k)} = {format_toml(v)}" for k, v in values.items() if v is not None
        ]
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _format_key(name: str) -> str:
    bare = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if bare else _format_text(name)


def _format_text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def format_toml(value: Any) -> str:
    """Return a value in TOML's form.

    Raises:
        InputError: it cannot be written as TOML.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _format_text(value)
    value = tables.to_plain(value)
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{_format_key(k)} = {format_toml(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(format_toml, value)) + "]"
    raise InputError(f"{value!r} cannot be written as TOML")
