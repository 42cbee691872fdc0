"""Methods of a language, and calls of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.tools.trimmed.api import ApiFunction, Whole
from engine.tools.trimmed.bindings.package import Api


@dataclass(frozen=True)
class Method:
    """A method of a language: a function of C, what one writes whole, or a setter of its memory.

    kinds: of the values that it takes.
    shows: whether what it returns is compared.
    lender: the function that returns the memory of a setter.
    """

    name: str
    kinds: tuple[str, ...]
    shows: bool
    function: ApiFunction | None = None
    whole: Whole | None = None
    lender: ApiFunction | None = None

    @property
    def makes(self) -> bool:
        """True if it makes a model."""
        return self.function is not None and self.function.makes

    @property
    def acts(self) -> bool:
        """True if it is called on a model."""
        return self.function is None or self.function.acts


@dataclass(frozen=True)
class Row:
    """A call: the state of the model, the method, and a word for each value."""

    state: str
    method: Method
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.state, self.method.name, *self.words))


def list_methods(api: Api) -> Iterator[Method]:
    """Yield all methods that a language can have."""
    for function in api.bound:
        if function.name == "destroy":
            continue
        given = [a for a in function.given if a.kind != "outputs"]
        shows = not (function.takes_inputs or function.gotten or function.makes)
        yield Method(function.name, tuple(a.kind for a in given), shows, function)
        if function.lends:
            yield Method(
                f"set_{function.name}", (*(a.kind for a in given), "numbers"), False,
                lender=function,
            )  # fmt: skip
    for whole in api.wholes:
        yield Method(f"whole_{whole.name}", tuple(a.kind for a in whole.given), False, whole=whole)
