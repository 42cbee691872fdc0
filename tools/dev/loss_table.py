"""Losses: the table of all losses in docs/losses.md, made of their declarations."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, get_args, get_type_hints

from engine.loss_types import LOSSES, LossType
from engine.loss_types.base import NamedLoss
from engine.tools.dev.made_parts import make_again


def make_table() -> str:
    """Return the table as Markdown, then what each loss is."""
    rows = ["| loss | outputs | compared with | options |", "|---|---|---|---|"]
    meanings = [""]
    for kind in map(LOSSES.__getitem__, LossType):
        cells = [f"`{kind.__name__}`", kind.outputs, kind.compared, _list_options(kind)]
        rows.append(f"| {' | '.join(cells)} |")
        first = (inspect.getdoc(kind) or "").split("\n\n")[0]
        meanings.append(f"- `{kind.__name__}`: {' '.join(first.split())}")
    return "\n".join([*rows, *meanings]) + "\n"


def _list_options(kind: type[NamedLoss]) -> str:
    """List the options with their defaults, and other reductions than most losses have."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(kind)  # type: ignore[arg-type]  # each is one
    types = get_type_hints(kind)
    shown = []
    for field in fields:
        name, default = field.name, field.default
        if name == "reduction":
            continue
        others = [o for o in get_args(types[name]) if isinstance(o, str) and o != default]
        text = f"`{name}`" if default is None else f"`{name}={default!r}`"
        shown.append(" or ".join([text, *(f"`{other!r}`" for other in others)]))
    more = [name for name in kind.reductions if name not in NamedLoss.reductions]
    return ", ".join(shown + [f"`reduction={name!r}`" for name in more])


def make_page(text: str) -> str:
    """Return the page with its table made again."""
    return make_again(text, {"losses": make_table})
