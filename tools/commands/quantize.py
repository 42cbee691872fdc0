"""`edgegrad quantize`: a trained float model as one of 8-bit integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engine.base import option_tables as tables
from engine.quantization import Quantization
from engine.tools.actions import quantization
from engine.tools.actions.run_config import DataTable
from engine.tools.commands import options


@click.command(
    epilog=options.list_examples(
        "edgegrad quantize run -o int8.onnx",
        "edgegrad quantize inference.onnx --calibrate photos/ --validate test/ -o int8.onnx",
        "edgegrad quantize m.onnx --calibrate rows.csv --label price --method entropy -o int8.onnx",
    )
)
@click.argument("model", type=options.Existing(), metavar="MODEL|RUN")
@options.take_out("File to write.", required=True)
@click.option(
    "--calibrate",
    "data",
    metavar="PATH",
    default="",
    help="A folder or a file of data like those that the model will get.  [default: the run's "
    "data]",
)
@click.option(
    "--validate",
    "validation",
    metavar="PATH",
    help="Other data, to measure both models with.  [default: the calibration data]",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of samples to calibrate with, evenly spaced.  [default: all]",
)
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="A metric to measure.  Repeatable."
)
@click.option(
    "--label", multiple=True, metavar="COLUMN", help="The target of a table.  Repeatable."
)
@click.option(
    "--option",
    "given",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the data, such as scale=none (docs/data.md).  Repeatable.",
)
@options.of(Quantization, "quantization")
@options.as_json
@options.imports
def command(
    model: Path,
    out: Path,
    data: str,
    validation: str | None,
    samples: int | None,
    metrics: tuple[str, ...],
    label: tuple[str, ...],
    given: tuple[str, ...],
    as_json: bool,
    **values: Any,
) -> None:
    """Quantise a trained float model to 8-bit integers, and measure the loss of accuracy.

    The file has QuantizeLinear and DequantizeLinear around its products, and runs wherever ONNX
    does.  From a run, it takes inference.onnx, and prepares the data as in training.
    """
    asked = tables.parse_assignments(given, "--option")
    if label:
        asked["target"] = list(label)
    chosen = Quantization(**options.select_given(Quantization, "quantization", values))
    outcome = quantization.quantise_file(
        model, out, DataTable(path=data, options=asked), validation, samples, metrics, chosen
    )
    if as_json:
        options.print_json({"file": out, **outcome.to_dict()})
        return
    options.echo(str(outcome.made))
    options.echo(f"measured with {outcome.samples:,} samples of {outcome.measured}:")
    for name, (before, after) in outcome.metrics.items():
        options.echo(f"  {name:12s} float {before:.6g}, quantised {after:.6g}")
    options.echo(f"  signal-to-noise ratio of the output: {outcome.decibels:.1f} dB")
    options.echo(f"{out}: {out.stat().st_size:,} bytes")
