"""Objective-C: a class over functions of C, beside Swift's in the same package.

Values are `NSData`, errors `NSError`; parameters are named as in Swift, the first without a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    Way,
    describe,
    indent,
    join_camel,
    join_parts,
)

# `kind` of an argument -> how it is passed; `before` is true if the value must be refused.
_GIVEN = {
    "text": Way("NSString *", "{0}.UTF8String", '!isText(@"{0}", {0}, error)'),
    "flag": Way("BOOL", "{0} ? 1 : 0"),
    "phase": Way("@Name@Phase", "clamp({0})"),
    "int": Way("NSInteger", "clamp({0})"),
    "long": Way("int64_t"),
    "float": Way("float"),
    "size": Way("NSUInteger"),
    "bytes": Way("NSData *", "addressOf({0}), {0}.length"),
    "buffer": Way("NSMutableData *", "roomOf({0}), {0}.length"),
    "floats": Way(
        "NSData *", "addressOf({0}), {0}.length / 4", '!areNumbers(@"{0}", {0}, 4, error)'
    ),
    "float_buffer": Way(
        "NSMutableData *", "roomOf({0}), {0}.length / 4",
        '!areNumbers(@"{0}", {0}, 4, error)',
    ),
    "doubles": Way(
        "NSData *", "addressOf({0}), {0}.length / 8", '!areNumbers(@"{0}", {0}, 8, error)'
    ),
    "double_buffer": Way(
        "NSMutableData *", "roomOf({0}), {0}.length / 8",
        '!areNumbers(@"{0}", {0}, 8, error)',
    ),
    "ints": Way("NSData *", "addressOf({0}), {0}.length / 4", '!areNumbers(@"{0}", {0}, 4, error)'),
    "inputs": Way("nullable NSArray<NSData *> *", "NULL"),
    "outputs": Way("", "NULL"),
}  # fmt: skip
# The caller's variable, C's, and how one becomes the other.
_GOTTEN = {
    "out_text": ("NSString *_Nullable *_Nullable", "const char *{0}_ = NULL", "textOf({0}_)"),
    "out_int": ("nullable NSInteger *", "int {0}_ = 0", "{0}_"),
    "out_long": ("nullable int64_t *", "int64_t {0}_ = 0", "{0}_"),
    "out_float": ("nullable float *", "float {0}_ = 0", "{0}_"),
    "out_size": ("nullable NSUInteger *", "size_t {0}_ = 0", "{0}_"),
    "out_enum": ("nullable @Name@{enum} *", "int {0}_ = 0", "(@Name@{enum}){0}_"),
}
_ANSWERS = {
    "nothing": Way("void", "{0}"),
    "code": Way("BOOL", "return [self check:{0} error:error]"),
    "flag": Way("BOOL", "return {0} != 0"),
    "int": Way("NSInteger", "return {0}"),
    "long": Way("int64_t", "return {0}"),
    "float": Way("float", "return {0}"),
    "size": Way("NSUInteger", "return {0}"),
    "text": Way("NSString *", "return textOf({0})"),
    "tensor": Way("nullable @Name@Tensor *", "return tensorOf({0})"),
    "memory": Way("nullable NSData *", "return copyOf({0}, {info})"),
}
_REFUSED = {"code": "NO", "int": "-1", "size": "0"}  # what a call with a refused value returns


def _name_member(name: str) -> str:
    """Return `BadInput` for `BAD_INPUT`."""
    return join_pascal(name.lower())


def _is_checked(function: ApiFunction) -> bool:
    """Return whether a call can be refused, and so takes the address of an error."""
    return function.fails or any(_GIVEN[a.kind].before for a in function.given)


def _write_head(function: ApiFunction, result: str) -> str:
    """Return the declaration of a method without its end."""
    nullable = "nullable " * function.makes
    taken = [
        (
            join_camel(a.name),
            _GOTTEN[a.kind][0].format(enum=a.enum)
            if a.returned
            else nullable + _GIVEN[a.kind].type,
        )
        for a in function.arguments
        if a.kind != "outputs"
    ]
    if _is_checked(function):
        taken.append(("error", "NSError **"))
    words = [
        f"{join_camel(function.name) if i == 0 else name}:({kind}){name}"
        for i, (name, kind) in enumerate(taken)
    ]
    sign = "-" if function.acts else "+"
    return f"{sign} ({result}){' '.join(words) or join_camel(function.name)}"


def _list_passed(arguments: Iterable[Argument]) -> list[str]:
    names = ((a, join_camel(a.name)) for a in arguments)
    return [f"&{name}_" if a.returned else _GIVEN[a.kind].passed.format(name) for a, name in names]


def _list_refusals(function: ApiFunction, answer: str) -> list[str]:
    """Return the statements that refuse values before the call."""
    tests = [_GIVEN[a.kind].before.format(join_camel(a.name)) for a in function.given]
    return [f"if ({test})\n    return {answer};" for test in tests if test]


def _find_result(function: ApiFunction) -> str:
    return (
        "nullable NSArray<NSData *> *" if function.takes_inputs else _ANSWERS[function.answer].type
    )


def _write_method(head: str, lines: Iterable[str], *, locked: bool) -> str:
    body = indent("\n".join(lines), 8 if locked else 4)
    if locked:
        body = f"    @synchronized(self) {{\n{body}\n    }}"
    return f"{head}\n{{\n{body}\n}}\n"


def _write_member(function: ApiFunction, api: Api) -> str:
    """Return the method of a function; and the one that writes the memory that it lends."""
    passed = ", ".join(["_m"] * function.acts + _list_passed(function.arguments))
    call = f"@name@_{function.name}({passed})"
    lines = _list_refusals(function, _REFUSED.get(function.answer, "0"))
    info, rest = "", ""
    if function.answer == "memory":
        described = find_description(function, api.functions)
        info = f"@name@_{described.name}({passed})"
        rest = _write_setter(function, call, info) if function.lends else ""
    if function.takes_inputs:
        phase = f"@Name@Phase{api.find_phase(function).capitalize()}"
        lines += [f"if (![self place:inputs phase:{phase} error:error])\n    return nil;"]
        lines += [f"if (![self check:{call} error:error])\n    return nil;"]
        lines.append(f"return [self outputs:{phase}];")
    elif function.gotten:
        names = [
            (join_camel(a.name), *(each.replace("{enum}", a.enum) for each in _GOTTEN[a.kind][1:]))
            for a in function.gotten
        ]
        lines += [f"{variable.format(name)};" for name, variable, _ in names]
        lines.append(f"if (![self check:{call} error:error])\n    return NO;")
        lines += [f"if ({n})\n    *{n} = {back.format(n)};" for n, _, back in names]
        lines.append("return YES;")
    else:
        lines.append(_ANSWERS[function.answer].passed.format(call, info=info) + ";")
    head = _write_head(function, _find_result(function))
    return _write_method(head, lines, locked=function.acts) + rest


def _write_setter_head(function: ApiFunction) -> str:
    """Return the declaration of the method that writes memory whose values another one returns."""
    inner = [(join_camel(a.name), _GIVEN[a.kind].type) for a in function.given]
    words = "".join(f"{name}:({kind}){name} " for name, kind in inner[1:])
    name, kind = inner[0]
    return (
        f"- (BOOL)set{join_pascal(function.name)}:({kind}){name} {words}"
        "values:(NSData *)values error:(NSError **)error"
    )


def _write_setter(function: ApiFunction, call: str, info: str) -> str:
    line = f'return writeValues(values, {call}, {info}, @"{join_camel(function.name)}", error);'
    return "\n" + _write_method(_write_setter_head(function), [line], locked=True)


_BYTES = {"byte": 1, "float": 4, "double": 8}  # of an element


def _write_whole_head(whole: Whole) -> str:
    taken = [(join_camel(a.name), _GIVEN[a.kind].type) for a in whole.given]
    taken.append(("error", "NSError **"))
    words = [
        f"{join_camel(whole.name) if i == 0 else name}:({kind}){name}"
        for i, (name, kind) in enumerate(taken)
    ]
    return f"- (nullable NSData *){' '.join(words)}"


def _declare_whole(whole: Whole) -> str:
    return f"{describe(whole, join_camel, '/// ', 'nil')}{_write_whole_head(whole)};\n"


def _write_whole(whole: Whole) -> str:
    """Return the method that returns all that a function writes."""
    tests = [_GIVEN[a.kind].before.format(join_camel(a.name)) for a in whole.given]
    counted = ", ".join(["_m", *_list_passed(whole.given)])
    width = _BYTES[whole.element]
    passed = {a.name: _GIVEN[a.kind].passed.format(join_camel(a.name)) for a in whole.fill.given}
    passed[whole.buffer.name] = "roomOf(values), size"
    length = f"{width} * size" if width > 1 else "size"
    lines = [
        *[f"if ({test})\n    return nil;" for test in tests if test],
        f"size_t size = @name@_{whole.size.name}({counted});",
        f"NSMutableData *values = [NSMutableData dataWithLength:{length}];",
        f"int code = @name@_{whole.fill.name}({', '.join(['_m', *passed.values()])});",
        "return [self check:code error:error] ? values : nil;",
    ]
    return _write_method(_write_whole_head(whole), lines, locked=True)


def _write_maker(function: ApiFunction) -> str:
    """Return the method that makes a model."""
    lines = [f"if ({join_camel(a.name)} && {_GIVEN[a.kind].before.format(join_camel(a.name))})\n"
             "    return nil;" for a in function.given if _GIVEN[a.kind].before]  # fmt: skip
    passed = ", ".join(["&made", *_list_passed(function.arguments), "why"])
    lines += [
        "@name@ *made = NULL;",
        "char why[@NAME@_MESSAGE_BYTES] = {0};",
        f"int code = @name@_{function.name}({passed});",
        "return makeModel(code, made, why, error);",
    ]
    return _write_method(_write_head(function, "nullable instancetype"), lines, locked=False)


def _declare(function: ApiFunction) -> str:
    """Return the declarations of a function, with its contract."""
    contract = describe(
        function, join_camel, "/// ", "nil", lambda name: f"@Name@ErrorCode{_name_member(name)}"
    )
    result = "nullable instancetype" if function.makes else _find_result(function)
    rows = f"{contract}{_write_head(function, result)};\n"
    if function.lends:
        name = join_camel(function.name)
        rows += f"\n/// Write the values that `{name}` returns.\n{_write_setter_head(function)};\n"
    return rows


def _declare_enumeration(enumeration: Enumeration) -> str:
    title = f"@Name@{enumeration.title}"
    rows = "".join(
        f"    /// {comment}\n" * bool(comment) + f"    {title}{_name_member(member)} = {value},\n"
        for member, value, comment in enumeration.members
    )
    return f"/// {enumeration.comment}\ntypedef NS_ENUM(NSInteger, {title}) {{\n{rows}}};\n"


def fill(api: Api) -> Mapping[str, str]:
    """Return the text for each mark of the templates."""
    return {
        "objcEnums": join_parts(map(_declare_enumeration, api.enumerations)),
        "objcDeclarations": join_parts(
            [*map(_declare, (*api.makers, *api.members)), *map(_declare_whole, api.wholes)]
        ),
        "objcMakers": join_parts(map(_write_maker, api.makers)),
        "objcMembers": join_parts(
            [*(_write_member(f, api) for f in api.members), *map(_write_whole, api.wholes)]
        ),
    }
