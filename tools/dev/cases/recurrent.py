"""RNN, GRU, LSTM, their training forms and gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, f32

MS, OURS = "com.microsoft", "engine"
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, Any] = {
    "Affine": lambda x, a=1.0, b=0.0: a * x + b,
    "Relu": lambda x: np.maximum(x, 0),
    "LeakyRelu": lambda x, a=0.01: np.where(x < 0, a * x, x),
    "ThresholdedRelu": lambda x, a=1.0: np.where(x > a, x, 0),
    "Tanh": np.tanh,
    "ScaledTanh": lambda x, a=1.0, b=1.0: a * np.tanh(b * x),
    "Sigmoid": _sigmoid,
    "HardSigmoid": lambda x, a=0.2, b=0.5: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a=1.0: np.where(x < 0, a * np.expm1(x), x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Softplus": lambda x: np.log1p(np.exp(x)),
}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def _functions(kind: Any, directions: Any, attrs: Any) -> Any:
    """The activations, which take alpha and beta in order, those that have one."""
    alphas, betas = list(attrs.get("activation_alpha", ())), list(attrs.get("activation_beta", ()))
    out = []
    for name in attrs.get("activations") or DEFAULTS[kind] * directions:
        takes = (FUNCTIONS[name].__defaults__ or ()) if hasattr(FUNCTIONS[name], "__code__") else ()
        given = [values.pop(0) for values, _ in zip((alphas, betas), takes, strict=False) if values]
        out.append(lambda x, f=FUNCTIONS[name], given=given: f(x, *given))
    return out


def recurrence(
    kind: Any,
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lens: Any = None,
    h0: Any = None,
    c0: Any = None,
    p: Any = None,
    *,
    read: Any = None,
    **attrs: Any,
) -> Any:
    """(Y, Y_h, Y_c, cells, gates) row by row, as ONNX says; the last two by rows of X.

    read: what R multiplies, a function of h; None: h itself.
    """
    if attrs.get("layout"):
        x = x.swapaxes(0, 1)
        h0, c0 = (s if s is None else s.swapaxes(0, 1) for s in (h0, c0))
    steps, batch, _ = x.shape
    directions, n = r.shape[0], r.shape[2]
    functions = _functions(kind, directions, attrs)
    each = len(DEFAULTS[kind])
    zeros = np.zeros((directions, batch, n))
    h, c = (zeros.copy() if s is None else s.copy() for s in (h0, c0))
    y = np.zeros((steps, directions, batch, n))
    cells = np.zeros((steps, batch, directions, n))
    gates = np.zeros((steps, batch, directions, GATES[kind] * n))
    lens = np.full(batch, steps) if lens is None else lens
    b = np.zeros((directions, 2 * GATES[kind] * n)) if b is None else b
    back = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[
        attrs.get("direction", "forward")
    ]
    for d in range(directions):
        act = functions[d * each : (d + 1) * each]
        for k in range(batch):
            for s in range(lens[k]):
                t = lens[k] - 1 - s if back[d] else s
                h[d, k], c[d, k], gates[t, k, d] = _step(
                    kind, act, x[t, k] @ w[d].T, h[d, k], c[d, k], r[d], b[d],
                    np.zeros(3 * n) if p is None else p[d], attrs, read,
                )  # fmt: skip
                y[t, d, k], cells[t, k, d] = h[d, k], c[d, k]
    if attrs.get("layout"):
        y, h, c = y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
        cells, gates = cells.swapaxes(0, 1), gates.swapaxes(0, 1)
    return y, h, c, cells, gates


def round_to_bytes(x: Any) -> Any:
    """Return numbers as DynamicQuantizeLinear rounds them, which is within its range, and 0."""
    x = x.astype(np.float32)
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    unit = (high - low) / np.float32(255) or np.float32(1)
    zero = np.rint(-low / unit)
    return (np.clip(np.rint(x / unit) + zero, 0, 255) - zero).astype(float) * float(unit)


def _step(
    kind: Any, act: Any, a: Any, h: Any, c: Any, r: Any, b: Any, p: Any, attrs: Any, read: Any
) -> Any:
    n, clip = len(h), attrs.get("clip", np.inf)

    def f(i: Any, v: Any) -> Any:
        return act[i](np.clip(v, -clip, clip))

    bw, br = np.split(b, 2)
    a, q = a + bw, (h if read is None else read(h)) @ r.T + br
    if kind == "RNN":
        h = f(0, a + q)
        return h, c, h
    if kind == "GRU":
        z, reset = np.split(f(0, (a + q)[: 2 * n]), 2)
        inner = reset * q[2 * n :]
        if not attrs.get("linear_before_reset"):
            inner = (reset * h) @ r[2 * n :].T + br[2 * n :]
        new = f(1, a[2 * n :] + inner)
        return (1 - z) * new + z * h, c, np.concatenate([z, reset, new])
    i, o, forget, u = np.split(a + q, 4)
    pi, po, pf = np.split(p, 3)
    i = f(0, i + pi * c)
    forget = 1 - i if attrs.get("input_forget") else f(0, forget + pf * c)
    u = f(1, u)
    c = forget * c + i * u
    o = f(0, o + po * c)
    return o * act[2](c), c, np.concatenate([i, o, forget, u])


def _of(kind: Any, outs: Any) -> Any:  # reference: the outputs that the case has
    def run(*ins: Any, **attrs: Any) -> Any:
        results = recurrence(kind, *ins, **attrs)
        return [results[i] for i in outs]

    return run


def case(kind: str, t: int, b: int, i: int, n: int, given: str = "", **options: Any) -> Case:
    """A row; `given`: of b (bias), l (lengths), h, c (states), p (peepholes) those there are."""
    attrs = {"hidden_size": n, **options.pop("attrs", {})}
    d = 2 if attrs.get("direction") == "bidirectional" else 1
    g = GATES[kind]
    lead, state = ((b, t), (b, d, n)) if attrs.get("layout") else ((t, b), (d, b, n))
    lens = np.array([t, 0, 2, 1, t - 1, 3][:b], np.int32)
    w = {"low": -(n**-0.5), "high": n**-0.5}
    ins: list[Any] = [f32(*lead, i), f32(d, g * n, i, **w), f32(d, g * n, n, **w)]
    ins += [f32(d, 2 * g * n, **w) if "b" in given else None, lens if "l" in given else None]
    ins += [f32(*state) if "h" in given else None, f32(*state) if "c" in given else None]
    ins += [f32(d, 3 * n) if "p" in given else None]
    ins = ins[: 8 if kind == "LSTM" else 6]
    kept = options.pop("kept", (0, 1, 2) if kind == "LSTM" else (0, 1))
    outs = tuple(f"y{k}" if k in kept else "" for k in range(max(kept) + 1))
    grad = tuple(k for k, x in enumerate(ins) if x is not None and k != 4)
    options = {"opset": 14, "grad": grad, "outs": outs, "tol": 4e-6, **options}
    return Case(kind, tuple(ins), attrs, reference=_of(kind, kept), **options)


def _training(
    kind: str, domain: str, lengths: bool = False, steps: int = 4, **options: Any
) -> tuple[Case, ...]:
    """The training form: with its gradient, and with all its outputs."""
    given = "blhc" if lengths else "bhc"
    name = f"{kind}Training-{domain}{'-lengths' if lengths else ''}-{steps}"
    row = case(kind, steps, min(steps + 1, 3), 2, 5, given, name=name, **options)
    every = (0, 1, 2, 3, 4) if kind == "LSTM" else (0, 1, 4)

    def saved(*ins: Any, **attrs: Any) -> Any:
        results = recurrence(kind, *ins, **attrs)
        rows = [x.swapaxes(1, 2) if domain == MS else x for x in results[3:]]
        return [(*results[:3], *rows)[k] for k in every]

    row = replace(row, op=f"{kind}Training", domain=domain)
    return row, replace(row, grad=(), outs=len(every), reference=saved, name=f"{row.name}-all")


FORWARD, BOTH = {"direction": "forward"}, {"direction": "bidirectional"}
SIX = ["LeakyRelu", "Affine", "Elu", "Softsign", "ScaledTanh", "Softplus"]

CASES = (
    *(case(kind, 4, 3, 5, 7, name=f"{kind.lower()}-plain") for kind in GATES),
    *(case(kind, 5, 5, 3, 6, "blhcp", attrs={"direction": way, "layout": layout},
           name=f"{kind.lower()}-{way}-{layout}")
      for kind in GATES for way, layout in (("forward", 1), ("reverse", 0), ("bidirectional", 0),
                                            ("bidirectional", 1))),
    # R and its products in more than one panel and block of K.
    *(case(kind, 3, 7, 4, 70, "bh", name=f"{kind.lower()}-wide") for kind in GATES),
    *(case(kind, 1, 1, 1, 1, "b", opset=7, name=f"{kind.lower()}-one") for kind in GATES),
    case("LSTM", 2, 2, 0, 4, "b", attrs={"direction": "bidirectional"}, name="lstm-no-inputs"),
    # So few rows of so many units that threads share the units.
    case("LSTM", 4, 2, 3, 128, "blhcp", attrs=BOTH, name="lstm-units"),
    case("LSTM", 2, 2, 3, 128, "bhc", name="lstm-units-plain"),
    # One output alone.
    *(case(kind, 4, 2, 3, 5, "blhc", kept=(k,), attrs=BOTH, name=f"{kind.lower()}-only-{k}")
      for kind, k in (("RNN", 0), ("RNN", 1), ("GRU", 0), ("GRU", 1), ("LSTM", 0), ("LSTM", 1),
                      ("LSTM", 2))),
    # The reset gate after R_n.
    *(case("GRU", 5, 5, 3, 6, given, attrs={"linear_before_reset": 1, **attrs}, name=name)
      for given, attrs, name in (
          ("blh", BOTH, "gru-after"), ("", {"layout": 1}, "gru-after-bare"),
          ("bl", {"direction": "reverse"}, "gru-after-reverse"))),
    case("GRU", 3, 7, 4, 70, "bh", attrs={"linear_before_reset": 1}, name="gru-after-wide"),
    # Activations, with default and given parameters, taken in order; not the same both ways.
    *(case("RNN", 3, 2, 3, 4, "b", attrs={"activations": [name], **attrs}, name=f"rnn-{name}")
      for name, attrs in (
          ("Relu", {}), ("HardSigmoid", {}), ("ThresholdedRelu", {"activation_alpha": [0.3]}))),
    case("LSTM", 3, 3, 2, 4, "bhc", name="lstm-six",
         attrs={**BOTH, "activations": SIX, "activation_alpha": [0.1, 0.5, 0.7, 1.5],
                "activation_beta": [0.25, 0.5]}),
    # Clipped, many of them, before f and g alone.
    *(case(kind, 4, 3, 3, 5, "bhcp", attrs={"clip": 0.5, **attrs}, name=f"{name}-clip")
      for kind, name, attrs in (
          ("LSTM", "lstm", {}), ("GRU", "gru", {}),
          ("RNN", "rnn-affine", {"activations": ["Affine"], "activation_alpha": [0.3],
                                 "activation_beta": [0.1]}))),
    # Coupled gates.
    case("LSTM", 4, 3, 3, 5, "bhcp", attrs={"input_forget": 1}, name="lstm-couple"),
    *(row for kind in ("GRU", "LSTM") for row in (
        *_training(kind, MS, attrs=FORWARD), *_training(kind, MS, True, attrs=FORWARD),
        *_training(kind, OURS, attrs=BOTH), *_training(kind, OURS, steps=1, attrs=BOTH))),
    *(case(kind, 64, 32, 64, 128, "bhc", grad=(1, 2, 3), bench=True, tol=2e-5, name=f"{kind}-bench",
           attrs={"linear_before_reset": 1} if kind == "GRU" else {})
      for kind in GATES),
)  # fmt: skip
