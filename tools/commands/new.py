"""`edgegrad new`: a project to start from."""

from __future__ import annotations

from pathlib import Path

import click

from engine.tools.actions import templates
from engine.tools.commands import options


@click.command(
    epilog=options.list_examples(
        "edgegrad new                                    # lists the templates",
        "edgegrad new image-classifier my-app",
    )
)
@click.argument("template", required=False)
@click.argument("folder", required=False, type=options.AnyPath())
@options.as_json
def command(template: str | None, folder: Path | None, as_json: bool) -> None:
    """Start a project: copy a template that runs.

    Without arguments, list the templates.
    """
    if template is None:
        known = templates.list_templates()
        if as_json:
            options.print_json(known)
        for name, title in known.items() if not as_json else ():
            options.echo(f"{name:20s} {title}")
        return
    if folder is None:
        raise click.UsageError(
            "give the folder of the project, as in: edgegrad new TEMPLATE my-app"
        )
    made = templates.copy(template, folder)
    steps = [f"cd {folder}", *templates.list_first_commands(template)]
    if as_json:
        options.print_json({"folder": folder, "wrote": made, "next": steps})
        return
    options.echo("wrote:")
    for path in made:
        options.echo(f"  {path}")
    options.echo("next:")
    for step in steps:
        options.echo(f"  {step}")
