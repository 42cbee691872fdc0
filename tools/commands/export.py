"""`edgegrad export`: a trained model as plain ONNX."""

from __future__ import annotations

from pathlib import Path

import click

from engine.tools import training_run
from engine.tools.commands import options
from engine.trainer.trainer import Trainer


@click.command(
    epilog=options.examples(
        "edgegrad export run -o model.onnx",
        "edgegrad export artifacts/ -o model.onnx",
    )
)
@click.argument("run", type=options.Existing(), metavar="RUN|ARTIFACTS")
@options.out("File to write.", required=True)
@options.checkpoint
@options.output_names
@options.as_json
@options.imports
def command(run: Path, out: Path, checkpoint: str, outputs: tuple[str, ...], as_json: bool) -> None:
    """Write a trained model as plain ONNX, for inference anywhere.

    Of a folder of artifacts, the parameters are those of its checkpoint.
    """
    if (run / "training_model.onnx").is_file():
        trainer = Trainer(run)
    else:
        training_run.read_config(run)
        trainer = training_run.open_trainer(run, checkpoint, None)
    trainer.export(out, list(outputs) or None)
    size = out.stat().st_size
    if as_json:
        options.print_json({"file": out, "bytes": size, "outputs": outputs or trainer.outputs})
    else:
        click.echo(f"{out}: {size:,} bytes")
