"""The command `edgegrad` itself: its help, the choice of a command, completion of its words."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from engine import __version__
from engine.base.errors import suggest_nearest
from engine.tools.commands.table import COMMANDS, STATUSES


class Commands(click.Group):
    """A group that imports a command when it is chosen, and no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands that are not hidden, in the order of the help."""
        return [name for name, row in COMMANDS.items() if row.section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of a name."""
        row = COMMANDS.get(cmd_name)
        return None if row is None else row.load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command named by the first word.

        Raises:
            UsageError: there is nothing of that name; the message has the nearest ones.
        """
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(f"no command {name!r}{suggest_nearest(name, COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, from the table."""
        width = max(map(len, COMMANDS))
        for section in dict.fromkeys(row.section for row in COMMANDS.values() if row.section):
            rows = [
                (f"{n:{width}}", r.summary) for n, r in COMMANDS.items() if r.section == section
            ]
            with formatter.section(section):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands whose names start with the typed text, from the table."""
        commands = [
            CompletionItem(name, help=row.summary)
            for name, row in COMMANDS.items()
            if row.section and name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


_EXIT = "; ".join(f"{status} {meaning}" for status, meaning in STATUSES.items())


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Run `edgegrad COMMAND --help` for options and examples. Exit statuses: {_EXIT}.",
)
@click.version_option(__version__, prog_name="edgegrad", message="%(prog)s %(version)s")
def root() -> None:
    """Train ONNX models where the data is: on laptops, servers and small boards.

    \b
    To see it work:                edgegrad demo
    For a folder of pictures:      edgegrad train --model mobilenet_v3_small --data photos/
    For an ONNX model of yours:    edgegrad check model.onnx
    """
