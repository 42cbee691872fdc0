"""The decoder of a build: continues a text token by token; needs Python 3.9 and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np


class DeviceDecoder:
    """A text that is continued token by token, with the names of `engine.Decoder`.

    A model has the caches of one text: all its decoders continue the same one.
    """

    batch = 1

    def __init__(self, handle: Any, library: Any) -> None:
        """Take a model's handle, and the module that calls the library."""
        self._handle, self._library, self._functions = handle, library, library.functions

    def __repr__(self) -> str:
        return f"DeviceDecoder(batch=1, length={self.length}, capacity={self.capacity})"

    @property
    def length(self) -> int:
        """The number of tokens so far."""
        return int(self._functions["get_length"](self._handle.pointer))

    @property
    def capacity(self) -> int:
        """The largest number of tokens."""
        return int(self._functions["get_capacity"](self._handle.pointer))

    def append(self, tokens: Any) -> np.ndarray:
        """Add tokens to the text; return the scores [1, tokens] of the token after them."""
        library, handle = self._library, self._handle
        ids = library.convert_array(tokens, None, "tokens")
        if ids.size and (ids.dtype.kind not in "iu" or ids.ndim not in (1, 2)):
            kind = f"{ids.dtype}{list(ids.shape)}"
            raise library.InputError(f"tokens: expected integers [count], got {kind}")
        if ids.ndim == 2 and len(ids) != 1:
            raise library.InputError(f"tokens: this build continues one text, got {len(ids)}")
        if ids.size and not -(2**31) <= int(ids.min()) <= int(ids.max()) < 2**31:
            raise library.LabelError("tokens: expected integers of 32 bits")
        given = np.ascontiguousarray(ids, np.int32)
        with handle.turn("append"):
            handle.check(self._functions["append"](handle.pointer, given.ctypes.data, given.size))
            info = library.describe_port(self._functions["scores_info"](handle.pointer))
            scores: np.ndarray = handle.view(self._functions["scores"](handle.pointer), info)
            return scores.copy()

    def truncate(self, length: int) -> None:
        """Forget all tokens after the first `length`."""
        self._handle.call("truncate", self._library.convert_whole(length, "length"))
