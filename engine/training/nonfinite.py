"""Where NaN and infinities come from: the first tensor that has them, and its node.

A batch is computed once more, step by step, on copies of parameters, gradients and states.  For
each step it is known whether it reads and writes finite values, so that the values that spoil the
loss, a gradient or an update can be followed back to where they come from: to a node that makes
them of finite values, or to an input, a parameter or a constant that has them.  Infinities that
reach none of these, as in a mask that softmax turns into zeros, are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.aliases import Array, Bytes
from engine.base.element_types import REALS
from engine.base.errors import MissingPackageError
from engine.plan.collective import list_collectives
from engine.plan.plan import CHECK, PHASES, Buffer, Plan, PlanStep
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram
from engine.system.paths import Paths
from engine.training.model_file import RESET

if TYPE_CHECKING:
    from engine.training.model import Model
    from engine.training.session import ModuleSession

Ranges = tuple[tuple[str, float, float], ...]

ELSEWHERE = "it began on another rank"
LARGEST = int(np.finfo(np.float16).max)
_KINDS = {**PHASES, "opt": "update"}  # of tensors, by the phase that computes them


@dataclass(frozen=True, slots=True)
class NonFinite:
    """The first tensor of a step that has NaN or infinities, of those that spoil its results.

    tensor: its name.
    kind: what it is: "input", "parameter", "state" of the optimizer, or "constant", which had such
        values from the beginning; or the part of the step that has computed it, "forward",
        "backward" or "update"; or "elsewhere": a sum over ranks, to which another rank added such
        values.
    nodes: the ONNX nodes that have computed it of finite values, all that one kernel computes.
    forward_nodes: for a tensor of the backward pass, the forward nodes that it belongs to.
    nans, infinities, size: how many of its values are NaN, are infinite, and are there in all.
    index: the index of the first such value, if the tensor is as the caller passed it.
    inputs: name, least and greatest value of the tensors that the kernel has read.
    paths: the submodules that nodes are of, where they are known.
    dtype: the type in which the plan keeps the tensor.
    loss_scale: the factor of the loss; None if it is not scaled.
    skipped: how many updates have been skipped since the training began.
    """

    tensor: str
    kind: str
    nodes: tuple[str, ...]
    forward_nodes: tuple[str, ...]
    nans: int
    infinities: int
    size: int
    index: tuple[int, ...] | None
    inputs: Ranges
    what: str
    paths: Paths = field(default=Paths(), repr=False, compare=False)
    dtype: str = "f32"
    loss_scale: float | None = None
    skipped: int = 0

    def __str__(self) -> str:
        """Return a sentence without its full stop."""
        if self.kind == "elsewhere":
            node = self.paths.title_node(self.nodes[0])
            return f"{ELSEWHERE}: here all values were finite until {node} added them"
        if not self.nodes:
            owner = {
                "state": f"the optimizer's state {self.tensor!r}",
                "constant": f"the constant {self.tensor!r} of the model",
            }
            return f"{owner.get(self.kind, f'{self.kind} {self.tensor!r}')} has {self.what}"
        word = "node" if len(self.nodes) == 1 else "nodes"
        text = (
            f"the first tensor that is not finite is {self.tensor!r} with {self.what}, computed "
            f"from finite values by the {word} {', '.join(map(self.paths.title_node, self.nodes))}"
        )
        if self.forward_nodes:
            passed = ", ".join(map(self.paths.title_node, self.forward_nodes))
            text += f" of the backward pass of {passed}"
        if self.inputs:
            read = (
                f"{n!r} from {_format_number(low)} to {_format_number(high)}"
                for n, low, high in self.inputs
            )
            text += f", which read {', '.join(read)}"
        if self.dtype == "f16" and self.infinities:
            text += f"; float16 ends at {LARGEST}, bfloat16 and float32 do not"
        if self.loss_scale is not None:
            text += f"; loss scale {self.loss_scale:,g}, updates skipped so far {self.skipped}"
        return text

    __repr__ = __str__  # in a notebook


def _format_number(value: float) -> str:
    return f"{value:.4g}"


def search(
    session: ModuleSession,
    model: Model,
    bound: BoundProgram,
    arrays: Sequence[Array],
    draws: int,
    scalars: Mapping[str, float],
) -> NonFinite | None:
    """Run a program of a model once more, and find the first tensor that is not finite.

    The caller must hold the lock.  Parameters, gradients, states and counts stay as they are.

    bound: the program.  arrays: the caller's inputs.  draws: how many steps have drawn random
    numbers before.  scalars: other inputs of the program, by name.

    Returns None if all that the step leaves is finite.

    Raises:
        OutOfMemoryError: there is no room for the copies.
    """
    plan = bound.plan
    program = _copy(session, model, plan)
    for name, array in zip(model.inputs, arrays, strict=True):
        np.copyto(program.inputs[name], array)
    for flag in (*([RESET] if model.resets else ()), CHECK):
        if flag in program.inputs:
            program.inputs[flag][...] = True
    for name, value in scalars.items():
        if name in program.inputs:
            program.inputs[name][...] = value
    session.fill_scale(program)
    if model.ranks is not None:
        model.ranks.fill(program)
    origin = _OriginSearch(program, plan, model.outputs[0]).run(draws, session.seed)
    return None if origin is None else _describe(session, model, plan, origin, arrays)


@dataclass(frozen=True, slots=True)
class _Origin:
    """A buffer, what is bad in it, and the step that has made it of finite values, if one has."""

    buffer: Buffer
    bad: Array
    step: PlanStep | None
    inputs: Ranges


class _OriginSearch:
    """A run of a program that follows bad values back to where they begin.

    program, plan: what runs.  output: the name of the loss.
    """

    def __init__(self, program: BoundProgram, plan: Plan, output: str) -> None:
        self.program, self.plan = program, plan
        self.loss = next(port.buffer for port in plan.outputs if port.name == output)
        # Of each buffer that a step has written badly: where that began.
        self.origins: dict[int, _Origin] = {}
        self.ranges: dict[int, tuple[float, float]] = {}  # of what the next steps read

    def run(self, draws: int, seed: int | None) -> _Origin | None:
        """Return where the bad values begin of the first result that has some; None if none has.

        With ranks the run goes on to its end, since the others wait for what this one adds.
        """
        plan, origin, begin, done = self.plan, None, None, 0
        goes_on = bool(list(list_collectives(plan)))
        for i in self.program.run_stepwise(draws, seed):
            if origin is None:
                origin = self.look(plan.steps[done:i], begin)
                if origin is None and i < len(plan.steps):
                    begin = self.find_first_read(i)
                    if plan.steps[i].phase == "opt":
                        origin = begin
            if origin is not None and not goes_on:
                return origin
            done = i
        return origin

    def look(self, steps: Sequence[PlanStep], begin: _Origin | None) -> _Origin | None:
        """Look at what steps have written, one or all of a group; a result that is bad, if any.

        begin: where the bad values began that they have read.
        """
        origin = None
        for step in steps:
            wrote = [arg.buffer for arg in step.args if arg.mode in ("w", "u")]
            for number in wrote:
                buffer = self.plan.buffers[number]
                bad = _copy_bad(self.program, buffer)
                self.origins.pop(number, None)
                if bad is not None:
                    mine = begin or _Origin(buffer, bad, step, self.read(step))
                    self.origins[number] = mine
                    is_result = buffer.region == "grad" or step.phase == "opt"
                    if is_result or number == self.loss:
                        origin = origin or mine
            begin = begin or next((self.origins[n] for n in wrote if n in self.origins), None)
        return origin

    def read(self, step: PlanStep) -> Ranges:
        """Return the names and ranges of what a step has read."""
        numbers = dict.fromkeys(arg.buffer for arg in step.args if arg.mode in ("r", "u"))
        return tuple(
            (self.plan.buffers[n].name, *self.ranges[n]) for n in numbers if n in self.ranges
        )

    def find_first_read(self, i: int) -> _Origin | None:
        """Return where bad values began that a step, or its group, is about to read, or None.

        Of several, one with NaN is taken before one with infinities alone.
        """
        origins: list[tuple[_Origin, bool]] = []
        made: set[int] = set()  # by the steps of the group
        self.ranges = {}
        for step in self.plan.steps[i : i + max(self.plan.steps[i].group, 1)]:
            for arg in step.args:
                if arg.mode in ("r", "u") and arg.buffer >= 0 and arg.buffer not in made:
                    buffer = self.plan.buffers[arg.buffer]
                    bad = _copy_bad(self.program, buffer)
                    if bad is not None:
                        known = self.origins.get(arg.buffer) or _Origin(buffer, bad, None, ())
                        origins.append((known, bool(np.isnan(bad).any())))
                    elif buffer.dtype in REALS and buffer.nbytes:
                        values = self.program.read_memory(buffer)
                        self.ranges[arg.buffer] = float(values.min()), float(values.max())
            made |= {arg.buffer for arg in step.args if arg.mode in ("w", "u")}
        origins.sort(key=lambda each: not each[1])
        return origins[0][0] if origins else None


def _describe(
    session: ModuleSession, model: Model, plan: Plan, origin: _Origin, arrays: Sequence[Array]
) -> NonFinite:
    """Describe an origin."""
    step, name = origin.step, origin.buffer.name
    nodes: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()
    kind, index, values = "constant", None, origin.bad
    if step is not None:
        nodes, kind = (step.source,), _KINDS[step.phase]
        if step.source in {plan.steps[each.step].source for each in list_collectives(plan)}:
            kind = "elsewhere"
        elif kind != "update":
            nodes = tuple(_list_computing(model, plan, name)) or nodes
        if kind == "backward":
            forward = tuple(dict.fromkeys(node.partition("_Grad/")[0] for node in nodes))
    elif name in model.inputs:
        kind, values = "input", arrays[model.inputs.index(name)]
    elif name in {n for n, _ in session.state.parameters}:
        kind, values = "parameter", session.state.parameters[name].data
    elif origin.buffer.region == "state":
        kind = "state"
    scaling = session.memory.scaling
    bad = ~np.isfinite(values)
    if kind in ("input", "parameter") and bad.any():
        index = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), values.shape))
    return NonFinite(
        name,
        kind,
        nodes,
        forward,
        int(np.isnan(values).sum()),
        int(np.isinf(values).sum()),
        values.size,
        index,
        origin.inputs,
        describe(values) if index is not None else _count(values),
        model.paths,
        origin.buffer.dtype,
        None if scaling is None else scaling.find_factor(session.state.loss_scale),
        session.state.skipped,
    )


def _list_computing(model: Model, plan: Plan, name: str) -> list[str]:
    """Return the nodes that one step of the plan does at once to compute a value, in order.

    They are those on the way from values that the plan keeps.  Empty if the model's graph does not
    tell, as where nothing is installed that reads it, or a pass has made the value.
    """
    try:
        graph = model.graph
    except MissingPackageError:
        return []
    makers = {output: node for node in graph.nodes for output in node.outputs if node.inputs}
    kept = {buffer.name for buffer in plan.buffers}
    wanted = [name]
    for value in wanted:  # grows
        if value in makers:
            wanted += [i for i in makers[value].inputs if i not in kept and i not in wanted]
    made = set(wanted)
    return [node.name for node in graph.nodes if node.inputs and not made.isdisjoint(node.outputs)]


def _copy(session: ModuleSession, model: Model, plan: Plan) -> BoundProgram:
    """Return the program of a plan on memory of its own, with gradients of zeros."""
    memory, state = session.memory, session.state
    regions: dict[str, Bytes] = {"frozen": memory.frozen}
    for name, content in state.regions.items():
        regions[name] = allocate(content.nbytes)
        if name != "grad":
            regions[name][...] = content
    regions["work"] = allocate(plan.compute_region_bytes("work"))
    group = None if model.ranks is None else model.ranks.group
    return BoundProgram(plan, memory.kernels.resolve, regions, memory.constants, group=group)


def _copy_bad(program: BoundProgram, buffer: Buffer) -> Array | None:
    """Return a copy of the values of a buffer if some are not finite."""
    values = program.read_memory(buffer)
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return None
    return values.copy()


# --- words


def _count_kinds(values: Array) -> Iterator[tuple[str, int]]:
    """Yield the kinds of values that are not finite, by the place of their first, with counts."""
    masks = {"NaN": np.isnan(values), "inf": np.isposinf(values), "-inf": np.isneginf(values)}
    counts = [(int(bad.argmax()), word, int(bad.sum())) for word, bad in masks.items()]
    yield from ((word, count) for _, word, count in sorted(counts) if count)


def _count(values: Array) -> str:
    """Return in words which of some values are not finite."""
    if values.size == 1:
        return _describe_value(values.reshape(-1)[0])
    told = [f"{word} in {count}" for word, count in _count_kinds(values)]
    return f"{' and '.join(told)} of {values.size} values"


def describe(values: Array) -> str:
    """Describe the values of an array that are not finite, and the first one; "" if all are."""
    if values.dtype.kind != "f":
        return ""
    bad = ~np.isfinite(values)
    if not bad.any():
        return ""
    index = np.unravel_index(int(bad.argmax()), values.shape)
    more = int(bad.sum()) - 1
    place = f" at {[int(i) for i in index]}" if index else ""
    return f"{_describe_value(values[index])}{place}" + (
        f" and {more} more such values" if more else ""
    )


def _describe_value(value: Any) -> str:
    return "NaN" if np.isnan(value) else "-inf" if value < 0 else "inf"
