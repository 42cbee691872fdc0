"""Swift: a class over functions of C, and beside it Objective-C's.

The package has a static library for each target, in a framework that Xcode chooses from.
"""

from __future__ import annotations

import plistlib
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
from engine.tools.trimmed.bindings import objective_c
from engine.tools.trimmed.bindings.package import (
    Api,
    Language,
    describe,
    indent,
    join_camel,
    join_parts,
    list_passed,
)
from engine.tools.trimmed.targets import Platform

_GIVEN = {  # type, and what is passed to C
    "text": ("String", 'Model.checked("{0}", {0})'),
    "flag": ("Bool", "{0} ? 1 : 0"),
    "phase": ("Phase", "{0}.rawValue"),
    "int": ("Int", "Int32(clamping: {0})"),
    "long": ("Int64", "{0}"),
    "float": ("Float", "{0}"),
    "size": ("Int", "{0}"),
    "bytes": ("[UInt8]", "{0}, {0}.count"),
    "buffer": ("inout [UInt8]", "&{0}, {0}Count"),
    "floats": ("[Float]", "{0}, {0}.count"),
    "float_buffer": ("inout [Float]", "&{0}, {0}Count"),
    "doubles": ("[Double]", "{0}, {0}.count"),
    "double_buffer": ("inout [Double]", "&{0}, {0}Count"),
    "ints": ("[Int32]", "{0}, {0}.count"),
    "inputs": ("Numbers...", "nil"),
    "outputs": ("", "nil"),
}
_GOTTEN = {  # type, C's variable, and back
    "out_text": ("String", "UnsafePointer<CChar>? = nil", "Model.text({0})"),
    "out_int": ("Int", "Int32 = 0", "Int({0})"),
    "out_long": ("Int64", "Int64 = 0", "{0}"),
    "out_float": ("Float", "Float = 0", "{0}"),
    "out_size": ("Int", "Int = 0", "{0}"),
    "out_enum": ("{enum}", "Int32 = 0", "{enum}(rawValue: {0})!"),
}
_PASSED = {kind: passed for kind, (_, passed) in _GIVEN.items()}
_ANSWERS = {  # type, and what is made of the call
    "nothing": ("", "{0}"),
    "code": ("", "try check({0})"),
    "flag": ("Bool", "return {0} != 0"),
    "int": ("Int", "return Int({0})"),
    "long": ("Int64", "return {0}"),
    "float": ("Float", "return {0}"),
    "size": ("Int", "return {0}"),
    "text": ("String", "return Model.text({0})"),
    "tensor": ("Tensor?", "return Tensor({0})"),
    "memory": ("Values?", "return Values({0}, {info})"),
}
_PLATFORMS = {"macos": ("macos", ""), "ios": ("ios", ""), "ios-simulator": ("ios", "simulator")}


def _list_declared(given: tuple[Argument, ...]) -> list[str]:
    """Return the parameters; the first has no label."""
    named = [(join_camel(a.name), _GIVEN[a.kind][0]) for a in given if _GIVEN[a.kind][0]]
    return [f"{'' if i else '_ '}{name}: {kind}" for i, (name, kind) in enumerate(named)]


def _list_counts(given: tuple[Argument, ...]) -> list[str]:
    """Return the statements that count what C writes to, which is not to be read meanwhile."""
    names = [join_camel(a.name) for a in given if _GIVEN[a.kind][0].startswith("inout")]
    return [f"let {name}Count = {name}.count" for name in names]


def _pass_on(given: tuple[Argument, ...]) -> str:
    """Return the arguments of a call of a method that has the same parameters."""
    names = [join_camel(a.name) for a in given]
    return ", ".join(name if i == 0 else f"{name}: {name}" for i, name in enumerate(names))


def _write_method(function: ApiFunction | Whole, head: str, lines: list[str]) -> str:
    contract = describe(
        function, join_camel, "    /// ", "nil", lambda name: f".{join_camel(name.lower())}"
    )
    return f"{contract}    public {head} {{\n{indent(chr(10).join(lines), 8)}\n    }}\n"


def _write_member(function: ApiFunction, api: Api) -> str:
    """Return the method, with its contract."""
    given, gotten, name = function.given, function.gotten, join_camel(function.name)
    declared, passed = _list_declared(given), ["m"] * function.acts + list_passed(function, _PASSED)
    call = f"@name@_{function.name}({', '.join(passed)})"
    result, made = _ANSWERS[function.answer]
    lines, info, rest = _list_counts(given), "", ""
    throws = function.fails or any(a.kind == "text" for a in given)
    if function.answer == "memory":
        described = find_description(function, api.functions)
        info = f"{join_camel(described.name)}({_pass_on(given)})"
        if function.lends:
            rest = _write_setter(function, declared, call, info)
    if function.takes_inputs:
        phase = f".{api.find_phase(function).lower()}"
        lines += [f"try place({phase}, inputs)", f"try check({call})", f"return outputs({phase})"]
        result = "[Values]"
    elif gotten:
        result = join_pascal(function.record)
        lines += [f"var {join_camel(a.name)}: {_GOTTEN[a.kind][1]}" for a in gotten]
        fields = ", ".join(
            f"{join_camel(a.name)}: {_GOTTEN[a.kind][2].format(join_camel(a.name), enum=a.enum)}"
            for a in gotten
        )
        lines += [f"try check({call})", f"return {result}({fields})"]
        rest = _write_record(function)
    else:
        tries = throws and function.answer != "code"
        lines.append(made.format(f"{'try ' * tries}{call}", info=info))
    if function.acts:
        start = f"{'return ' * bool(result)}{'try ' * throws}locked {{"
        lines = [start, *(f"    {line}" for line in lines), "}"]
    static = "" if function.acts else "static "
    arrow = f" -> {result}" if result else ""
    head = f"{static}func {name}({', '.join(declared)}){' throws' * throws}{arrow}"
    return _write_method(function, head, lines) + rest


def _write_setter(function: ApiFunction, declared: list[str], call: str, info: str) -> str:
    """Return the method that writes the memory whose values another one returns."""
    name = join_camel(function.name)
    taken = ", ".join([*declared, "values: Numbers"])
    return (
        f"\n    /// Write the values that `{name}` returns.\n"
        f"    public func set{join_pascal(function.name)}({taken}) throws {{\n"
        f'        try locked {{\n            try write({call}, {info}, "{name}", values)\n'
        "        }\n    }\n"
    )


def _write_whole(whole: Whole) -> str:
    """Return the method that returns all that another one writes; what is yes or no is yes."""
    taken = [
        declared + " = true" * (argument.kind == "flag")
        for declared, argument in zip(_list_declared(whole.given), whole.given, strict=True)
    ]
    element = {"byte": "UInt8"}.get(whole.element, whole.element.title())
    buffer = join_camel(whole.buffer.name)
    passed = re.sub(rf"(?<!&)\b{buffer}\b(?!:)", "&values", _pass_on(whole.fill.given))
    size = f"{join_camel(whole.size.name)}({_pass_on(whole.given)})"
    tries = "try " * any(a.kind == "text" for a in whole.given)
    lines = [
        "return try locked {",
        f"    var values = [{element}](repeating: 0, count: {tries}{size})",
        f"    try {join_camel(whole.fill.name)}({passed})",
        "    return values",
        "}",
    ]
    head = f"func {join_camel(whole.name)}({', '.join(taken)}) throws -> [{element}]"
    return _write_method(whole, head, lines)


def _write_record(function: ApiFunction) -> str:
    """Return the type of the results of a method that has several."""
    name, gotten = join_pascal(function.record), function.gotten
    fields = "".join(
        f"        public let {join_camel(a.name)}: {_GOTTEN[a.kind][0].format(enum=a.enum)}\n"
        for a in gotten
    )
    about = f"\n    /// The result of `{join_camel(function.name)}`.\n"
    return f"{about}    public struct {name} {{\n{fields}    }}\n"


def _write_maker(function: ApiFunction) -> str:
    """Return the method that makes a model."""
    passed = ", ".join(["&made", *list_passed(function, _PASSED), "&why"])
    tries = "try " * any(a.kind == "text" for a in function.given)
    lines = [
        "var made: OpaquePointer? = nil",
        "var why = [CChar](repeating: 0, count: @MESSAGE_BYTES@)",
        f"let code = {tries}@name@_{function.name}({passed})",
        "return try Model(code, made, why)",
    ]
    declared = ", ".join(_list_declared(function.given))
    head = f"static func {join_camel(function.name)}({declared}) throws -> Model"
    return _write_method(function, head, lines)


def _write_enumeration(enumeration: Enumeration) -> str:
    rows = "".join(
        f"    /// {comment}\n" * bool(comment)
        + f"    case {join_camel(member.lower())} = {value}\n"
        for member, value, comment in enumeration.members
    )
    head = f"public enum {enumeration.title}: Int32, CaseIterable, Sendable"
    return f"/// {enumeration.comment}\n{head} {{\n{rows}}}\n"


def _describe_framework(api: Api) -> str:
    """Return the property list of the framework, which tells Xcode what is where."""
    libraries = []
    for platform in api.platforms:
        system, variant = _PLATFORMS[platform.system]
        row = {
            "HeadersPath": "Headers",
            "LibraryIdentifier": _name_slice(platform),
            "LibraryPath": platform.file_name("static", api.name),
            "SupportedArchitectures": [_name_machine(platform)],
            "SupportedPlatform": system,
        }
        libraries.append(row | ({"SupportedPlatformVariant": variant} if variant else {}))
    facts = {
        "AvailableLibraries": libraries,
        "CFBundlePackageType": "XFWK",
        "XCFrameworkFormatVersion": "1.0",
    }
    return plistlib.dumps(facts).decode()


def _name_machine(platform: Platform) -> str:
    return {"aarch64": "arm64"}.get(platform.machine, platform.machine)


def _name_slice(platform: Platform) -> str:
    system, variant = _PLATFORMS[platform.system]
    return "-".join(filter(None, (system, _name_machine(platform), variant)))


def _fill(api: Api) -> Mapping[str, str]:
    return {
        "framework": _describe_framework(api),
        "enums": join_parts(map(_write_enumeration, api.enumerations)),
        "makers": join_parts(map(_write_maker, api.makers)),
        "members": join_parts(
            [*(_write_member(f, api) for f in api.members), *map(_write_whole, api.wholes)]
        ),
    } | {**objective_c.fill(api)}


def _place(name: str, platform: Platform) -> str:
    return f"C{join_pascal(name)}.xcframework/{_name_slice(platform)}"


SWIFT = Language(
    "swift",
    "Swift and Objective-C",
    _fill,
    place=_place,
    systems=tuple(_PLATFORMS),
    kind="static",
    module="C@Name@",
    words="swift Swift foundation Foundation darwin Darwin dispatch Dispatch glibc Glibc",
)
