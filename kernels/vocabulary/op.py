"""The declaration vocabulary: all that an op is, in one place.

An `Op` holds a shape rule, a gradient rule and a lowering.  The three speak through small objects
that the passes supply: `Site` (a node with its types), `Grad` (ONNX nodes in, ONNX nodes out) and
`Lowering` (kernel calls out).  Nothing here knows a graph, a plan or ONNX's protobufs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, Protocol, TypeVar

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS, HALVES
from engine.base.errors import ShapeError, UnknownValueError, UnsupportedOpError
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.facts import (
    ChannelsLast,
    Layout,
    LayoutChoice,
    Movement,
    Product,
    Role,
    Samples,
    Scaling,
    Storage,
    Units,
)
from engine.kernels.vocabulary.kernel import Template
from engine.kernels.vocabulary.signature import Access
from engine.kernels.vocabulary.terms import Formulas
from engine.plan.states import State
from engine.plan.words import Packed

MS = "com.microsoft"
OURS = "engine"

Kind = Literal["int", "float", "string", "tensor", "graph", "ints", "floats", "strings"]
Dim = int | str  # a str is a symbolic dimension; every plan is made with none left
Made = TypeVar("Made")
_INT = frozenset({int})
MANY = 2**31 - 1  # inputs or outputs without a limit, as ONNX's schemas have it


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and ONNX shape of a tensor.

    `last`: the channel axis 1 is stored last (N, spatial..., C).  The shape stays ONNX's.
    """

    dtype: str
    shape: tuple[Dim, ...]
    last: bool = False

    def __str__(self) -> str:
        mark = " channels-last" if self.last else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{mark}"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape when all dimensions are numbers.

        Raises:
            ShapeError: a dimension is symbolic.
        """
        if not _INT.issuperset(map(type, self.shape)) and any(
            not isinstance(d, int) for d in self.shape
        ):
            raise ShapeError(f"{self}: a dimension is not known yet")
        return self.shape  # type: ignore[return-value]  # just checked

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def order(self) -> tuple[int, ...]:
        """The ONNX axes in the order in which they are stored."""
        return (0, *range(2, self.rank), 1) if self.last else tuple(range(self.rank))

    @property
    def strides(self) -> tuple[int, ...]:
        """Stride of each ONNX axis, in elements, as the tensor is stored."""
        dims, out, step = self.dims, [0] * self.rank, 1
        for axis in reversed(self.order):
            out[axis] = step
            step *= dims[axis]
        return tuple(out)

    def but(self, shape: Sequence[Dim] | None = None, dtype: str | None = None) -> TensorType:
        """Return a plain (not channels-last) type with another shape or element type."""
        return TensorType(dtype or self.dtype, self.shape if shape is None else tuple(shape))

    def as_stored(self) -> TensorType:
        """Return the plain type of the same bytes: its axes are in the order in which this one has
        them.
        """
        return self.but([self.dims[axis] for axis in self.order])

    def list_layouts(self) -> list[TensorType]:
        """Return this type in each layout that its rank allows, the plain one first."""
        return [self.as_last(last) for last in ((False, True) if self.rank >= 3 else (False,))]

    def as_last(self, last: bool = True) -> TensorType:
        """Return the same tensor, channels last or plain."""
        return replace(self, last=last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node together with the types and the constant values of its inputs.

    `ins[i]` is None for an optional input that is absent; `values[i]` is an input's value when it
    is constant.  `opset` belongs to the node's domain, `expr` to the declaration.
    """

    op: str
    domain: str
    name: str
    opset: int
    ins: tuple[TensorType | None, ...]
    attrs: Mapping[str, Any]
    values: tuple[Array | None, ...]
    n_outs: int
    expr: Callable[[Site], Expr | Formulas] | None = None

    def formula(self) -> Formulas:
        """Return the scalar formula of an elementwise node; it has one result."""
        assert self.expr is not None, f"{self.where()} has no formula"
        made = self.expr(self)
        return made if isinstance(made, Formulas) else Formulas.of(made)

    def type(self, i: int) -> TensorType:
        """Return the type of input i, which must be present."""
        if i >= len(self.ins) or (kind := self.ins[i]) is None:
            self.fail(f"input {i} is missing")
        return kind

    def real(self, i: int) -> TensorType:
        """Return the type of input i, which must be of f32 or f64."""
        kind = self.type(i)
        if kind.dtype not in FLOATS:
            self.fail(f"input {i} is {kind}", ", ".join(FLOATS))
        return kind

    def shaped(self, i: int, shape: Sequence[Dim]) -> TensorType:
        """Return the type of input i, which must have this shape, as far as both are known."""
        kind = self.type(i)
        pairs = zip(kind.shape, shape, strict=False)
        known = ((a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int))
        if kind.rank != len(shape) or any(a != b for a, b in known):
            self.wrong(f"input {i} is {kind}; expected the shape {list(shape)}")
        return kind

    def has(self, i: int) -> bool:
        """Return whether input i is present."""
        return i < len(self.ins) and self.ins[i] is not None

    def value(self, i: int) -> Array | None:
        """Return the value of input i if it is constant; None if it is absent or computed."""
        return self.values[i] if i < len(self.values) else None

    def known(self, i: int, what: str) -> Array:
        """Return the value of input i, which must be constant: its value decides shapes."""
        value = self.value(i)
        if value is None:
            raise UnknownValueError(
                f"{self.where()}: {what} (input {i}) must be a constant known before lowering", i
            )
        return value

    def integers(self, i: int, what: str) -> list[int]:
        """Return the value of input i, which must be a constant list of integers."""
        array = self.known(i, what)
        if array.ndim > 1 or array.dtype.kind not in "iu":
            self.wrong(f"{what} (input {i}) is {array.dtype}{list(array.shape)}; expected integers")
        return list(array.reshape(-1).tolist())

    def integer(self, i: int, what: str) -> int:
        """Return the value of input i, which must be one constant integer."""
        array = self.known(i, what)
        if array.size != 1 or array.dtype.kind not in "iu":
            self.wrong(
                f"{what} (input {i}) is {array.dtype}{list(array.shape)}; expected one integer"
            )
        return array.reshape(()).item()  # type: ignore[no-any-return]  # of an integer array

    def number(self, i: int, what: str) -> Array:
        """Return the value of input i, one constant finite number, as an array of rank 0."""
        array = self.known(i, what)
        if array.size != 1 or not np.isfinite(array).all():
            self.wrong(f"{what} (input {i}) is {array.tolist()}; expected one finite number")
        return array.reshape(())

    def where(self) -> str:
        """Name the node in messages: `Conv '/layer3/conv1' (opset 17, f32[1,6,8], f32[9,6,3])`."""
        domain = f"{self.domain}::" if self.domain else ""
        types = ", ".join(str(t) if t else "-" for t in self.ins)
        return f"{domain}{self.op} {self.name!r} (opset {self.opset}; {types})"

    def fail(self, found: str, supported: str = "") -> NoReturn:
        """Refuse this node: what was found and what is supported."""
        tail = f"; supported: {supported}" if supported else ""
        raise UnsupportedOpError(f"{self.where()}: {found}{tail}")

    def wrong(self, found: str) -> NoReturn:
        """Refuse shapes that break ONNX's rule for the op."""
        raise ShapeError(f"{self.where()}: {found}")


LayoutRule = Callable[[Site, TensorType], LayoutChoice | None]


class Nodes(Protocol):
    """Writer of the nodes that replace a node, for `expand` and for gradient rules."""

    site: Site

    def x(self, i: int) -> str:
        """Return the name of input i."""

    def wants(self, i: int) -> bool:
        """Return whether output i is used, in an expansion, or input i needs a gradient."""

    def op(self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attrs: Any) -> Any:
        """Emit a node; return its output's name, or a tuple of names if `outputs` > 1.

        An empty input name stands for an optional input that is absent.
        """

    def const(self, value: Any, dtype: str) -> str:
        """Return the name of a constant tensor."""

    def like(self, value: float, i: int) -> str:
        """Return the name of a scalar constant of the element type of input i."""

    def sized(self, value: float, i: int) -> str:
        """Do the same as `like`, for a value that sizes decide: no code is made for this value."""


class Grad(Nodes, Protocol):
    """The argument of a gradient rule.  A tensor read by `x` or `y` is kept for the backward pass.

    The caller sums the gradients of several uses, undoes broadcasts and checks types.
    """

    def y(self, i: int, suffix: str = "") -> str:
        """Return the name of output i; one that is absent is added as `<output 0><suffix>`."""

    def reduce_to(self, dy: str, i: int, shape: tuple[Dim, ...] | None = None) -> str:
        """Sum `dy` over the axes along which input i was broadcast to `shape`.

        `shape` is the shape of `dy`; by default of output 0.
        """

    def replay(self, value: str, instead: Mapping[str, str]) -> str:
        """Compute `value` again from other values, and return its new name.

        instead: the values to use, by the names of those that they replace.  Nodes that depend on
            none of these are not computed again; if no node does, the result is `value` itself.
        """


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as kernels see it: a value name of the plan and its type."""

    name: str
    type: TensorType


def find_stored(x: Operand) -> tuple[str, tuple[str, ...]]:
    """Return the type that a kernel computes an operand with, and S if it is stored as another."""
    kind = x.type.dtype
    return ("f32", (kind,)) if kind in HALVES else (kind, ())


def find_each_stored(*operands: Operand) -> tuple[str, tuple[str, ...]]:
    """Return the type that a kernel computes operands with, and the types they are stored as.

    The second is empty if all are stored as the first.
    """
    kinds = tuple(x.type.dtype for x in operands)
    T = find_stored(operands[0])[0]
    return T, kinds if {*kinds} != {T} else ()


def get_factors(lowering: Lowering, T: str) -> str:
    """Return the type of 16 bits that products round their factors to; "": they are T."""
    P = lowering.precision
    return P if T == "f32" and P in lowering.target.products else ""


class Lowering(Protocol):
    """The argument of a lowering: operands of the node, temporaries, and calls to append.

    precision: the type that products round their factors to; "f32" for no rounding.
    """

    site: Site
    target: Target
    threads: int
    precision: str

    def x(self, i: int) -> Operand:
        """Return input i, which must be present."""

    def y(self, i: int) -> Operand:
        """Return output i; for an accumulated output, the gradient buffer it is added to."""

    def wants(self, i: int) -> bool:
        """Return whether output i is used."""

    def reset(self, i: int) -> Operand | None:
        """Return the flag "overwrite, do not add" when output i is accumulated, otherwise None."""

    def temp(self, dtype: str, shape: Sequence[int]) -> Operand:
        """Return a temporary tensor, alive from its first to its last use by this node's calls."""

    def const(self, value: Array) -> Operand:
        """Return a constant tensor."""

    def keeps(self, operand: Operand, *, forever: bool = False) -> bool:
        """Return whether what is made of an operand is kept, as it is the same in each run.

        Plans of answers keep what follows from constants and parameters alone; forever: what
        follows from constants alone, so that no training makes it change.
        """

    def fault(self) -> Operand:
        """Return the plan's words `STATUS`: a kernel sets them, the kind last, to report bad data.

        The runtime clears the kind before a run and raises after it.
        """

    def noise(self) -> Operand:
        """Return the plan's words `RANDOM`, from which random numbers are made."""

    def once(self, key: object, shapes: Sequence[Sequence[int]], make: Callable[[], Made]) -> Made:
        """Return the result of `make`, which runs once for all nodes with equal arguments.

        key: all that the result depends on except `shapes`, sequences of numbers that may follow
            from sizes.
        """

    def call(
        self,
        kernel: tuple[str, tuple[str | int, ...]],
        *,
        operands: Sequence[tuple[Access, Operand]] = (),
        may_alias: Sequence[tuple[int, int]] | None = None,
        updates: Container[str] = (),
        **named: Operand | int | float | Packed | None,
    ) -> None:
        """Append a kernel call, with an argument for each name of the kernel's signature.

        named: an operand for each pointer, None or nothing for the null pointer; a number; or
            packed words.  Modes, and which operands may share bytes, follow from the signature.
        operands: the operands among the words, whose number the compile-time parameters decide,
            each with its mode: read, written, updated or scratch.
        may_alias: pairs of positions (written, read) that may share bytes, if a call allows
            others than the signature.
        updates: the written operands to which other calls write as well.

        Raises:
            DTypeError: an operand has an element type that the kernel does not take.
            PlanError: a name is missing or unknown.
            ShapeError: the numbers of the call are refused, or it reaches outside of an operand.
        """


@dataclass(frozen=True, slots=True)
class Update:
    """The update of parameters by an op.

    Its inputs are the learning rate, the step unless not `has_step`, all parameters, their
    gradients and the states that it keeps of them.

    states: the rows of its table of states, by the attributes of a node.
    """

    states: Callable[[Mapping[str, Any]], tuple[State, ...]]
    has_step: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One ONNX operator.

    name, domain, since: the op's type and domain, and the first opset for which this is right.
    inputs: the least and the largest number of inputs of a node.  outputs: the largest number of
        outputs; files may leave out those that nobody reads.  For ops in ONNX's domain the schema
        decides both.
    may_be_absent: the required inputs whose names may be empty.
    attrs: the attributes with a default, which is ONNX's.
    takes, needs: the types (`Kind`) of other attributes, by name.  `takes` has those that a node
        may leave out without a default, or whose default does not determine the type; `needs` has
        those that a node must have.  For ops in ONNX's domain the schema decides both.
    infer: returns the types of the outputs; refuses a node through the site.
    lower: appends kernel calls; None for a view (`is_view`), for an elementwise op (`expr`), which
        the fuser turns into a Map, for an op that stands for others (`expand`), and for ops that
        vanish before lowering.
    calls: the kernel templates that `lower` may call.  Planning refuses any other call, and
        libraries for a set of ops contain these.  None, which is for ops from outside this package,
        states nothing: the op can be planned, but a library contains it only with its plans.
    expand: emits the nodes that the op stands for and returns the names of its outputs, "" for an
        unused one; returns None if this node is to be lowered as it is.
    expands_first: `expand` reads no types and runs before types are inferred, because the rules of
        other ops may need constants that it makes.
    becomes: the ops that `expand` may emit, as `read_op_keys` reads them; Identity, which stands
        where an output is an input, need not be named.  As with `calls`, planning refuses any
        other op, and None states nothing.
    grad: takes a gradient name or None for each output, and returns one for each input.  Without
        it, an op is differentiated through its expansion.
    no_gradient: the inputs through which no gradient flows.
    is_of_integers: no gradient flows because it computes with quantised values.
    tells_gradient: a user has written its gradient, which need not follow from what it computes.
    gradient_of: the title of the op whose gradient it computes; empty for other ops.
    training_only: onnxruntime has the op only in its packages for training; gradients and
        optimizers need not declare this.
    fold: returns the outputs as NumPy arrays when all inputs are constant (`values`).
    by_reference: onnx's reference may compute constants where there is no `fold`; only for ops
        that it computes as the kernels do.
    is_view: output 0 has the bytes of input 0 in another shape; `lower` may then update them.
    expr: the scalar formula of an elementwise op over its inputs.
    layout: the layout of images that it reads and makes: one rule for all; the operands that must
        be channels-last; or a function of the site and the type of output 0, which returns how this
        output is stored for the layout of input 0, or None if the input must be plain.
    movement: which elements of its inputs the outputs have.
    scaling: whether it makes integers of numbers or numbers of integers, each by itself.
    units: the integers among its operands, with their scales and zero points, which are checked
        before any rule of the op runs (units.py).
    keeps_units: integers of output 0 have the scale and zero point that integers of input 0 have,
        though they are computed: they are the largest ones of input 0, or means.
    samples: how the outputs hold the samples of a batch; with a formula, ELEMENTWISE by default.
    storage: the operands that may be stored in 16 bits, which may depend on the node; none by
        default, and all for an op with a formula.
    is_acting: it writes to its input 0, a gradient or a statistic that outlives the run.  So it
        runs even if nobody reads its outputs, like an op with `optimizer`.
    is_random: it draws random numbers.
    is_cheap: computing it takes little more than reading its inputs and writing its outputs.
    roles: the inputs that are usually parameters of a model, and their roles.
    product: the matrix product or convolution that a node of a model computes; gradients and ops
        that only passes make need not declare it.
    type_only: the inputs whose type is read, but never their bytes.
    accumulates: the outputs that the kernel itself can add into a gradient buffer.
    is_identity: in the forward pass it only returns input 0.  Files contain the op as a function
        that says so, for runtimes that do not have it.
    internal: only passes of the planner make it; a file that contains it is refused.
    names_all_outputs: onnxruntime-training expects a name for every output, read or not.
    optimizer: the way it changes parameters, if it does.
    reads_all_gradients: it belongs to the update of a joined graph and reads all its gradients.
    joined: the ops that a joined graph may have because of it, as `read_op_keys` reads them.
    """

    name: str
    infer: Callable[[Site], tuple[TensorType, ...]]
    domain: str = ""
    since: int = 1
    inputs: tuple[int, int] | None = None
    outputs: int | None = None
    may_be_absent: frozenset[int] = frozenset()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    takes: Mapping[str, Kind] = field(default_factory=dict)
    needs: Mapping[str, Kind] = field(default_factory=dict)
    lower: Callable[[Lowering], None] | None = None
    calls: tuple[Template, ...] | None = None
    expand: Callable[[Nodes], tuple[str, ...] | None] | None = None
    expands_first: bool = False
    becomes: str | None = None
    grad: Callable[..., tuple[str | None, ...]] | None = None
    no_gradient: frozenset[int] = frozenset()
    is_of_integers: bool = False
    tells_gradient: bool = False
    gradient_of: str = ""
    training_only: bool = False
    fold: Callable[[Site], tuple[Array, ...]] | None = None
    by_reference: bool = False
    is_view: bool = False
    expr: Callable[[Site], Expr | Formulas] | None = None
    layout: Layout | ChannelsLast | LayoutRule = Layout.PLAIN
    movement: Movement = Movement.COMPUTED
    scaling: Scaling | None = None
    units: tuple[Units, ...] = ()
    keeps_units: bool = False
    samples: Samples = Samples.MIXED
    storage: Storage | Callable[[Site], Storage | None] | None = None
    is_acting: bool = False
    is_random: bool = False
    is_cheap: bool = False
    roles: Mapping[int, Role] = field(default_factory=dict)
    product: Product | None = None
    type_only: frozenset[int] = frozenset()
    accumulates: tuple[int, ...] = ()
    is_identity: bool = False
    internal: bool = False
    names_all_outputs: bool = False
    optimizer: Update | None = None
    reads_all_gradients: bool = False
    joined: str = ""

    def attributes(self) -> dict[str, Kind]:
        """Return the type of every attribute that a node may have.

        Raises:
            TypeError: a default does not determine a type, and neither does `takes`.
        """
        stated = {**self.takes, **self.needs}
        told = {n: _find_kind(n, v) for n, v in self.attrs.items() if n not in stated}
        return {**told, **stated}

    @property
    def differentiable(self) -> bool:
        """True if a gradient can flow through the op: by its rule, or through its expansion."""
        return self.grad is not None or (self.expand is not None and 0 not in self.no_gradient)

    @property
    def keeps_elements(self) -> bool:
        """True if output 0 has the elements of input 0 in their order, of whatever type."""
        return self.movement in (Movement.KEPT, Movement.CONVERTED)

    @property
    def passes_units(self) -> bool:
        """True if integers keep their scale and zero point from input 0 to output 0."""
        return self.movement.copies or self.keeps_units

    @property
    def is_for_training(self) -> bool:
        """True if the op is found in training graphs alone."""
        return self.training_only or bool(self.gradient_of) or self.optimizer is not None

    @property
    def title(self) -> str:
        """The op as messages and `becomes` name it."""
        return title_op(self.domain, self.name)


def title_op(domain: str, name: str) -> str:
    """Return a title such as `Add` or `com.microsoft::Gelu`."""
    return f"{domain}::{name}" if domain else name


@functools.cache
def read_op_keys(text: str) -> frozenset[tuple[str, str]]:
    """Return the ops that a text names, as (domain, op type): `"Add com.microsoft::Gelu"`.

    A name without a domain is one of ONNX's.
    """
    words = (word.rpartition("::") for word in text.split())
    return frozenset((domain, name) for domain, _, name in words)


def _find_kind(name: str, value: Any) -> Kind:
    """Return the type of an attribute that has this default."""
    # An array is none, although it matches `[float(), *_]` from NumPy 2.5 on.
    is_list = isinstance(value, list | tuple)
    match value[0] if is_list and value else value:
        case int():
            return "ints" if is_list else "int"
        case float():
            return "floats" if is_list else "float"
        case str():
            return "strings" if is_list else "string"
    raise TypeError(f"attribute {name}={value!r}: give its type in `takes`")
