"""`edgegrad targets`: the devices known by name, and the linker for each."""

from __future__ import annotations

from typing import Any

import click

from engine.base.errors import EngineError
from engine.tools.commands import options
from engine.tools.trimmed.link import find_compiler
from engine.tools.trimmed.targets import ALIASES, TARGETS, resolve


@click.command(epilog=options.list_examples("edgegrad targets", "edgegrad targets --json"))
@options.as_json
def command(as_json: bool) -> None:
    """List the devices for which builds and plans can be made.

    Each row has the LLVM triple and CPU, the width of vectors, and the linker that this machine
    would use.
    """
    rows: list[dict[str, Any]] = []
    for name in ("native", *TARGETS):
        resolved = resolve(name)
        try:
            compiler = find_compiler(resolved)
            linker, missing = "ziglang" if compiler.zig else compiler.command[0], ""
        except EngineError as error:
            linker, missing = "", str(error).partition(": ")[2]
        t = resolved.target
        rows.append(
            {
                "name": name, "triple": t.triple, "cpu": resolved.cpus,
                "vector_bytes": resolved.targets[0].vector,
                "linker": linker, "missing": missing,
            }
        )  # fmt: skip
    if as_json:
        options.print_json({"targets": rows, "other_names": ALIASES})
        return
    options.echo(f"{'name':18} {'triple':28} {'cpu':29} {'vectors':8} linked by")
    for name, triple, cpu, vector, linker, missing in (row.values() for row in rows):
        options.echo(f"{name:18} {triple:28} {cpu:29} {vector:2} bytes {linker or missing}")
    options.echo("other names: " + ", ".join(f"{a} = {b}" for a, b in ALIASES.items()))
