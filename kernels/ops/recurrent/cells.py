"""Recurrent cells: row programs over the hidden units of one row at one step.

    LSTM   i = f(a_i + P_i c'), f = f(a_f + P_f c') or 1 - i, g = g(a_c), c = f c' + i g,
           o = f(a_o + P_o c), h = o h(c)
    GRU    z = f(a_z), r = f(a_r), n = g(a_n + r q), q = R_n h' + b, h = (1 - z) n + z h'
           or, reset first: n = g(a_n + R_n (r h'))
    RNN    h = f(a)

c', h' are the states before the step, a the products of input and state with the weights.  The
derivatives of the activations are formulas of their values, so only these are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engine.base.element_types import NUMPY
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.kernel import Inline, Intrinsic, inline
from engine.kernels.vocabulary.op import Site
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.terms import Formulas


@dataclass(frozen=True, slots=True)
class Activation:
    """y = formula(x) and dy/dx = slope(y), which may name the parameters a and b, too.

    alpha, beta: the defaults of a and b, None for a parameter it does not have.
    rises: the slope is known of y only where a >= 0.
    """

    formula: str
    slope: str
    alpha: float | None = None
    beta: float | None = None
    rises: bool = False


ACTIVATIONS = {
    "Affine": Activation("a * x + b", "a", 1.0, 0.0),
    "Relu": Activation("max(x, 0.0)", "where(y > 0.0, 1.0, 0.0)"),
    "LeakyRelu": Activation("where(x < 0.0, a * x, x)", "where(y > 0.0, 1.0, a)", 0.01, rises=True),
    "ThresholdedRelu": Activation("where(x > a, x, 0.0)", "where(y != 0.0, 1.0, 0.0)", 1.0),
    "Tanh": Activation("tanh(x)", "1.0 - y * y"),
    "ScaledTanh": Activation("a * tanh(b * x)", "b * (a - y * y / a)", 1.0, 1.0),
    "Sigmoid": Activation("sigmoid(x)", "y * (1.0 - y)"),
    "HardSigmoid": Activation(
        "max(0.0, min(1.0, a * x + b))", "where(and_(y > 0.0, y < 1.0), a, 0.0)", 0.2, 0.5
    ),
    "Elu": Activation(
        "where(x < 0.0, a * (exp(x) - 1.0), x)", "where(y > 0.0, 1.0, y + a)", 1.0, rises=True
    ),
    "Softsign": Activation("x / (1.0 + abs(x))", "(1.0 - abs(y)) * (1.0 - abs(y))"),
    "Softplus": Activation("softplus(x)", "1.0 - exp(-y)"),
}
_BY_NAME = {name.lower(): (name, a) for name, a in ACTIVATIONS.items()}


@dataclass(frozen=True, slots=True)
class Curve:
    """An activation as formulas of x and of y; refusal: why its slope is not known, if so."""

    formula: str
    slope: str
    refusal: str = ""


def read_curves(
    site: Site, defaults: Sequence[str], directions: int, T: str
) -> list[tuple[Curve, ...]]:
    """Return the activations of each direction, which alpha and beta go to in their order.

    Activations but the last of an LSTM see their argument clipped.
    """
    names = list(site.attrs.get("activations") or [*defaults] * directions)
    if len(names) != len(defaults) * directions:
        site.fail(f"activations has {len(names)} entries", f"{len(defaults)} for each direction")
    alphas = iter(site.attrs.get("activation_alpha") or ())
    betas = iter(site.attrs.get("activation_beta") or ())
    made = []
    for i, name in enumerate(names):
        clip = None if i % 3 == 2 and len(defaults) == 3 else site.attrs.get("clip")
        if clip is not None and not math.isfinite(clip):
            site.wrong(f"clip is {clip}; expected a finite number")
        made.append(_read_curve(site, str(name), alphas, betas, clip, T))
    size = len(defaults)
    return [tuple(made[d : d + size]) for d in range(0, len(made), size)]


def _read_curve(
    site: Site,
    name: str,
    alphas: Iterator[float],
    betas: Iterator[float],
    clip: float | None,
    T: str,
) -> Curve:
    if name.lower() not in _BY_NAME:
        site.fail(f"activations has {name!r}", ", ".join(ACTIVATIONS))
    title, known = _BY_NAME[name.lower()]
    a = None if known.alpha is None else float(next(alphas, known.alpha))
    b = None if known.beta is None else float(next(betas, known.beta))
    # a = 0 makes y constant; the slope's formula would divide by it.
    flat = title == "ScaledTanh" and a == 0
    values: dict[str, Expr] = {"a": ("const", a), "b": ("const", b)}
    formula = expression.parse(known.formula, ("x",), values=values)
    slope = expression.parse("0.0" if flat else known.slope, ("y",), values=values)
    if clip:
        edge: Expr = ("const", float(clip))
        # A clipped argument: f(clip(x)).  The slope is 0 where y is f(+-clip), up to rounding:
        # backward knows y alone, not whether x was clipped or just there.
        inside: Expr = ("max", ("min", ("in", 0), edge), ("const", -float(clip)))
        for end in (float(clip), -float(clip)):
            slope = (
                "where",
                _meets(Formulas.of(formula).evaluate([np.float64(end)])[0], T),
                ("const", 0.0),
                slope,
            )
        formula = expression.substitute(formula, [inside])
    refusal = f"the slope of {title} with alpha {a}" if known.rises and a and a < 0 else ""
    return Curve(_write_text(formula, "x"), _write_text(slope, "y"), refusal)


def _write_text(e: Expr, operand: str) -> str:
    """Return the text of an expression of one operand."""
    shared, (text,) = Formulas.of(e).write_texts((operand,))
    return "; ".join([*shared, text])


def _meets(value: float, T: str) -> Expr:
    """Return a formula that is true where y equals `value` up to rounding."""
    near = 8 * float(np.finfo(NUMPY[T]).eps) * max(abs(float(value)), 1.0)
    return expression.parse(f"abs(y - {float(value)!r}) <= {near!r}", ("y",))


# --- programs

PEEPHOLES = {0: "", 1: "pi[] po[] pf[]"}


def _program(T: str, source: str, **curves: str) -> Intrinsic:
    """Return a loop whose program calls activations f, g, h of x or their slopes of y."""
    operand = {n: "y" if n.startswith("slope") else "x" for n in curves}
    made = {n: expression.parse(curve, (operand[n],)) for n, curve in curves.items()}
    return loop(T, source, **made)


def lstm(T: str, f: str, g: str, h: str, peephole: int, couple: int) -> Inline:
    """Return run(i, o, f, c, s, pi, po, pf, y, length): gates and cell state s in place."""
    seen = "i = i + pi * s; f = f + pf * s;" if peephole else ""
    forget = "1.0 - i" if couple else "f(f)"
    out, before, after = ("o + po * s", "pi[] pf[]", "po[]") if peephole else ("o", "", "")
    # Two loops: in one, the curve of s waits for all other curves of its units, and a CPU does not
    # look far enough ahead to begin with the next units.
    enter = _program(
        T,
        f"""i[] f[] c[] s[] {before} -> {seen}
        i = f(i); f = {forget}; c = g(c); i[]; f[]; c[]; s[] = f * s + i * c""",
        f=f,
        g=g,
    )
    leave = _program(T, f"o[] s[] {after} -> o = f({out}); o[]; y[] = o * h(s)", f=f, h=h)

    @inline
    def run(i, o, f, c, s, pi, po, pf, y, length):
        enter(i=i, f=f, c=c, s=s, pi=pi, pf=pf, length=length)
        leave(o=o, s=s, po=po, y=y, length=length)

    return run


def lstm_grad(
    T: str, h: str, slope_f: str, slope_g: str, slope_h: str, peephole: int, couple: int
) -> Intrinsic:
    """Return run(i, o, f, c, s, b, dy, dh, ds, pi, po, pf, di, do, df, dc, zero), by name.

    b: the cell state before the step.  ds: the gradient of s on entry, of b on return.
    """
    # Forward, from the last line to the first: y = o h(s); o = f(a_o + po s); s = f b + i c;
    # c = g(a_c); f = f(a_f + pf b) or 1 - i; i = f(a_i + pi b).  So each line undoes one of them.
    through = (" + po * do", " + pi * di + pf * df") if peephole else ("", "")
    gates = (
        "di = ds * (c - b) * slope_f(i); df = 0.0"
        if couple
        else "di = ds * c * slope_f(i); df = ds * b * slope_f(f)"
    )
    return _program(
        T,
        f"""i[] o[] f[] c[] s[] b[] dy[] dh[] ds[] {PEEPHOLES[peephole]} ->
        t = h(s); dh = dh + dy; do = dh * t * slope_f(o); ds = ds + dh * o * slope_h(t){through[0]};
        {gates}; dc = ds * i * slope_g(c);
        di[]; do[]; df[]; dc[]; ds[] = ds * f{through[1]}; zero[] = 0.0""",
        h=h,
        slope_f=slope_f,
        slope_g=slope_g,
        slope_h=slope_h,
    )


def gru(T: str, f: str, g: str) -> Intrinsic:
    """Return run(z, r, n, q, h), by name: gates and state in place."""
    return _program(
        T,
        """z[] r[] n[] q[] h[] -> z = f(z); r = f(r); n = g(n + r * q);
        z[]; r[]; n[]; h[] = (1.0 - z) * n + z * h""",
        f=f,
        g=g,
    )


# The gradients of z and n, and of the state as far as it goes through neither r nor q.
_GRU_GRAD = """dh = dh + dy; dz = dh * (h - n) * slope_f(z); dn = dh * (1.0 - z) * slope_g(n);
    dh = dh * z;"""


def gru_grad(T: str, slope_f: str, slope_g: str) -> Intrinsic:
    """Return run(z, r, n, q, h, dy, dh, dz, dr, dn, iz, ir, iq), by name.

    h: the state before the step; dh: its gradient, without the part that comes through q.
    """
    # Forward: n = g(a_n + r q), q = R_n h + b, so dr = dn q and dq = dn r.  iz, ir, iq: the
    # gradients of the products with h, which are those with x except for q's.
    return _program(
        T,
        f"""z[] r[] n[] q[] h[] dy[] dh[] -> {_GRU_GRAD} dr = dn * q * slope_f(r);
        dz[]; dr[]; dn[]; iz[] = dz; ir[] = dr; iq[] = dn * r; dh[]""",
        slope_f=slope_f,
        slope_g=slope_g,
    )


def gru_reset(T: str, f: str) -> Intrinsic:
    """Return run(z, r, h, q), by name: the gates before n if the state is reset first; q = r h."""
    return _program(T, "z[] r[] h[] -> z = f(z); r = f(r); z[]; r[]; q[] = r * h", f=f)


def gru_state(T: str, g: str) -> Intrinsic:
    """Return run(n, z, h), by name: the rest of such a step, gate n and state in place."""
    return _program(T, "n[] z[] h[] -> n = g(n); n[]; h[] = (1.0 - z) * n + z * h", g=g)


def gru_state_grad(T: str, slope_f: str, slope_g: str) -> Intrinsic:
    """Return run(z, n, h, dy, dh, dz, dn), by name.

    h: the state before the step; dh: its gradient, without the part that comes through r h.
    """
    source = f"z[] n[] h[] dy[] dh[] -> {_GRU_GRAD} dz[]; dn[]; dh[]"
    return _program(T, source, slope_f=slope_f, slope_g=slope_g)


def gru_reset_grad(T: str, slope_f: str) -> Intrinsic:
    """Return run(r, h, dq, dh, dr, q), by name: adds the part of dh through q = r h."""
    # Forward: q = r h, n = g(a_n + R_n q); dq = R_n^T dn, so dr = dq h and dh += dq r.  q is
    # written for the gradient of R_n.
    source = "r[] h[] dq[] dh[] -> dr[] = dq * h * slope_f(r); dh[] = dh + dq * r; q[] = r * h"
    return _program(T, source, slope_f=slope_f)


def rnn(T: str, f: str) -> Intrinsic:
    """Return run(a, h)."""
    return _program(T, "a[] -> h[] = f(a)", f=f)


def rnn_grad(T: str, slope_f: str) -> Intrinsic:
    """Return run(y, dy, dh, da, zero)."""
    source = "y[] dy[] dh[] -> da[] = (dh + dy) * slope_f(y); zero[] = 0.0"
    return _program(T, source, slope_f=slope_f)


def add_product(T: str) -> Intrinsic:
    """Return run(x, a, b), by name: x += a b."""
    return loop(T, "x[] a[] b[] -> x[] = x + a * b")
