"""Rust: a type over functions of C, whose memory is borrowed; `no_std`, with `alloc`."""

from __future__ import annotations

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
    indent,
    join_parts,
)
from engine.tools.trimmed.targets import Platform

_GIVEN = {  # type, what is passed to C, and C's types
    "text": ("&str", "{0}_.as_ptr()", "*const u8"),
    "flag": ("bool", "{0} as i32", "i32"),
    "phase": ("Phase", "{0} as i32", "i32"),
    "int": ("i32", "{0}", "i32"),
    "long": ("i64", "{0}", "i64"),
    "float": ("f32", "{0}", "f32"),
    "size": ("usize", "{0}", "usize"),
    "bytes": ("&[u8]", "{0}.as_ptr(), {0}.len()", "*const u8, usize"),
    "buffer": ("&mut [u8]", "{0}.as_mut_ptr(), {0}.len()", "*mut u8, usize"),
    "floats": ("&[f32]", "{0}.as_ptr(), {0}.len()", "*const f32, usize"),
    "float_buffer": ("&mut [f32]", "{0}.as_mut_ptr(), {0}.len()", "*mut f32, usize"),
    "doubles": ("&[f64]", "{0}.as_ptr(), {0}.len()", "*const f64, usize"),
    "double_buffer": ("&mut [f64]", "{0}.as_mut_ptr(), {0}.len()", "*mut f64, usize"),
    "ints": ("&[i32]", "{0}.as_ptr(), {0}.len()", "*const i32, usize"),
    "inputs": ("&[Values<'_>]", "core::ptr::null()", "*const *const u8"),
    "outputs": ("", "core::ptr::null()", "*const *mut u8"),
    "out_text": ("String", "&mut {0}", "*mut *const u8"),
    "out_int": ("i32", "&mut {0}", "*mut i32"),
    "out_long": ("i64", "&mut {0}", "*mut i64"),
    "out_float": ("f32", "&mut {0}", "*mut f32"),
    "out_size": ("usize", "&mut {0}", "*mut usize"),
    "out_enum": ("{enum}", "&mut {0}", "*mut i32"),
}
_FIRST = {"out_text": "ptr::null()", "out_float": "0.0"}  # values before the call; others are 0
_FIELDS = {  # of records; others are as they come
    "out_text": "{0}: read_text({0}).to_string()",
    "out_enum": '{0}: {enum}::from_number({0}).ok_or_else(|| refuse("{0}".to_string()))?',
}
_ANSWERS = {  # type, what is made of the call, and C's type
    "nothing": ("()", "{0}", "()"),
    "code": ("()", "self.check({0})", "i32"),
    "flag": ("bool", "0 != {0}", "i32"),
    "int": ("i32", "{0}", "i32"),
    "long": ("i64", "{0}", "i64"),
    "float": ("f32", "{0}", "f32"),
    "size": ("usize", "{0}", "usize"),
    "text": ("&str", "read_text({0})", "*const u8"),
    "tensor": ("Option<Tensor<'_>>", "read_tensor({0})", "*const Facts"),
    "memory": ("", "", "*mut u8"),
}


# Keywords of any edition, and crates of the compiler.
_WORDS = """
    abstract alloc as async await become box break const continue core crate do dyn else enum extern
    false final fn for gen if impl in let loop macro match mod move mut override priv proc_macro pub
    ref return self static std struct super test trait true try type typeof unsafe unsized use
    virtual where while yield
"""


def _list_declared(given: tuple[Argument, ...]) -> list[str]:
    ways = [(_GIVEN[a.kind][0], a.name) for a in given]
    return [f"{name}: {kind}" for kind, name in ways if kind]


def _list_texts(function: ApiFunction) -> list[str]:
    """Return the statements that make texts of C."""
    names = [a.name for a in function.given if a.kind == "text"]
    return [f'let {name}_ = terminate("{name}", {name})?;' for name in names]


def _write_contract(function: ApiFunction | Whole) -> str:
    return describe(
        function, lambda name: f"`{name}`", "/// ", "None", lambda name: f"`{join_pascal(name)}`"
    )


def _write_call(function: ApiFunction, first: list[str], last: list[str]) -> str:
    passed = [_GIVEN[a.kind][1].format(a.name) for a in function.arguments]
    words = ", ".join([*first, *passed, *last])
    return f"unsafe {{ native::@name@_{function.name}({words}) }}"


def _write_method(function: ApiFunction | Whole, head: str, lines: list[str]) -> str:
    body = indent("\n".join(lines), 4)
    return indent(f"{_write_contract(function)}pub fn {head} {{\n{body}\n}}\n", 4)


def _write_member(function: ApiFunction, api: Api) -> str:
    """Return the method, with its contract."""
    call = _write_call(function, ["self.m"] * function.acts, [])
    result, made, _ = _ANSWERS[function.answer]
    lines = _list_texts(function)
    fails = function.fails or bool(lines)
    receiver = ["&mut self" if function.changes else "&self"] * function.acts
    declared = ", ".join([*receiver, *_list_declared(function.given)])
    if function.answer == "memory":
        names = ", ".join(a.name for a in function.given)
        info = f"self.{find_description(function, api.functions).name}({names})"
        fixed = function.result.startswith("const")
        result = "Option<&[u8]>" if fixed else "Option<&mut [u8]>"
        take = "from_raw_parts" if fixed else "from_raw_parts_mut"
        lines += [f"let bytes = {info}?.bytes;", f"let address = {call};"]
        value = f"(!address.is_null()).then(|| unsafe {{ slice::{take}(address, bytes) }})"
    else:
        value = made.format(call)
    if function.takes_inputs:
        lines.append(f"self.place(Phase::{api.find_phase(function).capitalize()}, inputs)?;")
    elif gotten := function.gotten:
        result = join_pascal(function.record)
        lines += [f"let mut {a.name} = {_FIRST.get(a.kind, '0')};" for a in gotten]
        fields = ", ".join(_FIELDS.get(a.kind, "{0}").format(a.name, enum=a.enum) for a in gotten)
        lines.append(f"{value}?;")
        value = f"Ok({result} {{ {fields} }})"
    elif fails and not function.fails:
        value = f"Ok({value})"
    static = "'static " if result == "&str" and not function.acts else ""
    kind = result.replace("&", f"&{static}", 1) if static else result
    kind = f"Result<{kind}, Error>" if fails else kind
    arrow = "" if kind == "()" else f" -> {kind}"
    return _write_method(function, f"{function.name}({declared}){arrow}", [*lines, value])


def _write_whole(whole: Whole, api: Api) -> str:
    """Return the method that returns all that another one writes."""
    element, zero = {"byte": ("u8", "0"), "float": ("f32", "0.0"), "double": ("f64", "0.0")}[
        whole.element
    ]
    given = ", ".join(a.name for a in whole.given)
    passed = {a.name: a.name for a in whole.fill.given} | {whole.buffer.name: "&mut values"}
    fails = "?" * any(a.kind == "text" for a in whole.given)
    lines = [
        f"let mut values = vec![{zero}; self.{whole.size.name}({given}){fails}];",
        f"self.{whole.fill.name}({', '.join(passed.values())})?;",
        "Ok(values)",
    ]
    declared = ", ".join(["&mut self", *_list_declared(whole.given)])
    head = f"{api.name_whole(whole)}({declared}) -> Result<Vec<{element}>, Error>"
    return _write_method(whole, head, lines)


def _write_record(function: ApiFunction) -> str:
    """Return the type of the results of a method that has several."""
    fields = "".join(
        f"    /// Its {a.name}.\n    pub {a.name}: {_GIVEN[a.kind][0].format(enum=a.enum)},\n"
        for a in function.gotten
    )
    return (
        f"/// The result of `{function.name}`.\n#[derive(Debug, Clone, PartialEq)]\n"
        f"pub struct {join_pascal(function.record)} {{\n{fields}}}\n"
    )


def _write_maker(function: ApiFunction) -> str:
    """Return the function that makes a model."""
    call = _write_call(function, ["&mut made"], ["why.as_mut_ptr()"])
    lines = [
        *_list_texts(function),
        "let mut made = ptr::null_mut();",
        "let mut why = [0; @MESSAGE_BYTES@];",
        f"let code = {call};",
        "Model::make(code, made, &why)",
    ]
    head = f"{function.name}({', '.join(_list_declared(function.given))}) -> Result<Model, Error>"
    return _write_method(function, head, lines)


def _write_native(function: ApiFunction) -> str:
    """Return the declaration of the function of C."""
    taken = ["m: *mut Opaque"] * function.acts + ["out: *mut *mut Opaque"] * function.makes
    for argument in function.arguments:
        first, *size = _GIVEN[argument.kind][2].split(", ")
        taken += [f"{argument.name}: {first}"] + [f"{argument.name}_size: {each}" for each in size]
    taken += ["message: *mut u8"] * function.tells
    result = _ANSWERS[function.answer][2]
    arrow = "" if result == "()" else f" -> {result}"
    return f"        pub(super) fn @name@_{function.name}({', '.join(taken)}){arrow};\n"


def _write_enumeration(enumeration: Enumeration) -> str:
    """Return an enumeration, which can be found by its numbers."""
    rows = "".join(
        f"    /// {sentence}\n" * bool(sentence) + f"    {join_pascal(name)} = {value},\n"
        for name, value, sentence in enumeration.members
    )
    arms = "".join(
        f"            {value} => Some(Self::{join_pascal(name)}),\n"
        for name, value, _ in enumeration.members
    )
    return (
        f"/// {enumeration.comment}\n#[repr(i32)]\n#[derive(Debug, Clone, Copy, PartialEq, Eq)]\n"
        f"pub enum {enumeration.title} {{\n{rows}}}\n\nimpl {enumeration.title} {{\n"
        "    /// Return the constant with a number of C.\n"
        "    pub fn from_number(value: i32) -> Option<Self> {\n"
        f"        match value {{\n{arms}            _ => None,\n        }}\n    }}\n}}\n"
    )


def _fill(api: Api) -> Mapping[str, str]:
    records = [_write_record(f) for f in api.bound if f.gotten]
    return {
        "enums": join_parts([*map(_write_enumeration, api.enumerations), *records]),
        "makers": join_parts(map(_write_maker, api.makers)),
        "members": join_parts(
            [
                *(_write_member(f, api) for f in api.members),
                *(_write_whole(whole, api) for whole in api.wholes),
            ]
        ),
        "natives": "".join(map(_write_native, api.bound)).rstrip(),
    }


def _place(_: str, platform: Platform) -> str:
    """Return the folder of the library, by cargo's names of systems and processors."""
    return f"native/{platform.system}-{platform.machine}"


RUST = Language("rust", "Rust", _fill, words=_WORDS, place=_place)
