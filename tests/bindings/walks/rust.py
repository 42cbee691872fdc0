"""Rust: nothing is null, a phase is one, and a slice is as long as it says."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tools.trimmed.bindings.package import Api
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import TOLD, Tongue, has_no_setters, is_number
from tests.bindings.walks.values import STATES

_TAKE = {
    "text": "&text({0})", "flag": "flag({0})", "phase": "phase({0})", "int": "int({0})",
    "long": "long({0})", "float": "float({0})", "size": "size({0})", "bytes": "&bytes({0})",
    "inputs": "&borrow(&inputs({0}))", "buffer": "&mut vec![0u8; size({0})]",
    "floats": "&vec![0.0f32; size({0})]", "float_buffer": "&mut vec![0.0f32; size({0})]",
    "doubles": "&vec![0.0f64; size({0})]", "double_buffer": "&mut vec![0.0f64; size({0})]",
    "ints": "&vec![0i32; size({0})]",
}  # fmt: skip


def _write(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the arm of a match."""
    function = method.function
    name = api.name_whole(method.whole) if method.whole else method.name
    scope = "m." if method.acts else "Model::"
    call = f"{scope}{name}({', '.join(values)})"
    if function is None or function.fails or "text" in method.kinds:
        call += "?"
    shown = function is not None and function.answer in TOLD
    lines = f"Ok({call}.tell())" if shown else f"{{ let _ = {call}; Ok(String::new()) }}"
    return f'        "{method.name}" => {lines},'


def _takes(kind: str, word: str) -> bool:
    """Nothing is null, a phase is one, and a slice is as long as it says."""
    if word == "null" or word.startswith("claim:") or "null" in word.split(","):
        return False
    if kind == "phase":
        return is_number(word, 0, 2)
    if kind == "int":
        return is_number(word, -(2**31), 2**31 - 1)
    if kind == "size":
        return is_number(word, 0, 2**64 - 1)
    return kind != "long" or is_number(word, -(2**63), 2**63 - 1)


TONGUE = Tongue(_TAKE, _write, _takes, has_no_setters, STATES[:2])
