"""Facts that an op declares of itself: what passes may know of it without asking for its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any


class Layout(Enum):
    """The layouts of images in which an op works."""

    PLAIN = "all inputs and outputs are plain"
    ANY = "either layout; inputs and outputs share it"
    ANY_BROADCAST = "as ANY, where inputs of other shapes are broadcast"
    ANY_INPUT = "either layout, which the inputs share; the outputs are not images"


@dataclass(frozen=True, slots=True)
class ChannelsLast:
    """The inputs and the outputs of an op that must be channels-last; the others are plain."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """The way an op stores its output 0, given the layout of its input 0.

    last: the output is channels-last.
    view: the op of this engine that replaces the node, whose output then has the bytes of the
        input, so that nothing is copied; empty if the node stays.
    """

    last: bool
    view: str = ""


class Role(Enum):
    """The role of an input that is usually a parameter of the model."""

    WEIGHT = "factors of a product"
    TABLE = "rows that are picked"
    RECURRENT_WEIGHT = "factors of what the step before has made"
    BIAS = "added to a result"
    SCALE = "factors of normalised values"
    SHIFT = "added to normalised values"
    MEAN = "a running mean"
    VARIANCE = "a running variance"


WEIGHT_AND_BIAS = {1: Role.WEIGHT, 2: Role.BIAS}
NORM = {1: Role.SCALE, 2: Role.SHIFT}


class Factors(Enum):
    """The numbers that a product multiplies."""

    FLOATS = "floats"
    PACKED = "floats, with weights of a few bits that have scales"
    DYNAMIC = "integers whose scales are computed as the model runs; the result is not rounded"
    STATIC = "integers whose scales are constants; so has the result, which is rounded"

    @property
    def are_integers(self) -> bool:
        """True if integers are multiplied, through which no gradient flows."""
        return self in (Factors.DYNAMIC, Factors.STATIC)


@dataclass(frozen=True, slots=True)
class Product:
    """The matrix product or convolution that an op computes, or its several ones.

    of: the op of ONNX that computes the same with floats and nothing else.
    output_axis: the axis of the outputs in the weights; matrices have it last, or last but one
        where they are transposed.
    factors: what is multiplied.
    is_alone: the op computes one product, and adds nothing to it but a bias.
    """

    of: str
    output_axis: int = -1
    factors: Factors = Factors.FLOATS
    is_alone: bool = True

    @property
    def is_of_matrices(self) -> bool:
        """True if the op multiplies two matrices, or batches of them, whatever it does then."""
        return self.of in (GEMM.of, MATMUL.of)

    @property
    def is_convolution(self) -> bool:
        """True if the op is a convolution, but not a transposed one, whatever it does then."""
        return self.of == CONV.of

    def with_factors(self, factors: Factors) -> Product:
        """Return the same product of other numbers."""
        return replace(self, factors=factors)

    def as_part(self) -> Product:
        """Return the product as a part of what the op computes."""
        return replace(self, is_alone=False)

    def find_output_axis(self, attrs: Mapping[str, Any], rank: int = 2) -> int:
        """Return the axis of the outputs in the weights of a node with these attributes.

        rank: of the weights; only for batches of matrices it matters.
        """
        return (self.output_axis - bool(attrs.get("transB", 0))) % rank


GEMM, MATMUL = Product("Gemm"), Product("MatMul")
CONV, CONV_TRANSPOSE = Product("Conv", output_axis=0), Product("ConvTranspose", output_axis=1)
EINSUM, ATTENTION = Product("Einsum").as_part(), Product("Attention").as_part()
RNN = Product("RNN").as_part()
GRU, LSTM = replace(RNN, of="GRU"), replace(RNN, of="LSTM")


class Movement(Enum):
    """The origin of the elements of an op's outputs: its inputs, or a computation."""

    COMPUTED = "not said: the outputs are computed"
    KEPT = "output 0 has the elements of input 0 in their order"
    CONVERTED = "as KEPT, in another element type"
    TRANSPOSED = "output 0 has the elements of input 0, its axes in the order of `perm`"
    MOVED = "every element of the outputs is one of input 0"
    JOINED = "every element of the outputs is one of the inputs"
    FILLED = "as MOVED, with a constant elsewhere"

    @property
    def copies(self) -> bool:
        """True if every element of the outputs is one of the inputs, unchanged."""
        return self in (Movement.KEPT, Movement.TRANSPOSED, Movement.MOVED, Movement.JOINED)

    @property
    def is_reversible(self) -> bool:
        """True if input 0 can be made of output 0, by moving its elements back."""
        return self in (Movement.KEPT, Movement.TRANSPOSED)


class Scaling(Enum):
    """The direction between numbers and the integers that stand for them.

    Inputs 1 and 2 are the scale and the zero point of the integers, unless it measures them.
    """

    QUANTISES = "output 0 has the integers that stand for the numbers of input 0"
    MEASURES = "as QUANTISES, with the range of the numbers; outputs 1 and 2 are its scale and zero"
    DEQUANTISES = "output 0 has the numbers for which the integers of input 0 stand"


class Each(Enum):
    """The parts of integers that may have a scale and a zero point of their own."""

    ALL = "one number for all"
    ROWS = "as ALL, or one for each row"
    OUTPUTS = "as ALL, or one for each output of the product whose weights they are"
    OTHER = "as the shape rule says"
    BLOCKS = "as OTHER; the integers are packed, and their zero points may be floats"

    @property
    def is_of_rule(self) -> bool:
        """True if the shape rule of the op knows the shapes, and not the product that it is."""
        return self in (Each.OTHER, Each.BLOCKS)


@dataclass(frozen=True, slots=True)
class Units:
    """Integers that an op reads or makes, and the inputs that say which numbers they stand for.

    of: the input of integers; None for the result, whose scale divides numbers.
    scale, zero: the inputs; None if the op takes none.
    each: what has them.
    every: after how many inputs the same comes again, until the last one; 0 for once.
    """

    of: int | None
    scale: int | None
    zero: int | None
    each: Each = Each.ALL
    every: int = 0

    def list_all(self, count: int) -> list[Units]:
        """Return these units and those that come again among this many inputs."""
        if not self.every:
            return [self]
        assert self.of is not None
        assert self.scale is not None
        assert self.zero is not None
        return [
            replace(self, of=self.of + k, scale=self.scale + k, zero=self.zero + k)
            for k in range(0, count - self.of, self.every)
        ]


class Samples(Enum):
    """The place of a batch's samples in an op's outputs; its inputs hold them along an axis.

    Where no other input is named, input 0 alone has samples.
    """

    MIXED = "not said: it is taken to mix them"
    ELEMENTWISE = "an element of an output is made of those at its place in the inputs"
    UNIFORM = "all elements of the output are equal"
    FIRST_AXIS = "on axis 0 of input 0, as of the outputs"
    KEPT = "as many elements lie before them as before, and as many are in each"
    TRANSPOSED = "on the axis to which `perm` moves theirs"
    EXPANDED = "on the same axis, counted from the last; other axes are made longer"
    TILED = "as EXPANDED; where it is their axis, the output goes through them several times"
    RESIZED = "on an axis that stays as long as it is"
    PADDED = "on an axis that is not padded"
    CONCATENATED = "on an axis of all inputs that is not `axis`, or in turns along `axis`"
    SPLIT = "as CONCATENATED, parted"
    SLICED = "on an axis that is left whole"
    GATHERED = "in the data or in the indices, on an axis that is not picked from"
    GATHERED_EACH = "in the data and in the indices, on the same axis, which is not `axis`"
    GATHERED_ND = "on a batch axis of both; or where indices hold the number of each sample"
    AXIS_APART = "on another axis than `axis`, along which the op works"
    INPUT_AXIS_APART = "on another axis than input 1, along which the op works"
    MATRICES_APART = "on another axis than the last two, whose matrices the op works on"
    NORMALISED = "on an axis before `axis`, from which on the op normalises"
    SOFTMAX = "on another axis than `axis`, or before it where later axes count as one"
    BATCH_NORM = "as FIRST_AXIS, and mixed in training mode"
    BATCH_STATISTICS = "as FIRST_AXIS, and mixed"
    MEAN = "on an axis that stays, or the mean of the samples is made"
    SUM = "on an axis that stays, or the sum of the samples is made"
    REDUCED = "on an axis that stays"
    REDUCED_AXIS = "on another axis than `axis`, which is reduced"
    GEMM = "on the rows of the first matrix"
    MATMUL = "on a batch axis, or on an axis of one operand that the product keeps"
    EINSUM = "along a letter that all operands and the result have"
    RECURRENT = "on the axis of the batch, which `layout` says"
    CROSS_ENTROPY = "on axis 0 of scores and labels; a loss over them is made"


@dataclass(frozen=True, slots=True)
class Storage:
    """The float32 operands of an op that its kernels also take in 16 bits, see `choose_storage`.

    inputs, outputs: their places; None: all of them.
    alike: these operands are all stored in one type.
    """

    inputs: frozenset[int] | None = None
    outputs: frozenset[int] | None = None
    alike: bool = False

    def has(self, place: int, *, is_output: bool) -> bool:
        """Return whether an operand may be stored in 16 bits."""
        places = self.outputs if is_output else self.inputs
        return places is None or place in places


ALIKE = Storage(frozenset({0}), frozenset({0}), alike=True)  # input 0 and output 0
