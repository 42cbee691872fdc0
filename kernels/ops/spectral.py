"""Discrete Fourier transforms, as products with a constant matrix: exact gradients, no kernel.

Forward   DFT: Y_k = sum_j X_j exp(-2 pi i j k / L), k < L, or k <= L / 2 where one-sided; inverse
          with the other sign over L; of a one-sided spectrum to real numbers where both are asked
          STFT: the DFT of frames times a window
          MelWeightMatrix: triangles of peak 1 between equal steps of mel(f) = 2595 log10(1 + f/700)
Backward  of the ops that they expand to
Error     as a product of L terms; L^2 operations: for lengths of up to a few thousand
"""

from __future__ import annotations

import numpy as np

from engine.base import limits
from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.kernels.ops.elementwise import read_dtype
from engine.kernels.ops.shape import i64s
from engine.kernels.vocabulary.op import Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import normalise_axis


def _check_matrix(site: Site, rows: int, columns: int) -> None:
    """Refuse a constant matrix of so many complex numbers in float64, before it is made.

    Raises:
        LimitError: it has too many bytes.
    """
    limits.check("CONSTANT_BYTES", 16 * rows * columns, site.where, "its constant matrix takes")


def make_dft_matrix(n: int, parts: int, length: int, inverse: bool, onesided: bool) -> Array:
    """Return the matrix [n * parts, bins * parts'] of a transform of n numbers of 1 or 2 parts.

    Numbers beyond `length` are ignored; missing ones are taken as zero.
    """
    bins = length // 2 + 1 if onesided else length
    given = min(n, bins if inverse else length)
    made = length if inverse else bins
    # j k modulo the length first: angles stay below 2 pi, so cosines of large products stay exact.
    turns = np.outer(np.arange(given), np.arange(made)) % length / length * 2 * np.pi
    full = np.zeros((n, parts, made, 2))  # number, part, result, part
    full[:given, 0, :, 0] = np.cos(turns)
    full[:given, 0, :, 1] = np.sin(turns) * (1 if inverse else -1)
    if parts == 2:
        # (a + ib)(c + is) = (ac - bs) + i(as + bc): the rows of the imaginary part.
        full[:given, 1, :, 0] = -full[:given, 0, :, 1]
        full[:given, 1, :, 1] = full[:given, 0, :, 0]
    if inverse:
        full /= length
    if inverse and onesided:  # the other half is conjugate
        # Frequencies that the half spectrum leaves out count through their conjugates: twice,
        # except for 0 and, if the length is even, the highest.
        full[1:] *= 2
        if length % 2 == 0:
            full[length // 2 : length // 2 + 1] /= 2
    kept = 1 if inverse and onesided else 2
    return full[..., :kept].reshape(n * parts, made * kept)


def _read_number(site: Site, i: int, what: str) -> int | None:
    return site.integer(i, what) if site.has(i) else None


def _count_parts(site: Site, x: TensorType) -> int:
    """Return how many floats a number has: 1 if it is real, 2 if it is complex."""
    parts = x.shape[-1] if x.rank > 1 else 0
    if parts not in (1, 2):
        site.fail(f"input 0 is {x}", "a last dimension of 1 (real) or 2 (complex)")
    return int(parts)


def _read_size(site: Site, x: TensorType, axis: int) -> int:
    d = x.shape[axis]
    if not isinstance(d, int):
        site.fail(f"the size {d!r} of axis {axis} of {x} is not known", "a fixed size")
    return d


# --- DFT


def _read_dft(site: Site) -> tuple[int, int, int, int, bool, bool]:
    """Return the axis, its size, the parts of a number, the length, and inverse and one-sided."""
    x = site.real(0)
    given = (
        _read_number(site, 2, "the axis") if site.opset >= 20 else int(site.attrs.get("axis", 1))
    )
    axis = normalise_axis(site, -2 if given is None else given, x.rank)
    parts, n = _count_parts(site, x), _read_size(site, x, axis)
    if axis == x.rank - 1:
        site.fail(
            f"axis is {axis}, which holds the real and imaginary parts of {x}", "any other axis"
        )
    inverse, onesided = bool(site.attrs["inverse"]), bool(site.attrs["onesided"])
    length = _read_number(site, 1, "the length")
    if length is None:
        length = 2 * (n - 1) if inverse and onesided else n
    if length < 1:
        site.wrong(f"the length is {length}; expected 1 or more")
    if onesided and not inverse and parts == 2:
        site.fail(
            f"onesided is 1, but input 0, {x}, is complex", "a one-sided transform of real numbers"
        )
    return axis, n, parts, length, inverse, onesided


def _dft_infer(site: Site) -> tuple[TensorType, ...]:
    x = site.real(0)
    axis, _, _, length, inverse, onesided = _read_dft(site)
    shape = list(x.shape)
    shape[axis] = length // 2 + 1 if onesided and not inverse else length
    shape[-1] = 1 if onesided and inverse else 2
    return (x.but(shape),)


def _dft_expand(nodes: Nodes) -> tuple[str, ...]:
    x = nodes.site.real(0)
    axis, n, parts, length, inverse, onesided = _read_dft(nodes.site)
    _check_matrix(nodes.site, n * parts, length // 2 + 1 if onesided else length)
    matrix = make_dft_matrix(n, parts, length, inverse, onesided)
    # The axis next to the parts of a number: both are one axis of the product.
    order = [*(a for a in range(x.rank - 1) if a != axis), axis, x.rank - 1]
    back = [order.index(a) for a in range(x.rank)]
    # No transposes where the axis is the last but one already.
    is_there = axis == x.rank - 2
    moved = nodes.x(0) if is_there else nodes.op("Transpose", nodes.x(0), perm=order)
    y = _product(nodes, moved, x, matrix, 1 if inverse and onesided else 2)
    return (y if is_there else nodes.op("Transpose", y, perm=back),)


def _product(nodes: Nodes, x: str, t: TensorType, matrix: Array, kept: int) -> str:
    """Return the product of the last two axes of x with a matrix, whose columns become two axes."""
    lead = [0] * (t.rank - 2)
    flat = nodes.op("Reshape", x, i64s(nodes, *lead, matrix.shape[0]))
    y = nodes.op("MatMul", flat, nodes.const(matrix, t.dtype))
    return str(nodes.op("Reshape", y, i64s(nodes, *lead, matrix.shape[1] // kept, kept)))


# --- STFT


def _read_signal(site: Site) -> TensorType:
    """Return the signal's type, [batch, length, 1 or 2]: models also write [batch, length]."""
    x = site.real(0)
    if x.rank not in (2, 3):
        site.wrong(f"input 0 is {x}; expected [batch, length, 1 or 2] or [batch, length]")
    return x if x.rank == 3 else x.but((*x.shape, 1))


def _read_stft(site: Site) -> tuple[int, int, int]:
    """Return the frames, their length and the step between them."""
    x = _read_signal(site)
    total, step = _read_size(site, x, 1), _read_number(site, 1, "the frame step")
    window = site.real(2) if site.has(2) else None
    if window is not None and window.rank != 1:
        site.wrong(f"the window is {window}; expected a list")
    n = _read_number(site, 3, "the frame length") or (
        _read_size(site, window, 0) if window else total
    )
    if window is not None:
        site.shaped(2, (n,))
    if step is None or step < 1 or not 1 <= n <= total:
        site.wrong(
            f"frame_length is {n} and frame_step {step}; expected a length from 1 to "
            f"{total}, the signal's, and a step of 1 or more"
        )
    if site.attrs["onesided"] and _count_parts(site, x) == 2:
        site.fail(
            f"onesided is 1, but input 0, {x}, is complex", "a one-sided transform of real numbers"
        )
    return (total - n) // step + 1, n, step


def _stft_infer(site: Site) -> tuple[TensorType, ...]:
    x = _read_signal(site)
    frames, n, _ = _read_stft(site)
    return (x.but((x.shape[0], frames, n // 2 + 1 if site.attrs["onesided"] else n, 2)),)


def _stft_expand(nodes: Nodes) -> tuple[str, ...]:
    x = _read_signal(nodes.site)
    frames, n, step = _read_stft(nodes.site)
    parts = _count_parts(nodes.site, x)
    _check_matrix(nodes.site, n * parts, n // 2 + 1 if nodes.site.attrs["onesided"] else n)
    _check_matrix(nodes.site, frames, n)
    # Frame f takes samples f step to f step + n; the gather's gradient adds where frames overlap.
    at = np.arange(frames)[:, None] * step + np.arange(n)
    cut = nodes.op("Gather", nodes.x(0), nodes.const(at, "i64"), axis=1)
    if nodes.site.has(2):
        column = (n, 1) if nodes.site.real(0).rank == 3 else (n,)
        cut = nodes.op("Mul", cut, nodes.op("Reshape", nodes.x(2), i64s(nodes, *column)))
    matrix = make_dft_matrix(n, parts, n, False, bool(nodes.site.attrs["onesided"]))
    return (_product(nodes, cut, x.but((x.shape[0], frames, n, parts)), matrix, 2),)


# --- MelWeightMatrix


def _mel_infer(site: Site) -> tuple[TensorType, ...]:
    bins, length, rate, *edges = (site.number(i, "a number") for i in range(5))
    if min(bins, length, rate) < 1 or not 0 <= edges[0] <= edges[1] <= rate:
        site.wrong(
            f"bins, length and rate are {bins}, {length} and {rate}, and the edges "
            f"{edges[0]} and {edges[1]}; expected 1 or more, and edges that rise from 0 "
            "or more to the rate or less"
        )
    to = read_dtype(site, site.attrs["output_datatype"])
    return (TensorType(to, (int(length) // 2 + 1, int(bins))),)


def _mel_fold(site: Site) -> tuple[Array, ...]:
    (y,) = _mel_infer(site)
    bins, length, rate, *edges = (site.number(i, "a number") for i in range(5))
    low, high = (2595 * np.log10(1 + float(e) / 700) for e in edges)
    # Bins are evenly spaced in mel; each is a triangle from its left neighbour to its right one.
    mel = low + np.arange(int(bins) + 2) * (high - low) / (int(bins) + 2)
    at = ((int(length) + 1) * (700 * (10 ** (mel / 2595) - 1)) // int(rate)).astype(int)
    out = np.zeros(y.dims)
    for i, (left, peak, right) in enumerate(zip(at, at[1:], at[2:], strict=False)):
        j = np.arange(y.dims[0])
        rising = (j - left) / max(peak - left, 1)
        falling = (right - j) / max(right - peak, 1)
        out[:, i] = np.where((j >= left) & (j < peak), rising, 0)
        out[:, i] += np.where((j >= peak) & (j < right), falling, 0)
        out[peak, i] = 1
    return (out.astype(NUMPY[y.dtype]),)


OPS = (
    Op(
        name="DFT",
        since=17,
        attrs={"inverse": 0, "onesided": 0},
        infer=_dft_infer,
        expand=_dft_expand,
        becomes="MatMul Reshape Transpose",
        no_gradient=frozenset((1, 2)),
    ),
    Op(
        name="STFT",
        since=17,
        attrs={"onesided": 1},
        infer=_stft_infer,
        expand=_stft_expand,
        becomes="Gather MatMul Mul Reshape",
        no_gradient=frozenset((1, 3)),
    ),
    Op(
        name="MelWeightMatrix",
        since=17,
        attrs={"output_datatype": 1},
        infer=_mel_infer,
        fold=_mel_fold,
    ),
)
