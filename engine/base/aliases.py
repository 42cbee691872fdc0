"""Aliases of types that annotations of many modules use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
StrPath = str | os.PathLike[str]
Shapes = Mapping[str, tuple[int, ...]]  # of inputs, by name
