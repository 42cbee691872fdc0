"""Kernel sets: every kernel that plans of a set of ops can ask for, whatever their shapes.

Plans for such libraries are closed (graphs/planner/close.py).  What is left is finite: the kernel
templates that the ops declare to call, and those of the ops they may become, with every value that
the templates' parameters may have.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator

from engine.element_types import ELEMENT_TYPES, FLOATS, ITEMSIZE, OF_CPP
from engine.errors import ModelError, UnsupportedOpError, nearest
from engine.graphs.ir.graph import Graph
from engine.graphs.passes import control, foreign
from engine.graphs.passes.makes import Keys
from engine.graphs.planner.pipeline import reachable
from engine.kernels.ops.movement import bits
from engine.kernels.registry import ops
from engine.kernels.vocabulary.instructions import DOMAINS
from engine.kernels.vocabulary.kernel import ANY, MOVED, NUMBER, OPEN, REAL, Template
from engine.kernels.vocabulary.op import MS, OURS, Op
from engine.runtime.plan import KernelSpec, Plan
from engine.tools.trimmed.opset import OpSet, of_graphs

OWN = ("", MS, OURS)  # domains of the ops of this package
DEFAULT = ("f32", "i64", "b1")  # element types of a config that names none


def types_of(config: OpSet) -> tuple[str, ...]:
    """Element types that a config allows, booleans and indices always.

    Raises:
        ModelError: a name is no element type.
    """
    names = list(config.types)
    for row in config.ops.values():
        for types in row.values():
            for side in ("inputs", "outputs"):
                names += [t for kinds in (types or {}).get(side, {}).values() for t in kinds]
    for name in names:
        if name not in OF_CPP:
            raise ModelError(f"element type {name!r} of the config{nearest(name, list(OF_CPP))}")
    found = {OF_CPP[name] for name in names} | ({"f32"} if not names else set()) | {"i64", "b1"}
    return tuple(k for k in ITEMSIZE if k in found)


def kernel_set(config: OpSet) -> dict[KernelSpec, str]:
    """The kernels of a config, each with the name of an op that asks for it.

    Raises:
        UnsupportedOpError: an op of the config is unknown, or its declaration does not say which
            kernels it calls, or which ops it becomes.
    """
    types = types_of(config)
    found: dict[KernelSpec, str] = {}
    for op in _reached(config):
        for template in op.calls or ():
            for spec in _instances(template, types):
                found.setdefault(spec, op.name)
    for domain in formula_domains(types):
        found.setdefault(KernelSpec("formula", (domain,)), "elementwise ops")
    return found


def makers(graphs: Iterable[Graph], plans: Iterable[Plan]) -> dict[str, str]:
    """An op that asks for it, by symbol, for the kernels of closed plans of these graphs."""
    plans = list(plans)
    config, names = of_graphs(graphs), {t.name: t.cpp for t in ELEMENT_TYPES.values()}
    kinds = {b.dtype for plan in plans for b in plan.buffers} & names.keys()
    config.types = tuple(names[kind] for kind in sorted(kinds))
    known = kernel_set(config)
    templates = {spec.template: op for spec, op in known.items()}
    specs = [spec for plan in plans for spec in plan.specs]
    return {s.symbol: known.get(s) or templates.get(s.template, s.template) for s in specs}


def formula_domains(types: Iterable[str]) -> list[str]:
    """Domains of formulas, down to the smallest, that computing with these types can ask for."""
    known = {d: set(types) - {"f16"} <= set(kinds) for d, kinds in DOMAINS.items()}
    largest = next(d for d in DOMAINS if known[d])
    return [d for d in DOMAINS if set(DOMAINS[d]) <= set(DOMAINS[largest])]


def _reached(config: OpSet) -> list[Op]:
    """The ops that a config names, then those that plans may hold in their place."""
    if config.all_if_none and not config.ops:
        found = list(ops().values())
    else:
        held = _held(config)
        order = (*sorted(held), *sorted(reachable(held) - held))
        found = [ops()[key] for key in order if key in ops()]
    for op in found:
        if (op.lower and op.calls is None) or (op.expand and op.becomes is None):
            missing = "calls" if op.lower and op.calls is None else "becomes"
            raise UnsupportedOpError(
                f"op {op.title!r}: its declaration has no {missing!r}, of which libraries for a "
                f"set of ops are made"
            )
    return found


def _held(config: OpSet) -> Keys:
    """The ops that a config names; those of this package in whichever domain it has them."""
    names = set(config.names())
    plain = {name.split("::")[1] for name in names}
    known = {*ops(), *foreign.FORMS, *(("", name) for name in control.FORMS)}
    found = {
        (domain, name)
        for domain, name in known
        if (name in plain if domain in OWN else f"{domain}::{name}" in names)
    }
    unknown = sorted(plain - {name for _, name in found})
    if unknown:
        known_names = [name for _, name in known]
        raise UnsupportedOpError(
            f"op {unknown[0]!r} of the config{nearest(unknown[0], known_names)}"
        )
    return frozenset(found)


def _instances(template: Template, types: Iterable[str]) -> Iterator[KernelSpec]:
    """A template with every value its parameters may have; none of an open one."""
    for row in template.ranges.get("params", ()):
        if row[0] in types:
            yield KernelSpec(template.name, tuple(row))
    if "params" in template.ranges:
        return
    parameters = list(inspect.signature(template.build).parameters.values())[1:]
    choices: list[tuple[str | int, ...]] = []
    for p in parameters:
        usual = REAL if p.name == "T" else OPEN if p.annotation == "str" else (0, 1)
        given = template.ranges.get(p.name, usual)
        if given == OPEN:
            return
        choices.append(_kinds(given, types) if isinstance(given, str) else given)
    for params in itertools.product(*choices):
        yield KernelSpec(template.name, params)


def _kinds(what: str, types: Iterable[str]) -> tuple[str, ...]:
    """The element types of a kind that libraries of these types have."""
    numbers = [t for t in types if t not in ("b1", "f16")]
    moved = [bits(t) for t in types]
    return {
        REAL: tuple(t for t in types if t in FLOATS),
        NUMBER: tuple(numbers),
        MOVED: tuple(dict.fromkeys(moved)),
        ANY: tuple(dict.fromkeys(numbers + moved)),
    }[what]
