"""Page of commands: the parts of docs/commands.md generated from the commands themselves."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from engine.base import option_tables as tables
from engine.base.errors import InputError
from engine.base.fields import list_options, read_declaration
from engine.data.images import Images
from engine.data.sounds import Sounds
from engine.data.tables import Table
from engine.data.texts import LabelledTexts, Texts
from engine.tools.actions import run_config
from engine.tools.commands.root import root
from engine.tools.commands.table import COMMANDS, STATUSES
from engine.trainer import names

_DATASETS: dict[str, Any] = {
    "images": Images, "sounds": Sounds, "csv": Table, "text": Texts,
    "text with labelled = true": LabelledTexts,
}  # fmt: skip
_OURS = {
    "folder",
    "label",
    "path",
    "source",
    "classes",
    "labelled",
    "preparation",
}  # not from the file


def describe_commands() -> str:
    """Describe every command: its help, arguments and options, examples."""
    return "\n".join(_describe_command(name) for name, row in COMMANDS.items() if row.section)


def _describe_command(name: str) -> str:
    command = COMMANDS[name].load()
    with root.make_context("edgegrad", [], resilient_parsing=True) as outer:
        context = click.Context(command, outer, name)
        usage = command.get_usage(context).removeprefix("Usage: ")
        usage = " ".join(usage.split())
        lines = [f"### edgegrad {name}\n", f"```text\n{usage}\n```\n"]
        lines += [inspect.cleandoc(command.help or "") + "\n"]
        rows = [o.get_help_record(context) for o in command.params if isinstance(o, click.Option)]
        shown = [row for row in rows if row is not None]
        if shown:
            lines.append("| option | |\n|---|---|")
            lines += [
                f"| `{_escape_cell(words)}` | {_escape_cell(text)} |" for words, text in shown
            ]
            lines.append("")
    if command.epilog:
        examples = command.epilog.replace("\b\n", "").partition("\n")[2]
        lines.append(f"```text\n{inspect.cleandoc(examples)}\n```\n")
    return "\n".join(lines)


def _escape_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def list_statuses() -> str:
    """List the exit statuses that all commands share."""
    rows = "\n".join(f"| {status} | {meaning} |" for status, meaning in STATUSES.items())
    return f"| status | meaning |\n|---|---|\n{rows}\n"


def list_configuration() -> str:
    """List all tables of run.toml, with the types and defaults of their keys."""
    return "\n".join(_list_tables())


def _list_tables() -> Iterator[str]:
    for name, kind in run_config.TABLES.items():
        yield f"### [{name}]\n"
        yield f"{inspect.getdoc(kind)}\n"
        if kind is run_config.ChosenClass:
            yield from _list_choices(name)
            continue
        yield "| key | type | default | |\n|---|---|---|---|"
        known = tables.list_options(kind)
        for field in list_options(kind):
            option, text = known[field.name], read_declaration(field).text
            yield (
                f"| `{field.name}` | {_name_type(option)} | {_format_default(option)} | "
                f"{_escape_cell(text)} |"
            )
        yield ""
        if name == "model":
            losses = ", ".join(f"`{each}`" for each in names.list_losses())
            yield f"`loss` is one of {losses}; [docs/losses.md](losses.md) has their options.\n"
        if name == "data":
            yield from _list_datasets()


def _list_choices(name: str) -> Iterator[str]:
    makers: Mapping[str, Callable[..., Any]] = names.schedule_kinds()
    if name == "optimizer":
        makers = names.list_optimizers()
    default = getattr(run_config.RunConfig(), name).name
    yield (
        f"By default, `name` is `{default}`.  In Python, `help` of the class explains the options, "
        f"such as `help(edgegrad.{makers[default].__name__})`.\n"
    )
    yield "| name | options |\n|---|---|"
    for each, maker in makers.items():
        yield f"| `{each}` | {_list_options(maker, set())} |"
    yield ""


def _list_datasets() -> Iterator[str]:
    yield "`options` of the kinds, which [docs/data.md](data.md) explains:\n"
    yield "| kind | options |\n|---|---|"
    for kind, maker in _DATASETS.items():
        yield f"| {kind} | {_list_options(maker, _OURS)} |"
    yield ""


def _list_options(maker: Callable[..., Any], left_out: set[str]) -> str:
    """List options, with their defaults if TOML can express them."""
    shown = []
    for name, option in tables.list_options(maker).items():
        if name not in left_out:
            default = _format_default(option).strip("`")
            shown.append(f"`{name} = {default}`" if default else f"`{name}`")
    return ", ".join(shown) or "none"


def _name_type(option: tables.Option) -> str:
    return _escape_cell(tables.describe(option.type))


def _format_default(option: tables.Option) -> str:
    """Return the default in TOML; empty if there is none, or if it stands for another one."""
    if option.default is None or option.default is dataclasses.MISSING:
        return ""
    try:
        return f"`{_escape_cell(run_config.format_toml(option.default))}`"
    except InputError:  # it has None in it
        return ""


# The parts by name, made by `python -m engine.tools.dev.tables`.
PARTS: dict[str, Callable[[], str]] = {
    "commands": lambda: f"\n{describe_commands()}\n",
    "statuses": lambda: f"\n{list_statuses()}\n",
    "configuration": lambda: f"\n{list_configuration()}\n",
}
