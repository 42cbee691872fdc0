"""Formulas: the one language of everything that is computed element by element.

A formula is written as Python expression text over named operands, parsed to a nested tuple,
composed by the fuser, folded by numpy, emitted as vector IR, and printed as text that a plan can
carry.  The grammar:

    formula    = a Python expression of operands, numbers, operators and calls
    operators  = + - * / **  < <= > >= == !=  & | ^ ~ << >>
    call       = function(formula, ...)      the functions are those of `FUNCTIONS`
               | cast(type, formula)         an element type, or T: the type the formula is made for
               | const('inf')                a number that Python has no literal of

A row program (`row_program.Program.of`) says what a loop over rows does with formulas:

    program    = operand ... -> statement; ...
    operand    = name[:type]access           the type is T where none is written
    access     = []                          a vector: one element an iteration
               | *                           a pointer to one element, used for all
               | (nothing)                   a scalar value, used for all
               | ..                          the number of the element, counted from a scalar value
               | [column]                    in sums of columns: a vector that is one for all rows
    statement  = name = formula              names a value for the statements behind it
               | name[:type][] = formula     writes a vector; `name[]` alone writes what is named so
               | fold(formula)               returns the sum, prod, max or min over all elements
               | formula                     returns the value of one element: the loop has n = 1

The layer norm `"x[] mean inv scale[] -> y[] = (x - mean) * inv * scale"` reads two vectors and two
values and writes a vector.  Names are for people: a parsed expression holds the place of an
operand, and is printed with the names that `operand_names` gives to places.

An expression is one of `("in", i)`, `("const", v)`, `("cast", dtype, x)` or `(function, args...)`.
"""

from __future__ import annotations

import ast
import functools
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.element_types import NUMPY, REALS

Expr = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function: its arity, what kind of value it gives, and its numpy meaning."""

    arity: int
    numpy: Callable[..., Any]
    kind: str = "same"  # "same" as its arguments, or "b1"


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _erf(x: Any) -> Any:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


def _divide(x: Any, y: Any) -> Any:
    """Floats divide; integers truncate towards zero, as ONNX says."""
    if np.issubdtype(np.result_type(x, y), np.integer):
        q = np.abs(x) // np.maximum(np.abs(y), 1)
        return (q * np.sign(x) * np.sign(y)).astype(np.result_type(x, y))
    return np.divide(x, y)


def _power(x: Any, y: Any) -> Any:
    """Floats as numpy; of integers with a negative exponent the power cut to an integer."""
    if np.issubdtype(np.result_type(x, y), np.integer):
        unit = np.where(np.abs(x) == 1, np.where(y % 2 == 0, 1, x), 0)
        return np.where(y < 0, unit, np.power(x, np.maximum(y, 0)))
    return np.power(x, y)


PHILOX_M, PHILOX_W, PHILOX_ROUNDS = 0xD256D193, 0x9E3779B9, 10


def philox(low: Any, high: Any, key: Any) -> tuple[Any, Any]:
    """Two words of Philox2x32-10: counter (low, high), one word of key.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    low, high, key = (np.asarray(v).astype(np.uint64) for v in (low, high, key))
    for i in range(PHILOX_ROUNDS):
        product = np.uint64(PHILOX_M) * low
        word = (key + np.uint64(PHILOX_W * i)) & np.uint64(0xFFFFFFFF)
        low, high = product >> np.uint64(32) ^ word ^ high, product & np.uint64(0xFFFFFFFF)
    return low.astype(np.uint32), high.astype(np.uint32)


FUNCTIONS = {
    "add": Function(2, np.add), "sub": Function(2, np.subtract), "mul": Function(2, np.multiply),
    "div": Function(2, _divide), "pow": Function(2, _power), "neg": Function(1, np.negative),
    "abs": Function(1, np.abs), "sign": Function(1, np.sign), "sqrt": Function(1, np.sqrt),
    "exp": Function(1, np.exp), "log": Function(1, np.log), "tanh": Function(1, np.tanh),
    "sigmoid": Function(1, _sigmoid), "erf": Function(1, _erf),
    "softplus": Function(1, lambda x: np.logaddexp(x, np.zeros_like(x))),
    "floor": Function(1, np.floor), "ceil": Function(1, np.ceil), "round": Function(1, np.rint),
    "max": Function(2, np.maximum), "min": Function(2, np.minimum),
    "lt": Function(2, np.less, "b1"), "le": Function(2, np.less_equal, "b1"),
    "gt": Function(2, np.greater, "b1"), "ge": Function(2, np.greater_equal, "b1"),
    "eq": Function(2, np.equal, "b1"), "ne": Function(2, np.not_equal, "b1"),
    "and_": Function(2, np.logical_and, "b1"), "or_": Function(2, np.logical_or, "b1"),
    "xor": Function(2, np.logical_xor, "b1"), "not_": Function(1, np.logical_not, "b1"),
    "isnan": Function(1, np.isnan, "b1"), "isinf": Function(1, np.isinf, "b1"),
    "where": Function(3, np.where),
    "fmod": Function(2, np.fmod), "mod": Function(2, np.mod),
    "bitand": Function(2, np.bitwise_and), "bitor": Function(2, np.bitwise_or),
    "bitxor": Function(2, np.bitwise_xor), "bitnot": Function(1, np.bitwise_not),
    "shl": Function(2, np.left_shift), "shr": Function(2, np.right_shift),
    "expm1": Function(1, np.expm1),
    "philox0": Function(3, lambda *words: philox(*words)[0]),
    "philox1": Function(3, lambda *words: philox(*words)[1]),
    "sin": Function(1, np.sin), "cos": Function(1, np.cos), "tan": Function(1, np.tan),
    "asin": Function(1, np.arcsin), "acos": Function(1, np.arccos), "atan": Function(1, np.arctan),
    "sinh": Function(1, np.sinh), "cosh": Function(1, np.cosh),
    "asinh": Function(1, np.arcsinh), "acosh": Function(1, np.arccosh),
    "atanh": Function(1, np.arctanh),
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
        ValueError: the text is no formula, or names what it is not made of.
    """
    if not values and not functions:
        return _parsed(text, tuple(operands), T)
    known = {n: ("in", i) for i, n in enumerate(operands)} | dict(values or {})
    return _Reader(known, functions or {}, T).read(_tree(text))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str, operands: tuple[str, ...], T: str) -> Expr:
    """`parse` of what its text alone decides; a planner asks for the same formulas many times."""
    return _Reader({n: ("in", i) for i, n in enumerate(operands)}, {}, T).read(_tree(text))


def _tree(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns Python's syntax trees into expressions."""

    values: Mapping[str, Expr]
    functions: Mapping[str, Expr]
    T: str

    def read(self, node: ast.expr) -> Expr:
        match node:
            case ast.Name(id=name):
                if name not in self.values:
                    raise ValueError(f"{name!r} is no operand; there are {', '.join(self.values)}")
                return self.values[name]
            case ast.Constant(value=int() | float() as value):
                return ("const", value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return ("const", -value)
            case ast.Call(func=ast.Name(id="const"), args=[ast.Constant(value=str() as value)]):
                return ("const", float(value))
            case ast.Call(func=ast.Name(id="cast"), args=[ast.Name(id=name), x]):
                return ("cast", element_type(name, self.T), self.read(x))
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


def element_type(name: str, T: str) -> str:
    """The element type of this name; `T` stands for T, as does no name.

    Raises:
        ValueError: there is no such type.
    """
    found = T if name in ("", "T") else name
    if found not in NUMPY:
        raise ValueError(f"{found!r} is no element type")
    return found


def operand_names(count: int) -> tuple[str, ...]:
    """Names for operands that have only places: a, b, ... z, a1, b1, ..."""
    letters = string.ascii_lowercase
    return tuple(f"{letters[i % 26]}{i // 26 or ''}" for i in range(count))


def text(e: Expr, operands: Sequence[str] = ()) -> str:
    """The text of an expression, one for each; parsing it with the same operands gives it back.

    operands: by default those of `operand_names`.
    """
    match e:
        case ("in", i):
            return operands[i] if operands else operand_names(i + 1)[i]
        case ("const", v):
            # repr keeps every bit; infinities and NaN have no literal
            return repr(v) if np.isfinite(v) else f"const('{v}')"
        case ("cast", dtype, x):
            return f"cast({dtype},{text(x, operands)})"
    return f"{e[0]}({','.join(text(x, operands) for x in e[1:])})"


def arguments(e: Expr) -> tuple[Expr, ...]:
    """The sub-expressions of an expression."""
    if e[0] in ("in", "const"):
        return ()
    return e[2:] if e[0] == "cast" else e[1:]


def walk(e: Expr) -> Iterator[Expr]:
    """All sub-expressions, the expression itself last."""
    for x in arguments(e):
        yield from walk(x)
    yield e


def substitute(e: Expr, inputs: Sequence[Expr]) -> Expr:
    """Replace input i by `inputs[i]`."""
    match e:
        case ("in", i):
            return inputs[i]
        case ("const", _):
            return e
        case ("cast", dtype, x):
            return ("cast", dtype, substitute(x, inputs))
    return (e[0], *(substitute(x, inputs) for x in e[1:]))


def dtype(e: Expr, inputs: Sequence[str]) -> str | None:
    """Element type of an expression; None when it holds only constants."""
    match e:
        case ("in", i):
            return inputs[i]
        case ("const", _):
            return None
        case ("cast", to, _):
            return str(to)
        case ("where", _, a, b):
            return dtype(a, inputs) or dtype(b, inputs)
    if FUNCTIONS[e[0]].kind == "b1":
        return "b1"
    return next((t for t in (dtype(x, inputs) for x in e[1:]) if t), None)


_LOGIC = {"and_", "or_", "xor", "not_"}
_BITS = {"bitand", "bitor", "bitxor", "bitnot", "shl", "shr"}
_REAL = {
    "exp", "expm1", "log", "sqrt", "sigmoid", "erf", "softplus", "isnan", "isinf", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
}  # fmt: skip


def misfit(e: Expr, inputs: Sequence[str]) -> str:
    """Why no kernel can compute an expression over inputs of these types; empty if one can."""
    for x in walk(e):
        if x[0] in ("in", "const"):
            continue
        kinds = {k for k in (dtype(a, inputs) for a in arguments(x)) if k}
        bad: set[str] = set()
        if x[0] in _REAL:
            bad = kinds - {*REALS}
        elif x[0] in _LOGIC:
            bad = kinds - {"b1"}
        elif x[0] in _BITS:
            bad = kinds & {"b1", *REALS}
        elif x[0] in ("pow", "mod", "fmod"):
            bad = kinds & {"b1"}
        if bad:
            return f"{x[0].rstrip('_')} of {', '.join(sorted(bad))}"
    return ""


def _cast(x: Any, to: Any) -> Any:
    """Cast; of floats to integers what does not fit becomes the nearest that does, NaN 0."""
    if x.dtype.kind != "f" or np.dtype(to).kind not in "iu":
        return x.astype(to)
    low, high = float(np.iinfo(to).min), float(np.iinfo(to).max)
    with np.errstate(all="ignore"):
        y = np.where(np.isnan(x), 0, x).astype(np.float64)
        inside = np.where((y > low) & (y < high), y, 0).astype(to)
        return np.where(y <= low, np.iinfo(to).min, np.where(y >= high, np.iinfo(to).max, inside))


def evaluate(e: Expr, inputs: Sequence[Any]) -> Any:
    """The value of an expression by numpy, with numpy's broadcasting."""
    match e:
        case ("in", i):
            return inputs[i]
        case ("const", v):
            return v
        case ("cast", to, x):
            return _cast(np.asarray(evaluate(x, inputs)), NUMPY[to])
    with np.errstate(all="ignore"):
        return FUNCTIONS[e[0]].numpy(*(evaluate(x, inputs) for x in e[1:]))
