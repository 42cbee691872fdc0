"""Texts as numbers: tokenizers of Hugging Face's packages, one's own, or plain bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.errors import DTypeError, FileError, InputError
from engine.base.representation import represent
from engine.base.signatures import Range, check_arguments
from engine.data.packages import require

# Names of the padding token in vocabularies.
PADS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>")


@check_arguments
class ByteTokenizer:
    """The bytes of a text's UTF-8 form, 0 to 255.  It needs no file and knows every text.

    size: the size of the vocabulary.
    pad: the padding token.
    """

    size = 257
    pad = 256

    __repr__ = represent

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; invalid UTF-8 becomes U+FFFD."""
        return bytes(t for t in tokens if t < self.pad).decode(errors="replace")


class Tokens:
    """The tokens of texts, from a tokenizer of any kind.

    Args:
        tokenizer: an object with a method `encode` that returns numbers, or an object that has
            them as `ids`: tokenizers of the packages tokenizers and transformers, `ByteTokenizer`.
            Or the path of a `tokenizer.json`, which needs tokenizers.
        special: whether a tokenizer adds tokens for the start and the end of a text, if it can.

    Raises:
        DTypeError: it has another type.
        FileError, InputError: the file cannot be read, or is not a tokenizer.
        MissingPackageError: it is a path, and tokenizers is not installed.
    """

    def __init__(self, tokenizer: Any, special: bool) -> None:
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = _from_file(arguments.check_path("tokenizer", tokenizer))
        if not callable(getattr(tokenizer, "encode", None)):
            raise DTypeError(
                f"tokenizer: expected a path or an object with encode(), got "
                f"{type(tokenizer).__name__}"
            )
        self.tokenizer = tokenizer
        known = hasattr(tokenizer, "get_vocab_size") or hasattr(tokenizer, "pad_token_id")
        self._options = {"add_special_tokens": special} if known else {}

    def __call__(self, text: str) -> npt.NDArray[np.int64]:
        """Return the tokens of a text.

        Raises:
            DTypeError: the tokenizer returned no numbers.
        """
        encoded = self.tokenizer.encode(text, **self._options)
        tokens = np.asarray(getattr(encoded, "ids", encoded))
        if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and tokens.size):
            raise DTypeError(
                f"tokenizer: encode() of {type(self.tokenizer).__name__} returned "
                f"{type(encoded).__name__}; expected a list of numbers"
            )
        return tokens.astype(np.int64)

    @property
    def words(self) -> int | None:
        """The size of the vocabulary; None if the tokenizer does not have one."""
        size = getattr(self.tokenizer, "size", None)
        if size is None:
            count = getattr(self.tokenizer, "get_vocab_size", None)
            size = count() if callable(count) else getattr(self.tokenizer, "vocab_size", None)
        return size if isinstance(size, int) else None

    @property
    def pad(self) -> int:
        """Return the padding token.

        Raises:
            InputError: the tokenizer has none that is known.
        """
        for name in ("pad", "pad_token_id"):
            value = getattr(self.tokenizer, name, None)
            if isinstance(value, int):
                return value
        look_up = getattr(self.tokenizer, "token_to_id", None)
        if callable(look_up):
            for token in PADS:
                token_id = look_up(token)
                if token_id is not None:
                    return int(token_id)
        raise InputError(f"{type(self.tokenizer).__name__} has no token to pad with; pass pad=")


def _from_file(path: str) -> Any:
    """Load the tokenizer of a `tokenizer.json`."""
    package = require("tokenizers", "text", "reading a tokenizer")
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read()
    except OSError as error:
        raise FileError(f"cannot read the tokenizer {path!r}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise InputError(f"{path!r} is not a tokenizer: {error}") from error
    try:
        return package.Tokenizer.from_str(content)
    except Exception as error:  # the package raises plain Exceptions
        raise InputError(f"{path!r} is not a tokenizer: {error}") from error


@check_arguments(size=Range(high=1 << 24))
def train_tokenizer(texts: Sequence[str], size: int = 1000) -> Any:
    """Train a byte-level BPE tokenizer of the package tokenizers on texts.

    It knows every text, and pads with "<pad>", its token 0.  Its method `save(path)` writes a
    `tokenizer.json`.

    Args:
        texts: to learn from.
        size: the size of the vocabulary, at most.

    Raises:
        MissingPackageError: tokenizers is not installed.
        InputError: the size is too small for the 256 bytes and a token to pad with.
    """
    package = require("tokenizers", "text", "training a tokenizer")
    if size < 257:
        raise InputError(f"size={size}; expected at least 257: the bytes and a token to pad with")
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<pad>"],
        initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
