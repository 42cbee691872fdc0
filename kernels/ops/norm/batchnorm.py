"""Batch normalisation: y = (x - mean) scale / sqrt(var + epsilon) + B, for each channel (axis 1).

Forward   training: mean and var of the batch (population variance), and the running ones move:
          running = momentum running + (1 - momentum) batch;  otherwise the running ones
Backward  with h = (x - mean) inv, inv = 1 / sqrt(var + epsilon), n values a channel:
          dscale = sum dy h,  dB = sum dy
          training: dx = scale inv (dy - dB / n - h dscale / n);  otherwise dx = scale inv dy, and
          for computed statistics dmean = -scale inv dB,  dvar = -scale inv^2 dscale / 2
          keeps x, mean and inv: y is computed again where it is needed
Error     of mean and var: channels.py
Source    Ioffe, Szegedy, arXiv 1502.03167

FoldedNorm  the weights and the bias of a convolution that includes the normalisation after it:
          f = scale / sqrt(var + epsilon);  w' = w f,  b' = B + (c - mean) f

The ops are short for statistics (channels.py) and elementwise nodes, which are fused with what is
around them: an activation after the normalisation, the mask of its gradient before the sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.base.element_types import ONNX_CODE
from engine.kernels.loops.map import MAP_KERNELS, lower_map, update
from engine.kernels.ops.norm.channels import GRADIENT_SUMS
from engine.kernels.ops.shape import reduce_sum
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.facts import NORM, Role, Samples
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Grad,
    Lowering,
    Nodes,
    Op,
    Operand,
    Site,
    TensorType,
)

ATTRS = {"epsilon": 1e-5, "momentum": 0.9}


def across(nodes: Nodes, v: str, rank: int) -> str:
    """Return a vector of C channels as [C, 1, ...], to broadcast to [N, C, ...] of this rank."""
    if rank == 2:
        return v
    return str(nodes.op("Reshape", v, nodes.const([-1, *[1] * (rank - 2)], "i64")))


def of_type(nodes: Nodes, value: str, dtype: str, wanted: str) -> str:
    """Return a value cast from one element type to another, if they differ."""
    return value if dtype == wanted else str(nodes.op("Cast", value, to=ONNX_CODE[wanted]))


def vector(nodes: Nodes, i: int) -> str:
    """Return input i, the scale, the bias or a running statistic, in the element type of X."""
    site = nodes.site
    return of_type(nodes, nodes.x(i), site.type(i).dtype, site.type(0).dtype)


def inverse(nodes: Nodes, var: str) -> str:
    """1 / sqrt(var + epsilon)."""
    moved = nodes.op("Add", var, nodes.like(nodes.site.attrs["epsilon"], 0))
    return str(nodes.op("Reciprocal", nodes.op("Sqrt", moved)))


def _normalised(nodes: Nodes, mean: str, inv: str) -> str:
    """y = (x - mean) inv scale + B for the given mean and inv."""
    rank = nodes.site.type(0).rank
    # scale inv is one vector: an element costs a difference, a product and a sum.
    centred = nodes.op("Sub", nodes.x(0), across(nodes, mean, rank))
    scaled = nodes.op("Mul", centred, across(nodes, nodes.op("Mul", vector(nodes, 1), inv), rank))
    return str(nodes.op("Add", scaled, across(nodes, vector(nodes, 2), rank)))


def _moved(nodes: Nodes, i: int, batch: str) -> str:
    """Return the running statistic of input i after it has moved towards the batch's.

    Both are of its element type.
    """
    momentum = nodes.site.attrs["momentum"]
    # ONNX's momentum weighs the old value, unlike torch's.
    kept = nodes.op("Mul", nodes.x(i), nodes.like(momentum, i))
    return str(nodes.op("Add", kept, nodes.op("Mul", batch, nodes.like(1 - momentum, i))))


def is_training(site: Site) -> bool:
    """Return whether a BatchNormalization uses the statistics of the batch."""
    if site.domain or site.opset >= 14:
        return bool(site.attrs.get("training_mode"))
    return site.n_outs > 1


# --- forward


def _statistic(nodes: Nodes, i: int, batch: str) -> str:
    """Return a moment of the batch in the element type of the running statistic of input i."""
    site = nodes.site
    return of_type(nodes, batch, site.type(0).dtype, site.type(i).dtype)


def _expand(nodes: Nodes) -> tuple[str, ...]:
    if not is_training(nodes.site):
        return (
            _normalised(nodes, vector(nodes, 3), inverse(nodes, vector(nodes, 4))),
            nodes.x(3),
            nodes.x(4),
        )
    mean, var = nodes.op("ChannelMoments", nodes.x(0), domain=OURS, outputs=2)
    return trained(nodes, mean, var)


def trained(nodes: Nodes, mean: str, var: str) -> tuple[str, ...]:
    """Return the outputs of a BatchNormalization in training, given the moments of the batch."""
    return (
        _normalised(nodes, mean, inverse(nodes, var)),
        _moved(nodes, 3, _statistic(nodes, 3, mean)),
        _moved(nodes, 4, _statistic(nodes, 4, var)),
        mean,
        var,
    )


def _expand_held(nodes: Nodes) -> tuple[str, ...]:
    """Return y, the moments of the batch, and the mean and inverse deviation that made y."""
    if not is_training(nodes.site):
        mean, inv = vector(nodes, 3), inverse(nodes, vector(nodes, 4))
        return (_normalised(nodes, mean, inv), nodes.x(3), nodes.x(4), mean, inv)
    mean, var = nodes.op("ChannelMoments", nodes.x(0), domain=OURS, outputs=2)
    return trained_held(nodes, mean, var)


def trained_held(nodes: Nodes, mean: str, var: str) -> tuple[str, ...]:
    """Return the outputs of a BatchNormHeld in training, given the moments of the batch."""
    inv = inverse(nodes, var)
    moments = _statistic(nodes, 3, mean), _statistic(nodes, 4, var)
    return (_normalised(nodes, mean, inv), *moments, mean, inv)


def _expand_internal(nodes: Nodes) -> tuple[str, ...]:
    made = _expand_held(nodes)
    return moving(nodes, made) if is_training(nodes.site) else made


def moving(nodes: Nodes, held: Sequence[str]) -> tuple[str, ...]:
    """Return a BatchNormInternal's outputs in training from the outputs of a BatchNormHeld.

    Running statistics that are not constant are updated in place.
    """
    y, mean, var, *kept = held
    moved = (_moved(nodes, 3, mean), _moved(nodes, 4, var))
    for i, new in zip((3, 4), moved, strict=True):
        if nodes.site.value(i) is None:
            # A constant has no memory to move; a running statistic that is a parameter is written
            # in place, as the optimizer writes parameters.
            nodes.op("InPlaceAccumulatorV2", nodes.x(i), new, nodes.const([True], "b1"), domain=MS)
    return (y, *moved, *kept)


def _expand_folded(nodes: Nodes) -> tuple[str, ...]:
    """Return the weights and the bias of the convolution, and a divisor that undoes the factor."""
    rank = nodes.site.type(0).rank
    factor = nodes.op("Mul", nodes.x(1), inverse(nodes, nodes.x(4)))
    along = nodes.op("Reshape", factor, nodes.const([-1, *[1] * (rank - 1)], "i64"))
    centre = nodes.op("Sub", nodes.x(5), nodes.x(3)) if nodes.site.has(5) else (
        nodes.op("Neg", nodes.x(3)))  # fmt: skip
    bias = nodes.op("Add", nodes.x(2), nodes.op("Mul", centre, factor))
    is_none = nodes.op("Equal", factor, nodes.like(0.0, 0))  # which divides nothing
    divisor = nodes.op("Where", is_none, nodes.like(1.0, 0), factor)
    return (nodes.op("Mul", nodes.x(0), along), bias, divisor)


def _infer_folded(site: Site) -> tuple[TensorType, ...]:
    w = site.real(0)
    for i in (*range(1, 5), *([5] if site.has(5) else [])):
        if site.shaped(i, w.shape[:1]).dtype != w.dtype:
            site.fail(f"input {i} is {site.type(i)}, but the weights are {w}", "one element type")
    return (w.but(), *[w.but(w.shape[:1])] * 2)[: site.n_outs]


def _check(site: Site) -> TensorType:
    """Return X [N, C, ...] after checking scale, bias and statistics, each pair of one type."""
    x = site.real(0)
    if x.rank < 2:
        site.fail(f"X has rank {x.rank}", "[N, C, ...]")
    for i in range(1, 5):
        site.shaped(i, x.shape[1:2])
    for i in (1, 3):
        one, two = site.real(i), site.real(i + 1)
        if one.dtype != two.dtype:
            site.fail(f"inputs {i} and {i + 1} are {one} and {two}", "one element type for both")
    return x


def _infer(site: Site) -> tuple[TensorType, ...]:
    x = _check(site)
    if site.attrs.get("spatial", 1) != 1:
        site.fail("spatial is 0", "statistics over all axes but the channel's")
    own = x.but(x.shape[1:2])
    running = TensorType(site.type(3).dtype, own.shape)
    return (x.but(), running, running, own, own)[: site.n_outs]


def _move(lowering: Lowering) -> None:
    """statistic = momentum statistic + (1 - momentum) batch where the signal of the step is given.

    statistic, batch: of one shape.  Output 0 is true.
    """
    statistic, batch = lowering.x(0), lowering.x(1)
    signal = Operand(lowering.x(2).name, TensorType("b1", ()))
    momentum = lowering.site.attrs["momentum"]
    old = ("mul", ("in", 0), ("const", momentum))
    moved = ("add", old, ("mul", ("in", 1), ("const", 1 - momentum)))
    # Of momentum 0, the old value does not matter, even if it is infinite.
    formula: Expr = ("where", ("in", 2), moved if momentum else ("in", 1), ("in", 0))
    update(lowering, formula, [statistic, batch, signal], statistic)
    if lowering.wants(0):
        lower_map(lowering, [("const", True)], [], [lowering.y(0)])


# --- gradients


def _grad(grad: Grad, dy: str, *others: str | None) -> tuple[str | None, ...]:
    """dX, dscale, dB = BatchNormalizationGrad(dY, X, scale, mean, inv_std)."""
    if any(others):
        grad.site.fail("the loss depends on the running statistics", "a loss of Y alone")
    if not is_training(grad.site):
        return _grad_frozen(grad, dy)
    if grad.site.domain == MS:
        mean, inv = grad.y(3, "_saved_mean"), grad.y(4, "_saved_inv_std")
    else:
        mean, var = grad.op("ChannelMoments", grad.x(0), domain=OURS, outputs=2)
        inv = inverse(grad, var)
    made: tuple[str, str, str] = grad.op(
        "BatchNormalizationGrad",
        dy,
        grad.x(0),
        vector(grad, 1),
        mean,
        inv,
        domain=MS,
        outputs=3,
        epsilon=grad.site.attrs["epsilon"],
    )
    return _of_their_types(grad, made)


def _of_their_types(grad: Grad, made: Sequence[str | None]) -> tuple[str | None, ...]:
    """Cast gradients from the type of X to the types of their inputs."""
    site = grad.site
    own = site.type(0).dtype
    return tuple(m and of_type(grad, m, own, site.type(i).dtype) for i, m in enumerate(made))


def _grad_frozen(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY scale inv;  dscale = inv sum dY (X - mean);  dB = sum dY.

    dmean = -scale inv dB;  dvar = -scale inv inv dscale / 2.
    """
    rank = grad.site.type(0).rank
    axes = [i for i in range(rank) if i != 1]
    inv = inverse(grad, vector(grad, 4))
    slope = dscale = db = ""
    dx: str | None = None
    dmean: str | None = None
    dvar: str | None = None
    if any(grad.wants(i) for i in (0, 3, 4)):
        # Forward: y = (x - mean) inv scale + B with statistics that are given; so dx = scale inv
        # dy, dB = sum dy, dscale = sum dy (x - mean) inv.
        slope = grad.op("Mul", vector(grad, 1), inv)
    if grad.wants(0):
        dx = grad.op("Mul", dy, across(grad, slope, rank))
    if grad.wants(1) or grad.wants(4):
        apart = grad.op("Sub", grad.x(0), across(grad, vector(grad, 3), rank))
        dscale = grad.op("Mul", reduce_sum(grad, grad.op("Mul", dy, apart), axes), inv)
    if grad.wants(2) or grad.wants(3):
        db = reduce_sum(grad, dy, axes)
    if grad.wants(3):
        # Forward: the mean is subtracted everywhere; so dmean = -scale inv sum dy.
        dmean = grad.op("Neg", grad.op("Mul", slope, db))
    if grad.wants(4):
        # Forward: inv = (var + epsilon)^(-1/2); so dvar = -1/2 inv^2 times the sum of dy (x - mean)
        # inv scale.
        both = grad.op("Mul", grad.op("Mul", slope, inv), dscale)
        dvar = grad.op("Mul", both, grad.like(-0.5, 0))
    return _of_their_types(grad, (dx, dscale or None, db or None, dmean, dvar))


def _expand_grad(nodes: Nodes) -> tuple[str, ...]:
    m, one = centre(nodes), share_of_one(nodes)
    # Forward: h = (x - mean) inv with moments of the batch itself; so dx = scale inv (dy - mean of
    # dy - h mean of dy h).  Two sums a channel, made in one pass over dy and x.
    db, total = gradient_sums(nodes, m)
    dscale = nodes.op("Mul", total, nodes.x(4))
    level = nodes.op("Mul", db, one)
    slope = nodes.op("Mul", nodes.op("Mul", dscale, nodes.x(4)), one)
    return (gradient(nodes, m, level, slope), dscale, db)


def centre(nodes: Nodes) -> str:
    """Return the mean, of a node with the inputs of a gradient, as [C, 1, ...]."""
    return across(nodes, nodes.x(3), nodes.site.type(1).rank)


def share_of_one(nodes: Nodes) -> str:
    """1 / n, the share that one of the n values of a channel has in their mean."""
    t = nodes.site.type(1)
    if not t.size:
        nodes.site.wrong(f"input 1 is {t}, which has no elements, so its channels have no mean")
    return nodes.sized(1 / (t.size / t.dims[1]), 1)


def gradient_sums(nodes: Nodes, m: str) -> tuple[str, str]:
    """Sums of dy and of dy (x - m) for each channel, of a node with the inputs of a gradient."""
    made: tuple[str, str] = nodes.op(
        "ChannelSums", nodes.x(0), nodes.x(1), m, domain=OURS, outputs=2, formulas=GRADIENT_SUMS
    )
    return made


def gradient(nodes: Nodes, m: str, level: str, slope: str) -> str:
    """dx = scale inv (dy - level - (x - m) slope), of a node with the inputs of a gradient."""
    dy, x, rank = nodes.x(0), nodes.x(1), nodes.site.type(1).rank
    # Elementwise from here: planning fuses it with the mask of an activation before it.
    tilt = nodes.op("Mul", nodes.op("Sub", x, m), across(nodes, slope, rank))
    inner = nodes.op("Sub", dy, nodes.op("Add", tilt, across(nodes, level, rank)))
    factor = nodes.op("Mul", nodes.x(2), nodes.x(4))
    return str(nodes.op("Mul", inner, across(nodes, factor, rank)))


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    x = site.real(1)
    site.shaped(0, x.shape)
    for i in range(2, 5):
        site.shaped(i, x.shape[1:2])
    return (x.but(), *[x.but(x.shape[1:2])] * 2)[: site.n_outs]


_NORMAL = f"Add Cast Mul Reciprocal Reshape Sqrt Sub {OURS}::ChannelMoments"
OPS = (
    Op(
        name="BatchNormalization",
        roles={**NORM, 3: Role.MEAN, 4: Role.VARIANCE},
        since=7,
        attrs=ATTRS,
        infer=_infer,
        expand=_expand,
        becomes=_NORMAL,
        grad=_grad,
        samples=Samples.BATCH_NORM,
    ),
    Op(
        name="BatchNormInternal",
        domain=MS,
        inputs=(5, 5),
        outputs=5,
        training_only=True,
        attrs={**ATTRS, "training_mode": 1},
        infer=_infer,
        expand=_expand_internal,
        becomes=f"{_NORMAL} {MS}::InPlaceAccumulatorV2",
        grad=_grad,
        no_gradient=frozenset((3, 4)),
        samples=Samples.BATCH_STATISTICS,
    ),
    Op(  # BatchNormInternal in a joined graph, which moves the statistics with the parameters
        name="BatchNormHeld",
        domain=OURS,
        attrs={**ATTRS, "training_mode": 1},
        infer=_infer,
        expand=_expand_held,
        becomes=_NORMAL,
        no_gradient=frozenset(range(5)),
        internal=True,
    ),
    Op(
        name="FoldedNorm",
        domain=OURS,
        inputs=(5, 6),
        outputs=3,
        roles={0: Role.WEIGHT, **NORM, 3: Role.MEAN, 4: Role.VARIANCE, 5: Role.BIAS},
        attrs=ATTRS,
        infer=_infer_folded,
        expand=_expand_folded,
        no_gradient=frozenset((3, 4)),
        becomes="Add Equal Mul Neg Reciprocal Reshape Sqrt Sub Where",
    ),
    Op(
        name="MoveStatistic",
        domain=OURS,
        inputs=(3, 3),
        outputs=1,
        training_only=True,
        is_acting=True,
        attrs={"momentum": 0.9},
        infer=lambda site: (TensorType("b1", (1,)),),
        lower=_move,
        calls=MAP_KERNELS,
        no_gradient=frozenset(range(3)),
    ),
    Op(
        name="BatchNormalizationGrad",
        domain=MS,
        inputs=(5, 5),
        outputs=3,
        gradient_of="BatchNormalization",
        takes={"training_mode": "int"},
        attrs=ATTRS,
        infer=_infer_grad,
        expand=_expand_grad,
        becomes=f"Add Mul Reshape Sub {OURS}::ChannelSums",
        no_gradient=frozenset(range(5)),
        names_all_outputs=True,
    ),
)
