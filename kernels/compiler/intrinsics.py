"""The intrinsics of kernels, as callees that emit vector IR for a target.

`build(intrinsic, target)` makes the callee for an `Intrinsic`, with the function below of its name.
Each of these functions returns `(typer, emit)`: `typer(*numba types)` returns the signature, and
`emit(context, builder, signature, args)` writes the IR.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from engine.kernels.compiler.frontend import Callee, Emit
from engine.kernels.compiler.words import WordsPointer
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir import (
    block_dot,
    block_integers,
    columns,
    curves,
    dots,
    elementary,
    integer_dots,
    integer_windows,
    interpret,
    lines,
    packing,
    registers,
    rows,
    slide,
    slide_dots,
    tile,
    tile_registers,
    unpack,
    vectors,
)
from engine.kernels.vector_ir.vectors import NUMBA
from engine.kernels.vocabulary.kernel import Intrinsic
from engine.kernels.vocabulary.row_program import Program
from engine.plan.words import Words

I64 = ir.IntType(64)


def _off(target: Target) -> Any:
    """off(p, i): the pointer i elements, or records of words, after p."""

    def op(typingctx, p, i):
        if isinstance(p, WordsPointer):
            step = I64(p.words.size)
            return p(p, types.int64), lambda context, b, sig, a: b.gep(a[0], [b.mul(a[1], step)])
        return p(p, types.int64), lambda context, b, sig, a: b.gep(a[0], [a[1]])

    return op


def _records(target: Target, words: Words) -> Any:
    """records(p): the plain words at p as records with a layout."""

    def op(typingctx, p):
        return WordsPointer(words)(p), lambda context, b, sig, a: a[0]

    return op


def _on_stack(target: Target, words: Words) -> Any:
    """on_stack(): words of a layout in the function's own memory, not yet set."""

    def op(typingctx):
        def emit(context, b, sig, a):
            room = vectors.reserve(b, ir.ArrayType(I64, words.size))
            return b.bitcast(room, I64.as_pointer())

        return WordsPointer(words)(), emit

    return op


def _update_rows(
    target: Target,
    program: Program,
    vectors: tuple[str, ...],
    places: tuple[int, ...],
    numbers: tuple[str, ...],
) -> Any:
    """update_rows(call, k, values, i, n): run a program over elements i..i + n of operands.

    The inputs of the program are the operands `vectors` of the call, k, the values of a tuple, and
    the `numbers` of the call.  It writes the vectors at `places`.
    """

    def op(typingctx, call, k, values, i, n):
        def emit(context, b, sig, args):
            arguments, factor, own, at, count = args
            pointers = [b.gep(call.read(b, arguments, name), [at]) for name in vectors]
            scalars = [(k, factor), *zip(values, cgutils.unpack_tuple(b, own), strict=True)]
            scalars += [(call.fields[name], call.read(b, arguments, name)) for name in numbers]
            kinds = [NUMBA[i.dtype] for i in program.ins[len(vectors) :]]
            ins = [
                *pointers,
                *(context.cast(b, x, t, kind) for (t, x), kind in zip(scalars, kinds, strict=True)),
            ]
            saved = elementary.fused.set(target.fma)
            rows.emit_loop(b, program, target, ins, [pointers[j] for j in places], count)
            elementary.fused.reset(saved)
            return context.get_dummy_value()

        return types.void(call, k, values, types.int64, types.int64), emit

    return op


def _binary(emit: Callable[[Any, Any, Any], Any]) -> Any:
    def op(typingctx, a, b):
        sig = types.int64(types.int64, types.int64)
        return sig, lambda context, builder, sig, args: emit(builder, *args)

    return lambda target: op


def _select(order: str) -> Callable[[Any, Any, Any], Any]:
    return lambda b, x, y: b.select(b.icmp_signed(order, x, y), x, y)


def _pick(target: Target) -> Any:
    """pick(c, p, q): the pointer p if the integer c is not 0, otherwise q."""

    def op(typingctx, c, p, q):
        def emit(context, b, sig, a):
            return b.select(b.icmp_signed("!=", a[0], I64(0)), a[1], a[2])

        return p(types.int64, p, p), emit

    return op


def _cast(target: Target, to: str, source: str) -> Any:
    """cast(x): a scalar of type `source` as type `to`; both are floats or i64."""

    def op(typingctx, x):
        def emit(context, b, sig, a):
            return context.cast(b, a[0], sig.args[0], sig.return_type)

        return vectors.NUMBA[to](vectors.NUMBA[source]), emit

    return op


def _pause(target: Target) -> Any:
    """pause(): tell the core that this is a spin loop, if it has an instruction for that."""
    hints = {
        "x86_64": ("llvm.x86.sse2.pause", []),
        "aarch64": ("llvm.aarch64.hint", [vectors.I32(1)]),
    }

    def op(typingctx):
        def emit(context, b, sig, a):
            if target.arch in hints:
                name, args = hints[target.arch]
                void = ir.VoidType()
                b.call(vectors.intrinsic(b.module, name, void, [x.type for x in args]), args)
            return context.get_dummy_value()

        return types.void(), emit

    return op


def _atomic_load(target: Target) -> Any:
    """atomic_load(p): p[0], sequentially consistent."""

    def op(typingctx, p):
        def emit(context, b, sig, a):
            return b.load_atomic(a[0], ordering="seq_cst", align=8)

        return types.int64(types.CPointer(types.int64)), emit

    return op


def _atomic_store(target: Target) -> Any:
    """atomic_store(p, v): p[0] = v, sequentially consistent."""

    def op(typingctx, p, v):
        def emit(context, b, sig, a):
            b.store_atomic(a[1], a[0], ordering="seq_cst", align=8)
            return context.get_dummy_value()

        return types.void(types.CPointer(types.int64), types.int64), emit

    return op


def _fetch_add(target: Target) -> Any:
    """fetch_add(p, v): the old p[0]; p[0] += v, sequentially consistent."""

    def op(typingctx, p, v):
        def emit(context, b, sig, a):
            return b.atomic_rmw("add", a[0], a[1], ordering="seq_cst")

        return types.int64(types.CPointer(types.int64), types.int64), emit

    return op


def _exchange(target: Target) -> Any:
    """exchange(p, v): the old p[0]; p[0] = v, sequentially consistent."""

    def op(typingctx, p, v):
        def emit(context, b, sig, a):
            return b.atomic_rmw("xchg", a[0], a[1], ordering="seq_cst")

        return types.int64(types.CPointer(types.int64), types.int64), emit

    return op


def _replace(target: Target) -> Any:
    """replace(p, old, new): whether p[0] was old and is new now, sequentially consistent."""

    def op(typingctx, p, old, new):
        def emit(context, b, sig, a):
            both = b.cmpxchg(a[0], a[1], a[2], ordering="seq_cst")
            return b.zext(b.extract_value(both, 1), I64)

        return types.int64(types.CPointer(types.int64), types.int64, types.int64), emit

    return op


def _invoke(target: Target, arity: int) -> Any:
    """invoke(f, a...): call the function at address f, with words as given.

    Word arguments are i64; f is a pointer all along, never made from an integer.  Three arguments
    are for a kernel, which returns nothing: WebAssembly checks that.
    """
    result = (types.void, ir.VoidType()) if arity == 3 else (types.int64, I64)

    def emit(context, b, sig, a):
        fn_type = ir.FunctionType(result[1], [x.type for x in a[1:]])
        called = b.call(b.bitcast(a[0], fn_type.as_pointer()), a[1:])
        return context.get_dummy_value() if arity == 3 else called

    if arity == 1:

        def op1(typingctx, f, x):
            return result[0](f, x), emit

        return op1
    if arity == 4:

        def op4(typingctx, f, x, y, z, w):
            return result[0](f, x, y, z, w), emit

        return op4

    def op3(typingctx, f, x, y, z):
        return result[0](f, x, y, z), emit

    return op3


_BUILDERS: dict[str, Callable[..., Any]] = {
    "off": _off,
    "records": _records,
    "on_stack": _on_stack,
    "udiv": _binary(lambda b, x, y: b.udiv(x, y)),
    "imin": _binary(_select("<")),
    "imax": _binary(_select(">")),
    "pick": _pick,
    "cast": _cast,
    "pause": _pause,
    "atomic_load": _atomic_load,
    "atomic_store": _atomic_store,
    "fetch_add": _fetch_add,
    "exchange": _exchange,
    "replace": _replace,
    "invoke": _invoke,
    "update_rows": _update_rows,
    "tile": tile.tile,
    "tile_column": tile_registers.tile_column,
    "bend": curves.bend,
    "dots": dots.dots,
    "multiply_adds": registers.multiply_adds,
    "copy": vectors.copy,
    "copy_bytes": vectors.copy_bytes,
    "zero": vectors.zero,
    "zero_far": vectors.zero_far,
    "transpose": vectors.transpose,
    "convert": packing.convert,
    "pair": packing.pair,
    "turn": packing.turn,
    "halves": packing.halves,
    "unpack": unpack.unpack,
    "block_dot": block_dot.block_dot,
    "round_blocks": block_integers.round_blocks,
    "block_tile": block_integers.block_tile,
    "block_rest": block_integers.block_rest,
    "integer_tile": integer_dots.integer_tile,
    "integer_squares": integer_dots.integer_squares,
    "turn_panel": integer_dots.turn_panel,
    "integer_windows": integer_windows.integer_windows,
    "turn_windows": integer_windows.turn_windows,
    "rows": rows.rows,
    "lines": lines.lines,
    "map_rows": rows.map_rows,
    "column_sums": columns.column_sums,
    "row_sums": columns.row_sums,
    "formula": interpret.formula,
}
_BUILDERS |= slide.BUILDERS | slide_dots.BUILDERS


def _integer(typingctx: Any, x: Any) -> tuple[Any, Emit]:
    """int(x): cut to an integer."""

    def emit(context: Any, b: Any, sig: Any, a: Any) -> Any:
        return context.cast(b, a[0], x, types.int64)

    return types.int64(x), emit


def _absolute(typingctx: Any, x: Any) -> tuple[Any, Emit]:
    """abs(x), as wide as x."""

    def emit(context: Any, b: Any, sig: Any, a: Any) -> Any:
        if isinstance(x, types.Float):
            return elementary.fabs(b, a[0])
        return b.select(b.icmp_signed("<", a[0], a[0].type(0)), b.neg(a[0]), a[0])

    return x(x), emit


def _extreme(order: str) -> Callable[..., tuple[Any, Emit]]:
    """max(x, y, ...) or min: the first that no later one is beyond, as in Python; NaN as there."""

    def resolve(typingctx: Any, *kinds: Any) -> tuple[Any, Emit]:
        kind = typingctx.unify_types(*kinds)

        def emit(context: Any, b: Any, sig: Any, a: Any) -> Any:
            compare = b.fcmp_ordered if isinstance(kind, types.Float) else b.icmp_signed
            return functools.reduce(lambda best, x: b.select(compare(order, x, best), x, best), a)

        return kind(*[kind] * len(kinds)), emit

    return resolve


# Python's own names for which numba would load its libraries.
BUILTINS = {
    "abs": Callee("abs", _absolute),
    "int": Callee("int", _integer),
    "max": Callee("max", _extreme(">")),
    "min": Callee("min", _extreme("<")),
}


@functools.cache
def build(intrinsic: Intrinsic, target: Target) -> Callee:
    """Return an intrinsic for a target, as kernels call it."""
    op = _BUILDERS[intrinsic.name](target, *intrinsic.params)
    if intrinsic.names:
        return Callee(intrinsic.name, op, intrinsic.names, ignores=True)
    return Callee(intrinsic.name, op, [*inspect.signature(op).parameters][1:])
