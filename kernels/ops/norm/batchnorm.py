"""Batch normalisation: y = (x - mean) scale / sqrt(var + epsilon) + B, for each channel (axis 1).

Forward   training: mean and var are those of the batch (population variance), and the running ones
          move: running = momentum running + (1 - momentum) batch;  else they are the running ones
Backward  with h = (x - mean) inv, inv = 1 / sqrt(var + epsilon), n values a channel:
          dscale = sum dy h,  dB = sum dy
          training: dx = scale inv (dy - dB / n - h dscale / n);  else dx = scale inv dy
          keeps x, mean and inv: y is computed again where it is needed
Error     of mean and var: channels.py
Source    Ioffe, Szegedy, arXiv 1502.03167

The ops are short for statistics (channels.py) and elementwise nodes, which are fused with what is
around them: an activation behind the normalisation, the mask of its gradient before the sums.
"""

from __future__ import annotations

from engine.kernels.ops.shape import reduce_sum
from engine.kernels.vocabulary.op import MS, OURS, Grad, Nodes, Op, Site, TensorType

ATTRS = {"epsilon": 1e-5, "momentum": 0.9}


def across(g: Nodes, v: str, rank: int) -> str:
    """A vector of C channels as [C, 1, ...], which broadcasts to [N, C, ...] of the given rank."""
    if rank == 2:
        return v
    return str(g.op("Reshape", v, g.const([-1, *[1] * (rank - 2)], "i64")))


def inverse(g: Nodes, var: str) -> str:
    """1 / sqrt(var + epsilon)."""
    moved = g.op("Add", var, g.like(g.site.attrs["epsilon"], 0))
    return str(g.op("Reciprocal", g.op("Sqrt", moved)))


def _normalised(g: Nodes, mean: str, inv: str) -> str:
    """y = (x - mean) inv scale + B for the given mean and inv."""
    rank = g.site.type(0).rank
    centred = g.op("Sub", g.x(0), across(g, mean, rank))
    scaled = g.op("Mul", centred, across(g, g.op("Mul", g.x(1), inv), rank))
    return str(g.op("Add", scaled, across(g, g.x(2), rank)))


def _moved(g: Nodes, i: int, batch: str) -> str:
    """The running statistic of input i after it has moved towards that of the batch."""
    momentum = g.site.attrs["momentum"]
    kept = g.op("Mul", g.x(i), g.like(momentum, i))
    return str(g.op("Add", kept, g.op("Mul", batch, g.like(1 - momentum, i))))


def is_training(s: Site) -> bool:
    """Whether a BatchNormalization uses the statistics of the batch."""
    if s.domain == MS or s.opset >= 14:
        return bool(s.attrs.get("training_mode"))
    return s.n_outs > 1


# --- forward


def _expand(g: Nodes) -> tuple[str, ...]:
    if not is_training(g.site):
        return (_normalised(g, g.x(3), inverse(g, g.x(4))), g.x(3), g.x(4))
    mean, var = g.op("ChannelMoments", g.x(0), domain=OURS, outputs=2)
    return (_normalised(g, mean, inverse(g, var)), _moved(g, 3, mean), _moved(g, 4, var), mean, var)


def _expand_internal(g: Nodes) -> tuple[str, ...]:
    """As `_expand`; running statistics that are no constants are updated where they are."""
    if not is_training(g.site):
        inv = inverse(g, g.x(4))
        return (_normalised(g, g.x(3), inv), g.x(3), g.x(4), g.x(3), inv)
    mean, var = g.op("ChannelMoments", g.x(0), domain=OURS, outputs=2)
    inv = inverse(g, var)
    moved = (_moved(g, 3, mean), _moved(g, 4, var))
    for i, new in zip((3, 4), moved, strict=True):
        if g.site.value(i) is None:
            g.op("InPlaceAccumulatorV2", g.x(i), new, g.const([True], "b1"), domain=MS)
    return (_normalised(g, mean, inv), *moved, mean, inv)


def _check(s: Site, names: int) -> TensorType:
    """X [N, C, ...], the other inputs [C], all of one type."""
    x = s.real(0)
    if x.rank < 2:
        s.fail(f"X of rank {x.rank}", "[N, C, ...]")
    for i in range(1, names):
        if s.shaped(i, x.shape[1:2]).dtype != x.dtype:
            s.fail(f"input {i} is {s.type(i)} beside X of {x.dtype}", "one element type")
    return x


def _infer(s: Site) -> tuple[TensorType, ...]:
    x = _check(s, 5)
    if s.attrs.get("spatial", 1) != 1:
        s.fail("spatial = 0", "statistics over all axes but the channel's")
    return (x.but(), *[x.but(x.shape[1:2])] * 4)[: s.n_outs]


# --- gradients


def _grad(g: Grad, dy: str, *others: str | None) -> tuple[str | None, ...]:
    """dX, dscale, dB = BatchNormalizationGrad(dY, X, scale, mean, inv_std)."""
    if any(others):
        g.site.fail("the loss depends on the running statistics", "a loss of Y alone")
    if not is_training(g.site):
        return _grad_frozen(g, dy)
    if g.site.domain == MS:
        mean, inv = g.y(3, "_saved_mean"), g.y(4, "_saved_inv_std")
    else:
        mean, var = g.op("ChannelMoments", g.x(0), domain=OURS, outputs=2)
        inv = inverse(g, var)
    made: tuple[str, str, str] = g.op(
        "BatchNormalizationGrad", dy, g.x(0), g.x(1), mean, inv,
        domain=MS, outputs=3, epsilon=g.site.attrs["epsilon"],
    )  # fmt: skip
    return made


def _grad_frozen(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY scale inv;  dscale = inv sum dY (X - mean);  dB = sum dY."""
    rank = g.site.type(0).rank
    axes = [i for i in range(rank) if i != 1]
    inv = inverse(g, g.x(4))
    dx = dscale = db = None
    if g.wants(0):
        dx = g.op("Mul", dy, across(g, g.op("Mul", g.x(1), inv), rank))
    if g.wants(1):
        apart = g.op("Sub", g.x(0), across(g, g.x(3), rank))
        dscale = g.op("Mul", reduce_sum(g, g.op("Mul", dy, apart), axes), inv)
    if g.wants(2):
        db = reduce_sum(g, dy, axes)
    return (dx, dscale, db)


def _expand_grad(g: Nodes) -> tuple[str, ...]:
    dy, x, scale, mean, inv = (g.x(i) for i in range(5))
    t = g.site.type(1)
    m, one = across(g, mean, t.rank), 1 / (t.size / t.dims[1])
    product = g.op("Mul", dy, g.op("Sub", x, m))
    formulas = ("a", "b")
    db, total = g.op("ChannelSums", dy, product, domain=OURS, outputs=2, formulas=formulas)
    dscale = g.op("Mul", total, inv)
    level = g.op("Mul", db, g.like(one, 1))
    slope = g.op("Mul", g.op("Mul", dscale, inv), g.like(one, 1))
    tilt = g.op("Mul", g.op("Sub", x, m), across(g, slope, t.rank))
    inner = g.op("Sub", dy, g.op("Add", tilt, across(g, level, t.rank)))
    dx = g.op("Mul", inner, across(g, g.op("Mul", scale, inv), t.rank))
    return (dx, dscale, db)


def _infer_grad(s: Site) -> tuple[TensorType, ...]:
    x = s.real(1)
    s.shaped(0, x.shape)
    for i in range(2, 5):
        s.shaped(i, x.shape[1:2])
    return (x.but(), *[x.but(x.shape[1:2])] * 2)[: s.n_outs]


STATISTICS = frozenset((3, 4))
_NORMAL = f"Add Mul Reciprocal Reshape Sqrt Sub {OURS}::ChannelMoments"
OPS = (
    Op(
        name="BatchNormalization", since=7, attrs=ATTRS, infer=_infer, expand=_expand,
        becomes=_NORMAL, grad=_grad, stop=STATISTICS,
    ),
    Op(
        name="BatchNormInternal", domain=MS, attrs={**ATTRS, "training_mode": 1}, infer=_infer,
        expand=_expand_internal, becomes=f"{_NORMAL} {MS}::InPlaceAccumulatorV2", grad=_grad,
        stop=STATISTICS,
    ),
    Op(
        name="BatchNormalizationGrad", domain=MS, takes={"training_mode": "int"},
        attrs=ATTRS, infer=_infer_grad,
        expand=_expand_grad, becomes=f"Add Mul Reshape Sub {OURS}::ChannelSums",
        stop=frozenset(range(5)), whole=True,
    ),
)  # fmt: skip
