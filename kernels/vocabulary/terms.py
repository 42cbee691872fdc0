"""Formulas as straight-line programs: the form in which passes, kernels and plans hold them.

An expression (expression.py) is a tree: it has a value once for each use, so that a value used
twice, by something used twice, and so on, doubles the tree each time.  `Formulas` are a list of
terms, each there once, after the terms that it reads:

    x = a + b; x * x      ("in", 0)  ("in", 1)  ("add", 0, 1)  ("mul", 2, 2)      result 3

Work on formulas is therefore one walk over a list: it takes time in proportion to
the number of terms, and no recursion, however deep a formula is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base.element_types import HALVES, NUMPY, REALS
from engine.kernels.vocabulary.expression import FUNCTIONS, Expr, name_operands, walk

Term = tuple[Any, ...]
_COMPARING = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf"})
DEPTH = 20  # calls inside one another in a text; what is deeper gets a name


@dataclass(frozen=True, slots=True, repr=False)
class Formulas:
    """Several formulas over the same operands, as a list of terms without duplicates.

    terms: each is `("in", i)`, the operand i; `("const", value, text of the value)`, where the text
        tells apart what Python calls equal, as 0.0 and -0.0; `("cast", element type, place)`; or
        `(function, place...)`.  A place is the index of an earlier term.
    results: the places of the formulas' values.

    All terms are needed, in the order in which the results first need them, arguments first.  So
    formulas are equal if and only if they are the same expressions.
    """

    terms: tuple[Term, ...]
    results: tuple[int, ...]

    @classmethod
    def of(cls, *expressions: Expr) -> Formulas:
        """Return the formulas of expressions, in time linear in the number of distinct objects."""
        writer = TermWriter()
        return writer.formulas([writer.append_expression(e) for e in expressions])

    def __repr__(self) -> str:
        shared, results = self.write_texts()
        return f"[{'; '.join([*shared, *results])}]"

    def list_reads(self) -> tuple[int, ...]:
        """Return the operands that are read, in the order of their first use."""
        return tuple(t[1] for t in self.terms if t[0] == "in")

    def list_functions(self) -> set[str]:
        """List the functions in the formulas; "in", "const" and "cast" are among them."""
        return {t[0] for t in self.terms}

    @property
    def is_copy(self) -> bool:
        """True if every result is an operand as it is."""
        return all(self.terms[r][0] == "in" for r in self.results)

    def estimate_cost(self) -> int:
        """Estimate the vector instructions of one computation; see `Function.cost`."""
        return sum(_estimate_cost(t[0]) for t in self.terms)

    def write_texts(self, operands: Sequence[str] = ()) -> tuple[list[str], list[str]]:
        """Write the shared values, as `_0 = formula`, and the results, which name them.

        Only what is read more than once is given a name, and what is nested deeper than `DEPTH`.
        Parsed with the same operands the texts are the same formulas again.

        operands: by default `name_operands`.
        """
        names = operands or name_operands(max(self.list_reads(), default=-1) + 1)
        uses, depths = [0] * len(self.terms), [0] * len(self.terms)
        for term in self.terms:
            for place in list_arguments(term):
                uses[place] += 1
        for place in self.results:
            uses[place] += 1
        shared: list[str] = []
        texts: list[str] = []
        for place, term in enumerate(self.terms):
            depths[place] = 1 + max((depths[p] for p in list_arguments(term)), default=-1)
            text = _write_text(term, texts, names)
            if list_arguments(term) and (uses[place] > 1 or depths[place] >= DEPTH):
                name = f"_{len(shared)}"
                shared.append(f"{name} = {text}")
                text, depths[place] = name, 0
            texts.append(text)
        return shared, [texts[r] for r in self.results]

    def infer_dtypes(self, inputs: Sequence[str]) -> list[str | None]:
        """Return the element type of every term; None where it holds only constants.

        inputs: the element types of the operands.
        """
        kinds_of: list[str | None] = []
        for term in self.terms:
            kinds = [kinds_of[p] for p in list_arguments(term)]
            match term[0]:
                case "in":
                    kinds_of.append(inputs[term[1]])
                case "const":
                    kinds_of.append(None)
                case "cast":
                    kinds_of.append(term[1])
                case "where":
                    kinds_of.append(kinds[1] or kinds[2])
                case name if FUNCTIONS[name].kind == "b1":
                    kinds_of.append("b1")
                case _:
                    kinds_of.append(next((k for k in kinds if k), None))
        return kinds_of

    def infer_results(self, inputs: Sequence[str]) -> list[str | None]:
        """Return the element type of every result, as `infer_dtypes`."""
        dtypes = self.infer_dtypes(inputs)
        return [dtypes[r] for r in self.results]

    def explain_misfit(self, inputs: Sequence[str]) -> str:
        """Explain why no kernel can compute this over operands of these types; empty if one can."""
        dtypes = self.infer_dtypes(inputs)
        for term in self.terms:
            refused = _list_refused(term[0])
            bad = {k for p in list_arguments(term) if (k := dtypes[p]) and k in refused}
            if bad:
                return f"it would compute {term[0].rstrip('_')} of {', '.join(sorted(bad))}"
        return ""

    def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the values of the results by numpy, with numpy's broadcasting."""
        values: list[Any] = []
        with np.errstate(all="ignore"):
            for term in self.terms:
                given = [values[p] for p in list_arguments(term)]
                match term[0]:
                    case "in":
                        values.append(inputs[term[1]])
                    case "const":
                        values.append(term[1])
                    case "cast":
                        values.append(_cast(np.asarray(given[0]), NUMPY[term[1]]))
                    case name:
                        values.append(FUNCTIONS[name].numpy(*given))
        return [values[r] for r in self.results]

    def give_types(self, inputs: Sequence[str], wanted: Sequence[str]) -> Typed:
        """Return the steps that compute the results, every value in one element type.

        inputs: the element types of the operands.  wanted: for each result, the type to compute it
        in if it holds only constants; a result of a type of its own has that.
        """
        own = self.infer_dtypes(inputs)

        def find_value(place: int, want: str) -> tuple[int, str]:
            """Return the term and the type of the value at a place; idle terms are skipped."""
            while True:
                term, kind = self.terms[place], own[place]
                if term[0] == "cast" and own[term[2]] in (None, term[1]):
                    place, want = term[2], term[1]  # a cast to the type it is of
                elif term[0] in _WHOLE and kind not in (None, *REALS):
                    place = term[1]  # integers are whole
                else:
                    return place, kind or want

        def list_parts(place: int, want: str) -> list[tuple[int, str]]:
            """Return the values that a term reads, where its own is needed as `want`."""
            term = self.terms[place]
            if term[0] == "cast":
                return [find_value(term[2], own[term[2]] or term[1])]
            if term[0] == "where":
                return [
                    find_value(term[1], "b1"),
                    find_value(term[2], want),
                    find_value(term[3], want),
                ]
            places = list_arguments(term)
            kind = next((k for k in (own[p] for p in places) if k), None)
            if kind is None:
                kind = self._choose_type(places) if term[0] in _COMPARING else want
            return [find_value(p, kind) for p in places]

        needed: list[list[str]] = [[] for _ in self.terms]
        ends = [find_value(r, kind) for r, kind in zip(self.results, wanted, strict=True)]
        for place, kind in ends:
            if kind not in needed[place]:
                needed[place].append(kind)
        for place in reversed(range(len(self.terms))):
            for kind in needed[place]:
                for part, want in list_parts(place, kind):
                    if want not in needed[part]:
                        needed[part].append(want)
        steps: list[TypedTerm] = []
        at: dict[tuple[int, str], int] = {}
        for place, term in enumerate(self.terms):
            for kind in needed[place]:
                at[place, kind] = len(steps)
                data = term[1] if term[0] in ("in", "const") else None
                steps.append(
                    TypedTerm(term[0], kind, tuple(at[p] for p in list_parts(place, kind)), data)
                )
        return Typed(tuple(steps), tuple(at[end] for end in ends))

    def _choose_type(self, places: Sequence[int]) -> str:
        """Return the type in which constants are compared, whose result says nothing of it."""
        terms = [self.terms[p] for p in places]
        are_whole = all(t[0] == "const" and isinstance(t[1], int) for t in terms)
        return "i64" if are_whole else "f32"


@dataclass(frozen=True, slots=True)
class TypedTerm:
    """One value of typed formulas.

    function: as in a term.  kind: the element type of the value.  arguments: the steps it reads.
    data: of an "in" the operand, of a "const" the number.
    """

    function: str
    kind: str
    arguments: tuple[int, ...]
    data: Any = None


@dataclass(frozen=True, slots=True)
class Typed:
    """Formulas whose values all have an element type; results are the steps that make them."""

    steps: tuple[TypedTerm, ...]
    results: tuple[int, ...]


class TermWriter:
    """Writes a list of terms, in which equal ones become one."""

    def __init__(self) -> None:
        self.terms: list[Term] = []
        self._places: dict[Term, int] = {}

    def put(self, *term: Any) -> int:
        """Return the place of a term, which is appended if it is new."""
        place = self._places.setdefault(term, len(self.terms))
        if place == len(self.terms):
            self.terms.append(term)
        return place

    def const(self, value: float | int) -> int:
        """Return the place of a constant."""
        return self.put("const", value, repr(value))

    def append_expression(self, e: Expr) -> int:
        """Return the place of the value of an expression, whose terms are appended."""
        places: dict[int, int] = {}
        for x in walk(e):
            match x:
                case ("in", i):
                    place = self.put("in", i)
                case ("const", value):
                    place = self.const(value)
                case ("cast", to, y):
                    place = self.put("cast", to, places[id(y)])
                case _:
                    place = self.put(x[0], *(places[id(y)] for y in x[1:]))
            places[id(x)] = place
        return places[id(e)]

    def copy(self, formulas: Formulas, inputs: Sequence[int]) -> list[int]:
        """Copy formulas, with the value at `inputs[i]` as operand i; return the results' places."""
        places: list[int] = []
        for term in formulas.terms:
            if term[0] == "in":
                places.append(inputs[term[1]])
            else:
                places.append(self.put(*move_term(term, places)))
        return [places[r] for r in formulas.results]

    def formulas(self, results: Sequence[int]) -> Formulas:
        """Return the formulas whose values are at these places, without unused terms."""
        order: list[int] = []
        new: dict[int, int] = {}
        waiting = list(reversed(results))
        while waiting:
            place = waiting[-1]
            missing = [p for p in list_arguments(self.terms[place]) if p not in new]
            if missing and place not in new:
                waiting += reversed(missing)
                continue
            waiting.pop()
            if place not in new:
                new[place] = len(order)
                order.append(place)
        terms = tuple(move_term(self.terms[p], new) for p in order)
        return Formulas(terms, tuple(new[r] for r in results))


def _estimate_cost(function: str) -> int:
    """Estimate the vector instructions of a term; operands and constants are loaded anyway."""
    if function in ("in", "const"):
        return 0
    return 1 if function == "cast" else FUNCTIONS[function].cost


def list_arguments(term: Term) -> tuple[int, ...]:
    """Return the places of what a term reads."""
    if term[0] in ("in", "const"):
        return ()
    return term[2:] if term[0] == "cast" else term[1:]


def move_term(term: Term, places: Any) -> Term:
    """Return a term that reads `places[p]` where it reads p."""
    if term[0] in ("in", "const"):
        return term
    head = 2 if term[0] == "cast" else 1
    return (*term[:head], *[places[p] for p in term[head:]])


def _write_text(term: Term, texts: Sequence[str], operands: Sequence[str]) -> str:
    """Return the text of a term; texts: of the terms before it."""
    match term:
        case ("in", i):
            return operands[i]
        case ("const", value, text):
            # the text keeps every bit; infinities and NaN have no literal
            return str(text) if np.isfinite(value) else f"const('{value}')"
        case ("cast", dtype, place):
            return f"cast({dtype},{texts[place]})"
    return f"{term[0]}({','.join([texts[p] for p in term[1:]])})"


_WHOLE = {"floor", "ceil", "round"}
_LOGIC = {"and_", "or_", "xor", "not_"}
_BITS = {"bitand", "bitor", "bitxor", "bitnot", "shl", "shr"}
_REAL = {
    "exp", "expm1", "log", "sqrt", "sigmoid", "erf", "softplus", "isnan", "isinf", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
}  # fmt: skip
_TYPES = frozenset(NUMPY)
_REFUSED: dict[str, frozenset[str]] = {
    **dict.fromkeys(_REAL, _TYPES - {*REALS}),
    **dict.fromkeys(_LOGIC, _TYPES - {"b1"}),
    **dict.fromkeys(_BITS, frozenset({"b1", *REALS})),
    **dict.fromkeys(("pow", "mod", "fmod"), frozenset({"b1"})),
}


def _list_refused(function: str) -> frozenset[str]:
    """Return the element types that a function does not take."""
    return _REFUSED.get(function, frozenset())


def _cast(x: Any, to: Any) -> Any:
    """Cast; of floats to integers what does not fit becomes the nearest that does, NaN 0."""
    if x.dtype.kind != "f" or np.dtype(to).kind not in "iu":
        return x.astype(to)
    low, high = float(np.iinfo(to).min), float(np.iinfo(to).max)
    y = np.where(np.isnan(x), 0, x).astype(np.float64)
    inside = np.where((y > low) & (y < high), y, 0).astype(to)
    return np.where(y <= low, np.iinfo(to).min, np.where(y >= high, np.iinfo(to).max, inside))


def widened(formulas: Formulas, kinds: Sequence[str]) -> Formulas:
    """Return the formulas with values of `HALVES` as f32, which is what they are computed with.

    A result that is an operand stays as it is.  kinds: the element types of the operands.
    """
    writer = TermWriter()
    places: list[int] = []
    for term in formulas.terms:
        place = writer.put(*move_term(term, places))
        made = kinds[term[1]] if term[0] == "in" else term[1] if term[0] == "cast" else ""
        if made in HALVES:
            place = writer.put("cast", "f32", place)
        places.append(place)
    results = [
        writer.put(*formulas.terms[r]) if formulas.terms[r][0] == "in" else places[r]
        for r in formulas.results
    ]
    return writer.formulas(results)
