"""`edgegrad completion`: a script for a shell, which completes commands, options and paths."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from engine.tools.commands import options

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=options.list_examples(
        'eval "$(edgegrad completion bash)"                                    # in ~/.bashrc',
        'eval "$(edgegrad completion zsh)"                                     # in ~/.zshrc',
        "edgegrad completion fish > ~/.config/fish/completions/edgegrad.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands in a shell.

    It completes the names of commands and options, values of options, and paths.  Bash must be
    version 4.4 or newer.
    """
    completion = get_completion_class(shell)
    assert completion is not None, shell
    root = ctx.find_root()
    click.echo(completion(root.command, {}, "edgegrad", "_EDGEGRAD_COMPLETE").source())
