"""`edgegrad switches`: the environment variables that change the behaviour of edgegrad."""

from __future__ import annotations

import click

from engine.system.config import PREFIX, SWITCHES, switch
from engine.tools.commands import options


@click.command(epilog=options.list_examples("edgegrad switches"))
@options.as_json
def command(as_json: bool) -> None:
    """List the EDGEGRAD_* environment variables and their values.

    They change defaults, limits and where files are kept; options of commands override them.
    """
    values = {name: switch(name) for name in SWITCHES}
    if as_json:
        options.print_json(
            {
                PREFIX + name: {"value": values[name] or None, "meaning": meaning}
                for name, meaning in SWITCHES.items()
            }
        )
        return
    for name, meaning in SWITCHES.items():
        value = values[name]
        options.echo(f"{PREFIX}{name}{'=' + value if value else ''}\n    {meaning}")
