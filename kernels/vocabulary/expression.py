"""Formulas: the one language of everything that is computed element by element.

A formula is written as Python expression text over named operands, and parsed to a nested tuple.
As terms (terms.py) it is composed by the fuser, folded by numpy, emitted as vector IR, and printed
as text that a plan can carry.  The grammar:

    formula    = [name = value; ...] value     names what it uses more than once
    value      = a Python expression of operands, names, numbers, operators and calls
    operators  = + - * / **  < <= > >= == !=  & | ^ ~ << >>
    call       = function(value, ...)        a function of `FUNCTIONS`
               | cast(type, value)           an element type, or T: the type the formula is made for
               | const('inf')                a number that Python has no literal of

A row program (`row_program.Program.of`) says what a loop over rows does with formulas:

    program    = operand ... -> statement; ...
    operand    = name[:type]access           the type is T where none is written
    access     = []                          a vector: one element an iteration
               | *                           a pointer to one element, used for all
               | (nothing)                   a scalar value, used for all
               | ..                          the number of the element, counted from a scalar value
               | [column]                    in sums of columns: a vector that is one for all rows
    statement  = name = value                names a value for the statements after it
               | name[:type][] = value       writes a vector; `name[]` alone writes what is named so
               | fold(value)                 returns the sum, prod, max or min over all elements
               | value                       returns the value of one element: the loop has n = 1

The layer norm `"x[] mean inv scale[] -> y[] = (x - mean) * inv * scale"` reads two vectors and two
values and writes a vector.  Names are for people: a parsed expression holds the place of an
operand, and is printed with the names that `name_operands` gives to places.

An expression is one of `("in", i)`, `("const", v)`, `("cast", dtype, x)` or `(function, args...)`.
A value that a text names is one object however often it is used, but a tuple is compared and hashed
as the tree it stands for: `Formulas` (terms.py) is the form in which expressions are compared,
composed, kept and computed.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base.element_types import NUMPY

Expr = tuple[Any, ...]
VALUE = re.compile(r"([a-z_A-Z]\w*) ?=(?!=)(.*)")  # name = formula


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar function: its arity, what kind of value it gives, and its numpy meaning.

    cost: about how many instructions it takes for a vector of f32, as
        tests/kernels/test_formulas.py counts them; integers and f64 take fewer or more.
    """

    arity: int
    numpy: Callable[..., Any]
    kind: str = "same"  # "same" as its arguments, or "b1"
    cost: int = 1


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _erf(x: Any) -> Any:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


def _divide(x: Any, y: Any) -> Any:
    """Divide floats, and integers with truncation towards zero, as ONNX says."""
    if np.issubdtype(np.result_type(x, y), np.integer):
        q = np.abs(x) // np.maximum(np.abs(y), 1)
        return (q * np.sign(x) * np.sign(y)).astype(np.result_type(x, y))
    return np.divide(x, y)


def _power(x: Any, y: Any) -> Any:
    """Raise floats as NumPy does; an integer's negative power is cut to an integer."""
    if np.issubdtype(np.result_type(x, y), np.integer):
        unit = np.where(np.abs(x) == 1, np.where(y % 2 == 0, 1, x), 0)
        return np.where(y < 0, unit, np.power(x, np.maximum(y, 0)))
    return np.power(x, y)


PHILOX_M, PHILOX_W, PHILOX_ROUNDS = 0xD256D193, 0x9E3779B9, 10


def philox(low: Any, high: Any, key: Any) -> tuple[Any, Any]:
    """Return two words of Philox2x32-10: counter (low, high), one word of key.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    low, high, key = (np.asarray(v).astype(np.uint64) for v in (low, high, key))
    for i in range(PHILOX_ROUNDS):
        product = np.uint64(PHILOX_M) * low
        word = (key + np.uint64(PHILOX_W * i)) & np.uint64(0xFFFFFFFF)
        low, high = product >> np.uint64(32) ^ word ^ high, product & np.uint64(0xFFFFFFFF)
    return low.astype(np.uint32), high.astype(np.uint32)


FUNCTIONS = {
    "add": Scalar(2, np.add), "sub": Scalar(2, np.subtract), "mul": Scalar(2, np.multiply),
    "div": Scalar(2, _divide), "pow": Scalar(2, _power, cost=98),
    "neg": Scalar(1, np.negative), "abs": Scalar(1, np.abs),
    "sign": Scalar(1, np.sign, cost=5), "sqrt": Scalar(1, np.sqrt),
    "exp": Scalar(1, np.exp, cost=25), "log": Scalar(1, np.log, cost=35),
    "tanh": Scalar(1, np.tanh, cost=23), "sigmoid": Scalar(1, _sigmoid, cost=22),
    "erf": Scalar(1, _erf, cost=36),
    "softplus": Scalar(1, lambda x: np.logaddexp(x, np.zeros_like(x)), cost=63),
    "floor": Scalar(1, np.floor), "ceil": Scalar(1, np.ceil, cost=3),
    "round": Scalar(1, np.rint), "max": Scalar(2, np.maximum, cost=5),
    "min": Scalar(2, np.minimum, cost=5), "lt": Scalar(2, np.less, "b1"),
    "le": Scalar(2, np.less_equal, "b1"), "gt": Scalar(2, np.greater, "b1"),
    "ge": Scalar(2, np.greater_equal, "b1"), "eq": Scalar(2, np.equal, "b1"),
    "ne": Scalar(2, np.not_equal, "b1"), "and_": Scalar(2, np.logical_and, "b1"),
    "or_": Scalar(2, np.logical_or, "b1"), "xor": Scalar(2, np.logical_xor, "b1"),
    "not_": Scalar(1, np.logical_not, "b1"), "isnan": Scalar(1, np.isnan, "b1"),
    "isinf": Scalar(1, np.isinf, "b1", cost=2), "where": Scalar(3, np.where),
    "fmod": Scalar(2, np.fmod, cost=20), "mod": Scalar(2, np.mod, cost=29),
    "bitand": Scalar(2, np.bitwise_and), "bitor": Scalar(2, np.bitwise_or),
    "bitxor": Scalar(2, np.bitwise_xor), "bitnot": Scalar(1, np.bitwise_not),
    "shl": Scalar(2, np.left_shift, cost=4), "shr": Scalar(2, np.right_shift, cost=4),
    "expm1": Scalar(1, np.expm1, cost=24),
    "philox0": Scalar(3, lambda *words: philox(*words)[0], cost=65),
    "philox1": Scalar(3, lambda *words: philox(*words)[1], cost=65),
    "sin": Scalar(1, np.sin, cost=29), "cos": Scalar(1, np.cos, cost=28),
    "tan": Scalar(1, np.tan, cost=31), "asin": Scalar(1, np.arcsin, cost=19),
    "acos": Scalar(1, np.arccos, cost=24), "atan": Scalar(1, np.arctan, cost=24),
    "sinh": Scalar(1, np.sinh, cost=27), "cosh": Scalar(1, np.cosh, cost=23),
    "asinh": Scalar(1, np.arcsinh, cost=48), "acosh": Scalar(1, np.arccosh, cost=47),
    "atanh": Scalar(1, np.arctanh, cost=44),
}  # fmt: skip

_OPERATORS: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
    ast.USub: "neg", ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor",
    ast.Invert: "bitnot", ast.LShift: "shl", ast.RShift: "shr",
}  # fmt: skip


def parse(
    text: str,
    operands: Sequence[str] = (),
    *,
    T: str = "",
    values: Mapping[str, Expr] | None = None,
    functions: Mapping[str, Expr] | None = None,
) -> Expr:
    """Parse the text of a formula; `operands[i]` is input i.

    `parse("x * sigmoid(x)", ["x"])` is `("mul", ("in", 0), ("sigmoid", ("in", 0)))`.

    T: the element type that `T` stands for.  values: names of other expressions.  functions:
    expressions that a call puts its arguments into, as inputs.

    Raises:
        ValueError: the text is not a formula, or uses a name that is not an operand.
    """
    known: dict[str, Expr] = {n: ("in", i) for i, n in enumerate(operands)}
    known |= values or {}
    reader = _SyntaxReader(known, functions or {}, T)
    *named, last = text.split(";")
    for statement in named:
        match = VALUE.fullmatch(statement.strip())
        if match is None:
            raise ValueError(f"not a named value: {statement.strip()}")
        known[match[1]] = reader.read(_parse_tree(match[2]))
    return reader.read(_parse_tree(last))


def _parse_tree(text: str) -> ast.expr:
    """Return Python's syntax tree of a text.

    Raises:
        ValueError: it has none, or one that is nested too deeply for Python.
    """
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "nested too deeply"
        raise ValueError(f"not a formula ({reason}): {text[:200]}") from None


@dataclass(frozen=True, slots=True)
class _SyntaxReader:
    """Turns Python's syntax trees into expressions."""

    values: Mapping[str, Expr]
    functions: Mapping[str, Expr]
    T: str

    def read(self, node: ast.expr) -> Expr:
        match node:
            case ast.Name(id=name):
                if name not in self.values:
                    raise ValueError(
                        f"{name!r} is not an operand; there are {', '.join(self.values)}"
                    )
                return self.values[name]
            case ast.Constant(value=int() | float() as value):
                return ("const", value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return ("const", -value)
            case ast.Call(func=ast.Name(id="const"), args=[ast.Constant(value=str() as value)]):
                return ("const", float(value))
            case ast.Call(func=ast.Name(id="cast"), args=[ast.Name(id=name), x]):
                return ("cast", find_element_type(name, self.T), self.read(x))
            case ast.Call(func=ast.Name(id=name), args=args) if name in self.functions:
                return substitute(self.functions[name], [self.read(a) for a in args])
            case ast.Call(func=ast.Name(id=name), args=args) if _takes(name, len(args)):
                return (name, *(self.read(a) for a in args))
            case (
                ast.BinOp(left=a, op=op, right=b) | ast.Compare(left=a, ops=[op], comparators=[b])
            ) if type(op) in _OPERATORS:
                return (_OPERATORS[type(op)], self.read(a), self.read(b))
            case ast.UnaryOp(op=op, operand=a) if type(op) in _OPERATORS:
                return (_OPERATORS[type(op)], self.read(a))
        raise ValueError(f"not a formula: {ast.unparse(node)}")


def _takes(name: str, count: int) -> bool:
    return name in FUNCTIONS and FUNCTIONS[name].arity == count


def find_element_type(name: str, T: str) -> str:
    """Return the element type of this name; `T` stands for T, as does no name.

    Raises:
        ValueError: there is no such type.
    """
    dtype = T if name in ("", "T") else name
    if dtype not in NUMPY:
        raise ValueError(f"{dtype!r} is not an element type")
    return dtype


def name_operands(count: int) -> tuple[str, ...]:
    """Name operands that have only places: a, b, ... z, a1, b1, ..."""
    letters = string.ascii_lowercase
    return tuple(f"{letters[i % 26]}{i // 26 or ''}" for i in range(count))


def arguments(e: Expr) -> tuple[Expr, ...]:
    """Return the sub-expressions of an expression."""
    if e[0] in ("in", "const"):
        return ()
    return e[2:] if e[0] == "cast" else e[1:]


def walk(*expressions: Expr) -> Iterator[Expr]:
    """Yield all objects among the sub-expressions, each once, after its arguments."""
    seen = set[int]()
    waiting = list(reversed(expressions))
    while waiting:
        e = waiting[-1]
        missing = [x for x in arguments(e) if id(x) not in seen]
        if missing and id(e) not in seen:
            waiting += reversed(missing)
            continue
        waiting.pop()
        if id(e) not in seen:
            seen.add(id(e))
            yield e


def substitute(e: Expr, inputs: Sequence[Expr]) -> Expr:
    """Replace input i by `inputs[i]`."""
    made: dict[int, Expr] = {}
    for x in walk(e):
        match x:
            case ("in", i):
                made[id(x)] = inputs[i]
            case ("const", _):
                made[id(x)] = x
            case ("cast", dtype, y):
                made[id(x)] = ("cast", dtype, made[id(y)])
            case _:
                made[id(x)] = (x[0], *(made[id(y)] for y in x[1:]))
    return made[id(e)]
