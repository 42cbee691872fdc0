"""JavaScript."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tools.trimmed.bindings.package import Api, join_camel
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import Tongue, has_no_setters, is_shown, name_method

_TAKE = {
    "text": "text({0})", "flag": "flag({0})", "phase": "integer({0})", "int": "integer({0})",
    "long": "long({0})", "float": "float({0})", "size": "integer({0})", "bytes": "bytes({0})",
    "inputs": "inputs({0})", "buffer": "buffer({0}, Uint8Array)",
    "floats": "buffer({0}, Float32Array)", "float_buffer": "buffer({0}, Float32Array)",
    "doubles": "buffer({0}, Float64Array)", "double_buffer": "buffer({0}, Float64Array)",
    "ints": "buffer({0}, Int32Array)",
}  # fmt: skip


def _write(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the property of a call in an object of JavaScript."""
    call = f"m.{join_camel(name_method(method))}({', '.join(values)})"
    done = f"void {call}"
    return f"  {method.name}: (m, w) => {call if is_shown(method) else done},"


def _takes(kind: str, word: str) -> bool:
    """Everything can be passed but a buffer that claims to be another."""
    return not word.startswith("claim:")


def _has(method: Method) -> bool:
    """All but setters, other models, and files."""
    return has_no_setters(method) and method.acts and method.name not in ("save", "export_model")


TONGUE = Tongue(_TAKE, _write, _takes, _has)
