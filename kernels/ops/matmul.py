"""Gemm, MatMul and their fused forms: all one blocked product.

Forward   Y = act(alpha op(A) op(B) + beta C)          ONNX Gemm-13, MatMul-13
Backward  dA = dY op(B)^T, dB = op(A)^T dY, dC = dY summed to C; keeps A and B, never Y
Error     a sum of K products in K/kc partial sums, tools/dev/cases/matmul.py
Source    the kernel: gemm.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from engine.base.element_types import FLOATS
from engine.base.errors import DTypeError
from engine.kernels.loops.gemm import GEMM_KERNELS, lower_gemm
from engine.kernels.loops.map import lower_map, update
from engine.kernels.ops.epilogue import IN_GEMM, activate, list_plain_attributes, read_parameters
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.facts import GEMM, MATMUL, WEIGHT_AND_BIAS, Role, Samples, Storage
from engine.kernels.vocabulary.op import (
    MS,
    Dim,
    Grad,
    Lowering,
    Nodes,
    Op,
    Operand,
    Site,
    TensorType,
    find_stored,
)
from engine.kernels.vocabulary.shape_rules import broadcast, fits

# --- Gemm


def check_floats(site: Site, *inputs: int) -> str:
    kinds = {site.type(i).dtype for i in inputs}
    if len(kinds) > 1 or not kinds <= set(FLOATS):
        raise DTypeError(f"{site.where()}: expected one of {', '.join(FLOATS)} for all inputs")
    return kinds.pop()


def _gemm_infer(site: Site) -> tuple[TensorType, ...]:
    a, b = site.type(0), site.type(1)
    if a.rank != 2 or b.rank != 2:
        site.wrong(f"A is {a} and B is {b}; expected matrices")
    (m, ka), (kb, n) = a.shape, b.shape
    if site.attrs["transA"]:
        m, ka = ka, m
    if site.attrs["transB"]:
        kb, n = n, kb
    if isinstance(ka, int) and isinstance(kb, int) and ka != kb:
        site.wrong(f"A has {ka} columns, but B has {kb} rows")
    out = TensorType(check_floats(site, 0, 1), (m, n))
    if site.has(2):
        check_floats(site, 0, 2)
        if not fits(site.type(2), out.shape):
            site.wrong(f"C is {site.type(2)}, which does not broadcast to {out}")
    return (out,)


def _fused_gemm_infer(site: Site) -> tuple[TensorType, ...]:
    read_parameters(site)
    return _gemm_infer(site)


def _fused_gemm_expand(nodes: Nodes) -> tuple[str, ...]:
    """Expand to Gemm and the activation; planning makes those with a Relu one kernel again."""
    site = nodes.site
    c = nodes.x(2) if site.has(2) else ""
    y = nodes.op("Gemm", nodes.x(0), nodes.x(1), c, **list_plain_attributes(site.attrs))
    return (activate(nodes, y),)


def _gemm_lower(lowering: Lowering) -> None:
    site = lowering.site
    a, b, y = lowering.x(0), lowering.x(1), lowering.y(0)
    attrs = site.attrs
    trans = (bool(attrs["transA"]), bool(attrs["transB"]))
    m, n = y.type.dims
    k = a.type.dims[0 if trans[0] else 1]
    alpha, beta = attrs["alpha"], attrs["beta"]
    c = lowering.x(2) if site.has(2) and beta != 0 else None
    relu = attrs.get("activation", "Relu") == "Relu" and site.op == "FusedGemm"
    # The product adds a row to every row of Y as it stores it; any other C needs a pass of its own.
    row = c is None or (beta == 1 and c.type.size == n and c.type.dims[-1:] == (n,))
    if alpha == 1 and row:
        lower_gemm(
            lowering,
            a,
            b,
            y,
            mnk=(m, n, k),
            trans=trans,
            bias=c,
            relu=relu,
            reset=lowering.reset(0),
        )
        return
    # alpha, beta or a whole matrix C: the product goes to memory and is read back by a map, which
    # planning fuses with what follows.
    product = lowering.temp(find_stored(y)[0], (m, n))
    lower_gemm(lowering, a, b, product, mnk=(m, n, k), trans=trans)
    formula: Expr = ("mul", ("const", float(alpha)), ("in", 0))
    ins = [product]
    if c is not None:
        formula = ("add", formula, ("mul", ("const", float(beta)), ("in", 1)))
        ins.append(c)
    if relu:
        formula = ("where", ("lt", formula, ("const", 0.0)), ("const", 0.0), formula)
    finish(lowering, formula, ins, y)


def finish(lowering: Lowering, formula: Expr, ins: list[Operand], y: Operand) -> None:
    """Append y = formula(ins...), or y += formula(ins...) when output 0 is accumulated."""
    flag = lowering.reset(0)
    if flag is None:
        lower_map(lowering, [formula], ins, [y])
        return
    # The gradient buffer may hold a sum already: the value is made first, then it is added to the
    # buffer or takes its place, as the flag says.
    value = lowering.temp(y.type.dtype, y.type.dims)
    lower_map(lowering, [formula], ins, [value])
    add: Expr = ("add", ("in", 0), ("in", 1))
    scalar = Operand(flag.name, TensorType("b1", ()))
    update(lowering, ("where", ("in", 2), ("in", 1), add), [y, value, scalar], y)


def _gemm_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dA = alpha dY op(B)^T, dB = alpha op(A)^T dY (transposed where stored so), dC = beta dY."""
    attrs = grad.site.attrs
    ta, tb, alpha = attrs["transA"], attrs["transB"], attrs["alpha"]

    # Forward: Y = alpha op(A) op(B) + beta C; so d op(A) = alpha dY op(B)^T and d op(B) = alpha
    # op(A)^T dY.  The gradient of a transposed operand is the transposed product: its factors
    # exchange.
    def multiply(a: str, b: str, trans_a: int, trans_b: int) -> str:
        flags: dict[str, Any] = {"transA": int(trans_a), "transB": int(trans_b)}
        return str(grad.op("Gemm", a, b, alpha=alpha, beta=0.0, **flags))

    da = db = dc = None
    if grad.wants(0):
        da = multiply(grad.x(1), dy, tb, 1) if ta else multiply(dy, grad.x(1), 0, not tb)
    if grad.wants(1):
        db = multiply(dy, grad.x(0), 1, ta) if tb else multiply(grad.x(0), dy, not ta, 0)
    if grad.site.has(2) and grad.wants(2):
        # Forward: C was broadcast to Y; so dC = beta dY summed back to C's shape.
        scaled = dy
        if attrs["beta"] != 1:
            scaled = grad.op("Mul", dy, grad.like(attrs["beta"], 0))
        dc = grad.reduce_to(scaled, 2)
    return (da, db, dc)


# --- MatMul


def _find_shapes(site: Site) -> tuple[tuple[Dim, ...], tuple[Dim, ...], bool, bool]:
    """Return the shapes of op(A) and op(B) as matrices, and whether each was a vector."""
    a, b = (_with_batch_first(site, i) for i in (0, 1))
    if not a or not b:
        site.wrong("an operand is a scalar; expected a vector or a matrix at least")
    va, vb = len(a) == 1, len(b) == 1
    a = (1, *a) if va else a
    b = (*b, 1) if vb else b
    if site.attrs.get("transA") and not va:
        a = (*a[:-2], a[-1], a[-2])
    if site.attrs.get("transB") and not vb:
        b = (*b[:-2], b[-1], b[-2])
    if isinstance(a[-1], int) and isinstance(b[-2], int) and a[-1] != b[-2]:
        site.wrong(f"A has {a[-1]} columns, but B has {b[-2]} rows")
    return a, b, va, vb


_TRANS_BATCH = ("transBatchA", "transBatchB")


def _find_order(site: Site, i: int) -> list[int]:
    """Return the axes of operand i in the order of a product, the batch first.

    transBatchA and transBatchB say that the operand is stored as [d0, batch..., d1].
    """
    ranks = [site.type(k).rank for k in (0, 1)]
    if not any(site.attrs.get(name) for name in _TRANS_BATCH):
        return list(range(ranks[i]))
    if ranks[0] != ranks[1] or ranks[0] < 3:
        site.fail(
            f"transBatchA or transBatchB is set for operands of ranks {ranks[0]} and {ranks[1]}",
            "operands of one rank of 3 or more",
        )
    if not site.attrs.get(_TRANS_BATCH[i]):
        return list(range(ranks[i]))
    return [*range(1, ranks[i] - 1), 0, ranks[i] - 1]


def _with_batch_first(site: Site, i: int) -> tuple[Dim, ...]:
    """Return the shape of operand i in the order of a product."""
    return tuple(site.type(i).shape[axis] for axis in _find_order(site, i))


def _operand(nodes: Nodes, i: int) -> str:
    """Return operand i in the order of a product."""
    perm = _find_order(nodes.site, i)
    x = nodes.x(i)
    return x if perm == sorted(perm) else str(nodes.op("Transpose", x, perm=perm))


def _fused_matmul_expand(nodes: Nodes) -> tuple[str, ...] | None:
    """Return a product of transposed operands, if the batch axes of one are not the first."""
    site = nodes.site
    a, b = _operand(nodes, 0), _operand(nodes, 1)
    if (a, b) == (nodes.x(0), nodes.x(1)):
        return None
    flags = {name: site.attrs.get(name, _FUSED[name]) for name in ("alpha", "transA", "transB")}
    return (str(nodes.op("FusedMatMul", a, b, domain=MS, **flags)),)


def _matmul_infer(site: Site) -> tuple[TensorType, ...]:
    a, b, va, vb = _find_shapes(site)
    kind = check_floats(site, 0, 1)
    lead = broadcast(site, TensorType(kind, a[:-2]), TensorType(kind, b[:-2]))
    tail = (*(() if va else a[-2:-1]), *(() if vb else b[-1:]))
    return (TensorType(kind, (*lead, *tail)),)


def _matmul_lower(lowering: Lowering) -> None:
    site = lowering.site
    shape_a, shape_b, va, vb = _find_shapes(site)
    m, k, n = (*_require_known(shape_a[-2:]), *_require_known(shape_b[-1:]))
    y = lowering.y(0)
    alpha = float(site.attrs.get("alpha", 1.0))
    trans = (
        bool(site.attrs.get("transA")) and not va,
        bool(site.attrs.get("transB")) and not vb,
    )
    lead = _require_known(
        broadcast(site, TensorType("f32", shape_a[:-2]), TensorType("f32", shape_b[:-2]))
    )
    plain_b = all(d == 1 for d in shape_b[:-2])
    batch: tuple[Any, Any, Any]
    # One large product instead of many small ones: B is packed once.
    if plain_b and not trans[0]:  # one B for all: the batch of A is more rows
        m, batch = m * math.prod(lead), ((), (), ())
    else:
        batch = (lead, _find_batch_strides(shape_a, lead), _find_batch_strides(shape_b, lead))
    if alpha == 1:
        lower_gemm(
            lowering,
            lowering.x(0),
            lowering.x(1),
            y,
            mnk=(m, n, k),
            trans=trans,
            batch=batch,
            reset=lowering.reset(0),
        )
        return
    product = lowering.temp(find_stored(y)[0], y.type.dims)
    lower_gemm(
        lowering, lowering.x(0), lowering.x(1), product, mnk=(m, n, k), trans=trans, batch=batch
    )
    finish(lowering, ("mul", ("const", alpha), ("in", 0)), [product], y)


def _require_known(shape: Sequence[Dim]) -> list[int]:
    """Return the dimensions of a shape that is known."""
    return [d for d in shape if isinstance(d, int)]


def _find_batch_strides(shape: Sequence[Dim], lead: Sequence[int]) -> list[int]:
    # Stride 0 along batch axes that are broadcast: the operand is read again, not copied.
    own = _require_known(shape)
    step, out = own[-1] * own[-2], []
    for d in reversed(own[:-2]):
        out.append(0 if d == 1 else step)
        step *= d
    return [0] * (len(lead) - len(out)) + out[::-1]


def _matmul_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dA = dY B^T, dB = A^T dY over the last two axes, summed over broadcast batch axes.

    A vector is seen as a matrix for the rule and its gradient as a vector again.
    """
    site = grad.site
    a, b = site.type(0), site.type(1)
    ta, tb = int(site.attrs.get("transA", 0)), int(site.attrs.get("transB", 0))
    alpha = float(site.attrs.get("alpha", 1.0))
    xa, xb, va, vb = _operand(grad, 0), _operand(grad, 1), a.rank == 1, b.rank == 1
    if va:
        # A vector A is a matrix of one row, B one of one column; dY gets the axis that Y dropped.
        xa, ta = grad.op("Unsqueeze", xa, grad.const([0], "i64")), 0
        dy = grad.op("Unsqueeze", dy, grad.const([-1 if vb else -2], "i64"))
    if vb:
        xb, tb = grad.op("Unsqueeze", xb, grad.const([1], "i64")), 0
        dy = grad.op("Unsqueeze", dy, grad.const([-1], "i64"))

    def multiply(p: str, q: str, trans_p: int, trans_q: int) -> str:
        flags: dict[str, Any] = {"transA": int(trans_p), "transB": int(trans_q), "alpha": alpha}
        return str(grad.op("FusedMatMul", p, q, domain=MS, **flags))

    da = db = None
    if grad.wants(0):
        da = multiply(xb, dy, tb, 1) if ta else multiply(dy, xb, 0, not tb)
        da = _fit(grad, da, 0, squeeze=-2 if va else None, batched=b.rank > 2)
    if grad.wants(1):
        # Forward: all matrices of A's batch met the same B; so dB sums over them.  With a batch of
        # one B that sum is the product of all rows at once; otherwise a product for each, then a
        # sum.
        flat = b.rank == 2 and not vb and not ta and a.rank > 2 and alpha == 1
        if flat and all(isinstance(d, int) for d in b.shape):
            db = _flat_weight_grad(grad, xa, dy, tb)
        else:
            db = multiply(dy, xa, 1, ta) if tb else multiply(xa, dy, not ta, 0)
            db = _fit(grad, db, 1, squeeze=-1 if vb else None, batched=a.rank > 2)
    return (da, db)


def _flat_weight_grad(grad: Grad, xa: str, dy: str, tb: int) -> str:
    """dB of one matrix B under a batch of A: all rows of the batch in one product."""
    # The rows of all matrices lie one after another, so this is a view.
    k, n = grad.site.type(1).shape[::-1] if tb else grad.site.type(1).shape
    rows = grad.op("Reshape", xa, grad.const([-1, k], "i64"))
    grads = grad.op("Reshape", dy, grad.const([-1, n], "i64"))
    pair = (grads, rows) if tb else (rows, grads)
    return str(grad.op("Gemm", *pair, transA=1, transB=0, alpha=1.0, beta=0.0))


def _fit(grad: Grad, d: str, i: int, *, squeeze: int | None, batched: bool) -> str:
    """Drop the axis a vector got, and sum over batch axes input i was broadcast along.

    The axes are left in the order in which the operand is stored.
    """
    t = grad.site.type(i)
    if squeeze is not None:
        other = grad.site.type(1 - i)
        if other.rank > 2:
            axes = grad.const(list(range(other.rank - 2)), "i64")
            d = grad.op("ReduceSum", d, axes, keepdims=0)
        return str(grad.op("Squeeze", d, grad.const([squeeze], "i64")))
    shape = _with_batch_first(grad.site, i)
    if batched:
        a, b, _, _ = _find_shapes(grad.site)
        # The product has the batch axes of both; those along which this operand was broadcast are
        # summed.
        lead = broadcast(grad.site, TensorType(t.dtype, a[:-2]), TensorType(t.dtype, b[:-2]))
        shape = (*lead, *shape[-2:])
    order = _find_order(grad.site, i)
    if order != sorted(order):
        # Back to the order of storage: the gradient has the operand's own axes.
        back = [order.index(axis) for axis in range(t.rank)]
        d = grad.op("Transpose", d, perm=back)
        shape = tuple(shape[axis] for axis in back)
    return grad.reduce_to(d, i, shape) if batched else d


_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
_FUSED = {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}
_FACTORS = Storage(frozenset({0, 1}), frozenset({0}))

OPS = (
    Op(
        name="Gemm",
        roles=WEIGHT_AND_BIAS,
        product=GEMM,
        by_reference=True,
        attrs=_GEMM,
        infer=_gemm_infer,
        lower=_gemm_lower,
        calls=GEMM_KERNELS,
        storage=_FACTORS,
        grad=_gemm_grad,
        accumulates=(0,),
        samples=Samples.GEMM,
    ),
    Op(
        name="FusedGemm",
        roles=WEIGHT_AND_BIAS,
        product=GEMM.as_part(),
        domain=MS,
        inputs=(2, 3),
        outputs=1,
        attrs=_GEMM | {"activation": "Relu"},
        infer=_fused_gemm_infer,
        takes={f"activation_{name}": "float" for name in ("alpha", "beta", "gamma")},
        lower=_gemm_lower,
        calls=GEMM_KERNELS,
        storage=_FACTORS,
        expand=_fused_gemm_expand,
        becomes=f"Gemm {' '.join(IN_GEMM)}",
    ),
    Op(
        name="MatMul",
        roles={0: Role.WEIGHT, 1: Role.WEIGHT},
        product=MATMUL,
        by_reference=True,
        infer=_matmul_infer,
        lower=_matmul_lower,
        calls=GEMM_KERNELS,
        storage=_FACTORS,
        grad=_matmul_grad,
        accumulates=(0,),
        samples=Samples.MATMUL,
    ),
    Op(
        name="FusedMatMul",
        product=MATMUL,
        domain=MS,
        inputs=(2, 2),
        outputs=1,
        attrs=_FUSED,
        infer=_matmul_infer,
        expand=_fused_matmul_expand,
        becomes=f"Transpose {MS}::FusedMatMul",
        lower=_matmul_lower,
        calls=GEMM_KERNELS,
        storage=_FACTORS,
        grad=_matmul_grad,
        accumulates=(0,),
    ),
)
