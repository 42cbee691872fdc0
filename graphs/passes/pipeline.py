"""The pipeline: the list of all passes in their order, and how they run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from engine.base.aliases import Array
from engine.base.errors import defects
from engine.graphs.ir.graph import Graph
from engine.graphs.ir.sites import Answers
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes import (
    attention,
    batchnorm,
    control,
    extremes,
    foreign,
    fuse,
    half,
    integers,
    layout,
    movement,
    patterns,
    pools,
    quantised,
)
from engine.graphs.passes.attention import fuse_attention
from engine.graphs.passes.batchnorm import absorb_norms
from engine.graphs.passes.check import Watch
from engine.graphs.passes.control import unroll
from engine.graphs.passes.expand import expand, expand_first
from engine.graphs.passes.extremes import join_extreme_grads
from engine.graphs.passes.foreign import (
    give_gru_grads_inner_products,
    give_lstm_grads_peepholes,
    give_pool_grads_input,
)
from engine.graphs.passes.fuse import fuse_epilogues, fuse_maps
from engine.graphs.passes.half import replace_halves
from engine.graphs.passes.infer import NodeResults, infer
from engine.graphs.passes.integers import compute_in_integers
from engine.graphs.passes.layout import choose_layouts
from engine.graphs.passes.may_add import (
    Keys,
    MayAdd,
    add_nothing,
    from_first_ops,
    from_ops,
    list_kinds,
)
from engine.graphs.passes.movement import cancel_movement
from engine.graphs.passes.narrow import MAY_ADD as NARROW_MAY_ADD
from engine.graphs.passes.narrow import join_again, narrow, slice_late
from engine.graphs.passes.patterns import fuse_patterns
from engine.graphs.passes.pools import keep_taps, let_relu_grads_read_pools
from engine.graphs.passes.quantised import read_quantised
from engine.graphs.passes.recompute import recompute
from engine.graphs.passes.simplify import (
    drop_identities,
    let_relu_grad_read_output,
    prune,
    share_equal,
)
from engine.kernels.vocabulary.op import TensorType, title_op
from engine.system.config import switch


@dataclass(slots=True)
class PassState:
    """A graph on its way to a plan, with the types and constants of its values once they are known.

    closed: whether only the kernels of a library for its ops may be used.
    answers: the answers of shape rules about its nodes so far.
    frozen: the inputs that are large constants, whose values are read when a pass needs them.
    """

    graph: Graph
    closed: bool = False
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    answers: Answers[NodeResults] = field(default_factory=Answers)
    frozen: frozenset[str] = frozenset()


def _infer(work: PassState) -> None:
    work.types, work.constants, _ = infer(work.graph, settled=True, answers=work.answers)


def _fuse_patterns(work: PassState) -> None:
    if fuse_patterns(work.graph, Inferred(work.types, work.constants)):
        _infer(work)


def _join_extreme_grads(work: PassState) -> None:
    if join_extreme_grads(work.graph, Inferred(work.types, work.constants)):
        _infer(work)


def _compute_in_integers(work: PassState) -> None:
    if compute_in_integers(work.graph, work.types, work.constants, work.frozen):
        _infer(work)


def _read_quantised(work: PassState) -> None:
    if read_quantised(work.graph, work.types):
        _infer(work)


def _expand(work: PassState) -> None:
    prune(work.graph)
    inferred = Inferred(work.types, work.constants)
    work.types, work.constants, _ = expand(work.graph, inferred, answers=work.answers)


def _fuse_attention(work: PassState) -> None:
    if fuse_attention(work.graph, Inferred(work.types, work.constants)):
        _infer(work)


def _fuse_maps(work: PassState) -> None:
    """Fuse maps; numbers that sizes decide are operands, so that all shapes share the kernels."""
    written = {n: a for n, a in work.constants.items() if n not in work.graph.sized}
    fuse_maps(work.graph, work.types, written, closed=work.closed)


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of the pipeline.

    name: its name in debug output and internal errors.
    run: the function that changes the work.
    may_add: the ops that `run` may add to a graph with the given ops; see passes/may_add.py.
    needed: whether graphs without this pass may be impossible to lower, or compute something else;
        other passes only make plans faster or smaller.
    """

    name: str
    run: Callable[[PassState], object]
    may_add: MayAdd = add_nothing
    needed: bool = False


PASSES = (
    Pass("prune", lambda w: prune(w.graph)),
    Pass("control flow", lambda w: unroll(w.graph), control.MAY_ADD, needed=True),
    Pass(
        "pool grads know input",
        lambda w: give_pool_grads_input(w.graph),
        foreign.POOLS_MAY_ADD,
        needed=True,
    ),
    Pass(
        "lstm grads know peepholes",
        lambda w: give_lstm_grads_peepholes(w.graph),
        foreign.LSTMS_MAY_ADD,
        needed=True,
    ),
    Pass(
        "gru grads know inner products",
        lambda w: give_gru_grads_inner_products(w.graph),
        needed=True,
    ),
    Pass("expand first", lambda w: expand_first(w.graph), from_first_ops, needed=True),
    Pass("singles for halves", lambda w: replace_halves(w.graph), half.MAY_ADD, needed=True),
    Pass("absorb norms", lambda w: absorb_norms(w.graph), batchnorm.MAY_ADD),
    Pass("infer", _infer, needed=True),
    Pass("fuse patterns", _fuse_patterns, patterns.MAY_ADD),
    Pass("join extreme grads", _join_extreme_grads, extremes.MAY_ADD),
    Pass("compute in integers", _compute_in_integers, integers.MAY_ADD),
    Pass("read quantised", _read_quantised, quantised.MAY_ADD),
    Pass("expand", _expand, from_ops, needed=True),
    Pass(
        "cancel movement",
        lambda w: cancel_movement(w.graph, w.types, w.constants),
        movement.MAY_ADD,
    ),
    Pass("drop identities", lambda w: drop_identities(w.graph)),
    Pass("narrow", lambda w: narrow(w.graph, w.types, w.constants), NARROW_MAY_ADD),
    Pass("share equal", lambda w: share_equal(w.graph, w.types)),
    Pass("fuse attention", _fuse_attention, attention.MAY_ADD),
    Pass("relu grad reads output", lambda w: let_relu_grad_read_output(w.graph)),
    Pass("relu grads read pools", lambda w: let_relu_grads_read_pools(w.graph, w.types)),
    Pass("keep taps", lambda w: keep_taps(w.graph, w.types), pools.MAY_ADD),
    Pass(
        "fuse epilogues",
        lambda w: fuse_epilogues(w.graph, w.types, w.constants),
        fuse.EPILOGUES_MAY_ADD,
    ),
    Pass("fuse maps", _fuse_maps, fuse.list_map_ops, needed=True),
    Pass("join again", lambda w: join_again(w.graph, w.types)),
    Pass("slice late", lambda w: slice_late(w.graph)),
    Pass(
        "choose layouts",
        lambda w: choose_layouts(w.graph, w.types, w.constants),
        layout.list_layout_ops,
        needed=True,
    ),
    Pass("recompute", lambda w: recompute(w.graph, w.types)),
)
OPTIONAL = frozenset(step.name for step in PASSES if not step.needed)  # a planner can leave out


def find_reachable(held: Keys) -> Keys:
    """Return the given ops, and all ops that passes may add to graphs that contain them."""
    for step in PASSES:
        held |= step.may_add(held)
    return held


def run_passes(work: PassState, without: Collection[str] = ()) -> None:
    """Run all passes on a graph in place, and check the graph after each one.

    without: the names of passes in `OPTIONAL` to leave out.
    """
    work.graph.check()
    held, watch = list_kinds(work.graph), Watch(work.answers)
    for step in PASSES:
        if step.name in without:
            continue
        with defects(f"the pass {step.name!r}", work.graph.name):
            step.run(work)
            held = _check_ops(step, held, list_kinds(work.graph))
            watch.check(work.graph, work.types, work.constants)
        if switch("DEBUG") == "2":
            print(f"--- after {step.name}\n{work.graph}", file=sys.stderr)


def _check_ops(step: Pass, before: Keys, after: Keys) -> Keys:
    """Check that a pass has added no ops but those it declares; return the ops after it.

    before, after: the ops that the graph held before and holds after the pass.

    Raises:
        LookupError: it has added others, which is a defect of the pass.
    """
    if after <= before:
        return after
    undeclared = after - before - step.may_add(before)
    if undeclared:
        names = ", ".join(sorted(title_op(*key) for key in undeclared))
        raise LookupError(f"it adds {names}, which its declaration `may_add` leaves out")
    return after
