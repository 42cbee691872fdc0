"""Optimizer nodes: their operands, their lowering, their shape rules and declarations.

All parameters lie back to back in one flat tensor, as do their gradients and each state.  Nodes of
the domain `engine` update the parameters that they name in `parameters`; the planner says in
attributes where these are, see `GROUP`.  Zero padding between parameters stays zero: its gradients
are zero.

In the formulas of this room t is the count of steps, from 1: the step fed, less the `steps_before`
that the optimizer had done when it first updated the parameters of the node; g the gradient,
multiplied by the factor of clipping where there is one, d = g + wd p with the weight decay wd, and
r the learning rate times `lr_scale`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from engine.base.element_types import ITEMSIZE, PAIRED, TRAINED_INTEGERS, find_gradient_type
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.ops.optimizer.clipping import FACTOR, LINE, check_attributes
from engine.kernels.ops.optimizer.method import SIGNALS, Method
from engine.kernels.ops.optimizer.ranges import pack_ranges
from engine.kernels.ops.optimizer.update import UpdateKernel
from engine.kernels.vocabulary.kernel import Template
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
from engine.plan.plan import ALIGN

RATE = TensorType("f32", (1,))  # the learning rate, as in files
DECAYS = ("alpha", "beta", "beta1")  # attributes from 0 to below 1, of the ops that have them

# --- lowering


class ParameterRange(NamedTuple):
    """One parameter of a node, in elements of the flat tensors.

    begin: where it and its gradient start.
    states: where its tensor starts in each state.
    """

    begin: int
    shape: tuple[int, ...]
    states: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class OptimizerNode:
    """The operands of an optimizer node, whose inputs `Update` has in order.

    signal: the flag without which nothing is updated.  clip: what gradients are multiplied by.
    """

    def __init__(self, lowering: Lowering, method: type[Method], *, has_step: bool = True) -> None:
        at, states = 1 + has_step, method.states(lowering.site.attrs)
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
        self.step = self._count_own_step() if has_step else None
        self.T = self.p.type.dtype

    def _count_own_step(self) -> Operand:
        """Return the count of the steps that have updated the parameters of the node."""
        step, before = self.lowering.x(1), self.lowering.site.attrs.get("steps_before", 0)
        if not before:
            return step
        own = self.lowering.temp("i64", (1,))
        lower_map(self.lowering, [("sub", ("in", 0), ("const", before))], [step], [own])
        return own

    @property
    def parts(self) -> list[ParameterRange]:
        """The parameters of the node; without attributes, one vector."""
        attrs, count = self.lowering.site.attrs, len(self.states)
        begins, states, dims = (iter(attrs.get(n, ())) for n in ("begins", "state_begins", "dims"))
        parts = []
        for begin in begins:
            shape = tuple(islice(dims, next(dims)))
            parts.append(ParameterRange(begin, shape, tuple(islice(states, count))))
        return parts or [ParameterRange(0, self.p.type.dims, (0,) * count)]

    def real(self, name: str, default: float = 0.0) -> float:
        """Return a hyperparameter."""
        return float(self.lowering.site.attrs.get(name, default))

    def merge_ranges(self) -> list[tuple[int, int]]:
        """Return start and size of the parameters with their padding; neighbours are joined."""
        line = ALIGN // ITEMSIZE[self.T]
        out: list[tuple[int, int]] = []
        for part in self.parts:
            begin = part.begin
            size = min(-(-part.size // line) * line, self.p.type.size - begin)
            if out and sum(out[-1]) == begin:
                begin, size = out[-1][0], out.pop()[1] + size
            out.append((begin, size))
        return out

    def pack_ranges(self, ranges: Sequence[tuple[int, int]], rows: Sequence[int] = ()) -> Operand:
        """Return starts and sizes, as kernels read them; rows: elements of a row, see `RANGE`."""
        return self.lowering.const(pack_ranges(ranges, rows))

    def update(
        self,
        kernel: UpdateKernel,
        *params: int,
        skipped: int = 0,
        by_rows: bool = False,
        **integers: int,
    ) -> None:
        """Call an update kernel with the states and the numbers of the node.

        The states are shaped and typed as the parameters, so that one table of ranges is for all.
        params: the flags of the kernel; by default, the node's attributes of these names.
        skipped: elements that are passed over where all their gradients are 0; 0: none are.
        by_rows: rows of parameters of two dimensions and more are, whatever their size.
        integers: the integers of the kernel.
        """
        lowering = self.lowering
        if by_rows:
            parts = [part for part in self.parts if part.size]
            ranges = [(part.begin, part.size) for part in parts]
            rows = [part.size // part.shape[0] if len(part.shape) > 1 else 0 for part in parts]
        else:
            ranges = self.merge_ranges()
            rows = [skipped] * len(ranges)
        flags = params or tuple(int(bool(lowering.site.attrs[name])) for name in kernel.flags)
        made, (clips, signalled) = kernel.template(self.T, *flags), self.flags
        own_arguments: dict[str, Any] = {
            **dict(zip(kernel.list_present(made[1]), self.states, strict=True)),
            **{name: self.real(attribute) for name, attribute in kernel.numbers.items()},
            **integers,
        }
        lowering.call(
            made, lr=self.lr, step=self.step, p=self.p, g=self.g, clip=self.clip,
            signal=self.signal, ranges=self.pack_ranges(ranges, rows), count=len(ranges),
            total=sum(n for _, n in ranges), block=LINE, clips=clips, signalled=signalled,
            scale=self.scale, **own_arguments,
        )  # fmt: skip

    @property
    def flags(self) -> tuple[int, int]:
        """The flags `clips` and `signalled` of kernels: there is a factor, there is a signal."""
        return int(self.clip is not None), int(self.signal is not None)

    @property
    def scale(self) -> float:
        """The factor of the learning rate."""
        return self.real("lr_scale", 1.0)

    def finish(self) -> None:
        """Write output 0, "an update took place": the signal, or true."""
        lowering, signal = self.lowering, self.signal
        if lowering.wants(0):
            flag = lowering.y(0)
            if signal is None:
                lower_map(lowering, [("const", True)], [], [flag])
            else:
                lower_map(lowering, [("in", 0)], [Operand(signal.name, flag.type)], [flag])


# --- declaration

# The parameters that a node updates, as in files.  The planner adds, in elements, where they
# start in the flat tensors and in every state, and their shapes, each after its rank.
LISTS: dict[str, Kind] = {
    "parameters": "strings",
    "begins": "ints",
    "dims": "ints",
    "state_begins": "ints",
}
GROUP = {
    "lr_scale": 1.0, "steps_before": 0, "parameters": (), "begins": (), "dims": (),
    "state_begins": (),
}  # fmt: skip


def is_paired(p: TensorType, g: TensorType) -> bool:
    """Return whether a parameter has two integers of 4 bits in each byte, by its gradient, whose
    last axis is twice as long.
    """
    wide = (*p.shape[:-1], 2 * p.shape[-1]) if p.rank and isinstance(p.shape[-1], int) else None
    return p.dtype in PAIRED and (g.dtype, g.shape) == (find_gradient_type(p.dtype), wide)


def rule(update: Update, attrs: Mapping[str, Any]) -> Callable[[Site], tuple[TensorType, ...]]:
    """Return the shape rule: the flag, then parameters and states as they are after the step.

    Inputs before the signal must be there; after it comes the factor of gradients, f64[1].
    Gradients have the type of the parameters, or f32 where these are integers, and twice as many
    elements where two of these share a byte; a state has its own type, the learning rate is f32[1].
    """
    at = 1 + update.has_step

    def infer(site: Site) -> tuple[TensorType, ...]:
        check_attributes(site, attrs)
        decays = {n: float(site.attrs[n]) for n in DECAYS if n in site.attrs}
        if not all(0 <= x < 1 for x in decays.values()):
            site.fail(", ".join(f"{n} is {x}" for n, x in decays.items()), "from 0 to below 1")
        p, states = site.type(at), update.states(site.attrs)
        signal = at + 2 + len(states)
        if p.dtype in TRAINED_INTEGERS and (states or not update.has_step):
            site.fail(
                f"the parameters are {p.dtype}", "f32, f64; SGD without momentum takes integers"
            )
        expected = {0: RATE, signal: TensorType("b1", (1,)), signal + 1: FACTOR}
        if update.has_step:
            expected[1] = TensorType("i64", (1,))
        for i, state in enumerate(states, at + 2):
            if state.form != "parameter" or state.dtype is not None:
                expected[i] = TensorType(state.dtype or p.dtype, site.type(i).shape)
        expected[at + 1] = p.but(dtype=find_gradient_type(p.dtype))
        if is_paired(p, site.type(at + 1)):
            expected[at + 1] = site.type(at + 1)
        is_sequence = p.dtype.startswith("seq(")  # as in files; plans have flat tensors
        for i in (*range(signal), *(i for i in (signal, signal + 1) if site.has(i))):
            if site.type(i) != expected.get(i, p) and not is_sequence:
                site.wrong(f"input {i} is {site.type(i)}; expected {expected.get(i, p)}")
        if len(site.ins) > signal + 2:
            more = "the signal and the factor"
            site.fail(
                f"the node has {len(site.ins)} inputs", f"{signal}, {more}, with these attributes"
            )
        types = (TensorType("b1", (1,)), *(site.type(i) for i in (at, *range(at + 2, signal))))
        return types[: max(site.n_outs, 1)]

    return infer


def optimizer(
    method: type[Method],
    *kernels: UpdateKernel | Template,
    lower: Callable[[Lowering], None] | None = None,
    outputs: int = 4,
    **more: Any,
) -> Op:
    """Return the op of an optimizer, of the domain `engine`; it has the defaults of the options.

    kernels: the kernels that it calls.
    lower: how it is lowered; by default it calls its only kernel, an update kernel.
    more: attributes that files have only where they are not their defaults, which these are.
    """
    known, update = {**method().attributes(), **more, **GROUP}, Update(method.states)
    templates = [k.template if isinstance(k, UpdateKernel) else k for k in kernels]

    def update_alone(lowering: Lowering) -> None:
        (kernel,) = kernels
        assert isinstance(kernel, UpdateKernel)
        node = OptimizerNode(lowering, method)
        node.update(kernel)
        node.finish()

    return Op(
        name=method.op,
        domain=OURS,
        inputs=(4, 9),
        outputs=outputs,
        attrs=known,
        takes=LISTS,
        infer=rule(update, known),
        lower=lower or update_alone,
        calls=(*templates, *MAP_KERNELS),
        optimizer=update,
        joined=SIGNALS,
    )
