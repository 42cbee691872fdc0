"""`edgegrad train`: from a model and data to a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engine.errors import StateError
from engine.tools import run_config, runs, tables, training_run
from engine.tools.commands import options
from engine.tools.run_config import RunConfig

_INTERRUPTED = 130


@click.command(
    epilog=options.examples(
        "edgegrad train --model mobilenet.onnx --data photos/ --epochs 10",
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
@click.option("--model", metavar="PATH", help="The forward model, an ONNX file.")
@click.option("--data", metavar="PATH", help="A folder or a file of data.")
@options.out("The folder of the run.  [default: run]")
@click.option("--kind", type=click.Choice(run_config.KINDS), help="The kind of data.")
@click.option(
    "--validation",
    metavar="SHARE|PATH",
    help="Validation data: a share of the data, or a path.  [default: 0.2]",
)
@click.option(
    "--label", multiple=True, metavar="COLUMN", help="The column of a table to predict; repeat."
)
@options.batch_size
@click.option("--epochs", type=int, metavar="N", help="Passes over the data.  [default: 10]")
@click.option(
    "--loss", metavar="NAME", help="The loss to minimise.  [default: one that fits the data]"
)
@click.option("--optimizer", metavar="NAME", help="The optimizer.  [default: adamw]")
@click.option("--lr", type=float, metavar="RATE", help="The initial learning rate.")
@click.option(
    "--train",
    multiple=True,
    metavar="PATTERN",
    help="Parameters to train, such as 'classifier.*'; repeat; '!PATTERN' excludes.  "
    "[default: all]",
)
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="A metric to measure; repeat."
)
@click.option(
    "--augment", multiple=True, metavar="NAME", help="An augmentation, such as flip; repeat."
)
@click.option("--patience", type=int, metavar="N", help="Stop after N epochs without improvement.")
@click.option("--hours", type=float, metavar="H", help="Stop after this time.")
@click.option("--seed", type=int, metavar="N", help="Seed of all random numbers.  [default: 0]")
@options.threads("all cores")
@click.option(
    "--memory-budget",
    metavar="BYTES",
    help="Memory limit for the plan of a step, such as 48MB or 1.5GiB.",
)
@click.option(
    "--skip-nonfinite",
    is_flag=True,
    default=None,
    help="Skip updates whose gradients are not finite, and count them.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Any other key of the configuration, such as fit.accumulate=2; repeat.",
)
@click.option("--resume", is_flag=True, help="Continue the run in the folder.")
@options.as_json
@options.imports
def command(
    config: Path | None, settings: tuple[str, ...], resume: bool, as_json: bool, **given: Any
) -> int:
    """Train a model on a folder of data.

    It makes the artifacts, splits the data, trains, and leaves the best parameters as
    inference.onnx, with a report, in the folder of the run.  If a classifier's number of outputs
    differs from the number of classes in the data, its last layer is replaced.  Under mpirun all
    processes train one model together, see docs/cluster.md.
    """
    asked = _configuration(config, settings, resume, given)
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
                "classes": result.config.data.classes,
            }
        )  # fmt: skip
    else:
        if best is not None:
            told = [
                f"{name} {best[name]:.4g}" for name in best if name.startswith(("loss", "val_"))
            ]
            options.echo(f"best: epoch {int(best['epoch']) + 1}: {', '.join(told)}")
        options.echo(f"wrote: {', '.join(map(str, result.wrote))}")
    if interrupted:
        options.echo(f"interrupted; to continue: edgegrad train --resume -o {folder}", err=True)
    elif not as_json:
        options.echo(f"next: edgegrad predict {folder} FILE...")
    return _INTERRUPTED if interrupted else 0


_PLACES = {  # of options in the configuration
    "model": "model.path", "loss": "model.loss", "train": "model.train",
    "data": "data.path", "kind": "data.kind", "validation": "data.validation",
    "batch_size": "data.batch_size", "augment": "data.augment", "label": "data.options.target",
    "optimizer": "optimizer.name", "lr": "optimizer.lr",
    "epochs": "fit.epochs", "metrics": "fit.metrics", "patience": "fit.patience",
    "hours": "fit.hours", "seed": "fit.seed", "threads": "fit.threads", "out": "output.folder",
    "memory_budget": "fit.memory_budget", "skip_nonfinite": "fit.skip_nonfinite",
}  # fmt: skip


def _configuration(
    path: Path | None, settings: tuple[str, ...], resume: bool, given: dict[str, Any]
) -> RunConfig:
    """Merge a file, the options and --set, in this order; to resume, use the run's own file.

    Raises:
        EngineError: a key is not known, or a value does not fit.
    """
    values: dict[str, Any] = {n: list(v) if isinstance(v, tuple) else v for n, v in given.items()}
    values["out"] = None if given["out"] is None else str(given["out"])
    if given["validation"] is not None:
        values["validation"] = tables.value_of(given["validation"])
    changes = {place: values[n] for n, place in _PLACES.items() if values[n] not in (None, [])}
    if resume and path is None:
        path = Path(values["out"] or run_config.OutputTable().folder) / runs.CONFIG
        if not path.is_file():
            raise StateError(f"{path.parent} holds no run to resume: leave out --resume")
    found = {} if path is None else run_config.read(path)
    run_config.override(found, changes, "option")
    run_config.override(found, tables.assignments(settings, "--set"), "--set")
    return run_config.config_of(found, "options" if path is None else str(path))
