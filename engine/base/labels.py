"""Labels that mean the same in targets of every kind."""

from __future__ import annotations

IGNORED = -100  # the label of positions that do not count, as in PyTorch
