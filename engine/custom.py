"""Operators of your own: `register`, and the vocabulary that declares the built-in operators.

An operator has a shape rule, a gradient rule, and a way to compute it: a lowering to kernels, a
formula (`elementwise`), or an expansion into other operators.  `Op` describes each of these, and
docs/custom-ops.md shows a complete operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.base.errors import InputError
from engine.base.signatures import check_arguments, check_fields
from engine.kernels.machine.target import Target
from engine.kernels.ops.registry import list_ops, list_templates
from engine.kernels.vocabulary.expression import parse
from engine.kernels.vocabulary.facts import ChannelsLast, Layout, Movement, Samples
from engine.kernels.vocabulary.formula import elementwise
from engine.kernels.vocabulary.kernel import (
    Body,
    Intrinsic,
    Template,
    inline,
    kernel,
    off,
    outline,
    share,
)
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Grad,
    Lowering,
    Nodes,
    Op,
    Operand,
    Site,
    TensorType,
)
from engine.kernels.vocabulary.row_program import Input, Program, loop
from engine.kernels.vocabulary.shape_rules import broadcast, same_as
from engine.plan.words import Field, Words

__all__ = [
    "Body",
    "ChannelsLast",
    "Field",
    "Grad",
    "Input",
    "Intrinsic",
    "Layout",
    "Lowering",
    "Movement",
    "Nodes",
    "Op",
    "Operand",
    "Program",
    "Samples",
    "Site",
    "Target",
    "Template",
    "TensorType",
    "Words",
    "broadcast",
    "elementwise",
    "inline",
    "kernel",
    "loop",
    "off",
    "outline",
    "parse",
    "register",
    "same_as",
    "share",
    "unregister",
]

_RESERVED = ("", "ai.onnx", MS, OURS)
_own: set[tuple[str, str]] = set()
_own_kernels: set[str] = set()


@check_arguments
def register(*declared: Op, kernels: Sequence[Template] = ()) -> None:
    """Register operators in this process, for all plans made from now on.

    Registering an operator again replaces it.  Existing plans stay as they are.  A kernel cannot be
    replaced: a kernel with other code needs another name.

    kernels: kernel templates.  You need not repeat those that an op names in `calls`.  An op with a
        lowering but without `calls` may call all of these.

    Raises:
        DTypeError: an op, a kernel, or a field of either has the wrong type.
        InputError: a domain is reserved, an op cannot be computed, an attribute has an unknown
            type, or a kernel of that name exists with other code.  Nothing is registered then.
    """
    for op in declared:
        check_fields(f"op {op.name!r}", op)
    shared = tuple(kernels)
    declared = tuple(_as_own(op, shared) for op in declared)
    named = [t for op in declared for t in op.calls or ()]
    kernels = [*shared, *(t for t in named if list_templates().get(t.name) is not t)]
    for op in declared:
        if op.domain in _RESERVED:
            raise InputError(
                f"{op.name}: domain {op.domain!r} is not yours; use one like 'my.ops', in the "
                f"model, too"
            )
        if not (op.lower or op.expr or op.expand or op.is_view or op.fold):
            raise InputError(
                f"{op.domain}::{op.name}: an op needs lower, expr, expand, is_view or fold to be "
                f"computed"
            )
        try:
            op.attributes()
        except TypeError as error:
            raise InputError(f"{op.domain}::{op.name}: {error}") from None
    for template in kernels:
        check_fields(f"kernel {template.name!r}", template)
        if template.name in list_templates() and template.name not in _own_kernels:
            raise InputError(f"kernel {template.name!r}: the package has one of this name")
        old = list_templates().get(template.name, template).build.__code__
        if (old.co_code, old.co_consts) != (
            template.build.__code__.co_code,
            template.build.__code__.co_consts,
        ):
            raise InputError(
                f"kernel {template.name!r} is registered with other code, which this process has "
                f"compiled; give the new one another name"
            )
    for op in declared:
        list_ops()[op.domain, op.name] = op
        _own.add((op.domain, op.name))
    for template in kernels:
        list_templates()[template.name] = template
        _own_kernels.add(template.name)


def _as_own(op: Op, kernels: tuple[Template, ...]) -> Op:
    """Return an op as one from outside the package.

    If it has a lowering and does not declare the kernels that it calls, it calls `kernels`.
    """
    if op.grad is not None:
        op = replace(op, tells_gradient=True)
    if op.lower is None or op.calls is not None or not kernels:
        return op
    return replace(op, calls=kernels)


@check_arguments
def unregister(*declared: Op, kernels: Sequence[Template] = ()) -> None:
    """Remove operators and kernels that `register` added."""
    for op in declared:
        if (op.domain, op.name) in _own:
            _own.discard((op.domain, op.name))
            del list_ops()[op.domain, op.name]
    for template in kernels:
        if template.name in _own_kernels:
            _own_kernels.discard(template.name)
            del list_templates()[template.name]
