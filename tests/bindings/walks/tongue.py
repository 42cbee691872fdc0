"""Languages of walks, and parts that several share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.tools.trimmed.bindings.package import Api, join_camel
from tests.bindings.walks.methods import Method, Row
from tests.bindings.walks.values import STATES


@dataclass(frozen=True)
class Tongue:
    """A language of walks.

    take: how a word becomes a value of a kind, `{0}` is the word; kinds that it lacks have no way.
    write: makes the lines of a method from its values.
    takes: whether the language has a value, of kind and word.
    has: whether the language has a method.
    states: of models that it can call.
    word: the word of an index.
    has_tokens: whether its program takes tokens of any number, and not zeros alone.
    """

    take: Mapping[str, str]
    write: Callable[[Method, Sequence[str], Api], str]
    takes: Callable[[str, str], bool]
    has: Callable[[Method], bool] = lambda method: True
    states: Sequence[str] = STATES
    word: str = "w[{0}]"
    has_tokens: bool = False

    def fits(self, row: Row) -> bool:
        """Return whether the language can make a call."""
        pairs = zip(row.method.kinds, row.words, strict=True)
        return (
            self.has(row.method)
            and row.state in self.states
            and all(
                self.takes(kind, word) and (self.has_tokens or kind != "ints" or "=" not in word)
                for kind, word in pairs
            )
        )

    def write_methods(self, methods: Sequence[Method], api: Api) -> str:
        """Return the lines of all methods."""
        return "\n".join(
            self.write(
                method,
                [self.take[k].format(self.word.format(i)) for i, k in enumerate(method.kinds)],
                api,
            )
            for method in methods
            if self.has(method)
        )


def is_number(word: str, low: int, high: int) -> bool:
    """Return whether a word is a whole number of a range, with its upper end."""
    return word != "null" and low <= int(word) <= high


TOLD = {"tensor": "tell_address", "memory": "tell_address"}
TOLD |= dict.fromkeys(("flag", "int", "long", "size"), "tell_number")


def name_method(method: Method) -> str:
    """Return the name of a method without the mark of what is returned whole."""
    return method.name.removeprefix("whole_")


def is_shown(method: Method) -> bool:
    return method.function is not None and method.function.answer in TOLD


def list_names(method: Method) -> list[str]:
    """Return the names of what a method takes, as languages of Apple have them before values."""
    if method.whole:
        return [join_camel(a.name) for a in method.whole.given]
    function = method.function or method.lender
    assert function is not None
    names = [join_camel(a.name) for a in function.given if a.kind != "outputs"]
    return [*names, *["values"] * (method.function is None)]


def has_no_setters(method: Method) -> bool:
    """Return whether a method is another one than a setter of memory."""
    return method.function is not None or method.whole is not None
