"""The words kernels are written in; light enough to import without numba.

A kernel *template* is a function `f(target, *params)` that returns the body of a kernel: a Python
function over typed pointers, which numba's front end lowers (`lower.py`).  Its declaration gives
the types of the body's parameters:

    @kernel("x:T* y:T* n:i64")
    def double(target: Target, T: str) -> Body:
        def body(x, y, n, tid, nthreads):
            '''y[i] = 2 x[i].  x, y: T[n], may be the same.  Overwrites y.'''
            begin, end = share(n, tid, nthreads)
            for i in range(begin, end):
                y[i] = x[i] + x[i]
        return body

`T` stands for the first compile-time parameter.  The compiled symbol has one shape for all kernels,
`void symbol(const word *args, i64 tid, i64 nthreads)`; args holds one 64-bit word per parameter.
A parameter typed `i64[]` is last and receives the address of the words that follow.  `words` says
by parameter how these are laid out, and the body reads them by name:

    SIZES = Words("sizes", rows="rows of x", columns="elements of a row")

    @kernel("x:T* g:i64[]", words={"g": SIZES})
    def clear(target: Target, T: str) -> Body:
        def body(x, g, tid, nthreads):
            begin, end = share(g.rows * g.columns, tid, nthreads)
            ...

A parameter typed `i64*` may point to such words too.  `off(g.jobs, i)` is the record i of an array.

`Native` names an operation that has no Python meaning (a register tile, a vector loop, an atomic);
`natives.py` builds it for a target when a kernel that uses it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.element_types import ITEMSIZE
from engine.kernels.vocabulary.tiling import Tiling
from engine.runtime.words import Words

Body = Callable[..., None]
Parameters: TypeAlias = tuple[str | int, ...]
Numbers: TypeAlias = tuple[int | float, ...]
Tile: TypeAlias = Callable[[Parameters, Numbers], Tiling | None]

# Kinds of element types: floats; these and integers; those that stand for all of their size; any of
# them.  And no kind at all: not to be listed.
REAL, NUMBER, MOVED, ANY, OPEN = "real", "number", "moved", "any", "open"
ACCUMULATE, BIAS, RELU = 1, 2, 4  # bits of the `mode` of a register tile


@dataclass(frozen=True, slots=True)
class Native:
    """An operation of `natives.py` by name, with its compile-time parameters."""

    name: str
    params: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"native operation {self.name!r} exists only in compiled kernels")


@dataclass(frozen=True, slots=True)
class Template:
    """A kernel template: `build(target, *params)` returns the body for these parameters.

    `ranges` says what parameters may be, for libraries that are made before their plans: values,
    or for `T` a kind of element types: REAL (the default), NUMBER, MOVED or ANY.  Integers are
    flags, 0 or 1, and texts OPEN, without end, where nothing is said: such a template is left out.
    `params`: rows of all parameters.

    `words`: by parameter of the body, the layout of the words that it points to, or a function that
    returns it for the compile-time parameters.

    `operands(*params)` gives the types of the pointers among the words of `i64[]`, as
    `engine.runtime.plan.Kernel.takes` writes them.  `stands_for(*params)` gives the element types
    besides `T` that may lie behind a `T*`: those of its size for what only moves data.

    `tiling(params, numbers)` says how a call with these numbers is cut into tiles of rows, None if
    it is not.  `joins`: of a kernel that joins partial results, which of its numbers says how many
    there are; they lie behind its first pointer.
    """

    name: str
    signature: tuple[
        tuple[str, str], ...
    ]  # (parameter, type), type one of T*, f32*, i64, i64[], ...
    build: Callable[..., Body]
    ranges: Mapping[str, tuple[Any, ...] | str] = field(default_factory=dict)
    words: Mapping[str, Words | Callable[..., Words]] = field(default_factory=dict)
    operands: Callable[..., tuple[str, ...]] | None = None
    stands_for: Callable[..., tuple[str, ...]] | None = None
    tiling: Tile | None = None
    joins: int | None = None

    def layouts(self, params: tuple[str | int, ...]) -> dict[str, Words]:
        """The words of each parameter that is declared to point to some."""
        return {n: w if isinstance(w, Words) else w(*params) for n, w in self.words.items()}

    def takes(self, *params: str | int) -> tuple[str, ...]:
        """What a call passes for these parameters, as `engine.runtime.plan.Kernel` says it."""
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
            out.append(pointer(first, *others) if kind == "T*" else kind.replace("T", first))
        return tuple(out)

    def __call__(self, *params: str | int) -> tuple[str, tuple[str | int, ...]]:
        """Name this template with parameters, as `KernelSpec` wants them."""
        return self.name, params


def pointer(dtype: str, *others: str) -> str:
    """A pointer to elements of one of these types, as `Template.takes` says it."""
    return "|".join(sorted({dtype, *others})) + "*"


def same_size(dtype: str, *_: Any) -> tuple[str, ...]:
    """The element types of the size of this one: `Template.stands_for` of what moves data."""
    return tuple(t for t, size in ITEMSIZE.items() if size == ITEMSIZE[dtype])


def bools_as_bytes(dtype: str, op: str, *_: Any) -> tuple[str, ...]:
    """b1 for what takes the larger or the smaller of two u8, which is "or" and "and" of bools."""
    return ("b1",) if dtype == "u8" and op in ("max", "min") else ()


def kernel(
    signature: str,
    *,
    words: Mapping[str, Words | Callable[..., Words]] | None = None,
    operands: Callable[..., tuple[str, ...]] | None = None,
    stands_for: Callable[..., tuple[str, ...]] | None = None,
    tiling: Tile | None = None,
    joins: int | None = None,
    **ranges: tuple[Any, ...] | str,
) -> Callable[[Callable[..., Body]], Template]:
    """Declare a kernel template; `signature` is `"name:type ..."` in argument order.

    words, operands, stands_for, tiling, joins, ranges: as `Template` has them.  A kernel whose `T`
    is MOVED takes all types of the size, if `stands_for` says nothing else.
    """
    if stands_for is None and ranges.get("T") == MOVED:
        stands_for = same_size
    fields = tuple((a, b) for a, b in (p.split(":") for p in signature.split()))

    def declare(build: Callable[..., Body]) -> Template:
        name = build.__name__.rstrip("_")
        return Template(
            name, fields, build, ranges, words or {}, operands, stands_for, tiling, joins
        )

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


off = Native("off")  # off(p, i): the pointer i elements, or records, after p
udiv = Native("udiv")  # udiv(a, b): a // b for a >= 0, b > 0
imin = Native("imin")  # imin(a, b) of two i64
imax = Native("imax")
pick = Native("pick")  # pick(c, p, q): pointer p if c != 0 else q


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
