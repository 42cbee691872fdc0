"""The C API of builds, as the header of the runtime declares it: for bindings and tests.

`runtime/model.h` is the one description: names, types, and in comments the contracts.  Three rules
of it say what a binding does with a function, so that nothing is listed twice:

- one whose first parameter is the address of a model makes a model;
- one that returns `int` and takes a model that it may change, or a buffer for a message, returns an
  error code;
- `#if` around a declaration is a condition of the binding, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_LINE = re.compile(
    r"^(?:#if\w* (?P<on>[^\n]*)|#(?P<off>endif)|@NAME@_API (?P<api>.*?);)", re.DOTALL | re.MULTILINE
)
_DECLARATION = re.compile(r"(?P<result>.*?)@name@_(?P<name>\w+)\((?P<rest>.*)\)", re.DOTALL)
MODEL, MESSAGE = "@name@ *m", "char *message"


@dataclass(frozen=True, slots=True)
class ApiFunction:
    """A function of the API.

    name: without the prefix of the build.
    result: its C type.
    parameters: their declarations in C.
    conditions: the preprocessor lines that it stands under.
    """

    name: str
    result: str
    parameters: tuple[str, ...]
    conditions: tuple[str, ...]

    @property
    def makes(self) -> bool:
        """True if it makes a model."""
        return self.parameters[:1] == ("@name@ **out",)

    @property
    def acts(self) -> bool:
        """True if it takes a model, as its first parameter."""
        return self.parameters[:1] in ((MODEL,), (f"const {MODEL}",))

    @property
    def fails(self) -> bool:
        """True if it returns an error code."""
        changes = self.parameters[:1] == (MODEL,) or self.parameters[-1:] == (MESSAGE,)
        return self.result == "int" and changes


def list_functions(header: str) -> Iterator[ApiFunction]:
    """Yield the functions that the text of a header with the marks of its build declares."""
    conditions: list[str] = []
    for line in _LINE.finditer(_COMMENT.sub("", header)):
        if line["on"] is not None:
            conditions.append(line[0])
        elif line["off"]:
            conditions.pop()
        elif declared := _DECLARATION.fullmatch(line["api"]):
            given = (" ".join(p.split()) for p in declared["rest"].split(","))
            yield ApiFunction(
                declared["name"],
                declared["result"].strip(),
                tuple(p for p in given if p != "void"),
                tuple(c for c in conditions if "EDGEGRAD" in c),
            )


def write_cpp(functions: Iterator[ApiFunction]) -> str:
    """Return the members of the C++ class of a model, one for each function but `destroy`."""
    rows = []
    for function in functions:
        if function.name != "destroy":
            rows += [*function.conditions, _write_member(function)]
            rows += ["#endif"] * len(function.conditions)
    return "\n".join(rows)


def _write_member(function: ApiFunction) -> str:
    """Return a member function: what it passes on, and how it reports an error."""
    result = function.result + " " * (not function.result.endswith("*"))
    passed = list(function.parameters)
    if function.makes:
        passed = passed[1:-1]
    elif function.parameters[-1:] == (MESSAGE,):
        passed = passed[:-1]
    elif function.acts:
        passed = passed[1:]
    names = [re.split(r"[ *]", p)[-1] for p in passed]
    head = f"{function.name}({', '.join(passed)})"
    call = f"@name@_{function.name}("
    why = "char why[@NAME@_MESSAGE_BYTES];"
    if function.makes:
        arguments = ", ".join(["&made", *names, "why"])
        body = ["::@name@ *made;", why, f"check({call}{arguments}), why);", "return Model(made);"]
        head = f"static Model {head}"
    elif function.acts:
        call += ", ".join(["m.get()", *names]) + ")"
        head = f"{result}{head}" + " const" * function.parameters[0].startswith("const")
        body = [f"return {call};"]
        if function.fails:
            head = f"void {head.removeprefix(result)}"
            body = [f"check({call}, @name@_message(m.get()));"]
    elif function.fails:
        head, arguments = f"static void {head}", ", ".join([*names, "why"])
        body = [why, f"check({call}{arguments}), why);"]
    else:
        head, body = f"static {result}{head}", [f"return {call}{', '.join(names)});"]
    inner = "".join(f"        {line}\n" for line in body)
    return f"    {head}\n    {{\n{inner}    }}"
