"""The format of plans as bytes: of plan files, of plan caches and of plans inside trimmed builds.

    head       32 bytes, see `HEAD`: magic, version, checksum, flags, and the sizes of what follows
    directory  u32 rows of each table, then u8 width of each column, in the order of `make_schema`
    columns    one after another, each an array of integers of its width: 0, 1, 2, 4 or 8 bytes
    constants  a block of bytes at a multiple of 64
    tail       bytes for whoever wrote the file

All numbers are little-endian and unsigned.  A column lies at a multiple of its width, so that C
reads it in place, from a constant array or from a file.  A width of 0 stands for a column of zeros
and takes no bytes.  `COLUMNS` also says what the numbers of a column are, from which both readers,
file_reader.py and the one in C, check every reference before they follow it.

A file holds one plan or several of one target, which share their tables.  A *stripped* file has
only what running needs: no names of nodes, no types and lifetimes of buffers, no kernel templates.
Trimmed builds and op-set libraries read stripped files, `from_bytes` reads whole ones.

The checksum and the checks of the readers catch damage.  SECURITY.md, "Prepared plans", says what
else is checked, where, and which plan files to trust.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from engine.base.element_types import ELEMENT_TYPES
from engine.plan.plan import Mode, Phase

MAGIC, VERSION = b"EGPL", 11
STRIPPED = 1  # the flag of the head
# magic, version, CRC-32 of all that follows it, flags; bytes before the constants, of the constants
HEAD = struct.Struct("<4sIIIQQ")
SEALED = 12  # the checksum covers what comes from here on

MODES, PHASES = get_args(Mode), get_args(Phase)
MOST = (1 << 64) - 1  # the largest number of a column
ELEMENT_CODES = {t.name: t.onnx for t in ELEMENT_TYPES.values()}

Rule = Literal["", "row", "row or none", "rows"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    rule: what its numbers are: plain; a "row" of table `of`; 1 + a row, or 0 for none; or how many
    "rows" of `of` belong to this row; the first row's come first.
    kept: whether stripped files have it.
    """

    table: str
    name: str
    rule: Rule
    of: str
    kept: bool


# One line per table.  `@` stands for a row, `?` for a row or none, `+` for a number of rows;
# columns after `|` are only in whole files.
_TABLES = """
text             byte
head             kernel_set@text target@text thread_count
kernel           symbol@text op@text | template@text parameters+kernel_parameter takes+taken
natural          value
wide             value | is_float
call             kernel args first words
word             pooled
step             call@call barrier alone group tiles numbered | source@text phase again
step             | pairs+pair operands+operand
cut              tile thread
arg              buffer?buffer cut?cut | mode
buffer           region line | name@text dtype rank+dim bytes first last
port             name@text dtype buffer@buffer rank+port_dim
port_dim         size
plan             steps+step ports+port inputs fault reset noise scale rate step done | name@text
plan             | buffers+buffer regions+region uses+use constants+constant lower_bound once
model            param grad state work kept copies
state            form dtype initial single
io               size
parameter        name@text dtype trainable listed moved line rank+parameter_dim
parameter_dim    size
order            parameter@parameter
batch            samples
kernel_parameter | is_text value
taken            | text@text
operand          | text@text
pair             | written read
dim              | size
region           | region bytes
use              | kernel@kernel
constant         | buffer@buffer place bytes
"""
_RULES: Mapping[str, Rule] = {"@": "row", "?": "row or none", "+": "rows"}


def _list_columns() -> Iterator[Column]:
    for line in _TABLES.strip().splitlines():
        table, *words = line.split()
        kept = True
        for word in words:
            if word == "|":
                kept = False
                continue
            mark = next((m for m in _RULES if m in word), "")
            name, _, of = word.partition(mark) if mark else (word, "", "")
            yield Column(table, name, _RULES[mark] if mark else "", of, kept)


COLUMNS = tuple(_list_columns())


def make_schema(*, stripped: bool) -> dict[str, list[Column]]:
    """Return the columns of every table, in the order of the directory."""
    columns: dict[str, list[Column]] = {}
    for column in COLUMNS:
        if column.kept or not stripped:
            columns.setdefault(column.table, []).append(column)
    return columns
