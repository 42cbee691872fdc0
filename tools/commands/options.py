"""The options and arguments that commands share: one name, one meaning, one check."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import math
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from engine.base import foreign_text
from engine.base.plan_options import CHOICES, DEFAULTS, HELP, MAX_THREADS, PlanOptions, Precision
from engine.tools.actions import extensions

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]
LONGEST = 1000  # numbers of a range `A-B`
MOST_COUNT = (1 << 31) - 1  # samples, and each dimension of a shape
MOST_ELEMENTS = 1 << 58  # of an input: NumPy refuses more, at 8 bytes each, with its own words
COUNT = click.IntRange(1, MOST_COUNT)


class AnyPath(click.Path):
    """The path of a file or folder, whether it exists or not.

    An empty word, such as an unset variable of a shell in quotes, would mean the current folder.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "" and not (ctx and ctx.resilient_parsing):
            self.fail("an empty path; the current folder is '.'", param, ctx)
        return Path(os.fsdecode(super().convert(value, param, ctx)))


class Existing(AnyPath):
    """The path of an existing file or folder.  A missing one is an error with status 1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            FileError: it does not exist; the message has the nearest names of that folder.
        """
        from engine.system import files

        path = super().convert(value, param, ctx)
        if ctx is None or not ctx.resilient_parsing:
            files.check_exists(path)
        return path


def _is_count(word: str, most: int = MOST_COUNT) -> bool:
    """Return whether a word is a number from 1 to `most`."""
    return (
        word.isascii()
        and word.isdecimal()
        and len(word) <= len(str(most))
        and 0 < int(word) <= most
    )


def parse_counts(value: str, most: int = MOST_COUNT) -> tuple[int, ...]:
    """Return numbers from 1 to `most`, from a word `N,...`, where `A-B` means all from A to B."""
    numbers: list[int] = []
    for word in value.split(","):
        ends = [end.strip() for end in word.split("-")]
        if len(ends) > 2 or not all(_is_count(end, most) for end in ends):
            raise click.BadParameter(
                f"{value!r}: expected numbers from 1 to {most}, such as 8, 8,32 or 1-4"
            )
        first, last = int(ends[0]), int(ends[-1])
        if not 0 <= last - first < LONGEST:
            raise click.BadParameter(
                f"{value!r}: a range begins with its smaller number and has at most {LONGEST} "
                "numbers"
            )
        numbers += range(first, last + 1)
    return tuple(numbers)


def parse_thread_counts(value: str) -> tuple[int, ...]:
    """Return numbers of threads, written as `parse_counts` reads them."""
    return parse_counts(value, MAX_THREADS)


def parse_partial_shape(value: str) -> tuple[str, tuple[int | str, ...]]:
    """Return the name and the shape of an input, from a word `NAME=D,D,...`; texts stay."""
    name, _, dims = value.rpartition("=")
    words = [word.strip() for word in dims.split(",") if word.strip()]
    if not name or not words:
        raise click.BadParameter(
            f"{value!r}: expected NAME=D,D,..., each a size or a name, such as x=batch,3,224,224"
        )
    return name, tuple(int(word) if _is_count(word) else word for word in words)


def parse_named_value(value: str) -> tuple[str, Any]:
    """Return the name and the value of an input, from a word `NAME=VALUE`, whose value is JSON."""
    name, _, text = value.partition("=")
    try:
        made = json.loads(text)
    except ValueError:
        made = text
    if not name or isinstance(made, str | dict) or made is None:
        raise click.BadParameter(
            f"{value!r}: expected NAME=VALUE, such as rate=16000, flag=true or sizes=[1,2]"
        )
    return name, made


def parse_named_shape(value: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and the shape of an input, from a word `NAME=D,D,...`."""
    name, _, dims = value.rpartition("=")
    words = [word.strip() for word in dims.split(",") if word.strip()]
    if not name or not all(word == "0" or _is_count(word) for word in words):
        raise click.BadParameter(
            f"{value!r}: expected NAME=D,D,..., such as x=8,3,224,224, each up to {MOST_COUNT}"
        )
    shape = tuple(map(int, words))
    if math.prod(shape) > MOST_ELEMENTS:
        raise click.BadParameter(
            f"{value!r}: {math.prod(shape)} elements, of at most {MOST_ELEMENTS} that an input has"
        )
    return name, shape


def parse_bytes(value: str) -> int:
    """Return a number of bytes, from a word such as 48MB."""
    from engine.base import arguments  # numpy, which help does without
    from engine.base.errors import InputError

    try:
        return arguments.check_nbytes("bytes", int(value) if value.isdecimal() else value)
    except InputError as error:
        raise click.BadParameter(str(error)) from None


def require_unique(
    ctx: click.Context, param: click.Parameter, value: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the numbers of an option that may be given several times, each once."""
    return tuple(dict.fromkeys(n for numbers in value for n in numbers))


batch = click.option(
    "--batch",
    "batches",
    type=parse_counts,
    multiple=True,
    callback=require_unique,
    metavar="N,...",
    help="Samples per step; for several sizes, separate them by commas or repeat the option.",
)
batch_size = click.option(
    "--batch", "batch_size", type=COUNT, metavar="N",
    help="Samples per step.  [default: 32, or the run's]",
)  # fmt: skip
shape = click.option(
    "--shape",
    "shapes",
    type=parse_named_shape,
    multiple=True,
    metavar="NAME=D,D,...",
    help="The shape of an input, for each input whose shape does not follow from --batch.",
)
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
    help="Seed of all random numbers.",
)  # fmt: skip
checkpoint = click.option(
    "--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True,
    help="The checkpoint of the run to take parameters from.",
)  # fmt: skip
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
imports = click.option(
    "--import",
    "imports",
    type=AnyPath(),
    multiple=True,
    metavar="FILE",
    expose_value=False,
    callback=lambda ctx, param, value: extensions.load(value),
    help="A Python file that registers operators of your own (docs/custom-ops.md).  Repeatable.",
)


def of(kind: type, place: str) -> Decorator[Any]:
    """Return a decorator that adds the options in the fields of a dataclass to a command.

    They are None or empty unless given.  A field whose values are tables has no option.

    place: the beginning of the names of the command's parameters; the name of the field follows.
    """
    from engine.base.fields import list_options  # numpy, which help does without

    def add(function: Command) -> Command:
        hints = typing.get_type_hints(kind)
        for field in reversed(list_options(kind)):
            made = _make_option(field, hints[field.name], f"{place}_{field.name}")
            function = function if made is None else made(function)
        return function

    return add


def select_given(kind: type, place: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that `of` has added, by field; those not given are left out.

    values: all parameters of the command.
    """
    from engine.base.fields import list_options, read_declaration

    read = {}
    for field in list_options(kind):
        value, words = values.get(f"{place}_{field.name}"), read_declaration(field).words
        if value is None or value == ():
            continue
        if words is not None:
            value = words(value)
        read[field.name] = list(value) if isinstance(value, tuple) else value
    return read


def _make_option(field: dataclasses.Field[Any], hint: Any, name: str) -> Decorator[Any] | None:
    """Return the option of a command for a field; None if its values are tables."""
    from engine.base.fields import read_declaration
    from engine.base.option_tables import list_kinds

    declared = read_declaration(field)
    kinds = list_kinds(hint)
    first = kinds[0]
    flags = declared.flag.split(", ") if declared.flag else [f"--{field.name.replace('_', '-')}"]
    is_list = declared.words is not None or typing.get_origin(first) is collections.abc.Sequence
    text = f"{declared.text}  Repeatable." if is_list else declared.text
    is_shown = type(field.default) in (int, float) or (field.default and first is not bool)
    if is_shown and "default" not in text and not is_list:
        text += f"  [default: {field.default}]"
    more: dict[str, Any] = {"help": text, "default": None}
    if declared.metavar:
        more["metavar"] = declared.metavar
    if is_list:
        more = {"metavar": "NAME", **more, "multiple": True}
    elif first is bool:
        if field.default is False:
            more["is_flag"] = True
        elif "/" not in flags[0]:
            flags[0] += f"/--no-{flags[0].removeprefix('--')}"
    elif typing.get_origin(first) is typing.Literal:
        more["type"] = click.Choice(typing.get_args(first))
    elif len([each for each in kinds if each is not type(None)]) > 1:
        more["type"] = TomlValue()
    elif first in (int, float):
        more = {"metavar": "N", **more, "type": first}
    elif first is not str:
        return None
    return click.option(*flags, name, **more)


class TomlValue(click.ParamType[Any]):
    """A value as TOML writes it, or text."""

    name = "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value."""
        from engine.base import option_tables as tables  # numpy, which help does without

        return tables.parse_value(value) if isinstance(value, str) else value


def take_planning(function: Command) -> Command:
    """Add the options of plans, which the command gets as one value, `planning`."""

    @click.option(
        "--budget",
        type=parse_bytes,
        metavar="BYTES",
        help="Memory limit for all regions of a step, such as 48MB or 1.5GiB.",
    )
    @click.option(
        "--precision",
        type=click.Choice(CHOICES),
        default=DEFAULTS.precision,
        show_default=True,
        help=HELP,
    )
    @functools.wraps(function)
    def run(*args: Any, budget: int | None, precision: Precision, **values: Any) -> Any:
        planning = PlanOptions(budget=budget, precision=precision)
        return function(*args, planning=planning, **values)

    return cast(Command, run)


def take_threads(default: str) -> Decorator[Any]:
    """Return the option --threads, one number; `default` describes its default in words."""
    return click.option(
        "--threads",
        type=click.IntRange(1, MAX_THREADS),
        metavar="N",
        help=f"Threads per step.  [default: {default}]",
    )


def take_out(what: str, *, required: bool = False, default: str | None = None) -> Decorator[Any]:
    """Return the option -o, --out; `what` is its help text."""
    return click.option(
        "-o",
        "--out",
        type=AnyPath(),
        metavar="PATH",
        help=what,
        # A default of None counts as given, so that a required option would never be missed.
        **({"required": True} if required else {"default": default, "show_default": bool(default)}),
    )


def take_target(function: Command) -> Command:
    """Add the options that choose a processor: --target, or its parts."""
    rows = (
        ("--target", "native", "TARGET", "A name from `edgegrad targets`.  [default: native]"),
        ("--triple", "", "TRIPLE", "An LLVM triple, instead of a target's name."),
        (
            "--cpu",
            "",
            "CPU",
            "LLVM's name of the CPU. A build gets code for each of several, the best first.",
        ),
        ("--features", None, "LIST", "LLVM features, such as +dotprod,-sve."),
    )
    for name, default, metavar, text in reversed(rows):
        function = click.option(name, default=default, metavar=metavar, help=text)(function)
    return function


def take_output_names(function: Command) -> Command:
    """Add the option --output, which chooses the results of inference."""
    return click.option(
        "--output",
        "outputs",
        multiple=True,
        metavar="NAME",
        help="A tensor that inference computes.  Repeatable.  [default: the outputs that the loss "
        "reads]",
    )(function)


def list_examples(*lines: str) -> str:
    """Return the end of a command's help: examples of command lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a text so that foreign names in it cannot control the terminal."""
    click.echo(foreign_text.escape(text), nl=nl, err=err)


def print_json(value: Any) -> None:
    """Print a value as JSON; numbers that JSON lacks, NaN and the infinities, are null."""
    click.echo(json.dumps(_convert(value), indent=1, allow_nan=False))


def _convert(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _convert(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_convert(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)
