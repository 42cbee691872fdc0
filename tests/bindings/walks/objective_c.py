"""Objective-C."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tools.trimmed.bindings.package import Api, join_camel
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import TOLD, Tongue, is_number, list_names, name_method

_TAKE = {
    "text": "takeString({0})", "flag": "take_int({0}) != 0",
    "phase": "(MnistPhase)take_long({0})", "int": "(NSInteger)take_long({0})",
    "long": "take_long({0})", "float": "take_float({0})", "size": "take_size({0})",
    "bytes": "takeData({0})", "inputs": "takeInputs({0})", "numbers": "takeNumbers({0})",
    "buffer": "takeZeros({0}, 1)", "floats": "takeZeros({0}, 4)",
    "float_buffer": "takeZeros({0}, 4)", "doubles": "takeZeros({0}, 8)",
    "double_buffer": "takeZeros({0}, 8)", "ints": "takeZeros({0}, 4)",
}  # fmt: skip


def _write(method: Method, values: Sequence[str], api: Api) -> str:
    """Return a condition of Objective-C, and the call."""
    function = method.function
    given = list(zip(list_names(method), values, strict=True))
    is_checked = function is None or function.fails or "text" in method.kinds
    given += [(join_camel(a.name), "NULL") for a in (function.gotten if function else ())]
    given += [("error", "error")] * is_checked
    words = [f"{name if i else ''}:{value}" for i, (name, value) in enumerate(given)]
    scope = "m" if method.acts else "MnistModel"
    call = f"[{scope} {join_camel(name_method(method))}{' '.join(words)}]"
    told = TOLD.get(function.answer) if function else None
    tell = {"tell_address": "tell_address(({0}) ? m : nil)", "tell_number": "tell_number({0})"}
    line = tell[told].format(call) if told else f"(void){call}"
    return (
        f'    if (!strcmp(name, "{method.name}")) {{\n        {line};\n        return YES;\n    }}'
    )


def _takes(kind: str, word: str) -> bool:
    """Numbers have 64 bits, sizes without a sign, and a phase is a number."""
    if word.startswith("claim:") or (word == "null" and kind == "phase"):
        return False
    return kind not in ("int", "long") or is_number(word, -(2**63), 2**63 - 1)


TONGUE = Tongue(_TAKE, _write, _takes)
