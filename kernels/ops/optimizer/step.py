"""What optimizer steps share: kernels over flat tensors, operands of nodes, shape rules.

All parameters lie back to back in one flat tensor, as do their gradients and each state.  Nodes of
the domain `engine` update the parameters that they name in `parameters`; the planner says in
attributes where these are, see `GROUP`.  Zero padding between parameters stays zero: its gradients
are zero.

In the formulas of this room t is the step fed, from 1, g the gradient, multiplied by the factor of
clipping where there is one, d = g + wd p with the weight decay wd, and r the learning rate times
`lr_scale`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from engine.element_types import ITEMSIZE
from engine.kernels.loops.blocks import Blocks
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.ops.optimizer.clipping import FACTOR, LINE, check_attributes
from engine.kernels.ops.optimizer.method import Method
from engine.kernels.ops.optimizer.ranges import TABLE, packed
from engine.kernels.vocabulary.kernel import (
    Call,
    Numbers,
    Parameters,
    Template,
    Tile,
    imin,
    inline,
    off,
    udiv,
)
from engine.kernels.vocabulary.op import (
    OURS,
    Kind,
    Lowering,
    Op,
    Operand,
    Site,
    TensorType,
    Update,
)
from engine.kernels.vocabulary.row_program import loop
from engine.runtime.plan import ALIGN
from engine.runtime.states import State

Inline = Callable[..., Any]
RATE = TensorType("f32", (1,))  # the learning rate, as files have it
DECAYS = ("alpha", "beta", "beta1")  # attributes from 0 to below 1, of the ops that have them

# --- kernels

# Threads share `total` elements in blocks of `block`.
COMMON = f"""
    lr: f32[1]   step: i64[1]   p: update T[...]   g: T[...]   clip: f64[1] if clips
    signal: b1[1] if signalled   {TABLE}
"""
COUNTS = "count, total: i64   block: i64 where block >= 1   clips, signalled: i64   scale: f64"


def in_blocks(states: int, unit: int = LINE) -> Tile:
    """How a kernel of the common signature with so many states is cut: where it has one range.

    unit: the elements that it looks at together, at least.
    """

    def tiling(params: Parameters, numbers: Numbers) -> Blocks | None:
        count, total = map(int, numbers[:2])
        step = unit * ITEMSIZE[str(params[0])]
        steps = (0, 0, step, step, 0, 0, 0, *[step] * states)
        if count != 1:
            return None
        return Blocks(-(-total // unit), steps, numbered=True, unit=unit, at=2, per=unit)

    return tiling


@inline
def power(x, n):
    """x^n for n >= 0, by repeated squaring."""
    out = 1.0
    while n > 0:
        if n & 1:
            out *= x
        x *= x
        n >>= 1
    return out


@inline
def factor_of(clip, clips):
    """What gradients are multiplied by."""
    return clip[0] if clips != 0 else 1.0


@inline
def everything(found, g, i, end):
    """What `stretch` makes, for kernels that pass over nothing."""
    return end, True


def stretch(T: str) -> Inline:
    """Inline function: stretch(found, g, i, end) of elements of a range, i < end.

    Returns where the row of element i ends, `end` at most, and whether it has a gradient that is
    not 0.  A range without rows is a row that has.
    """
    count = loop(T, "g[] -> sum(where(g == 0.0, 0.0, 1.0))")

    @inline
    def run(found, g, i, end):
        row = found.row
        if row == 0:
            return end, True
        begin = found.begin + udiv(i - found.begin, row) * row
        stop = imin(begin + row, found.begin + found.size)
        moves = g[begin] != 0
        if not moves:
            moves = count(off(g, begin), stop - begin) != 0
        return imin(stop, end), moves

    return run


# --- lowering


class Part(NamedTuple):
    """One parameter of a node, in elements of the flat tensors.

    begin: its own, and that of its gradient.
    states: the begin of its tensor in each state.
    """

    begin: int
    shape: tuple[int, ...]
    states: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Step:
    """The operands of an optimizer node, whose inputs `Update` has in order.

    signal: the flag without which nothing is updated.  clip: what gradients are multiplied by.
    """

    def __init__(self, lowering: Lowering, states: Sequence[State], has_step: bool = True) -> None:
        at = 1 + has_step
        self.lowering, self.lr, self.p, self.g = (
            lowering,
            lowering.x(0),
            lowering.x(at),
            lowering.x(at + 1),
        )
        self.states = [lowering.x(at + 2 + k) for k in range(len(states))]
        last = at + 2 + len(states)
        self.signal, self.clip = (
            lowering.x(i) if lowering.site.has(i) else None for i in (last, last + 1)
        )
        self.step = lowering.x(1) if has_step else None
        self.T = self.p.type.dtype

    @property
    def parts(self) -> list[Part]:
        """The parameters of the node; without attributes, all of one vector."""
        attrs, count = self.lowering.site.attrs, len(self.states)
        begins, states, dims = (iter(attrs.get(n, ())) for n in ("begins", "state_begins", "dims"))
        found = []
        for begin in begins:
            shape = tuple(islice(dims, next(dims)))
            found.append(Part(begin, shape, tuple(islice(states, count))))
        return found or [Part(0, self.p.type.dims, (0,) * count)]

    def real(self, name: str, default: float = 0.0) -> float:
        """A hyperparameter."""
        return float(self.lowering.site.attrs.get(name, default))

    def merged(self) -> list[tuple[int, int]]:
        """Begin and size of the parameters with their padding, those one after another as one."""
        line = ALIGN // ITEMSIZE[self.T]
        out: list[tuple[int, int]] = []
        for part in self.parts:
            begin = part.begin
            size = min(-(-part.size // line) * line, self.p.type.size - begin)
            if out and sum(out[-1]) == begin:
                begin, size = out[-1][0], out.pop()[1] + size
            out.append((begin, size))
        return out

    def table(self, ranges: Sequence[tuple[int, int]], rows: Sequence[int] = ()) -> Operand:
        """Begins and sizes, as kernels read them; rows: elements of a row of each, see `RANGE`."""
        return self.lowering.const(packed(ranges, rows))

    def call(
        self,
        kernel: Call,
        *,
        skipped: int = 0,
        by_rows: bool = False,
        **own: Any,
    ) -> None:
        """Call a kernel of the common signature with its own states and numbers by name.

        The states are shaped and typed as the parameters, so that one table of ranges is for all.
        skipped: elements that are passed over where all their gradients are 0; 0: none are.
        by_rows: rows of parameters of two dimensions and more are, whatever their size.
        """
        lowering = self.lowering
        if by_rows:
            parts = [part for part in self.parts if part.size]
            ranges = [(part.begin, part.size) for part in parts]
            rows = [part.size // part.shape[0] if len(part.shape) > 1 else 0 for part in parts]
        else:
            ranges = self.merged()
            rows = [skipped] * len(ranges)
        clips, signalled = self.flags
        lowering.call(
            kernel, lr=self.lr, step=self.step, p=self.p, g=self.g, clip=self.clip,
            signal=self.signal, ranges=self.table(ranges, rows), count=len(ranges),
            total=sum(n for _, n in ranges), block=LINE, clips=clips, signalled=signalled,
            scale=self.scale, **own,
        )  # fmt: skip

    @property
    def flags(self) -> tuple[int, int]:
        """Whether gradients are multiplied by `clip`, and whether there is a signal."""
        return int(self.clip is not None), int(self.signal is not None)

    @property
    def scale(self) -> float:
        """What the learning rate is multiplied by."""
        return self.real("lr_scale", 1.0)

    def finish(self) -> None:
        """Output 0, "an update took place": the signal, or true."""
        lowering, signal = self.lowering, self.signal
        if lowering.wants(0):
            flag = lowering.y(0)
            if signal is None:
                lower_map(lowering, [("const", True)], [], [flag])
            else:
                lower_map(lowering, [("in", 0)], [Operand(signal.name, flag.type)], [flag])


# --- declaration

# Which parameters a node updates, as files have it; the planner adds where in the flat tensors they
# begin, in elements, their shapes, each behind its rank, and where each begins in every state.
LISTS: dict[str, Kind] = {
    "parameters": "strings",
    "begins": "ints",
    "dims": "ints",
    "state_begins": "ints",
}
GROUP = {"lr_scale": 1.0, "parameters": (), "begins": (), "dims": (), "state_begins": ()}


def rule(update: Update, attrs: Mapping[str, Any]) -> Callable[[Site], tuple[TensorType, ...]]:
    """Shape rule: the flag, then parameters and states as they are after the step.

    Inputs before the signal must be there; behind it comes the factor of gradients, f64[1].
    Gradients have the type of the parameters, a state its own, the learning rate is f32[1].
    """
    at = 1 + update.has_step

    def infer(site: Site) -> tuple[TensorType, ...]:
        check_attributes(site, attrs)
        decays = {n: float(site.attrs[n]) for n in DECAYS if n in site.attrs}
        if not all(0 <= x < 1 for x in decays.values()):
            site.fail(", ".join(f"{n} {x}" for n, x in decays.items()), "from 0 to below 1")
        p, states = site.type(at), update.states(site.attrs)
        signal = at + 2 + len(states)
        expected = {0: RATE, signal: TensorType("b1", (1,)), signal + 1: FACTOR}
        if update.has_step:
            expected[1] = TensorType("i64", (1,))
        for i, state in enumerate(states, at + 2):
            if state.form != "parameter" or state.dtype is not None:
                expected[i] = TensorType(state.dtype or p.dtype, site.type(i).shape)
        is_sequence = p.dtype.startswith("seq(")  # as files have it; plans have flat tensors
        for i in (*range(signal), *(i for i in (signal, signal + 1) if site.has(i))):
            if site.type(i) != expected.get(i, p) and not is_sequence:
                site.wrong(f"input {i} is {site.type(i)}; expected {expected.get(i, p)}")
        if len(site.ins) > signal + 2:
            more = "the signal and the factor"
            site.fail(f"{len(site.ins)} inputs", f"{signal}, {more}, with these attributes")
        types = (TensorType("b1", (1,)), *(site.type(i) for i in (at, *range(at + 2, signal))))
        return types[: max(site.n_outs, 1)]

    return infer


def optimizer(
    method: type[Method],
    lower: Callable[[Lowering], None],
    *kernels: Template,
    outputs: int = 4,
    **more: Any,
) -> Op:
    """The op of the domain `engine` of an optimizer; its defaults are those of the options.

    kernels: those that `lower` calls beside what `Step` does.
    more: attributes that files have only where they are not their defaults, which these are.
    """
    known, update = {**method().attributes(), **more, **GROUP}, Update(method.states)
    return Op(
        name=method.op,
        domain=OURS,
        inputs=(4, 9),
        outputs=outputs,
        attrs=known,
        takes=LISTS,
        infer=rule(update, known),
        lower=lower,
        calls=(*kernels, *MAP_KERNELS),
        optimizer=update,
    )
