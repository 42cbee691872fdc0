"""Swift."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tools.trimmed.bindings.package import Api, join_camel
from tests.bindings.walks.go import is_of_go
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import Tongue, is_number, is_shown, list_names, name_method

_TAKE = {
    "text": "text({0})", "flag": '{0} != "0"', "phase": "Phase(rawValue: Int32({0})!)!",
    "int": "Int({0})!", "long": "Int64({0})!", "float": "real({0})", "size": "Int({0})!",
    "bytes": "bytes({0})", "inputs": "inputs({0})", "numbers": "numbers({0})",
    "buffer": "&zeros({0}) as [UInt8]", "floats": "zeros({0})",
    "float_buffer": "&zeros({0}) as [Float]", "doubles": "zeros({0})",
    "double_buffer": "&zeros({0}) as [Double]", "ints": "zeros({0})",
}  # fmt: skip


def _write(method: Method, values: Sequence[str], api: Api) -> str:
    """Return a case of Swift; what C writes to is a variable, and there are up to three inputs."""
    function, lines, passed = method.function, [], []
    names = list_names(method)
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        if value.startswith("&"):
            zeros, _, kind = value[1:].partition(" as ")
            lines.append(f"var {name}: {kind} = {zeros}")
            value = f"&{name}"
        passed.append(value if i == 0 else f"{name}: {value}")
    scope = "m" if method.acts else "Model"
    name = f"{scope}.{join_camel(name_method(method))}"
    call = f"{name}({', '.join(passed)})"
    if "text" in method.kinds or function is None or function.fails or function.makes:
        call = f"try {call}"
    if function and function.takes_inputs:
        lines.append(f"let given = {values[0]}")
        for count in range(4):
            given = ", ".join(f"given[{i}]" for i in range(count))
            lines.append(f"if given.count == {count} {{ _ = try {name}({given}) }}")
    elif is_shown(method):
        lines.append(f"return tell({call})")
    else:
        is_void = function is None or function.answer in ("nothing", "code")
        is_void = is_void and not method.whole and not method.makes
        is_void = is_void and not (function and function.gotten)
        lines.append("_ = " * (not is_void) + call)
    body = "".join(f"        {line}\n" for line in lines)
    return f'    case "{method.name}":\n{body}'.rstrip()


def _takes(kind: str, word: str) -> bool:
    """Nothing is null, and a phase is one."""
    if "null" in word.split(",") or (kind == "phase" and not is_number(word, 0, 2)):
        return False
    return is_of_go(kind, word)


TONGUE = Tongue(_TAKE, _write, _takes)
