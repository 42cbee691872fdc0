"""JavaScript and TypeScript: a class over the exports of a WebAssembly module, for Node and
browsers.

Arguments are written after the memory of the model, in the module's own, and read from there.
A package with modules for several engines takes the best that the engine accepts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from engine.tools.trimmed.api import ApiFunction, Argument, Whole, find_description
from engine.tools.trimmed.bindings.package import (
    Api,
    Language,
    Way,
    describe,
    join_camel,
    join_parts,
)
from engine.tools.trimmed.targets import RELAXED_SIMD, Platform

# `kind` of an argument -> how it is passed; `this.` methods are in the template.
_GIVEN = {
    "text": Way("string", "this.#text({name}, {0})"),
    "flag": Way("boolean", "{0} ? 1 : 0"),
    "phase": Way("Phase", "whole({name}, {0})"),
    "int": Way("number", "whole({name}, {0})"),
    "long": Way("number | bigint", "long({name}, {0})"),
    "float": Way("number", "number({name}, {0})"),
    "size": Way("number", "size({name}, {0})"),
    "bytes": Way("BufferSource", "...this.#bytes({name}, {0})"),
    "floats": Way("Float32Array", "...this.#copy({name}, {0}, Float32Array)"),
    "buffer": Way(
        "Uint8Array", "...{0}_",
        "const {0}_ = this.#copy({name}, {0}, Uint8Array);", "this.#fetch({0}_, {0});",
    ),
    "float_buffer": Way(
        "Float32Array", "...{0}_",
        "const {0}_ = this.#copy({name}, {0}, Float32Array);", "this.#fetch({0}_, {0});",
    ),
    "doubles": Way("Float64Array", "...this.#copy({name}, {0}, Float64Array)"),
    "double_buffer": Way(
        "Float64Array", "...{0}_",
        "const {0}_ = this.#copy({name}, {0}, Float64Array);", "this.#fetch({0}_, {0});",
    ),
    "ints": Way("Int32Array", "...this.#copy({name}, {0}, Int32Array)"),
    "inputs": Way("Values[] | null", "0", "this.#place(Phase.{phase}, {0});"),
    "outputs": Way("", "0"),
}  # fmt: skip
_GOTTEN = {
    "out_text": Way("string", "this.#string(this.#data.getUint32({0}, true))"),
    "out_int": Way("number", "this.#data.getInt32({0}, true)"),
    "out_long": Way("bigint", "this.#data.getBigInt64({0}, true)"),
    "out_float": Way("number", "this.#data.getFloat32({0}, true)"),
    "out_size": Way("number", "this.#data.getUint32({0}, true)"),
    "out_enum": Way("{enum}", "this.#data.getInt32({0}, true)"),
}
_ARRAYS = {"byte": "Uint8Array", "float": "Float32Array", "double": "Float64Array"}
_ANSWERS = {
    "nothing": Way("void", "{0};"),
    "code": Way("void", "this.#check({0});"),
    "flag": Way("boolean", "return {0} !== 0;"),
    "int": Way("number", "return {0};"),
    "long": Way("number", "return Number({0});"),
    "float": Way("number", "return {0};"),
    "size": Way("number", "return {0} >>> 0;"),
    "text": Way("string", "return this.#string({0});"),
    "tensor": Way("Tensor | null", "return this.#tensor({0});"),
    "memory": Way("TypedArray | null", "return this.#view({0}, {described});"),
}
# Modules of Node.js, which has them before packages.
_WORDS = """
    assert async_hooks buffer child_process cluster console constants crypto dgram
    diagnostics_channel dns domain events fs http http2 https inspector module net os path
    perf_hooks process punycode querystring readline repl stream string_decoder sys timers tls
    trace_events tty url util v8 vm wasi worker_threads zlib
"""
_WORKER = """\
    "./worker.js": "./worker.js",
"""
_DEVICE = """\
    "./federated": { "types": "./federated.d.ts", "default": "./federated.js" },
"""


def _list_given(function: ApiFunction) -> list[Argument]:
    return [a for a in function.given if a.kind != "outputs"]


def _write_member(function: ApiFunction, api: Api) -> str:
    """Return a method: what it passes on, and what it makes of the result."""
    given = _list_given(function)
    phase = api.find_phase(function) if function.takes_inputs else ""
    names = [join_camel(a.name) for a in given]
    before, passed, after = [], [], []
    for argument in function.arguments:
        name = join_camel(argument.name)
        if argument.returned:
            before.append(f"const {name}_ = this.#take(8);")
            passed.append(f"{name}_")
            continue
        way = _GIVEN[argument.kind]
        more = {"name": f'"{name}"', "phase": phase}
        passed.append(way.passed.format(name, **more))
        before += [way.before.format(name, **more)] if way.before else []
        after += [way.after.format(name, **more)] if way.after else []
    run = "call" if function.acts else "run"
    words = ", ".join([f'"{function.name}"', *passed])
    call = f"this.#{run}({words})"
    described = ""
    if function.answer == "memory":
        info = find_description(function, api.functions)
        described = f"this.{join_camel(info.name)}({', '.join(names)})"
    answer = _ANSWERS[function.answer].passed.format(call, described=described)
    if function.takes_inputs:
        after.append(f"return this.#outputs(Phase.{phase});")
    elif gotten := function.gotten:
        fields = ", ".join(
            f"{join_camel(a.name)}: {_GOTTEN[a.kind].passed.format(join_camel(a.name) + '_')}"
            for a in gotten
        )
        after.append(f"return {{ {fields} }};")
    lines = "".join(f"    {line}\n" for line in [*before, answer, *after])
    default = " = null" if function.takes_inputs else ""
    return f"  {join_camel(function.name)}({', '.join(names)}{default}) {{\n{lines}  }}\n"


def _declare_member(function: ApiFunction) -> str:
    """Return the declaration of a method, with its contract."""
    given = _list_given(function)
    taken = ", ".join(
        f"{join_camel(a.name)}{'?' * (a.kind == 'inputs')}: {_GIVEN[a.kind].type}" for a in given
    )
    result = _ANSWERS[function.answer].type
    if function.takes_inputs:
        result = "TypedArray[]"
    elif gotten := function.gotten:
        result = "; ".join(
            f"{join_camel(a.name)}: {_GOTTEN[a.kind].type.format(enum=a.enum)}" for a in gotten
        )
        result = f"{{ {result} }}"
    contract = describe(function, join_camel, "   * ")
    head = f"  /**\n{contract}   */\n" if contract else ""
    return f"{head}  {join_camel(function.name)}({taken}): {result};\n"


def _write_whole(whole: Whole) -> str:
    """Return a method that returns all that another one writes; what is yes or no is yes."""
    taken = [join_camel(a.name) + " = true" * (a.kind == "flag") for a in whole.given]
    given = ", ".join(join_camel(a.name) for a in whole.given)
    passed = {a.name: join_camel(a.name) for a in whole.fill.given} | {whole.buffer.name: "values"}
    size = f"this.{join_camel(whole.size.name)}({given})"
    lines = [
        f"const values = new {_ARRAYS[whole.element]}({size});",
        f"this.{join_camel(whole.fill.name)}({', '.join(passed.values())});",
        "return values;",
    ]
    body = "".join(f"    {line}\n" for line in lines)
    return f"  {join_camel(whole.name)}({', '.join(taken)}) {{\n{body}  }}\n"


def _declare_whole(whole: Whole) -> str:
    taken = ", ".join(
        f"{join_camel(a.name)}{'?' * (a.kind == 'flag')}: {_GIVEN[a.kind].type}"
        for a in whole.given
    )
    head = f"  /**\n{describe(whole, join_camel, '   * ')}   */\n"
    return f"{head}  {join_camel(whole.name)}({taken}): {_ARRAYS[whole.element]};\n"


def _needs_relaxed(platform: Platform) -> bool:
    """Return whether the module of a platform has instructions of relaxed SIMD."""
    return RELAXED_SIMD in platform.target.features.split(",")


def _place(_: str, platform: Platform) -> str:
    """Return the folder of a module, by what it needs besides SIMD."""
    words = ["relaxed"] * _needs_relaxed(platform) + ["threads"] * platform.shares_memory
    return "-".join(words)


def _list_modules(api: Api) -> Mapping[str, Sequence[str]]:
    """Return the modules of a package, the best first, and the features that each needs."""
    best_first = sorted(
        api.platforms, key=lambda p: (p.shares_memory, _needs_relaxed(p)), reverse=True
    )
    return {
        "/".join(filter(None, [_place("", platform), f"{api.name}.wasm"])): (
            ["relaxed SIMD" if _needs_relaxed(platform) else "SIMD"]
            + ["threads"] * platform.shares_memory
        )
        for platform in best_first
    }


def _fill(api: Api) -> Mapping[str, str]:
    enums, types = [], []
    for enumeration in api.enumerations:
        name = enumeration.title
        rows = ", ".join(f"{member}: {value}" for member, value, _ in enumeration.members)
        enums.append(f"export const {name} = Object.freeze({{ {rows} }});\n")
        fields = "".join(
            f"  /** {comment} */\n" * bool(comment) + f"  {member} = {value},\n"
            for member, value, comment in enumeration.members
        )
        head = f"/** {enumeration.comment} */\nexport enum {name}"
        types.append(f"{head} {{\n{fields}}}\n")
    device, modules = api.takes_requests, _list_modules(api)
    return {
        "modules": "\n".join(
            f'  [{json.dumps(needs)}, () => new URL("./{path}", import.meta.url)],'
            for path, needs in modules.items()
        ),
        "moduleExports": ",\n".join(f'    "./{path}": "./{path}"' for path in modules),
        "moduleFiles": ", ".join(f'"{path}"' for path in modules),
        "workerExport": _WORKER * api.shares_memory,
        "workerFile": ', "worker.js"' * api.shares_memory,
        "federatedExport": _DEVICE if device else "",
        "federatedFiles": ', "federated.js", "federated.d.ts"' if device else "",
        "enums": "".join(enums).rstrip(),
        "enumTypes": "\n".join(types).rstrip(),
        "members": join_parts(
            [*(_write_member(f, api) for f in api.members), *map(_write_whole, api.wholes)]
        ),
        "memberTypes": join_parts(
            [*map(_declare_member, api.members), *map(_declare_whole, api.wholes)]
        ),
    }


JAVASCRIPT = Language(
    "js", "JavaScript and TypeScript", _fill, systems=("wasi",), words=_WORDS, place=_place
)
