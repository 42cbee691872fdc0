"""Maker of `engine/base/declared_homes.py`: the modules that declare ops and kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from types import ModuleType

from engine.kernels.ops.registry import list_families, read_kernels, read_ops

_HEAD = '''"""The modules that declare ops and kernels: a process imports those its model needs.

`python -m engine.tools.dev.tables` writes it from the declarations.
"""
'''


def write_source() -> str:
    """Return the text of the file."""
    ops, kernels = map(_list_homes, (read_ops, read_kernels))
    return _HEAD + _write_table("OP_HOMES", ops) + _write_table("KERNEL_HOMES", kernels)


def _list_homes(
    read: Callable[[ModuleType], Iterable[tuple[Hashable, object]]],
) -> dict[Hashable, str]:
    """Return the modules of what families declare, by its key."""
    return {key: family.__name__ for family in list_families() for key, _ in read(family)}


def _write_table(name: str, homes: Mapping[Hashable, str]) -> str:
    """Return the source of an index."""
    rows = (f"    {key}: {home},\n" for key, home in sorted(map(_quote, homes.items())))
    return f"\n{name} = {{\n{''.join(rows)}}}\n"


def _quote(row: tuple[Hashable, str]) -> tuple[str, str]:
    """Return the source of a key and of its module."""
    key, home = (repr(value).replace("'", '"') for value in row)
    return key, home
