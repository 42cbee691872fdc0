"""Kernel sets: all kernels that a library needs for every model made of given ops.

A kernel is a template with values for its parameters, and the values may depend on shapes.  Plans
for a library of kernels are therefore closed (graphs/planner/interpret_formulas.py): they use only
kernels whose parameters have few possible values.  The set is then finite.  An op declares which
templates it calls, and which other ops it may become in a plan.  The set has the templates of all
these ops, each with every value of its parameters.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator

from engine.base.element_types import ELEMENT_TYPES, FLOATS, ITEMSIZE, OF_CPP
from engine.base.errors import ModelError, UnsupportedOpError, suggest_nearest
from engine.graphs.ir.graph import Graph
from engine.graphs.passes import control
from engine.graphs.passes.may_add import Keys
from engine.graphs.passes.pipeline import find_reachable
from engine.kernels.loops.interpreter import formula
from engine.kernels.ops.movement import find_bits
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.instructions import DOMAINS
from engine.kernels.vocabulary.kernel import ANY, MOVED, NUMBER, OPEN, REAL, Template
from engine.kernels.vocabulary.op import MS, OURS, Op, read_op_keys
from engine.plan.plan import KernelSpec, Plan
from engine.tools.trimmed.opset import OpSet, of_graphs

OWN = ("", MS, OURS)  # domains of the ops of this package


def list_types(config: OpSet) -> tuple[str, ...]:
    """Return the element types that a config allows; booleans and i64, for indices, are always
    among them.

    Raises:
        ModelError: a name in the config is not the name of an element type.
    """
    names = list(config.types)
    for row in config.ops.values():
        for types in row.values():
            for side in ("inputs", "outputs"):
                names += [t for kinds in (types or {}).get(side, {}).values() for t in kinds]
    for name in names:
        if name not in OF_CPP:
            raise ModelError(
                f"element type {name!r} of the config{suggest_nearest(name, list(OF_CPP))}"
            )
    allowed = {OF_CPP[name] for name in names} | ({"f32"} if not names else set()) | {"i64", "b1"}
    return tuple(k for k in ITEMSIZE if k in allowed)


def find_kernel_set(config: OpSet) -> dict[KernelSpec, str]:
    """Return the kernels that a library for a config contains, each with the name of an op that
    calls it.

    Raises:
        UnsupportedOpError: an op of the config is unknown, or its declaration does not say which
            kernels it calls or which ops it becomes.
    """
    types = list_types(config)
    users: dict[KernelSpec, str] = {}
    for op in _list_reached(config):
        for template in op.calls or ():
            for spec in _list_instances(template, types):
                users.setdefault(spec, op.name)
    for domain in list_formula_domains(types):
        users.setdefault(KernelSpec(formula.name, (domain,)), "elementwise ops")
    return users


def find_makers(graphs: Iterable[Graph], plans: Iterable[Plan]) -> dict[str, str]:
    """Return the name of an op that calls each kernel of closed plans, by the kernel's symbol.

    graphs: the graphs the plans were made of.
    A kernel that the set of the graphs' ops lacks has the name of an op that calls its template, or
    else the template's own name.
    """
    plans = list(plans)
    config, names = of_graphs(graphs), {t.name: t.cpp for t in ELEMENT_TYPES.values()}
    kinds = {b.dtype for plan in plans for b in plan.buffers} & names.keys()
    config.types = tuple(names[kind] for kind in sorted(kinds))
    known = find_kernel_set(config)
    templates = {spec.template: op for spec, op in known.items()}
    specs = [spec for plan in plans for spec in plan.specs]
    return {s.symbol: known.get(s) or templates.get(s.template, s.template) for s in specs}


def list_formula_domains(types: Iterable[str]) -> list[str]:
    """Return the domains of formulas that element-wise ops on these types can need.

    A domain is a set of element types that one interpreter of formulas computes with.  These are
    the smallest domain that has all the types, and every domain within it.
    """
    known = {d: set(types) - {"f16"} <= set(kinds) for d, kinds in DOMAINS.items()}
    largest = next(d for d in DOMAINS if known[d])
    return [d for d in DOMAINS if set(DOMAINS[d]) <= set(DOMAINS[largest])]


def _list_reached(config: OpSet) -> list[Op]:
    """Return the ops that a config names, followed by the ops they may become in a plan.

    Raises:
        UnsupportedOpError: an op is unknown, or its declaration is incomplete (see
            `find_kernel_set`).
    """
    if config.all_if_none and not config.ops:
        declared = list(list_ops().values())
    else:
        held = _add_joining(_list_held(config))
        order = (*sorted(held), *sorted(find_reachable(held) - held))
        declared = [list_ops()[key] for key in order if key in list_ops()]
    for op in declared:
        if (op.lower and op.calls is None) or (op.expand and op.becomes is None):
            missing = "calls" if op.lower and op.calls is None else "becomes"
            raise UnsupportedOpError(
                f"op {op.title!r}: its declaration has no {missing!r}, which libraries for a set "
                f"of ops need"
            )
    return declared


def _add_joining(held: Keys) -> Keys:
    """Return the ops, and those that join training and optimizer models to one plan, of the domain
    engine.

    Op sets are of graphs that people have, which do not name these.
    """
    declared = [list_ops()[key] for key in held if key in list_ops()]
    return held.union(*(read_op_keys(op.joined) for op in declared))


def _list_held(config: OpSet) -> Keys:
    """Return the ops that a config names, as keys (domain, name).

    The domains of OWN count as one: a name stands for the ops of that name in all of them.

    Raises:
        UnsupportedOpError: an op is unknown.
    """
    names = set(config.list_names())
    plain = {name.split("::")[1] for name in names}
    known = {*list_ops(), *(("", name) for name in control.FORMS)}
    keys = {
        (domain, name)
        for domain, name in known
        if (name in plain if domain in OWN else f"{domain}::{name}" in names)
    }
    unknown = sorted(plain - {name for _, name in keys})
    if unknown:
        known_names = [name for _, name in known]
        raise UnsupportedOpError(
            f"op {unknown[0]!r} of the config{suggest_nearest(unknown[0], known_names)}"
        )
    return frozenset(keys)


def _list_instances(template: Template, types: Iterable[str]) -> Iterator[KernelSpec]:
    """Yield the kernels of a template, one for each combination of values that its parameters may
    have.

    There is none if a parameter is open, which means that any value is possible.  Parameters with a
    default, which say how operands are stored, are left out: a library for ops computes in float32.
    """
    for row in template.ranges.get("params", ()):
        if row[0] in types:
            yield KernelSpec(template.name, tuple(row))
    if "params" in template.ranges:
        return
    parameters = list(inspect.signature(template.build).parameters.values())[1:]
    choices: list[tuple[str | int, ...]] = []
    for p in parameters:
        if p.default is not p.empty:
            continue
        usual = REAL if p.name == "T" else OPEN if p.annotation == "str" else (0, 1)
        given = template.ranges.get(p.name, usual)
        if given == OPEN:
            return
        choices.append(_list_kinds(given, types) if isinstance(given, str) else given)
    for params in itertools.product(*choices):
        yield KernelSpec(template.name, params)


def _list_kinds(what: str, types: Iterable[str]) -> tuple[str, ...]:
    """Return the element types that a parameter of kind `what` may have, in a library of these
    types.
    """
    numbers = [t for t in types if t not in ("b1", "f16")]
    moved = [find_bits(t) for t in types]
    return {
        REAL: tuple(t for t in types if t in FLOATS),
        NUMBER: tuple(numbers),
        MOVED: tuple(dict.fromkeys(moved)),
        ANY: tuple(dict.fromkeys(numbers + moved)),
    }[what]
