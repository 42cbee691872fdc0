"""Cases: rows of caches."""

from __future__ import annotations

from engine.base.aliases import Array
from engine.kernels.vocabulary.op import OURS
from engine.tools.dev.cases.case import Case, f32, fed


def _write_cache(cache: Array, rows: Array, at: Array) -> list[Array]:
    """Return the caches with the rows of each sample from `at` on."""
    written = cache.copy()
    for sample, first in enumerate(at):
        written[sample, :, first : first + rows.shape[2]] = rows[sample]
    return [written]


CASES = (
    Case("WriteCache", (f32(2, 3, 7, 5), f32(2, 3, 2, 5), fed([4, 0], "int64")), domain=OURS,
         reference=_write_cache),
    Case("WriteCache", (f32(1, 12, 256, 64), f32(1, 12, 1, 64), fed([200], "int64")), domain=OURS,
         reference=_write_cache, bench=True),
)  # fmt: skip
