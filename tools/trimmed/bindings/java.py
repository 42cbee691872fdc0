"""Java, which Kotlin calls, too: a class over native methods, and the C that passes them on.

Text and arrays cross over as arrays, addresses as longs; values of tensors are copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.tools.trimmed.api import ApiFunction, Argument, Whole, find_description, join_pascal
from engine.tools.trimmed.bindings.package import (
    Api,
    Language,
    describe,
    join_camel,
    join_parts,
)
from engine.tools.trimmed.targets import Platform


@dataclass(frozen=True, slots=True)
class _Way:
    """The way of a value to C; `{0}` is its name.

    type, passed: in the public method, and what that gives to the native one.
    native, c: its types there and in C.
    call: what C is given; `hold` and `mode`: how an array is held meanwhile, and let go.
    """

    type: str
    passed: str
    native: str
    c: str
    call: str = "{0}"
    hold: str = ""
    mode: str = ""


_SIZED = "{0}_, (size_t)length(env, {0})"
_GIVEN = {
    "text": _Way("String", 'bytes("{0}", {0})', "byte[]", "object", "{0}_", "BYTES", "ABORT"),
    "flag": _Way("boolean", "{0} ? 1 : 0", "int", "int32_t"),
    "phase": _Way("Phase", 'number("{0}", {0})', "int", "int32_t"),
    "int": _Way("int", "{0}", "int", "int32_t"),
    "long": _Way("long", "{0}", "long", "int64_t"),
    "float": _Way("float", "{0}", "float", "float"),
    "size": _Way("long", "{0}", "long", "int64_t", "SIZE({0})"),
    "bytes": _Way("byte[]", "{0}", "byte[]", "object", _SIZED, "BYTES", "ABORT"),
    "buffer": _Way("byte[]", "{0}", "byte[]", "object", _SIZED, "BYTES", "COPY_BACK"),
    "floats": _Way("float[]", "{0}", "float[]", "object", _SIZED, "FLOATS", "ABORT"),
    "float_buffer": _Way("float[]", "{0}", "float[]", "object", _SIZED, "FLOATS", "COPY_BACK"),
    "doubles": _Way("double[]", "{0}", "double[]", "object", _SIZED, "DOUBLES", "ABORT"),
    "double_buffer": _Way("double[]", "{0}", "double[]", "object", _SIZED, "DOUBLES", "COPY_BACK"),
    "ints": _Way("int[]", "{0}", "int[]", "object", _SIZED, "INTS", "ABORT"),
    "inputs": _Way("Object...", "", "", "", "NULL"),
    "outputs": _Way("", "", "", "", "NULL"),
}
_GOTTEN = {  # type, C's, C's as a 64-bit word, and back in Java
    "out_text": ("String", "const char *", "(int64_t)(intptr_t){0}_", "text({0})"),
    "out_int": ("int", "int ", "{0}_", "(int) {0}"),
    "out_long": ("long", "int64_t ", "{0}_", "{0}"),
    "out_float": (
        "float", "float ", "((union {{ float f; int32_t i; }}){{{0}_}}).i",
        "Float.intBitsToFloat((int) {0})",
    ),
    "out_size": ("long", "size_t ", "(int64_t){0}_", "{0}"),
    "out_enum": ("{enum}", "int ", "{0}_", "{enum}.of((int) {0})"),
}  # fmt: skip
_ANSWERS = {  # type, what is made of the call, native type, C's type, what is made of C's value
    "nothing": ("void", "{0};", "void", "void", "{0}"),
    "code": ("void", "check({0});", "int", "int32_t", "{0}"),
    "flag": ("boolean", "return {0} != 0;", "int", "int32_t", "{0}"),
    "int": ("int", "return {0};", "int", "int32_t", "{0}"),
    "long": ("long", "return {0};", "long", "int64_t", "{0}"),
    "float": ("float", "return {0};", "float", "float", "{0}"),
    "size": ("long", "return {0};", "long", "int64_t", "(int64_t){0}"),
    "text": ("String", "return text({0});", "long", "int64_t", "(int64_t)(intptr_t){0}"),
    "tensor": ("Tensor", "return tensor({0});", "long", "int64_t", "(int64_t)(intptr_t){0}"),
    "memory": ("Values", "return read({0}, {info});", "long", "int64_t", "(int64_t)(intptr_t){0}"),
}

_WORDS = """
    abstract assert boolean break byte case catch char class const continue default do double else
    enum extends false final finally float for goto if implements import instanceof int interface
    long native new null package private protected public return short static strictfp super switch
    synchronized this throw throws transient true try void volatile while
"""
_HELD = {"BYTES": "char", "INTS": "int32_t", "FLOATS": "float", "DOUBLES": "double"}  # in C
_ABIS = {"aarch64": "arm64-v8a", "arm": "armeabi-v7a", "x86_64": "x86_64"}  # Android's names


def _list_declared(given: tuple[Argument, ...]) -> list[str]:
    return [f"{_GIVEN[a.kind].type} {join_camel(a.name)}" for a in given if _GIVEN[a.kind].type]


def _list_passed(given: tuple[Argument, ...]) -> list[str]:
    ways = [(_GIVEN[a.kind].passed, join_camel(a.name)) for a in given]
    return [passed.format(name) for passed, name in ways if passed]


def _write_member(function: ApiFunction, api: Api) -> str:
    """Return the public method, with its contract."""
    given, gotten = function.given, function.gotten
    name, declared, passed = join_camel(function.name), _list_declared(given), _list_passed(given)
    passed = ["live()"] * function.acts + passed + ["gotten"] * bool(gotten)
    result, made, *_ = _ANSWERS[function.answer]
    info, rest = "", ""
    before, after = [], []
    if function.answer == "memory":
        described = find_description(function, api.functions)
        arguments = ", ".join(join_camel(a.name) for a in given)
        info = f"{join_camel(described.name)}({arguments})"
        if function.lends:
            rest = _write_setter(function, declared, passed, info)
    if function.takes_inputs:
        phase = f"Phase.{api.find_phase(function)}"
        before, after = [f"place({phase}, inputs);"], [f"return outputs({phase});"]
        result = "Values[]"
    elif gotten:
        result = join_pascal(function.record)
        before = [f"long[] gotten = new long[{len(gotten)}];"]
        after, rest = [f"return new {result}(gotten);"], _write_record(function)
    call = f"Native.{name}({', '.join(passed)})"
    lines = [*before, made.format(call, info=info), *after]
    static = "" if function.acts else "static "
    head = f"  public {static}synchronized {result} {name}({', '.join(declared)}) {{\n"
    body = "".join(f"    {line}\n" for line in lines)
    return f"{_write_contract(function)}{head}{body}  }}\n{rest}"


def _write_setter(function: ApiFunction, declared: list[str], passed: list[str], info: str) -> str:
    """Return the method that writes the memory whose values another one returns."""
    name = join_pascal(function.name)
    taken = ", ".join([*declared, "Object values"])
    call = f"Native.{join_camel(function.name)}({', '.join(passed)})"
    return (
        f"\n  /** Write the values that {{@link #{join_camel(function.name)}}} returns. */\n"
        f"  public synchronized void set{name}({taken}) {{\n"
        f'    write({call}, {info}, "{join_camel(function.name)}", values);\n  }}\n'
    )


def _write_record(function: ApiFunction) -> str:
    """Return the class of what a method returns that has several results."""
    name, gotten = join_pascal(function.record), function.gotten
    fields, lines = "", ""
    for i, a in enumerate(gotten):
        kind, *_, back = _GOTTEN[a.kind]
        own = join_camel(a.name)
        fields += f"    /** Its {a.name}. */\n    public final {kind.format(enum=a.enum)} {own};\n"
        lines += f"      {own} = {back.format(f'gotten[{i}]', enum=a.enum)};\n"
    return (
        f"\n  /** The result of {{@link #{join_camel(function.name)}}}. */\n"
        f"  public static final class {name} {{\n{fields}\n"
        f"    private {name}(long[] gotten) {{\n{lines}    }}\n  }}\n"
    )


def _write_maker(function: ApiFunction) -> str:
    """Return the method that makes a model."""
    passed = ", ".join([*_list_passed(function.given), "made", "why"])
    name, declared = join_camel(function.name), ", ".join(_list_declared(function.given))
    return (
        f"{_write_contract(function)}  public static Model {name}({declared}) {{\n"
        "    long[] made = new long[1];\n    byte[] why = new byte[@MESSAGE_BYTES@];\n"
        f"    return make(Native.{name}({passed}), made, why);\n  }}\n"
    )


def _write_whole(whole: Whole) -> str:
    """Return the method that returns all that another one writes."""
    declared = ", ".join(_list_declared(whole.given))
    given = ", ".join(join_camel(a.name) for a in whole.given)
    passed = {a.name: join_camel(a.name) for a in whole.fill.given} | {whole.buffer.name: "values"}
    kind, size = whole.element, f"{join_camel(whole.size.name)}({given})"
    return (
        f"{_write_contract(whole)}"
        f"  public synchronized {kind}[] {join_camel(whole.name)}({declared}) {{\n"
        f"    {kind}[] values = new {kind}[Math.toIntExact({size})];\n"
        f"    {join_camel(whole.fill.name)}({', '.join(passed.values())});\n"
        "    return values;\n  }\n"
    )


def _write_contract(function: ApiFunction | Whole) -> str:
    text = describe(function, join_camel, "   * ").replace("<", "&lt;").replace("@@", "@")
    return f"  /**\n{text}   */\n" if text else ""


def _write_native(function: ApiFunction) -> str:
    """Return the declaration of a native method."""
    ways = [(_GIVEN[a.kind].native, join_camel(a.name)) for a in function.given]
    taken = ["long m"] * function.acts + [f"{native} {name}" for native, name in ways if native]
    taken += ["long[] made", "byte[] why"] * function.makes
    taken += ["long[] gotten"] * bool(function.gotten)
    result = _ANSWERS[function.answer][2]
    return f"  static native {result} {join_camel(function.name)}({', '.join(taken)});\n"


def _write_glue(function: ApiFunction) -> str:
    """Return the function of C that a native method is."""
    taken, before, call, after = ["environment env", "object type"], [], [], []
    if function.acts:
        taken.append("int64_t m")
        call.append("(@name@ *)(intptr_t)m")
    elif function.makes:
        before += ["@name@ *made_ = NULL;", "char why_[@NAME@_MESSAGE_BYTES] = {0};"]
        call.append("&made_")
    for argument in function.arguments:
        if argument.returned:
            before.append(f"{_GOTTEN[argument.kind][1]}{argument.name}_ = 0;")
            call.append(f"&{argument.name}_")
            continue
        way = _GIVEN[argument.kind]
        taken += [f"{way.c} {argument.name}"] if way.c else []
        call.append(way.call.format(argument.name))
        if way.hold:
            kind = _HELD[way.hold]
            hold = f"hold(env, GET_{way.hold}, {argument.name})"
            before.append(f"{kind} *{argument.name}_ = {hold};")
            held = f"{argument.name}, {argument.name}_, {way.mode}"
            after.append(f"release(env, RELEASE_{way.hold}, {held});")
    if function.makes:
        taken += ["object made", "object why"]
        call.append("why_")
        after += [
            "int64_t address_ = (int64_t)(intptr_t)made_;",
            "fill(env, SET_LONGS, made, 1, &address_);",
            "fill(env, SET_BYTES, why, sizeof why_, why_);",
        ]
    if function.gotten:
        taken.append("object gotten")
        words = ", ".join(_GOTTEN[a.kind][2].format(a.name) for a in function.gotten)
        after.append(f"int64_t words_[] = {{{words}}};")
        after.append(f"fill(env, SET_LONGS, gotten, {len(function.gotten)}, words_);")
    *_, c, made = _ANSWERS[function.answer]
    called = made.format(f"@name@_{function.name}({', '.join(call)})")
    if c == "void":
        lines = [*before, f"{called};", *after]
    else:
        lines = [*before, f"{c} result_ = {called};", *after, "return result_;"]
    body = "".join(f"    {line}\n" for line in ["(void)env, (void)type;", *lines])
    head = f"METHOD({c}, {join_camel(function.name)})({', '.join(taken)})"
    return f"{head}\n{{\n{body}}}\n"


def _fill(api: Api) -> Mapping[str, str]:
    return {
        "kotlinPlugin": "",
        "kotlinOptions": "",
        "mangled": api.name.replace("_", "_1"),
        "makers": join_parts(map(_write_maker, api.makers)),
        "members": join_parts(
            [*(_write_member(f, api) for f in api.members), *map(_write_whole, api.wholes)]
        ),
        "natives": join_parts(map(_write_native, api.bound)),
        "glue": join_parts(map(_write_glue, api.bound)),
    }


def _place(name: str, platform: Platform) -> str:
    """Return the folder of the library: of Android's Gradle plugin, or of resources."""
    if platform.system == "android":
        return f"src/main/jniLibs/{_ABIS[platform.machine]}"
    return f"src/main/resources/edgegrad/{name}/{platform.system}-{platform.machine}"


def _list_templates(platform: Platform) -> Sequence[str]:
    return ("java", "android") if platform.system == "android" else ("java",)


JAVA = Language(
    "java",
    "Java",
    _fill,
    row="  {0}({1})",
    note="  /** {0} */\n",
    separator=",\n",
    words=_WORDS,
    sources=("jni.c",),
    place=_place,
    list_templates=_list_templates,
)
