"""Go: a type over functions of C, which cgo calls; values of tensors are copied."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.tools.trimmed.api import (
    ApiFunction,
    Argument,
    Enumeration,
    Whole,
    find_description,
    join_pascal,
)
from engine.tools.trimmed.bindings.package import (
    Api,
    Language,
    describe,
    join_camel,
    join_parts,
    list_passed,
)
from engine.tools.trimmed.targets import Platform

_GIVEN = {  # type, and what is passed to C
    "text": ("string", "{0}C"),
    "flag": ("bool", "flag({0})"),
    "phase": ("Phase", "narrow(int({0}))"),
    "int": ("int", "narrow({0})"),
    "long": ("int64", "C.int64_t({0})"),
    "float": ("float32", "C.float({0})"),
    "size": ("int", "C.size_t({0})"),
    "bytes": ("[]byte", "first({0}), C.size_t(len({0}))"),
    "buffer": ("[]byte", "first({0}), C.size_t(len({0}))"),
    "floats": ("[]float32", "(*C.float)(first({0})), C.size_t(len({0}))"),
    "float_buffer": ("[]float32", "(*C.float)(first({0})), C.size_t(len({0}))"),
    "doubles": ("[]float64", "(*C.double)(first({0})), C.size_t(len({0}))"),
    "double_buffer": ("[]float64", "(*C.double)(first({0})), C.size_t(len({0}))"),
    "ints": ("[]int32", "(*C.int32_t)(first({0})), C.size_t(len({0}))"),
    "inputs": ("...any", "nil"),
    "outputs": ("", "nil"),
}
_GOTTEN = {  # type, C's type, and back
    "out_text": ("string", "*C.char", "C.GoString({0})"),
    "out_int": ("int", "C.int", "int({0})"),
    "out_long": ("int64", "C.int64_t", "int64({0})"),
    "out_float": ("float32", "C.float", "float32({0})"),
    "out_size": ("int", "C.size_t", "int({0})"),
    "out_enum": ("{enum}", "C.int", "{enum}({0})"),
}
# Keywords, and packages of the standard library.
_WORDS = """
    break case chan const continue default defer else fallthrough for func go goto if import
    interface map package range return select struct switch type var
    bufio bytes cmp context crypto embed encoding errors expvar flag fmt hash html image io iter log
    maps math mime net os path plugin reflect regexp runtime slices sort strconv strings structs
    sync syscall testing time unicode unique unsafe weak
"""
_CAPITALS = {"cpu", "id", "json", "ok", "onnx", "ram", "url"}
_SYSTEMS = {"macos": "darwin", "ios-simulator": "ios"}
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_PASSED = {kind: passed for kind, (_, passed) in _GIVEN.items()}
_ANSWERS = {  # type, and what is made of the call
    "nothing": ("", "{0}"),
    "code": ("error", "return m.check({0})"),
    "flag": ("bool", "return {0} != 0"),
    "int": ("int", "return int({0})"),
    "long": ("int64", "return int64({0})"),
    "float": ("float32", "return float32({0})"),
    "size": ("int", "return int({0})"),
    "text": ("string", "return C.GoString({0})"),
    "tensor": ("*Tensor", "return readTensor({0})"),
    "memory": ("any", "return readValues(unsafe.Pointer({0}), {info})"),
}


def _join_go(name: str) -> str:
    """Return `SetCPU` for `set_cpu`: abbreviations that Go writes in capitals are so."""
    return "".join(
        word.upper() if word in _CAPITALS else word.capitalize() for word in name.split("_")
    )


def _hide(name: str) -> str:
    """Return `cpu` for `CPU` and `setCPU` for `SetCPU`, which other packages cannot call."""
    return re.sub("^([A-Z]+(?![a-z])|[A-Z])", lambda m: m[1].lower(), name)


def _name_members(api: Api) -> dict[str, str]:
    """Return the names of the methods: a getter has the name of what it returns, as Go wants it."""
    getters = {f.name for f in api.members if f.name.startswith("get_") and not f.arguments}
    return {
        f.name: _join_go(f.name.removeprefix("get_") if f.name in getters else f.name)
        for f in api.functions
    }


def _list_declared(given: tuple[Argument, ...]) -> list[str]:
    ways = [(_GIVEN[a.kind][0], join_camel(a.name)) for a in given]
    return [f"{name} {kind}" for kind, name in ways if kind]


def _list_texts(function: ApiFunction, refused: str) -> list[str]:
    """Return the statements that make texts of C.

    refused: what the function returns where a text has a null character, which would end it.
    """
    lines = []
    for name in [join_camel(a.name) for a in function.given if a.kind == "text"]:
        lines += [
            f'if err := checkText("{name}", {name}); err != nil {{\n\t\treturn {refused}\n\t}}',
            f"{name}C := C.CString({name})",
            f"defer C.free(unsafe.Pointer({name}C))",
        ]
    return lines


def _write_function(contract: str, head: str, lines: list[str]) -> str:
    body = "".join(f"\t{line}\n" for line in lines)
    return f"{contract}func {head} {{\n{body}}}\n"


def _write_method(
    contract: str, name: str, declared: list[str], result: str, lines: list[str]
) -> str:
    """Return a method that takes the lock, and the one with a small initial that it then calls."""
    passed = [word.split()[0] + "..." * ("..." in word) for word in declared]
    inner, taken = _hide(name), ", ".join(declared)
    call = f"{'return ' * bool(result)}m.{inner}({', '.join(passed)})"
    outer = _write_function(
        contract, f"(m *Model) {name}({taken}) {result}".rstrip(), ["defer m.lock()()", call]
    )
    return (
        f"{outer}\n{_write_function('', f'(m *Model) {inner}({taken}) {result}'.rstrip(), lines)}"
    )


def _write_member(function: ApiFunction, api: Api) -> str:
    """Return the method, with its contract."""
    names = _name_members(api)
    name, gotten = names[function.name], function.gotten
    declared = _list_declared(function.given)
    passed = ["m.live()"] * function.acts + list_passed(function, _PASSED)
    call = f"C.@name@_{function.name}({', '.join(passed)})"
    result, made = _ANSWERS[function.answer]
    lines, rest, info = ["defer runtime.KeepAlive(m)"] * function.acts, "", ""
    lines += _list_texts(function, "err" if function.fails else "-1")
    if function.answer == "memory":
        arguments = ", ".join(join_camel(a.name) for a in function.given)
        info = f"m.{join_camel(find_description(function, api.functions).name)}({arguments})"
        if function.lends:
            write = f'return writeValues(unsafe.Pointer({call}), {info}, "{name}", values)'
            rest = "\n" + _write_method(
                f"// Set{name} writes the values that {name} returns.\n", f"Set{name}",
                [*declared, "values any"], "error", ["defer runtime.KeepAlive(m)", write],
            )  # fmt: skip
    if function.takes_inputs:
        phase = f"Phase{_join_go(api.find_phase(function).lower())}"
        place = f"if err := m.place({phase}, inputs); err != nil {{\n\t\treturn nil, err\n\t}}"
        step = f"if err := m.check({call}); err != nil {{\n\t\treturn nil, err\n\t}}"
        lines += [place, step, f"return m.outputs({phase}), nil"]
        result = "([]any, error)"
    elif gotten:
        result = _join_go(function.record)
        lines += [f"var {join_camel(a.name)} {_GOTTEN[a.kind][1]}" for a in gotten]
        fields = ", ".join(
            _GOTTEN[a.kind][2].format(join_camel(a.name), enum=a.enum) for a in gotten
        )
        lines += [f"err := m.check({call})", f"return {result}{{{fields}}}, err"]
        rest, result = _write_record(function), f"({result}, error)"
    else:
        lines.append(made.format(call, info=info))
    contract = _describe(function, names)
    if function.acts:
        return _write_method(contract, name, declared, result, lines) + rest
    return _write_function(contract, f"{name}({', '.join(declared)}) {result}".rstrip(), lines)


def _write_whole(whole: Whole, api: Api) -> str:
    """Return the method that returns all that another one writes."""
    names = _name_members(api)
    name = _join_go(api.name_whole(whole))
    element = {"byte": "byte", "float": "float32", "double": "float64"}[whole.element]
    size, fill = (_hide(names[f.name]) for f in (whole.size, whole.fill))
    given = ", ".join(join_camel(a.name) for a in whole.given)
    passed = {a.name: join_camel(a.name) for a in whole.fill.given} | {whole.buffer.name: "values"}
    lines = [
        "defer m.lock()()",
        f"values := make([]{element}, room(m.{size}({given})))",
        f"err := m.{fill}({', '.join(passed.values())})",
        "return values, err",
    ]
    declared = ", ".join(_list_declared(whole.given))
    head = f"(m *Model) {name}({declared}) ([]{element}, error)"
    contract = describe(whole, join_pascal, "// ", "nil", subject=name)
    return _write_function(contract, head, lines)


def _write_record(function: ApiFunction) -> str:
    """Return the type of the results of a method that has several."""
    name, gotten = _join_go(function.record), function.gotten
    wide = max(len(_join_go(a.name)) for a in gotten)
    fields = "".join(
        f"\t{_join_go(a.name):{wide}} {_GOTTEN[a.kind][0].format(enum=a.enum)}\n" for a in gotten
    )
    head = f"\n// {name} is the result of {_join_go(function.name)}."
    return f"{head}\ntype {name} struct {{\n{fields}}}\n"


def _write_maker(function: ApiFunction) -> str:
    """Return the function that makes a model."""
    passed = ", ".join(["&made", *list_passed(function, _PASSED), "&why[0]"])
    lines = [
        *_list_texts(function, "nil, err"),
        "var made *C.@name@",
        "var why [@MESSAGE_BYTES@]C.char",
        f"return newModel(C.@name@_{function.name}({passed}), made, &why[0])",
    ]
    head = f"{_join_go(function.name)}({', '.join(_list_declared(function.given))}) (*Model, error)"
    return _write_function(_describe(function, {}), head, lines)


def _name_constant(title: str, name: str) -> str:
    """Return the name of a constant, which begins with its type's."""
    return title + _join_go(name.lower())


def _describe(function: ApiFunction, names: Mapping[str, str]) -> str:
    """Return the contract of a function, which begins with its name, as Go wants it."""

    def rename(word: str) -> str:
        return names.get(word, _join_go(word))

    return describe(
        function, rename, "// ", "nil",
        lambda name: _name_constant("ErrorCode", name), rename(function.name),
    )  # fmt: skip


def _write_enumeration(enumeration: Enumeration) -> str:
    """Return a type with its constants, whose names begin with its own."""
    title = enumeration.title
    cells = [(_name_constant(title, name), value) for name, value, _ in enumeration.members]
    wide = max(len(name) for name, _ in cells)
    most = max(len(str(value)) for _, value in cells)
    rows = "".join(
        f"\t{name:{wide}} {title} = {value:<{most}} // {sentence}\n"
        for (name, value), (*_, sentence) in zip(cells, enumeration.members, strict=True)
    )
    about = enumeration.comment[0].lower() + enumeration.comment[1:]
    digits = 1 + most  # and a colon
    names = "".join(
        f'\t{f"{value}:":{digits}} "{name}",\n' for name, value, _ in enumeration.members
    )
    return (
        f"// {title} is {about}\ntype {title} int\n\nconst (\n{rows})\n\n"
        f"var names{title} = map[{title}]string{{\n{names}}}\n\n"
        f"func (value {title}) String() string {{ return names{title}[value] }}\n"
    )


def _fill(api: Api) -> Mapping[str, str]:
    return {
        "flags": "\n".join(map(_write_flags, api.platforms)),
        "purposeInGo": api.marks["purpose"][0].lower() + api.marks["purpose"][1:],
        "enums": join_parts(map(_write_enumeration, api.enumerations)),
        "makers": join_parts(map(_write_maker, api.makers)),
        "members": join_parts(
            [
                *(_write_member(f, api) for f in api.members),
                *(_write_whole(whole, api) for whole in api.wholes),
            ]
        ),
    }


def _name_system(platform: Platform) -> str:
    return _SYSTEMS.get(platform.system, platform.system)


def _name_machine(platform: Platform) -> str:
    return _MACHINES.get(platform.machine, platform.machine)


def _place(_: str, platform: Platform) -> str:
    """Return the folder of the library, by Go's names of systems and processors."""
    return f"native/{_name_system(platform)}_{_name_machine(platform)}"


def _write_flags(platform: Platform) -> str:
    """Return cgo's lines for a platform.

    Programs look for the library next to themselves, then where it is in this module.
    """
    only, place = f"{_name_system(platform)},{_name_machine(platform)}", _place("", platform)
    paths = rf"-Wl,-rpath,\$ORIGIN -Wl,-rpath,${{SRCDIR}}/{place}" if platform.is_elf else ""
    if platform.form == "macho":
        paths = f"-Wl,-rpath,@executable_path -Wl,-rpath,${{SRCDIR}}/{place}"
    return (
        f"#cgo {only} CFLAGS: -I${{SRCDIR}}/{place}\n"
        f"#cgo {only} LDFLAGS: -L${{SRCDIR}}/{place} -l@name@ {paths}".rstrip()
    )


GO = Language("go", "Go", _fill, words=_WORDS, place=_place, has_header=True)
