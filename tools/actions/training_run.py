"""Training by a configuration: from a model and data to a run (its folder: runs.py)."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine.base import option_tables
from engine.base.errors import FileError, InputError, StateError
from engine.base.fields import select_options
from engine.data.changes import MIXING, find_changes
from engine.data.dataset import Dataset
from engine.data.labels import class_weights
from engine.data.places import check_sample
from engine.distributed import world
from engine.distributed.agreement import Agreement
from engine.distributed.copies import copy_files
from engine.distributed.group import gather_values
from engine.distributed.launchers import find_launcher
from engine.drawing import page
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.kernels.binaries.source import begin_compiling
from engine.kernels.vocabulary.op import TensorType
from engine.loss_types.base import LossOfScores
from engine.models.catalog import Architecture, find_architecture
from engine.models.named_model import make
from engine.quantization import Qat
from engine.quantization.post_training import round_untrained
from engine.system import files
from engine.system.config import count_cores, switch
from engine.tools.actions import run_config, run_data, runs
from engine.tools.actions.artifacts import write_artifacts
from engine.tools.actions.quantization import measure_models
from engine.tools.actions.run_config import RunConfig
from engine.tools.trimmed.staging import staged
from engine.trainer import averages
from engine.trainer.callbacks import EarlyStopping
from engine.trainer.class_losses import adapt, check_single
from engine.trainer.fit import Callback
from engine.trainer.forward import Forward
from engine.trainer.history import History
from engine.trainer.metrics import metrics_of
from engine.trainer.rate_search import RateSearch
from engine.trainer.recipe import Recipe
from engine.trainer.runs import ARTIFACTS, CONFIG, HISTORY, INFERENCE, REPORT, RUN, RunFolder
from engine.trainer.sizes import BATCH_SIZE, make_batches
from engine.trainer.trainer import Trainer
from engine.training.artifact_set import FORWARD
from engine.training.inference import Session
from engine.training.settings import FitOptions, RecipeOptions, StepOptions

CLASSES, FLOAT, UNTRAINED, ACCURACY = (
    "classes.txt", "float.onnx", "post_training.onnx", "quantization.json",
)  # fmt: skip
_SHOWN = (INFERENCE, CLASSES, REPORT, HISTORY, ACCURACY, CONFIG)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a run.

    config: as it was written.
    wrote: the files of the folder that are for people and for programs.
    test: what the best model measures on the test data; None if none were requested.
    rounding: the figures of the float model that training with roundings began with, of the same
        model quantised without training, and of the result; None for other runs.
    """

    folder: Path
    config: RunConfig
    history: History
    monitor: str
    wrote: Sequence[Path]
    test: Mapping[str, float] | None = None
    rounding: Mapping[str, Mapping[str, float]] | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The model, the data and the artifacts of a training run that begins.

    config: with what the model and the data decide.
    artifacts: their folder.  forward: the path of the model that they were made of.
    lines: what was found or decided.
    """

    config: RunConfig
    training: Dataset
    validation: Dataset | None
    artifacts: Path
    forward: Path
    lines: Sequence[str]


def train(config: RunConfig, *, resume: bool, progress: bool, say: Say) -> RunResult | None:
    """Train as a configuration says; together with others, if a launcher has started this process.

    resume: continue the run in the output folder.
    say: is called with a line for each thing that was found or decided, before training begins.

    Returns:
        None: this is not the first of several ranks, which alone has the result.

    Raises:
        EngineError: see the modules that do the work.  Nothing is written before the model, the
            data and the options are known to fit.
    """
    group = world()
    if group is None:
        return _train(_prepare(config, resume), None, resume, progress, say)
    ranks = Agreement(group)
    try:
        with tempfile.TemporaryDirectory(prefix="edgegrad-") as place:
            prepared = _prepare_together(ranks, config, resume, Path(place))
            return _train(prepared, ranks, resume, progress, say)
    except BaseException as error:
        ranks.end(error)
        raise


def _prepare_together(ranks: Agreement, config: RunConfig, resume: bool, place: Path) -> _Prepared:
    """Do the same as `_prepare` on rank 0; the other ranks only read the data.

    place: a folder for the artifacts of this rank.
    """
    prepared, error = list[_Prepared](), None

    def make_first() -> tuple[str, Sequence[str]]:
        prepared.append(_prepare(config, resume))
        return run_config.to_toml(prepared[0].config), prepared[0].lines

    text, lines = ranks.lead(make_first)
    if not ranks.is_first:
        try:
            settled = run_config.make_config(tomllib.loads(text), "rank 0")
            parts = _split_data(settled, run_data.open_training(settled.data))
            prepared.append(_Prepared(settled, *parts, place, place / FORWARD, lines))
        except Exception as problem:
            error = problem
    ranks.agree(error)
    (mine,) = prepared
    held_out = mine.validation
    ranks.check_alike(
        {
            "the number of samples to train on": len(mine.training),
            "the number of samples to validate with": None if held_out is None else len(held_out),
            "the classes": list(mine.training.classes or ()),
        }
    )
    made = [path for path in mine.artifacts.iterdir() if path.is_file()]
    copy_files(ranks, sorted(made), place)
    if config.fit.unfreeze or config.fit.freeze_statistics is not None:  # artifacts are made again
        copied = place / "of rank 0"
        copied.mkdir()
        copy_files(ranks, [mine.forward], copied)
        if not ranks.is_first:
            (model,) = copied.iterdir()
            mine = dataclasses.replace(mine, forward=model)
    told = gather_values(ranks.group, f"on {platform.node()} (process {os.getpid()})")
    line = f"ranks: {', '.join(f'{rank} {each}' for rank, each in enumerate(told))}"
    return dataclasses.replace(mine, lines=[*mine.lines, line])


def _prepare(config: RunConfig, resume: bool) -> _Prepared:
    """Look at the model and the data, and write the artifacts of a run that begins."""
    folder = Path(config.output.folder)
    _check_folder(folder, resume)
    _check_apart(folder, config)
    own = folder / FORWARD
    source = own if resume and own.exists() else _find_existing(config)
    _check_rounding(config, source)
    begin_compiling()
    lines: list[str] = []
    if isinstance(source, Architecture):
        config, dataset, forward = _build_model(config, source, lines.append)
    else:
        graph = onnx_io.load(source)
        name, feature = next(iter(graph.inputs.items()))
        config, dataset = _settle(config, feature, {})
        check_sample(dataset, name, feature)
        has_classes = run_data.holds_classes(config.data, dataset)
        config = _settle_loss(config, "cross_entropy" if has_classes else "mse")
        forward = Forward(source, graph)
    training, validation = _split_data(config, dataset)
    find_changes(config.data.augment, training)  # refuses what is not known, before any work
    run_data.open_test(config.data, training)  # refuses what cannot be read, before any work
    is_measured = validation is not None or config.fit.train_metrics
    measured = runs.choose_metrics(config) if is_measured else config.fit.metrics or ()
    metrics_of(measured)  # refuses what is not known, before any work
    config.make_trackers()
    lines.append(_describe_data(config, training, validation))
    if resume:
        _check_same(run_config.as_written(config), runs.read_config(folder), folder)
        _write(folder / CONFIG, run_config.to_toml(config))
    else:
        recipe = _make_recipe(config, training)
        _begin(config, recipe, forward, training, folder, lines.append)
        run_data.write_learned(config.data, training, folder)
    path = own if own.exists() else Path(config.model.path)
    return _Prepared(config, training, validation, folder / ARTIFACTS, path, lines)


def _train(
    prepared: _Prepared, ranks: Agreement | None, resume: bool, progress: bool, say: Say
) -> RunResult | None:
    """Train on what has been prepared."""
    config, training, validation = prepared.config, prepared.training, prepared.validation
    folder, is_first = Path(config.output.folder), ranks is None or ranks.is_first
    is_measured = validation is not None or config.fit.train_metrics
    measured = runs.choose_metrics(config) if is_measured else config.fit.metrics or ()
    for line in prepared.lines if is_first else ():
        say(line)
    steps = select_options(config.fit, StepOptions)
    if not steps.threads:
        steps = dataclasses.replace(steps, threads=_choose_threads(ranks))
    group = None if ranks is None else ranks.group
    trainer = Trainer(prepared.artifacts, group=group, **vars(steps))
    # Unfreezing makes artifacts again, in the way these were made.
    trainer.forward, trainer.recipe = prepared.forward, _make_recipe(config, training)
    options: dict[str, Any] = {"prefetch": config.data.prefetch, "names": trainer.inputs}
    model, size = trainer.learner.session.training, config.data.batch_size
    batched = partial(make_batches, model, batch_size=size)
    shuffled: dict[str, Any] = {"shuffle": config.data.shuffle, "seed": config.fit.seed}
    monitor = _choose_monitor(config, validation is not None)
    unfreeze = dict(config.fit.unfreeze or {}) or None  # of a run.toml: {} for none
    asked = dataclasses.replace(
        select_options(config.fit, FitOptions),
        monitor=monitor,
        unfreeze=unfreeze,
        class_weight=None,
    )  # the loss has the weights
    history = trainer.fit(
        batched(
            training, what="training data", drop_last=config.data.drop_last,
            augment=list(config.data.augment) or None, balanced=config.data.balanced,
            **shuffled, **options,
        ),
        validation=(
            None if validation is None else batched(validation, what="validation data", **options)
        ),
        metrics=measured,
        schedule=config.make_schedule(),
        callbacks=_make_callbacks(config, validation is not None) if is_first else (),
        folder=folder,
        resume=resume,
        progress=progress,
        shuffle=config.data.shuffle,
        **vars(asked),
    )  # fmt: skip
    if not is_first:
        return None
    rounding = None
    wrote = _finish(trainer, config, folder)
    if config.model.qat and (folder / INFERENCE).exists():
        held_out = training if validation is None else validation
        rounding = _compare_rounded(config, folder, held_out, steps.threads)
        wrote = _list_written(folder)
    test = run_data.open_test(config.data, training)
    measured_last = None if test is None else _test(config, folder, test, steps.threads)
    return RunResult(folder, config, history, monitor, wrote, measured_last, rounding)


def find_rate(config: RunConfig, say: Say) -> RateSearch:
    """Search for a learning rate for the model and the data of a configuration; nothing is kept.

    say: as in `train`.

    Raises:
        EngineError: as `train` and `Trainer.find_learning_rate`.
    """
    with tempfile.TemporaryDirectory(prefix="edgegrad-") as place:
        config = config.change("output", folder=os.path.join(place, "run"))
        prepared = _prepare(config, resume=False)
        for line in prepared.lines:
            say(line)
        config = prepared.config
        trainer = Trainer(prepared.artifacts, **vars(select_options(config.fit, StepOptions)))
        source = make_batches(
            trainer.learner.session.training, prepared.training, config.data.batch_size,
            "training data",
            names=trainer.inputs, augment=list(config.data.augment) or None,
            balanced=config.data.balanced, shuffle=config.data.shuffle,
            seed=config.fit.seed, prefetch=config.data.prefetch,
        )  # fmt: skip
        return trainer.find_learning_rate(source)


def _choose_threads(ranks: Agreement | None) -> int | None:
    """Return the default number of threads; ranks on one machine divide its cores."""
    launcher = find_launcher()
    if ranks is None or launcher is None or switch("THREADS"):
        return None
    return max(1, count_cores() // (launcher.here or 1))


# --- before


def _find_existing(config: RunConfig) -> Path | Architecture:
    """Return the path of the forward model, or its architecture, which no file may have.

    Raises:
        InputError: there is none, or no data, in the configuration; or weights for a file.
        FileError: nothing is there.
        NameNotFoundError: there is no architecture of this name.
    """
    for name, option in (("model", "--model"), ("data", "--data")):
        if not getattr(config, name).path:
            raise InputError(f"no {name}: give {option} PATH, or `path` in [{name}] of --config")
    path = Path(config.model.path)
    if not path.is_file():
        if path.exists() or path.suffix or len(path.parts) > 1:
            raise FileError(f"{path}: no such file")
        return find_architecture(config.model.path)
    if config.model.weights:
        raise InputError(
            f"[model] weights: {path} has weights of its own; give the name of an architecture "
            "for others"
        )
    return path


def _check_folder(folder: Path, resume: bool) -> None:
    """Refuse to train into a folder that has a run, and to resume where there is none.

    Raises:
        StateError: it is so.
    """
    has_run = (folder / RUN).exists() or (folder / "last").exists()
    if has_run and not resume:
        raise StateError(
            f"{folder} holds a run already: continue it with --resume, or choose another with -o"
        )
    if resume and not (folder / CONFIG).exists():
        raise StateError(f"{folder} holds no run to resume: leave out --resume to begin one")


def _check_rounding(config: RunConfig, source: Path | Architecture) -> None:
    """Refuse to train with roundings what has no ranges yet, or is not trained itself.

    Raises:
        InputError: it is so.
    """
    _make_rounding(config)
    if not config.model.qat:
        return
    if config.model.lora is not None:
        raise InputError("[model] qat and lora: give only one of them; adapters are not rounded")
    if isinstance(source, Architecture) and not config.model.weights:
        raise InputError(
            "[model] qat: ranges are measured on the model as it begins, and an architecture "
            "without weights begins with random ones: train it first, then give its inference.onnx"
        )


def _make_rounding(config: RunConfig) -> Qat:
    """Return the options of training with roundings.

    Raises:
        InputError, DTypeError: there is no such option, or its value does not fit.
    """
    options: Qat = option_tables.make(Qat, config.model.qat_options, "[model] qat_options")
    return options


def _check_apart(folder: Path, config: RunConfig) -> None:
    """Refuse to write a run among the data, since its files would become data.

    Raises:
        InputError: the folder of the run is the folder of the data, or lies in it.
    """
    place = folder.resolve()
    if config.data.path and Path(config.data.path).resolve() in (place, *place.parents):
        raise InputError(
            f"-o {folder} lies in the data, {config.data.path}, and the files of a run would "
            "become data: give a folder beside it"
        )


def _check_same(config: RunConfig, before: RunConfig, folder: Path) -> None:
    """Refuse to continue a run on another model, other data or with another optimizer.

    Raises:
        StateError: something differs, by name.
    """
    names = {
        name: [field.name for field in dataclasses.fields(getattr(config, name))]
        for name in ("model", "data", "optimizer")
    }
    for name, keys in (names | {"fit": ["seed", "accumulate", "class_weight"]}).items():
        for key in keys:
            here, there = (getattr(getattr(each, name), key) for each in (config, before))
            if here != there:
                raise StateError(
                    f"{folder}: [{name}] {key} was {there!r} and is {here!r} now: resume with "
                    "what the run began with, or give another folder by -o"
                )


def _build_model(
    config: RunConfig, kind: Architecture, say: Say
) -> tuple[RunConfig, Dataset, Forward]:
    """Build an architecture for the data; return the configuration that both decide, and both.

    Raises:
        EngineError: as `models.made.make`.
    """
    config, dataset = _settle(config, kind.feature, kind.reads)
    made = make(kind, data=dataset, weights=config.model.weights or None, seed=config.fit.seed)
    if made.loss_inputs and not config.model.loss_inputs:
        config = config.change("model", loss_inputs=made.loss_inputs)
    config = _settle_loss(config, made.loss if isinstance(made.loss, str) else "cross_entropy")
    say(f"model: {made.summary}")
    if made.random:
        say(f"model: {', '.join(made.random)} stay random, for another number of classes")
    return config, dataset, Forward.of(made.graph)


def _settle(
    config: RunConfig, feature: TensorType, reads: Mapping[str, Mapping[str, Any]]
) -> tuple[RunConfig, Dataset]:
    """Return the configuration with what the model's input and the data decide, and the data.

    reads: options that the model needs, by the kind of the data.
    """
    data = run_data.settle(config.data, feature, reads)
    dataset = run_data.open_training(data)
    classes = tuple(dataset.classes or ())
    options = {**data.options, **run_data.list_decided(data, dataset)}
    config = config.change("data", **vars(data) | {"classes": classes, "options": options})
    given = config.model.loss_options
    if dataset.ignore_index is not None and not config.model.loss and "ignore_index" not in given:
        config = config.change(
            "model", loss_options={**given, "ignore_index": dataset.ignore_index}
        )
    return config, dataset


def _settle_loss(config: RunConfig, default: str) -> RunConfig:
    """Return the configuration with a loss: `default` unless it names one."""
    return config.change("model", loss=default) if config.model.loss == "" else config


def _split_data(config: RunConfig, dataset: Dataset) -> tuple[Dataset, Dataset | None]:
    """Return the data to train on, and the data to validate with."""
    return run_data.open_rest(config.data, dataset, config.fit.seed)


def _describe_data(config: RunConfig, training: Dataset, validation: Dataset | None) -> str:
    """Describe the data in a line."""
    counts = f"{len(training):,} samples to train"
    if validation is not None:
        counts += f", {len(validation):,} to validate"
    known = config.data.classes
    shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    classes = f"; {len(known)} classes: {shown}" if known else ""
    return f"data: {config.data.path} ({config.data.kind}): {counts}{classes}"


def _begin(
    config: RunConfig,
    recipe: Recipe,
    forward: Forward,
    training: Dataset,
    folder: Path,
    say: Say,
) -> None:
    """Write the artifacts and the configuration of a new run."""
    _fit_to_classes(config, forward, recipe.loss, say)
    lora = config.model.lora
    compared: list[tuple[str, Graph]] = []
    if config.model.qat:
        options, source = _make_rounding(config), forward.graph
        made = forward.prepare_qat(training, options)
        say(f"model: {made}")
        untrained = round_untrained(source, made, options).graph
        compared = [(FLOAT, source), (UNTRAINED, untrained)]
    if lora is not None:
        added = forward.adapt(lora).summary.added
        say(f"model: {added:,} values of adapters of rank {lora.rank} are added")
    # A model that is refused here leaves no folder: no run could go on in it.
    with staged(folder) as staging:
        for name, graph in compared:
            onnx_io.save(graph, staging / name)
        forward.write(staging / FORWARD)
        written = write_artifacts(forward, staging / ARTIFACTS, recipe, config.model.train)
        say(
            f"model: {config.model.path}: {written.trained_values:,} values are trained, "
            f"{written.frozen_values:,} are frozen"
        )
        _write(staging / CONFIG, run_config.to_toml(config))


def _make_recipe(config: RunConfig, training: Dataset) -> Recipe:
    """Return how the artifacts are made: with the loss that the data and the options ask for."""
    mixes = [name for name in config.data.augment if name in MIXING]
    loss, given = config.make_loss(), config.fit.class_weight
    outputs = list(loss) if isinstance(loss, Mapping) else []
    check_single(outputs, has_weight=given is not None, mixes=mixes)
    weight = None
    if given is not None:
        known = config.data.classes
        if not known:
            raise InputError("class_weight: the data have no classes")
        ignored = getattr(loss, "ignore_index", None)
        weight = class_weights(given, training.labels(), len(known), known, ignored)
    if mixes or weight is not None:
        loss = adapt(loss, weight, mixes)
    return Recipe(loss, config.make_optimizer(), select_options(config.model, RecipeOptions))


def _fit_to_classes(config: RunConfig, forward: Forward, loss: object, say: Say) -> None:
    """Let the model end in one score for each class.

    Raises:
        ModelError, ShapeError: it does not, and its last layer cannot be replaced.
        InputError: it does not, and should not be replaced.
    """
    classes, head = len(config.data.classes), config.model.head
    if isinstance(loss, LossOfScores) and (op := forward.drop_activation(loss.applies)):
        say(f"model: its last op, {op}, is left out: the loss takes scores")
    if not classes or (head != "replace" and config.has_several_losses):
        return
    if head == "keep" and config.model.loss_inputs:
        return
    if head == "keep" and forward.classes != classes:
        raise InputError(
            f"the model has scores of {forward.classes} classes and the data have {classes}: leave "
            'out head = "keep", so that its last layer is replaced, or export it with as many '
            "outputs"
        )
    replaced = head != "keep" and forward.replace_head(
        classes, config.fit.seed, always=head == "replace"
    )
    if replaced:
        say(f"model: its last layer {replaced!r} is replaced, for {classes} classes")


def _choose_monitor(config: RunConfig, validates: bool) -> str:
    """Return the column of the history that decides which checkpoint is the best."""
    return config.fit.monitor or ("val_loss" if validates else "loss")


def _make_callbacks(config: RunConfig, validates: bool) -> list[Callback]:
    callbacks: list[Callback] = []
    monitor = _choose_monitor(config, validates)
    if config.fit.patience is not None:
        callbacks.append(EarlyStopping(monitor, config.fit.patience, mode=config.fit.mode))
    return [*callbacks, *config.make_trackers()]


# --- after


def _finish(trainer: Trainer, config: RunConfig, folder: Path) -> list[Path]:
    """Write what is to be used of the best parameters; returns what is there to look at."""
    best = RunFolder(folder).best
    if best is not None:
        averages.load(trainer.learner, best)
        trainer.module.export_model_for_inferencing(folder / INFERENCE, trainer.outputs)
    if config.data.classes:
        _write(folder / CLASSES, "".join(f"{name}\n" for name in config.data.classes))
    return _list_written(folder)


def _list_written(folder: Path) -> list[Path]:
    return [folder / name for name in _SHOWN if (folder / name).exists()]


def _compare_rounded(
    config: RunConfig, folder: Path, data: Dataset, threads: int | None
) -> dict[str, dict[str, float]]:
    """Measure the float model, the same model quantised without training, and the trained one.

    Returns for each metric its value for each of the three, which is also written to `ACCURACY`,
    and to the report.
    """
    files_of = {"float": FLOAT, "post_training": UNTRAINED, "aware": INFERENCE}
    sessions = [Session(str(folder / name), threads=threads) for name in files_of.values()]
    names = runs.choose_metrics(config)
    size = config.data.batch_size or BATCH_SIZE
    measured, _ = measure_models(sessions, data, size, names)
    table = {name: dict(zip(files_of, values, strict=True)) for name, values in measured.items()}
    _write(folder / ACCURACY, json.dumps(table, indent=2) + "\n")
    if (folder / REPORT).exists():  # a fit that cannot write it has warned
        _show_rounding(folder / REPORT, table)
    return table


def _show_rounding(path: Path, table: Mapping[str, Mapping[str, float]]) -> None:
    """Add a section with what `_compare_rounded` has measured to the report of a run."""
    head = ("", "float", "quantised without training", "trained with roundings")
    rows = [
        (page.escape(name), *(f"{value:.4g}" for value in values.values()))
        for name, values in table.items()
    ]
    text = path.read_text("utf-8")
    made = page.make_table(head, rows)
    _write(path, page.insert_section(text, "summary", "quantisation", "Quantisation", made))


def _test(config: RunConfig, folder: Path, data: Dataset, threads: int | None) -> dict[str, float]:
    """Measure the best model of a run on the test data."""
    trainer = Trainer.from_run(folder, threads=threads)
    size = config.data.batch_size
    return trainer.evaluate(data, batch_size=size, metrics=runs.choose_metrics(config))


def _write(path: Path, text: str) -> None:
    files.write(os.fspath(path), [text.encode()])
