"""Words with names: runs of 64-bit integers that kernels, lowerings, the runtime and C share.

A layout is declared once,

    POOL = Words(
        "pool",
        images="images of the batch",
        size=Field("pixels of the input", names=("d", "h", "w")),
        dims=Field("outer dimensions", count=OPEN),
    )

and everybody takes the names from it:

- a kernel whose parameter `g` is declared to be these words (`@kernel("g:i64[]",
  words={"g": POOL})`) reads `g.images`, `g.size_h` and `g.dims[i]`;
- a lowering writes `POOL.pack(images=8, size=(1, 32, 32), dims=[4, 5])`;
- Python reads and writes memory that holds them through `POOL.dtype`, a structured numpy dtype;
- C includes `POOL.defines()`.

Nobody counts words, so a field can be added in one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

OPEN = -1  # the count of an array that goes on to the end of the words
LINE = 8  # words of a cache line
AXES = ("d", "h", "w")  # names of three words: depth, height, width


@dataclass(frozen=True, slots=True)
class Field:
    """One field of `Words`: a word, or what the arguments say.

    meaning: what it is, as the declaration's text says it.
    names: several words, packed as one sequence; kernels read each as `<field>_<name>`, and the
        address of the first as `<field>`.
    count: an array of so many words (or records), or `OPEN` to the end; kernels read its address.
    of: the elements are records with this layout; of an address, what is found there.
    address: the word is an address, filled in by the runtime; kernels read it as a pointer.
    shared: kernels read its address, because threads contend for it.
    line: as `shared`, and it begins a cache line.
    range: what a call may say: "" numbers from 0 on, "signed" others too, "any" every integer.
    """

    meaning: str
    names: tuple[str, ...] = ()
    count: int | None = None
    of: Words | None = None
    address: bool = False
    line: bool = False
    shared: bool = False
    range: Literal["", "signed", "any"] = ""

    @property
    def size(self) -> int:
        """Words it takes, 0 for an open array."""
        if self.names:
            return len(self.names)
        count = 1 if self.count is None else max(self.count, 0)
        return count * (self.of.size if self.of and not self.address else 1)

    @property
    def reads(self) -> Literal["word", "address", "place"]:
        """Return how kernels read it, see `Member`; each of its names if it has some."""
        if self.line or self.shared or self.count is not None or (self.of and not self.address):
            return "place"
        return "address" if self.address else "word"


class Member(NamedTuple):
    """The meaning of a name inside a kernel: the field, and the offset in words."""

    field: Field
    offset: int
    reads: Literal["word", "address", "place"]  # the word, it as a pointer, or a pointer to it


@dataclass(frozen=True, slots=True)
class Packed:
    """The integers of some `Words` in order, as a kernel call takes them, without addresses."""

    words: Words
    values: tuple[int, ...]


class Words:
    """The layout of a run of words: fields in order, each with a meaning.

    A text is short for `Field(text)`.  Field names are keyword arguments, so no two are the same.
    """

    __slots__ = ("fields", "members", "packed", "size", "title")

    def __init__(self, title: str, /, **fields: str | Field) -> None:
        """title: what the words are of, a C and Python name in lower case."""
        self.title = title
        self.fields: dict[str, Field] = {}
        self.members: dict[str, Member] = {}  # by the name kernels use
        self.size = 0  # words, without an open array
        for name, given in fields.items():
            if self.fields and next(reversed(self.fields.values())).count == OPEN:
                raise TypeError(f"words {title}: {name!r} follows an array without an end")
            field = Field(given) if isinstance(given, str) else given
            if field.line:
                self.size = -(-self.size // LINE) * LINE
            self.fields[name] = field
            for i, own in enumerate([f"{name}_{n}" for n in field.names] or [name]):
                if own in self.members:
                    raise TypeError(f"words {title}: two fields are read as {own!r}")
                self.members[own] = Member(field, self.size + i, field.reads)
            self.size += field.size
        if any(field.line for field in self.fields.values()):
            self.size = -(-self.size // LINE) * LINE
        # Of the fields that `pack` takes, the size.
        self.packed = {n: f.size for n, f in self.fields.items() if not f.address}

    @property
    def open(self) -> bool:
        """Return whether any number of integers may follow the fixed ones."""
        last = next(reversed(self.fields.values()), None)
        return last is not None and last.count == OPEN and not last.address

    def find_member(self, name: str) -> Member:
        """Return the member that kernels read by this name.

        Raises:
            KeyError: there is no such name.
        """
        field = self.fields.get(name)
        if field is None or not field.names:
            return self.members[name]
        return Member(field, self.members[f"{name}_{field.names[0]}"].offset, "place")

    @property
    def addresses(self) -> int:
        """Leading words that are addresses; a plan gives them as operands."""
        count = 0
        for field in self.fields.values():
            if not field.address:
                break
            count += field.size
        return count

    def place(self, name: str) -> int:
        """Return the place of a word, by the name that kernels read, among the integers of
        `pack`.
        """
        return self.members[name].offset - self.addresses

    def pack(self, **values: Any) -> Packed:
        """Return the words with these values, without the addresses they begin with.

        A field of several names, an array of words takes a sequence; a record takes what its own
        `pack` returned, an array of records a sequence of that.

        Raises:
            TypeError: a field is missing or unknown, or a value is not one of its field.
            ValueError: a sequence of another length than the field.
        """
        if self.packed.keys() != values.keys():
            missing, unknown = (
                self.packed.keys() - values.keys(),
                values.keys() - self.packed.keys(),
            )
            raise TypeError(
                f"words {self.title}: missing {sorted(missing)}, unknown {sorted(unknown)}"
            )
        if sum(self.packed.values()) + self.addresses != self.size:
            raise TypeError(f"words {self.title}: they live in memory, not in a plan")
        out: list[int] = []
        for name, size in self.packed.items():
            field = self.fields[name]
            words = list(self._flatten(name, field, values[name]))
            if len(words) != size and field.count != OPEN:
                raise ValueError(
                    f"words {self.title}: {len(words)} words for {name}, which has {field.size}"
                )
            out += words
        return Packed(self, tuple(out))

    def unpack(self, values: Sequence[int | float]) -> dict[str, Any]:
        """Return the arguments of `pack` for these integers: an int or a tuple of ints by field.

        Records and arrays of them come as the integers they are made of.
        """
        out: dict[str, Any] = {}
        rest = [v if isinstance(v, int) else int(v) for v in values]
        for name, field in self.fields.items():
            if not field.address:
                size = len(rest) if field.count == OPEN else field.size
                mine, rest = tuple(rest[:size]), rest[size:]
                out[name] = mine[0] if field.reads == "word" and not field.names else mine
        return out

    def _flatten(self, name: str, field: Field, value: Any) -> Iterator[int]:
        """Yield the integers of one field."""
        several = bool(field.names) or field.count is not None
        for item in value if several else (value,):
            if field.of is None:
                if not isinstance(item, int | np.integer):
                    raise TypeError(f"words {self.title}: {name} is {item!r}, not an integer")
                yield int(item) if isinstance(item, bool | np.integer) else item
            elif isinstance(item, Packed) and item.words == field.of:
                yield from item.values
            else:
                raise TypeError(
                    f"words {self.title}: {name} is {item!r}, not words {field.of.title}"
                )

    @property
    def dtype(self) -> np.dtype[Any]:
        """A structured dtype of one field a name, for memory that holds these words."""
        formats: list[Any] = []
        for field, _, _ in self.members.values():
            base = field.of.dtype if field.of and not field.address else np.dtype(np.int64)
            formats.append(base if field.count is None else (base, (max(field.count, 0),)))
        return np.dtype(
            {
                "names": list(self.members),
                "formats": formats,
                "offsets": [8 * m.offset for m in self.members.values()],
                "itemsize": 8 * self.size,
            }
        )

    def write_defines(self) -> str:
        """Return the lines of a C header: the index of each name, and the number of words."""
        rows = [(own, m.offset, m.field.meaning) for own, m in self.members.items()]
        return "\n".join(
            f"#define {f'{self.title}_{own}'.upper():24s} {value} /* {meaning} */"
            for own, value, meaning in [*rows, ("words", self.size, "number of words")]
        )

    def __str__(self) -> str:
        """Return the fields and their meanings, a line each: the text of the contract."""
        width = max(map(len, self.fields), default=0)
        return "\n".join(f"{n:{width}s}  {_describe(f)}" for n, f in self.fields.items())

    def __repr__(self) -> str:
        return f"Words({self.title!r}, {', '.join(f'{n}={f!r}' for n, f in self.fields.items())})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Words) and self._make_key() == other._make_key())

    def __hash__(self) -> int:
        return hash(self._make_key())

    def _make_key(self) -> tuple[Any, ...]:
        return self.title, tuple(self.fields.items())


def _describe(field: Field) -> str:
    """Return the meaning of a field, with its form."""
    form = ""
    if field.names:
        form = f" ({', '.join(field.names)})"
    elif field.count is not None:
        form = " [...]" if field.count == OPEN else f" [{field.count}]"
    if field.address:
        form += " (address)"
    if field.of:
        form += f" of {field.of.title}"
    return f"{field.meaning}{form}"
