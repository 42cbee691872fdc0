"""`edgegrad export`: a trained model as plain ONNX, or as artifacts to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from engine.tools.actions import runs
from engine.tools.commands import options
from engine.trainer.trainer import Trainer
from engine.training.artifact_set import TRAINING


@click.command(
    epilog=options.list_examples(
        "edgegrad export run -o model.onnx",
        "edgegrad export artifacts/ -o model.onnx",
        "edgegrad export run --artifacts -o device/        # for a device that continues training",
    )
)
@click.argument("run", type=options.Existing(), metavar="RUN|ARTIFACTS")
@options.take_out("File to write; with --artifacts a folder.", required=True)
@options.checkpoint
@options.take_output_names
@click.option(
    "--artifacts",
    "as_artifacts",
    is_flag=True,
    help="Write the artifacts of a run, with its trained parameters as initial values.",
)
@options.as_json
@options.imports
def command(
    run: Path,
    out: Path,
    checkpoint: Literal["best", "last"],
    outputs: tuple[str, ...],
    as_artifacts: bool,
    as_json: bool,
) -> None:
    """Write a trained model as plain ONNX, for inference anywhere.

    For a folder of artifacts, the parameters come from its checkpoint.
    """
    if as_artifacts and outputs:
        raise click.UsageError("--output is for the export to ONNX: leave it out")
    if (run / TRAINING).is_file() and not as_artifacts:
        trainer = Trainer(run)
    else:
        runs.read_config(run)
        trainer = Trainer.from_run(run, checkpoint)
    if as_artifacts:
        written = runs.write_trained(run, trainer, out)
    else:
        trainer.export(out, list(outputs) or None)
        written = [out]
    if as_json:
        sizes = {str(path): path.stat().st_size for path in written}
        options.print_json({"files": sizes, "outputs": outputs or trainer.outputs})
        return
    for path in written:
        options.echo(f"{path}: {path.stat().st_size:,} bytes")
