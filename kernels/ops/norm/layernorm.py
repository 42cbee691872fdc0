"""Layer normalisation and its kin, along the last axes of a tensor: rows of n elements.

Forward   h = (x - mean) inv, inv = 1 / sqrt(var + epsilon), var the mean of (x - mean)^2;
          RMS: mean = 0 and var the mean of x^2;  y = scale h + B;  Standardize: y = h
Backward  with g = scale dy:  dx = inv (g - mean g - h mean (g h)); RMS: without mean g
          dscale = sum over rows of dy h,  dB = sum over rows of dy;  keeps x, mean and inv
Error     of mean and var as of sums (fold.py): the mean is corrected by the mean of x - mean
Source    Ba, Kiros, Hinton, arXiv 1607.06450; Zhang, Sennrich, arXiv 1910.07467

Sums over rows are made of parts of fixed size, so results depend on no number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.kernels.loops.fold import RUN
from engine.kernels.machine.target import Target
from engine.kernels.ops.norm.channels import channel_sums_join
from engine.kernels.vocabulary.facts import ALIKE, NORM, Role, Samples, Storage
from engine.kernels.vocabulary.kernel import Body, Intrinsic, imin, kernel, off, share
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Dim,
    Grad,
    Kind,
    Lowering,
    Nodes,
    Op,
    Site,
    TensorType,
    find_stored,
)
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.shape_rules import normalise_axis

PART = 1 << 14  # elements of a part of the rows


# --- kernels

# Calls are by name: a form ignores the operands that it does not have.
_FORMS = {
    "": "x:S[] mean inv -> y:S[] = (x - mean) * inv",
    "s": "x:S[] mean inv scale[] -> y:S[] = (x - mean) * inv * scale",
    "sb": "x:S[] mean inv scale[] b[] -> y:S[] = (x - mean) * inv * scale + b",
}


@kernel(
    """
    x: S[rows, n]   scale: T[n] if 's' in form   b: T[n] if 'b' in form
    y: out S[rows, n] may alias x   mean, inv: out T[rows]   rows, n: i64   epsilon: f64
    """,
    form=("", "s", "sb"),
)
def layer_norm(target: Target, T: str, rms: int, form: str, S: str = "") -> Body:
    """y[r] = (x[r] - mean[r]) inv[r] scale + b, with the moments of the row; `rms`: mean[r] = 0.

    form: the letters of scale and b, as far as they are there.  S: how x and y are stored.
    """
    total = loop(T, "x:S[] -> sum(x)", S)
    apart = loop(T, "x:S[] m -> sum(x - m); sum((x - m) * (x - m))", S)
    inverse = loop(T, "var epsilon -> 1 / sqrt(var + epsilon)")
    write = loop(T, _FORMS[form], S)

    def body(x, scale, b, y, mean, inv, rows, n, epsilon, tid, nthreads):
        first, last = share(rows, tid, nthreads)
        for r in range(first, last):
            row = off(x, r * n)
            m, rest, square = 0.0, 0.0, 0.0
            # Partial sums are closed every RUN elements: the error of a sum grows with its length.
            if rms == 0:
                for j in range(0, n, RUN):
                    m += total(off(row, j), imin(RUN, n - j))
                m /= n
            # Squares are of differences from the mean: sum x^2 - n mean^2 would cancel where the
            # mean is large.  The row is still in the cache, so this second pass costs little.
            for j in range(0, n, RUN):
                s1, s2 = apart(off(row, j), m, imin(RUN, n - j))
                rest += s1
                square += s2
            if rms == 0:
                # The first mean was rounded: sum (x - m) is not quite 0.  With the true mean
                # m + rest / n, sum (x - mean)^2 = sum (x - m)^2 - rest^2 / n.
                m += rest / n
                square -= rest * rest / n
            mean[r] = m
            inv[r] = inverse(square / n, epsilon, 1)
            # Read back, so that y has the mean and inv of type T that the gradient will read.
            write(
                x=row, mean=mean[r], inv=inv[r], scale=scale, b=b, y=off(y, r * n), length=n,
            )  # fmt: skip

    return body


# Forward: y = h scale + B with h = (x - mean) inv; so dh = dy scale.  g is dh, d is x - mean.
_GRADS = {
    "": "dy:S[] x:S[] mean inv {} -> g = dy; d = x - mean; ",
    "s": "dy:S[] x:S[] mean inv scale[] {} -> g = dy * scale; d = x - mean; ",
}


@kernel(
    """
    dy, x: S[rows, n] if parts   scale: T[n] if form and parts   mean: T[rows] if not rms and parts
    inv: T[rows] if parts   dx: out S[rows, n] if parts may alias dy, x
    part: out T[parts, 2, n] if wants   rows, n, parts: i64
    """,
    form=("", "s"),
)
def layer_norm_grad(target: Target, T: str, rms: int, form: str, wants: int, S: str = "") -> Body:
    """dx[r] of layer_norm, and part[p] = sums of dy h and of dy over the rows of part p.

    form: "s" where there is a scale.  wants: whether the sums are made.  S: how dy, x and dx are
    stored.
    """
    # Forward: mean and inv are functions of every x of the row; their share of dx is the mean of g
    # and h times the mean of g h, for which `sums` folds g and g h.
    sums = loop(T, _GRADS[form].format("") + "sum(g); sum(g * d * inv)", S)
    write = loop(
        T, _GRADS[form].format("level slope") + "dx:S[] = inv * (g - level - d * inv * slope)", S
    )
    # Forward: y = h scale + B in every row; so dscale = sum of dy h over rows, dB = sum of dy.
    add = loop(T, _GRADS[""].format("ds[] db[]") + "ds[] = ds + g * d * inv; db[] = db + g", S)
    zero = Intrinsic("zero", (T,))

    def body(dy, x, scale, mean, inv, dx, part, rows, n, parts, tid, nthreads):
        begin, end = share(parts, tid, nthreads)
        for p in range(begin, end):
            into = off(part, p * 2 * n)
            if wants != 0:
                zero(into, 2 * n)
            first, last = share(rows, p, parts)
            for r in range(first, last):
                top, row, m, i = off(dy, r * n), off(x, r * n), 0.0, inv[r]
                if rms == 0:
                    m = mean[r]
                level, slope = 0.0, 0.0
                for j in range(0, n, RUN):
                    s0, s1 = sums(
                        dy=off(top, j), x=off(row, j), mean=m, inv=i, scale=off(scale, j),
                        length=imin(RUN, n - j),
                    )  # fmt: skip
                    level += s0
                    slope += s1
                if rms != 0:  # the forward pass subtracted no mean
                    level = 0.0
                # Before dx is written, which may be dy's memory or x's.
                if wants != 0:
                    add(dy=top, x=row, mean=m, inv=i, ds=into, db=off(into, n), length=n)
                write(
                    dy=top, x=row, mean=m, inv=i, scale=scale, level=level / n, slope=slope / n,
                    dx=off(dx, r * n), length=n,
                )  # fmt: skip

    return body


# --- lowering


def _read_axis(site: Site, i: int = 0) -> int:
    return normalise_axis(site, site.attrs["axis"], site.type(i).rank)


def _count_rows(t: TensorType, axis: int) -> tuple[int, int]:
    return math.prod(t.dims[:axis]), math.prod(t.dims[axis:])


def _read_rms(site: Site) -> int:
    return int("Simplified" in site.op or bool(site.attrs.get("rms")))


def _lower(lowering: Lowering) -> None:
    """Outputs y, mean and inv; y and inv of what calls them simplified."""
    x, y = lowering.x(0), lowering.y(0)
    rows, n = _count_rows(x.type, _read_axis(lowering.site))
    if not rows:
        return
    if not n:
        lowering.site.wrong(f"input 0 is {x.type}, whose rows have no elements and so no mean")
    T, S = find_stored(x)
    rms = _read_rms(lowering.site)
    # RMS forms have no mean among their outputs.
    at = 1 if "Simplified" in lowering.site.op else 2
    mean = lowering.y(1) if at == 2 and lowering.wants(1) else lowering.temp(T, (rows,))
    inv = lowering.y(at) if lowering.wants(at) else lowering.temp(T, (rows,))
    scale = lowering.x(1) if lowering.site.has(1) else None
    b = lowering.x(2) if lowering.site.has(2) else None
    form = ("s" if scale else "") + ("b" if b else "")
    lowering.call(
        layer_norm(T, rms, form, *S), x=x, scale=scale, b=b, y=y, mean=mean, inv=inv, rows=rows,
        n=n, epsilon=float(lowering.site.attrs["epsilon"]),
    )  # fmt: skip


def _lower_grad(lowering: Lowering) -> None:
    """Inputs dy, x, scale except for Standardize, mean except for Simplified, inv."""
    dy, x, dx = lowering.x(0), lowering.x(1), lowering.y(0)
    rows, n = _count_rows(x.type, _read_axis(lowering.site, 1))
    wants = int(lowering.wants(1) or lowering.wants(2))
    if not n or not (rows or wants):
        return
    T, S = find_stored(x)
    rms = _read_rms(lowering.site)
    count = len(lowering.site.ins)
    scale = lowering.x(2) if lowering.site.op != "StandardizeGrad" else None
    inv = lowering.x(count - 1)
    mean = None if rms else lowering.x(count - 2)
    # Parts follow from the size, not from the threads: dscale and dB are the same for any number of
    # them.  64 at most, as each costs 2 n elements and their sum.
    parts = max(min(rows * n // PART, 64, rows), 1) if wants else rows
    part = lowering.temp(T, (parts, 2, n)) if wants else None
    lowering.call(
        layer_norm_grad(T, rms, "s" if scale else "", wants, *S), dy=dy, x=x, scale=scale,
        mean=mean, inv=inv, dx=dx, part=part, rows=rows, n=n, parts=parts,
    )  # fmt: skip
    for k in (0, 1):
        if lowering.wants(k + 1):
            lowering.call(
                channel_sums_join(T), part=part, y=lowering.y(k + 1), parts=parts, stride=2 * n,
                begin=k * n, folds=1, channels=n,
            )  # fmt: skip


# --- shapes


def infer_kept(x: TensorType, axis: int) -> TensorType:
    """Return the type of mean and inv: the axes that are normalised are 1."""
    return x.but((*x.shape[:axis], *[1] * (x.rank - axis)))


def _infer(site: Site) -> tuple[TensorType, ...]:
    x = site.real(0)
    axis = _read_axis(site)
    for i in range(1, len(site.ins)):
        if site.has(i):
            _check_vector(site, i, x, axis)
    out = (x.but(), infer_kept(x, axis), infer_kept(x, axis))
    return out[:: 2 if "Simplified" in site.op else 1][: site.n_outs]


def _check_vector(site: Site, i: int, x: TensorType, axis: int) -> None:
    """Check that input i has the shape of x from the axis on, or broadcasts to it."""
    t, shape = site.type(i), x.shape[axis:]
    pairs = zip(t.shape[::-1], shape[::-1], strict=False)
    known = all(a in (1, b) or isinstance(a, str) or isinstance(b, str) for a, b in pairs)
    if t.rank > len(shape) or not known:
        site.wrong(
            f"input {i} is {t}; expected the shape {list(shape)}, or one that broadcasts to it"
        )
    if t.dtype != x.dtype:
        site.fail(f"input {i} is {t}, but X is {x.dtype}", "one element type")


def infer_grad(site: Site) -> tuple[TensorType, ...]:
    x = site.real(1)
    axis = _read_axis(site, 1)
    site.shaped(0, x.shape)
    if site.op == "StandardizeGrad":
        return (x.but(),)
    site.shaped(2, x.shape[axis:])
    return (x.but(), *[x.but(x.shape[axis:])] * 2)[: site.n_outs]


# --- expansions and gradients


def _whole(nodes: Nodes, i: int) -> str:
    """Return input i broadcast to the shape that X has from the axis on."""
    site, axis = nodes.site, _read_axis(nodes.site)
    shape: tuple[Dim, ...] = site.type(0).shape[axis:]
    if site.type(i).shape == shape:
        return nodes.x(i)
    return str(nodes.op("Expand", nodes.x(i), nodes.op("Shape", nodes.x(0), start=axis)))


def _expand(nodes: Nodes) -> tuple[str, ...] | None:
    """Expand scale and B to the normalised shape where they only broadcast to it."""
    site = nodes.site
    shape = site.type(0).shape[_read_axis(site) :]
    given = [i for i in (1, 2) if site.has(i)]
    if all(site.type(i).shape == shape for i in given):
        return None
    vectors = [_whole(nodes, i) if i in given else "" for i in (1, 2)]
    made = nodes.op(site.op, nodes.x(0), *vectors, outputs=max(site.n_outs, 2), **site.attrs)
    return tuple(made[: site.n_outs])


def _refuse_statistics(site: Site, dys: Sequence[str | None]) -> None:
    """Refuse gradients of the outputs beside Y: rules leave them out."""
    if any(dys):
        site.fail("the loss depends on the mean or the deviation", "a loss of Y alone")


def _grad(grad: Grad, dy: str, *others: str | None) -> tuple[str | None, ...]:
    """dX, dScale, dB = LayerNormalizationGrad(dY, X, Scale, Mean, InvStdDev)."""
    site = grad.site
    _refuse_statistics(site, others)
    axis = site.attrs["axis"]
    kept = [] if "Simplified" in site.op else [grad.y(1, "_saved_mean")]
    kept.append(grad.y(len(kept) + 1, "_saved_inv_std"))
    made = grad.op(
        f"{site.op}Grad",
        dy,
        grad.x(0),
        _whole(grad, 1),
        *kept,
        domain=MS,
        axis=axis,
        outputs=2 if "Simplified" in site.op else 3,
    )
    shape = site.type(0).shape[_read_axis(site) :]
    vectors = (grad.reduce_to(made[i], i, shape) if grad.wants(i) else None for i in (1, 2))
    return (made[0], *vectors)


def _grad_standard(grad: Grad, dy: str, *others: str | None) -> tuple[str | None, ...]:
    """dX = StandardizeGrad(dY, X, Mean, InvStdDev)."""
    _refuse_statistics(grad.site, others)
    kept = (grad.y(1, "_mean"), grad.y(2, "_inv_std"))
    attrs = {k: v for k, v in grad.site.attrs.items() if k != "epsilon"}
    return (grad.op("StandardizeGrad", dy, grad.x(0), *kept, domain=OURS, **attrs),)


def _rms(nodes: Nodes) -> tuple[str, ...]:
    """RMSNormalization becomes SimplifiedLayerNormalization, which also outputs InvStdDev."""
    attrs = {k: nodes.site.attrs[k] for k in ("axis", "epsilon")}
    made = nodes.op("SimplifiedLayerNormalization", nodes.x(0), nodes.x(1), outputs=2, **attrs)
    return (made[0],)


LAYER = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
AXIS = {"axis": -1}
# Of the forward node, which onnxruntime-training gives its gradient as well.
UNREAD: dict[str, Kind] = {"epsilon": "float", "stash_type": "int"}
_ROWS_GRAD = Storage(frozenset({0, 1}), frozenset({0}), alike=True)
OPS = (
    Op(
        name="LayerNormalization",
        roles=NORM,
        attrs=LAYER,
        infer=_infer,
        lower=_lower,
        calls=(layer_norm,),
        storage=ALIKE,
        expand=_expand,
        becomes="Expand Shape LayerNormalization",
        grad=_grad,
        samples=Samples.NORMALISED,
        is_cheap=True,
    ),
    Op(
        name="SimplifiedLayerNormalization",
        roles={1: Role.SCALE},
        inputs=(2, 2),
        outputs=2,
        attrs=LAYER,
        infer=_infer,
        lower=_lower,
        calls=(layer_norm,),
        storage=ALIKE,
        expand=_expand,
        becomes="Expand Shape SimplifiedLayerNormalization",
        grad=_grad,
        samples=Samples.NORMALISED,
        is_cheap=True,
    ),
    Op(
        name="RMSNormalization",
        roles={1: Role.SCALE},
        since=23,
        attrs=LAYER,
        infer=_infer,
        expand=_rms,
        becomes="SimplifiedLayerNormalization",
        samples=Samples.NORMALISED,
    ),
    Op(
        name="Standardize",
        domain=OURS,
        inputs=(1, 1),
        outputs=3,
        attrs={"axis": -1, "epsilon": 1e-5, "rms": 0},
        infer=_infer,
        lower=_lower,
        calls=(layer_norm,),
        storage=ALIKE,
        grad=_grad_standard,
    ),
    *(
        Op(
            name=f"{name}Grad",
            domain=MS,
            inputs=(count + 2, count + 2),
            outputs=count,
            gradient_of=name,
            takes=UNREAD,
            attrs=AXIS,
            infer=infer_grad,
            lower=_lower_grad,
            calls=(layer_norm_grad, channel_sums_join),
            storage=_ROWS_GRAD,
            names_all_outputs=True,
        )
        # Without a mean there is neither a bias, whose gradient is an output, nor a mean to read.
        for name, count in (("LayerNormalization", 3), ("SimplifiedLayerNormalization", 2))
    ),
    Op(
        name="StandardizeGrad",
        domain=OURS,
        inputs=(4, 4),
        outputs=1,
        gradient_of=f"{OURS}::Standardize",
        attrs={"axis": -1, "rms": 0},
        infer=infer_grad,
        lower=_lower_grad,
        calls=(layer_norm_grad,),
        storage=_ROWS_GRAD,
    ),
)
KERNELS = (layer_norm, layer_norm_grad)
