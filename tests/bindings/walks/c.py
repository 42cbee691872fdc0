"""C and C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.tools.trimmed.api import ApiFunction
from engine.tools.trimmed.bindings.package import Api
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import TOLD, Tongue, has_no_setters, is_number
from tests.bindings.walks.values import Values


def is_of_c(kind: str, word: str) -> bool:
    """Return whether C can pass a value so that the header says what it does."""
    if kind in ("int", "flag"):
        return is_number(word, -(2**31), 2**31 - 1)
    if kind == "phase":
        return is_number(word, -(2**31), 2**31 - 1)
    if kind == "long":
        return is_number(word, -(2**63), 2**63 - 1)
    if kind == "text":  # which ends at the first null character
        return "00" not in [word[i : i + 2] for i in range(1, len(word), 2)]
    return True


def is_input_of_c(values: Values) -> Callable[[str, str], bool]:
    """Return the same, for inputs, which have no sizes in C."""
    x, y = f"{values.real}*{values.samples}=", f"l*{values.labels}="

    def takes(kind: str, word: str) -> bool:
        if kind == "inputs":
            words = tuple(word.split(","))
            is_whole = len(words) > 1 and words[1:-1] == values.between
            fits = is_whole and words[0].startswith(x) and words[-1].startswith(y)
            return fits or {*words} == {"null"}
        return is_of_c(kind, word)

    return takes


_TAKE_C = {
    "text": "take_text({0})", "flag": "take_int({0})", "phase": "take_int({0})",
    "int": "take_int({0})", "long": "take_long({0})", "float": "take_float({0})",
    "size": "take_size({0})", "bytes": "take_bytes({0}), count_bytes({0})",
    "inputs": "take_inputs({0})",
}  # fmt: skip
for _kind, _type, _size in (
    ("buffer", "void", 1), ("floats", "float", 4), ("float_buffer", "float", 4),
    ("doubles", "double", 8), ("double_buffer", "double", 8),
):  # fmt: skip
    _TAKE_C[_kind] = f"({_type} *)take_buffer({{0}}, {_size}), count_elements({{0}})"
_TAKE_C["ints"] = "take_tokens({0}), count_elements({0})"


def _pass_to_c(function: ApiFunction, values: Sequence[str]) -> list[str]:
    """Return what is passed for each parameter of C, besides the model and the message."""
    taken = iter(values)
    passed = []
    for i, argument in enumerate(function.arguments):
        if argument.kind == "outputs":
            passed.append("NULL")
        elif argument.returned:
            kind = {"out_enum": "out_int"}.get(argument.kind, argument.kind)
            passed.append(f"&{kind}[{i}]")
        else:
            passed.append(next(taken))
    return passed


def _write_c(method: Method, values: Sequence[str], api: Api) -> str:
    """Return a function of C that makes the call."""
    function = method.function
    assert function is not None
    passed = ["m"] * function.acts + _pass_to_c(function, values)
    call = f"mnist_{function.name}({', '.join(passed)})"
    if function.makes:
        made = ", ".join(["&made", *passed, "why"])
        lines = (
            "mnist *made = NULL; char why[MNIST_MESSAGE_BYTES] = {0}; (void)m; "
            f"int code = mnist_{function.name}({made}); tell_code(code, why); "
            "if ((made == NULL) != (code != 0)) abort(); mnist_destroy(made);"
        )
    elif function.fails:
        lines = f"int code = {call}; tell_code(code, said_of(m));"
    elif function.answer in TOLD:
        lines = f"{TOLD[function.answer]}({call});"
    else:
        lines = f"(void)({call}); tell_done();"
    unused = "(void)m; (void)w; "
    return f"static void call_{method.name}(mnist *m, char **w) {{ {unused}{lines} }}"


def _write_cpp(method: Method, values: Sequence[str], api: Api) -> str:
    """Return a row of the table of calls of C++."""
    function = method.function
    name = method.name.removeprefix("whole_")
    passed = ", ".join(_pass_to_c(function, values) if function else values)
    scope = "m." if method.acts else "Model::"
    call = f"{scope}{name}({passed})"
    told = TOLD.get(function.answer) if function else None
    lines = f"{told}({call});" if told else f"(void)({call}); tell_done();"
    return f'    {{"{method.name}", [](Model &m, char **w) {{ (void)m; (void)w; {lines} }}}},'


def _has_in_c(method: Method) -> bool:
    return method.function is not None


def make_c(values: Values) -> Tongue:
    """Return C, for a model with inputs of so many elements."""
    return Tongue(_TAKE_C, _write_c, is_input_of_c(values), _has_in_c, has_tokens=True)


def make_cpp(values: Values) -> Tongue:
    """Return C++, for a model with inputs of so many elements."""
    return Tongue(_TAKE_C, _write_cpp, is_input_of_c(values), has_no_setters, has_tokens=True)
