"""Maker of `engine/training/keywords.py`: the options of training for type checkers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from engine.base.fields import list_options
from engine.training import settings

KINDS: tuple[type, ...] = (
    settings.StepOptions, settings.ArtifactOptions, settings.RecipeOptions,
    settings.TrainerOptions, settings.FitOptions,
)  # fmt: skip
_HEAD = '''"""Keywords of training for editors and type checkers, which alone import this file.

`python -m engine.tools.dev.tables` writes it from the options in settings.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from engine.base.plan_options import Precision
from engine.base.sparse_update import SparseUpdate
from engine.training.mode import Mode
'''


def write_source() -> str:
    """Return the text of the file."""
    return "\n".join((_HEAD, *(line for kind in KINDS for line in _write_class(kind))))


def _write_class(kind: type) -> Iterator[str]:
    bases = [base for base in kind.__bases__ if dataclasses.is_dataclass(base)]
    named = ", ".join(map(_name, bases)) or "TypedDict"
    yield f"\nclass {_name(kind)}({named}, total=False):"
    yield f'    """{(kind.__doc__ or "").strip()}"""'
    own = vars(kind).get("__annotations__", {})
    types = {field.name: str(field.type).replace("'", '"') for field in list_options(kind)}
    rows = [f"    {name}: {kind}" for name, kind in types.items() if name in own]
    yield from ["", *rows, ""] if rows else [""]


def _name(kind: type) -> str:
    return kind.__name__.replace("Options", "Keywords")
