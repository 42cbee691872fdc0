"""Walks: every method of every language with values that nobody should pass.

The calls and the programs that make them are written from the description of the API, so that a
new function is walked by itself.  C says what each call returns: its program is compiled with
sanitizers, and every other language must return the same, or refuse earlier in words of its own.  A
refused call must leave the parameters, the optimizer's state and the properties of the model as
they were.

A walk leaves out values that its language cannot express, such as a phase with another number or a
slice that is null in Rust: `Tongue.takes` says which.
"""

from __future__ import annotations

import itertools
import random
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.tools.trimmed.api import ApiFunction, Whole
from engine.tools.trimmed.bindings.go import _join_go as join_go
from engine.tools.trimmed.bindings.go import _name_members as name_go
from engine.tools.trimmed.bindings.package import Api, join_camel, join_pascal
from tests.bindings.programs import TOOLCHAINS
from tests.support.places import BINDINGS

STATES = ("live", "bare", "ended")  # trained; without values; closed, in C NULL
WIDE = (0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**32, 2**63 - 1, -(2**63), 2**63)
LARGE = 99999  # elements of a buffer that is too long
MOST_GROWN = 8  # MiB in the second half of the rounds, as collectors are in no hurry
MOST = 1000  # mixed calls of a method; one of many values could have millions

# How values of these kinds, if they are not what others of C are, can be told apart by a binding.
OWN = re.compile(
    r".*(expected|there is none at that index|there is no |is not a path|closed|disposed|destroyed)"
)


@dataclass(frozen=True)
class Method:
    """A method of a language: a function of C, what one writes whole, or a setter of its memory.

    kinds: of the values that it takes.
    shows: whether what it returns is compared.
    lender: the function that returns the memory of a setter.
    """

    name: str
    kinds: tuple[str, ...]
    shows: bool
    function: ApiFunction | None = None
    whole: Whole | None = None
    lender: ApiFunction | None = None

    @property
    def makes(self) -> bool:
        """True if it makes a model."""
        return self.function is not None and self.function.makes

    @property
    def acts(self) -> bool:
        """True if it is called on a model."""
        return self.function is None or self.function.acts


@dataclass(frozen=True)
class Row:
    """A call: the state of the model, the method, and a word for each value."""

    state: str
    method: Method
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.state, self.method.name, *self.words))


def list_methods(api: Api) -> Iterator[Method]:
    """Yield all methods that a language can have."""
    for function in api.bound:
        if function.name == "destroy":
            continue
        given = [a for a in function.given if a.kind != "outputs"]
        shows = not (function.takes_inputs or function.gotten or function.makes)
        yield Method(function.name, tuple(a.kind for a in given), shows, function)
        if function.lends:
            yield Method(
                f"set_{function.name}", (*(a.kind for a in given), "numbers"), False,
                lender=function,
            )  # fmt: skip
    for whole in api.wholes:
        yield Method(f"whole_{whole.name}", tuple(a.kind for a in whole.given), False, whole=whole)


def _encode(text: str) -> str:
    return "x" + text.encode().hex()


def _encode_float(value: float) -> str:
    return str(struct.unpack("<I", struct.pack("<f", value))[0])


FLOATS = (0.5, float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e30, 1e-45)
TEXTS = ("", ".", "note", "a\0b", "x" * 5000, "missing/x", "e\u0301\U0001f600")


@dataclass(frozen=True)
class Values:
    """Words for the values of each kind: the first is one that nothing is wrong with.

    samples, labels: elements of the inputs of a training step.
    count: elements of all parameters.
    files: names in the folder of a walk: a checkpoint of this model, then broken and other ones.
    """

    samples: int
    labels: int
    count: int
    files: Sequence[str]

    def list_words(self, method: Method, place: int) -> Sequence[str]:
        """Return the words for an argument of a method."""
        kind = method.kinds[place]
        whole = [str(x) for x in WIDE]
        if kind == "text":
            texts = [_encode(text) for text in TEXTS]
            paths = [_encode(name) for name in self.files]
            return [_encode("note"), "null", *texts, *paths * method.makes]
        if kind == "bytes":
            return [*self.files, "null"]
        lists: Mapping[str, Sequence[str]] = {
            "flag": ("1", "0"),
            "phase": ("0", "1", "2", "99", "-1", "null", str(2**32)),
            "int": whole,
            "long": (str(self.labels), *whole),
            "size": whole,
            "float": [_encode_float(x) for x in FLOATS],
            "inputs": self._list_inputs(),
            "numbers": self._list_numbers(),
        }
        sizes = [str(x) for x in (self.count, 0, 1, self.count - 1, self.count + 1, LARGE)]
        claims = [f"claim:{x % 2**64}" for x in (2**31, 2**32, 2**63, -1)]
        return lists.get(kind, [*sizes, "null", *claims])

    def _list_numbers(self) -> Sequence[str]:
        """Return arrays for an input or a parameter."""
        fitting = (f"f*{self.samples}=0", f"f*{self.samples}=nan", f"l*{self.labels}=0")
        return (*fitting, "null", "f*0=0", "f*1=0", f"f*{LARGE}=0", f"l*{self.samples}=0")

    def _list_inputs(self) -> Sequence[str]:
        """Return the inputs of a training step."""
        x, y = f"f*{self.samples}", f"l*{self.labels}"
        return (
            f"{x}=1,{y}=1", "null", "none", "null,null", f"{x}=1,{y}=10", f"{x}=1,{y}=-1",
            f"{x}=nan,{y}=0", f"{x}=1", f"f*{self.samples - 1}=1,{y}=1", f"{x}=1,l*{LARGE}=1",
            f"l*{self.samples}=1,f*{self.labels}=1", "f*0=1,l*0=1", f"{x}=1,{y}=1,{y}=1",
        )  # fmt: skip

    def list_rows(self, methods: Sequence[Method], *, at_length: bool) -> list[Row]:
        """Return the calls: each value with the others as they should be, then all mixed.

        at_length: mixed in all ways, and as many on models without values and closed ones.
        """
        rows = []
        for method in methods:
            lists = [self.list_words(method, place) for place in range(len(method.kinds))]
            first = tuple(words[0] for words in lists)
            varied = [first]
            for place, words in enumerate(lists):
                varied += [(*first[:place], word, *first[place + 1 :]) for word in words[1:]]
            longest = max(map(len, lists), default=0)
            turns = [
                tuple(w[(turn + (turn + 2) * i) % len(w)] for i, w in enumerate(lists))
                for turn in range(longest)
            ]
            mixed = _mix(lists) if at_length else turns
            every = list(dict.fromkeys([*varied, *mixed] if len(lists) > 1 else varied))
            fewer = every if at_length else every[:: max(1, len(every) // 4)]
            for state in STATES if method.acts else STATES[:1]:
                chosen = every if state == "live" else fewer
                rows += [Row(state, method, words) for words in chosen]
        return rows


def _mix(lists: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return words of lists, mixed in all ways; in drawn ones where these are too many."""
    every = 1
    for words in lists:
        every *= len(words)
    if every <= MOST:
        return list(itertools.product(*lists))
    draw = random.Random(28)
    return [tuple(map(draw.choice, lists)) for _ in range(MOST)]


@dataclass(frozen=True)
class Tongue:
    """A language of walks.

    take: how a word becomes a value of a kind, `{0}` is the word; kinds that it lacks have no way.
    write: makes the lines of a method from its values.
    takes: whether the language has a value, of kind and word.
    has: whether the language has a method.
    states: of models that it can call.
    """

    take: Mapping[str, str]
    write: Callable[[Method, Sequence[str], Api], str]
    takes: Callable[[str, str], bool]
    has: Callable[[Method], bool] = lambda method: True
    states: Sequence[str] = STATES

    def fits(self, row: Row) -> bool:
        """Return whether the language can make a call."""
        pairs = zip(row.method.kinds, row.words, strict=True)
        return (
            self.has(row.method)
            and row.state in self.states
            and all(self.takes(kind, word) for kind, word in pairs)
        )

    def write_methods(self, methods: Sequence[Method], api: Api, word: str) -> str:
        """Return the lines of all methods; `word` is the word of an index."""
        return "\n".join(
            self.write(
                method,
                [self.take[k].format(word.format(i)) for i, k in enumerate(method.kinds)],
                api,
            )
            for method in methods
            if self.has(method)
        )


def is_number(word: str, low: int, high: int) -> bool:
    """Return whether a word is a whole number of a range, with its upper end."""
    return word != "null" and low <= int(word) <= high


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
    x, y = f"f*{values.samples}=", f"l*{values.labels}="

    def takes(kind: str, word: str) -> bool:
        if kind == "inputs":
            first, _, second = word.partition(",")
            whole = first.startswith(x) and second.startswith(y) and second.count(",") == 0
            return whole or word in ("null", "null,null")
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
    ("doubles", "double", 8), ("double_buffer", "double", 8), ("ints", "int32_t", 4),
):  # fmt: skip
    _TAKE_C[_kind] = f"({_type} *)take_buffer({{0}}, {_size}), count_elements({{0}})"


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


_TOLD = {"tensor": "tell_address", "memory": "tell_address"}
_TOLD |= dict.fromkeys(("flag", "int", "long", "size"), "tell_number")


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
    elif function.answer in _TOLD:
        lines = f"{_TOLD[function.answer]}({call});"
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
    told = _TOLD.get(function.answer) if function else None
    lines = f"{told}({call});" if told else f"(void)({call}); tell_done();"
    return f'    {{"{method.name}", [](Model &m, char **w) {{ (void)m; (void)w; {lines} }}}},'


_TAKE_RUST = {
    "text": "&text({0})", "flag": "flag({0})", "phase": "phase({0})", "int": "int({0})",
    "long": "long({0})", "float": "float({0})", "size": "size({0})", "bytes": "&bytes({0})",
    "inputs": "&borrow(&inputs({0}))", "buffer": "&mut vec![0u8; size({0})]",
    "floats": "&vec![0.0f32; size({0})]", "float_buffer": "&mut vec![0.0f32; size({0})]",
    "doubles": "&vec![0.0f64; size({0})]", "double_buffer": "&mut vec![0.0f64; size({0})]",
    "ints": "&vec![0i32; size({0})]",
}  # fmt: skip


def _write_rust(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the arm of a match."""
    function = method.function
    name = api.name_whole(method.whole) if method.whole else method.name
    scope = "m." if method.acts else "Model::"
    call = f"{scope}{name}({', '.join(values)})"
    if function is None or function.fails or "text" in method.kinds:
        call += "?"
    shown = function is not None and function.answer in _TOLD
    lines = f"Ok({call}.tell())" if shown else f"{{ let _ = {call}; Ok(String::new()) }}"
    return f'        "{method.name}" => {lines},'


def _is_of_rust(kind: str, word: str) -> bool:
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


_TAKE_GO = {
    "text": "takeText({0})", "flag": '{0} != "0"', "phase": "mnist.Phase(takeInt({0}))",
    "int": "takeInt({0})", "long": "takeLong({0})", "float": "takeFloat({0})",
    "size": "takeInt({0})", "bytes": "takeBytes({0})", "inputs": "takeInputs({0})...",
    "numbers": "takeNumbers({0})",
    "buffer": "takeBuffer[byte]({0})", "floats": "takeBuffer[float32]({0})",
    "float_buffer": "takeBuffer[float32]({0})", "doubles": "takeBuffer[float64]({0})",
    "double_buffer": "takeBuffer[float64]({0})", "ints": "takeBuffer[int32]({0})",
}  # fmt: skip
_TAKE_JAVA = {
    "text": "text({0})", "flag": '!{0}.equals("0")', "phase": "phase({0})",
    "int": "Integer.parseInt({0})", "long": "Long.parseLong({0})", "float": "real({0})",
    "size": "Long.parseLong({0})", "bytes": "bytes({0})", "inputs": "inputs({0})",
    "numbers": "numbers({0})", "buffer": "buffer({0})", "floats": "floats({0})",
    "float_buffer": "floats({0})", "doubles": "doubles({0})", "double_buffer": "doubles({0})",
    "ints": "ints({0})",
}  # fmt: skip
_TAKE_KOTLIN = _TAKE_JAVA | {
    "flag": '{0} != "0"', "int": "{0}.toInt()", "long": "{0}.toLong()", "float": "float({0})",
    "size": "{0}.toLong()", "inputs": "*inputs({0})",
}  # fmt: skip
_TAKE_CSHARP = {
    "text": "Text({0})", "flag": '{0} != "0"', "phase": "(Phase)int.Parse({0})",
    "int": "int.Parse({0})", "long": "long.Parse({0})", "float": "Real({0})",
    "size": "long.Parse({0})", "bytes": "Bytes({0})", "inputs": "Inputs({0})",
    "numbers": "Numbers({0})", "buffer": "Buffer<byte>({0})", "floats": "Buffer<float>({0})",
    "float_buffer": "Buffer<float>({0})", "doubles": "Buffer<double>({0})",
    "double_buffer": "Buffer<double>({0})", "ints": "Buffer<int>({0})",
}  # fmt: skip
_TAKE_JS = {
    "text": "text({0})", "flag": "flag({0})", "phase": "integer({0})", "int": "integer({0})",
    "long": "long({0})", "float": "float({0})", "size": "integer({0})", "bytes": "bytes({0})",
    "inputs": "inputs({0})", "buffer": "buffer({0}, Uint8Array)",
    "floats": "buffer({0}, Float32Array)", "float_buffer": "buffer({0}, Float32Array)",
    "doubles": "buffer({0}, Float64Array)", "double_buffer": "buffer({0}, Float64Array)",
    "ints": "buffer({0}, Int32Array)",
}  # fmt: skip


_TAKE_SWIFT = {
    "text": "text({0})", "flag": '{0} != "0"', "phase": "Phase(rawValue: Int32({0})!)!",
    "int": "Int({0})!", "long": "Int64({0})!", "float": "real({0})", "size": "Int({0})!",
    "bytes": "bytes({0})", "inputs": "inputs({0})", "numbers": "numbers({0})",
    "buffer": "&zeros({0}) as [UInt8]", "floats": "zeros({0})",
    "float_buffer": "&zeros({0}) as [Float]", "doubles": "zeros({0})",
    "double_buffer": "&zeros({0}) as [Double]", "ints": "zeros({0})",
}  # fmt: skip
_TAKE_OBJECTIVE_C = {
    "text": "takeString({0})", "flag": "take_int({0}) != 0",
    "phase": "(MnistPhase)take_long({0})", "int": "(NSInteger)take_long({0})",
    "long": "take_long({0})", "float": "take_float({0})", "size": "take_size({0})",
    "bytes": "takeData({0})", "inputs": "takeInputs({0})", "numbers": "takeNumbers({0})",
    "buffer": "takeZeros({0}, 1)", "floats": "takeZeros({0}, 4)",
    "float_buffer": "takeZeros({0}, 4)", "doubles": "takeZeros({0}, 8)",
    "double_buffer": "takeZeros({0}, 8)", "ints": "takeZeros({0}, 4)",
}  # fmt: skip


def _name(method: Method) -> str:
    """Return the name of a method without the mark of what is returned whole."""
    return method.name.removeprefix("whole_")


def _is_shown(method: Method) -> bool:
    return method.function is not None and method.function.answer in _TOLD


def _write_go(method: Method, values: Sequence[str], api: Api) -> str:
    """Return a row of the table of calls of Go."""
    function = method.function
    named = name_go(api)
    name = api.name_whole(method.whole) if method.whole else method.name
    name = named.get(name) or join_go(name)
    call = f"{'m' if method.acts else 'mnist'}.{name}({', '.join(values)})"
    if _is_shown(method) and not ("text" in method.kinds and function and function.fails):
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


def _write_java(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the statement that adds a call of Java."""
    scope = "m" if method.acts else "Model"
    call = f"{scope}.{join_camel(_name(method))}({', '.join(values)})"
    done = f"{{ {call}{'.close()' * method.makes}; return DONE; }}"
    return f'    CALLS.put("{method.name}", (m, w) -> {call if _is_shown(method) else done});'


def _write_kotlin(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the entry of a call in a map of Kotlin."""
    scope = "m" if method.acts else "Model"
    unused = "_" if not method.acts else "m"
    call = f"{scope}.{join_camel(_name(method))}({', '.join(values)})"
    done = f"{call}{'.close()' * method.makes}; Unit"
    shown = call if _is_shown(method) else done
    words = "w" if values else "_"
    return f'    "{method.name}" to {{ {unused}, {words} -> {shown} }},'


def _write_csharp(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the entry of a call in a dictionary of C#."""
    scope = "m" if method.acts else "Model"
    call = f"{scope}.{join_pascal(_name(method))}({', '.join(values)})"
    done = f"{{ {call}{'.Dispose()' * method.makes}; return done; }}"
    return f'            ["{method.name}"] = (m, w) => {call if _is_shown(method) else done},'


def _write_javascript(method: Method, values: Sequence[str], api: Api) -> str:
    """Return the property of a call in an object of JavaScript."""
    call = f"m.{join_camel(_name(method))}({', '.join(values)})"
    done = f"void {call}"
    return f"  {method.name}: (m, w) => {call if _is_shown(method) else done},"


def _list_names(method: Method) -> list[str]:
    """Return the names of what a method takes, as languages of Apple have them before values."""
    if method.whole:
        return [join_camel(a.name) for a in method.whole.given]
    function = method.function or method.lender
    assert function is not None
    names = [join_camel(a.name) for a in function.given if a.kind != "outputs"]
    return [*names, *["values"] * (method.function is None)]


def _write_swift(method: Method, values: Sequence[str], api: Api) -> str:
    """Return a case of Swift; what C writes to is a variable, and there are up to three inputs."""
    function, lines, passed = method.function, [], []
    names = _list_names(method)
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        if value.startswith("&"):
            zeros, _, kind = value[1:].partition(" as ")
            lines.append(f"var {name}: {kind} = {zeros}")
            value = f"&{name}"
        passed.append(value if i == 0 else f"{name}: {value}")
    scope = "m" if method.acts else "Model"
    name = f"{scope}.{join_camel(_name(method))}"
    call = f"{name}({', '.join(passed)})"
    if "text" in method.kinds or function is None or function.fails or function.makes:
        call = f"try {call}"
    if function and function.takes_inputs:
        lines.append(f"let given = {values[0]}")
        for count in range(4):
            given = ", ".join(f"given[{i}]" for i in range(count))
            lines.append(f"if given.count == {count} {{ _ = try {name}({given}) }}")
    elif _is_shown(method):
        lines.append(f"return tell({call})")
    else:
        is_void = function is None or function.answer in ("nothing", "code")
        is_void = is_void and not method.whole and not method.makes
        is_void = is_void and not (function and function.gotten)
        lines.append("_ = " * (not is_void) + call)
    body = "".join(f"        {line}\n" for line in lines)
    return f'    case "{method.name}":\n{body}'.rstrip()


def _write_objective_c(method: Method, values: Sequence[str], api: Api) -> str:
    """Return a condition of Objective-C, and the call."""
    function = method.function
    given = list(zip(_list_names(method), values, strict=True))
    is_checked = function is None or function.fails or "text" in method.kinds
    given += [(join_camel(a.name), "NULL") for a in (function.gotten if function else ())]
    given += [("error", "error")] * is_checked
    words = [f"{name if i else ''}:{value}" for i, (name, value) in enumerate(given)]
    scope = "m" if method.acts else "MnistModel"
    call = f"[{scope} {join_camel(_name(method))}{' '.join(words)}]"
    told = _TOLD.get(function.answer) if function else None
    tell = {"tell_address": "tell_address(({0}) ? m : nil)", "tell_number": "tell_number({0})"}
    line = tell[told].format(call) if told else f"(void){call}"
    return (
        f'    if (!strcmp(name, "{method.name}")) {{\n        {line};\n        return YES;\n    }}'
    )


def _is_of_managed(kind: str, word: str) -> bool:
    """Arrays know their sizes; numbers have 32 or 64 bits."""
    if word.startswith("claim:"):
        return False
    if kind in ("int", "phase") and word != "null":
        return is_number(word, -(2**31), 2**31 - 1)
    return kind not in ("long", "size") or is_number(word, -(2**63), 2**63 - 1)


def _is_of_java(kind: str, word: str) -> bool:
    """And an enumeration has its members, or is null."""
    fits = kind != "phase" or word in ("0", "1", "2", "null")
    return fits and _is_of_managed(kind, word)


def _is_of_kotlin(kind: str, word: str) -> bool:
    """And a list of arguments is there."""
    return not (kind == "inputs" and word == "null") and _is_of_java(kind, word)


def _is_of_csharp(kind: str, word: str) -> bool:
    """And an enumeration has any number."""
    return not (kind == "phase" and word == "null") and _is_of_managed(kind, word)


def _is_of_go(kind: str, word: str) -> bool:
    """Texts and numbers are not null; all numbers have 64 bits."""
    if word.startswith("claim:") or (word == "null" and kind in ("text", "phase")):
        return False
    wide = kind in ("int", "phase", "long", "size")
    return not wide or is_number(word, -(2**63), 2**63 - 1)


def _is_of_swift(kind: str, word: str) -> bool:
    """Nothing is null, and a phase is one."""
    if "null" in word.split(",") or (kind == "phase" and not is_number(word, 0, 2)):
        return False
    return _is_of_go(kind, word)


def _is_of_objective_c(kind: str, word: str) -> bool:
    """Numbers have 64 bits, sizes without a sign, and a phase is a number."""
    if word.startswith("claim:") or (word == "null" and kind == "phase"):
        return False
    return kind not in ("int", "long") or is_number(word, -(2**63), 2**63 - 1)


def _is_of_javascript(kind: str, word: str) -> bool:
    """Everything can be passed but a buffer that claims to be another."""
    return not word.startswith("claim:")


def list_tongues(values: Values) -> Mapping[str, Tongue]:
    """Return the languages of walks by their names in `TOOLCHAINS`."""
    of_c = is_input_of_c(values)

    def is_of_c_api(method: Method) -> bool:
        return method.function is not None

    def has_no_setters(method: Method) -> bool:
        return method.function is not None or method.whole is not None

    def is_of_module(method: Method) -> bool:
        return (
            has_no_setters(method) and method.acts and method.name not in ("save", "export_model")
        )

    return {
        "c": Tongue(_TAKE_C, _write_c, of_c, is_of_c_api),
        "cpp": Tongue(_TAKE_C, _write_cpp, of_c, has_no_setters),
        "rust": Tongue(_TAKE_RUST, _write_rust, _is_of_rust, has_no_setters, STATES[:2]),
        "go": Tongue(_TAKE_GO, _write_go, _is_of_go),
        "java": Tongue(_TAKE_JAVA, _write_java, _is_of_java),
        "kotlin": Tongue(_TAKE_KOTLIN, _write_kotlin, _is_of_kotlin),
        "csharp": Tongue(_TAKE_CSHARP, _write_csharp, _is_of_csharp),
        "swift": Tongue(_TAKE_SWIFT, _write_swift, _is_of_swift),
        "objc": Tongue(_TAKE_OBJECTIVE_C, _write_objective_c, _is_of_objective_c),
        "js": Tongue(_TAKE_JS, _write_javascript, _is_of_javascript, is_of_module),
    }


WORDS = dict.fromkeys(
    ("c", "cpp", "rust", "go", "kotlin", "csharp", "js", "swift", "objc"), "w[{0}]"
)
WORDS["java"] = "w.get({0})"


def find_source(language: str) -> Path:
    """Return the program of a language without its calls."""
    apple = {"swift": "Walk.swift", "objc": "Walk.m"}
    return (
        BINDINGS / apple[language]
        if language in apple
        else TOOLCHAINS[language].name_program("walk")
    )


def write_program(language: str, tongue: Tongue, methods: Sequence[Method], api: Api) -> str:
    """Return the source of the program of a language."""
    text = find_source(language).read_text()
    lines = tongue.write_methods(methods, api, "w.get({0})" if language == "java" else "w[{0}]")
    if language == "c":
        names = [m.name for m in methods if tongue.has(m)]
        text = text.replace("/*@calls@*/", lines)
        lines = "\n".join(f'    {{"{name}", call_{name}}},' for name in names)
    return text.replace("/*@rows@*/", lines)


def check(
    rows: Sequence[Row], printed: str, expected: Mapping[str, str], *, races: bool = False
) -> list[str]:
    """Return what a language did wrong.

    rows: of the language.  expected: what C said, by the text of the row.
    races: whether threads have also called a model that another one closed.
    """
    lines = printed.splitlines()
    facts = dict(line.split() for line in lines[len(rows) :])
    wrong = []
    for row, line in zip(rows, lines[: len(rows)], strict=True):
        said = line.partition(" ")[2]
        word, _, rest = said.partition(" ")
        by_c = expected.get(str(row))
        if why := _judge(row, word, rest, by_c):
            wrong.append(f"{row}: {said}: {why}, C: {by_c}")
    if int(facts["grown"]) > MOST_GROWN:
        wrong.append(f"grown {facts['grown']} MiB")
    if races and facts.get("raced") != "200":
        wrong.append("two threads have not raced for a model a hundred times")
    return wrong


def _is_beyond(row: Row) -> bool:
    """Return whether a value cannot be passed to C as the caller means it."""
    pairs = zip(row.method.kinds, row.words, strict=True)
    return any(
        (kind == "text" and word != "null" and not is_of_c(kind, word))
        or (kind in ("int", "phase") and word != "null" and not is_of_c(kind, word))
        for kind, word in pairs
    )


def _accepts(word: str, rest: str) -> bool:
    """Return whether an answer is other than that there is nothing."""
    return word == "ok" and rest not in ("none", "0", "-1")


def _judge(row: Row, word: str, rest: str, by_c: str | None) -> str:
    """Return what is wrong with an answer; empty if nothing is."""
    if rest.endswith(" changed"):
        return "changed the model"
    if word != "ok" and not (word.isdigit() and word != "0" and rest):
        return "has no code and message"
    is_own = word in ("1", "5") and OWN.match(rest)
    if row.state == "ended" and word == "5":
        return ""
    if is_own:
        return ""
    if by_c is None:
        return "accepts what C cannot have" if _is_beyond(row) and _accepts(word, rest) else ""
    return "" if by_c == " ".join([word, *[rest] * bool(rest)]) else "differs"
