"""Where NaN and infinities come from: the first tensor that has them, and its node.

When the loss of a batch is not finite, the batch is computed once more, step by step, on copies of
parameters and gradients.  Of each step it is known whether what it reads and what it writes is
finite, so that the values that spoil the loss can be followed back to where they come from: to a
node that makes them of finite values, or to an input, a parameter or a constant that has them.
Infinities that do not reach the loss, as those of a mask that softmax turns into zeros, are passed
over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError, MissingPackageError, NonFiniteError
from engine.runtime.arena import Bytes, allocate
from engine.runtime.collective import collectives
from engine.runtime.plan import CHECK, Buffer, Plan
from engine.runtime.program import Program
from engine.training.model import Model
from engine.training.model_file import RESET

if TYPE_CHECKING:
    from engine.trainer.trainer import Trainer

Array = npt.NDArray[Any]
Origin = tuple[Buffer, str, str]
"""A buffer, the node that has computed it of finite values (empty if none has), what is bad."""

ELSEWHERE = "it began on another rank"
_ADVICE = (
    "A lower learning rate, a warm-up of the schedule or clip_grad= of the optimizer often helps"
)


def check_parameters(trainer: Trainer) -> None:
    """Check that all parameters are finite, so that no checkpoint holds others.

    Raises:
        NonFiniteError: one is not; the message names it and the last update.
    """
    for name, parameter in trainer.state.parameters:
        found = _describe(parameter.data)
        if found:
            kept = None if trainer.state.gradients_gone else parameter.grad
            gradient = "" if kept is None else _describe(kept)
            raise NonFiniteError(
                f"parameter {name!r} has {found}: {_last_update(trainer)}"
                f"{gradient and f', and its gradient has {gradient}'}. Earlier checkpoints are as "
                f"they were. {_ADVICE}"
            )


def error(trainer: Trainer, batch: Sequence[Any], loss: float, place: str) -> NonFiniteError:
    """The error that tells where the loss of a batch, which was just computed, got its value from.

    batch: as `Trainer.accumulate` took it.
    place: which batch it is, in the message.
    """
    try:
        origin = _origin(trainer, batch)
    except EngineError as problem:  # as a lack of memory for the copies
        origin = f"where that began cannot be told: {problem}"
    return NonFiniteError(
        f"{place}: the loss is {loss}; {origin}. The parameters have not been updated with this "
        f"batch, and checkpoints are as they were. {_ADVICE}"
    )


def _last_update(trainer: Trainer) -> str:
    if not trainer.steps:
        return "it was so before the first update"
    return f"the update of step {trainer.steps} or one before it made it so"


def _origin(trainer: Trainer, batch: Sequence[Any]) -> str:
    """What the message says of the origin of the values that spoil the loss."""
    module, model = trainer.module, trainer.module._train
    arrays = trainer._arrays(model, batch)
    with module._memory.turn.take():
        bound = trainer._steps.program([a.shape for a in arrays])
        plan = bound.plan
        program = _copy(trainer, plan)
        for name, array in zip(model.inputs, arrays, strict=True):
            np.copyto(program.inputs[name], array)
        for flag in (RESET, CHECK):
            if flag in program.inputs:
                program.inputs[flag][...] = True
        if model.ranks is not None:
            model.ranks.fill(program)
        draws = trainer.state.draws - bound.draws  # the batch has counted itself
        origin = _follow(program, plan, model.outputs[0], draws, module._seed)
    if origin is None:
        return "computed once more, it was finite"
    buffer, source, what = origin
    name, parameters = buffer.name, {n for n, _ in trainer.state.parameters}
    if source in {plan.steps[each.step].source for each in collectives(plan)}:
        return f"{ELSEWHERE}: here all values were finite until {source!r} added them"
    if source:
        nodes = _computing(model, plan, name) or [source]
        word = "node" if len(nodes) == 1 else "nodes"
        return (
            f"the first tensor that is not finite is {name!r} with {what}, computed from finite "
            f"values by the {word} {', '.join(map(repr, nodes))}"
        )
    if name in model.inputs:
        at = _describe(arrays[model.inputs.index(name)])
        return f"input {name!r} has {at or what}"
    if name in parameters:
        at = _describe(trainer.state.parameters[name].data)
        return f"parameter {name!r} has {at or what}: {_last_update(trainer)}"
    return f"the constant {name!r} of the model has {what}"


def _computing(model: Model, plan: Plan, name: str) -> list[str]:
    """The nodes of the model that a step of the plan does at once to compute a value, in order.

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


def _copy(trainer: Trainer, plan: Plan) -> Program:
    """The program of a plan on memory of its own."""
    memory, state = trainer.module._memory, trainer.state
    regions: dict[str, Bytes] = {"frozen": memory.frozen}
    for name, content in state.regions.items():
        regions[name] = allocate(content.nbytes)
        regions[name][...] = content
    regions["work"] = allocate(plan.region_bytes("work"))
    ranks = trainer.module._train.ranks
    group = None if ranks is None else ranks.group
    return Program(plan, memory.kernels.resolve, regions, memory.constants, group=group)


def _follow(
    program: Program, plan: Plan, output: str, draws: int, seed: int | None
) -> Origin | None:
    """Run a program until an output is written, and follow its bad values back.

    Returns where they begin; None if the output is finite.
    """
    target = next(port.buffer for port in plan.outputs if port.name == output)
    # Of each buffer that a step has written badly: the buffer where that began, and its node.
    origins: dict[int, Origin] = {}
    begin: Origin | None = None
    done = 0
    for i in program.run_stepwise(draws, seed):
        for step in plan.steps[done:i]:  # one, or all of a group
            for arg in step.args:
                if arg.mode in ("w", "u"):
                    buffer = plan.buffers[arg.buffer]
                    bad = _bad(program, buffer)
                    origins.pop(arg.buffer, None)
                    if bad:
                        origins[arg.buffer] = begin or (buffer, step.source, bad)
            begin = begin or next(
                (origins[a.buffer] for a in step.args if a.mode in "wu" and a.buffer in origins),
                None,
            )
        if target in origins:
            return origins[target]
        if i < len(plan.steps):
            begin = _first_read(program, plan, i, origins)
        done = i
    return None


def _first_read(program: Program, plan: Plan, i: int, origins: dict[int, Origin]) -> Origin | None:
    """Where the bad values began that a step, or its group, is about to read; None if all is fine.

    Of several, one with NaN is taken before one with infinities alone.
    """
    found = []
    made: set[int] = set()  # by the steps of the group
    for step in plan.steps[i : i + max(plan.steps[i].group, 1)]:
        for arg in step.args:
            if arg.mode in ("r", "u") and arg.buffer not in made:
                buffer = plan.buffers[arg.buffer]
                bad = _bad(program, buffer)
                if bad:
                    found.append((origins.get(arg.buffer, (buffer, "", bad)), "NaN" in bad))
        made |= {arg.buffer for arg in step.args if arg.mode in ("w", "u")}
    found.sort(key=lambda each: not each[1])
    return found[0][0] if found else None


def _bad(program: Program, buffer: Buffer) -> str:
    """What is not finite in a buffer; empty if all is."""
    return "" if buffer.region == "grad" else _count(program.memory(buffer))


def _count(values: Array) -> str:
    bad = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(0, bool)
    count = int(bad.sum())
    if not count:
        return ""
    first = values[bad][0]
    return f"{_word(first)} in {count} of {values.size} values" if values.size > 1 else _word(first)


def _describe(values: Array) -> str:
    """What is not finite in an array, and where the first such value is; empty if all is."""
    if values.dtype.kind != "f":
        return ""
    bad = ~np.isfinite(values)
    if not bad.any():
        return ""
    index = np.unravel_index(int(bad.argmax()), values.shape)
    more = int(bad.sum()) - 1
    place = f" at {[int(i) for i in index]}" if index else ""
    return f"{_word(values[index])}{place}" + (f" and {more} more such values" if more else "")


def _word(value: Any) -> str:
    return "NaN" if np.isnan(value) else "-inf" if value < 0 else "inf"
