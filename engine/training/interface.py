"""The interface of a model: what the runtime must know of it as long as no plan has to be made.

Reading an ONNX model takes the onnx package and, for a large one, most of the time to the first
step.  An `Interface` is found out once and kept (plan_cache.py); the graph is then read only where
something must be planned or exported.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import ITEMSIZE, NUMPY, OF_NUMPY
from engine.base.errors import ShapeError
from engine.runtime import mapping
from engine.system import files
from engine.system.files import BFLOATS, NOTE

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph


_COUNT = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Declared:
    """An input as a model declares it; a dimension that is a text is symbolic."""

    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape when all dimensions are numbers.

        Raises:
            ShapeError: a dimension is symbolic.
        """
        known = tuple(d for d in self.shape if isinstance(d, int))
        if len(known) < len(self.shape):
            raise ShapeError(f"{self}: a dimension is not known yet")
        return known


@dataclass(frozen=True, slots=True)
class Large:
    """A large constant of a model after constant folding; plans find it in region frozen.

    at: where its bytes begin in the file of the model; None if they are not there.
    file: its file of external data, by the path from the model's folder; otherwise "".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: int | None = None
    file: str = ""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class Interface:
    """The properties of a model that the runtime must know.

    inputs: all inputs by name, parameters and accumulation buffers among them.
    outputs: the names of the outputs.
    texts: the names of inputs that are texts.
    constants: the names of the initializers.
    large: the large ones among them, and among what constant folding makes of them.
    made: the bytes of those large constants that are not in the file of the model, in this order.
    external: as `Graph.external` says it, except for what is too large to decide what is planned.
    stamp: the digest of that, when the interface was made.
    notes: what this package has written into the metadata of the model, by names without `NOTE`.
    """

    inputs: Mapping[str, Declared]
    outputs: tuple[str, ...]
    texts: tuple[str, ...]
    constants: tuple[str, ...]
    large: tuple[Large, ...]
    made: bytes = b""
    notes: Mapping[str, str] = field(default_factory=dict)
    external: tuple[tuple[str, int, int], ...] = ()
    stamp: str = ""

    @classmethod
    def of(cls, graph: Graph, folded: Graph, least: int) -> Interface:
        """Return the interface of a model, without the places of its large constants.

        graph: the model as loaded.  folded: the same after constant folding.
        least: the size in bytes from which on a constant is large.
        """
        large = [
            Large(name, OF_NUMPY[array.dtype], array.shape)
            for name, array in folded.initializers.items()
            if array.nbytes >= least and array.dtype in OF_NUMPY
        ]
        return cls(
            {name: Declared(t.dtype, t.shape) for name, t in graph.inputs.items()},
            tuple(graph.outputs),
            tuple(graph.text_inputs),
            tuple(graph.initializers),
            tuple(large),
            notes={
                key.removeprefix(NOTE): text
                for key, text in graph.metadata.items()
                if key.startswith(NOTE)
            },
        )

    @property
    def bfloats(self) -> Sequence[str]:
        """The names of values that are bfloat16 in the file of the model, and float32 here."""
        names: list[str] = json.loads(self.notes.get(BFLOATS.removeprefix(NOTE), "[]"))
        return names

    def locate_constants(
        self,
        values: Mapping[str, Array],
        data: mapping.Content,
        external: Sequence[tuple[str, int, int]] = (),
        model: str = "",
        decide: int = 0,
    ) -> Interface:
        """Return the same with the large constants found in the files of the model, or added to it.

        values: the values of the large constants.  data: the file of the model.
        external, model: as `Graph.external`, and the path of the model.
        decide: bytes up to which external data may decide what is planned.

        Raises:
            FileError: external data cannot be read.
        """
        names = {(offset, nbytes): name for name, offset, nbytes in external}
        large, made = [], []
        for each in self.large:
            piece = mapping.find_source(values[each.name])
            if piece is not None and piece.file is data:
                large.append(replace(each, at=piece.offset))
                continue
            name = None if piece is None else names.get((piece.offset, piece.nbytes))
            if piece is not None and name is not None:
                large.append(replace(each, at=piece.offset, file=name))
                continue
            content = values[each.name].tobytes()
            at = data.find(content)
            large.append(replace(each, at=None if at < 0 else at))
            if at < 0:
                made.append(content)
        small = tuple(place for place in external if place[2] <= decide)
        stamp = compute_external_digest(model, small)
        located = replace(self, large=tuple(large), made=b"".join(made))
        return replace(located, external=small, stamp=stamp)

    def list_contents(self, data: mapping.Content, model: str = "") -> Iterator[tuple[str, Array]]:
        """Yield the large constants by name, with their values, which are views.

        data: the file of the model.  model: its path.

        Raises:
            FileError: external data cannot be read.
        """
        begin = 0
        for each in self.large:
            if each.file:
                path = os.path.join(os.path.dirname(model), each.file)
                kind = np.dtype(NUMPY[each.dtype])
                count, at = math.prod(each.shape), each.at or 0
                what = f"constant {each.name!r}"
                array = mapping.open_array(path, kind, count, at, what, model)
                yield each.name, array.reshape(each.shape)
                continue
            source, at = (self.made, begin) if each.at is None else (data, each.at)
            begin += each.nbytes if each.at is None else 0
            values = np.frombuffer(source, NUMPY[each.dtype], math.prod(each.shape), at)
            yield each.name, values.reshape(each.shape)

    def to_bytes(self) -> bytes:
        """Return the interface as bytes, which `from_bytes` reads."""
        text = json.dumps(
            {
                "inputs": [[name, d.dtype, d.shape] for name, d in self.inputs.items()],
                "outputs": self.outputs,
                "texts": self.texts,
                "constants": self.constants,
                "large": [[c.name, c.dtype, c.shape, c.at, c.file] for c in self.large],
                "external": self.external,
                "stamp": self.stamp,
                "notes": self.notes,
            }
        ).encode()
        return _COUNT.pack(len(text)) + text + self.made

    @classmethod
    def from_bytes(cls, raw: bytes, nbytes: int) -> Interface:
        """Read the interface that `to_bytes` wrote; it names no file that is not beside the model.

        nbytes: the size of the model's file.

        Raises:
            ValueError, LookupError, TypeError: the bytes are something else.
        """
        if len(raw) < _COUNT.size:
            raise ValueError("too short")
        (size,) = _COUNT.unpack_from(raw)
        try:
            known = json.loads(raw[_COUNT.size : _COUNT.size + size])
        except RecursionError:
            raise ValueError("too deep") from None
        large = [Large(n, dtype, tuple(s), at, file) for n, dtype, s, at, file in known["large"]]
        external = [(name, at, size) for name, at, size in known["external"]]
        made = raw[_COUNT.size + size :]
        for each in large:
            _require(_are(str, each.name, each.dtype, each.file) and _are(int, *each.shape))
            _require(all(n >= 0 for n in each.shape) and (each.at is None or _are(int, each.at)))
            begin, end = each.at or 0, nbytes if each.at is not None and not each.file else None
            _require(begin >= 0 and (end is None or begin + each.nbytes <= end))
        for _, *numbers in external:
            _require(_are(int, *numbers) and min(numbers) >= 0)
        for name in [*(name for name, *_ in external), *(c.file for c in large if c.file)]:
            _require(_are(str, name) and files.is_inside(name))
        if sum(c.nbytes for c in large if c.at is None) != len(made):
            raise ValueError("constants of another size")
        inputs = {name: Declared(dtype, tuple(shape)) for name, dtype, shape in known["inputs"]}
        names = [*inputs, *known["outputs"], *known["texts"], *known["constants"], known["stamp"]]
        notes = dict(known["notes"])
        _require(_are(str, *names, *(d.dtype for d in inputs.values()), *notes, *notes.values()))
        _require(all(type(n) in (int, str) for d in inputs.values() for n in d.shape))
        read = cls(
            inputs,
            tuple(known["outputs"]),
            tuple(known["texts"]),
            tuple(known["constants"]),
            tuple(large),
            made,
            notes,
            tuple(external),
            known["stamp"],
        )
        _require(_are(str, *read.bfloats))
        return read


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("no interface")


def _are(kind: type, *values: object) -> bool:
    return all(type(value) is kind for value in values)


def compute_external_digest(model: str, places: Sequence[tuple[str, int, int]]) -> str:
    """Return the digest of what is in files beside a model; "" of nothing.

    places: as `Interface.external`.

    Raises:
        FileError: a file is missing, unreadable or too short.
    """
    if not places:
        return ""
    digest = hashlib.sha256()
    for name, offset, nbytes in places:
        path = os.path.join(os.path.dirname(model), name)
        digest.update(repr((name, offset, nbytes)).encode())
        digest.update(files.read_array(path, np.dtype(np.uint8), nbytes, offset, path, model).data)
    return digest.hexdigest()


def list_pieces(
    large: Sequence[Large], frozen: Mapping[str, int], data: mapping.Content
) -> list[bytes | tuple[int, int]]:
    """Return the file of a model without the constants that region frozen holds.

    frozen: where each large constant begins there.

    Returns bytes of the file in turns with (begin, end) of the region in their places.
    """
    out: list[bytes | tuple[int, int]] = []
    end = 0
    stored = ((c.at, c) for c in large if c.at is not None and not c.file)
    for at, each in sorted(stored, key=lambda found: found[0]):  # equal ones may be at one place
        if at >= end:
            out += [data[end:at], (frozen[each.name], frozen[each.name] + each.nbytes)]
            end = at + each.nbytes
    return [*out, data[end:]]
