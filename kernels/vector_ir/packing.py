"""Vector IR that packs the factors of products, and converts their elements on the way.

Products of bf16 are of pairs: a word of 32 bits holds the factors of two steps along the sum, the
first one lower.  Words are moved as if they were float32.  Factors of f16 are moved one by one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import FACTORS, Target
from engine.kernels.vector_ir.scalars import memory, packs_pairs, read, vector, written
from engine.kernels.vector_ir.vectors import (
    I32,
    I64,
    LLVM,
    NUMBA,
    Vector,
    call_outlined,
    counted,
    load,
    store,
    transposed,
)


def loaded(b: Any, target: Target, p: Any, lanes: int, S: str, T: str) -> Any:
    """Return elements of type S at p, as they are stored as T."""
    v = load(b, p, vector(memory(S), lanes), ITEMSIZE[S])
    return v if S == T else written(b, read(b, v, S, target), T, target)


def convert(target: Target, T: str, S: str) -> Any:
    """convert(dst, src, n): dst[i] = src[i] for n elements; the ranges do not overlap."""

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        dst, src, n = fn.args

        def move(i: Any, lanes: int) -> None:
            v = loaded(b, target, b.gep(src, [i]), lanes, S, T)
            store(b, v, b.gep(dst, [i]), ITEMSIZE[T])

        lanes, done = target.lanes(4), I64(0)
        wide = 2 * lanes if packs_pairs([T], target) else lanes
        for many in dict.fromkeys((wide, lanes, 1)):
            done = counted(b, done, n, many, partial(move, lanes=many))
        b.ret_void()

    emit = call_outlined(f"convert_{T}_{S}_{target.lanes(4)}", body)

    def op(typingctx, dst, src, n):
        return types.void(types.CPointer(NUMBA[T]), types.CPointer(NUMBA[S]), types.int64), emit

    return op


def pair(target: Target, P: str, S: str, both: int) -> Any:
    """pair(dst, x, y, n): words dst[i] of x[i] and y[i], or of x[i] and 0 unless `both`."""

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        dst, x, y, n = fn.args

        def move(i: Any, lanes: int) -> None:
            wide = vector(I32, lanes)
            word = b.zext(loaded(b, target, b.gep(x, [i]), lanes, S, P), wide)
            if both:
                upper = b.zext(loaded(b, target, b.gep(y, [i]), lanes, S, P), wide)
                sixteen = ir.Constant(wide, [16] * lanes if lanes > 1 else 16)
                word = b.or_(word, b.shl(upper, sixteen))
            store(b, word, b.gep(dst, [i]), 4)

        lanes = target.lanes(4)
        done = counted(b, I64(0), n, lanes, lambda i: move(i, lanes))
        counted(b, done, n, 1, lambda i: move(i, 1))
        b.ret_void()

    name = f"pair_{P}_{S}_{'xy' if both else 'x'}_{target.lanes(4)}"
    emit = call_outlined(name, body)

    def op(typingctx, dst, x, y, n):
        W, Q = types.CPointer(types.float32), types.CPointer(NUMBA[S])
        return types.void(W, Q, Q, types.int64), emit

    return op


def turn(target: Target, P: str, S: str) -> Any:
    """turn(dst, ldd, src, lds): dst[j ldd + i] = word or factor j of row i, lanes x lanes of them.

    Row i begins at src[i lds]; words are the pairs of its elements.  The ranges do not overlap.
    """
    lanes = target.lanes(4)
    vt = Vector(LLVM["f32"], lanes)
    has_words = FACTORS.get(P, 1) == 2
    to = "f32" if has_words else P

    def row(b: Any, p: Any) -> Any:
        if not has_words:
            return loaded(b, target, p, lanes, S, "f32")
        if S == P:
            return load(b, p, vt, ITEMSIZE[S])
        low, high = (loaded(b, target, b.gep(p, [I64(k)]), lanes, S, P) for k in (0, lanes))
        order = ir.Constant(Vector(I32, 2 * lanes), list(range(2 * lanes)))
        return b.bitcast(b.shuffle_vector(low, high, order), vt)

    def body(fn: Any) -> None:
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        dst, ldd, src, lds = fn.args
        rows = [row(b, b.gep(src, [b.mul(lds, I64(i))])) for i in range(lanes)]
        for j, column in enumerate(transposed(b, rows)):
            v = column if has_words else written(b, column, P, target)
            store(b, v, b.gep(dst, [b.mul(ldd, I64(j))]), ITEMSIZE[to])
        b.ret_void()

    emit = call_outlined(f"turn_{P}_{S}_{lanes}", body)

    def op(typingctx, dst, ldd, src, lds):
        W, Q = types.CPointer(NUMBA[to]), types.CPointer(NUMBA[S])
        return types.void(W, types.int64, Q, types.int64), emit

    return op


def halves(target: Target, T: str) -> Any:
    """halves(p): the words at p as elements of 16 bits."""

    def op(typingctx, p):
        P = types.CPointer(NUMBA[T])
        return P(p), lambda context, b, sig, a: b.bitcast(a[0], context.get_value_type(P))

    return op
