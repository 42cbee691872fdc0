"""Java, and what managed languages share."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tools.trimmed.bindings.package import Api, join_camel
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import Tongue, is_number, is_shown, name_method

TAKE = {
    "text": "text({0})", "flag": '!{0}.equals("0")', "phase": "phase({0})",
    "int": "Integer.parseInt({0})", "long": "Long.parseLong({0})", "float": "real({0})",
    "size": "Long.parseLong({0})", "bytes": "bytes({0})", "inputs": "inputs({0})",
    "numbers": "numbers({0})", "buffer": "buffer({0})", "floats": "floats({0})",
    "float_buffer": "floats({0})", "doubles": "doubles({0})", "double_buffer": "doubles({0})",
    "ints": "ints({0})",
}  # fmt: skip


def _write(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the statement that adds a call of Java."""
    scope = "m" if method.acts else "Model"
    call = f"{scope}.{join_camel(name_method(method))}({', '.join(values)})"
    done = f"{{ {call}{'.close()' * method.makes}; return DONE; }}"
    return f'    CALLS.put("{method.name}", (m, w) -> {call if is_shown(method) else done});'


def is_of_managed(kind: str, word: str) -> bool:
    """Arrays know their sizes; numbers have 32 or 64 bits."""
    if word.startswith("claim:"):
        return False
    if kind in ("int", "phase") and word != "null":
        return is_number(word, -(2**31), 2**31 - 1)
    return kind not in ("long", "size") or is_number(word, -(2**63), 2**63 - 1)


def is_of_java(kind: str, word: str) -> bool:
    """And an enumeration has its members, or is null."""
    fits = kind != "phase" or word in ("0", "1", "2", "null")
    return fits and is_of_managed(kind, word)


TONGUE = Tongue(TAKE, _write, is_of_java, word="w.get({0})")
