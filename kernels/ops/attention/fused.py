"""Attention in one kernel a direction, which planning makes of products and softmax.

Forward   S = scale Q K^T, capped: cap tanh(S / cap), + bias, `fill` where the mask hides a key,
          -inf outside the band; Y = drop(softmax(S)) V; for backward m = max S, log sum exp(S - m)
Backward  P = exp(S - m - log sum) again, block by block; with D = rows of sum(dY * Y):
          dV = drop(P)^T dY,  dP = drop(dY V^T),  dS = P (dP - D),  dbias = sum dS,
          then dS by the cap, dQ = scale dS K,  dK = scale dS^T Q
Error     as softmax.py; the sum over keys in blocks, each rescaled; tests/ops/test_attention.py;
          halves are widened block by block, and results rounded once; where factors of products
          are rounded, P and dS are, after their sums are taken
Source    Dao, "FlashAttention-2", arXiv 2307.08691; Milakov, Gimelshein, "Online normalizer
          calculation for softmax", arXiv 1805.02867

No matrix of scores is ever whole: scratch is of blocks, a thread's own.  Keys outside
the band are not read, so a NaN in their V does not come through.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.fold import FOLDS, fold_axes, reduce_cols
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.machine.target import FACTORS, Target
from engine.kernels.ops.attention.backward import attention_grad, backward_work
from engine.kernels.ops.attention.blocks import ATTENTION_WORDS, UNKNOWN
from engine.kernels.ops.attention.forward import attention, forward_work
from engine.kernels.vocabulary.facts import Storage
from engine.kernels.vocabulary.op import (
    OURS,
    Lowering,
    Op,
    Site,
    TensorType,
    find_stored,
    get_factors,
)

# Rows and columns of a block of scores: with its operands it stays in the second cache.
BLOCK_KEYS, BLOCK_QUERIES = 128, 64
VECTORS = 8  # of a block's row, where these are more columns: they spread the cost of its loops

_FORWARD = {"q": 0, "k": 1, "v": 2, "bias": 3, "mask": 4}
_BACKWARD = {**_FORWARD, "y": 5, "lse": 6, "dy": 7}
_GRADS = ("dq", "dk", "dv", "dbias")


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """The sizes of a node, and where its operands are.

    by_rows, rows_first: the operands that are stored [batch, rows, heads, columns], and [rows,
        batch, heads, columns]; the others are [batch, heads, rows, columns].
    """

    batch: Any  # dimensions, which are known when a node is lowered
    heads: Any
    groups: Any
    queries: Any
    keys: Any
    width: Any
    value_width: Any
    by_rows: frozenset[str]
    rows_first: frozenset[str]

    def find_shape(self, name: str) -> tuple[Any, ...]:
        """Return the shape of a matrix operand as it is stored."""
        kind = name.removeprefix("d")
        heads = self.heads if kind in ("q", "y") else self.groups
        rows = self.queries if kind in ("q", "y") else self.keys
        columns = self.width if kind in ("q", "k") else self.value_width
        # Exporters leave Q, K and V in the layout of the product that made them; the kernel walks
        # strides, so no transpose is needed.
        if name in self.rows_first:
            return (rows, self.batch, heads, columns)
        lead = (rows, heads) if name in self.by_rows else (heads, rows)
        return (self.batch, *lead, columns)

    def find_strides(self, name: str) -> tuple[int, int, int]:
        """Return the elements from batch to batch, head to head, row to row."""
        _, a, b, columns = self.find_shape(name)
        if name in self.rows_first:
            return b * columns, columns, a * b * columns
        if name in self.by_rows:
            return a * b * columns, columns, b * columns
        return a * b * columns, b * columns, columns


def find_form(site: Site) -> AttentionForm:
    """Return the form of a node, after its inputs have been checked against each other."""
    by_rows, rows_first = (
        frozenset(str(site.attrs[name]).split()) for name in ("by_rows", "rows_first")
    )
    shapes: dict[str, tuple[Any, ...]] = {}
    for name in ("q", "k", "v"):
        shape = site.type(_FORWARD[name]).shape
        if len(shape) != 4:
            site.wrong(f"{name} is {site.type(_FORWARD[name])}; expected 4 dimensions")
        a, b, c, d = shape
        if name in rows_first:
            a, b, c = b, c, a
        shapes[name] = (a, c, b, d) if name in by_rows else (a, b, c, d)
    batch, heads, queries, width = shapes["q"]
    _, groups, keys, _ = shapes["k"]
    if isinstance(heads, int) and isinstance(groups, int) and (not groups or heads % groups):
        site.wrong(f"{heads} heads of queries are not divisible by {groups} heads of keys")
    form = AttentionForm(
        batch, heads, groups, queries, keys, width, shapes["v"][3], by_rows, rows_first
    )
    known = _BACKWARD if site.op == "AttentionGrad" else _FORWARD
    for name in ("q", "k", "v", "y", "dy"):
        if name in known:
            site.shaped(known[name], form.find_shape(name))
    return form


def _infer(site: Site) -> tuple[TensorType, ...]:
    form, t = find_form(site), site.real(0)
    return t.but(form.find_shape("y")), t.but((2, form.batch, form.heads, form.queries))


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    form, t = find_form(site), site.real(0)
    together = site.attrs["together"]
    lead = (
        1 if "batch" in together else form.batch,
        1 if "head" in together else form.heads,
    )
    bias = t.but((*lead, form.queries, form.keys))
    return (*(t.but(form.find_shape(name)) for name in _GRADS[:3]), bias)


def _broadcast(site: Site, i: int, form: AttentionForm) -> tuple[int, int, int, int]:
    """Return the strides of an input that must broadcast to the scores, 0 where it does."""
    if not site.has(i):
        return (0, 0, 0, 0)
    t = site.type(i)
    want = (form.batch, form.heads, form.queries, form.keys)
    dims = (1,) * (4 - t.rank) + t.dims
    if t.rank > 4 or any(d not in (1, w) for d, w in zip(dims, want, strict=True)):
        site.wrong(f"input {i} is {t}; it does not broadcast to {list(want)}")
    # Stride 0 along broadcast axes: a mask of one batch or head is read again, not copied.
    steps, step = [], 1
    for d in reversed(dims):
        steps.append(0 if d == 1 else step)
        step *= d
    return (steps[3], steps[2], steps[1], steps[0])


def choose_blocks(target: Target, T: str, queries: int, keys: int) -> tuple[int, int]:
    """Return the columns and rows of the blocks of scores."""
    lanes = target.lanes(ITEMSIZE[T])
    # Blocks of equal size, of whole vectors: a short last block would cut vectors.
    blocks = -(-queries // max(BLOCK_QUERIES, VECTORS * lanes))
    each = -(-queries // blocks)
    return -(-each // lanes) * lanes, min(BLOCK_KEYS, -(-keys // lanes) * lanes)


def _pack_words(site: Site, form: AttentionForm, blocks: tuple[int, int], **more: Any) -> Any:
    """Return the words of a call; `more`: those that the directions have different."""
    attrs = site.attrs
    node = seed = 0
    if "seed" in attrs:
        # A seed of the node replaces the run's seed and the node's number: its mask is the same in
        # every run.
        seed = zlib.crc32(repr(float(attrs["seed"])).encode())
    else:
        node = zlib.crc32(str(attrs["draw"]).encode())
    steps = {name: form.find_strides(name) for name in ("q", "k", "v", "y", "dy", "dq")}
    return ATTENTION_WORDS.pack(
        batch=form.batch,
        heads=form.heads,
        groups=form.groups,
        queries=form.queries,
        keys=form.keys,
        width=form.width,
        value_width=form.value_width,
        bias=_broadcast(site, _FORWARD["bias"], form),
        mask=_broadcast(site, _FORWARD["mask"], form),
        low=attrs.get("low", -UNKNOWN),
        high=attrs.get("high", UNKNOWN),
        keep=attrs["keep"],
        is_biased=int(site.has(_FORWARD["bias"])),
        is_masked=int(site.has(_FORWARD["mask"])),
        is_filled=int(
            site.has(_FORWARD["mask"]) and (math.isfinite(attrs["fill"]) or not attrs["guard"])
        ),
        is_capped=int(attrs["cap"] > 0),
        drops=int(attrs["ratio"] > 0),
        guard=attrs["guard"],
        node=node,
        fixed=int("seed" in attrs),
        seed=seed,
        block_queries=blocks[0],
        block_keys=blocks[1],
        **(steps | more),
    )


def _collect_numbers(site: Site) -> dict[str, Any]:
    return {name: float(site.attrs[name]) for name in ("scale", "cap", "fill", "ratio")}


def _collect_inputs(lowering: Lowering) -> dict[str, Any]:
    """Return the operands that both directions read."""
    site = lowering.site
    given = {name: lowering.x(i) if site.has(i) else None for name, i in _FORWARD.items()}
    return {**given, "noise": lowering.noise() if site.attrs["ratio"] > 0 else None}


def choose_factors(lowering: Lowering, T: str) -> str:
    """Return the type of 16 bits that factors of products are rounded to; empty: they are T.

    Only pairs: sums of f16 would end at 65504, and scores may be larger before they are scaled.
    """
    factor = get_factors(lowering, T)
    return factor if FACTORS.get(factor) == 2 else ""


def list_given(*params: str) -> list[str]:
    """Return parameters of a kernel without the empty ones at the end."""
    return list(params[: max([i + 1 for i, p in enumerate(params) if p], default=0)])


def _lower(lowering: Lowering) -> None:
    site, q = lowering.site, lowering.x(0)
    form, (T, S) = find_form(site), find_stored(q)
    half, factor = "".join(S), choose_factors(lowering, T)
    blocks = choose_blocks(lowering.target, T, form.queries, form.keys)
    lanes = lowering.target.lanes(ITEMSIZE[T])
    # The backward pass reads lse; a forward pass alone has it as scratch.
    lse = (
        lowering.y(1)
        if lowering.wants(1)
        else lowering.temp(T, (2, form.batch, form.heads, form.queries))
    )
    per_thread = forward_work(*blocks, form.width, form.value_width, lanes, half, factor)
    work = lowering.temp(T, (lowering.threads, per_thread))
    lowering.call(
        attention(T, *list_given(half, factor)),
        **_collect_inputs(lowering),
        y=lowering.y(0),
        lse=lse,
        work=work,
        **_collect_numbers(site),
        g=_pack_words(
            site,
            form,
            blocks,
            dk=(0, 0, 0),
            dv=(0, 0, 0),
            dbias=(0, 0, 0, 0),
            wants=(0, 0, 0, 0),
            parts=1,
            part_k=0,
            part_v=0,
            together=(0, 0),
            per_thread=per_thread,
        ),
    )


def count_parts(apart: int, blocks: int, threads: int) -> int:
    """Return how many threads share the queries of a group; `apart`: groups of batch and heads.

    blocks: of queries.  Parts cost a sum over them, so more are taken only for a tenth of the time.
    """

    def time(parts: int) -> float:
        # Rounds of work for the busiest thread, times the blocks of a part.
        return -(-apart * parts // threads) * -(-blocks // parts)

    best = 1
    for parts in range(2, min(threads, blocks) + 1):
        if time(parts) < 0.9 * time(best):
            best = parts
    return best


def _lower_grad(lowering: Lowering) -> None:
    site, q = lowering.site, lowering.x(0)
    form, (T, S) = find_form(site), find_stored(q)
    half, factor = "".join(S), choose_factors(lowering, T)
    batch, groups, keys = form.batch, form.groups, form.keys
    width, columns = form.width, form.value_width
    blocks = choose_blocks(lowering.target, T, form.queries, keys)
    wants = [int(lowering.wants(i)) for i in range(4)]
    # Batches or heads that share one bias add to the same gradient, so one thread has them all.
    together = [int(wants[3] and name in site.attrs["together"]) for name in ("batch", "head")]
    apart = (1 if together[0] else batch) * (1 if together[1] else groups)
    parts = count_parts(apart, -(-form.queries // blocks[0]), lowering.threads)
    outs = [lowering.y(i) if wants[i] else None for i in range(4)]
    steps = {"dk": form.find_strides("dk"), "dv": form.find_strides("dv")}
    # Without parts a thread has the whole of dK and dV of its heads, and writes the outputs itself.
    into: dict[str, Any] = dict(zip(_GRADS, outs, strict=True))
    # Parts of dK and dV, a thread each, which a fold adds up in order: no two threads add to the
    # same place.
    if parts > 1:
        for name, i in (("dk", 1), ("dv", 2)):
            if wants[i]:
                into[name] = lowering.temp(T, (parts, *form.find_shape(name)))
    lanes = lowering.target.lanes(ITEMSIZE[T])
    rounded = half if parts == 1 else ""  # dK and dV; their parts are summed before
    per_thread = backward_work(blocks, keys, (width, columns), lanes, half, rounded, factor)
    work = lowering.temp(T, (lowering.threads, per_thread))
    bias_step = (0, 0, 0, 0)
    if wants[3]:
        square = form.queries * keys
        # Stride 0: heads, or batches, add to the same rows.
        by_head = 0 if "head" in site.attrs["together"] else square
        by_batch = 0 if "batch" in site.attrs["together"] else square
        heads = 1 if not by_head else form.heads
        bias_step = (by_batch * heads, by_head, keys, 1)
    lowering.call(
        attention_grad(T, *list_given(half, rounded, factor)),
        **_collect_inputs(lowering),
        y=lowering.x(_BACKWARD["y"]),
        lse=lowering.x(_BACKWARD["lse"]),
        dy=lowering.x(_BACKWARD["dy"]),
        **into,
        work=work,
        **_collect_numbers(site),
        g=_pack_words(
            site,
            form,
            blocks,
            **steps,
            dbias=bias_step,
            wants=wants,
            parts=parts,
            part_k=batch * groups * keys * width,
            part_v=batch * groups * keys * columns,
            together=together,
            per_thread=per_thread,
        ),
    )
    if parts > 1:
        for name, i in (("dk", 1), ("dv", 2)):
            if not wants[i]:
                continue
            out = lowering.y(i)
            total = lowering.temp(T, form.find_shape(name)) if half else out
            fold_axes(lowering, FOLDS["ReduceSum"], into[name], (0,), total)
            if half:
                lower_map(lowering, [("in", 0)], [total], [out])


_ATTRS: dict[str, Any] = {
    "by_rows": "", "rows_first": "", "cap": 0.0, "fill": -math.inf, "keep": 1, "guard": 0,
    "ratio": 0.0, "draw": "",
}  # fmt: skip
_TAKES: dict[str, Any] = {"low": "int", "high": "int", "seed": "float"}

OPS = (
    Op(
        name="Attention",
        domain=OURS,
        internal=True,
        attrs=_ATTRS,
        needs={"scale": "float"},
        takes=_TAKES,
        infer=_infer,
        lower=_lower,
        calls=(attention,),
        storage=Storage(frozenset({0, 1, 2}), frozenset({0}), alike=True),
        no_gradient=frozenset(range(5)),
    ),
    Op(
        name="AttentionGrad",
        domain=OURS,
        gradient_of="Attention",
        internal=True,
        attrs=_ATTRS | {"together": ""},
        needs={"scale": "float"},
        takes=_TAKES,
        infer=_infer_grad,
        lower=_lower_grad,
        calls=(attention_grad, reduce_cols, *MAP_KERNELS),
        storage=Storage(frozenset({0, 1, 2, 5, 7}), frozenset({0, 1, 2}), alike=True),
        no_gradient=frozenset(range(8)),
    ),
)
