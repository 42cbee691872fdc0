"""`edgegrad artifacts`: the offline phase as one command."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from engine.base import option_tables as tables
from engine.base.errors import FileError
from engine.base.sparse_update import SparseUpdate
from engine.tools.actions.artifacts import write_artifacts
from engine.tools.commands import options
from engine.trainer import names
from engine.trainer.forward import Forward
from engine.trainer.recipe import Recipe
from engine.training.artifact_set import CHECKPOINT, NAMES
from engine.training.settings import RecipeOptions

_FILES = (*NAMES, CHECKPOINT)


@click.command(
    epilog=options.list_examples(
        "edgegrad artifacts forward.onnx --loss cross_entropy -o artifacts/",
        "edgegrad artifacts mobilenet.onnx --loss cross_entropy --train 'classifier.*' \\",
        "    --optimizer sgd --optimizer-option momentum=0.9 --lr 0.01 --classes 5 -o artifacts/",
        "edgegrad artifacts mobilenet.onnx --loss cross_entropy --biases --last 1 \\",
        "    --channels 'features.1[0-4].*=0.25' -o artifacts/",
    )
)
@click.argument("model", type=options.Existing(), metavar="MODEL")
@options.take_out("Folder to write to.", required=True)
@click.option(
    "--loss",
    required=True,
    metavar="NAME",
    help="The loss to minimise: "
    + ", ".join(names.list_losses())
    + "; none: minimise the model's first output.",
)
@click.option(
    "--loss-option",
    "loss_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the loss, such as label_smoothing=0.1.  Repeatable.",
)
@click.option(
    "--optimizer",
    default="adamw",
    show_default=True,
    metavar="NAME",
    help="The optimizer: " + ", ".join(names.list_optimizers()) + "; or none.",
)
@click.option(
    "--optimizer-option",
    "optimizer_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the optimizer, such as weight_decay=0.01.  Repeatable.",
)
@click.option("--lr", type=float, metavar="RATE", help="The initial learning rate.")
@click.option(
    "--train",
    multiple=True,
    default=("*",),
    metavar="PATTERN",
    help="Parameters to train, such as 'classifier.*'; '!PATTERN' excludes some.  "
    "Repeatable.  [default: all]",
)
@click.option(
    "--layers",
    multiple=True,
    metavar="PATTERN",
    help="Sparse update: of the parameters of --train, train only those with matching names or "
    "in matching layers, and those that the next four options select.  Repeatable.",
)
@click.option("--biases", is_flag=True, help="Sparse update: train all biases.")
@click.option("--norms", is_flag=True, help="Sparse update: train scales and shifts of norms.")
@click.option(
    "--last",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Sparse update: train the last N layers.",
)
@click.option(
    "--channels",
    multiple=True,
    metavar="PATTERN=SHARE",
    help="Sparse update: train the first input channels of matching weights, such as "
    "'*.conv2.*=0.25'.  Repeatable.",
)
@click.option(
    "--integers",
    is_flag=True,
    help="Sparse update: quantised weights and biases are chosen, too, and trained as integers in "
    "place, by --optimizer SGD; --layers '*' trains all.",
)
@click.option(
    "--residuals",
    is_flag=True,
    help="Sparse update: integers of 4 bits keep in training what rounding leaves of them, in 4 "
    "more bits; with --integers.",
)
@options.take_output_names
@options.of(RecipeOptions, "recipe")
@click.option(
    "--classes",
    type=click.IntRange(min=2),
    metavar="N",
    help="Replace the last layer unless it has N outputs.",
)
@options.seed
@click.option("--force", is_flag=True, help="Overwrite artifacts, and the checkpoint with them.")
@options.as_json
@options.imports
def command(
    model: Path,
    out: Path,
    loss: str,
    loss_options: tuple[str, ...],
    optimizer: str,
    optimizer_options: tuple[str, ...],
    lr: float | None,
    train: tuple[str, ...],
    layers: tuple[str, ...],
    biases: bool,
    norms: bool,
    last: int,
    channels: tuple[str, ...],
    integers: bool,
    residuals: bool,
    outputs: tuple[str, ...],
    classes: int | None,
    seed: int,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Make a forward model trainable: write its artifacts.

    These are the training model, the eval model, the optimizer model and the checkpoint.
    """
    there = [name for name in _FILES if (out / name).exists()]
    if there and not force:
        raise FileError(
            f"{out} has artifacts already ({there[0]}): give another folder, or --force"
        )
    settings = tables.parse_assignments(optimizer_options, "--optimizer-option")
    if lr is not None:
        settings["lr"] = lr
    chosen = None
    if loss != "none":
        chosen = names.make_loss(
            loss, tables.parse_assignments(loss_options, "--loss-option"), "--loss"
        )
    method = (
        None if optimizer == "none" else names.make_optimizer(optimizer, settings, "--optimizer")
    )
    update = None
    if layers or biases or norms or last or channels or integers or residuals:
        shares = tables.parse_assignments(channels, "--channels")
        update = SparseUpdate(
            layers=layers,
            biases=biases,
            norms=norms,
            last=last,
            channels=shares,
            integers=integers,
            residuals=residuals,
        )
    recipe = Recipe(
        chosen,
        method,
        RecipeOptions(update=update, **options.select_given(RecipeOptions, "recipe", given)),
        outputs,
    )
    forward = Forward(model)
    replaced = "" if classes is None else forward.replace_head(classes, seed)
    written = write_artifacts(forward, out, recipe, train)
    sizes = {n: os.path.getsize(out / n) for n in _FILES if (out / n).exists()}
    if as_json:
        options.print_json(
            {"folder": out, "files": sizes, "replaced_layer": replaced or None, **asdict(written)}
        )
        return
    if replaced:
        options.echo(f"the last layer {replaced!r} is replaced, for {classes} classes")
    options.echo(f"trained: {written.trained_values:,} values in {len(written.trained)} parameters")
    options.echo(f"frozen: {written.frozen_values:,} values in {len(written.frozen)} parameters")
    for name, size in sizes.items():
        options.echo(f"  {out / name}  {size:,} bytes")
    options.echo(f"next: edgegrad prepare {out} --batch 8")
