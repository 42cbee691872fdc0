"""Go."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tools.trimmed.bindings.go import _join_go as join_go
from engine.tools.trimmed.bindings.go import _name_members as name_go
from engine.tools.trimmed.bindings.package import Api
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import Tongue, is_number, is_shown

_TAKE = {
    "text": "takeText({0})", "flag": '{0} != "0"', "phase": "mnist.Phase(takeInt({0}))",
    "int": "takeInt({0})", "long": "takeLong({0})", "float": "takeFloat({0})",
    "size": "takeInt({0})", "bytes": "takeBytes({0})", "inputs": "takeInputs({0})...",
    "numbers": "takeNumbers({0})",
    "buffer": "takeBuffer[byte]({0})", "floats": "takeBuffer[float32]({0})",
    "float_buffer": "takeBuffer[float32]({0})", "doubles": "takeBuffer[float64]({0})",
    "double_buffer": "takeBuffer[float64]({0})", "ints": "takeBuffer[int32]({0})",
}  # fmt: skip


def _write(method: Method, values: Sequence[str], api: Api) -> str:
    """Return a row of the table of calls of Go."""
    function = method.function
    named = name_go(api)
    name = api.name_whole(method.whole) if method.whole else method.name
    name = named.get(name) or join_go(name)
    call = f"{'m' if method.acts else 'mnist'}.{name}({', '.join(values)})"
    if is_shown(method) and not ("text" in method.kinds and function and function.fails):
        lines = [f"return tell({call}), nil"]
    elif function and function.makes:
        lines = [f"made, err := {call}", "if made != nil {", "\tmade.Close()", "}"]
        lines.append('return "", err')
    elif method.whole or (function and (function.takes_inputs or function.gotten)):
        lines = [f"_, err := {call}", 'return "", err']
    elif function is None or function.fails:
        lines = [f'return "", {call}']
    else:
        lines = [call, 'return "", nil']
    body = "".join(f"\t\t{line}\n" for line in lines)
    return f'\t"{method.name}": func(m *mnist.Model, w []string) (string, error) {{\n{body}\t}},'


def is_of_go(kind: str, word: str) -> bool:
    """Texts and numbers are not null; all numbers have 64 bits."""
    if word.startswith("claim:") or (word == "null" and kind in ("text", "phase")):
        return False
    wide = kind in ("int", "phase", "long", "size")
    return not wide or is_number(word, -(2**63), 2**63 - 1)


TONGUE = Tongue(_TAKE, _write, is_of_go)
