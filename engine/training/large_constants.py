"""Large constants of models, which all their plans read in one region of memory, each once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.base.aliases import Array
from engine.training.memory import Memory
from engine.training.model_file import ModelFile


def freeze_constants(models: Sequence[ModelFile], memory: Memory) -> None:
    """Move large constants of models into their memory; equal ones of one name only once."""
    kept: dict[str, list[tuple[Array, int]]] = {}
    single: list[Array] = []
    asked: list[tuple[ModelFile, str, int]] = []
    for model in models:
        for name, array in model.list_contents():
            known = kept.setdefault(name, [])
            at = next((k for other, k in known if _is_same(array, other)), len(single))
            if at == len(single):
                known.append((array, at))
                single.append(array)
            asked.append((model, name, at))
    offsets = memory.lay_constants(single)
    for model, name, k in asked:
        model.frozen[name] = offsets[k]
    for model in models:
        model.freeze()


def _is_same(a: Array, b: Array) -> bool:
    """Return whether two constants are equal to the last bit; at one place in memory they are."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.ctypes.data == b.ctypes.data and a.strides == b.strides:
        return True
    left, right = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return np.array_equal(left, right)
