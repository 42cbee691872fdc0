"""Random numbers: dropout, uniform and normal tensors, samples of distributions.

Forward   (w0, w1) = Philox2x32-10(counter (i, step), key), the key being Philox2x32-10(counter
          seed, key node): nothing depends on threads or order.  Of n elements number i is made of
          w0 and number ceil(n / 2) + i of w1: a uniform u = w / 2^32 in [0, 1), of 24 bits in
          f32; or both are the two normals of Box and Muller;
          dropout: mask = u >= ratio, y = x / (1 - ratio) where the mask is set, 0 elsewhere;
          a RandomMask `of` the name of another is that mask, drawn again instead of kept
Backward  of dropout: dx = dy / (1 - ratio) where the mask is set, 0 elsewhere; others stop
Error     1 - u of a normal is a multiple of 2^-24 in f32, 2^-32 in f64: |x| <= 5.8, 6.7
Source    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011;
          Srivastava et al., "Dropout", JMLR 2014

A `seed` attribute takes the place of the seed of the run and of the node's own number.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.base.element_types import FLOATS, NUMPY, OF_ONNX, ONNX_CODE, name_onnx_type
from engine.kernels.machine.target import Target
from engine.kernels.ops.elementwise import read_dtype
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.facts import Samples
from engine.kernels.vocabulary.formula import fold, infer
from engine.kernels.vocabulary.kernel import Body, Intrinsic, kernel, off, share_blocks
from engine.kernels.vocabulary.op import MS, OURS, Grad, Lowering, Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.row_program import loop
from engine.plan.context import RANDOM

# The two elements made of the words w0 and w1.
Pair = tuple[str, str]
UNIFORM: dict[str, Pair] = {
    "f32": ("cast(f32, w0 >> 8) * 5.9604644775390625e-08",
            "cast(f32, w1 >> 8) * 5.9604644775390625e-08"),
    "f64": ("cast(f64, w0) * 2.3283064365386963e-10", "cast(f64, w1) * 2.3283064365386963e-10"),
}  # fmt: skip


def _box_muller(radius: str, angle: str) -> Pair:
    return (f"{radius} * cos({angle})", f"{radius} * sin({angle})")


NORMAL: dict[str, Pair] = {
    "f32": _box_muller(
        "sqrt(-2 * log((cast(f32, w0 >> 8) + 1) * 5.9604644775390625e-08))",
        "cast(f32, w1 >> 8) * 3.7450702829239286e-07",
    ),
    "f64": _box_muller(
        "sqrt(-2 * log((cast(f64, w0) + 1) * 2.3283064365386963e-10))",
        "cast(f64, w1) * 1.4629180792671596e-09",
    ),
}


# --- the kernel


def _program(T: str, *formulas: str) -> Intrinsic:
    """Return the loop of formulas of w0 and w1; inputs: element, step and key."""
    words = "; ".join(f"w{i} = philox{i}(element, step, key)" for i in (0, 1))
    outs = "; ".join(f"y[] = {formula}" for formula in formulas)
    return loop(T, f"element:u32.. step:u32 key:u32 -> {words}; {outs}")


# Compiled for libraries: all other random numbers are formulas of these.
PLAIN = tuple((T, *pair) for table in (UNIFORM, NORMAL) for T, pair in table.items())


@kernel(
    "y: out T[n]  noise: i64[1 record]  n: i64  node: any i64  fixed: i64  seed: any i64",
    words={"noise": RANDOM},
    params=PLAIN,
)
def draw(target: Target, T: str, first: str, second: str) -> Body:
    """y[i], y[half + i] = first(w0, w1), second(w0, w1) of element i, half = ceil(n / 2).

    noise: seed and step; `fixed`: `seed` is the seed.
    """
    pair, single = _program(T, first, second), _program(T, first)
    mix = loop("u32", "low high key -> philox0(low, high, key)")

    def body(y, noise, n, node, fixed, seed, tid, nthreads):
        if fixed == 0:
            seed = noise.seed
        # Every node has a key of its own, so draws do not depend on the order of nodes.
        key = mix(seed, seed >> 32, node, 1)
        # A draw has two words: element i takes the first, element half + i the second, so that both
        # halves are written by vectors.
        pairs = n >> 1
        half = n - pairs
        begin, end = share_blocks(pairs, 64, tid, nthreads)
        pair(begin, noise.step, key, off(y, begin), off(y, half + begin), end - begin)
        # An odd number of elements: the last one uses the first word of a draw of its own.
        if pairs < half and tid == 0:
            single(pairs, noise.step, key, off(y, pairs), 1)

    return body


def _lower(formula: Callable[[Site, str], Pair]) -> Callable[[Lowering], None]:
    def lower(lowering: Lowering) -> None:
        y, seed = lowering.y(0), lowering.site.attrs.get("seed")
        if y.type.size >= 2**32:
            lowering.site.fail(
                f"the tensor has {y.type.size} random numbers",
                "fewer than 2**32: counters have 32 bits",
            )
        if not y.type.size:
            return
        # an expansion's node has a name of its own, whichever of its outputs are wanted
        name = lowering.site.name if lowering.site.domain else y.name
        node, fixed, own = zlib.crc32(name.encode()), 0, 0
        if seed is not None:
            node, fixed, own = 0, 1, zlib.crc32(repr(float(seed)).encode())
        lowering.call(
            draw(y.type.dtype, *formula(lowering.site, y.type.dtype)),
            y=y, noise=lowering.noise(), n=y.type.size, node=node, fixed=fixed, seed=own,
        )  # fmt: skip

    return lower


# --- uniform and normal


def _read_dtype(site: Site, default: int | None) -> str:
    code = site.attrs.get("dtype", default)
    dtype = site.type(0).dtype if code is None else OF_ONNX.get(code)
    if dtype not in FLOATS:
        site.fail(
            f"the element type of the random numbers is {dtype or name_onnx_type(code)}",
            ", ".join(FLOATS),
        )
    return dtype


def _shaped(site: Site) -> tuple[TensorType, ...]:
    return (TensorType(_read_dtype(site, 1), tuple(int(d) for d in site.attrs["shape"])),)


def _like(site: Site) -> tuple[TensorType, ...]:
    return (TensorType(_read_dtype(site, None), site.type(0).shape),)


def _scaled(table: dict[str, Pair], scale: str, shift: str) -> Callable[[Site, str], Pair]:
    """Return the formulas of a table, times one attribute plus another."""

    def formula(site: Site, T: str) -> Pair:
        low, factor = float(site.attrs[shift]), float(site.attrs[scale])
        factor -= low if scale == "high" else 0.0
        first, second = (f"{text} * {factor!r} + {low!r}" for text in table[T])
        return first, second

    return formula


def _random(name: str, infer: Callable[..., Any], table: dict[str, Pair], **attrs: float) -> Op:
    scale, shift = attrs
    return Op(
        name=name,
        attrs=attrs,
        infer=infer,
        lower=_lower(_scaled(table, scale, shift)),
        calls=(draw,),
        type_only=frozenset((0,)),
        no_gradient=frozenset((0,)),
        is_random=True,
    )


# --- samples


def _read_seed(site: Site) -> dict[str, Any]:
    return {"seed": site.attrs["seed"]} if "seed" in site.attrs else {}


def _bernoulli_infer(site: Site) -> tuple[TensorType, ...]:
    x = site.real(0)
    return (x.but(dtype=read_dtype(site, site.attrs.get("dtype", ONNX_CODE[x.dtype]))),)


def _bernoulli(nodes: Nodes) -> tuple[str, ...]:
    """Y = U < X"""
    source = ONNX_CODE[nodes.site.real(0).dtype]
    u = nodes.op("RandomUniformLike", nodes.x(0), dtype=source, **_read_seed(nodes.site))
    hit = nodes.op("Less", u, nodes.x(0))
    return (nodes.op("Cast", hit, to=nodes.site.attrs.get("dtype", source)),)


def _multinomial_infer(site: Site) -> tuple[TensorType, ...]:
    x, dtype = site.real(0), read_dtype(site, site.attrs["dtype"])
    if x.rank != 2 or dtype not in ("i32", "i64"):
        site.fail(f"input 0 is {x} and the samples are {dtype}", "[batch, classes] and i32, i64")
    return (TensorType(dtype, (x.shape[0], site.attrs["sample_size"])),)


def _multinomial(nodes: Nodes) -> tuple[str, ...]:
    """Y = argmax of X - log(-log U), Gumbel's trick: class c comes up with probability softmax X"""
    (batch, classes), count = nodes.site.real(0).dims, nodes.site.attrs["sample_size"]
    shape = [batch, count, classes]
    to = ONNX_CODE[nodes.site.type(0).dtype]
    u = nodes.op("RandomUniform", shape=shape, dtype=to, **_read_seed(nodes.site))
    # argmax(x + g) with Gumbel noise g = -log(-log u) is a sample of softmax(x): no sum, no search.
    gumbel = nodes.op("Log", nodes.op("Neg", nodes.op("Log", u)))
    x = nodes.op("Reshape", nodes.x(0), nodes.const([batch, 1, classes], "i64"))
    y = nodes.op("ArgMax", nodes.op("Sub", x, gumbel), axis=2, keepdims=0)
    return (nodes.op("Cast", y, to=nodes.site.attrs["dtype"]),)


# --- dropout


def _read_ratio(site: Site) -> float | None:
    """Return the dropout ratio, or None when it is not constant."""
    if not site.has(1):
        return float(site.attrs.get("ratio", 0.5))
    return None if site.value(1) is None else float(site.number(1, "the ratio"))


def _find_drops(site: Site) -> bool | None:
    """Return whether a Dropout drops; None when that is known only at run time."""
    mode = site.value(2)
    if not site.has(2) or _read_ratio(site) == 0:
        return False
    return None if mode is None else bool(mode.any())


def _dropout_infer(site: Site) -> tuple[TensorType, ...]:
    t, ratio = site.type(0), _read_ratio(site)
    if ratio is not None and not 0 <= ratio <= 1:
        site.fail(f"ratio is {ratio}", "0 to 1")
    return (t.but(), t.but(dtype="b1" if site.opset >= 10 else t.dtype))[: site.n_outs]


def _dropout(nodes: Nodes) -> tuple[str, ...]:
    """Draw the mask and apply it; the output is the input itself where nothing is dropped."""
    site, drops = nodes.site, _find_drops(nodes.site)
    # Nothing is dropped, or the model says so: no mask is drawn.
    if drops is False:
        y = nodes.op("Identity", nodes.x(0))
        if not nodes.wants(1):
            return (y, "")[: site.n_outs]
        kind = np.bool_ if site.opset >= 10 else NUMPY[site.type(0).dtype]
        return (
            y,
            nodes.op("ConstantOfShape", nodes.op("Shape", nodes.x(0)), value=np.ones(1, kind)),
        )
    ratio = _read_ratio(site)
    if ratio is None:
        # The ratio is computed: the mask is a comparison in the graph.
        u = nodes.op("RandomUniformLike", nodes.x(0), dtype=1, **_read_seed(site))
        mask = nodes.op("GreaterOrEqual", u, nodes.op("Cast", nodes.x(1), to=1))
    else:
        mask = nodes.op("RandomMask", nodes.x(0), domain=OURS, ratio=ratio, **_read_seed(site))
    # Known at run time only: outside training the mask is all ones.
    if drops is None:
        mask = nodes.op("Or", mask, nodes.op("Not", nodes.x(2)))
    y = nodes.op(
        "DropoutGrad", nodes.x(0), mask, nodes.x(1) if site.has(1) else "", nodes.x(2), domain=MS
    )
    return (y, mask)[: site.n_outs]


def _dropout_grad(grad: Grad, dy: str, *_: str | None) -> tuple[str | None, ...]:
    """dX = dY / (1 - ratio) where the mask is set, 0 elsewhere."""
    rest = [None] * (len(grad.site.ins) - 1)
    if _find_drops(grad.site) is False:
        return (dy, *rest)
    ratio = grad.x(1) if grad.site.has(1) else ""
    return (grad.op("DropoutGrad", dy, grad.y(1, "_mask"), ratio, grad.x(2), domain=MS), *rest)


def _kept(site: Site) -> Expr:
    T = site.type(0).dtype
    # Kept elements are scaled up, so that the mean stays the same.
    ratio: Expr = ("cast", T, ("in", 2)) if site.has(2) else ("const", 0.5)
    scale = ("div", ("const", 1.0), ("sub", ("const", 1.0), ratio))
    kept: Expr = ("where", ("in", 1), ("mul", ("in", 0), scale), ("const", 0.0))
    return ("where", ("in", 3), kept, ("in", 0)) if site.has(3) else kept


def _mask_formula(site: Site, T: str) -> Pair:
    first, second = (f"{text} >= {float(site.attrs['ratio'])!r}" for text in UNIFORM["f32"])
    return first, second


OPS = (
    _random("RandomUniform", _shaped, UNIFORM, high=1.0, low=0.0),
    _random("RandomUniformLike", _like, UNIFORM, high=1.0, low=0.0),
    _random("RandomNormal", _shaped, NORMAL, scale=1.0, mean=0.0),
    _random("RandomNormalLike", _like, NORMAL, scale=1.0, mean=0.0),
    Op(
        name="Bernoulli",
        infer=_bernoulli_infer,
        expand=_bernoulli,
        becomes="Cast Less RandomUniformLike",
        no_gradient=frozenset((0,)),
        is_random=True,
    ),
    Op(
        name="Multinomial",
        infer=_multinomial_infer,
        expand=_multinomial,
        becomes="ArgMax Cast Log Neg RandomUniform Reshape Sub",
        no_gradient=frozenset((0,)),
        attrs={"dtype": 6, "sample_size": 1},
        is_random=True,
    ),
    Op(
        name="Dropout",
        infer=_dropout_infer,
        since=7,
        expand=_dropout,
        grad=_dropout_grad,
        becomes="Cast ConstantOfShape GreaterOrEqual Identity Not Or RandomUniformLike Shape "
        f"{MS}::DropoutGrad {OURS}::RandomMask",
        no_gradient=frozenset((1, 2)),
        samples=Samples.ELEMENTWISE,
        is_random=True,
    ),
    Op(
        name="DropoutGrad",
        domain=MS,
        inputs=(2, 4),
        outputs=1,
        gradient_of="Dropout",
        takes={"seed": "int"},
        infer=infer,
        fold=fold,
        expr=_kept,
        no_gradient=frozenset((0, 1, 2, 3)),
    ),
    Op(
        name="RandomMask",
        domain=OURS,
        inputs=(1, 1),
        outputs=1,
        needs={"ratio": "float"},
        takes={"seed": "float"},
        infer=lambda site: (site.type(0).but(dtype="b1"),),
        lower=_lower(_mask_formula),
        calls=(draw,),
        type_only=frozenset((0,)),
        no_gradient=frozenset((0,)),
        is_random=True,
        is_cheap=True,
    ),
)
KERNELS = (draw,)
