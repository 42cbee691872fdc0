"""Products and convolutions of 8-bit integers by constant weights, with sums of 32 bits.

Forward   y = out(bias[j] + sum_k (x[k] - zero) (w[k, j] - shift[j])), for rows of x or windows of
          images
          out: the sum (i32); times factor[j] (f32); rounded, ties to even, plus `offset`, and
          clipped to [low, high] (u8, i8).  Passes make these ops of frozen layers alone, so they
          have no gradient (graphs/passes/integers.py)
Source    loops/integer_gemm.py, conv/integer_conv.py
"""

from __future__ import annotations

from typing import Any

from engine.kernels.loops.integer_gemm import Weights, integer_gemm, lower_integer_gemm
from engine.kernels.loops.window import WINDOW, find_windows, infer_out_dims
from engine.kernels.ops.conv.integer_conv import INTEGER_CONV_KERNELS, lower_integer_conv
from engine.kernels.vocabulary.facts import ChannelsLast
from engine.kernels.vocabulary.integers import GROUP, PANEL
from engine.kernels.vocabulary.op import OURS, Kind, Lowering, Op, Site, TensorType

# x; w in panels; sums of its columns; the zero point of x; factor; bias; shift
# Zero points of weights are subtracted before they are packed, if 8 bits hold what remains; shifts
# are for those that need 9 bits.
_INPUTS: dict[str, Any] = {"inputs": (4, 7), "may_be_absent": frozenset({4, 5})}
_RESULT: dict[str, Any] = {"low": 0, "high": 0, "offset": 0}
_NEEDS: dict[str, Kind] = {"columns": "int", "to": "string"}


def _check(site: Site, depth: int) -> str:
    """Refuse operands that do not fit; return the element type of the result."""
    columns, to = int(site.attrs["columns"]), str(site.attrs["to"])
    panels, groups = -(-columns // PANEL), -(-depth // GROUP)
    if site.type(0).dtype not in ("u8", "i8") or site.type(3).dtype != site.type(0).dtype:
        site.fail(f"activations are {site.type(0)}, their zero point {site.type(3)}", "u8, i8")
    # All that belongs to columns is read by whole panels, whose last columns may be of no use.
    kinds = {1: "i8", 2: "i32", 4: "f32", 5: "i32", 6: "i32"}
    sizes = {1: panels * groups * PANEL * GROUP, **dict.fromkeys((2, 4, 5, 6), panels * PANEL)}
    for i, kind in kinds.items():
        if site.has(i) and (site.type(i).dtype != kind or site.type(i).size != sizes[i]):
            site.fail(f"input {i} is {site.type(i)}", f"{sizes[i]} of {kind}")
    if site.type(3).size != 1 or site.has(4) != (to != "i32"):
        site.wrong(
            f"the zero point (input 3) is {site.type(3)}, and factors (input 4) are "
            f"{'given' if site.has(4) else 'missing'} for a result of {to}; expected one "
            "zero point, and factors unless the result is i32"
        )
    return to


def _matmul_infer(site: Site) -> tuple[TensorType, ...]:
    x = site.type(0)
    to = _check(site, int(x.dims[-1]))
    return (TensorType(to, (*x.shape[:-1], int(site.attrs["columns"]))),)


def _conv_infer(site: Site) -> tuple[TensorType, ...]:
    x, taps = site.type(0), list(site.attrs["kernel_shape"])
    # A depthwise sum is over the taps of one channel, up to three times; others over all channels.
    depthwise = int(site.attrs["depthwise"])
    if depthwise and site.has(6):
        site.wrong("input 6 (shifts) is given with depthwise weights; expected none")
    depth = depthwise or int(x.dims[1])
    for n in taps:
        depth *= n
    to = _check(site, depth)
    dims = infer_out_dims(site, x, taps)
    return (TensorType(to, (x.shape[0], int(site.attrs["columns"]), *dims)),)


def _read_weights(lowering: Lowering) -> Weights:
    site = lowering.site
    w, sums, zero = (lowering.x(i) for i in (1, 2, 3))
    factor, bias, shift = (lowering.x(i) if site.has(i) else None for i in (4, 5, 6))
    low, high, offset = (int(site.attrs[name]) for name in ("low", "high", "offset"))
    return Weights(
        w=w,
        sums=sums,
        zero=zero,
        factor=factor,
        bias=bias,
        shift=shift,
        low=low,
        high=high,
        offset=offset,
    )


def _matmul_lower(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    if y.type.size:
        # All axes before the last one are rows, since the weights are the same for a whole batch.
        n, k = y.type.dims[-1], x.type.dims[-1]
        lower_integer_gemm(lowering, x, _read_weights(lowering), y, (y.type.size // n, n, k))


def _conv_lower(lowering: Lowering) -> None:
    x, y, attrs = lowering.x(0), lowering.y(0), lowering.site.attrs
    if y.type.size:
        axes = find_windows(lowering.site, x.type, list(attrs["kernel_shape"]))
        depthwise = int(attrs["depthwise"])
        lower_integer_conv(lowering, x, _read_weights(lowering), y, axes, depthwise=depthwise)


OPS = (
    Op(
        name="IntegerMatMul",
        domain=OURS,
        **_INPUTS,
        outputs=1,
        needs=_NEEDS,
        attrs=_RESULT,
        infer=_matmul_infer,
        lower=_matmul_lower,
        calls=(integer_gemm,),
        no_gradient=frozenset(range(7)),
        internal=True,
    ),
    Op(
        name="IntegerConv",
        domain=OURS,
        **_INPUTS,
        outputs=1,
        needs=_NEEDS,
        attrs={**_RESULT, "depthwise": 0, "auto_pad": "NOTSET"},
        takes=WINDOW,
        infer=_conv_infer,
        lower=_conv_lower,
        calls=(integer_gemm, *INTEGER_CONV_KERNELS),
        no_gradient=frozenset(range(7)),
        layout=ChannelsLast((0,), (0,)),
        internal=True,
    ),
)
