"""Sliding windows: the geometry that convolutions and pools share.

Along one axis output `o` sees inputs `o stride - pad + k dilation` for 0 <= k < taps; those outside
[0, size) are padding.  `auto_pad` and `ceil_mode` are resolved here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.kernels.vocabulary.kernel import imax, imin, inline, udiv
from engine.kernels.vocabulary.op import Dim, Kind, Site, TensorType


@dataclass(frozen=True, slots=True)
class Axis:
    """The window along one spatial axis; `pad` and `pad_end` are before the first input and after
    the last.  The defaults describe an axis without a window."""

    size: int = 1
    out: int = 1
    taps: int = 1
    stride: int = 1
    dilation: int = 1
    pad: int = 0
    pad_end: int = 0

    @property
    def reach(self) -> int:
        """The number of inputs from the first tap of a window to its last, both included."""
        return (self.taps - 1) * self.dilation + 1

    @property
    def plain(self) -> bool:
        """True if output o reads input o and nothing else."""
        return (self.taps, self.stride, self.pad, self.out) == (1, 1, 0, self.size)


Axes = tuple[Axis, Axis, Axis]
# The attributes of a window that have no default.
WINDOW: dict[str, Kind] = {
    "kernel_shape": "ints",
    "strides": "ints",
    "pads": "ints",
    "dilations": "ints",
}


def count_parts(n: int, size: int) -> int:
    """Return how many pieces of at most `size` items n items make."""
    return (n + size - 1) // size


def round_up(n: int, step: int) -> int:
    """Return n rounded up to a multiple of `step`."""
    return count_parts(n, step) * step


def resolve(site: Site, i: int, size: int, taps: int) -> Axis:
    """Return the window along spatial axis i of the node's input, by its attributes."""
    stride, dilation = _read_axis(site, "strides", i), _read_axis(site, "dilations", i)
    reach = (taps - 1) * dilation + 1
    mode = site.attrs.get("auto_pad") or "NOTSET"
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        out = count_parts(size, stride)
        total = max((out - 1) * stride + reach - size, 0)
        pad = total // 2 if mode == "SAME_UPPER" else total - total // 2
        return Axis(size, out, taps, stride, dilation, pad, total - pad)
    if mode not in ("NOTSET", "VALID"):
        site.fail(f"auto_pad is {mode!r}", "NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    pad, end = _read_pads(site, i) if mode == "NOTSET" else (0, 0)
    room = size + pad + end - reach
    if site.attrs.get("ceil_mode") and -stride < room < 0:  # one window, of what there is
        return Axis(size, 1, (size + pad + end - 1) // dilation + 1, stride, dilation, pad, end)
    if room < 0:
        site.wrong(
            f"the window covers {reach} elements, but spatial axis {i} has {size}, and "
            f"{size + pad + end} with padding"
        )
    out = room // stride + 1
    # A last window that holds less than a whole stride counts, unless it starts in the end padding.
    if site.attrs.get("ceil_mode") and room % stride and out * stride < size + pad:
        out += 1
    return Axis(size, out, taps, stride, dilation, pad, end)


def infer_out_dims(site: Site, x: TensorType, kernel: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return the spatial dimensions of the output; one that is not known gets a name."""
    _check(site, x, kernel)
    out: list[Dim] = []
    for i, (size, taps) in enumerate(zip(x.shape[2:], kernel, strict=True)):
        if isinstance(size, int) and isinstance(taps, int):
            out.append(resolve(site, i, size, taps).out)
        else:
            kept = isinstance(taps, int) and _keeps_size(site, i, taps)
            out.append(size if kept else f"{site.name}_d{i + 2}")
    return tuple(out)


def find_windows(site: Site, x: TensorType, kernel: Sequence[int]) -> Axes:
    """Return the windows along depth, height and width; axes that the tensor lacks have size 1."""
    _check(site, x, kernel)
    own = [resolve(site, i, n, k) for i, (n, k) in enumerate(zip(x.dims[2:], kernel, strict=True))]
    d, h, w = [Axis()] * (3 - len(own)) + own
    return d, h, w


def find_transposed(site: Site, x: TensorType, kernel: Sequence[int]) -> Axes:
    """Return the windows of the convolution that the node transposes, output to input."""
    _check(site, x, kernel)
    own = [
        _transpose_axis(site, i, len(kernel), n, k)
        for i, (n, k) in enumerate(zip(x.dims[2:], kernel, strict=True))
    ]
    d, h, w = [Axis()] * (3 - len(own)) + own
    return d, h, w


def infer_transposed_dims(site: Site, x: TensorType, kernel: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return the spatial dimensions of the output of a transposed convolution."""
    _check(site, x, kernel)
    return tuple(
        _transpose_axis(site, i, len(kernel), size, taps).size
        if isinstance(size, int) and isinstance(taps, int)
        else f"{site.name}_d{i + 2}"
        for i, (size, taps) in enumerate(zip(x.shape[2:], kernel, strict=True))
    )


def _transpose_axis(site: Site, i: int, rank: int, out: int, taps: int) -> Axis:
    """Return the window along spatial axis i; each of its `out` places spreads over the output."""
    stride, dilation = _read_axis(site, "strides", i), _read_axis(site, "dilations", i)
    extra, given = site.attrs.get("output_padding"), site.attrs.get("output_shape")
    mode = site.attrs.get("auto_pad") or "NOTSET"
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        site.fail(f"auto_pad is {mode!r}", "NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    whole = (out - 1) * stride + (taps - 1) * dilation + 1 + (int(extra[i]) if extra else 0)
    if given or mode.startswith("SAME"):
        size = int(given[i + len(given) - rank]) if given else out * stride
        total = max(whole - size, 0)
        pad = total // 2 if mode == "SAME_UPPER" else total - total // 2
        return Axis(size, out, taps, stride, dilation, pad, total - pad)
    pad, end = _read_pads(site, i) if mode == "NOTSET" else (0, 0)
    size = whole - pad - end
    if size < 0:
        site.wrong(
            f"pads {pad} and {end} cut off more than the {whole} outputs of spatial axis {i}"
        )
    return Axis(size, out, taps, stride, dilation, pad, end)


def infer_in_dims(site: Site, y: TensorType, kernel: Sequence[int]) -> tuple[Dim, ...]:
    """Return the least spatial dimensions of an input whose output has the dimensions of `y`."""
    _check(site, y, kernel)
    out: list[Dim] = []
    for i, (size, taps) in enumerate(zip(y.shape[2:], kernel, strict=True)):
        stride, reach = (
            _read_axis(site, "strides", i),
            (taps - 1) * _read_axis(site, "dilations", i) + 1,
        )
        if not isinstance(size, int):
            out.append(size if _keeps_size(site, i, taps) else f"{site.name}_d{i + 2}")
        elif str(site.attrs.get("auto_pad")).startswith("SAME"):
            out.append(size * stride)
        else:
            pads = (0, 0) if site.attrs.get("auto_pad") == "VALID" else _read_pads(site, i)
            out.append(max((size - 1) * stride + reach - sum(pads), 1))
    return tuple(out)


def pooled(site: Site, i: int) -> TensorType:
    """Return input i of a pool's gradient, the image; dY and Indices must have the pool's shape."""
    x = site.type(i).but()
    site.shaped(0, (*x.shape[:2], *infer_out_dims(site, x, read_kernel_shape(site))))
    if site.op == "MaxPoolGrad":
        site.shaped(1, site.type(0).shape)
    return x


def read_kernel_shape(site: Site) -> tuple[int, ...]:
    """Return the attribute, which pools require."""
    if "kernel_shape" not in site.attrs:
        site.fail("attribute kernel_shape is missing")
    return tuple(site.attrs["kernel_shape"])


def _check(site: Site, x: TensorType, kernel: Sequence[Dim]) -> None:
    if not 3 <= x.rank <= 5:
        site.fail(f"input 0 is {x}, with {x.rank - 2} spatial axes", "1, 2 or 3")
    if len(kernel) != x.rank - 2:
        site.wrong(f"the window has {len(kernel)} axes, but input 0 has {x.rank - 2} spatial axes")
    if any(isinstance(taps, int) and taps < 1 for taps in kernel):
        site.wrong(f"the window is {list(kernel)}; expected sizes of 1 or more")
    for name, per in (("strides", 1), ("dilations", 1), ("pads", 2), ("output_padding", 1)):
        given = site.attrs.get(name)
        if given and len(given) != per * len(kernel):
            site.wrong(
                f"{name} is {list(given)}; expected {per * len(kernel)} numbers for "
                f"{len(kernel)} spatial axes"
            )
        if given and min(given) < (0 if "pad" in name else 1):
            site.fail(
                f"{name} is {list(given)}", "pads of 0 or more, strides and dilations of 1 or more"
            )


def _read_axis(site: Site, name: str, i: int) -> int:
    given = site.attrs.get(name)
    return int(given[i]) if given else 1


def _read_pads(site: Site, i: int) -> tuple[int, int]:
    given = site.attrs.get("pads")
    return (int(given[i]), int(given[i + len(given) // 2])) if given else (0, 0)


def _keeps_size(site: Site, i: int, taps: int) -> bool:
    """Return whether the output has the size of the input for every size."""
    if _read_axis(site, "strides", i) != 1:
        return False
    if str(site.attrs.get("auto_pad")).startswith("SAME"):
        return True
    pads = (0, 0) if site.attrs.get("auto_pad") == "VALID" else _read_pads(site, i)
    return sum(pads) == (taps - 1) * _read_axis(site, "dilations", i)


# --- in kernels


@inline
def clip(o, size, stride, pad, dilation, taps):
    """The taps of window o that lie in [0, size): the first, the input it reads, their number."""
    start = o * stride - pad
    first = udiv(imax(-start, 0) + dilation - 1, dilation)
    last = imin(udiv(imax(size - start, 0) + dilation - 1, dilation), taps)
    return first, start + first * dilation, imax(last - first, 0)
