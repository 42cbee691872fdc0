"""Words in compiled kernels: a numba type that points to them and reads fields by name.

Reading a field is a load at a fixed offset, like `g[3]` of a plain pointer.
"""

from __future__ import annotations

import hashlib
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import errors
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    lower_getattr_generic,
    lower_setattr_generic,
    models,
    register_model,
)

from engine.plan.words import Words

WORD = types.int64
PLAIN = types.CPointer(WORD)


class WordsPointer(types.Type):
    """A pointer to words of a known layout."""

    mutable = True

    def __init__(self, words: Words) -> None:
        self.words = words
        digest = hashlib.sha256(repr(words).encode()).hexdigest()[:10]
        super().__init__(f"words_{words.title}_{digest}")

    @property
    def key(self) -> Words:
        return self.words


@register_model(WordsPointer)
class _WordsModel(models.PrimitiveModel):
    """In memory and in registers as a plain pointer to words."""

    def __init__(self, manager: Any, kind: WordsPointer) -> None:
        super().__init__(manager, kind, ir.IntType(64).as_pointer())


def _pointer(words: Words | None) -> Any:
    return PLAIN if words is None else WordsPointer(words)


@infer_getattr
class _WordAttributes(AttributeTemplate):
    key = WordsPointer

    def generic_resolve(self, kind: WordsPointer, name: str) -> Any:
        """Return the type of a field: an integer, or a pointer."""
        try:
            member = kind.words.find_member(name)
        except KeyError:
            known = ", ".join(kind.words.members)
            raise errors.NumbaAttributeError(
                f"words {kind.words.title} have no {name!r}, they have {known}"
            ) from None
        return WORD if member.reads == "word" else _pointer(member.field.of)


def _place(builder: Any, pointer: Any, offset: int) -> Any:
    return builder.gep(pointer, [ir.IntType(64)(offset)], source_etype=ir.IntType(64))


@lower_getattr_generic(WordsPointer)
def _read(context: Any, builder: Any, kind: WordsPointer, value: Any, name: str) -> Any:
    _, offset, reads = kind.words.find_member(name)
    place = _place(builder, value, offset)
    if reads == "place":
        return place
    loaded = ir.IntType(64) if reads == "word" else ir.IntType(64).as_pointer()
    return builder.load(place, typ=loaded)


@lower_setattr_generic(WordsPointer)
def _write(context: Any, builder: Any, sig: Any, args: Any, name: str) -> None:
    _, offset, reads = sig.args[0].words.find_member(name)
    if reads != "word":
        raise errors.NumbaTypeError(f"{name} of words {sig.args[0].words.title} is not a number")
    builder.store(args[1], _place(builder, args[0], offset))
