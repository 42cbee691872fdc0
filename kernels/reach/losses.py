"""Reaches of the kernels of losses, of softmax, of normalisation and of collective steps."""

from __future__ import annotations

from collections.abc import Iterator

from engine.kernels.loops.map import walked
from engine.kernels.reach.call import OPERANDS, Call, Reach, Table, if_, reach
from engine.kernels.reach.index import STATUS
from engine.kernels.vocabulary.row_program import Program

TABLE: Table = {}


# --- losses


def _labels(c: Call, count: int) -> dict[str, int]:
    return {
        "label": count,
        "weight": if_(c.weighted, c.classes),
        "ignore": if_(c.ignored, 1),
        "fault": STATUS,
    }


@reach(TABLE, "likelihood", writes="loss sums fault")
def _likelihood(c: Call) -> Reach:
    count = c.n * c.inner
    return {
        **_labels(c, count),
        "x": count * c.classes,
        "lse": if_(c.shifted, count),
        "loss": if_(c.each, count),
        "sums": if_(not c.each, 2 * c.threads),
    }


@reach(TABLE, "total_loss", writes="loss")
def _total_loss(c: Call) -> Reach:
    return {"sums": 2 * c.parts, "loss": 1}


@reach(TABLE, "label_weights", writes="sums fault")
def _label_weights(c: Call) -> Reach:
    return {**_labels(c, c.n), "sums": c.threads}


@reach(TABLE, "cross_entropy_grad_rows", writes="dx fault")
def _cross_entropy_grad_rows(c: Call) -> Reach:
    size = c.n * c.classes
    dy = c.span(0, (c.n, c.each))
    return {**_labels(c, c.n), "dy": dy, "logp": size, "sums": c.parts, "dx": size}


@reach(TABLE, "cross_entropy_grad_cols", writes="dx fault work")
def _cross_entropy_grad_cols(c: Call) -> Reach:
    c.positive("block")
    count = c.n * c.inner
    return {
        **_labels(c, count),
        "dy": c.span(0, (count, c.each)),
        "logp": count * c.classes,
        "sums": c.parts,
        "dx": count * c.classes,
        "work": if_(count, c.scratch(c.block, min(c.block, c.inner))),
    }


@reach(TABLE, "ctc", writes="loss work fault")
def _ctc(c: Call) -> Reach:
    used = 4 * (2 * c.numbers["width"] + 3)
    return {**_sequences(c), "loss": c.n, "work": if_(c.n, c.scratch(used, used))}


@reach(TABLE, "ctc_grad", writes="dx work fault")
def _ctc_grad(c: Call) -> Reach:
    used = (c.steps + 3) * (2 * c.numbers["width"] + 3)
    return {
        **_sequences(c),
        "dy": c.n,
        "dx": c.steps * c.n * c.classes,
        "work": if_(c.n, c.scratch(used, used)),
    }


def _sequences(c: Call) -> dict[str, int]:
    if c.n * c.steps:
        c.at_most("blank", c.classes - 1)
    return {
        "logp": c.steps * c.n * c.classes,
        "label": c.n * c.numbers["width"],
        "inputs": c.n,
        "lengths": c.n,
        "fault": STATUS,
    }


# --- normalisation


@reach(TABLE, "layer_norm", writes="y mean inv")
def _layer_norm(c: Call) -> Reach:
    size, form = c.rows * c.n, str(c.params[2])
    return {
        "x": size, "scale": if_("s" in form and size, c.n), "b": if_("b" in form and size, c.n),
        "y": size, "mean": c.rows, "inv": c.rows,
    }  # fmt: skip


@reach(TABLE, "layer_norm_grad", writes="dx part")
def _layer_norm_grad(c: Call) -> Reach:
    size, rows = if_(c.parts, c.rows * c.n), if_(c.parts, c.rows)
    return {
        "dy": size, "x": size, "scale": if_(c.params[2] and size, c.n),
        "mean": if_(not c.flag(1), rows), "inv": rows, "dx": size,
        "part": if_(c.flag(3), 2 * c.parts * c.n),
    }  # fmt: skip


def _sums(c: Call) -> Program:
    return Program.of(str(c.params[1]), c.T)


def _nothing(c: Call) -> Iterator[int]:
    return iter(())


def _by_columns(c: Call, kinds: list[str]) -> list[int]:
    """The reach into operands whose rows are `steps` apart."""
    c.positive("chunk", "block", "parts")
    return [
        c.span(0, (c.rows, step), (c.n, int(kind != "s")))
        for kind, step in zip(kinds, c.steps, strict=True)
    ]


@reach(TABLE, "channel_sums_cols", writes="part", written=_nothing)
def _channel_sums_cols(c: Call) -> Reach:
    program = _sums(c)
    return {
        "part": c.parts * len(program.reductions) * c.n,
        OPERANDS: _by_columns(c, [i.kind for i in program.ins]),
    }


@reach(TABLE, "channel_sums_rows", writes="part", written=_nothing)
def _channel_sums_rows(c: Call) -> Reach:
    program = _sums(c)
    kinds = [i.kind for i in program.ins]
    return {
        "part": c.dims[0] * c.dims[1] * len(program.reductions),
        OPERANDS: walked(c, kinds, c.dims, c.steps, c.n),
    }


@reach(TABLE, "channel_sums_join", writes="y")
def _channel_sums_join(c: Call) -> Reach:
    walks = ((c.parts, c.stride), (c.folds, c.channels), (c.channels, 1))
    first = c.begin + c.channels
    return {"part": if_(c.channels, max(c.span(c.begin, *walks), first)), "y": c.channels}


@reach(TABLE, "channel_moments_cols", writes="part work", written=_nothing)
def _channel_moments_cols(c: Call) -> Reach:
    (x,) = _by_columns(c, ["v"])
    used = c.scratch(2 * c.chunk, c.chunk + min(c.chunk, c.n))
    return {"part": 2 * c.parts * c.n, "work": if_(x, used), OPERANDS: [x]}


@reach(TABLE, "channel_moments_rows", writes="part")
def _channel_moments_rows(c: Call) -> Reach:
    rows = c.images * c.channels
    return {"x": rows * c.n, "part": if_(c.n, 2 * rows)}


@reach(TABLE, "channel_moments_join", writes="mean var")
def _channel_moments_join(c: Call) -> Reach:
    c.positive("parts", "folds")
    return {"part": 2 * c.parts * c.folds * c.channels, "mean": c.channels, "var": c.channels}


# --- collective steps


@reach(TABLE, "all_reduce", writes="y ranks", free="ordinal")
def _all_reduce(c: Call) -> Reach:
    return {"x": c.n, "y": c.n, "ranks": 1}


@reach(TABLE, "agree", writes="y ranks", free="ordinal")
def _agree(c: Call) -> Reach:
    return {"x": c.n, "y": c.n, "share": if_(c.n, 1), "ranks": 1}


@reach(TABLE, "reduce_moments", writes="y ranks", free="ordinal")
def _reduce_moments(c: Call) -> Reach:
    return {"mean": c.n, "y": 2 * c.n, "var": c.n, "samples": 1, "ranks": 1}


@reach(TABLE, "join_moments", writes="mean var")
def _join_moments(c: Call) -> Reach:
    return {"x": 2 * c.n, "mean": c.n, "var": c.n}
