"""Fixed results: after this point, no LLVM pass may change what the code computes.

The vectoriser needs freedom, so numba's fast-math flags let it reorder sums.  Later passes could
use the same freedom, depending on what they know about a call.  The code of a trimmed library,
which is specialised for the calls of its plans, would then differ from the engine's in the last
bit.  So the flags are removed after the vectoriser has run, and what the code generator would have
made of them is written out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

_FLAGS = re.compile(r"(?<= )(?:reassoc|arcp|nsz) ")
_CONTRACT = re.compile(r"(?<= )contract ")
# One lane after another would be slow, so these keep their flags; a target has one order for each.
_SUMS_OF_LANES = " @llvm.vector.reduce."
_OPERATION = re.compile(
    r"  %(\S+) = (fmul|fadd|fsub) contract ((?:<\d+ x )?(?:float|double)>?) (.*)"
)
_VALUE = re.compile(r"%[\w.$-]+|%\"[^\"]*\"")


def fix_results(text: str, fused: Collection[str]) -> str:
    """Return the text of a module with results that no pass may change any more.

    Flags that allow another order, a reciprocal or another sign of a zero are gone.

    fused: the element types whose multiply-add is one instruction.  A product of them that only one
        sum of its block reads becomes a part of it, which is what the code generator makes of the
        flag `contract`, and the flag is gone, too:

            %5 = fmul contract float %a, %b
            %6 = fadd contract float %5, %c         %6 = call float @llvm.fma.f32(%a, %b, %c)
    """
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if line.startswith("  %") and _SUMS_OF_LANES not in line:
            lines[i] = _FLAGS.sub("", line)
    if not fused:
        return "\n".join(lines)
    begin, needed = 0, dict[str, str]()
    for i, line in enumerate(lines):
        if line.startswith("define "):
            begin = i
        elif line == "}":
            lines[begin:i] = _fuse(lines[begin:i], fused, needed)
    known = "\n".join(line for line in lines if line.startswith("declare "))
    lines += [line for name, line in needed.items() if f"{name}(" not in known]
    return "\n".join(lines)


def _fuse(lines: Sequence[str], fused: Collection[str], needed: dict[str, str]) -> list[str]:
    """Return the lines of a function with its products fused into sums.

    A line stays a line: one that needs another first has both.  The product is left without a use.

    fused: as in `fix_results`.
    needed: gets the declarations of what is called, by name.
    """
    uses = Counter[str]()
    if any(" = fmul contract " in line for line in lines):
        for line in lines:
            uses.update(_VALUE.findall(line.partition(" = ")[2] or line))
    products, made = dict[str, list[str]](), list[str]()  # the products of this block
    for line in lines:
        if not line.startswith("  "):
            products.clear()
        match = _OPERATION.fullmatch(line)
        if match is not None and _name_type(match[3]) in fused:
            name, operation, kind, rest = match.groups()
            operands = _split(rest)
            if operation == "fmul":
                products[f"%{name}"] = operands
            else:
                place = next((i for i in (0, 1) if operands[i] in products
                              and uses[operands[i]] == 1), None)  # fmt: skip
                if place is not None:
                    factors, other = products[operands[place]], operands[1 - place]
                    line = _write_fma(name, kind, factors, other, operation, place, needed)
        made.append(line if _SUMS_OF_LANES in line else _CONTRACT.sub("", line))
    return made


def _write_fma(
    name: str,
    kind: str,
    factors: Sequence[str],
    other: str,
    operation: str,
    place: int,
    needed: dict[str, str],
) -> str:
    """Return the lines of a sum or a difference whose operand `place` is a product."""
    lines, (x, y) = list[str](), factors
    if operation == "fsub":
        lines.append(f"  %less.{name} = fneg {kind} {x if place else other}")
        x, other = (f"%less.{name}", other) if place else (x, f"%less.{name}")
    count = kind.strip("<").rpartition(" x ")[0]
    letters = f"{f'v{count}' if count else ''}{_name_type(kind)}"
    symbol = f"@llvm.fma.{letters}"
    needed[symbol] = f"declare {kind} {symbol}({kind}, {kind}, {kind})"
    lines.append(f"  %{name} = call {kind} {symbol}({kind} {x}, {kind} {y}, {kind} {other})")
    return "\n".join(lines)


def _name_type(kind: str) -> str:
    """Return the name of the elements of an LLVM type."""
    return "f64" if "double" in kind else "f32"


def _split(operands: str) -> list[str]:
    """Return the two operands of an operation; a constant vector has commas of its own."""
    depth = 0
    for i, letter in enumerate(operands):
        depth += (letter in "<([") - (letter in ">)]")
        if letter == "," and not depth:
            return [operands[:i], operands[i + 2 :]]
    raise ValueError(operands)
