"""Files of comma-separated values as rows of texts, and what is wrong with those that are none."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.base import arguments
from engine.base.errors import FileError, InputError

DELIMITERS = (",", ";", "\t", "|")  # those that a message suggests


@dataclass(frozen=True)
class Sheet:
    """The cells of a file.

    Attributes:
        path: the path of the file.
        names: the names of the columns.
        rows: the texts of each row, as many as there are names, without blanks around them.
        lines: the line of the file that each row ends on, counted from 1.
    """

    path: str
    names: list[str]
    rows: list[list[str]]
    lines: list[int]


def read(path: Any, delimiter: str, encoding: str, header: bool) -> Sheet:
    """Read a file.  Lines without any value are skipped, and so is a byte order mark.

    Args:
        delimiter: one character between fields.
        encoding: the encoding of the file; UTF-8 may begin with a byte order mark.
        header: whether the first row names the columns; otherwise they are "0", "1", ...

    Raises:
        FileError: the file is missing or cannot be read.
        InputError: it has no rows, rows of unequal lengths, two columns of one name, another
            delimiter or encoding, or quotes that do not end.
    """
    place = arguments.check_path("path", path)
    if len(arguments.check_text("delimiter", delimiter)) != 1 or delimiter in '\r\n"':
        raise InputError(
            f"delimiter={delimiter!r}; expected one character other than a quote or a line end"
        )
    encoding = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    try:
        with open(place, encoding=encoding, newline="") as file:
            return _read_sheet(place, file, delimiter, header)
    except UnicodeError as error:
        raise InputError(
            f"{place!r} is not {encoding}: {error}; pass encoding=, such as 'latin-1' or 'utf-16'"
        ) from error
    except LookupError:
        raise InputError(f"encoding={encoding!r} is unknown") from None
    except csv.Error as error:
        raise InputError(f"{place!r}: {error}") from error
    except OSError as error:
        raise FileError(f"cannot read {place!r}: {error.strerror or error}") from error


def _read_sheet(path: str, file: Iterator[str], delimiter: str, header: bool) -> Sheet:
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    names: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    for cells in reader:
        row = [cell.strip() for cell in cells]
        if not any(row):
            continue
        if not names:
            _check_delimiter(path, row, delimiter)
            names = row if header else [str(i) for i in range(len(row))]
            twice = sorted(name for name, count in Counter(names).items() if count > 1)
            if twice:
                raise InputError(f"{path!r}: two columns are named {twice[0]!r}")
            if header:
                if all(map(_is_number, row)):
                    raise InputError(
                        f"{path!r}: the first row has numbers for names, {', '.join(row[:4])}; "
                        "if it is data, pass header=False"
                    )
                continue
        if len(row) != len(names):
            hint = "; a field that holds the delimiter needs quotes"
            raise InputError(
                f"{path!r}, line {reader.line_num}: {len(row)} fields, expected {len(names)}"
                f"{hint if len(row) > len(names) else ''}"
            )
        rows.append(row)
        lines.append(reader.line_num)
    if not rows:
        told = "a header, but no rows" if names else "no text"
        raise InputError(f"{path!r} has {told}")
    return Sheet(path, names, rows, lines)


def _check_delimiter(path: str, first: list[str], delimiter: str) -> None:
    """Refuse a first row of one field in which another delimiter stands."""
    others = [mark for mark in DELIMITERS if mark != delimiter and mark in first[0]]
    if len(first) == 1 and others:
        raise InputError(
            f"{path!r} has one column, {first[0][:60]!r}; is the delimiter another one? "
            f"pass delimiter={others[0]!r}"
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def describe(path: str | os.PathLike[str], line: int, column: str) -> str:
    """Return the name of a cell in messages."""
    return f"{os.fspath(path)!r}, line {line}, column {column!r}"
