"""Copies of rank 0's files for the other ranks, which need not share its disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engine.distributed.agreement import Agreement

_PIECE = 1 << 24  # bytes that are sent at a time


def copy_files(ranks: Agreement, sources: Sequence[Path], target: Path) -> None:
    """Write files of rank 0 into a folder of every other rank.

    sources: files on rank 0, with different names.  target: an existing folder on the others.

    Raises:
        OSError: a file cannot be read or written; GroupError if that happened on another rank.
    """
    for name, size in ranks.lead(lambda: [(p.name, p.stat().st_size) for p in sources]):
        path = next(p for p in sources if p.name == name) if ranks.is_first else target / name
        error: Exception | None = None
        try:
            if not ranks.is_first:
                path.write_bytes(b"")
        except OSError as problem:
            error = problem
        ranks.agree(error)
        for begin in range(0, size, _PIECE):
            piece = np.zeros(min(_PIECE, size - begin), np.uint8)
            try:
                if ranks.is_first:
                    piece[...] = np.fromfile(path, np.uint8, piece.size, offset=begin)
            except (OSError, ValueError) as problem:  # ValueError: it has become shorter
                error = problem
            ranks.group.broadcast(piece)
            try:
                if not ranks.is_first:
                    with path.open("ab") as file:
                        file.write(piece.data)
            except OSError as problem:
                error = error or problem
        ranks.agree(error)
