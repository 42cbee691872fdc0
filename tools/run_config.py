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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from engine import arguments
from engine.errors import InputError, nearest
from engine.lora import Lora
from engine.loss_types import Loss
from engine.optim_types import OptimizerSpec
from engine.runtime import files
from engine.sparse import SparseUpdate
from engine.tools import choices, tables
from engine.trainer.schedules import Schedule

Kind = Literal["auto", "images", "sounds", "csv", "text"]
KINDS = [kind for kind in get_args(Kind) if kind != "auto"]


def key(text: str, default: Any = dataclasses.MISSING) -> Any:
    """Return a field of a table; text: its meaning, for the documentation."""
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"text": text})
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True, slots=True)
class ModelTable:
    """The model and its loss, and the choice of trained parameters."""

    path: str = key("The forward model, an ONNX file.", "")
    loss: str = key(
        "The loss to minimise; by default one that fits the data: cross_entropy or mse.  none: "
        "minimise the first output of the model.",
        "",
    )
    loss_options: Mapping[str, Any] = key(
        "Options of the loss, such as {label_smoothing = 0.1}.", {}
    )
    loss_inputs: Sequence[str] = key("The output that the loss takes, then the target.", ())
    train: Sequence[str] = key("Names of parameters to train, or patterns of them.", ("*",))
    update: Mapping[str, Any] = key(
        "The part of them to train, such as {biases = true, last = 2}: fields of SparseUpdate "
        "(docs/memory.md); by default all.",
        {},
    )
    lora: Mapping[str, Any] = key(
        'Adapters to train instead, such as {match = "attn.*(q|v)", rank = 8}: options of Lora '
        "(docs/lora.md); by default none.",
        {},
    )
    frozen_batch_norm: bool | Sequence[str] | None = key(
        "Batch normalisations that keep their statistics: all, none, or a list of names.", None
    )
    tie: bool | Sequence[Sequence[str]] | None = key(
        "Groups of parameters that an exporter has copied and that are trained as one; true: all "
        "groups found, false: none.  By default none, with a warning that lists the groups found.",
        None,
    )
    head: Literal["auto", "keep", "replace"] = key(
        "The last layer of a classifier: replaced if the number of classes differs, never, or "
        "always.",
        "auto",
    )


@dataclass(frozen=True, slots=True)
class DataTable:
    """The data, and how to make batches from them."""

    path: str = key("A folder or a file.", "")
    kind: Literal["auto", "images", "sounds", "csv", "text"] = key(
        "The kind of data; by default according to the file names.", "auto"
    )
    validation: float | str = key(
        "The share of the data to validate with, or a path of other data; 0: no validation.", 0.2
    )
    batch_size: int | None = key(
        "Samples per step; by default 32, or the number fixed in the model file.", None
    )
    shuffle: bool = key("Use a different order of samples in each epoch.", True)
    drop_last: bool = key("Leave out a last, smaller batch.", False)
    augment: Sequence[str] = key("Random changes of pictures: flip, crop, color.", ())
    prefetch: int = key("Batches to prepare ahead.", 2)
    classes: Sequence[str] = key("Names of the classes; by default taken from the data.", ())
    options: Mapping[str, Any] = key("Options of the dataset, see docs/data.md.", {})


@dataclass(frozen=True, slots=True)
class Chosen:
    """A table whose `name` chooses a class, and whose other keys are the options of that class."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FitTable:
    """The training itself."""

    epochs: int = key("Passes over the data.", 10)
    metrics: Sequence[str] | None = key(
        "Metrics besides the loss; by default accuracy for classes, mae for values, perplexity "
        "for texts.",
        None,
    )
    accumulate: int = key("Batches whose gradients make one step.", 1)
    patience: int | None = key("Stop after so many epochs without improvement.", None)
    monitor: str = key(
        "The column that decides which checkpoint is the best; by default val_loss.", ""
    )
    mode: Literal["min", "max"] | None = key(
        "Direction of improvement of the monitored column.", None
    )
    hours: float | None = key("Stop after this time.", None)
    seed: int = key("Seed of all random numbers.", 0)
    threads: int | None = key("Threads per step; by default all cores.", None)
    memory_budget: str | None = key(
        "Memory limit for the plan of a step, such as 48 MB; by default none: the fastest step.",
        None,
    )
    micro_batches: int | None = key(
        "Parts of a batch that are trained one after another, with one update; by default one, or "
        "as many as the budget needs.",
        None,
    )
    own_statistics: bool = key(
        "Let training batch normalisations take their statistics over each part.", False
    )
    skip_nonfinite: bool = key(
        "Skip and count updates with NaN or infinite gradients; by default according to the option "
        "of the optimizer.",
        False,
    )
    skip_limit: int = key("The number of updates in a row that may be skipped before an error.", 10)
    keep: int = key("The number of newest checkpoints to keep, in addition to the best one.", 2)
    checkpoint_every: int | None = key("Steps between checkpoints; by default one epoch.", None)
    unfreeze: Mapping[str, int] = key(
        "Patterns from train, each with the epoch from which they are trained.", {}
    )


@dataclass(frozen=True, slots=True)
class OutputTable:
    """The output of a run."""

    folder: str = key("The folder of the run.", "run")
    tensorboard: bool = key("Also write event files for TensorBoard.", False)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A whole configuration."""

    model: ModelTable = field(default_factory=ModelTable)
    data: DataTable = field(default_factory=DataTable)
    optimizer: Chosen = field(default_factory=lambda: Chosen("adamw", {}))
    schedule: Chosen = field(default_factory=lambda: Chosen("constant", {}))
    fit: FitTable = field(default_factory=FitTable)
    output: OutputTable = field(default_factory=OutputTable)

    def loss(self, default: str) -> Loss | None:
        """Return the loss, `default` unless one is named; None: the model computes it."""
        table = self.model
        if table.loss == "none":
            return None
        return choices.loss(table.loss or default, table.loss_options, "[model] loss")

    def sparse_update(self) -> SparseUpdate | None:
        """Return the sparse update of the parameters named by `train`; None: train all of them."""
        given = self.model.update
        return tables.make(SparseUpdate, given, "[model] update") if given else None

    def adapters(self) -> Lora | None:
        """Return the adapters to add to the model; None: no adapters."""
        given = self.model.lora
        return tables.make(Lora, given, "[model] lora") if given else None

    def tied(self) -> Sequence[Sequence[str]] | str | None:
        """Return the tied parameters, as `generate_artifacts` takes them."""
        given = self.model.tie
        if isinstance(given, bool):
            return "auto" if given else ()
        return given

    def method(self) -> OptimizerSpec:
        """Return the optimizer."""
        return choices.optimizer(self.optimizer.name, self.optimizer.options, "[optimizer]")

    def rates(self) -> Schedule:
        """Return the schedule of the learning rate."""
        return choices.schedule(self.schedule.name, self.schedule.options, "[schedule]")

    def changed(self, table: str, **values: Any) -> RunConfig:
        """Return a configuration with other values in a table."""
        return dataclasses.replace(
            self, **{table: dataclasses.replace(getattr(self, table), **values)}
        )


TABLES: dict[str, Any] = {
    "model": ModelTable, "data": DataTable, "optimizer": Chosen, "schedule": Chosen,
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


def override(found: dict[str, Any], changes: Mapping[str, Any], option: str) -> None:
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
            hint = f"; did you mean {near[0]}?" if near else nearest(name, known)
            raise InputError(
                f"{option} {name}: expected TABLE.KEY=VALUE, such as fit.epochs=3{hint}"
            )
        table = found
        for part in parts:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise InputError(f"{option} {name}: {part!r} is not a table")
        table[last] = value


def config_of(found: Mapping[str, Any], source: str) -> RunConfig:
    """Make a configuration from the tables of a file.

    Raises:
        InputError, DTypeError: an unknown table or key, or a value that does not fit; the message
            names the table.
    """
    made: dict[str, Any] = {}
    for name, table in found.items():
        if name not in TABLES:
            raise InputError(f"{source}: unknown table [{name}]{nearest(name, TABLES)}")
        place = f"{source} [{name}]"
        if not isinstance(table, Mapping):
            raise InputError(f"{place}: expected a table, found {table!r}")
        if TABLES[name] is Chosen:
            made[name] = _chosen(table, name, place)
        else:
            made[name] = tables.make(TABLES[name], table, place)
    config = RunConfig(**made)
    _check(config, source)
    return config


def _chosen(table: Mapping[str, Any], which: str, place: str) -> Chosen:
    rest = dict(table)
    default = {"optimizer": "adamw", "schedule": "constant"}[which]
    name = tables.convert(rest.pop("name", default), str, f"{place}: name")
    getattr(choices, which)(name, rest, place)  # refuses what does not fit, before any work
    return Chosen(name, rest)


_LEAST = {"batch_size": 1, "prefetch": 0, "epochs": 1, "accumulate": 1, "patience": 0, "seed": 0,
          "threads": 1, "micro_batches": 1, "skip_limit": 0, "keep": 1,
          "checkpoint_every": 1}  # fmt: skip


def _check(config: RunConfig, source: str) -> None:
    """Refuse numbers that have no meaning, and a loss that does not exist."""
    for name in ("data", "fit"):
        table = getattr(config, name)
        for each in dataclasses.fields(table):
            value = getattr(table, each.name)
            if each.name in _LEAST and value is not None and value < _LEAST[each.name]:
                raise InputError(
                    f"{source} [{name}]: {each.name} = {value}: expected at least "
                    f"{_LEAST[each.name]}"
                )
    share = config.data.validation
    if isinstance(share, float) and not 0 <= share < 1:
        raise InputError(
            f"{source} [data]: validation = {share}: expected a share from 0 to below 1, or a path"
        )
    if config.fit.memory_budget is not None:
        arguments.nbytes(f"{source} [fit]: memory_budget", config.fit.memory_budget)
    if config.fit.hours is not None and not config.fit.hours > 0:
        raise InputError(f"{source} [fit]: hours = {config.fit.hours}: expected more than 0")
    config.sparse_update()
    config.adapters()
    if config.model.loss not in ("", "none"):
        choices.loss(config.model.loss, config.model.loss_options, f"{source} [model] loss")


# --- writing


def as_written(config: RunConfig) -> RunConfig:
    """The configuration as it is read again from what `to_toml` writes: with lists for tuples."""
    return config_of(tomllib.loads(to_toml(config)), "configuration")


def to_toml(config: RunConfig) -> str:
    """The configuration as TOML; `config_of` reads the same from it."""
    lines = []
    for name in TABLES:
        table = getattr(config, name)
        if isinstance(table, Chosen):
            values = {"name": table.name, **table.options}
        else:
            values = {f.name: getattr(table, f.name) for f in dataclasses.fields(table)}
        lines.append(f"[{name}]")
        lines += [f"{_key(k)} = {toml_value(v)}" for k, v in values.items() if v is not None]
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _key(name: str) -> str:
    bare = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if bare else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: Any) -> str:
    """A value as TOML writes it.

    Raises:
        InputError: it has no form in TOML.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    raise InputError(f"{value!r} has no form in TOML")
