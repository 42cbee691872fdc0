"""The C API of builds, as the header of the runtime declares it: for bindings and tests.

`runtime/model.h` is the one description: names, types, and in comments the contracts.  Rules of it
say what a binding does with a function, so that nothing is listed twice:

- one whose first parameter is the address of a model makes a model; with `void *memory`, in the
  caller's memory;
- one that returns `int` and takes a model that it may change, or a buffer for a message, returns an
  error code;
- one that returns `int` and begins with `is` or `has` answers yes or no;
- one that returns the address of memory has the bytes that the function of its name and `_info`, or
  else the first `_info` of the same parameters, describes;
- `#if` around a declaration is a condition of the binding, too;
- `int phase` is one of `enum @name@_phase`, also as a result, and a step begins with the name of
  its phase; `int *kind` of `get_property` is one of `enum @name@_property_kind`;
- other numbers whose name begins with `include_` or ends in `_only` are yes or no;
- an address and the `size_t` after it are one buffer, which is filled unless it is `const`;
- an address of a number or text without one is a result;
- one whose comment says that it writes something to exactly as many bytes or elements as a function
  that ends in `_size` returns is, with that function, a value that other languages return;
- a comment begins with a verb, and what only callers in C need stands at its end, after `In C,`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.base.errors import InternalError

_TOKEN = re.compile(
    r"/\*(?P<comment>.*?)\*/[ \t]*\n?"
    r"|^#if\w* (?P<on>[^\n]*)|^#(?P<off>endif)"
    r"|^enum @name@_(?P<enum>\w+) \{(?P<members>.*?)\};"
    r"|^@NAME@_API (?P<api>[^;]*);|^(?P<blank>[ \t]*\n)",
    re.DOTALL | re.MULTILINE,
)
_EXACTLY = re.compile(r"Write ([^.]*?),? to (?:a buffer of )?exactly [^.@]*@name@_(\w+)_size\b")
_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
_DECLARATION = re.compile(r"(?P<result>.*?)@name@_(?P<name>\w+)\((?P<rest>.*)\)", re.DOTALL)
_MEMBER = re.compile(r"@NAME@_(\w+)(?: = (\d+))?,?(?:\s*/\*(.*?)\*/)?", re.DOTALL)
MODEL, MESSAGE = "@name@ *m", "char *message"

Only = Literal["", "inference", "train", "decoder"]  # the one use of a library; empty: all
Kind = Literal[
    "text", "flag", "phase", "int", "long", "float", "size",
    "bytes", "buffer", "floats", "float_buffer", "doubles", "double_buffer", "ints",
    "memory", "inputs", "outputs",
    "out_text", "out_int", "out_long", "out_float", "out_size", "out_enum",
]  # fmt: skip
Answer = Literal[
    "nothing", "code", "flag", "int", "long", "float", "size", "text", "tensor", "memory"
]
Element = Literal["byte", "float", "double"]
_ELEMENTS: dict[Kind, Element] = {
    "buffer": "byte", "float_buffer": "float", "double_buffer": "double",
}  # fmt: skip
_NUMBERS: dict[str, Kind] = {"int": "int", "int64_t": "long", "float": "float", "size_t": "size"}
_OUTS: dict[str, Kind] = {
    "const char *": "out_text", "int": "out_int", "int64_t": "out_long", "float": "out_float",
    "size_t": "out_size",
}  # fmt: skip
_POINTED: dict[str, Kind] = {
    "const void": "bytes", "void": "buffer", "const float": "floats", "float": "float_buffer",
    "const double": "doubles", "double": "double_buffer", "const int32_t": "ints",
}  # fmt: skip
_LISTS: dict[str, Kind] = {"const void *const *": "inputs", "void *const *": "outputs"}


@dataclass(frozen=True, slots=True)
class Argument:
    """A value that a caller gives, or gets by an address.

    kind: what it is; a buffer is one argument with its size.
    size: the name of the parameter with the size of a buffer.
    enum: the name of the type of a result that is a member of an enumeration.
    """

    name: str
    kind: Kind
    size: str = ""
    enum: str = ""

    @property
    def returned(self) -> bool:
        """True if it is a result."""
        return self.kind.startswith("out_")


@dataclass(frozen=True, slots=True)
class Enumeration:
    """Numbers that have names: members with their values and comments, in order.

    comment: a sentence about all of them.
    """

    name: str
    members: tuple[tuple[str, int, str], ...]
    comment: str

    @property
    def title(self) -> str:
        """Its name as a type of other languages, where `Error` is a class."""
        return "ErrorCode" if self.name == "error" else join_pascal(self.name)


@dataclass(frozen=True, slots=True)
class ApiFunction:
    """A function of the API.

    name: without the prefix of the build.
    result: its C type.
    parameters: their declarations in C.
    conditions: the preprocessor lines that it stands under.
    comment: its contract, with the marks of names; empty: its name says it.
    """

    name: str
    result: str
    parameters: tuple[str, ...]
    conditions: tuple[str, ...]
    comment: str = ""

    @property
    def makes(self) -> bool:
        """True if it makes a model."""
        return self.parameters[:1] == ("@name@ **out",)

    @property
    def acts(self) -> bool:
        """True if it takes a model, as its first parameter."""
        return self.parameters[:1] in ((MODEL,), (f"const {MODEL}",))

    @property
    def changes(self) -> bool:
        """True if it takes a model that it may change."""
        return self.parameters[:1] == (MODEL,)

    @property
    def fails(self) -> bool:
        """True if it returns an error code."""
        return self.result == "int" and (self.changes or self.tells)

    @property
    def tells(self) -> bool:
        """True if it takes a buffer for a message."""
        return self.parameters[-1:] == (MESSAGE,)

    @property
    def places(self) -> bool:
        """True if it makes a model in the caller's memory."""
        return self.makes and any(a.kind == "memory" for a in self.arguments)

    @property
    def record(self) -> str:
        """The name of its results, if it has several: its own without the verb."""
        return self.name.partition("_")[2]

    @property
    def answer(self) -> Answer:
        """The kind of its result.

        Raises:
            InternalError: the header has a type that no rule knows.
        """
        if self.fails:
            return "code"
        if self.result == "int":
            return "flag" if re.match("(is|has)_", self.name) else "int"
        kinds: dict[str, Answer] = {
            "void": "nothing", "int64_t": "long", "float": "float", "size_t": "size",
            "const char *": "text", "const @name@_tensor *": "tensor",
            "void *": "memory", "const void *": "memory",
        }  # fmt: skip
        if self.result not in kinds:
            raise InternalError(f"{self.name}: no binding knows the result {self.result!r}")
        return kinds[self.result]

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The values that a caller gives and gets, besides the model and the message.

        Raises:
            InternalError: the header has a type that no rule knows.
        """
        rest = self.parameters[self.makes or self.acts : len(self.parameters) - self.tells]
        arguments: list[Argument] = []
        taken = False
        for i, declared in enumerate(rest):
            if not taken:
                following = rest[i + 1] if i + 1 < len(rest) else ""
                arguments.append(_read_argument(self, declared, following))
            taken = not taken and bool(arguments[-1].size)
        return tuple(arguments)

    @property
    def given(self) -> tuple[Argument, ...]:
        """The values that a caller gives."""
        return tuple(a for a in self.arguments if not a.returned)

    @property
    def gotten(self) -> tuple[Argument, ...]:
        """The values that a caller gets by addresses."""
        return tuple(a for a in self.arguments if a.returned)

    @property
    def takes_inputs(self) -> bool:
        """True if it is a step, which takes the inputs of a phase and has its outputs."""
        return any(a.kind == "inputs" for a in self.arguments)

    @property
    def lends(self) -> bool:
        """True if it returns the address of memory that a caller may write to."""
        return self.answer == "memory" and not self.result.startswith("const")

    def exists(
        self,
        *,
        freestanding: bool,
        threads: int,
        only: Only = "",
        federated: bool = False,
        decodes: bool = False,
    ) -> bool:
        """Return whether a library has it.

        only, federated: as in `Options` of a build.  decodes: whether it has a decoder.

        Raises:
            InternalError: it stands under a condition that no rule knows.
        """
        trains, answers = only in ("", "train"), only in ("", "inference")
        known = {
            "#if @NAME@_TRAINS": trains,
            "#if @NAME@_ANSWERS": answers,
            "#if @NAME@_TRAINS && @NAME@_ANSWERS": trains and answers,
            "#if @NAME@_FEDERATED": federated,
            "#if @NAME@_DECODES": decodes,
            "#ifndef EDGEGRAD_FREESTANDING": not freestanding,
            "#if defined(EDGEGRAD_FREESTANDING) && @NAME@_THREADS > 1": freestanding
            and threads > 1,
        }
        if unknown := [c for c in self.conditions if c not in known]:
            raise InternalError(f"{self.name}: no binding knows the condition {unknown[0]!r}")
        return all(known[condition] for condition in self.conditions)


def join_pascal(name: str) -> str:
    """Return `TrainStep` for `train_step`."""
    return "".join(word.capitalize() for word in name.split("_"))


def _read_argument(function: ApiFunction, declared: str, following: str) -> Argument:
    """Return an argument from its declaration and the one after it."""
    name = re.split(r"[ *]", declared)[-1]
    kind = declared.removesuffix(name).strip()
    sized = re.fullmatch(r"size_t (\w+)", following)
    if kind in _LISTS:
        return Argument(name, _LISTS[kind])
    if kind in _NUMBERS:
        if kind == "int" and name == "phase":
            return Argument(name, "phase")
        flag = kind == "int" and re.match("include_|.*_only$", name)
        return Argument(name, "flag" if flag else _NUMBERS[kind])
    if kind == "const char *":
        return Argument(name, "text")
    pointed = kind.removesuffix("*").strip()
    if sized and pointed in _POINTED:
        inner = "memory" if (function.makes and pointed == "void") else _POINTED[pointed]
        return Argument(name, inner, sized[1])
    if kind == "int *" and name in ("phase", "kind"):
        title = join_pascal(name if name == "phase" else f"{function.record}_{name}")
        return Argument(name, "out_enum", enum=title)
    if kind.endswith("*") and pointed in _OUTS:
        return Argument(name, _OUTS[pointed])
    raise InternalError(f"{function.name}: no binding knows the parameter {declared!r}")


def list_functions(header: str) -> tuple[ApiFunction, ...]:
    """Return the functions that the text of a header with the marks of its build declares."""
    functions: list[ApiFunction] = []
    conditions: list[str] = []
    comment = ""
    for token in _TOKEN.finditer(header):
        if token["on"] is not None:
            conditions.append(token[0])
        elif token["off"]:
            conditions.pop()
        elif token["comment"] is not None:
            text = _clean(token["comment"])
            comment = "" if text.startswith("---") else text
        elif token["blank"] is not None or token["enum"]:
            comment = ""
        elif declared := _DECLARATION.fullmatch(_COMMENT.sub("", token["api"] or "")):
            given = (" ".join(p.split()) for p in declared["rest"].split(","))
            functions.append(
                ApiFunction(
                    declared["name"],
                    declared["result"].strip(),
                    tuple(p for p in given if p != "void"),
                    tuple(
                        c
                        for c in conditions
                        if re.search("EDGEGRAD|@NAME@_(TRAINS|ANSWERS|FEDERATED|DECODES)", c)
                    ),
                    comment,
                )
            )
    return tuple(functions)


def list_enumerations(header: str) -> Iterator[Enumeration]:
    """Yield the enumerations that the text of a header with the marks of its build declares."""
    about = ""
    for token in _TOKEN.finditer(header):
        if token["enum"]:
            members, value = [], -1
            for name, number, comment in _MEMBER.findall(token["members"]):
                value = int(number) if number else value + 1
                members.append((name, value, _make_sentence(_clean(comment))))
            yield Enumeration(token["enum"], tuple(members), about)
        about = _clean(token["comment"] or "")


def find_description(function: ApiFunction, functions: Sequence[ApiFunction]) -> ApiFunction:
    """Return the function that describes the memory whose address a function returns."""
    infos = [f for f in functions if f.answer == "tensor"]
    named = [f for f in infos if f.name == f"{function.name}_info"]
    alike = [f for f in infos if f.parameters[1:] == function.parameters[1:]]
    return (named or alike)[0]


@dataclass(frozen=True, slots=True)
class Whole:
    """All that a function writes to a buffer, as a value that other languages return.

    name: of the value.
    comment: a sentence that says what it is.
    size: the function that counts its elements, and takes the same values but the buffer.
    fill: the function that writes them.
    """

    name: str
    comment: str
    size: ApiFunction
    fill: ApiFunction

    @property
    def buffer(self) -> Argument:
        """The argument that is written."""
        return next(a for a in self.fill.given if a.kind in _ELEMENTS)

    @property
    def element(self) -> Element:
        """The type of what is written."""
        return _ELEMENTS[self.buffer.kind]

    @property
    def given(self) -> tuple[Argument, ...]:
        """The values that a caller gives."""
        return self.size.given


def list_wholes(functions: Iterable[ApiFunction]) -> list[Whole]:
    """Return the values that functions write whole; `get_x_f64` writes `x_f64`."""
    named = {f.name: f for f in functions}
    wholes = []
    for function in named.values():
        said = _EXACTLY.search(" ".join(function.comment.split()))
        if said and f"{said[2]}_size" in named:
            stem = said[2]
            end = function.name.removeprefix(f"get_{stem}")
            name = stem + end * (end != function.name)
            wholes.append(Whole(name, f"Return {said[1]}.", named[f"{stem}_size"], function))
    return wholes


def _make_sentence(words: str) -> str:
    """Return a comment in a line of its own, of one that stands after a declaration of C."""
    return f"{words[0].upper()}{words[1:]}." if words else ""


def _clean(comment: str) -> str:
    """Return the text of a C comment without its stars."""
    return re.sub(r"\n[ \t]*\*?[ \t]?", "\n", comment).strip()


_LETTERS = {
    "void": "0", "int": "i", "size_t": "n", "float": "f", "int64_t": "l", "const char *": "s",
    "char *": "s", "const @name@_tensor *": "t",
}  # fmt: skip


def write_ctypes(functions: Iterable[ApiFunction]) -> str:
    """Return the table of Python's interface: a row `name:letters` for each function.

    `_KINDS` of `runtime/library.py` has the letters, for the result and then the parameters.  All
    addresses are alike, except of text and tensors.
    """
    rows = []
    for function in functions:
        declared = [function.result, *(re.sub(r"\w+$", "", p) for p in function.parameters)]
        letters = "".join(_LETTERS.get(kind.strip(), "p") for kind in declared)
        rows.append(f"{function.name}:{letters}")
    return textwrap.fill(" ".join(rows), 98)


def write_cpp(functions: Sequence[ApiFunction]) -> str:
    """Return the members of the C++ class of a model, one for each function but `destroy`, and with
    exceptions one for each value that a function writes whole.
    """
    rows = []
    for function in functions:
        if function.name != "destroy":
            rows += [*function.conditions, _write_member(function)]
            rows += ["#endif"] * len(function.conditions)
    rows.append("#if @NAME@_CPP_THROWS")
    for whole in list_wholes(functions):
        rows += [*whole.fill.conditions, _write_whole(whole)]
        rows += ["#endif"] * len(whole.fill.conditions)
    return "\n".join([*rows, "#endif"])


def _write_whole(whole: Whole) -> str:
    """Return the member that returns all that another one writes."""
    element = {"byte": "unsigned char"}.get(whole.element, whole.element)
    passed = {name: name for name in _list_names(whole.fill.parameters[1:])}
    passed |= {whole.buffer.name: "values.data()", whole.buffer.size: "values.size()"}
    given = ", ".join(_list_names(whole.size.parameters[1:]))
    return _write_body(
        f"std::vector<{element}> {whole.name}({', '.join(whole.size.parameters[1:])})",
        f"std::vector<{element}> values({whole.size.name}({given}));",
        f"{whole.fill.name}({', '.join(passed.values())});",
        "return values;",
    )


def _list_names(parameters: Iterable[str]) -> list[str]:
    """Return the names of parameters that C declares."""
    return [re.split(r"[ *]", declared)[-1] for declared in parameters]


def _write_member(function: ApiFunction) -> str:
    """Return a member function: what it passes on, and how it reports an error."""
    passed = list(function.parameters)
    if function.makes or function.acts:
        passed = passed[1:]
    if function.tells:
        return _write_telling(function, passed[:-1])
    names = ", ".join(_list_names(passed))
    head = f"{function.name}({', '.join(passed)})"
    result = function.result + " " * (not function.result.endswith("*"))
    if not function.acts:
        return _write_body(f"static {result}{head}", f"return @name@_{function.name}({names});")
    call = f"@name@_{function.name}({', '.join(filter(None, ('m', names)))})"
    if function.fails:
        return _write_body(f"Outcome {head}", f"return check({call}, @name@_message(m));")
    const = " const" * function.parameters[0].startswith("const")
    return _write_body(f"{result}{head}{const}", f"return {call};")


def _write_telling(function: ApiFunction, passed: list[str]) -> str:
    """Return a member that makes a model, or tells an error without one: with exceptions, and
    without.
    """
    names = _list_names(passed)
    call = f"@name@_{function.name}({', '.join(['&made'] * function.makes + names)}"
    made = ["::@name@ *made = nullptr;"] * function.makes
    result = "Model" if function.makes else "Outcome"
    throws = _write_body(
        f"static {result} {function.name}({', '.join(passed)})",
        "char why[@NAME@_MESSAGE_BYTES];", *made, f"check({call}, why), why);",
        *["return Model(made);"] * function.makes,
    )  # fmt: skip
    taken = ["Model &model"] * function.makes + [*passed, "char *message"]
    returns = _write_body(
        f"static Outcome {function.name}({', '.join(taken)})",
        *made, f"const int code = {call}, message);",
        *["if (code == @NAME@_OK)", "    model = Model(made);"] * function.makes,
        "return check(code, message);",
    )  # fmt: skip
    return f"#if @NAME@_CPP_THROWS\n{throws}\n#else\n{returns}\n#endif"


def _write_body(head: str, *lines: str) -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return f"    {head}\n    {{\n{body}    }}"
