"""C#."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tools.trimmed.api import join_pascal
from engine.tools.trimmed.bindings.package import Api
from tests.bindings.walks.java import is_of_managed
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import Tongue, is_shown, name_method

_TAKE = {
    "text": "Text({0})", "flag": '{0} != "0"', "phase": "(Phase)int.Parse({0})",
    "int": "int.Parse({0})", "long": "long.Parse({0})", "float": "Real({0})",
    "size": "long.Parse({0})", "bytes": "Bytes({0})", "inputs": "Inputs({0})",
    "numbers": "Numbers({0})", "buffer": "Buffer<byte>({0})", "floats": "Buffer<float>({0})",
    "float_buffer": "Buffer<float>({0})", "doubles": "Buffer<double>({0})",
    "double_buffer": "Buffer<double>({0})", "ints": "Buffer<int>({0})",
}  # fmt: skip


def _write(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the entry of a call in a dictionary of C#."""
    scope = "m" if method.acts else "Model"
    call = f"{scope}.{join_pascal(name_method(method))}({', '.join(values)})"
    done = f"{{ {call}{'.Dispose()' * method.makes}; return done; }}"
    return f'            ["{method.name}"] = (m, w) => {call if is_shown(method) else done},'


def _takes(kind: str, word: str) -> bool:
    """And an enumeration has any number."""
    return not (kind == "phase" and word == "null") and is_of_managed(kind, word)


TONGUE = Tongue(_TAKE, _write, _takes)
