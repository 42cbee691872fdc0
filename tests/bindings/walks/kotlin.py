"""Kotlin."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tools.trimmed.bindings.package import Api, join_camel
from tests.bindings.walks.java import TAKE, is_of_java
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import Tongue, is_shown, name_method

_TAKE = TAKE | {
    "flag": '{0} != "0"', "int": "{0}.toInt()", "long": "{0}.toLong()", "float": "float({0})",
    "size": "{0}.toLong()", "inputs": "*inputs({0})",
}  # fmt: skip


def _write(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the entry of a call in a map of Kotlin."""
    scope = "m" if method.acts else "Model"
    unused = "_" if not method.acts else "m"
    call = f"{scope}.{join_camel(name_method(method))}({', '.join(values)})"
    done = f"{call}{'.close()' * method.makes}; Unit"
    shown = call if is_shown(method) else done
    words = "w" if values else "_"
    return f'    "{method.name}" to {{ {unused}, {words} -> {shown} }},'


def _takes(kind: str, word: str) -> bool:
    """And a list of arguments is there."""
    return not (kind == "inputs" and word == "null") and is_of_java(kind, word)


TONGUE = Tongue(_TAKE, _write, _takes)
