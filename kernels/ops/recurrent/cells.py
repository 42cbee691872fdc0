"""What a recurrent cell computes at one step of one row: row programs over its hidden units.

    LSTM   i = f(a_i + P_i c'), f = f(a_f + P_f c') or 1 - i, g = g(a_c), c = f c' + i g,
           o = f(a_o + P_o c), h = o h(c)
    GRU    z = f(a_z), r = f(a_r), n = g(a_n + r q), q = R_n h' + b, h = (1 - z) n + z h'
           or, reset first: n = g(a_n + R_n (r h'))
    RNN    h = f(a)

c', h' are the states before the step, a the products of input and state with the weights.  The
derivatives of the activations are formulas of their values, so only these are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engine.element_types import NUMPY
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.kernel import Native
from engine.kernels.vocabulary.op import Site
from engine.kernels.vocabulary.row_program import Input, Program


@dataclass(frozen=True, slots=True)
class Activation:
    """y = formula(x), dy/dx = slope(y), texts with the parameters {a} and {b}.

    alpha, beta: their defaults, None for a parameter it does not have.
    rises: the slope is known of y only where {a} >= 0.
    """

    formula: str
    slope: str
    alpha: float | None = None
    beta: float | None = None
    rises: bool = False


ACTIVATIONS = {
    "Affine": Activation("{a} * i0 + {b}", "{a}", 1.0, 0.0),
    "Relu": Activation("max(i0, 0.0)", "where(i0 > 0.0, 1.0, 0.0)"),
    "LeakyRelu": Activation(
        "where(i0 < 0.0, {a} * i0, i0)", "where(i0 > 0.0, 1.0, {a})", 0.01, rises=True
    ),
    "ThresholdedRelu": Activation(
        "where(i0 > {a}, i0, 0.0)", "where(i0 != 0.0, 1.0, 0.0)", 1.0
    ),
    "Tanh": Activation("tanh(i0)", "1.0 - i0 * i0"),
    "ScaledTanh": Activation("{a} * tanh({b} * i0)", "{b} * ({a} - i0 * i0 / {a})", 1.0, 1.0),
    "Sigmoid": Activation("sigmoid(i0)", "i0 * (1.0 - i0)"),
    "HardSigmoid": Activation(
        "max(0.0, min(1.0, {a} * i0 + {b}))", "where(and_(i0 > 0.0, i0 < 1.0), {a}, 0.0)", 0.2, 0.5
    ),
    "Elu": Activation(
        "where(i0 < 0.0, {a} * (exp(i0) - 1.0), i0)", "where(i0 > 0.0, 1.0, i0 + {a})", 1.0,
        rises=True,
    ),
    "Softsign": Activation("i0 / (1.0 + abs(i0))", "(1.0 - abs(i0)) * (1.0 - abs(i0))"),
    "Softplus": Activation("softplus(i0)", "1.0 - exp(-i0)"),
}  # fmt: skip
_BY_NAME = {name.lower(): (name, a) for name, a in ACTIVATIONS.items()}


@dataclass(frozen=True, slots=True)
class Curve:
    """An activation as texts: y = formula(x), dy/dx = slope(y); what the slope is not known for."""

    formula: str
    slope: str
    refusal: str = ""


def curves(s: Site, defaults: Sequence[str], directions: int, T: str) -> list[tuple[Curve, ...]]:
    """The activations of each direction, which alpha and beta go to in their order.

    Activations but the last of an LSTM see their argument clipped.
    """
    names = list(s.attrs.get("activations") or [*defaults] * directions)
    if len(names) != len(defaults) * directions:
        s.fail(f"{len(names)} activations", f"{len(defaults)} a direction")
    alphas = iter(s.attrs.get("activation_alpha") or ())
    betas = iter(s.attrs.get("activation_beta") or ())
    found = []
    for i, name in enumerate(names):
        clip = None if i % 3 == 2 and len(defaults) == 3 else s.attrs.get("clip")
        found.append(_curve(s, str(name), alphas, betas, clip, T))
    size = len(defaults)
    return [tuple(found[d : d + size]) for d in range(0, len(found), size)]


def _curve(
    s: Site, name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None, T: str
) -> Curve:
    if name.lower() not in _BY_NAME:
        s.fail(f"activation {name!r}", ", ".join(ACTIVATIONS))
    title, known = _BY_NAME[name.lower()]
    a = None if known.alpha is None else float(next(alphas, known.alpha))
    b = None if known.beta is None else float(next(betas, known.beta))
    flat = title == "ScaledTanh" and a == 0
    formula = expression.parse(known.formula.format(a=a, b=b))
    slope = expression.parse("0.0" if flat else known.slope.format(a=a, b=b))
    if clip:
        edge: Expr = ("const", float(clip))
        inside: Expr = ("max", ("min", ("in", 0), edge), ("const", -float(clip)))
        for end in (float(clip), -float(clip)):
            slope = ("where", _meets(expression.evaluate(formula, [np.float64(end)]), T),
                     ("const", 0.0), slope)  # fmt: skip
        formula = expression.substitute(formula, [inside])
    refusal = f"the slope of {title} with alpha {a}" if known.rises and a and a < 0 else ""
    return Curve(expression.text(formula), expression.text(slope), refusal)


def _meets(value: float, T: str) -> Expr:
    """A formula that is true where the operand equals `value` up to rounding."""
    near = 8 * float(np.finfo(NUMPY[T]).eps) * max(abs(float(value)), 1.0)
    return expression.parse(f"abs(i0 - {float(value)!r}) <= {near!r}")


# --- programs


class _Sheet:
    """Writes a row program line by line.  A name may be set again; inputs keep their places."""

    def __init__(self, inputs: str) -> None:
        self.count = len(inputs.split())
        self.of: dict[str, Expr] = {n: ("in", i) for i, n in enumerate(inputs.split())}

    def let(self, name: str, text: str, curve: str = "i0") -> None:
        """Set a name to curve(text)."""
        inner = expression.substitute(expression.parse(text, list(self.of)), list(self.of.values()))
        self.of[name] = expression.substitute(expression.parse(curve), [inner])

    def native(self, T: str, outs: str) -> Native:
        """The native run(inputs..., outs..., n)."""
        written = tuple((T, self.of[o]) for o in outs.split())
        return Native("rows", (Program((Input(T),) * self.count, outs=written),))


def lstm(T: str, f: str, g: str, h: str, peephole: int, couple: int) -> Native:
    """run(i, o, f, c, s, [pi, po, pf], i, o, f, c, s, y): gates and cell state s in place."""
    e = _Sheet("i o f c s" + " pi po pf" * peephole)
    if peephole:
        e.let("i", "i + pi * s")
        e.let("f", "f + pf * s")
    e.let("i", "i", f)
    if couple:
        e.let("f", "1.0 - i")
    else:
        e.let("f", "f", f)
    e.let("c", "c", g)
    e.let("s", "f * s + i * c")
    if peephole:
        e.let("o", "o + po * s")
    e.let("o", "o", f)
    e.let("t", "s", h)
    e.let("y", "o * t")
    return e.native(T, "i o f c s y")


def lstm_grad(
    T: str, h: str, slope_f: str, slope_g: str, slope_h: str, peephole: int, couple: int
) -> Native:
    """run(i, o, f, c, s, s', dy, dh, ds, [pi, po, pf], di, do, df, dc, ds', 0)."""
    e = _Sheet("i o f c s b dy dh ds" + " pi po pf" * peephole)
    e.let("t", "s", h)
    for gate, slope in (("i", slope_f), ("o", slope_f), ("f", slope_f), ("c", slope_g)):
        e.let(f"slope_{gate}", gate, slope)
    e.let("slope_t", "t", slope_h)
    e.let("dh", "dh + dy")
    e.let("do", "dh * t * slope_o")
    e.let("ds", "ds + dh * o * slope_t" + " + po * do" * peephole)
    e.let("di", "ds * (c - b) * slope_i" if couple else "ds * c * slope_i")
    e.let("df", "0.0" if couple else "ds * b * slope_f")
    e.let("dc", "ds * i * slope_c")
    e.let("ds", "ds * f" + " + pi * di + pf * df" * peephole)
    e.let("zero", "0.0")
    return e.native(T, "di do df dc ds zero")


def gru(T: str, f: str, g: str) -> Native:
    """run(z, r, n, q, h, z, r, n, h): gates and state in place."""
    e = _Sheet("z r n q h")
    e.let("z", "z", f)
    e.let("r", "r", f)
    e.let("n", "n + r * q", g)
    e.let("h", "(1.0 - z) * n + z * h")
    return e.native(T, "z r n h")


def gru_grad(T: str, slope_f: str, slope_g: str) -> Native:
    """run(z, r, n, q, h', dy, dh, dz, dr, dn, dz, dr, dq, dh'), but what comes through q."""
    e = _gru_grad("z r n q h dy dh", slope_f, slope_g)
    e.let("slope_r", "r", slope_f)
    e.let("dr", "dn * q * slope_r")
    e.let("dq", "dn * r")
    return e.native(T, "dz dr dn dz dr dq dh")


def gru_reset(T: str, f: str) -> Native:
    """run(z, r, h, z, r, r h): the gates that come before n if the state is reset first."""
    e = _Sheet("z r h")
    e.let("z", "z", f)
    e.let("r", "r", f)
    e.let("q", "r * h")
    return e.native(T, "z r q")


def gru_state(T: str, g: str) -> Native:
    """run(n, z, h, n, h): the rest of that."""
    e = _Sheet("n z h")
    e.let("n", "n", g)
    e.let("h", "(1.0 - z) * n + z * h")
    return e.native(T, "n h")


def gru_state_grad(T: str, slope_f: str, slope_g: str) -> Native:
    """run(z, n, h', dy, dh, dz, dn, dh'), but what comes through r h'."""
    return _gru_grad("z n h dy dh", slope_f, slope_g).native(T, "dz dn dh")


def gru_reset_grad(T: str, slope_f: str) -> Native:
    """run(r, h', d(r h'), dh', dr, dh', r h')."""
    e = _Sheet("r h dq dh")
    e.let("slope_r", "r", slope_f)
    e.let("dr", "dq * h * slope_r")
    e.let("dh", "dh + dq * r")
    e.let("q", "r * h")
    return e.native(T, "dr dh q")


def _gru_grad(inputs: str, slope_f: str, slope_g: str) -> _Sheet:
    e = _Sheet(inputs)
    e.let("slope_z", "z", slope_f)
    e.let("slope_n", "n", slope_g)
    e.let("dh", "dh + dy")
    e.let("dz", "dh * (h - n) * slope_z")
    e.let("dn", "dh * (1.0 - z) * slope_n")
    e.let("dh", "dh * z")
    return e


def rnn(T: str, f: str) -> Native:
    """run(a, h)."""
    e = _Sheet("a")
    e.let("h", "a", f)
    return e.native(T, "h")


def rnn_grad(T: str, slope_f: str) -> Native:
    """run(y, dy, dh, da, 0)."""
    e = _Sheet("y dy dh")
    e.let("slope", "y", slope_f)
    e.let("da", "(dh + dy) * slope")
    e.let("zero", "0.0")
    return e.native(T, "da zero")


def add_product(T: str) -> Native:
    """run(x, a, b, x + a b)."""
    e = _Sheet("x a b")
    e.let("x", "x + a * b")
    return e.native(T, "x")
