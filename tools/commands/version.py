"""`edgegrad version`: facts for a bug report.  It reads only metadata."""

from __future__ import annotations

import platform

import click

from engine import __version__
from engine.system.installation import PACKAGES, find_version
from engine.tools.commands import options

_REPORTED = (*PACKAGES, "click", "onnxruntime", "ziglang")


@click.command(epilog=options.list_examples("edgegrad version", "edgegrad version --json"))
@options.as_json
def command(as_json: bool) -> None:
    """Print the versions of edgegrad and its dependencies."""
    packages = {name: find_version(name) for name in _REPORTED}
    python, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    if as_json:
        versions = {"edgegrad": __version__, "python": python, "system": system}
        options.print_json(versions | {"packages": packages})
        return
    options.echo(f"edgegrad {__version__}")
    options.echo(f"python {python} on {system}")
    for name, version in packages.items():
        options.echo(f"{name} {version or 'not installed'}")
