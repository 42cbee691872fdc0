"""C#: a class over functions of C that the runtime calls itself, for netstandard2.0 and Mono.

Text and arrays cross over as arrays, which the runtime pins; values of tensors are copied.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.tools.trimmed.api import ApiFunction, Argument, Whole, find_description, join_pascal
from engine.tools.trimmed.bindings.package import (
    Api,
    Language,
    describe,
    join_camel,
    join_parts,
)
from engine.tools.trimmed.targets import Platform

_GIVEN = {  # type, what is passed to C, and how C's parameters are declared
    "text": ("string", 'Bytes("{0}", {0})', "byte[] {0}"),
    "flag": ("bool", "{0} ? 1 : 0", "int {0}"),
    "phase": ("Phase", "(int){0}", "int {0}"),
    "int": ("int", "{0}", "int {0}"),
    "long": ("long", "{0}", "long {0}"),
    "float": ("float", "{0}", "float {0}"),
    "size": ("long", 'Whole("{0}", {0})', "UIntPtr {0}"),
    "bytes": ("byte[]", "{0}, Size({0})", "byte[] {0}, UIntPtr {0}Size"),
    "buffer": ("byte[]", "{0}, Size({0})", "[In, Out] byte[] {0}, UIntPtr {0}Size"),
    "floats": ("float[]", "{0}, Size({0})", "float[] {0}, UIntPtr {0}Size"),
    "float_buffer": ("float[]", "{0}, Size({0})", "[In, Out] float[] {0}, UIntPtr {0}Size"),
    "doubles": ("double[]", "{0}, Size({0})", "double[] {0}, UIntPtr {0}Size"),
    "double_buffer": ("double[]", "{0}, Size({0})", "[In, Out] double[] {0}, UIntPtr {0}Size"),
    "ints": ("int[]", "{0}, Size({0})", "int[] {0}, UIntPtr {0}Size"),
    "inputs": ("params Array[]", "IntPtr.Zero", "IntPtr {0}"),
    "outputs": ("", "IntPtr.Zero", "IntPtr {0}"),
    "out_text": ("string", "out var {0}", "out IntPtr {0}"),
    "out_int": ("int", "out var {0}", "out int {0}"),
    "out_long": ("long", "out var {0}", "out long {0}"),
    "out_float": ("float", "out var {0}", "out float {0}"),
    "out_size": ("long", "out var {0}", "out UIntPtr {0}"),
    "out_enum": ("{enum}", "out var {0}", "out int {0}"),
}
_GOTTEN = {
    "out_text": "String({0})",
    "out_size": "(long){0}",
    "out_enum": "({enum}){0}",
}  # others are as they come
_ANSWERS = {  # type, what is made of the call, and C's type
    "nothing": ("void", "{0};", "void"),
    "code": ("void", "Check({0});", "int"),
    "flag": ("bool", "return {0} != 0;", "int"),
    "int": ("int", "return {0};", "int"),
    "long": ("long", "return {0};", "long"),
    "float": ("float", "return {0};", "float"),
    "size": ("long", "return (long){0};", "UIntPtr"),
    "text": ("string", "return String({0});", "IntPtr"),
    "tensor": ("Tensor", "return Tensor.Read({0});", "IntPtr"),
    "memory": ("Values", "return Read({0}, {info});", "IntPtr"),
}
_SYNCHRONIZED = "[MethodImpl(MethodImplOptions.Synchronized)]"
_SYSTEMS = {"linux": "linux", "windows": "win", "macos": "osx", "android": "android", "ios": "ios"}
_PROCESSORS = {"x86_64": "x64", "aarch64": "arm64"}


def _name_member(name: str) -> str:
    """Return `BadInput` for `BAD_INPUT`."""
    return join_pascal(name.lower())


def _list_declared(given: tuple[Argument, ...]) -> list[str]:
    ways = [(_GIVEN[a.kind][0], join_camel(a.name)) for a in given]
    return [f"{kind} {name}" for kind, name in ways if kind]


def _list_passed(function: ApiFunction) -> list[str]:
    return [_GIVEN[a.kind][1].format(join_camel(a.name)) for a in function.arguments]


def _write_contract(function: ApiFunction | Whole) -> str:
    text = describe(function, join_pascal, "        /// ", name_member=_name_member)
    text = text.replace("<", "&lt;")
    return f"        /// <summary>\n{text}        /// </summary>\n" if text else ""


def _write_method(head: str, lines: list[str], attribute: str = _SYNCHRONIZED) -> str:
    body = "".join(f"            {line}\n" for line in lines)
    start = f"        {attribute}\n" if attribute else ""
    return f"{start}        public {head}\n        {{\n{body}        }}\n"


def _write_member(function: ApiFunction, api: Api) -> str:
    """Return the method, with its contract."""
    name, gotten = join_pascal(function.name), function.gotten
    declared = _list_declared(function.given)
    passed = ["Live()"] * function.acts + _list_passed(function)
    result, made, _ = _ANSWERS[function.answer]
    call = f"Native.@name@_{function.name}({', '.join(passed)})"
    info, rest = "", ""
    before, after = [], []
    if function.answer == "memory":
        arguments = ", ".join(join_camel(a.name) for a in function.given)
        info = f"{join_pascal(find_description(function, api.functions).name)}({arguments})"
        if function.lends:
            head = f"void Set{name}({', '.join([*declared, 'Array values'])})"
            summary = f"/// <summary>Write the values that {name} returns.</summary>"
            write = _write_method(head, [f'Write({call}, {info}, "{name}", values);'])
            rest = f"\n        {summary}\n{write}"
    if function.takes_inputs:
        phase = f"Phase.{join_pascal(api.find_phase(function).lower())}"
        before, after = [f"Place({phase}, inputs);"], [f"return Outputs({phase});"]
        result = "Values[]"
    elif gotten:
        result = join_pascal(function.record)
        fields = [
            f"{join_pascal(a.name)} = "
            f"{_GOTTEN.get(a.kind, '{0}').format(join_camel(a.name), enum=a.enum)}"
            for a in gotten
        ]
        after, rest = (
            [f"return new {result} {{ {', '.join(fields)} }};"],
            _write_record(function),
        )
    static = "" if function.acts else "static "
    lines = [*before, made.format(call, info=info), *after]
    method = _write_method(f"{static}{result} {name}({', '.join(declared)})", lines)
    return f"{_write_contract(function)}{method}{rest}"


def _write_whole(whole: Whole) -> str:
    """Return the method that returns all that another one writes; what is yes or no is yes."""
    taken = [
        declared + " = true" * (argument.kind == "flag")
        for declared, argument in zip(_list_declared(whole.given), whole.given, strict=True)
    ]
    given = ", ".join(join_camel(a.name) for a in whole.given)
    passed = {a.name: join_camel(a.name) for a in whole.fill.given} | {whole.buffer.name: "values"}
    lines = [
        f"var values = new {whole.element}[{join_pascal(whole.size.name)}({given})];",
        f"{join_pascal(whole.fill.name)}({', '.join(passed.values())});",
        "return values;",
    ]
    head = f"{whole.element}[] {join_pascal(whole.name)}({', '.join(taken)})"
    return _write_contract(whole) + _write_method(head, lines)


def _write_record(function: ApiFunction) -> str:
    """Return the class of the results of a method that has several."""
    name, gotten = join_pascal(function.record), function.gotten
    fields = "".join(
        f"            /// <summary>Its {a.name}.</summary>\n"
        f"            public {_GIVEN[a.kind][0].format(enum=a.enum)} {join_pascal(a.name)} "
        "{ get; internal set; }\n"
        for a in gotten
    )
    summary = f"        /// <summary>The result of {join_pascal(function.name)}.</summary>"
    return f"\n{summary}\n        public sealed class {name}\n        {{\n{fields}        }}\n"


def _write_maker(function: ApiFunction) -> str:
    """Return the method that makes a model."""
    passed = ", ".join(["out var made", *_list_passed(function), "why"])
    lines = [
        "var why = new byte[@MESSAGE_BYTES@];",
        f"return Make(Native.@name@_{function.name}({passed}), made, why);",
    ]
    declared = ", ".join(_list_declared(function.given))
    head = f"static Model {join_pascal(function.name)}({declared})"
    return _write_contract(function) + _write_method(head, lines, "")


def _write_native(function: ApiFunction) -> str:
    """Return the declaration of the function of C."""
    taken = ["IntPtr m"] * function.acts + ["out IntPtr made"] * function.makes
    taken += [_GIVEN[a.kind][2].format(join_camel(a.name)) for a in function.arguments]
    taken += ["[In, Out] byte[] why"] * function.tells
    convention = '[DllImport("@name@", CallingConvention = CallingConvention.Cdecl)]'
    result = _ANSWERS[function.answer][2]
    head = f"internal static extern {result} @name@_{function.name}({', '.join(taken)});"
    return f"        {convention}\n        {head}\n"


def _fill(api: Api) -> Mapping[str, str]:
    return {
        "makers": join_parts(map(_write_maker, api.makers)),
        "members": join_parts(
            [*(_write_member(f, api) for f in api.members), *map(_write_whole, api.wholes)]
        ),
        "natives": join_parts(map(_write_native, api.bound)),
    }


def _place(_: str, platform: Platform) -> str:
    """Return the folder of the library, as packages of NuGet have it."""
    machine = _PROCESSORS.get(platform.machine, platform.machine)
    return f"runtimes/{_SYSTEMS.get(platform.system, platform.system)}-{machine}/native"


CSHARP = Language(
    "csharp",
    "C#",
    _fill,
    row="        {0} = {1}",
    note="        /// <summary>{0}</summary>\n",
    separator=",\n",
    name_member=_name_member,
    place=_place,
)
