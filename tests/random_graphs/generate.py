"""The generator: a seed becomes a model.

A sketch grows by patterns that passes look for (patterns.py), and by the nodes of case rows, whose
operands are values of the sketch, brought into shape by nodes that move, cut, join or repeat.
"""

from __future__ import annotations

import functools
import random

import numpy as np
from onnx import defs

from engine.graphs.passes.simplify import is_acting
from engine.kernels.ops.registry import list_ops
from engine.tools.dev import case_graphs
from engine.tools.dev.cases.case import Case, Given, Tensor
from tests.random_graphs.patterns import PATTERNS
from tests.random_graphs.shapes import fit, tame
from tests.random_graphs.sketch import Model, Sketch, UnfitError

OPSETS = (17, 17, 17, 17, 17, 18, 18, 21, 23, 24)
SIZES = (2, 3, 4, 5, 8, 16, 17)  # of most dimensions
ODD_SIZES = (0, 1, 1, 1, 33)
MOST_NODES = 14
TRIES = 6  # to add something, for each thing that is added


def make(seed: int, dtype: str = "", nodes: int = MOST_NODES) -> tuple[Model, Sketch]:
    """Return the model of a seed, and its sketch, which knows the refusals.

    dtype: of its real numbers; by default the seed decides: mostly float64, where rounding hides
        least.  nodes: at most; the last pattern may add more.
    """
    rng = random.Random(f"random graph {seed}")
    chosen = rng.choice(("float64", "float64", "float64", "float32"))
    sketch = Sketch(rng, np.dtype(dtype or chosen), rng.choice(OPSETS))
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        sketch.feed(sketch.random(shape(rng)))
    count = rng.randint(1, nodes)
    for _ in range(TRIES * count):
        if len(sketch.nodes) >= count:
            break
        before = sketch.state()
        try:
            grow(sketch)
        except UnfitError:
            sketch.restore(before)
    model = sketch.finish(f"random_{seed}", ends(sketch))
    model.seed = seed
    return model, sketch


def shape(rng: random.Random) -> tuple[int, ...]:
    """The shape of an input."""
    rank = rng.choice((0, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 6))
    sizes = [rng.choice(SIZES) for _ in range(rank)]
    if rank > 4:
        sizes = [min(s, 3) for s in sizes]
    if sizes and rng.random() < 0.15:
        sizes[rng.randrange(rank)] = rng.choice(ODD_SIZES)
    return tuple(sizes)


def ends(sketch: Sketch) -> list[str]:
    """The outputs: what nothing reads, and some of what is read."""
    rng = sketch.rng
    read = {i for n in sketch.nodes for i in n.list_reads()}
    chance = rng.choice((0.0, 0.0, 0.1, 0.3))
    actual_made = [n for n in sketch.made if n not in read or rng.random() < chance]
    if not actual_made:  # nothing could be added
        actual_made = [sketch.add("Identity", sketch.feed(sketch.random((2,))))]
    return actual_made


def grow(sketch: Sketch) -> None:
    """Add a pattern, or the node of a case row.

    Raises:
        UnfitError: what was drawn does not fit.
    """
    rng = sketch.rng
    if rng.random() < 0.6:
        rng.choice(PATTERNS)(sketch, recent(sketch))
        return
    actual_rows = rows(sketch.opset)
    add_row(sketch, rng.choice(actual_rows[rng.choice(list(actual_rows))]))


def recent(sketch: Sketch) -> str:
    """A value of real numbers, mostly one of the last."""
    known = sketch.floats()
    return sketch.rng.choice(known[-3:] if sketch.rng.random() < 0.6 else known)


@functools.cache
def rows(opset: int) -> dict[str, list[Case]]:
    """The case rows of each op that mean the same in this opset.

    Left out is what writes to what it reads.
    """
    actual: dict[str, list[Case]] = {}
    for case in case_graphs.list_cases():
        op = list_ops().get((case.domain, case.op))
        if op is None or op.internal or op.optimizer is not None:
            continue
        if not case.domain and version(case.op, opset) != version(case.op, case.opset):
            continue
        if not is_acting(case_graphs.OneNode(case).node):
            actual.setdefault(op.title, []).append(case)
    return actual


def version(op: str, opset: int) -> int:
    """The version of an ONNX op in an opset; 0 where there is none."""
    return defs.get_schema(op, opset, "").since_version if defs.has(op, opset, "") else 0


def add_row(sketch: Sketch, case: Case) -> None:
    """Add the node of a case row; its inputs are values of the sketch where they can be.

    Raises:
        UnfitError: it cannot be added.
    """
    rng = sketch.rng
    names = []
    for given in case.ins:
        if given is None:
            names.append("")
        elif isinstance(given, Tensor):
            names.append(operand(sketch, given))
        else:
            names.append(sketch.constant(_widened(np.asarray(given), sketch)))
    while names and not names[-1]:
        names.pop()
    attrs = dict(case.attrs)
    if sketch.dtype == np.float64 and attrs.get("to") == 1:
        attrs["to"] = 11
    outs = [True] * case.outs if isinstance(case.outs, int) else [bool(o) for o in case.outs]
    if rng.random() < 0.05 and len(names) > 1 and names[0] and names[1]:
        names[1] = names[0]  # an operand twice
    sketch.add(case.op, *names, outs=outs, domain=case.domain, **attrs)


def operand(sketch: Sketch, given: Tensor) -> str:
    """An operand as a case row describes it: a value of the sketch, or new numbers.

    Raises:
        UnfitError: a node that brings a value into shape cannot be added.
    """
    rng = sketch.rng
    made = _widened(given.make(sketch.numbers), sketch)
    known = [n for n in (*sketch.fed, *sketch.made) if sketch.values[n].dtype == made.dtype]
    if isinstance(given, Given) or made.dtype.kind != "f" or not known or rng.random() < 0.3:
        same = [n for n in known if sketch.shape(n) == made.shape]
        if made.dtype == bool and same and rng.random() < 0.5:
            return rng.choice(same)
        return sketch.feed(made) if rng.random() < 0.7 else sketch.constant(made)
    name = rng.choice(known[-3:] if rng.random() < 0.6 else known)
    return tame(sketch, fit(sketch, name, made.shape), given.low, given.high)


def _widened(array: np.ndarray, sketch: Sketch) -> np.ndarray:
    """Real numbers of float32 in the dtype of the sketch, anything else as it is."""
    return array.astype(sketch.dtype) if array.dtype == np.float32 else array
