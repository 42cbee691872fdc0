"""`edgegrad show`: what became a part of `edgegrad plan`, kept for those who type it."""

from __future__ import annotations

import click

from engine.tools.commands import options, plan


@click.command(
    hidden=True,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Print the plan of a model; now a part of `edgegrad plan`."""
    options.echo("edgegrad show is now `edgegrad plan`, with the same options", err=True)
    name = f"{ctx.find_root().info_name} plan"
    with plan.command.make_context(name, list(words)) as inner:
        status: int = plan.command.invoke(inner)
    return status
