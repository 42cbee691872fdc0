"""Vector loops of depthwise convolution over channels-last pixels: the sums of products.

Pixels that are neighbours share what they load: all of them each weight, and those of a row, whose
taps and steps are then known when the kernel is made, the pixels of x as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from engine.kernels.target import Target
from engine.kernels.vector_ir.slide import UNROLL, Channels, taps
from engine.kernels.vector_ir.vectors import I64, NUMBA, counted, load, splat
from engine.kernels.vocabulary.kernel import BIAS, RELU


def _activated(v: Channels, total: Any, relu: Any) -> Any:
    """total, or where `relu` max(total, 0)."""
    zero = v.const(0.0)
    # The comparison is false for NaN, which must come through.
    return v.b.select(v.b.and_(v.b.fcmp_ordered("<", total, zero), relu), zero, total)


def window_dot(target: Target, T: str, pixels: int, width: int = 0, step: int = 0) -> Any:
    """window_dot(x, w, y, bias, n, nd, nh, nw, xd, xh, xw, wd, wh, ww, xs, ys, mode).

    y[p ys + c] = act(sum over taps of x[p xs + tap + c] w[tap + c] (+ bias[c])) for `pixels` p.
    w may be read up to the end of a vector.  When `width` is not 0, nw = width and xs = step xw.
    """
    P = types.CPointer(NUMBA[T])

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, w, y, bias, n, *rest = args
        counts, xs, ws, (xp, yp, mode) = rest[:3], rest[3:6], rest[6:9], rest[9:]
        v = Channels(b, target, T)
        relu = splat(b, b.icmp_signed("!=", b.and_(mode, I64(RELU)), I64(0)), v.lanes)

        def body(channels: list[Any]) -> None:
            start = v.slots([v.const(0.0)] * len(channels))
            with b.if_then(b.icmp_signed("!=", b.and_(mode, I64(BIAS)), I64(0))):
                for slot, c in zip(start, channels, strict=True):
                    b.store(v.read(bias, c), slot)
            first = [b.load(slot, typ=v.vt) for slot in start]
            sums = [v.slots(first) for _ in range(pixels)]

            def add(slot: Any, pixel: Any, weight: Any) -> None:
                b.store(v.muladd(pixel, weight, b.load(slot, typ=v.vt)), slot)

            def tap(at: Any, weight_at: Any) -> None:
                weights = [load(b, b.gep(w, [b.add(weight_at, c)]), v.vt, v.size) for c in channels]
                for p, row in enumerate(sums):
                    pixel = b.add(at, b.mul(xp, I64(p)))
                    for slot, c, weight in zip(row, channels, weights, strict=True):
                        add(slot, v.read(x, b.add(pixel, c)), weight)

            def row(at: Any, weight_at: Any) -> None:
                for u, c in enumerate(channels):
                    places = [
                        b.add(b.add(weight_at, b.mul(ws[2], I64(k))), c) for k in range(width)
                    ]
                    weights = [load(b, b.gep(w, [place]), v.vt, v.size) for place in places]
                    for i in range((pixels - 1) * step + width):
                        pixel = v.read(x, b.add(b.add(at, b.mul(xs[2], I64(i))), c))
                        for p in range(pixels):
                            if 0 <= i - p * step < width:
                                add(sums[p][u], pixel, weights[i - p * step])

            if width:
                taps(b, counts[:2], [xs, ws], row)
            else:
                taps(b, counts, [xs, ws], tap)
            for p, slots in enumerate(sums):
                pixel = b.mul(yp, I64(p))
                for slot, c in zip(slots, channels, strict=True):
                    v.write(_activated(v, b.load(slot, typ=v.vt), relu), y, b.add(pixel, c))

        v.each(n, body, min(UNROLL, max(1, 2 * UNROLL // pixels)))
        return context.get_dummy_value()

    def op(typingctx, x, w, y, bias, n, nd, nh, nw, xd, xh, xw, wd, wh, ww, xs, ys, mode):
        return types.void(P, P, P, P, *[types.int64] * 13), emit

    return op


def row_dot(target: Target, T: str) -> Any:
    """row_dot(x, dy, dw, n, count, xs, ys): dw[c] += sum of x[p xs + c] dy[p ys + c], p < count."""
    P = types.CPointer(NUMBA[T])

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, dy, dw, n, count, xp, yp = args
        v = Channels(b, target, T)

        def body(channels: list[Any]) -> None:
            sums = v.slots([v.const(0.0)] * len(channels))

            def pixel(at: Any, dy_at: Any) -> None:
                for slot, c in zip(sums, channels, strict=True):
                    pair = v.read(x, b.add(at, c)), v.read(dy, b.add(dy_at, c))
                    b.store(v.muladd(*pair, b.load(slot, typ=v.vt)), slot)

            taps(b, [count], [[xp], [yp]], pixel)
            for slot, c in zip(sums, channels, strict=True):
                v.write(b.fadd(v.read(dw, c), b.load(slot, typ=v.vt)), dw, c)

        v.each(n, body)
        return context.get_dummy_value()

    def op(typingctx, x, dy, dw, n, count, xs, ys):
        return types.void(P, P, P, *[types.int64] * 4), emit

    return op


def row_dots(target: Target, T: str, unroll: int, width: int, step: int) -> Any:
    """row_dots(x, dy, dw, n, count, xw, ys, ws): the gradients of a row of taps.

    dw[k ws + c] += sum of x[(p step + k) xw + c] dy[p ys + c], p < count, for k < width.
    """
    P = types.CPointer(NUMBA[T])

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, dy, dw, n, count, xw, yp, ws = args
        v = Channels(b, target, T)

        def body(channels: list[Any]) -> None:
            sums = [v.slots([v.const(0.0)] * width) for _ in channels]

            def pixels(first: Any, many: int) -> None:
                at = b.mul(b.mul(first, I64(step)), xw)
                for c, slots in zip(channels, sums, strict=True):
                    tops = [
                        v.read(dy, b.add(b.mul(b.add(first, I64(p)), yp), c)) for p in range(many)
                    ]
                    for i in range((many - 1) * step + width):
                        pixel = v.read(x, b.add(b.add(at, b.mul(xw, I64(i))), c))
                        for p in range(many):
                            if 0 <= i - p * step < width:
                                slot = slots[i - p * step]
                                total = v.muladd(pixel, tops[p], b.load(slot, typ=v.vt))
                                b.store(total, slot)

            p = counted(b, I64(0), count, unroll, lambda p: pixels(p, unroll))
            counted(b, p, count, 1, lambda p: pixels(p, 1))
            for c, slots in zip(channels, sums, strict=True):
                for k, slot in enumerate(slots):
                    place = b.add(b.mul(ws, I64(k)), c)
                    v.write(b.fadd(v.read(dw, place), b.load(slot, typ=v.vt)), dw, place)

        v.each(n, body, min(UNROLL, max(1, 12 // width)))
        return context.get_dummy_value()

    def op(typingctx, x, dy, dw, n, count, xw, ys, ws):
        return types.void(P, P, P, *[types.int64] * 5), emit

    return op


BUILDERS: dict[str, Callable[..., Any]] = {
    "window_dot": window_dot, "row_dot": row_dot, "row_dots": row_dots,
}  # fmt: skip
