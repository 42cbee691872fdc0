"""Dry run: plans of a training step, and of variants that take less, without running a step."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from typing import TYPE_CHECKING

from engine.base.aliases import Shapes
from engine.base.element_types import HALVES, ITEMSIZE
from engine.base.errors import BudgetError, EngineError, InternalError
from engine.checking import process
from engine.checking.report import (
    NO_GRADIENT,
    NO_KERNEL,
    Check,
    Fault,
    Figures,
    Halves,
    ModelInput,
    Suggestion,
    sort_by_bytes,
)
from engine.checking.subject import Opened, Source, Subject, list_layers, train_only, with_optimizer
from engine.plan.plan import Plan, format_bytes
from engine.runtime.roofline import Roofline

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Node
    from engine.kernels.machine.target import Target

SHOWN = 4  # suggestions of an error
VARIANTS = 6  # planned variants of a training at most, besides budgets
SHARES = (0.75, 0.5)  # shares of its work memory that are suggested as budgets


def check(
    subject: Subject,
    shapes: Shapes,
    *,
    source: str,
    machine: Roofline | None = None,
    variants: bool = True,
    opened: Opened | None = None,
    say: Callable[[str], object] = str,
) -> Check:
    """Predict the memory and time of a training run.  No step runs; only the cache is written.

    subject: the models.  shapes: the shapes of a step's inputs. source: its name in the report.
    machine: the machine for which time is predicted; None measures this one, which takes two
        seconds.
    variants: whether to plan variants that take less, too.
    opened: the models of the subject, if they are open; their plans are not made again.
    say: called with the name of each stage.

    Raises:
        EngineError: a model cannot be read, does not fit the others, or the shapes do not fit it.
    """
    opened, budget = opened or subject.open(), subject.planning.budget
    kernels = opened.train.memory.kernels
    packed = _count_packed_values(subject.training) if _has_bytes(subject) else {}
    result = Check(
        source=source,
        threads=subject.threads,
        kernels=kernels.name,
        inputs=tuple(_list_inputs(opened, shapes)),
        trained=subject.count_values(trained=True, packed=packed),
        frozen=subject.count_values(trained=False, packed=packed),
        budget=budget,
    )
    try:
        plans = opened.make_plans(shapes)
    except InternalError:
        raise
    except EngineError as error:
        # A training model holds its gradients already: they need none themselves.
        faults = tuple(f for f in list_faults(subject.training) if f.lacks == NO_KERNEL)
        if not faults:
            raise
        return replace(result, faults=faults, why=str(error))
    if machine is None:
        from engine.runtime.roofline import measure

        machine = measure(subject.threads, kernels.resolve)
    read = sum(map(_measure_file, (subject.training, subject.evaluation, subject.optimizer)))
    told = _Teller(machine, _count_file_bytes(subject, opened), read)
    kept = (
        _plan_within(opened, shapes, budget, plans) if budget is not None else _BudgetPlans(plans)
    )
    figures = told.make_figures(opened, shapes, kept.plans)
    made = told.list_parts(opened, shapes, kept.plans, planning=True)
    suggestions: list[Suggestion] = []
    if variants:
        say("planning within less memory")
        suggestions += _suggest_budgets(opened, shapes, told, plans)
        suggestions += _list_suggestions(subject, opened, shapes, told, say)
    return replace(
        result,
        why=kept.why,
        figures=figures,
        first=None if made is None else sum(made.values()),
        least=kept.least,
        integers=sum(map(_count_integer_layers, kept.plans)),
        suggestions=sort_by_bytes(s for s in suggestions if s.figures.nbytes < figures.nbytes),
        halves=_count_by_precision(subject, kept.plans, kernels.target),
        machine=(machine.flops, machine.memory),
        unsure=machine.unsure,
    )


def _has_bytes(subject: Subject) -> bool:
    """Return whether parameters are bytes, which may have several values each."""
    return any(ITEMSIZE[dtype] == 1 for dtype, _ in subject.parameters.values())


def _count_packed_values(training: Source) -> dict[str, int]:
    """Count the values of the parameters of a training model that have several in a byte."""
    from engine.graphs.io import onnx_io
    from engine.graphs.passes.quantised import PACKED_WEIGHTS

    return {
        node.inputs[0]: int(node.attrs["rows"]) * int(node.attrs["columns"])
        for node in onnx_io.load(training).nodes
        if (node.domain, node.op) == PACKED_WEIGHTS
    }


def _count_integer_layers(plan: Plan) -> int:
    """Count the steps that multiply integers of 8 bits."""
    from engine.kernels.analysis.flops import count_factor_bytes

    symbols = {kernel.symbol for kernel in plan.kernels if count_factor_bytes(kernel.spec) == 1}
    return sum(step.kernel in symbols for step in plan.steps)


def _count_by_precision(subject: Subject, plans: Sequence[Plan], target: Target) -> Halves | None:
    """Count values in 16 bits, and nodes that stay in float32; None if all is float32.

    A pass that replaces a node names what it makes after that, with a slash and more.  Nodes of the
    optimizer, and what is made for no node, as an input's change of layout, do not count.
    """
    from engine.graphs.io import onnx_io
    from engine.kernels.analysis.flops import count_factor_bytes
    from engine.kernels.machine.target import explain_storage
    from engine.kernels.vocabulary.op import title_op

    precision = subject.planning.precision
    if precision == "f32":
        return None
    known = "" if precision == "auto" else explain_storage(target, precision)
    graph = onnx_io.load(subject.training)
    uses = Counter(node.name for node in graph.nodes)
    nodes = {node.name: node for node in graph.nodes if node.name and uses[node.name] == 1}
    touched: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}  # elements of the largest value of a node, parameters apart
    for plan in plans:
        rounding = {k.symbol for k in plan.kernels if count_factor_bytes(k.spec) < ITEMSIZE["f32"]}
        for step in plan.steps:
            name = step.source
            while name not in nodes and "/" in name:
                name = name.rpartition("/")[0]
            if step.phase == "opt" or name not in nodes:
                continue
            types = touched.setdefault(name, set())
            used = [plan.buffers[arg.buffer] for arg in step.args if arg.buffer >= 0]
            types.update(buffer.dtype for buffer in used)
            kept = [math.prod(b.shape) for b in used if b.region == "work" and b.dtype == "f32"]
            sizes[name] = max([sizes.get(name, 0), *kept])
            if step.kernel in rounding:
                types.update(HALVES)
    wide, reasons = Counter[str](), dict[str, set[str]]()
    for name, types in touched.items():
        if "f32" in types and types.isdisjoint(HALVES):
            title = title_op(nodes[name].domain, nodes[name].op)
            wide[title] += 1
            reasons.setdefault(_explain_float32(nodes[name], sizes[name]), set()).add(title)
    return Halves(
        precision=precision,
        reason=plans[0].precision or known,
        values=sum(plan.count_halves() for plan in plans),
        in_float32=dict(wide.most_common()),
        reasons={why: sorted(titles) for why, titles in sorted(reasons.items())},
        unnamed=len(graph.nodes) - len(nodes),
    )


def _explain_float32(node: Node, size: int) -> str:
    """Return why a node computes on float32 values, the largest of them with so many elements."""
    from engine.graphs.passes.storage import SMALL
    from engine.kernels.ops.registry import list_ops

    # A pass may replace an op by one of our domain that has its name.
    forms = [op for op in list_ops().values() if op.name == node.op]
    if not any(op.storage or op.expr or op.lower is None for op in forms):
        return "no kernels for 16 bits"
    if size <= SMALL:
        return f"values of at most {SMALL} elements stay as they are"
    return "between inputs, outputs, parameters and nodes in float32"


@dataclass(frozen=True)
class _BudgetPlans:
    """Plans that keep to a budget, or the smallest ones with the reason and their bytes."""

    plans: Sequence[Plan]
    why: str = ""
    least: int | None = None


def _plan_within(
    opened: Opened, shapes: Shapes, budget: int, plans: Sequence[Plan]
) -> _BudgetPlans:
    """Return the plans within a budget, or the smallest ones if there are none.

    plans: those without a budget.
    """
    if sum(process.count_region_bytes(plans, opened.train.memory.mapped).values()) <= budget:
        return _BudgetPlans(plans)
    try:
        return _BudgetPlans(opened.make_plans(shapes, budget))
    except BudgetError as error:
        return _BudgetPlans(opened.make_plans(shapes, error.least), str(error), error.least)


def advise(subject: Subject, shapes: Shapes) -> str:
    """Return changes that help if no plan keeps to a budget, each with its bytes; "" if there are
    none.

    Only changes that keep to the budget are listed; if there are none, the smallest others.
    """
    from engine.kernels.analysis.cost import get_nominal

    opened = subject.open()
    told = _Teller(get_nominal(subject.threads), 0, 0, whole=False)
    suggestions = sort_by_bytes(_list_suggestions(subject, opened, shapes, told))
    fits = [s for s in suggestions if s.figures.nbytes <= (subject.planning.budget or 0)]
    shown = [
        f"{s.change} ({format_bytes(s.figures.nbytes)})" for s in fits[::-1] or suggestions[:SHOWN]
    ]
    if not shown:
        return ""
    return f"{'these would fit' if fits else 'these take less'}: {', '.join(shown[:SHOWN])}"


def list_faults(model: Source) -> Iterator[Fault]:
    """Yield all nodes of a model that cannot be run, or through which no gradient flows.

    Nodes whose types are unknown because of these are left out.
    """
    from engine.graphs.offline import support

    lacks = {support.FORWARD: NO_GRADIENT, support.UNSUPPORTED: NO_KERNEL}
    for row in support.check_support(
        bytes(model) if isinstance(model, bytearray | memoryview) else model
    ):
        if row.status in lacks and not row.follows:
            op = f"{row.domain}::{row.op}" if row.domain else row.op
            yield Fault(row.node, op, lacks[row.status], row.reason, row.module)


def _list_inputs(opened: Opened, shapes: Shapes) -> Iterator[ModelInput]:
    for name in opened.train.inputs:
        declared = opened.train.interface.inputs[name]
        yield ModelInput(name, declared.dtype, declared.shape, shapes.get(name))


def _count_file_bytes(subject: Subject, opened: Opened) -> int:
    """Return the bytes that a process holds of model files; large constants are in a region."""
    constants = opened.train.interface.large
    large = sum(each.nbytes for each in constants if each.at is not None and not each.file)
    return _measure_file(subject.training) + _measure_file(subject.optimizer) - large


def _measure_file(source: Source | None) -> int:
    """Return the bytes of a model's file."""
    if source is None:
        return 0
    return os.path.getsize(source) if isinstance(source, str | os.PathLike) else len(source)


@dataclass(frozen=True)
class _Teller:
    """Source of the figures of plans.

    machine: the machine that runs them.
    files: bytes of the models that a process holds.  read: bytes that it reads before.
    whole: whether to predict the memory of the process, too.
    """

    machine: Roofline
    files: int
    read: int
    whole: bool = True

    def make_figures(self, opened: Opened, shapes: Shapes, plans: Sequence[Plan]) -> Figures:
        from engine.kernels.analysis.cost import predict_steps

        seconds = sum(sum(predict_steps(plan, self.machine)) for plan in plans)
        held = process.count_region_bytes(plans, opened.train.memory.mapped)
        return Figures(held, self.list_parts(opened, shapes, plans), seconds)

    def list_parts(
        self, opened: Opened, shapes: Shapes, plans: Sequence[Plan], *, planning: bool = False
    ) -> Mapping[str, int] | None:
        if not self.whole:
            return None
        dtypes = {name: t.dtype for name, t in opened.train.interface.inputs.items()}
        batch = process.count_batch_bytes(dtypes, shapes)
        mapped = opened.train.memory.mapped
        return process.list_parts(
            plans, batch, self.files, self.read, planning=planning, mapped=mapped
        )


# --- variants that take less


def _suggest_budgets(
    opened: Opened, shapes: Shapes, told: _Teller, plans: Sequence[Plan]
) -> Iterator[Suggestion]:
    """Yield the same step within shares of its memory, and within the least sufficient memory.

    Of budgets with which a step is the same, the least stands for all.

    plans: those without a budget.
    """
    work = max(plan.compute_region_bytes("work") for plan in plans)
    total = sum(process.count_region_bytes(plans, opened.train.memory.mapped).values())
    budgets = [int(total - (1 - share) * work) for share in SHARES]
    try:
        opened.make_plans(shapes, 1)
    except BudgetError as error:
        budgets = [*(b for b in budgets if b > error.least), error.least]
    figures = {b: told.make_figures(opened, shapes, opened.make_plans(shapes, b)) for b in budgets}
    for budget, following in zip_longest(budgets, budgets[1:]):
        if figures[budget] != figures.get(following):
            yield Suggestion(f"a budget of {format_bytes(budget)}", figures[budget])


def _list_suggestions(
    subject: Subject,
    opened: Opened,
    shapes: Shapes,
    told: _Teller,
    say: Callable[[str], object] = str,
) -> Iterator[Suggestion]:
    """List at most `VARIANTS` variants of a training run, each with the figures of its own plans.

    Variants that cannot be planned are left out.
    """
    for change, make in islice(_list_variants(subject, opened, shapes), VARIANTS):
        say(f"planning {change}")
        try:
            other, other_shapes = make()
            mine = opened if other is subject else other.open()
            plans = mine.make_plans(other_shapes)
        except InternalError:
            raise
        except EngineError:
            continue
        yield Suggestion(change, told.make_figures(mine, other_shapes, plans))


Variant = tuple[str, Callable[[], tuple[Subject, Shapes]]]


def _list_variants(subject: Subject, opened: Opened, shapes: Shapes) -> Iterator[Variant]:
    batch = opened.count_batch(shapes)
    for smaller in dict.fromkeys((batch // 2, 1)) if batch is not None else ():
        if 1 <= smaller < (batch or 0):
            new = opened.resize_shapes(shapes, smaller)
            yield f"a batch of {smaller} instead of {batch}", partial(_keep_same, subject, new)
    groups = list_layers(subject)
    if len(groups) > 1:
        rest = groups[len(groups) // 2 :]
        if len(rest) > 1:
            half = [name for layer in rest for name in layer]
            title = f"train the last {len(rest)} of {len(groups)} layers"
            yield title, partial(_train_only, subject, half, shapes)
        yield "train only the last layer", partial(_train_only, subject, groups[-1], shapes)
    small = [name for name in subject.trained if len(subject.parameters[name][1]) < 2]
    if small and len(small) < len(subject.trained):
        yield "train only biases and norms", partial(_train_only, subject, small, shapes)
    if opened.update is not None and opened.update.lay_out_states().nbytes:
        yield "SGD as the optimizer", partial(_use_plain_sgd, subject, shapes)


def _keep_same(subject: Subject, shapes: Shapes) -> tuple[Subject, Shapes]:
    return subject, shapes


def _train_only(subject: Subject, names: Sequence[str], shapes: Shapes) -> tuple[Subject, Shapes]:
    return train_only(subject, names), shapes


def _use_plain_sgd(subject: Subject, shapes: Shapes) -> tuple[Subject, Shapes]:
    from engine.graphs.offline.optim_types import SGD

    return with_optimizer(subject, SGD().build), shapes
