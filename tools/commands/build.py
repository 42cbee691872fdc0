"""`edgegrad build`: a library that trains one model, or that has the kernels for a set of ops."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from engine.base.plan_options import PlanOptions
from engine.tools.commands import options
from engine.tools.trimmed import opset
from engine.tools.trimmed.api import Only
from engine.tools.trimmed.bindings.languages import LANGUAGES, parse_languages
from engine.tools.trimmed.build import build, build_library
from engine.tools.trimmed.decoders import DecoderOptions
from engine.tools.trimmed.names import make_name
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.progress import StagePrinter
from engine.tools.trimmed.report import write_report
from engine.tools.trimmed.targets import resolve


@click.command(
    epilog=options.list_examples(
        "edgegrad build artifacts/ --target raspberrypi4 --batch 8 --name mnist -o build/",
        "edgegrad build --ops required_operators.config --name ops -o build/",
    )
)
@click.argument("artifacts", required=False, type=options.Existing(), metavar="[ARTIFACTS]")
@options.take_out("Folder to write to.", required=True)
@options.batch
@options.shape
@options.take_threads("1")
@options.take_target
@options.take_output_names
@click.option(
    "--ops",
    type=options.Existing(),
    metavar="CONFIG",
    help="Make a library with the kernels for the ops in a config; it runs plans from `edgegrad "
    "plan`.",
)
@click.option(
    "--models",
    type=options.Existing(),
    multiple=True,
    metavar="FOLDER",
    help="With --ops: artifacts whose kernels the library must contain.  Repeatable.",
)
@click.option(
    "--name", default="", help="Prefix of all names.  [default: derived from the folder's name]"
)
@click.option("--static", is_flag=True, help="Make an archive, not a shared library.")
@click.option("--size", is_flag=True, help="Prefer small code over fast code.")
@click.option(
    "--freestanding",
    is_flag=True,
    help="Make an archive that needs no C library: the caller provides memory and threads.",
)
@click.option(
    "--joined",
    is_flag=True,
    help="Let training steps update each parameter as soon as its gradient is complete: this needs "
    "no memory for gradients, but excludes accumulation.",
)
@options.take_planning
@click.option(
    "--federated",
    is_flag=True,
    help="Add functions for taking part in a federation, an example in C, and a Python package.",
)
@click.option(
    "--bindings",
    type=parse_languages,
    default="",
    metavar="LANGUAGE,...",
    help=f"Also write packages for these languages: {', '.join(LANGUAGES)}.",
)
@click.option(
    "--export",
    is_flag=True,
    help="Add the graph of the inference model, so that the library can write ONNX files.",
)
@click.option(
    "--only",
    type=click.Choice([use for use in get_args(Only) if use]),
    help="Leave out all plans, kernels and functions that this use does not need.",
)
@click.option(
    "--decoder",
    type=options.Existing(),
    metavar="MODEL",
    help="Add a decoder with caches, which continues texts with the parameters of the artifacts, "
    "or without artifacts with its own.  [default: decoder.onnx in the folder, with --positions]",
)
@click.option(
    "--positions",
    type=int,
    metavar="N",
    help="The number of tokens that the decoder's caches hold.",
)
@click.option(
    "--prompt",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of prompt tokens to process together.  [default: 16]",
)
@click.option(
    "--report",
    is_flag=True,
    help="Show the bytes of each kernel and table of the library, and of each region of a model.",
)
@click.option("--compiler", default="", metavar="COMMAND", help="C compiler to link with, or zig.")
@options.as_json
@options.imports
def command(
    artifacts: Path | None,
    out: Path,
    batches: tuple[int, ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    threads: int | None,
    target: str,
    triple: str,
    cpu: str,
    features: str | None,
    outputs: tuple[str, ...],
    ops: Path | None,
    models: tuple[Path, ...],
    name: str,
    static: bool,
    size: bool,
    freestanding: bool,
    joined: bool,
    planning: PlanOptions,
    federated: bool,
    bindings: tuple[str, ...],
    export: bool,
    only: Only | None,
    decoder: Path | None,
    positions: int | None,
    prompt: int | None,
    report: bool,
    compiler: str,
    as_json: bool,
) -> None:
    """Make a small library that trains one model on a device.

    Call it from C, C++ and Python (docs/trimmed-builds.md), and from the languages of --bindings
    (docs/everywhere.md), whose packages can contain a library for each of several targets:
    --target NAME,NAME.  Plans for several batch sizes share their memory.
    """
    if (artifacts is None and decoder is None) == (ops is None):
        raise click.UsageError("give a folder of artifacts, or --ops CONFIG, or --decoder MODEL")
    if positions is None and (decoder is not None or prompt is not None):
        raise click.UsageError("a decoder has caches: give --positions, the tokens that they hold")
    if planning.budget is not None and ops is not None:
        raise click.UsageError("--budget is for plans, and a library of ops has none")
    if planning.precision != "f32" and ops is not None:
        raise click.UsageError(
            f"--precision {planning.precision}: a library of ops computes in f32; a library of "
            "artifacts also in bf16 and f16"
        )
    if federated and ops is not None:
        raise click.UsageError("--federated is for artifacts, and a library of ops has none")
    if bindings and ops is not None:
        raise click.UsageError("--bindings is for artifacts, and a library of ops has none")
    target, *others = target.split(",")
    if others and not bindings:
        raise click.UsageError(
            "several targets need --bindings, whose packages hold several libraries"
        )
    words = {"--export": export, "--report": report, "--only": only, "--positions": positions}
    if ops is not None and (asked_for := next((w for w, given in words.items() if given), "")):
        raise click.UsageError(f"{asked_for} is for artifacts, and a library of ops has none")
    source = ops.parent if ops is not None else artifacts or decoder
    assert source is not None
    wanted = None
    if positions is not None:
        wanted = DecoderOptions(positions, prompt or 0, decoder)
    source = source.resolve()
    asked = Options(
        name or make_name(source.name if artifacts or ops else source.stem),
        resolve(target, triple=triple, cpu=cpu, features=features),
        PlanRequest(
            batches,
            threads or 1,
            shapes=dict(shapes),
            outputs=outputs,
            joined=joined,
            planning=planning,
            only=only or "",
            size=size,
            decoder=wanted,
        ),
        static=static,
        freestanding=freestanding,
        compiler=compiler,
        federated=federated,
        bindings=bindings,
        also=[resolve(name) for name in others],
        export=export,
    )
    if ops is not None:
        manifest = build_library(opset.read(ops), models, out, asked, StagePrinter())
    else:
        manifest = build(artifacts, out, asked, StagePrinter())
    if as_json:
        options.print_json(manifest)
        return
    if ops is not None:
        options.echo(f"{len(manifest['kernels'])} kernels")
    for key in ("library", "memory", "plans", "constants"):
        if key in manifest["sizes"]:
            options.echo(f"{key:10s}{manifest['sizes'][key]:>12,} bytes")
    for line in manifest.get("plans", {}).values():
        options.echo(line)
    if only:
        options.echo(f"functions: {', '.join(manifest['functions'])}")
    if report:
        for line in write_report(manifest["report"]):
            options.echo(line)
