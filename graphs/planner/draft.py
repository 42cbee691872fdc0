"""Drafts: the kernel calls of a graph on named values, before memory is assigned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine.base.aliases import Array
from engine.base.element_types import ITEMSIZE
from engine.base.errors import UnsupportedOpError
from engine.kernels.vocabulary.op import Operand, TensorType
from engine.kernels.vocabulary.sizes import Noted, SizedArray, Sizes, is_size
from engine.plan.plan import KernelSpec, Mode, Phase


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value that outlives the run is kept: a region, and the offset in it in bytes."""

    region: str
    offset: int


@dataclass(slots=True)
class Value:
    """A tensor of the draft.

    root: the name of the value whose bytes it shares; its own name if it has bytes of its own.
    region: where its bytes will be, see `plan.REGIONS`.
    place: set if it outlives the run: where it is kept.
    data: set in region const: its elements.
    """

    name: str
    type: TensorType
    root: str
    region: str = "work"
    place: Place | None = None
    data: Array | None = None
    _nbytes: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        if self._nbytes is None:
            nbytes = self.type.size * ITEMSIZE[self.type.dtype]
            if is_size(nbytes):
                return nbytes  # another number for other shapes
            self._nbytes = nbytes
        return self._nbytes

    @property
    def elements(self) -> int:
        return self.nbytes // ITEMSIZE[self.type.dtype]

    def resize(self, sizes: Sizes) -> Value:
        """Return the value with numbers in the place of sizes; itself if it has none."""
        is_sized = any(is_size(d) for d in self.type.shape)
        if not is_sized and not isinstance(self.data, SizedArray):
            return self
        return replace(self, type=resize_type(self.type, sizes), data=sizes.value(self.data))


def resize_type(t: TensorType, sizes: Sizes) -> TensorType:
    """Return the type with numbers in the place of sizes."""
    if any(is_size(d) for d in t.shape):
        return replace(t, shape=tuple(map(sizes.value, t.shape)))
    return t


@dataclass(frozen=True, slots=True)
class TileCut:
    """The tiles in which a call of a group runs; see `Step`.

    group: for the first call of a group, its number of calls; otherwise 0.
    tiles: how many there are.
    numbered: whether the kernel finds a tile by its number.
    args: for each pointer, as in `Arg`, the bytes that belong to one tile and to one thread.
    """

    group: int
    tiles: int
    numbered: bool
    args: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class DraftCall:
    """One kernel call.

    args: the mode and the name of the root value of each pointer; "" is the null pointer.
    consts: the numbers that follow the pointers.
    source: the name of the node that the call comes from.
    inplace: positions (written, read) in `args` that may share bytes.
    operands: as `Step.operands`.
    cut: set for a call of a group; the numbers are then for one tile.
    segment: the number of its segment (segments.py, sample_groups.py); 0 if it is in none.
    again: whether it repeats an earlier call, whose results need not be kept until here.
    alone: as `Step.alone`.
    """

    spec: KernelSpec
    args: tuple[tuple[Mode, str], ...]
    consts: tuple[int | float, ...]
    source: str
    phase: Phase
    inplace: tuple[tuple[int, int], ...]
    operands: tuple[str, ...] = ()
    cut: TileCut | None = None
    segment: int = 0
    again: bool = False
    alone: bool = False

    def resize(self, sizes: Sizes) -> DraftCall:
        """Return the call with numbers in the place of sizes; itself if it has none.

        Raises:
            UnsupportedOpError: a number has more than 64 bits.
        """
        if not any(is_size(c) for c in self.consts):
            return self
        consts = tuple(map(sizes.value, self.consts))
        if not all(-(1 << 63) <= c < 1 << 63 for c in consts if isinstance(c, int)):
            raise UnsupportedOpError(
                f"{self.source}: sizes are too large: {list(consts)}; supported: sizes of 64 bits"
            )
        return replace(self, consts=consts)

    def list_touched(self, modes: str) -> set[str]:
        """Return the names of the root values that it uses in one of these modes."""
        return {name for mode, name in self.args if name and mode in modes}


@dataclass(slots=True)
class Draft:
    """The calls of a graph and their values, before these have places in memory.

    inputs: pairs of the ONNX name and the value.
    outputs: triples of the ONNX name, the value, and the shape of the output.  The value itself may
        have another shape, since a view shares the value of its input.
    """

    values: dict[str, Value] = field(default_factory=dict)
    calls: list[DraftCall] = field(default_factory=list)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    outputs: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)

    def copy(self) -> Draft:
        """Return a draft whose calls and values can be changed without changing this one."""
        return Draft(dict(self.values), list(self.calls), self.inputs, self.outputs)

    def find_root(self, name: str) -> str:
        """Return the name of the value that owns the bytes of the value `name`."""
        return self.values[name].root

    def add(self, name: str, t: TensorType, **kwargs: object) -> Operand:
        """Add a value that owns its bytes."""
        self.values[name] = Value(name, t, name, **kwargs)  # type: ignore[arg-type]  # Value's own
        return Operand(name, t)

    def name_fresh(self, name: str) -> str:
        """Return a name that no value has: this one, with as many `'` after it as that takes."""
        while name in self.values:
            name += "'"
        return name


@dataclass(slots=True)
class Piece:
    """The calls that the lowering of one node adds, for all sizes that give the same answers.

    values: the values that its calls touch, in the order of first use; None for values of the
        graph.
    """

    answers: Noted
    values: dict[str, Value | None] = field(default_factory=dict)
    calls: list[DraftCall] = field(default_factory=list)

    def add(self, name: str, t: TensorType, **kwargs: object) -> Operand:
        """Add a value that owns its bytes."""
        self.values[name] = Value(name, t, name, **kwargs)  # type: ignore[arg-type]  # Value's own
        return Operand(name, t)


def drop_dead_calls(draft: Draft) -> None:
    """Remove dead calls, whose results nothing reads and do not outlive the run, and constants.

    A node may read a value only for its shape, as ConvGrad reads x if only dx is wanted.  The graph
    then has a node that computes this value, but no kernel reads it.

    Before   z_again = map(x); dx = convolve_back(dy, w)
    After    dx = convolve_back(dy, w)
    """
    wanted = {name for name, value in draft.values.items() if value.region not in ("work", "const")}
    kept = []
    for call in reversed(draft.calls):
        if any(name in wanted for mode, name in call.args if mode in "wu"):
            wanted.update(name for mode, name in call.args if mode in "ru")
            kept.append(call)
    draft.calls = kept[::-1]
    touched = {name for call in kept for _, name in call.args}
    gone = [n for n, v in draft.values.items() if v.region == "const" and n not in touched]
    for name in gone:
        del draft.values[name]
