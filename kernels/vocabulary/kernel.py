"""The words kernels are written in; light enough to import without numba.

A kernel *template* is a function `f(target, *params)` that returns the body of a kernel: a Python
function over typed pointers, which numba's front end lowers (`lower.py`).  Its declaration gives
the body's parameters, their shapes and how they are used (`signature.py`):

    @kernel("x: T[n]  y: out T[n] may alias x  n: i64")
    def double(target: Target, T: str) -> Body:
        def body(x, y, n, tid, nthreads):
            '''y[i] = 2 x[i].'''
            begin, end = share(n, tid, nthreads)
            for i in range(begin, end):
                y[i] = x[i] + x[i]
        return body

A body with many parameters takes them by name, as one that is called `call`:

        def body(call, tid, nthreads):
            begin, end = share(call.n, tid, nthreads)
            ...

`T` stands for the first compile-time parameter.  The compiled symbol has one shape for all kernels,
`void symbol(const word *args, i64 tid, i64 nthreads)`; args holds one 64-bit word per parameter.
A parameter typed `i64[]` is last and receives the address of the words that follow.  `words` says
by parameter how these are laid out, and the body reads them by name:

    SIZES = Words("sizes", rows="rows of x", columns="elements of a row")

    @kernel("x: out T[rows, columns]  g: i64[]", words={"g": SIZES})
    def clear(target: Target, T: str) -> Body:
        def body(x, g, tid, nthreads):
            begin, end = share(g.rows * g.columns, tid, nthreads)
            ...

A parameter typed `i64*` may point to such words too.  `off(g.jobs, i)` is the record i of an array.

`Intrinsic` names an operation that Python cannot express (a register tile, a vector loop, an
atomic); `compiler/intrinsics.py` builds it for a target when a kernel that uses it is compiled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.base.element_types import ITEMSIZE
from engine.kernels.vocabulary.signature import (
    ACCUMULATE as ACCUMULATE,
)
from engine.kernels.vocabulary.signature import (
    BIAS as BIAS,
)
from engine.kernels.vocabulary.signature import (
    HARD_SWISH as HARD_SWISH,
)
from engine.kernels.vocabulary.signature import (
    RELU as RELU,
)
from engine.kernels.vocabulary.signature import (
    SIX as SIX,
)
from engine.kernels.vocabulary.signature import (
    KernelParameter,
    compile_expression,
    evaluate,
    parse,
)
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import Words

Body = Callable[..., None]
Inline = Callable[..., Any]  # a function that kernels inline, see `inline`
Parameters: TypeAlias = tuple[str | int, ...]
Instance: TypeAlias = tuple[str, Parameters]  # a template by name, with its parameters
Numbers: TypeAlias = tuple[int | float, ...]
Tile: TypeAlias = Callable[[Parameters, Numbers], Tiling | None]
# Declarations that are functions take a `KernelCall`, which call.py builds on the template.
Declared: TypeAlias = Callable[[Any], Mapping[str, "int | Sequence[int]"]]
Counted: TypeAlias = Callable[[Any], int]
Samples: TypeAlias = Callable[[Any], Tiling | None]
Writes: TypeAlias = Callable[[Any], Iterable[int]]

OPERANDS = "..."  # stands for the operands whose number the compile-time parameters decide

BY_NAME = "call"  # the first parameter of a body that takes all of the signature by name

# Kinds of element types: floats; these and integers; those that stand for all of their size; any of
# them.  And no kind at all: not to be listed.
REAL, NUMBER, MOVED, ANY, OPEN = "real", "number", "moved", "any", "open"


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """An operation of `compiler/intrinsics.py` by name, with its compile-time parameters.

    names: of the arguments, if its builder has none or other ones.  A call by name may then pass
    more, which are ignored.
    """

    name: str
    params: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"the intrinsic {self.name!r} exists only in compiled kernels")


@dataclass(frozen=True, slots=True)
class Order:
    """The parameters of a kernel by kind.

    words: the name of the last parameter, the words that follow; "" if there are none.
    names, needed: of all arguments, and of those that every call has.
    shapeless: the operands for which `reach` answers.
    may_alias: pairs of places of pointers (written, read).
    tables: the places of pointers whose elements an index chooses.
    """

    pointers: tuple[KernelParameter, ...]
    numbers: tuple[str, ...]
    words: str
    names: frozenset[str]
    needed: frozenset[str]
    shapeless: frozenset[str]
    may_alias: tuple[tuple[int, int], ...]
    tables: tuple[int, ...]
    updates: bool

    @classmethod
    def of(cls, parameters: Sequence[KernelParameter], words: Mapping[str, Any]) -> Order:
        """Return the parameters of a signature by kind."""
        pointers = tuple(p for p in parameters if p.is_pointer)
        numbers = tuple(p.name for p in parameters if p.is_number)
        last = "".join(p.name for p in parameters if p.kind == "i64[]" and p.name in words)
        place = {p.name: i for i, p in enumerate(pointers)}
        return cls(
            pointers,
            numbers,
            last,
            frozenset((*place, *numbers, *filter(None, (last,)))),
            frozenset(numbers),
            frozenset((*(p.name for p in pointers if not p.size), OPERANDS)),
            tuple((place[p.name], place[other]) for p in pointers for other in p.aliases),
            tuple(sorted({place[p.within[0]] for p in pointers if p.within[0]})),
            any(p.updates for p in pointers),
        )


@dataclass(frozen=True, slots=True)
class Template:
    """A kernel template: `build(target, *params)` returns the body for these parameters.

    `parameters`: of the body, as the signature declares them (`signature.py`).

    `ranges` says what parameters may be, for libraries that are made before their plans: values,
    or for `T` a kind of element types: REAL (the default), NUMBER, MOVED or ANY.  Integers are
    flags, 0 or 1, and texts OPEN, without end, where nothing is said: such a template is left out.
    `params`: rows of all parameters.

    `words`: by parameter of the body, the layout of the words that it points to, or a function that
    returns it for the compile-time parameters.

    `operands(*params)` gives the types of the pointers among the words of `i64[]`, as
    `engine.plan.plan.Kernel.takes` writes them; `writes(call)` gives the places of those that
    the kernel writes.  `stands_for(*params)` gives the element types besides `T` that a
    `T*` may point to: all of its size for kernels that only move data.

    `reach(call)` gives the reach into operands whose shape the signature leaves open, and refuses
    calls that it cannot answer for.

    `multiply_adds`: of a call, an expression of its numbers or a function; counted for the
    operation, whatever algorithm computes it.  "" for kernels that only move or map elements.

    `touches`: the elements of operands that a call touches, as expressions of its numbers, where
    these are far fewer than its reach.

    `tiling(params, numbers)` says how a call with these numbers is cut into tiles of rows, None if
    it is not.  `samples`: of a kernel that reads neighbours or sums over samples, how a call is cut
    into one for each sample: the number that counts them, where it is the first extent of all that
    is cut, or a function of the call; "" where `tiling` cuts samples, too.

    `joins`: of a kernel that joins partial results, which of its numbers says how many there are;
    its first pointer points to them.

    `smaller(*params)` gives the parameters of a kernel of this template that makes the same bits of
    the same arguments by less code, in more time; a library that is to be small has it instead.

    `is_internal`: the runtime calls it, and no plan may.
    """

    name: str
    parameters: tuple[KernelParameter, ...]
    build: Callable[..., Body]
    ranges: Mapping[str, tuple[Any, ...] | str] = field(default_factory=dict)
    words: Mapping[str, Words | Callable[..., Words]] = field(default_factory=dict)
    operands: Callable[..., tuple[str, ...]] | None = None
    stands_for: Callable[..., tuple[str, ...]] | None = None
    reach: Declared | None = None
    writes: Writes | None = None
    multiply_adds: str | Counted = ""
    touches: Mapping[str, str] = field(default_factory=dict)
    tiling: Tile | None = None
    samples: str | Samples = ""
    joins: int | None = None
    smaller: Callable[..., Parameters] | None = None
    is_internal: bool = False
    _compiled: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def signature(self) -> tuple[tuple[str, str], ...]:
        """The names and the kinds of the parameters of the body: T*, f32*, i64, i64[], ..."""
        return tuple([(p.name, p.kind) for p in self.parameters])

    @property
    def is_bounded(self) -> bool:
        """True if the signature and `reach` say how far calls reach into their operands."""
        return self.reach is not None or all(p.size for p in self.parameters if p.is_pointer)

    @property
    def order(self) -> Order:
        """The order of arguments by name: as pointers, numbers and words of a call."""
        order = self._compiled.get("order")
        if order is None:
            order = self._compiled["order"] = Order.of(self.parameters, self.words)
        return order

    def layouts(self, params: Parameters) -> dict[str, Words]:
        """Return the words of each parameter that is declared to point to some."""
        return {n: w if isinstance(w, Words) else w(*params) for n, w in self.words.items()}

    def trailing(self, params: Parameters) -> Words | None:
        """Return the layout of the numbers at the end of a call; None if they have none."""
        last = self.parameters[-1]
        words = None if last.is_pointer or last.is_number else self.words.get(last.name)
        return words if words is None or isinstance(words, Words) else words(*params)

    def takes(self, *params: str | int) -> tuple[str, ...]:
        """Return the types that a call passes for these parameters, as in `plan.Kernel`."""
        first = str(params[0])
        others = self.stands_for(*params) if self.stands_for else ()
        layouts = self.layouts(params)
        out: list[str] = []
        for name, kind in self.signature:
            if kind.endswith("[]"):
                out += self.operands(*params) if self.operands else ()
                if name in layouts:
                    words = layouts[name]
                    kind = f"{kind[:-1]}{words.size - words.addresses}{'+' * words.open}]"
            made = self.resolved(kind, params)
            is_moved = made == f"{first}*" != kind
            out.append(name_pointer(first, *others) if is_moved else made)
        return tuple(out)

    def resolved(self, kind: str, params: Parameters) -> str:
        """Return a kind of the signature with an element type in the place of its parameter.

        A capital letter is the compile-time parameter of this name; one that is not given is T.
        """
        name = kind.rstrip("*[]")
        if len(name) != 1 or not name.isupper():
            return kind
        given = str(params[0]) if name == "T" else str(self.bound(params).get(name) or params[0])
        return given + kind[1:]

    def operand_names(self, count: int) -> list[str]:
        """Return the names of the operands of a call that passes so many pointers."""
        fixed = [p.name for p in self.parameters if p.is_pointer]
        return [*fixed, *(f"{OPERANDS}{i}" for i in range(count - len(fixed)))]

    def named(self, params: Parameters, consts: Sequence[int | float]) -> dict[str, Any]:
        """Return the numbers of a call by the names that the kernel has for them.

        An array of words is a tuple.  Words without a layout are one under their parameter's name.
        """
        rest = [p for p in self.parameters if not p.is_pointer]
        values: dict[str, Any] = dict(
            zip([p.name for p in rest if p.is_number], consts, strict=False)
        )
        if rest and not rest[-1].is_number:
            words, layout = consts[len(rest) - 1 :], self.trailing(params)
            values |= {rest[-1].name: tuple(words)} if layout is None else layout.unpack(words)
        return values

    def bound(self, params: Parameters) -> dict[str, str | int]:
        """Return the compile-time parameters by the names that `build` has for them, with its
        defaults.
        """
        known = self._compiled.get("params")
        if known is None:
            given = [*inspect.signature(self.build).parameters.values()][1:]
            usual = {p.name: p.default for p in given if p.default is not p.empty}
            known = self._compiled["params"] = [p.name for p in given], usual
        names, usual = known
        return {**usual, **dict(zip(names, params, strict=False))}

    def place(self, name: str, params: Parameters) -> int:
        """Return the position of a number among the numbers of a call."""
        numbers = self.order.numbers
        if name in numbers:
            return numbers.index(name)
        layout = self.trailing(params)
        assert layout is not None
        return len(numbers) + layout.place(name)

    def holds(self, expression: str, names: Mapping[str, Any]) -> bool:
        """Return whether a condition of the signature holds."""
        return bool(self.value(expression, names))

    def shaped_reach(self, names: Mapping[str, Any]) -> dict[str, int | Sequence[int]]:
        """Return the reach into operands that have a shape; names: as `KernelCall.names`."""
        code = self._compiled.get("reach")
        if code is None:
            sized = [p for p in self.parameters if p.size]
            text = ", ".join(f"{p.name!r}: {p.reach}" for p in sized)
            code = self._compiled["reach"] = compile_expression(f"{{{text}}}")
        reach: dict[str, int | Sequence[int]] = evaluate(code, names)
        return reach

    def value(self, expression: str, names: Mapping[str, Any]) -> Any:
        """Return the value of an expression of the signature."""
        code = self._compiled.get(expression)
        if code is None:
            code = self._compiled[expression] = compile_expression(expression)
        return evaluate(code, names)

    def __call__(self, *params: str | int) -> Instance:
        """Name this template with parameters, as `KernelSpec` wants them."""
        return self.name, params


def drop_same(S: str, T: str) -> str:
    """Return how an operand is stored, S, or nothing where that is T."""
    return "" if S == T else S


def name_pointer(dtype: str, *others: str) -> str:
    """Return a pointer to elements of one of these types, as `Template.takes` says it."""
    return "|".join(sorted({dtype, *others})) + "*"


def list_same_size(dtype: str, *_: Any) -> tuple[str, ...]:
    """List the element types of this size: `Template.stands_for` of kernels that move data."""
    return tuple(t for t, size in ITEMSIZE.items() if size == ITEMSIZE[dtype])


def list_bools(dtype: str, op: str, *_: Any) -> tuple[str, ...]:
    """Return b1 for kernels of max or min of u8, which are "or" and "and" of bools."""
    return ("b1",) if dtype == "u8" and op in ("max", "min") else ()


def kernel(
    signature: str,
    *,
    words: Mapping[str, Words | Callable[..., Words]] | None = None,
    operands: Callable[..., tuple[str, ...]] | None = None,
    stands_for: Callable[..., tuple[str, ...]] | None = None,
    reach: Declared | None = None,
    writes: Writes | None = None,
    multiply_adds: str | Counted = "",
    touches: Mapping[str, str] | None = None,
    tiling: Tile | None = None,
    samples: str | Samples = "",
    joins: int | None = None,
    smaller: Callable[..., Parameters] | None = None,
    is_internal: bool = False,
    **ranges: tuple[Any, ...] | str,
) -> Callable[[Callable[..., Body]], Template]:
    """Declare a kernel template; `signature` is a text of `signature.py`, in argument order.

    Other arguments: as in `Template`.  A kernel whose `T` is MOVED takes all types of the
    size, if `stands_for` says nothing else.
    """
    if stands_for is None and ranges.get("T") == MOVED:
        stands_for = list_same_size
    parameters = parse(signature)

    def declare(build: Callable[..., Body]) -> Template:
        return Template(
            build.__name__.rstrip("_"), parameters, build, ranges, words or {},
            operands=operands, stands_for=stands_for, reach=reach, writes=writes,
            multiply_adds=multiply_adds, touches=touches or {}, tiling=tiling, samples=samples,
            joins=joins, smaller=smaller, is_internal=is_internal,
        )  # fmt: skip

    return declare


def inline(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a Python function as inlined into the kernels that call it."""
    fn.__kernel_inline__ = True  # type: ignore[attr-defined]  # read by compiler/lower.py
    return fn


def outline(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a Python function as called, not inlined, by the kernels that use it.

    For what does much in a call: LLVM compiles it once, however many calls the text has, and the
    time that it takes grows faster than the length of one function.
    """
    fn.__kernel_inline__ = False  # type: ignore[attr-defined]  # read by compiler/lower.py
    return fn


off = Intrinsic("off")  # off(p, i): the pointer i elements, or records, after p
udiv = Intrinsic("udiv")  # udiv(a, b): a // b for a >= 0, b > 0
imin = Intrinsic("imin")  # imin(a, b) of two i64
imax = Intrinsic("imax")
pick = Intrinsic("pick")  # pick(c, p, q): pointer p if c != 0, otherwise q


@inline
def share(n, tid, nthreads):
    """This thread's part [begin, end) of n items; parts differ by at most one item."""
    return udiv(n * tid, nthreads), udiv(n * (tid + 1), nthreads)


@inline
def share_blocks(n, block, tid, nthreads):
    """This thread's part [begin, end) of n items, cut only at multiples of `block`."""
    blocks = udiv(n + block - 1, block)
    begin = udiv(blocks * tid, nthreads) * block
    end = udiv(blocks * (tid + 1), nthreads) * block
    return imin(begin, n), imin(end, n)
