"""Kernel sets: every kernel that plans of a set of ops can ask for, whatever their shapes.

Plans for such libraries are closed (graphs/planner/close.py).  What is left is finite: kernel
templates that the lowering of an op can reach, with every value their parameters may have.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from engine.element_types import ELEMENT_TYPES, FLOATS, ITEMSIZE, OF_CPP
from engine.errors import ModelError, UnsupportedOpError, nearest
from engine.graphs.ir.graph import Graph
from engine.graphs.passes import foreign
from engine.kernels.ops.movement import bits
from engine.kernels.registry import ops
from engine.kernels.vocabulary.instructions import DOMAINS
from engine.kernels.vocabulary.kernel import ANY, MOVED, NUMBER, OPEN, REAL, Template
from engine.kernels.vocabulary.op import Op
from engine.runtime.plan import KernelSpec, Plan
from engine.tools.trimmed.opset import OpSet, of_graphs

DEFAULT = ("f32", "i64", "b1")  # element types of a config that names none
ALWAYS = ("Identity", "ToChannelsLast", "ToPlain", "InPlaceAccumulatorV2")  # what passes add


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
        UnsupportedOpError: an op is not declared.
    """
    types = types_of(config)
    found: dict[KernelSpec, str] = {}
    for op in _closure(config):
        for template in _templates(op):
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


def _closure(config: OpSet) -> list[Op]:
    """Declarations of the ops of a config, and of those they are replaced by."""
    by_name: dict[str, list[Op]] = {}
    for op in ops().values():
        by_name.setdefault(op.name, []).append(op)
    if config.all_if_none and not config.ops:
        return list(ops().values())
    wanted = {name.split("::")[1] for name in config.names()}
    for name in sorted(wanted - by_name.keys() - foreign_names()):
        raise UnsupportedOpError(f"op {name!r} of the config{nearest(name, list(by_name))}")
    queue, done = [*sorted(wanted), *ALWAYS], set()
    found: list[Op] = []
    while queue:
        name = queue.pop()
        if name in done:
            continue
        done.add(name)
        queue += [f"Fused{name}"] if f"Fused{name}" in by_name else []
        rules: list[Any] = [rule for (_, n), rule in foreign._FORMS.items() if n == name]
        for op in by_name.get(name, ()):
            found.append(op)
            rules += [op.expand] if op.expand else []
        texts = {t for rule in rules for t in _reach(rule) if isinstance(t, str)}
        queue += _named_ops(texts, by_name)
    return found


def _named_ops(texts: set[str], known: Iterable[str]) -> list[str]:
    """Ops that texts of a rule name: whole, as two of them, or begun (`f"ReduceL{p}"`)."""
    begun = tuple(t for t in texts if len(t) > 5 and t.isalnum() and t[0].isupper())
    pairs = {a + b for a in texts for b in texts if a.isalnum() and b.isalnum()}
    return sorted(n for n in known if n in texts or n in pairs or n.startswith(begun))


def foreign_names() -> set[str]:
    """Ops of onnxruntime-training that become others before they are looked at."""
    return {name for _, name in foreign._FORMS}


def _templates(op: Op) -> list[Template]:
    found = {t.name: t for t in _reach(op.lower) if isinstance(t, Template)}
    return [found[name] for name in sorted(found)]


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
    for T, *rest in itertools.product(*choices):
        yield KernelSpec(
            template.name,
            (T, *(p.replace("{T}", str(T)) if isinstance(p, str) else p for p in rest)),
        )


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


def _reach(value: Any) -> list[Any]:
    """Every kernel template and text that a function can come to by the names in its code."""
    found: list[Any] = []
    seen: set[int] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found.append(item)
        if item is None or isinstance(item, str | int | float | bytes) or id(item) in seen:
            continue
        seen.add(id(item))
        stack += _parts(item, found)
    return found


def _parts(item: Any, found: list[Any]) -> Iterator[Any]:
    """What a value leads to, inside this package."""
    match item:
        case Template():
            found.append(item)
        case functools.partial():
            yield from (item.func, *item.args, *item.keywords.values())
        case dict():
            yield from item.values()
        case tuple() | list() | frozenset():
            yield from item
        case FunctionType() if item.__module__.startswith("engine."):
            for cell in item.__closure__ or ():
                yield cell.cell_contents
            yield from (item.__defaults__, item.__kwdefaults__)
            yield from _named(item.__code__, item.__globals__)
        case type() if item.__module__.startswith("engine.kernels"):
            yield from vars(item).values()
        case classmethod() | staticmethod():
            yield item.__func__
        case property():
            yield item.fget


def _named(code: CodeType, space: dict[str, Any]) -> Iterator[Any]:
    """Constants of code, and what its names stand for; a module gives what is read of it."""
    for name in code.co_names:
        value = space.get(name)
        if isinstance(value, ModuleType):
            yield from (vars(value).get(n) for n in code.co_names)
        else:
            yield value
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, space)
        else:
            yield constant
