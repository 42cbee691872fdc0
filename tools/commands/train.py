"""`edgegrad train`: from a model and data to a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engine.base import option_tables as tables
from engine.base.errors import StateError
from engine.tools.actions import run_config, training_run
from engine.tools.actions.run_config import RunConfig
from engine.tools.commands import options
from engine.trainer.runs import CONFIG

_INTERRUPTED = 130


@click.command(
    epilog=options.list_examples(
        "edgegrad train --model mobilenet_v3_small --data photos/ --epochs 10",
        "edgegrad train --model mine.onnx --data photos/",
        "edgegrad train --config run.toml --set fit.epochs=20 --set optimizer.weight_decay=0.01",
        "edgegrad train --config run.toml --resume",
    )
)
@click.option(
    "--config",
    type=options.Existing(),
    metavar="FILE",
    help="A configuration in TOML (docs/commands.md); options override it.",
)
@options.of(run_config.ModelTable, "model")
@options.of(run_config.DataTable, "data")
@click.option(
    "--label",
    multiple=True,
    metavar="COLUMN",
    help="The column of a table to predict.  Repeatable.",
)
@click.option("--optimizer", metavar="NAME", help="The optimizer.  [default: adamw]")
@click.option("--lr", type=float, metavar="RATE", help="The initial learning rate.")
@options.of(run_config.FitTable, "fit")
@options.of(run_config.OutputTable, "output")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Any other key of the configuration, such as fit.accumulate=2.  Repeatable.",
)
@click.option(
    "--find-lr",
    "picture",
    type=options.AnyPath(),
    metavar="FILE.svg",
    help="Only search for a learning rate, and plot the losses against the rates.",
)
@click.option("--resume", is_flag=True, help="Continue the run in the folder.")
@options.as_json
@options.imports
def command(
    config: Path | None,
    settings: tuple[str, ...],
    picture: Path | None,
    resume: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Train a model on a folder of data.

    The command makes the artifacts, splits the data, trains, and writes the model with the best
    parameters, inference.onnx, and a report to the folder of the run.  If a classifier has the
    wrong number of classes for the data, its last layer is replaced.  Under mpirun, all processes
    train one model together (docs/cluster.md).
    """
    asked = _merge_configuration(config, settings, resume, given)
    if picture is not None:
        return _find_rate(asked, picture, as_json)
    result = training_run.train(
        asked, resume=resume, progress=True, say=lambda text: options.echo(text, err=as_json)
    )
    if result is None:
        return 0
    folder, history = result.folder, result.history
    best = history.best(result.monitor, asked.fit.mode) if history.rows else None
    interrupted = history.stop_reason == "interrupted"
    if as_json:
        options.print_json(
            {
                "folder": folder, "wrote": result.wrote, "monitor": result.monitor, "best": best,
                "epochs": history.rows, "stop_reason": history.stop_reason,
                "classes": result.config.data.classes, "test": result.test,
                "rounding": result.rounding,
            }
        )  # fmt: skip
    else:
        if best is not None:
            told = [
                f"{name} {best[name]:.4g}"
                for name in best
                if name.startswith(("loss", "val_")) and name != "loss_scale"
            ]
            options.echo(f"best: epoch {int(best['epoch']) + 1}: {', '.join(told)}")
        if result.test is not None:
            measured = ", ".join(f"{name} {value:.4g}" for name, value in result.test.items())
            options.echo(f"test: {measured}")
        for name, values in (result.rounding or {}).items():
            before, after, aware = (f"{value:.4g}" for value in values.values())
            options.echo(f"{name}: float {before}, quantised without training {after}, now {aware}")
        options.echo(f"wrote: {', '.join(map(str, result.wrote))}")
    if interrupted:
        options.echo(f"interrupted; to continue: edgegrad train --resume -o {folder}", err=True)
    elif not as_json:
        options.echo(f"next: edgegrad predict {folder} FILE...")
    return _INTERRUPTED if interrupted else 0


# The options that are not a key of a table.
_PLACES = {"optimizer": "optimizer.name", "lr": "optimizer.lr", "label": "data.options.target"}


def _find_rate(asked: RunConfig, picture: Path, as_json: bool) -> int:
    """Search for a learning rate, and write the picture."""
    search = training_run.find_rate(asked, lambda text: options.echo(text, err=as_json))
    search.plot().save(picture)
    if as_json:
        options.print_json(
            {
                "lr": search.suggestion,
                "rates": search.rates,
                "losses": search.losses,
                "wrote": picture,
            }
        )
    else:
        options.echo(f"{search!r}")
        options.echo(f"wrote: {picture}")
    return 0


def _merge_configuration(
    path: Path | None, settings: tuple[str, ...], resume: bool, given: dict[str, Any]
) -> RunConfig:
    """Merge a file, the options and --set, in this order; to resume, use the run's own file.

    Raises:
        EngineError: a key is not known, or a value does not fit.
    """
    changes = {
        f"{table}.{key}": value
        for table, kind in run_config.TABLES.items()
        if kind is not run_config.ChosenClass
        for key, value in options.select_given(kind, table, given).items()
    }
    for name, place in _PLACES.items():
        if given[name] not in (None, ()):
            changes[place] = list(given[name]) if name == "label" else given[name]
    if resume and path is None:
        folder = changes.get("output.folder", run_config.OutputTable().folder)
        path = Path(folder) / CONFIG
        if not path.is_file():
            raise StateError(f"{path.parent} holds no run to resume: leave out --resume")
    content = {} if path is None else run_config.read(path)
    run_config.override_values(content, changes, "option")
    run_config.override_values(content, tables.parse_assignments(settings, "--set"), "--set")
    return run_config.make_config(content, "options" if path is None else str(path))
