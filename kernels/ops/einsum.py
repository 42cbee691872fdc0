"""Einsum: products of tensors summed over named axes, as transposes, reshapes and matrix products.

Forward   operands are folded from the left, two at a time; a pair is one batched matrix product
          Y[batch, m, n] = sum over k of A[batch, m, k] B[batch, k, n], where m, n, k and batch are
          groups of axes: of A alone, of B alone, of both but not kept, of both and kept
Backward  dX = Einsum(dY, the other operands) with X's term as the output's; axes that only X has
          come from a tensor of ones, a repeated letter from an identity matrix
Error     kernels/loops/gemm.py
Source    ONNX Einsum-12
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.base import limits
from engine.kernels.vocabulary.facts import EINSUM, Samples
from engine.kernels.vocabulary.op import MS, Dim, Grad, Nodes, Op, Site, TensorType

_ELLIPSIS = [chr(c) for c in range(0x100, 0x140)]  # letters for the axes `...` stands for


class _Equation(NamedTuple):
    """The terms, each a string of one letter an axis; an ellipsis is written out."""

    terms: tuple[str, ...]
    out: str

    def __str__(self) -> str:
        return f"{','.join(self.terms)}->{self.out}"


def _parse(site: Site) -> _Equation:
    """Return the equation of a node, checked against the ranks of its operands."""
    text = site.attrs["equation"].replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(site.ins):
        site.wrong(f"equation {text!r} has {len(terms)} terms for {len(site.ins)} operands")
    widths = []
    for i, term in enumerate(terms):
        rank, letters = site.type(i).rank, term.replace("...", "")
        bare = all(c in string.ascii_letters or ord(c) >= 0x100 for c in letters)
        if not bare or term.count("...") > 1 or len(letters) > rank:
            site.wrong(
                f"term {term!r} of equation {text!r} does not fit operand {i}, {site.type(i)}"
            )
        if "..." not in term and len(letters) != rank:
            site.wrong(
                f"term {term!r} of equation {text!r} does not fit operand {i}, {site.type(i)}"
            )
        widths.append(rank - len(letters))
    # The ellipsis stands for the most axes that any term leaves; shorter ones align at the right,
    # as broadcasting does.
    every = "".join(_ELLIPSIS[: max(widths)])
    # Without an output term: letters that occur once, in alphabetical order.
    if not arrow:
        counts = Counter("".join(terms).replace("...", ""))
        out = "..." + "".join(sorted(c for c, n in counts.items() if n == 1))
    full = [t.replace("...", every[len(every) - w :]) for t, w in zip(terms, widths, strict=True)]
    final = out.replace("...", every)
    if len(set(final)) != len(final) or not set(final) <= set("".join(full)):
        site.wrong(f"the output term {out!r} of equation {text!r} repeats or invents a letter")
    return _Equation(tuple(full), final)


def _read_sizes(site: Site, equation: _Equation) -> dict[str, Dim]:
    """Return the size of each letter; sizes of one letter are equal, or 1.

    A symbolic size may be 1, as in `broadcast`: beside a number the letter has this number, beside
    another symbol a new one.
    """
    sizes: dict[str, Dim] = {}
    for i, term in enumerate(equation.terms):
        own: dict[str, Dim] = {}
        for letter, d in zip(term, site.type(i).shape, strict=True):
            if (
                own.setdefault(letter, d) != d
                and isinstance(d, int)
                and isinstance(own[letter], int)
            ):
                site.wrong(
                    f"operand {i} gives the letter {letter!r} the sizes {own[letter]} and "
                    f"{d} in {equation}"
                )
            old = sizes.setdefault(letter, d)
            if d in (1, old):
                continue
            if old == 1 or (isinstance(old, str) and isinstance(d, int)):
                sizes[letter] = d
            elif isinstance(d, int):
                site.wrong(
                    f"operand {i} gives the letter {letter!r} the size {d}, but an "
                    f"operand before it {old}, in {equation}"
                )
            elif isinstance(old, str):
                sizes[letter] = f"{site.name}_{letter}"
    return sizes


def _infer(site: Site) -> tuple[TensorType, ...]:
    equation = _parse(site)
    kinds = {site.real(i).dtype for i in range(len(site.ins))}
    if len(kinds) > 1:
        site.fail(f"the operands are {' and '.join(sorted(kinds))}", "one element type")
    sizes = _read_sizes(site, equation)
    return (site.type(0).but([sizes[c] for c in equation.out]),)


# --- expansion


class _Factor(NamedTuple):
    """A value with the letter and the size of each of its axes."""

    name: str
    term: str
    dims: tuple[int, ...]


def _expand(nodes: Nodes) -> tuple[str, ...]:
    equation = _parse(nodes.site)
    if len(equation.terms) == 2 and (simple := _plain_product(nodes, equation)):
        return (simple,)
    sizes = {c: int(d) for c, d in _read_sizes(nodes.site, equation).items()}
    factors = []
    for i, term in enumerate(equation.terms):
        factors.append(_take_diagonal(nodes, _Factor(nodes.x(i), term, nodes.site.type(i).dims)))
    # Letters that a later operand or the output names are kept; all others are summed as soon as
    # possible.
    first, *rest = factors
    for k, factor in enumerate(rest, 1):
        later = set(equation.out).union(*(f.term for f in rest[k:]))
        first = _multiply(nodes, first, factor, later)
    first = _sum(nodes, first, set(equation.out))
    first = _transpose(nodes, first, equation.out)
    want = tuple(sizes[c] for c in equation.out)
    return (
        first.name if first.dims == want else nodes.op("Expand", first.name, _i64(nodes, want)),
    )


def _plain_product(nodes: Nodes, equation: _Equation) -> str | None:
    """Return one FusedMatMul where the axes already stand as it wants them."""
    (a, b), out = equation.terms, equation.out
    if min(len(a), len(b), len(out)) < 2 or not len(a) == len(b) == len(out):
        return None
    lead = out[:-2]
    m, n = out[-2], out[-1]
    summed = (set(a) & set(b)) - set(out)
    if a[:-2] != lead or b[:-2] != lead or len(summed) != 1:
        return None
    (k,) = summed
    if any(nodes.site.type(0).shape[i] != nodes.site.type(1).shape[i] for i in range(len(lead))):
        return None
    if nodes.site.type(0).shape[a.index(k)] != nodes.site.type(1).shape[b.index(k)]:
        return None
    # The usual products as they are, without transposes: planning fuses a FusedMatMul further.
    flags = {m + k: 0, k + m: 1}, {k + n: 0, n + k: 1}
    if a[-2:] not in flags[0] or b[-2:] not in flags[1]:
        return None
    ta, tb = flags[0][a[-2:]], flags[1][b[-2:]]
    return str(
        nodes.op("FusedMatMul", nodes.x(0), nodes.x(1), domain=MS, transA=ta, transB=tb, alpha=1.0)
    )


def _i64(nodes: Nodes, values: Sequence[int]) -> str:
    return nodes.const(list(values), "i64")


def _check_mask(site: Site, size: int) -> None:
    """Refuse a repeated letter of so many elements that the mask of the diagonal is too large.

    Raises:
        LimitError: it is.
    """
    limits.check("CONSTANT_BYTES", 8 * size * size, site.where, "the mask of a diagonal takes")


def _take_diagonal(nodes: Nodes, f: _Factor) -> _Factor:
    """Repeated letters: by a mask and a sum, `iij` -> `ij`."""
    for letter in dict.fromkeys(c for c in f.term if f.term.count(c) > 1):
        while f.term.count(letter) > 1:
            a, b = f.term.index(letter), f.term.rindex(letter)
            _check_mask(nodes.site, f.dims[a])
            # A mask of ones on the diagonal: its gradient follows from Mul and ReduceSum.
            eye = np.eye(f.dims[a]).reshape(
                [f.dims[i] if i in (a, b) else 1 for i in range(len(f.term))]
            )
            masked = nodes.op("Mul", f.name, nodes.const(eye, nodes.site.type(0).dtype))
            name = nodes.op("ReduceSum", masked, _i64(nodes, [b]), keepdims=0)
            f = _Factor(name, f.term[:b] + f.term[b + 1 :], (*f.dims[:b], *f.dims[b + 1 :]))
    return f


def _sum(nodes: Nodes, f: _Factor, kept: set[str]) -> _Factor:
    """Sum over the letters that no other operand and not the output names."""
    axes = [i for i, c in enumerate(f.term) if c not in kept]
    if not axes:
        return f
    name = nodes.op("ReduceSum", f.name, _i64(nodes, axes), keepdims=0)
    rest = [i for i in range(len(f.term)) if i not in axes]
    return _Factor(name, "".join(f.term[i] for i in rest), tuple(f.dims[i] for i in rest))


def _transpose(nodes: Nodes, f: _Factor, term: str) -> _Factor:
    """Transpose to the order of `term`; letters that the factor lacks become axes of size 1."""
    own = "".join(c for c in term if c in f.term)
    if own != f.term:
        perm = [f.term.index(c) for c in own]
        f = _Factor(nodes.op("Transpose", f.name, perm=perm), own, tuple(f.dims[i] for i in perm))
    if own == term:
        return f
    dims = tuple(f.dims[own.index(c)] if c in own else 1 for c in term)
    return _Factor(_reshape(nodes, f.name, dims), term, dims)


def _reshape(nodes: Nodes, name: str, dims: Sequence[int]) -> str:
    """Return the value in another shape; a dimension of 0 is meant."""
    attrs: dict[str, Any] = {"allowzero": 1} if 0 in dims else {}
    return str(nodes.op("Reshape", name, _i64(nodes, dims), **attrs))


def _multiply(nodes: Nodes, a: _Factor, b: _Factor, later: set[str]) -> _Factor:
    """Return the product of two factors, summed over the letters that nothing `later` wants."""
    a, b = _sum(nodes, a, set(b.term) | later), _sum(nodes, b, set(a.term) | later)
    size = {c: e if d == 1 else d for c, d, e in _match_axes(a, b)}
    shared = [c for c in a.term if c in b.term]
    batch = [c for c in shared if c in later]
    summed = [c for c in shared if c not in later]
    # Nothing to sum and the same letters: elementwise, where a product would have a depth of 1.
    if not summed and not (set(a.term) ^ set(b.term)):
        b = _transpose(nodes, b, a.term)
        return _Factor(nodes.op("Mul", a.name, b.name), a.term, tuple(size[c] for c in a.term))
    rows = [c for c in a.term if c not in b.term]
    cols = [c for c in b.term if c not in a.term]
    left = _matrix(nodes, a, [batch, rows, summed], size)
    right = _matrix(nodes, b, [batch, summed, cols], size)
    term = "".join((*batch, *rows, *cols))
    dims = tuple(size[c] for c in term)
    made = nodes.op("MatMul", left, right)
    return _Factor(_reshape(nodes, made, dims), term, dims)


def _match_axes(a: _Factor, b: _Factor) -> list[tuple[str, int, int]]:
    own, other = (dict(zip(f.term, f.dims, strict=True)) for f in (a, b))
    return [(c, own.get(c, 1), other.get(c, 1)) for c in {**own, **other}]


def _matrix(nodes: Nodes, f: _Factor, groups: Sequence[Sequence[str]], size: dict[str, int]) -> str:
    """Return a factor as [batch, rows, columns], each a group of letters made one axis."""
    f = _transpose(nodes, f, "".join(c for group in groups for c in group))
    want = tuple(size[c] for c in f.term)
    name = f.name if f.dims == want else nodes.op("Expand", f.name, _i64(nodes, want))
    shape = [int(np.prod([size[c] for c in group], dtype=np.int64)) for group in groups]
    return _reshape(nodes, name, shape)


# --- gradient


def _grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    equation = _parse(grad.site)
    out: list[str | None] = []
    for i, term in enumerate(equation.terms):
        out.append(_operand_grad(grad, equation, i, term, dy) if grad.wants(i) else None)
    return tuple(out)


def _operand_grad(grad: Grad, equation: _Equation, i: int, term: str, dy: str) -> str:
    others = [k for k in range(len(equation.terms)) if k != i]
    # Forward: y = einsum(x_0, x_1, ...); so dx_i = einsum(dy, all x but x_i), to x_i's term.
    names = [dy, *(grad.x(k) for k in others)]
    terms = [equation.out, *(equation.terms[k] for k in others)]
    shape, dtype = grad.site.type(i).shape, grad.site.type(i).dtype
    spare = [c for c in string.ascii_letters if c not in "".join((equation.out, *equation.terms))]
    own = ""
    for axis, letter in enumerate(term):
        if letter in own:
            d = shape[axis]
            if not isinstance(d, int):
                grad.site.fail(
                    f"the size {d!r} of the repeated letter {letter!r} is not known",
                    "a fixed size, for the gradient",
                )
            # A repeated letter's gradient lies on the diagonal: an identity matrix puts it there.
            fresh = spare.pop()
            _check_mask(grad.site, d)
            names.append(grad.const(np.eye(d), dtype))
            terms.append(letter + fresh)
            letter = fresh
        own += letter
    # sizes of 1 that others stretch are summed, and come back by the reshape
    sizes = _read_sizes(grad.site, equation)
    stretched = [a for a, d in enumerate(shape) if d == 1 and sizes[term[a]] != 1]
    result = "".join(c for a, c in enumerate(own) if a not in stretched)
    # letters that another factor surely has in the size of this operand
    mine = dict(zip(own, shape, strict=True))
    whole = set("".join((equation.out, *terms[len(equation.terms) :])))
    for k in others:
        pairs = zip(equation.terms[k], grad.site.type(k).shape, strict=True)
        whole |= {c for c, d in pairs if d == mine.get(c)}
    if not set(result) <= whole:
        ones = grad.op(
            "ConstantOfShape", grad.op("Shape", grad.x(i)), value=np.ones(1, _find_numpy(dtype))
        )
        names.append(ones)
        terms.append(own)
    dx = grad.op("Einsum", *names, equation=f"{','.join(terms)}->{result}")
    if stretched:
        dx = grad.op("Unsqueeze", dx, grad.const(stretched, "i64"))
    full = [1 if a in stretched else sizes[letter] for a, letter in enumerate(term)]
    return grad.reduce_to(dx, i, tuple(full))  # sizes that are not known may be 1, too


def _find_numpy(dtype: str) -> type:
    return np.float32 if dtype == "f32" else np.float64


OPS = (
    Op(
        name="Einsum",
        product=EINSUM,
        infer=_infer,
        expand=_expand,
        becomes=f"Expand MatMul Mul ReduceSum Reshape Transpose {MS}::FusedMatMul",
        grad=_grad,
        samples=Samples.EINSUM,
    ),
)
