"""Reaches of the kernels of attention and of recurrent networks."""

from __future__ import annotations

from engine.kernels.ops.attention.backward import backward_work
from engine.kernels.ops.attention.forward import forward_work
from engine.kernels.reach.call import Call, Reach, Table, if_, reach, up
from engine.kernels.reach.conv import panels

TABLE: Table = {}

# --- attention

_SIGNED, _FREE = "low high", "keep node seed"


def _matrices(c: Call, name: str, heads: int, rows: int, columns: int) -> int:
    """The reach into matrices of each head."""
    by_batch, by_head, by_row = c.numbers[name]
    return c.span(0, (c.batch, by_batch), (heads, by_head), (rows, by_row), (columns, 1))


def _scores(c: Call, name: str, columns: int) -> int:
    """The reach into what scores are adjusted by; columns: how many are next to each other."""
    steps = zip((c.batch, c.heads, c.queries, c.keys), c.numbers[name], strict=True)
    return max(c.span(0, *steps), if_(columns, _matrices_of(c, name)))


def _matrices_of(c: Call, name: str) -> int:
    by_batch, by_head, by_query, _ = c.numbers[name]
    walks = (c.batch, by_batch), (c.heads, by_head), (c.queries, by_query), (c.keys, 1)
    return c.span(0, *walks)


def _blocks(c: Call) -> None:
    """The sizes that both directions divide by, and blocks that have whole vectors."""
    c.positive("heads", "groups", "block_queries", "block_keys")
    c.at_most("groups", c.heads)
    if up(min(c.block_queries, c.queries), c.lanes) > c.block_queries:
        c.refuse(f"blocks of {c.block_queries} queries; a vector has {c.lanes}")


@reach(TABLE, "attention", writes="y lse work", signed=_SIGNED, free=_FREE)
def _attention(c: Call) -> Reach:
    _blocks(c)
    used = forward_work(c.block_queries, c.block_keys, c.numbers["width"], c.value_width)
    return {
        "q": _matrices(c, "q", c.heads, c.queries, c.numbers["width"]),
        "k": _matrices(c, "k", c.groups, c.keys, c.numbers["width"]),
        "v": _matrices(c, "v", c.groups, c.keys, c.value_width),
        "bias": if_(c.is_biased, _scores(c, "bias", c.bias[3] == 1)),
        "mask": if_(c.is_masked, _scores(c, "mask", c.mask[3] == 1)),
        "noise": if_(c.drops, 2),
        "y": _matrices(c, "y", c.heads, c.queries, c.value_width),
        "lse": 2 * c.batch * c.heads * c.queries,
        "work": c.scratch(c.per_thread, used),
    }


@reach(TABLE, "attention_grad", writes="dq dk dv dbias work", signed=_SIGNED, free=_FREE)
def _attention_grad(c: Call) -> Reach:
    _blocks(c)
    c.positive("parts", "batch")
    width, columns = c.numbers["width"], c.value_width
    wants_q, wants_k, wants_v, wants_bias = c.wants
    used = backward_work(c.block_queries, c.block_keys, width, columns)

    def parts(name: str, step: int, width: int) -> int:
        by_batch, by_head, by_row = c.numbers[name]
        walks = (c.batch, by_batch), (c.groups, by_head), (c.keys, by_row), (width, 1)
        return c.span(0, (c.parts, step), *walks)

    # Rows of Q and dY that are the right factor of a product are read by whole vectors.
    wide = up(width, c.lanes) if wants_k else width
    high = up(columns, c.lanes) if wants_v else columns
    return {
        "q": _matrices(c, "q", c.heads, c.queries, wide),
        "k": _matrices(c, "k", c.groups, c.keys, width),
        "v": _matrices(c, "v", c.groups, c.keys, columns),
        "bias": if_(c.is_biased, _scores(c, "bias", c.bias[3] == 1)),
        "mask": if_(c.is_masked or c.is_filled, _scores(c, "mask", c.mask[3] == 1)),
        "noise": if_(c.drops, 2),
        "y": _matrices(c, "y", c.heads, c.queries, columns),
        "lse": 2 * c.batch * c.heads * c.queries,
        "dy": _matrices(c, "dy", c.heads, c.queries, high),
        "dq": if_(wants_q, _matrices(c, "dq", c.heads, c.queries, width)),
        "dk": if_(wants_k, parts("dk", c.part_k, width)),
        "dv": if_(wants_v, parts("dv", c.part_v, columns)),
        "dbias": if_(wants_bias, _matrices_of(c, "dbias")),
        "work": c.scratch(c.per_thread, used),
    }


# --- recurrent networks


class _Walk:
    """Sizes of a walk over time: elements of one number a row, of states, Y and dY."""

    def __init__(self, c: Call) -> None:
        c.positive("kc")
        self.c, self.n = c, c.hidden
        if c.last < c.first:
            c.refuse(f"directions from {c.first} to {c.last}")
        last = c.last - 1 if c.batch and c.last > c.first else -1

        def rows(steps: int, by_time: int, by_row: int, by_direction: int) -> int:
            if last < 0 or not steps:
                return 0
            return int(c.span(last * by_direction, (steps, by_time), (c.batch, by_row)) * self.n)

        by_time, by_row = c.row
        self.rows, self.y = rows(c.steps, by_time, by_row, 1), rows(c.steps, *c.y)
        self.dy = rows(c.steps, *c.dy)
        self.states = rows(1, 0, *c.state)
        self.lens = if_(last >= 0, c.batch)
        self.last = last

    def panels(self, columns: int, depth: int) -> int:
        """The reach into panels of all directions."""
        if not self.rows:
            return 0
        one = up(columns, self.c.tile_columns) * depth
        return self.last * one + panels(self.c, columns, depth, self.c.tile_columns)

    def bias(self) -> int:
        """The reach into the bias of gates and states."""
        return if_(self.rows, (self.last + 1) * 6 * self.n)


@reach(TABLE, "rnn", writes="gates y h")
def _rnn(c: Call) -> Reach:
    w = _Walk(c)
    return {
        "gates": w.rows, "panels": w.panels(w.n, w.n), "lens": w.lens,
        "h0": w.states, "h": w.states, "y": if_(c.has_y, w.y),
    }  # fmt: skip


@reach(TABLE, "rnn_grad", writes="dgates past dh")
def _rnn_grad(c: Call) -> Reach:
    w = _Walk(c)
    return {
        "y": w.y, "panels": w.panels(w.n, w.n), "lens": w.lens, "h0": w.states, "dy": w.dy,
        "dhn": w.states, "dgates": w.rows, "past": w.rows, "dh": w.states,
    }  # fmt: skip


@reach(TABLE, "lstm", writes="gates y h c cells")
def _lstm(c: Call) -> Reach:
    w, peephole = _Walk(c), c.flag(4)
    return {
        "gates": 4 * w.rows, "panels": w.panels(4 * w.n, w.n), "lens": w.lens,
        "h0": w.states, "c0": w.states, "p": if_(peephole and w.rows, (w.last + 1) * 3 * w.n),
        "y": if_(c.has_y, w.y), "h": w.states, "c": w.states, "cells": if_(c.has_cells, w.rows),
    }  # fmt: skip


@reach(TABLE, "lstm_grad", writes="dgates past dh dc dp")
def _lstm_grad(c: Call) -> Reach:
    w, peephole = _Walk(c), c.flag(5)
    return {
        "gates": 4 * w.rows, "cells": w.rows, "y": w.y, "panels": w.panels(w.n, 4 * w.n),
        "lens": w.lens, "h0": w.states, "c0": w.states,
        "p": if_(peephole and w.rows, (w.last + 1) * 3 * w.n), "dy": w.dy, "dhn": w.states,
        "dcn": w.states, "dgates": 4 * w.rows, "past": w.rows, "dh": w.states, "dc": w.states,
        "dp": if_(peephole, 3 * w.states),
    }  # fmt: skip


@reach(TABLE, "gru", writes="gates y h inner work")
def _gru(c: Call) -> Reach:
    w, after = _Walk(c), c.flag(3)
    return {
        "gates": 3 * w.rows, "panels": w.panels(2 * w.n, w.n), "panels_n": w.panels(w.n, w.n),
        "bias": if_(c.has_bias and after, w.bias()), "lens": w.lens, "h0": w.states,
        "y": if_(c.has_y, w.y), "h": w.states, "inner": if_(c.keeps and after, w.rows),
        "work": if_(not (c.keeps and after) and w.rows, w.states),
    }  # fmt: skip


@reach(TABLE, "gru_grad_after", writes="dgates dinner past dh work")
def _gru_grad_after(c: Call) -> Reach:
    w, again = _Walk(c), not c.kept
    return {
        "gates": 3 * w.rows, "y": w.y, "inner": if_(c.kept, w.rows),
        "panels": w.panels(w.n, 3 * w.n), "panels_n": if_(again, w.panels(w.n, w.n)),
        "bias": if_(again and c.has_bias, w.bias()), "lens": w.lens, "h0": w.states, "dy": w.dy,
        "dhn": w.states, "dgates": 3 * w.rows, "dinner": 3 * w.rows, "past": w.rows,
        "dh": w.states, "work": if_(again and w.rows, w.states),
    }  # fmt: skip


@reach(TABLE, "gru_grad_before", writes="dgates past dh work")
def _gru_grad_before(c: Call) -> Reach:
    w = _Walk(c)
    return {
        "gates": 3 * w.rows, "y": w.y, "panels": w.panels(w.n, 2 * w.n),
        "panels_n": w.panels(w.n, w.n), "lens": w.lens, "h0": w.states, "dy": w.dy,
        "dhn": w.states, "dgates": 3 * w.rows, "past": 3 * w.rows, "dh": w.states,
        "work": if_(w.rows, w.states),
    }  # fmt: skip


@reach(TABLE, "recurrent_pack", writes="b")
def _recurrent_pack(c: Call) -> Reach:
    if not c.directions * c.n * c.k:
        return {}
    full = (c.n - 1) // c.tile_columns
    whole = full + 1
    rest = c.n - full * c.tile_columns
    ends = [(whole * c.directions - 1) * c.tile_columns * c.k + (c.k - 1) * c.tile_columns + rest]
    if c.directions * whole > 1:
        ends.append((whole * c.directions - 1) * c.tile_columns * c.k)
    return {"r": c.at + (c.directions - 1) * c.stride + c.n * c.k, "b": max(ends)}


@reach(TABLE, "recurrent_lengths", writes="out fault")
def _recurrent_lengths(c: Call) -> Reach:
    return {"lens": c.n, "out": c.n, "fault": 4}


@reach(TABLE, "recurrent_bias", writes="y")
def _recurrent_bias(c: Call) -> Reach:
    c.at_most("both", c.n)
    return {"b": 2 * c.directions * c.n, "y": c.directions * c.n}
