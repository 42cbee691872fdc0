"""Attention as onnxruntime's optimisers write it, in three operators of com.microsoft.

Forward   Y = softmax(scale Q K^T + mask + bias) V per head.  The mask adds `mask_filter_value` to
          keys that are padding; unidirectional hides the keys after a query
          Attention: Q, K and V are the three parts of X W + B; JoinedAttention, which stands in
          QAttention (quantised_operators.py), begins with this sum
          MultiHeadAttention: Q, K and V come apart, or packed as [batch, length, heads, 2 or 3,
          width], with one B for the three
          GroupQueryAttention: causal; Q, K and V come apart or as one, K and V have fewer heads,
          and the node rotates Q and K itself (RotaryEmbedding) with `do_rotary`.  Samples are
          padded after their tokens (seqlens_k), so no token sees padding; what padding gets is
          undefined there, and here what a token in its place would get
Backward  through the expansion, as attention.py
Source    onnxruntime's contrib operators Attention-1, MultiHeadAttention-1 and
          GroupQueryAttention-1

Buffers that past and present share, beams, the keys of a GroupQueryAttention from before, and a
rotation inside an Attention are refused: they serve the generation of text, not training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.kernels.ops.attention.attention import (
    add_dims,
    join_heads,
    positions,
    scaled_scores,
    scores_to_output,
    size_of,
    split_heads,
)
from engine.kernels.vocabulary.facts import ATTENTION, WEIGHT_AND_BIAS
from engine.kernels.vocabulary.op import MS, OURS, Dim, Kind, Nodes, Op, Site, TensorType

_REFUSED = ("do_rotary", "past_present_share_buffer")


# --- shapes


def _read_dim(site: Site, d: Dim, name: str) -> int:
    """Return a dimension that must be known: heads are cut from it."""
    if not isinstance(d, int):
        site.fail(f"{name}, {d!r}, is not known", "a fixed size")
    return d


def _find_width(site: Site, hidden: Dim, name: str) -> int:
    """Return the width of a head."""
    heads, hidden = int(site.attrs["num_heads"]), _read_dim(site, hidden, name)
    if heads < 1 or hidden % heads:
        site.wrong(f"{name} is {hidden}, which is not divisible by num_heads={heads}")
    return hidden // heads


def _split_columns(site: Site, columns: Dim) -> tuple[int, int, int]:
    """Return the columns of Q, K and V among the columns of the weights of Attention."""
    columns = _read_dim(site, columns, "the columns of the weights")
    # Equal parts unless the node gives their sizes; Q and K meet in a product, so theirs are equal.
    sizes = tuple(int(n) for n in site.attrs.get("qkv_hidden_sizes", ())) or (columns // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != columns or min(sizes) < 1 or sizes[0] != sizes[1]:
        site.wrong(
            f"the weights have {columns} columns, but Q, K and V need {list(sizes)}; "
            "expected three sizes, the first two equal, that add up to the columns"
        )
    return sizes


def _check_mask(site: Site, i: int, batch: Dim, *, starts: bool) -> None:
    """Refuse masks but lengths [batch], if `starts` ends and starts [2 batch], and 0s and 1s."""
    if not site.has(i):
        return
    mask = site.type(i)
    if mask.dtype not in ("i32", "i64"):
        site.fail(f"the mask (input {i}) is {mask}", "i32, i64")
    if mask.rank not in (1, 2, 3):
        site.fail(
            f"the mask (input {i}) is {mask}", "rank 1 (lengths), 2 or 3 (0 where a key is masked)"
        )
    if mask.rank == 1 and isinstance(mask.shape[0], int) and isinstance(batch, int):
        allowed = [batch, 2 * batch] if starts else [batch]
        if mask.shape[0] not in allowed:
            site.fail(
                f"the mask (input {i}) is {mask}, but the batch has {batch} samples",
                f"{' or '.join(map(str, allowed))} lengths",
            )


def _check_attributes(site: Site) -> None:
    used = [name for name in _REFUSED if site.attrs.get(name)]
    if used:
        site.fail(f"{used[0]} is set", "attention without rotation and shared buffers")


def _infer_attention(site: Site) -> tuple[TensorType, ...]:
    x, w = site.real(0), site.real(1)
    if x.rank != 3 or w.rank != 2 or w.dtype != x.dtype:
        site.wrong(
            f"the input is {x}, the weights {w}; expected [batch, length, n] and [n, columns]"
        )
    site.shaped(1, (x.shape[2], w.shape[1]))
    if site.has(2):
        site.shaped(2, (w.shape[1],))
    return infer_joined_parts(site, x.but((*x.shape[:2], w.shape[1])), mask=3, past=4)


def _infer_joined(site: Site) -> tuple[TensorType, ...]:
    product = site.real(0)
    if product.rank != 3:
        site.wrong(f"the product is {product}; expected [batch, length, columns]")
    return infer_joined_parts(site, product, mask=1, past=2)


def infer_joined_parts(
    site: Site, product: TensorType, *, mask: int, past: int
) -> tuple[TensorType, ...]:
    """Return the types of the outputs for Q, K and V in one product [batch, length, columns].

    mask, past: the inputs of the node that hold them.
    """
    _check_attributes(site)
    batch, length, columns = product.shape
    sizes = _split_columns(site, columns)
    _check_mask(site, mask, batch, starts=True)
    widths = [_find_width(site, n, "the size of a part") for n in sizes]
    heads, keys = int(site.attrs["num_heads"]), add_dims(_count_past(site, past, 3), length)
    present = product.but((2, batch, heads, keys, widths[1]))
    return (product.but((batch, length, sizes[2])), present)[: site.n_outs]


def _count_past(site: Site, i: int, axis: int) -> Dim:
    """Return how many keys are kept from before."""
    return site.type(i).shape[axis] if site.has(i) else 0


def _find_form(site: Site) -> str:
    """Return how Q, K and V of a MultiHeadAttention come.

    "apart": [batch, length, hidden] each; "heads": K and V are [batch, heads, length, width];
    "kv": K and V are one input of rank 5; "qkv": all three are.
    """
    q = site.real(0)
    if not site.has(1):
        # Packed: one input holds Q, K and V of each head side by side.
        if q.rank != 5 or site.has(2):
            site.fail(
                f"the query is {q}, and there is no key",
                "[batch, length, heads, 3, width], which holds Q, K and V",
            )
        return "qkv"
    k = site.real(1)
    if q.rank != 3 or k.rank not in (3, 4, 5):
        site.wrong(
            f"the query is {q} and the key {k}; expected a query of rank 3 and a key of "
            "rank 3, 4 or 5"
        )
    if site.has(2) != (k.rank != 5):
        site.wrong(
            f"the key is {k}; expected a value with a key of rank 3 or 4, and none with "
            "one of rank 5"
        )
    return {3: "apart", 4: "heads", 5: "kv"}[k.rank]


def _infer_heads(site: Site) -> tuple[TensorType, ...]:
    form, q, heads = _find_form(site), site.real(0), int(site.attrs["num_heads"])
    if any(site.has(i) for i in (8, 9)):
        site.fail("past_sequence_length or cache_indirection is given", "past_key, past_value")
    _check_attributes(site)
    if site.has(6) != site.has(7):
        site.wrong("past_key and past_value must come together")
    batch, length = q.shape[0], q.shape[1]
    if form == "qkv":
        site.shaped(0, (batch, length, heads, 3, q.shape[4]))
        new, hidden = length, heads * _read_dim(site, q.shape[4], "the width of a head")
        values: Dim = hidden
    else:
        k, hidden = site.type(1), _read_dim(site, q.shape[2], "the hidden size of the query")
        width = _find_width(site, hidden, "the hidden size of the query")
        new = k.shape[2] if form == "heads" else k.shape[1]
        match form:
            case "apart":
                site.shaped(1, (batch, new, hidden))
                values = site.shaped(2, (batch, new, site.type(2).shape[-1])).shape[2]
            case "heads":
                site.shaped(1, (batch, heads, new, width))
                v = site.shaped(2, (batch, heads, new, site.type(2).shape[-1]))
                values = heads * _read_dim(site, v.shape[3], "the width of a value")
            case _:
                site.shaped(1, (batch, new, heads, 2, width))
                values = hidden
    value_width = _find_width(site, values, "the hidden size of the value")
    if site.has(3):
        if form in ("heads", "kv"):
            site.fail(
                f"a bias (input 3) is given, but the key is {site.type(1)}",
                "a bias with a key of rank 3",
            )
        site.shaped(3, (2 * hidden + int(values),))
    _check_mask(site, 4, batch, starts=False)
    keys = add_dims(_count_past(site, 6, 2), new)
    return (
        q.but((batch, length, values)),
        q.but((batch, heads, keys, hidden // heads)),
        q.but((batch, heads, keys, value_width)),
        q.but((batch, heads, length, keys)),
    )[: site.n_outs]


# --- expansion


def _columns(nodes: Nodes, x: str, sizes: Sequence[int], axis: int) -> tuple[str, ...]:
    """Cut a value along an axis into parts of these sizes."""
    made = nodes.op("Split", x, nodes.const(list(sizes), "i64"), outputs=len(sizes), axis=axis)
    return tuple(made)


def _padding(nodes: Nodes, i: int, k: str) -> str:
    """Return what the mask, input i, adds to the scores [batch, heads, queries, keys]."""
    site, mask = nodes.site, nodes.x(i)
    t = site.type(i)
    # Lengths: keys from the length on are padding.  With 2 batch numbers the second half says where
    # keys start, for padding on the left.
    if t.rank == 1:
        batch = size_of(nodes, k, 0)
        zero, one = nodes.const(0, "i64"), nodes.const(1, "i64")
        at = nodes.op("Range", zero, size_of(nodes, k, 2), one)
        column = nodes.op("Unsqueeze", nodes.op("Cast", mask, to=7), nodes.const([1], "i64"))
        first = nodes.op("Unsqueeze", batch, nodes.const([0], "i64"))
        ends = nodes.op("Slice", column, nodes.const([0], "i64"), first)
        seen = nodes.op("Less", at, ends)
        if t.shape[0] != site.type(0).shape[0]:
            starts = nodes.op("Slice", column, first, nodes.const([2**31 - 1], "i64"))
            seen = nodes.op("And", seen, nodes.op("GreaterOrEqual", at, starts))
        axes = [1, 2]
    else:
        seen = nodes.op("Greater", mask, nodes.const(0, t.dtype))
        # A mask lacks the axis of heads, and one of rank 2 the axis of queries too.
        axes = [1] if t.rank == 3 else [1, 2]
    added = nodes.op(
        "Where", seen, nodes.like(0.0, 0), nodes.like(float(site.attrs["mask_filter_value"]), 0)
    )
    return str(nodes.op("Unsqueeze", added, nodes.const(axes, "i64")))


def _attend(
    nodes: Nodes, q: str, k: str, v: str, *, mask: int, bias: int, past: str, width: int
) -> tuple[str, str]:
    """Return Y [batch, queries, heads * width], and the scores before softmax.

    q, k, v: [batch, heads, length, width].  mask, bias: the inputs of the node that hold them.
    past: a value whose axis 2 counts the keys from before, or "".
    """
    site = nodes.site
    if not width:
        site.wrong("the heads have width 0; expected 1 or more")
    scores = scaled_scores(nodes, q, k, float(site.attrs.get("scale") or width**-0.5))
    if site.has(bias):
        # Mask and bias are added as they are, finite: a query whose keys are all padding still has
        # a softmax, as in onnxruntime.
        scores = nodes.op("Add", scores, nodes.x(bias))
    if site.has(mask):
        scores = nodes.op("Add", scores, _padding(nodes, mask, k))
    masks = []
    if site.attrs["unidirectional"]:
        rows, cols = positions(nodes, q, k, size_of(nodes, past, 2) if past else "")
        masks = [nodes.op("LessOrEqual", cols, rows)]
    y, biased, _ = scores_to_output(nodes, scores, v, masks, "", site.type(0).dtype, is_open=True)
    return join_heads(nodes, y), biased


def _expand_attention(nodes: Nodes) -> tuple[str, ...]:
    product = nodes.op("MatMul", nodes.x(0), nodes.x(1))
    if nodes.site.has(2):
        product = nodes.op("Add", product, nodes.x(2))
    sizes = _split_columns(nodes.site, nodes.site.type(1).shape[1])
    return _attend_joined(nodes, product, sizes, mask=3, past=4, bias=5)


def _expand_joined(nodes: Nodes) -> tuple[str, ...]:
    sizes = _split_columns(nodes.site, nodes.site.type(0).shape[2])
    return _attend_joined(nodes, nodes.x(0), sizes, mask=1, past=2, bias=3)


def _attend_joined(
    nodes: Nodes, product: str, sizes: Sequence[int], *, mask: int, past: int, bias: int
) -> tuple[str, str]:
    """Return Y and the new cache, or "" if nobody reads it.

    product: Q, K and V as columns of one value, so many of each as `sizes` says.
    mask, past, bias: the inputs of the node that hold them.
    """
    site, heads = nodes.site, int(nodes.site.attrs["num_heads"])
    q, k, v = (split_heads(nodes, part, heads) for part in _columns(nodes, product, sizes, 2))
    before = ""
    if site.has(past):
        # The cache holds keys and values in one tensor: [2, batch, heads, length, width].
        kept = _columns(nodes, nodes.x(past), (1, 1), 0)
        before, values = (nodes.op("Squeeze", x, nodes.const([0], "i64")) for x in kept)
        k, v = nodes.op("Concat", before, k, axis=2), nodes.op("Concat", values, v, axis=2)
    y, _ = _attend(nodes, q, k, v, mask=mask, bias=bias, past=before, width=sizes[0] // heads)
    present = ""
    if nodes.wants(1):
        # The cache that the next call reads, in the same form.
        both = (nodes.op("Unsqueeze", x, nodes.const([0], "i64")) for x in (k, v))
        present = nodes.op("Concat", *both, axis=0)
    return (y, present)


def _unpack(nodes: Nodes, x: str, count: int) -> tuple[str, ...]:
    """[batch, length, heads, count, width] -> count times [batch, heads, length, width]."""
    apart = nodes.op("Transpose", x, perm=[3, 0, 2, 1, 4])
    zero = nodes.const([0], "i64")
    return tuple(nodes.op("Squeeze", p, zero) for p in _columns(nodes, apart, (1,) * count, 0))


def _biased(nodes: Nodes, parts: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """Add the parts of the bias, input 3, to Q, K and V of [batch, heads, length, width]."""
    heads = int(nodes.site.attrs["num_heads"])
    made = []
    for x, b in zip(parts, _columns(nodes, nodes.x(3), sizes, 0), strict=True):
        row = nodes.op("Reshape", b, nodes.const([heads, 1, -1], "i64"))
        made.append(str(nodes.op("Add", x, row)))
    return made


def _expand_heads(nodes: Nodes) -> tuple[str, ...]:
    site, heads = nodes.site, int(nodes.site.attrs["num_heads"])
    form, t = _find_form(site), site.type(0)
    hidden = heads * int(t.shape[4]) if form == "qkv" else int(t.shape[2])
    if form == "qkv":
        parts = list(_unpack(nodes, nodes.x(0), 3))
    else:
        parts = [split_heads(nodes, nodes.x(0), heads)]
        match form:
            case "kv":
                parts += _unpack(nodes, nodes.x(1), 2)
            case "heads":
                parts += [nodes.x(1), nodes.x(2)]
            case _:
                parts += [split_heads(nodes, nodes.x(i), heads) for i in (1, 2)]
    if site.has(3):
        total = _read_dim(site, site.type(3).shape[0], "the size of the bias")
        parts = _biased(nodes, parts, (hidden, hidden, total - 2 * hidden))
    q, k, v = parts
    before = ""
    if site.has(6):
        before = nodes.x(6)
        k = nodes.op("Concat", before, k, axis=2)
        v = nodes.op("Concat", nodes.x(7), v, axis=2)
    y, scores = _attend(nodes, q, k, v, mask=4, bias=5, past=before, width=hidden // heads)
    return (y, k, v, scores)


# --- grouped queries

_FLAGS = {"smooth_softmax": 0, "qk_output": 0, "kv_cache_bit_width": 0}  # what they may be alone
_TYPES = ("k_quant_type", "v_quant_type")


def _find_grouped_widths(site: Site) -> tuple[int, int, int]:
    """Return the heads of queries, the heads of keys and values, and the width of a head."""
    heads, kv_heads = int(site.attrs["num_heads"]), int(site.attrs["kv_num_heads"])
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        site.wrong(f"num_heads={heads} is not divisible by kv_num_heads={kv_heads}")
    hidden = _read_dim(site, site.real(0).shape[-1], "the hidden size of the query")
    count = heads if site.has(1) else heads + 2 * kv_heads
    if not hidden or hidden % count:
        site.wrong(f"the query has {hidden} columns, which are not divisible by {count} heads")
    return heads, kv_heads, hidden // count


def _infer_grouped(site: Site) -> tuple[TensorType, ...]:
    q = site.real(0)
    if q.rank != 3:
        site.wrong(f"the query is {q}; expected [batch, length, hidden]")
    heads, kv_heads, width = _find_grouped_widths(site)
    batch, length = q.shape[:2]
    if site.has(1) != site.has(2):
        site.wrong("a key and a value must come together")
    for i in (1, 2):
        if site.has(i):
            site.shaped(i, (batch, length, kv_heads * width))
    for i, name in ((3, "past_key"), (4, "past_value"), (11, "head_sink")):
        if site.has(i):
            site.fail(f"{name} is given", "a whole sequence at once, without keys from before")
    used = [f"{n} is {site.attrs[n]}" for n, none in _FLAGS.items() if site.attrs[n] != none]
    used += [f"{n} is {site.attrs[n]}" for n in _TYPES if site.attrs[n] not in ("NONE", b"NONE")]
    if used:
        site.fail(used[0], "a plain softmax, and keys and values that are not quantised")
    if site.attrs["do_rotary"] and not (site.has(7) and site.has(8)):
        site.wrong("do_rotary is set; expected cos_cache and sin_cache")
    present = q.but((batch, kv_heads, length, width))
    return (q.but((batch, length, heads * width)), present, present)[: site.n_outs]


def _expand_grouped(nodes: Nodes) -> tuple[str, ...]:
    site, attrs = nodes.site, nodes.site.attrs
    heads, kv_heads, width = _find_grouped_widths(site)
    q, k, v = nodes.x(0), nodes.x(1) if site.has(1) else "", nodes.x(2) if site.has(2) else ""
    if not k:
        q, k, v = _columns(nodes, q, [heads * width, kv_heads * width, kv_heads * width], 2)
    if attrs["do_rotary"]:
        # The tables say how much of a head is rotated: a column for each pair of numbers.
        half = _read_dim(site, site.type(7).shape[1], "the columns of cos_cache")
        position = nodes.x(9) if site.has(9) else nodes.const([0], "i64")
        rotation = {"interleaved": attrs["rotary_interleaved"], "rotary_embedding_dim": 2 * half}
        tables = (position, nodes.x(7), nodes.x(8))
        q, k = (
            nodes.op("RotaryEmbedding", x, *tables, domain=MS, num_heads=count, **rotation)
            for x, count in ((q, heads), (k, kv_heads))
        )
    bias = [nodes.x(10)] if site.has(10) else []
    # The op counts the keys before the query, so the query itself is subtracted.
    window = int(attrs["local_window_size"])  # counts the query itself
    return tuple(
        nodes.op(
            "Attention",
            *(q, k, v, *bias),
            outputs=3,
            is_causal=1,
            q_num_heads=heads,
            kv_num_heads=kv_heads,
            scale=float(attrs["scale"]) or width**-0.5,
            softcap=float(attrs["softcap"]),
            left_window_size=window - 1 if window > 0 else -1,
        )
    )


_GROUPED: dict[str, Any] = {
    "do_rotary": 0, "rotary_interleaved": 0, "scale": 0.0, "softcap": 0.0,
    "local_window_size": -1, **_FLAGS, **dict.fromkeys(_TYPES, "NONE"),
}  # fmt: skip
_ATTRS: dict[str, Any] = {"mask_filter_value": -10000.0, "unidirectional": 0}
# Attributes of Attention, and of operators that contain it.
JOINED: dict[str, Any] = {
    "attrs": _ATTRS | dict.fromkeys(_REFUSED, 0),
    "needs": {"num_heads": "int"},
}
_TAKEN: dict[str, Kind] = {
    "scale": "float",
    "qkv_hidden_sizes": "ints",
    "rotary_embedding_dim": "int",
}
_MAKES = (
    "Add Cast Concat Greater Less LessOrEqual MatMul Range Reshape Shape Slice "
    f"Gather Softmax Split Squeeze Transpose Unsqueeze Where {MS}::FusedMatMul"
)

OPS = (
    Op(
        name="Attention",
        roles=WEIGHT_AND_BIAS,
        product=ATTENTION,
        domain=MS,
        inputs=(2, 7),
        outputs=2,
        **JOINED,
        takes=_TAKEN,
        infer=_infer_attention,
        expand=_expand_attention,
        becomes=f"{_MAKES} And GreaterOrEqual",
        no_gradient=frozenset((3, 6)),
    ),
    Op(
        name="JoinedAttention",
        domain=OURS,
        inputs=(1, 4),
        outputs=2,
        **JOINED,
        takes=_TAKEN,
        infer=_infer_joined,
        expand=_expand_joined,
        becomes=f"{_MAKES} And GreaterOrEqual",
        no_gradient=frozenset(range(4)),
        internal=True,
    ),
    Op(
        name="MultiHeadAttention",
        product=ATTENTION,
        domain=MS,
        inputs=(1, 10),
        outputs=4,
        attrs=_ATTRS,
        needs={"num_heads": "int"},
        takes={"scale": "float"},
        infer=_infer_heads,
        expand=_expand_heads,
        becomes=_MAKES,
        no_gradient=frozenset((4, 8, 9)),
    ),
    Op(
        name="GroupQueryAttention",
        product=ATTENTION,
        domain=MS,
        inputs=(7, 14),
        outputs=4,
        may_be_absent=frozenset((1, 2, 3, 4)),
        attrs=_GROUPED,
        needs={"num_heads": "int", "kv_num_heads": "int"},
        infer=_infer_grouped,
        expand=_expand_grouped,
        becomes=f"Attention Split {MS}::RotaryEmbedding",
        no_gradient=frozenset((5, 6, 9)),
    ),
)
