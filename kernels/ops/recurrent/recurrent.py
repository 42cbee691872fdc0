"""LSTM, GRU, RNN, their training forms and gradients.

Forward   a_t = W x_t + R h_{t-1} + b; gates and states of cells.py; Y = (h_1 .. h_T)    ONNX-22
Backward  da_t by the slopes of the activations, dh_{t-1} = R^T da_t + what passes by the gates;
          dX = da W, dW = da^T X, dR = da^T h', db = sum da, over all steps at once.
          Keeps X, Y, the gates after their activations and, of an LSTM, all cell states; of a GRU
          that resets after R_n (`linear_before_reset`) also R_n h' + b, where the plan has both
          passes (`give_gru_grads_inner_products`); otherwise that is computed again
Padding   after a row's length gates and Y are 0 and states stay: no gradient passes there
Error     as of the products; a step adds the rounding of its gates
Halves    X is read, and Y, cells, gates and R_n h' + b are kept, in 16 bits, and so are their
          gradients; walks compute in float32, on rows of one step, and pass states on in float32.
          R, states and gradients of gates are rounded to factors of 16 bits where the target
          multiplies these, and sums are float32: an error of a unit of the factors' type in each
          product of R, and of f16 the error of `tile` besides

W x of all steps is one product, so are dX, dW and dR; the steps between are kernels of their own
(recurrence.py).  `com.microsoft` has the training forms of onnxruntime-training, of one direction
and without lengths; the forms of domain `engine` take all of ONNX, and P in their gradient.  There
gates are stored by rows of X: [T, B, D, gates H] or, of layout 1, [B, T, D, gates H].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.base.aliases import Array
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.ops.recurrent.cells import read_curves
from engine.kernels.ops.recurrent.gru import gru, gru_grad_after, gru_grad_before
from engine.kernels.ops.recurrent.integer_lstm import lstm_integers
from engine.kernels.ops.recurrent.lstm import lstm, lstm_grad, rnn, rnn_grad
from engine.kernels.ops.recurrent.lstm_step import lstm_grad_step, lstm_step
from engine.kernels.ops.recurrent.recurrence import (
    recurrent_bias,
    recurrent_lengths,
)
from engine.kernels.ops.recurrent.sequence import (
    DEFAULTS,
    INPUTS,
    WALK_BACK_KERNELS,
    WALK_KERNELS,
    Walk,
    read_shape,
)
from engine.kernels.vocabulary.facts import GRU, LSTM, RNN, Product, Role, Samples, Storage
from engine.kernels.vocabulary.integers import PANEL
from engine.kernels.vocabulary.kernel import Template
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Grad,
    Kind,
    Lowering,
    Nodes,
    Op,
    Operand,
    Site,
    TensorType,
)
from engine.kernels.vocabulary.signature import round_to_unit


def _infer(site: Site) -> tuple[TensorType, ...]:
    shape = read_shape(site)
    names = {"LSTM": "y h c", "GRU": "y h", "RNN": "y h"}[shape.kind]
    if site.op.endswith("Training"):
        names += " cells gates" if shape.kind == "LSTM" else " gates inner"
    outputs = tuple(site.type(0).but(shape.of(n)) for n in names.split())
    return outputs[: max(site.n_outs, 3)] if shape.kind == "GRU" else outputs


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    shape = read_shape(site)
    names = "x w r b h c p" if shape.kind == "LSTM" else "x w r b h"
    return tuple(site.type(0).but(shape.of(n)) for n in names.split())


# --- lowering


def _list_shared(walk: int, outputs: str) -> list[str]:
    """Return the outputs that a walk updates: all, once an earlier one has written its part."""
    # Directions of different activations are calls of their own, which fill one tensor: the second
    # call must not be taken to overwrite the first.
    return outputs.split() if walk else []


def _rnn(lowering: Lowering) -> None:
    w = Walk(lowering)
    gates = lowering.temp(w.T, (w.rows, w.all))
    # gates = W x + b of all steps first; the walk adds R h step by step and turns them into h.
    w.append_products(gates, False)
    panels, lens, h0 = w.pack_panels(0, 1, True), w.get_lengths(), w.get_input("h0")
    y, h = lowering.y(0) if lowering.wants(0) else None, w.get_output(1, "h")
    stored = w.list_stored(y)
    work = w.make_scratch("rnn", stored)
    for i, ((f,), words) in enumerate(w.group_directions()):
        lowering.call(
            rnn(w.T, f.formula, *stored),
            gates=gates,
            panels=panels,
            lens=lens,
            h0=h0,
            y=y,
            h=h,
            work=work,
            has_y=int(y is not None),
            g=words,
            updates=_list_shared(i, "y h"),
        )


def _rnn_grad(lowering: Lowering) -> None:
    w = Walk(lowering)
    panels, lens, h0 = w.pack_panels(0, 1, False), w.get_lengths(), w.get_input("h0")
    # The walk leaves the gradients of all gates and the h before every step: dX, dW, dR and db are
    # then products and sums over all steps at once.
    y, dy, dh = w.get_input("y"), w.get_input("dy"), w.get_output(4, "h")
    stored, kind = w.list_stored(y, dy), y.type.dtype
    dgates, past = (lowering.temp(kind, (w.rows, w.all)) for _ in range(2))
    rows = w.make_scratch("rnn_grad", stored)
    for i, ((f,), words) in enumerate(w.group_directions()):
        lowering.call(
            rnn_grad(w.T, f.slope, *stored),
            y=y,
            panels=panels,
            lens=lens,
            h0=h0,
            dy=dy,
            dhn=w.get_input("dh"),
            dgates=dgates,
            past=past,
            dh=dh,
            rows=rows,
            g=words,
            updates=_list_shared(i, "dgates past dh"),
        )
    w.append_weights(dgates, dgates, past, 1)


def _lstm(lowering: Lowering) -> None:
    w = Walk(lowering)
    # The cell states of all steps are kept for the backward pass alone.
    training = lowering.wants(3) or lowering.wants(4)
    gates = w.get_output(4, "gates")
    w.append_products(gates, False)
    panels, lens, p = w.pack_panels(0, 4, True), w.get_lengths(), w.get("p")
    h0, c0 = w.get_input("h0"), w.get_input("c0")
    y, h, c = (
        lowering.y(0) if lowering.wants(0) else None,
        w.get_output(1, "h"),
        w.get_output(2, "c"),
    )
    cells = w.get_output(3, "cells") if training else None
    couple = int(lowering.site.attrs.get("input_forget", 0))
    stored = w.list_stored(gates, cells, y)
    by_units = not stored and w.shares_units()
    work = None if by_units else w.make_scratch("lstm", stored)
    given: dict[str, Any] = {
        "gates": gates, "panels": panels, "lens": lens, "p": p, "y": y, "cells": cells,
        "has_y": int(y is not None), "has_cells": int(training),
    }  # fmt: skip
    for i, ((f, g, out), words) in enumerate(w.group_directions()):
        cell = (w.T, f.formula, g.formula, out.formula, int(p is not None), couple)
        given["g"] = words
        if by_units:
            _append_steps(w, lstm_step(*cell), w.steps, given, [(h0, c0), (h, c)], "y cells", i)
            continue
        lowering.call(
            lstm(*cell, *stored),
            **given,
            h0=h0,
            c0=c0,
            h=h,
            c=c,
            work=work,
            updates=_list_shared(i, "y h c cells"),
        )


def _lstm_of_integers(lowering: Lowering) -> None:
    w = Walk(lowering)
    lens, p, h0, c0 = w.get_lengths(), w.get("p"), w.get_input("h0"), w.get_input("c0")
    y, h, c = (
        lowering.y(0) if lowering.wants(0) else None,
        w.get_output(1, "h"),
        w.get_output(2, "c"),
    )
    couple, rows = int(lowering.site.attrs.get("input_forget", 0)), lowering.threads * w.batch
    by_units, columns = w.shares_units(1) and w.n % PANEL == 0, round_to_unit(4 * w.n, PANEL)
    given: dict[str, Any] = {
        "gates": lowering.x(0), "q": lowering.x(1), "sums": lowering.x(2), "factor": lowering.x(3),
        "lens": lens, "p": p, "y": y,
        "has_y": int(y is not None), "by_units": int(by_units), "count": 1 if by_units else w.steps,
        "x": lowering.temp("u8", (rows, w.n)), "work": lowering.temp(w.T, (rows, 4, w.n)),
        "start": lowering.temp("i32", (rows, columns)), "zero": lowering.temp("u8", (rows,)),
        "unit": lowering.temp(w.T, (rows,)),
    }  # fmt: skip
    for i, ((f, g, out), words) in enumerate(w.group_directions()):
        kernel = lstm_integers(w.T, f.formula, g.formula, out.formula, int(p is not None), couple)
        given["g"] = words
        if by_units:
            _append_steps(w, kernel, w.steps, given, [(h0, c0), (h, c)], "y", i)
            continue
        lowering.call(
            kernel, **given, h0=h0, c0=c0, h=h, c=c, step=0, updates=_list_shared(i, "y h c")
        )


def _append_steps(
    w: Walk,
    kernel: tuple[str, tuple[str | int, ...]],
    steps: int,
    given: dict[str, Any],
    states: Sequence[tuple[Operand, Operand]],
    kept: str,
    group: int,
) -> None:
    """Append a call of `lstm_step` or `lstm_grad_step` for each step.

    given: the arguments that all steps have.  states: h and c, or their gradients, before the first
        step and after the last.  kept: the operands in which each step writes its rows.
    group: the number of the group of directions.
    """
    d = "d" if kernel[0] == lstm_grad_step.name else ""
    before, end = states
    # Every step has states of its own: threads that are ahead write the new ones while others still
    # read the old.  Placement gives them the same few bytes by turns.
    for s in range(steps):
        is_last = s == steps - 1
        after = end if is_last else (w.temp("h"), w.temp("c"))
        passed = {f"{d}h0": before[0], f"{d}c0": before[1], f"{d}h": after[0], f"{d}c": after[1]}
        shared = _list_shared(s + group, kept) + _list_shared(group * is_last, f"{d}h {d}c")
        arguments: dict[str, Any] = {**given, **passed, "step": s, "updates": shared}
        w.lowering.call(kernel, **arguments)
        before = after


def _lstm_grad(lowering: Lowering) -> None:
    w = Walk(lowering)
    panels, lens, p = w.pack_panels(0, 4, False), w.get_lengths(), w.get("p")
    h0, c0 = w.get_input("h0"), w.get_input("c0")
    gates, cells, y, dy = (w.get_input(name) for name in ("gates", "cells", "y", "dy"))
    stored = w.list_stored(gates, cells, y, dy)
    # Factors of products with all rows, which are stored as the gates are.
    G = gates.type.dtype
    dgates, past = w.temp("gates", G), lowering.temp(G, (w.rows, w.d * w.n))
    dh, dc = w.get_output(4, "h"), w.get_output(5, "c")
    # P's gradient row by row, as rows belong to threads; summed over the rows afterwards.
    dp = lowering.temp(w.T, (w.batch, w.d, 3 * w.n)) if p else None
    couple = int(lowering.site.attrs.get("input_forget", 0))
    groups = w.group_directions()
    given: dict[str, Any] = {
        "gates": gates, "cells": cells, "y": y, "panels": panels, "lens": lens, "h0": h0, "c0": c0,
        "p": p, "dy": dy, "dgates": dgates, "past": past, "dp": dp,
    }  # fmt: skip
    by_units = not stored and w.shares_units()
    work = None if by_units else w.make_scratch("lstm_grad", stored)
    # A step adds to dp: there is no first one that could begin it, as `lstm_grad` does.
    if by_units and dp is not None:
        lower_map(lowering, [("const", 0.0)], [], [dp])
    for i, ((f, g, out), words) in enumerate(groups):
        cell = (w.T, out.formula, f.slope, g.slope, out.slope, int(p is not None), couple)
        given["g"] = words
        ends = w.get_input("dh"), w.get_input("dc")
        if by_units:
            kernel = lstm_grad_step(*cell)
            _append_steps(w, kernel, w.steps + 1, given, [ends, (dh, dc)], "dgates past", i)
            continue
        lowering.call(
            lstm_grad(*cell, *stored),
            **given,
            dhn=ends[0],
            dcn=ends[1],
            dh=dh,
            dc=dc,
            work=work,
            updates=_list_shared(i, "dgates past dh dc dp"),
            may_alias=None if len(groups) == 1 else (),
        )
    w.append_weights(dgates, dgates, past, 4)
    if lowering.wants(6):
        if dp is None:
            lowering.site.fail("the gradient of P is wanted, but P is absent", "P as an input")
        # Forward: P was shared by all rows; so dP sums what the walk of each row has added up.
        outer, cols = (1, w.d * 3 * w.n) if w.shape.layout else (w.d, 3 * w.n)
        w.append_sums(dp, outer, w.batch, cols, lowering.y(6))


def _gru(lowering: Lowering) -> None:
    w = Walk(lowering)
    after = bool(lowering.site.attrs["linear_before_reset"])
    gates, bias = w.get_output(2, "gates"), w.get("b") if after else None
    w.append_products(gates, after)
    # R_z and R_r are one product; R_n is apart, as r comes before or after it.
    panels, panels_n = w.pack_panels(0, 2, True), w.pack_panels(2, 1, True)
    lens, h0 = w.get_lengths(), w.get_input("h0")
    y, h, work = lowering.y(0) if lowering.wants(0) else None, w.get_output(1, "h"), w.temp("h")
    # R_n h' + b is kept if the plan has both passes: H numbers a row save a product.
    inner = lowering.y(3) if after and lowering.wants(3) else None
    stored = w.list_stored(gates, y, inner)
    rows = w.make_scratch("gru", stored)
    for i, ((f, g), words) in enumerate(w.group_directions()):
        lowering.call(
            gru(w.T, f.formula, g.formula, int(after), *stored),
            gates=gates,
            panels=panels,
            panels_n=panels_n,
            bias=bias,
            lens=lens,
            h0=h0,
            y=y,
            h=h,
            inner=inner,
            work=work,
            rows=rows,
            has_bias=int(bias is not None),
            has_y=int(y is not None),
            has_gates=int(lowering.wants(2)),
            keeps=int(inner is not None),
            g=words,
            updates=_list_shared(i, "y h inner"),
        )


def _gru_grad(lowering: Lowering) -> None:
    w = Walk(lowering)
    after = bool(lowering.site.attrs["linear_before_reset"])
    bias, inner = (w.get("b"), w.get("inner")) if after else (None, None)
    gates, y, dy = (w.get_input(name) for name in ("gates", "y", "dy"))
    stored = w.list_stored(gates, y, dy, inner) if after else w.list_stored(gates, y, dy)
    # Factors of products with all rows, which are stored as the gates are.
    G = gates.type.dtype
    dgates = w.temp("gates", G)
    panels = w.pack_panels(0, 3 if after else 2, False)
    # Needed to compute R_n h' again, or to go back through it.
    panels_n = None if inner else w.pack_panels(2, 1, after)
    read: dict[str, Any] = {
        "gates": gates, "y": y, "lens": w.get_lengths(), "h0": w.get_input("h0"), "dy": dy,
        "dhn": w.get_input("dh"),
    }  # fmt: skip
    past = lowering.temp(G, (w.rows, w.all // 3 if after else w.all))
    # With r after R_n the gradients of the products with x and with h differ in n's gate.
    dinner = w.temp("gates", G) if after else dgates
    dh, work = w.get_output(4, "h"), w.temp("h")
    only_after: dict[str, Any] = {}
    if after:
        only_after = {"inner": inner, "bias": bias, "dinner": dinner}
        only_after |= {"kept": int(inner is not None), "has_bias": int(bias is not None)}
    kernel = gru_grad_after if after else gru_grad_before
    rows = w.make_scratch(kernel.name, stored)
    for i, ((f, g), words) in enumerate(w.group_directions()):
        lowering.call(
            kernel(w.T, f.slope, g.slope, *stored),
            **read,
            panels=panels,
            panels_n=panels_n,
            dgates=dgates,
            past=past,
            dh=dh,
            work=work,
            rows=rows,
            g=words,
            **only_after,
            updates=_list_shared(i, "dgates dinner past dh"),
        )
    w.append_weights(dgates, dinner, past, 3 if after else 1)


# --- gradients


def _read_input(g: Grad | Nodes, i: int) -> str:
    return g.x(i) if g.site.has(i) else ""


def _check_slopes(site: Site) -> None:
    shape = read_shape(site)
    for curve in sum(
        read_curves(site, DEFAULTS[shape.kind], shape.directions, site.type(0).dtype), ()
    ):
        if curve.refusal:
            site.fail(curve.refusal, "alphas of at least 0")


def _list_given(site: Site) -> dict[str, Any]:
    """Return the attributes of a node that are not defaults."""
    shape = read_shape(site)
    # Attributes with their default values are left out, so that plain nodes stay plain.
    usual = [None, 0, "forward", (), [], [*DEFAULTS[shape.kind] * shape.directions]]
    return {n: v for n, v in site.attrs.items() if v not in usual}


def _after(grad: Grad, dys: Sequence[str | None], count: int) -> list[str]:
    """Return the gradients of the first `count` outputs, "" for those that have none.

    A training form keeps the others for its gradient; nothing is to depend on them.
    """
    if any(dys[count:]):
        grad.site.fail(
            "the loss depends on what is kept for the gradient",
            f"a loss of the first {count} outputs",
        )
    return [dy or "" for dy in (*dys, *[None] * count)[:count]]


def _rnn_rule(grad: Grad, *dys: str | None) -> tuple[str | None, ...]:
    _check_slopes(grad.site)
    after = _after(grad, dys, 2)
    inputs = [_read_input(grad, i) for i in (0, 1, 2, 4, 5)]
    dx, dw, dr, db, dh = grad.op(
        "RNNGrad", *inputs, grad.y(0), *after, domain=OURS, outputs=5, **_list_given(grad.site)
    )
    return (dx, dw, dr, db, None, dh)


def _gru_rule(grad: Grad, *dys: str | None) -> tuple[str | None, ...]:
    _check_slopes(grad.site)
    after = _after(grad, dys, 2)
    inputs = [_read_input(grad, i) for i in range(6)]
    dx, dw, dr, db, dh = grad.op(
        "GRUGrad",
        *inputs,
        grad.y(0),
        grad.y(2, "_gates"),
        *after,
        domain=grad.site.domain,
        outputs=5,
        **_list_given(grad.site),
    )
    return (dx, dw, dr, db, None, dh)


def _lstm_rule(grad: Grad, *dys: str | None) -> tuple[str | None, ...]:
    _check_slopes(grad.site)
    after = _after(grad, dys, 3)
    inputs = [_read_input(grad, i) for i in (0, 1, 2, 4, 5, 6)]
    # The backward walk reads h from Y, c from the cells, and gates after their activations.
    kept = [grad.y(0), grad.y(3, "_cells"), grad.y(4, "_gates")]
    peepholes = [_read_input(grad, 7)] if grad.site.domain == OURS else []
    dx, dw, dr, db, dh, dc, dp = grad.op(
        "LSTMGrad",
        *inputs,
        *kept,
        *after,
        *peepholes,
        domain=grad.site.domain,
        outputs=7,
        **_list_given(grad.site),
    )
    return (dx, dw, dr, db, None, dh, dc, dp)


def _training(kind: str) -> Callable[[Nodes], tuple[str, ...]]:
    """Return a rule that expands into the training form, onnxruntime's if that has everything."""
    inputs, outputs = len(INPUTS[kind].split()), {"GRU": 3, "LSTM": 5}[kind]

    def rule(nodes: Nodes) -> tuple[str, ...]:
        given = _list_given(nodes.site)
        # onnxruntime's training forms know these two attributes alone.
        named = set(given) - {"hidden_size", "linear_before_reset"}
        # onnxruntime's forms have one direction, no lengths and no peepholes.
        ours = named or nodes.site.has(4) or nodes.site.has(7)
        made = nodes.op(
            f"{kind}Training",
            *(_read_input(nodes, i) for i in range(inputs)),
            domain=OURS if ours else MS,
            outputs=outputs,
            **given,
        )
        return tuple(made[: outputs - (1 if kind == "GRU" else 2)])

    return rule


_ATTRS: dict[str, Any] = {
    "direction": "forward", "layout": 0, "hidden_size": 0, "activations": (),
    "activation_alpha": (), "activation_beta": (), "clip": None,
}  # fmt: skip
_TAKES: dict[str, Kind] = {
    "activations": "strings",
    "activation_alpha": "floats",
    "activation_beta": "floats",
    "clip": "float",
}
_GRU, _LSTM = {**_ATTRS, "linear_before_reset": 0}, {**_ATTRS, "input_forget": 0}


def _never(site: Site) -> tuple[Array, ...]:
    """Never fold recurrent nodes: onnx.reference supports neither lengths nor activations."""
    return ()


# X, Y, cells, gates and inner products, and the gradients of Y and of X; states stay, as steps add
# to them.
_RNN_STORAGES = (
    Storage(frozenset({0}), frozenset({0})),
    Storage(frozenset({0, 5, 6}), frozenset({0})),
)
_GRU_STORAGES = (
    Storage(frozenset({0}), frozenset({0, 2, 3})),
    Storage(frozenset({0, 6, 7, 8, 10}), frozenset({0})),
)
_LSTM_STORAGES = (
    Storage(frozenset({0}), frozenset({0, 3, 4})),
    Storage(frozenset({0, 6, 7, 8, 9}), frozenset({0})),
)
_ROLES = {1: Role.WEIGHT, 2: Role.RECURRENT_WEIGHT, 3: Role.BIAS}


def _forms(
    product: Product,
    attrs: dict[str, Any],
    lower: Any,
    calls: tuple[Template, ...],
    lower_grad: Any,
    grad_calls: tuple[Template, ...],
    rule: Any,
    inputs: int,
    outputs: dict[str, int],
    storages: tuple[Storage, Storage],
) -> tuple[Op, ...]:
    """Return the op, its training forms and their gradients; `calls`: kernels with its cells.

    inputs: the most of the training forms.  Their gradients make one for each but the lengths, and
        read besides what the forward pass has kept: in the domain `engine` one value more.
    outputs: the most of the training form of each domain.
    storages: of the training forms and of their gradients.
    """
    kind = product.of
    return (
        Op(
            name=kind,
            roles=_ROLES,
            product=product,
            since=7,
            attrs=attrs,
            takes=_TAKES,
            infer=_infer,
            expand=_training(kind),
            becomes=f"{MS}::{kind}Training {OURS}::{kind}Training",
            fold=_never,
            samples=Samples.RECURRENT,
        ),
        *(
            op
            for domain in outputs
            for op in (
                Op(
                    name=f"{kind}Training",
                    domain=domain,
                    inputs=(3, inputs),
                    outputs=outputs[domain],
                    training_only=True,
                    attrs=attrs,
                    takes=_TAKES,
                    infer=_infer,
                    lower=lower,
                    calls=(*calls, *WALK_KERNELS),
                    grad=rule,
                    no_gradient=frozenset({4}),
                    samples=Samples.RECURRENT,
                    storage=storages[0],
                ),
                Op(
                    name=f"{kind}Grad",
                    domain=domain,
                    inputs=(3, inputs + 4 + (domain == OURS)),
                    outputs=inputs - 1,
                    gradient_of=kind,
                    attrs=attrs,
                    takes=_TAKES,
                    infer=_infer_grad,
                    lower=lower_grad,
                    calls=(*grad_calls, *WALK_BACK_KERNELS),
                    accumulates=(1, 2),
                    storage=storages[1],
                ),
            )
        ),
    )


OPS = (
    Op(
        name="LSTMOfIntegers",
        domain=OURS,
        inputs=(4, 8),
        outputs=3,
        may_be_absent=frozenset((4, 5, 6)),
        attrs={name: value for name, value in _LSTM.items() if name != "layout"},
        takes=_TAKES,
        infer=_infer,
        lower=_lstm_of_integers,
        calls=(lstm_integers, recurrent_lengths, *MAP_KERNELS),
        no_gradient=frozenset(range(8)),
        fold=_never,
        samples=Samples.RECURRENT,
        internal=True,
    ),
    Op(
        name="RNN",
        roles=_ROLES,
        product=RNN,
        since=7,
        attrs=_ATTRS,
        takes=_TAKES,
        infer=_infer,
        lower=_rnn,
        calls=(rnn, *WALK_KERNELS),
        grad=_rnn_rule,
        no_gradient=frozenset({4}),
        fold=_never,
        samples=Samples.RECURRENT,
        storage=_RNN_STORAGES[0],
    ),
    Op(
        name="RNNGrad",
        domain=OURS,
        inputs=(6, 8),
        outputs=5,
        may_be_absent=frozenset((3, 4)),
        gradient_of="RNN",
        attrs=_ATTRS,
        takes=_TAKES,
        infer=_infer_grad,
        lower=_rnn_grad,
        calls=(rnn_grad, *WALK_BACK_KERNELS),
        accumulates=(1, 2),
        storage=_RNN_STORAGES[1],
    ),
    *_forms(
        GRU,
        _GRU,
        _gru,
        (gru,),
        _gru_grad,
        (gru_grad_after, gru_grad_before),
        _gru_rule,
        6,
        {MS: 3, OURS: 4},
        _GRU_STORAGES,
    ),
    *_forms(
        LSTM,
        _LSTM,
        _lstm,
        (lstm, lstm_step),
        _lstm_grad,
        (lstm_grad, lstm_grad_step),
        _lstm_rule,
        8,
        {MS: 5, OURS: 5},
        _LSTM_STORAGES,
    ),
)
KERNELS = (
    recurrent_lengths, recurrent_bias, rnn, rnn_grad, lstm, lstm_step, lstm_grad,
    lstm_grad_step, lstm_integers, gru, gru_grad_after, gru_grad_before,
)  # fmt: skip
