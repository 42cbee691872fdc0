"""Vector loops of one window over channels-last pixels: pools and patches.

Channels lie side by side, so a window is a loop over taps of whole vectors of channels.  The taps
that a kernel hands over all lie inside the image: `first` pixel pointer, three counts, three steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.scalars import read, written
from engine.kernels.vector_ir.vectors import (
    I16,
    I32,
    I64,
    LLVM,
    NUMBA,
    Vector,
    counted,
    first_lanes,
    intrinsic,
    load,
    load_part,
    reserve,
    splat,
    store,
    store_part,
)

UNROLL = 4  # vectors of channels that share the loop over taps


class Channels:
    """Loops over n channels by vectors, the last of them masked, and reads and writes them.

    S: how pixels are stored; T if empty.
    """

    def __init__(self, b: Any, target: Target, T: str, S: str = "") -> None:
        self.b, self.T, self.S, self.size = b, T, S, ITEMSIZE[T]
        self.target = target
        self.lanes = target.lanes(self.size)
        self.vt = Vector(LLVM[T], self.lanes)
        self.half = Vector(I16, self.lanes)
        self.wide = Vector(I64, self.lanes)
        self.bytes = Vector(ir.IntType(8), self.lanes)
        self.fma = "fma" if target.fma else "fmuladd"
        self.masks = target.masks
        self.mask: Any = None
        self.left: Any = None  # channels from the one on where the mask begins

    def walk(self, n: Any, body: Callable[[list[Any]], None], unroll: int = UNROLL) -> None:
        """Run `body` on lists of channel offsets, one a vector."""
        b, i = self.b, I64(0)
        for count in dict.fromkeys((unroll, 1)):
            steps = [I64(u * self.lanes) for u in range(count)]

            def whole(at: Any, steps: Sequence[Any] = tuple(steps)) -> None:
                body([b.add(at, s) for s in steps])

            i = counted(b, i, n, count * self.lanes, whole)
        with b.if_then(b.icmp_signed("<", i, n)):
            self.narrow(b.sub(n, i))
            body([i])
            self.mask = None

    def narrow(self, left: Any) -> None:
        """Read and write only the first `left` lanes from here on, or all if `left` is larger."""
        self.left = left
        self.mask = first_lanes(self.b, left, self.lanes)

    def iota(self) -> Any:
        """0, 1, 2, ... as i64."""
        return ir.Constant(self.wide, list(range(self.lanes)))

    def const(self, value: float) -> Any:
        """Return a float constant in every lane."""
        return ir.Constant(self.vt, [value] * self.lanes)

    def read(self, pointer: Any, at: Any, kind: Any = None) -> Any:
        """Return the vector at an offset; lanes after the last channel read 0."""
        vt = kind or self.vt
        p, size = self.b.gep(pointer, [at]), self._measure(vt)
        if self.mask is None:
            return load(self.b, p, vt, size)
        if not self.masks and vt in (self.vt, self.half):
            return self.b.call(_read_part(self.b.module, self._name(vt), vt), [p, self.left])
        return load_part(self.b, p, vt, size, self.mask)

    def write(self, value: Any, pointer: Any, at: Any) -> None:
        """Store the vector at an offset, without the lanes after the last channel."""
        p, size = self.b.gep(pointer, [at]), self._measure(value.type)
        if self.mask is None:
            store(self.b, value, p, size)
        elif not self.masks and value.type in (self.vt, self.half):
            write = _write_part(self.b.module, self._name(value.type), value.type)
            self.b.call(write, [value, p, self.left])
        else:
            store_part(self.b, value, p, size, self.mask)

    def read_pixel(self, pointer: Any, at: Any) -> Any:
        """Return the vector of a pixel that is stored as S at an offset, as T."""
        if not self.S:
            return self.read(pointer, at)
        return read(self.b, self.read(pointer, at, self.half), self.S, self.target)

    def write_pixel(self, value: Any, pointer: Any, at: Any) -> None:
        """Store the vector of a pixel as S at an offset."""
        stored = written(self.b, value, self.S, self.target) if self.S else value
        self.write(stored, pointer, at)

    def _name(self, vt: Any) -> str:
        """Return the name of the element type of a vector type."""
        element = vt.element
        return f"i{element.width}" if isinstance(element, ir.IntType) else self.T

    def _measure(self, vt: Any) -> int:
        """Return the bytes of an element of a vector type."""
        return ITEMSIZE[self._name(vt)]

    def slots(self, values: Sequence[Any]) -> list[Any]:
        """Make variables with first values; they become registers."""
        out = [reserve(self.b, v.type) for v in values]
        for slot, v in zip(out, values, strict=True):
            self.b.store(v, slot)
        return out

    def muladd(self, x: Any, y: Any, z: Any) -> Any:
        """x y + z."""
        name = f"llvm.{self.fma}.v{self.lanes}{self.T}"
        return self.b.call(intrinsic(self.b.module, name, self.vt, [self.vt] * 3), [x, y, z])

    def maximum(self, best: Any, x: Any) -> Any:
        """Return the lanes where x beats the best: the first of equals and the first NaN stay."""
        b = self.b
        return b.and_(b.fcmp_unordered(">", x, best), b.fcmp_ordered("ord", best, best))


def _get_part(module: Any, name: str, result: Any, params: list[Any]) -> tuple[Any, bool]:
    """Get or make a function for the part of a vector, where there are no masks; called, so small.

    The flag says it still needs a body.
    """
    existing = module.globals.get(name)
    if existing is not None:
        return existing, False
    fn = ir.Function(module, ir.FunctionType(result, params), name)
    fn.linkage = "internal"
    for attribute in ("noinline", "minsize", "optsize"):
        fn.attributes.add(attribute)
    return fn, True


def _copy_elements(b: Any, of: Any, into: Any, n: Any, kind: Any) -> None:
    """Copy n elements, one by one."""
    counted(b, I64(0), n, 1, lambda i: b.store(b.load(b.gep(of, [i]), typ=kind), b.gep(into, [i])))


def _read_part(module: Any, T: str, vt: Any) -> Any:
    """Return a function read_part(p, n): the vector of the first n elements at p, then 0."""
    name, P = f"read_part_{T}_{vt.count}", vt.element.as_pointer()
    fn, fresh = _get_part(module, name, vt, [P, I64])
    if fresh:
        p, n = fn.args
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        room = b.alloca(vt)
        b.store(ir.Constant(vt, [0] * vt.count), room)
        into = b.bitcast(room, P)
        _copy_elements(b, p, into, n, vt.element)
        b.ret(b.load(room, typ=vt))
    return fn


def _write_part(module: Any, T: str, vt: Any) -> Any:
    """Return a function write_part(v, p, n): the first n elements of v to p."""
    name, P = f"write_part_{T}_{vt.count}", vt.element.as_pointer()
    fn, fresh = _get_part(module, name, ir.VoidType(), [vt, P, I64])
    if fresh:
        v, p, n = fn.args
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        room = b.alloca(vt)
        b.store(v, room)
        of = b.bitcast(room, P)
        _copy_elements(b, of, p, n, vt.element)
        b.ret_void()
    return fn


def walk_taps(
    b: Any, counts: Sequence[Any], steps: Sequence[Sequence[Any]], body: Callable[..., None]
) -> None:
    """Run `body(offset of each step triple)` for every tap, last axis fastest."""

    def walk_axis(axis: int, offsets: list[Any]) -> None:
        if axis == len(counts):
            body(*offsets)
            return

        def tap(i: Any) -> None:
            moved = [b.add(o, b.mul(i, s[axis])) for o, s in zip(offsets, steps, strict=True)]
            walk_axis(axis + 1, moved)

        counted(b, I64(0), counts[axis], 1, tap)

    walk_axis(0, [I64(0) for _ in steps])


def window_max(target: Target, T: str, index_type: str, S: str) -> Any:
    """window_max(x, y, index, n, nd, nh, nw, xd, xh, xw, at, pd, ph, pw, pc): y[c] = max of taps.

    A NaN is the largest.  index_type "i64": index[c] = at + c pc + the steps (pd, ph, pw) to the
    first largest tap.  "u8": index[c] is the steps alone, below 256.  "": there is no index.
    """
    P = types.CPointer(NUMBA[S or T])

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, y, index, n, *rest = args
        counts, xs, at, ps, pc = rest[:3], rest[3:6], rest[6], rest[7:10], rest[10]
        v = Channels(b, target, T, S)
        place_type = Vector(I64 if T == "f64" else I32, v.lanes)

        def body(channels: list[Any]) -> None:
            best = v.slots([v.const(float("-inf"))] * len(channels))
            nowhere = ir.Constant(place_type, [0] * v.lanes)
            place = v.slots([nowhere] * len(channels)) if index_type else []

            def tap(offset: Any, step: Any) -> None:
                for u, c in enumerate(channels):
                    new, old = v.read_pixel(x, b.add(offset, c)), b.load(best[u], typ=v.vt)
                    better = v.maximum(old, new)
                    b.store(b.select(better, new, old), best[u])
                    if index_type:
                        here = b.trunc(step, I32) if T == "f32" else step
                        was = b.load(place[u], typ=place_type)
                        b.store(b.select(better, splat(b, here, v.lanes), was), place[u])

            walk_taps(b, counts, [xs, ps], tap)
            for u, c in enumerate(channels):
                v.write_pixel(b.load(best[u], typ=v.vt), y, c)
                if index_type == "u8":
                    v.write(b.trunc(b.load(place[u], typ=place_type), v.bytes), index, c)
                elif index_type:
                    place_now = b.load(place[u], typ=place_type)
                    place_now = b.sext(place_now, v.wide) if T == "f32" else place_now
                    start = splat(b, b.add(at, b.mul(c, pc)), v.lanes)
                    lane = b.mul(v.iota(), splat(b, pc, v.lanes))
                    v.write(b.add(place_now, b.add(start, lane)), index, c)

        v.walk(n, body)
        return context.get_dummy_value()

    def op(typingctx, x, y, index, n, nd, nh, nw, xd, xh, xw, at, pd, ph, pw, pc):
        return types.void(P, P, _indices(index_type), *[types.int64] * 12), emit

    return op


def _indices(index_type: str) -> Any:
    """Return the pointer to indices of a type; without a type, a typed null pointer."""
    return types.CPointer(NUMBA[index_type or "i64"])


def window_mean(target: Target, T: str, S: str) -> Any:
    """window_mean(x, y, n, nd, nh, nw, xd, xh, xw, count): y[c] = (sum of the taps) / count.

    Rows of taps are summed one by one, then their sums: the error grows with both, not the product.
    """
    P = types.CPointer(NUMBA[S or T])

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, y, n, nd, nh, nw, xd, xh, xw, count = args
        v = Channels(b, target, T, S)

        def body(channels: list[Any]) -> None:
            total = v.slots([v.const(0.0)] * len(channels))
            part = v.slots([v.const(0.0)] * len(channels))

            def row(row_at: Any) -> None:
                for slot in part:
                    b.store(v.const(0.0), slot)

                def tap(offset: Any) -> None:
                    at = b.add(row_at, offset)
                    for slot, c in zip(part, channels, strict=True):
                        new = v.read_pixel(x, b.add(at, c))
                        b.store(b.fadd(b.load(slot, typ=v.vt), new), slot)

                walk_taps(b, [nw], [[xw]], tap)
                for slot, sums in zip(part, total, strict=True):
                    b.store(b.fadd(b.load(sums, typ=v.vt), b.load(slot, typ=v.vt)), sums)

            walk_taps(b, [nd, nh], [[xd, xh]], row)
            for sums, c in zip(total, channels, strict=True):
                v.write_pixel(b.fdiv(b.load(sums, typ=v.vt), splat(b, count, v.lanes)), y, c)

        v.walk(n, body)
        return context.get_dummy_value()

    def op(typingctx, x, y, n, nd, nh, nw, xd, xh, xw, count):
        return types.void(P, P, *[types.int64] * 7, NUMBA[T]), emit

    return op


def spread_max(target: Target, T: str, index_type: str, S: str) -> Any:
    """spread_max(dx, dy, index, n, nd, nh, nw, xd, xh, xw, at, pd, ph, pw, pc, add).

    dx of every tap is dy[c], or when `add` grows by it, where index[c] is the tap's place (counted
    as by `window_max` for indices of this type), otherwise 0.
    """
    P = types.CPointer(NUMBA[S or T])

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dx, dy, index, n, *rest = args
        counts, xs, at, ps, pc, add = rest[:3], rest[3:6], rest[6], rest[7:10], rest[10], rest[11]
        v = Channels(b, target, T, S)
        is_short = index_type == "u8" and T == "f32"
        place_type = Vector(I32 if is_short else I64, v.lanes)

        def body(channels: list[Any]) -> None:
            places, values = [], []
            for c in channels:
                if index_type == "u8":
                    places.append(b.zext(v.read(index, c, v.bytes), place_type))
                else:
                    lane = b.mul(v.iota(), splat(b, pc, v.lanes))
                    start = b.add(splat(b, b.add(at, b.mul(c, pc)), v.lanes), lane)
                    places.append(b.sub(v.read(index, c, v.wide), start))
                values.append(v.read_pixel(dy, c))
            adds = b.icmp_signed("!=", add, I64(0))

            def tap(offset: Any, step: Any) -> None:
                here = splat(b, b.trunc(step, I32) if is_short else step, v.lanes)
                for c, place, value in zip(channels, places, values, strict=True):
                    hit = b.select(b.icmp_signed("==", place, here), value, v.const(0.0))
                    new = v.slots([hit])[0]
                    with b.if_then(adds):
                        b.store(b.fadd(hit, v.read_pixel(dx, b.add(offset, c))), new)
                    v.write_pixel(b.load(new, typ=v.vt), dx, b.add(offset, c))

            walk_taps(b, counts, [xs, ps], tap)

        v.walk(n, body)
        return context.get_dummy_value()

    def op(typingctx, dx, dy, index, n, nd, nh, nw, xd, xh, xw, at, pd, ph, pw, pc, add):
        return types.void(P, P, _indices(index_type), *[types.int64] * 13), emit

    return op


def spread_mean(target: Target, T: str, S: str) -> Any:
    """spread_mean(dx, dy, n, nd, nh, nw, xd, xh, xw, count): dx of every tap += dy[c] / count."""
    P = types.CPointer(NUMBA[S or T])

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dx, dy, n, nd, nh, nw, xd, xh, xw, count = args
        v = Channels(b, target, T, S)

        def body(channels: list[Any]) -> None:
            share = [b.fdiv(v.read_pixel(dy, c), splat(b, count, v.lanes)) for c in channels]

            def tap(offset: Any) -> None:
                for c, value in zip(channels, share, strict=True):
                    at = b.add(offset, c)
                    v.write_pixel(b.fadd(v.read_pixel(dx, at), value), dx, at)

            walk_taps(b, [nd, nh, nw], [[xd, xh, xw]], tap)

        v.walk(n, body)
        return context.get_dummy_value()

    def op(typingctx, dx, dy, n, nd, nh, nw, xd, xh, xw, count):
        return types.void(P, P, *[types.int64] * 7, NUMBA[T]), emit

    return op


def copy_rows(target: Target, T: str) -> Any:
    """copy_rows(dst, src, ldd, lds, rows, n): dst[r ldd + i] = src[r lds + i], r < rows, i < n.

    Without masks the last elements are moved as a vector that begins earlier, with some that are in
    place already: windows of three channels are nine elements, and a call for one of them takes
    longer than the other eight.
    """
    P = types.CPointer(NUMBA[T])

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        dst, src, ldd, lds, rows, n = args
        v = Channels(b, target, T)

        def copy_each(move_row: Callable[[Any, Any], None]) -> None:
            def row(r: Any) -> None:
                move_row(b.gep(dst, [b.mul(r, ldd)]), b.gep(src, [b.mul(r, lds)]))

            counted(b, I64(0), rows, 1, row)

        def move_masked(to: Any, at: Any) -> None:
            v.walk(n, lambda ids: v.write(v.read(at, ids[0]), to, ids[0]), 1)

        def move_long(to: Any, at: Any) -> None:
            def move(i: Any) -> None:
                v.write(v.read(at, i), to, i)

            counted(b, I64(0), b.sub(n, I64(1)), v.lanes, move)
            move(b.sub(n, I64(v.lanes)))

        def move_short(to: Any, at: Any) -> None:
            counted(
                b, I64(0), n, 1,
                lambda i: b.store(b.load(b.gep(at, [i]), typ=LLVM[T]), b.gep(to, [i])) and None,
            )  # fmt: skip

        if v.masks:
            copy_each(move_masked)
            return context.get_dummy_value()
        with b.if_else(b.icmp_signed(">=", n, I64(v.lanes))) as (long, short):
            with long:
                copy_each(move_long)
            with short:
                copy_each(move_short)
        return context.get_dummy_value()

    def op(typingctx, dst, src, ldd, lds, rows, n):
        return types.void(P, P, *[types.int64] * 4), emit

    return op


BUILDERS: dict[str, Callable[..., Any]] = {
    "copy_rows": copy_rows,
    "window_max": window_max,
    "window_mean": window_mean,
    "spread_max": spread_max,
    "spread_mean": spread_mean,
}
