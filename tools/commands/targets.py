"""`edgegrad targets`: the devices known by name, and the linker for each."""

from __future__ import annotations

from typing import Any

import click

from engine.base.errors import EngineError
from engine.drawing.text_table import align_cells
from engine.tools.commands import options
from engine.tools.trimmed.link import find_compiler
from engine.tools.trimmed.targets import ALIASES, TARGETS, resolve


@click.command(epilog=options.list_examples("edgegrad targets", "edgegrad targets --json"))
@options.as_json
def command(as_json: bool) -> None:
    """List the devices for which builds and plans can be made.

    Each row has the LLVM triple and CPU, the linker that this machine would use, and the width of
    vectors.  Boards, chips and systems are listed under the target whose code they run.
    """
    rows: list[dict[str, Any]] = []
    for name in ("native", *TARGETS):
        resolved = resolve(name)
        try:
            compiler = find_compiler(resolved)
            linker, missing = "ziglang" if compiler.zig else compiler.command[0], ""
        except EngineError as error:
            linker, missing = "", str(error)
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
    cells = [("name", "triple", "cpu", "linked by", "vectors")]
    for name, triple, cpu, vector, linker, _ in (row.values() for row in rows):
        cells.append((name, triple, cpu, linker or "-", f"{vector} bytes"))
    options.echo(align_cells(cells, left=4))
    options.echo("other names")
    others = [(name, row.other_names) for name, row in TARGETS.items() if row.other_names]
    options.echo(align_cells(others, left=2))
    for row in rows:
        if row["missing"]:
            options.echo(row["missing"])
