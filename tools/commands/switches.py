"""`edgegrad switches`: the environment variables that change the behaviour of edgegrad."""

from __future__ import annotations

import os

import click

from engine.system.config import PREFIX, SWITCHES
from engine.tools.commands import options


@click.command(epilog=options.list_examples("edgegrad switches"))
@options.as_json
def command(as_json: bool) -> None:
    """List the EDGEGRAD_* environment variables and their values.

    They change defaults, limits and where files are kept; options of commands override them.
    """
    rows: dict[str, dict[str, str | None]] = {
        PREFIX + name: {"value": os.environ.get(PREFIX + name) or None, "meaning": meaning}
        for name, meaning in SWITCHES.items()
    }
    for name in sorted(os.environ):  # every command but this refuses them
        if name.startswith(PREFIX) and name not in rows:
            rows[name] = {"value": os.environ[name], "meaning": None}
    if as_json:
        options.print_json(rows)
        return
    for name, row in rows.items():
        value = "" if row["value"] is None else f"={row['value']}"
        options.echo(f"{name}{value}\n    {row['meaning'] or 'unknown: an error elsewhere'}")
