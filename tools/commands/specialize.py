"""`edgegrad specialize`: a model for known values and shapes of its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engine.artifacts.specialization import specialize
from engine.tools.commands import options


@click.command(
    epilog=options.list_examples(
        "edgegrad specialize vad.onnx --value sr=16000 --shape input=batch,512 -o vad16k.onnx",
        "edgegrad specialize detector.onnx --shape images=1,3,320,320 -o detector320.onnx",
    )
)
@click.argument("model", type=options.Existing(), metavar="MODEL")
@options.take_out("File to write.", required=True)
@click.option(
    "--value",
    "values",
    type=options.parse_named_value,
    multiple=True,
    metavar="NAME=VALUE",
    help="The value of an input, which the new model does not have.  Repeatable.",
)
@click.option(
    "--shape",
    "shapes",
    type=options.parse_partial_shape,
    multiple=True,
    metavar="NAME=D,D,...",
    help="The shape of an input; a name leaves a dimension as it is.  Repeatable.",
)
@options.as_json
def command(
    model: Path,
    out: Path,
    values: tuple[tuple[str, Any], ...],
    shapes: tuple[tuple[str, tuple[int | str, ...]], ...],
    as_json: bool,
) -> None:
    """Make a model for known values and shapes of its inputs.

    Branches that these decide are replaced by their nodes, so that the weights in them can be
    trained.
    """
    if not values and not shapes:
        raise click.UsageError("give --value or --shape, or both")
    made = specialize(str(model), dict(values), dict(shapes))
    made.save(out)
    if as_json:
        options.print_json({"file": out, **made.to_dict()})
        return
    options.echo(str(made))
