"""Packages of bindings: the templates of a language, filled with what its rules make of the API."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import InternalError
from engine.tools.trimmed.api import ApiFunction, Enumeration, Whole, join_pascal, list_wholes
from engine.tools.trimmed.link import Kind
from engine.tools.trimmed.targets import TARGETS, Platform, resolve

TEMPLATES = Path(__file__).parent / "templates"
_CONDITION = re.compile(
    r"[ \t]*(?:/\*|//[/!]?|#|<!--)?[ \t]*@(?:if ([\w! ]+)|end)@[ \t]*(?:\*/|-->)?[ \t]*\n?"
)


@dataclass(frozen=True, slots=True)
class Api:
    """The API of one build, from which its bindings are written.

    name: the name of the build.
    version: the version of the package.
    functions: those that the library has, in the order of the header.
    enumerations: the enumerations of the header.
    constants: the numbers of the header, by their names without the build's.
    platforms: the build's, and then the others that the package has a library for.
    """

    name: str
    version: str
    functions: Sequence[ApiFunction]
    enumerations: Sequence[Enumeration]
    constants: Mapping[str, int]
    platforms: Sequence[Platform]

    @property
    def names(self) -> frozenset[str]:
        """The names of the functions, which conditions of templates name."""
        return frozenset(f.name for f in self.functions)

    @property
    def marks(self) -> Mapping[str, str]:
        """Text for marks that says what the build is for, and what its example does.

        arguments: of the example's command.  start: a sentence about the checkpoint, if there is
        one.
        """
        steps = "twenty steps on random numbers"
        uses = {
            "train_step": ("Training of one model", f"trains {steps}"),
            "infer": ("Inference with one model", "runs inference on random numbers"),
            "append": ("Text generation with one model", "continues a text"),
        }
        there = {name: use for name, use in uses.items() if name in self.names}
        if "train_step" in there:
            there.pop("infer", None)
        done = " and ".join(does for _, does in there.values())
        reads = self.constants.get("PARAMETERS", 0) > 0
        saves = " trained" * ("train_step" in there)
        start = " The initial values are in `checkpoint`, next to this folder."
        return {
            "purpose": next(iter(there.values()))[0],
            "does": done,
            "do": re.sub(r"\b(train|run|continue)s\b", r"\1", done),
            "arguments": f" ../checkpoint{saves}" * reads,
            "start": start * reads,
        }

    @property
    def takes_requests(self) -> bool:
        """True if the library has the functions of federations."""
        return "take_request" in self.names

    @property
    def shares_memory(self) -> bool:
        """True if a library has threads that share the memory of its modules."""
        return any(platform.shares_memory for platform in self.platforms)

    @property
    def bound(self) -> tuple[ApiFunction, ...]:
        """The functions that other languages call: all but those that take the caller's memory."""
        return tuple(f for f in self.functions if not f.places)

    @property
    def makers(self) -> tuple[ApiFunction, ...]:
        """The functions that make a model, of those that other languages call."""
        return tuple(f for f in self.bound if f.makes)

    @property
    def members(self) -> tuple[ApiFunction, ...]:
        """The functions that a class of a model has: all but those that begin and end its life."""
        return tuple(f for f in self.functions if not f.makes and f.name != "destroy")

    @property
    def wholes(self) -> list[Whole]:
        """The values that a class of a model returns whole, as functions write them to buffers."""
        return list_wholes(self.members)

    def name_whole(self, whole: Whole) -> str:
        """Return the name of such a value where a function of its name cannot be beside it."""
        return whole.name + "_bytes" * (whole.name in self.names)

    def find_phase(self, function: ApiFunction) -> str:
        """Return the name of the phase whose inputs a step takes."""
        phases = next(e for e in self.enumerations if e.name == "phase")
        word = function.name.split("_")[0].upper()
        return next(name for name, _, _ in phases.members if name == word)


@dataclass(frozen=True, slots=True)
class Way:
    """The way of values of one kind between a language and C.

    type: in the language.
    passed: what is passed to C, or made of the result; `{0}` is the name, or the call.
    before, after: statements around the call.
    """

    type: str
    passed: str = "{0}"
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Language:
    """A language that builds have bindings for.

    name: its name in the option `--bindings`, and of the folder in the build.
    title: its name.
    fill: makes the text for each mark of the templates.
    systems: those that it is for; none: all that load shared libraries of C.
    kind: the kind of the library.
    module: the name of a module of C, with marks, whose header and map lie beside each library.
    has_header: whether the header alone lies there.
    row, separator: how a member of an enumeration is written, of name and value, where each has a
        file, whose template is called `@Enumeration@`.
    note: how a sentence about a member is written above it.
    name_member: makes the name of a member of an enumeration, of C's without the prefix.
    words: that no build with its package can be named: keywords, and modules of the language.
    sources: the templates of C that are compiled into the library.
    place: makes the library's folder in the package, of the build's name and the platform.
    list_templates: lists the templates of a package for a platform: folders of `templates`, and
        files in them, each before those that may replace it; None for the folder of the name.
        The folder `java-federated` belongs to `java` if the library has functions of federations,
        and `js-threads` to `js` if one has threads that share memory.
    """

    name: str
    title: str
    fill: Callable[[Api], Mapping[str, str]]
    systems: Sequence[str] = ()
    kind: Kind = "shared"
    module: str = ""
    has_header: bool = False
    row: str = ""
    separator: str = ""
    note: str = ""
    name_member: Callable[[str], str] = str
    words: str = ""
    sources: Sequence[str] = ()
    place: Callable[[str, Platform], str] = lambda name, platform: ""
    list_templates: Callable[[Platform], Sequence[str]] | None = None

    @property
    def freestanding(self) -> bool:
        """True if its library uses no C library: a WebAssembly module without imports."""
        return self.systems == ("wasi",)

    def fits(self, platform: Platform) -> bool:
        """Return whether it can load a library of a platform."""
        if self.systems:
            return platform.system in self.systems
        return not (platform.is_wasm or platform.is_bare)

    def list_targets(self) -> list[str]:
        """Return the names of the targets that it can load libraries of."""
        return [name for name in TARGETS if self.fits(resolve(name))]


def _find_templates(language: Language, api: Api) -> dict[str, Path]:
    """Return the templates of a package, by their names in it."""
    make = language.list_templates
    listed = list(make(api.platforms[0]) if make else (language.name,))
    folders = list(dict.fromkeys(word.split("/")[0] for word in listed))
    listed += [f"{folder}-federated" for folder in folders if api.takes_requests]
    listed += [f"{folder}-threads" for folder in folders if api.shares_memory]
    files = {}
    for word in listed:
        start = TEMPLATES / word.split("/")[0]
        inside = TEMPLATES / word
        for file in [inside] if inside.is_file() else inside.rglob("*"):
            if file.is_file():
                files[file.relative_to(start).as_posix()] = file
    return files


def write_package(language: Language, api: Api) -> Iterator[tuple[Path, str]]:
    """Yield the files of the package of a language: paths in the build's folder, and texts.

    A template without a line that is left makes no file.
    """
    own = {"name": api.name, "NAME": api.name.upper(), "Name": join_pascal(api.name)}
    own |= {"version": api.version, **api.marks}
    marks = own | {key: str(value) for key, value in api.constants.items()} | {**language.fill(api)}
    for inner, file in sorted(_find_templates(language, api).items()):
        text = select_lines(file.read_text("utf-8"), api.names)
        if file.suffix != ".plist" and not text:
            continue
        for each in api.enumerations if "@Enumeration@" in inner else (None,):
            if each is not None:
                rows = [
                    language.note.format(sentence) * bool(sentence)
                    + language.row.format(language.name_member(member), value)
                    for member, value, sentence in each.members
                ]
                more = {"Enumeration": each.title, "enumerationRows": language.separator.join(rows)}
                more["enumerationSentence"] = each.comment
                own, marks = own | more, marks | more
            yield Path(language.name, replace_marks(inner, own)), replace_marks(text, marks)


def write_headers(language: Language, api: Api, header: str) -> Iterator[tuple[Path, str]]:
    """Yield the files beside a library of a language that reads C: a header, which differs by
    platform, and for modules of C the map that makes it one.
    """
    if language.module:
        title = replace_marks(language.module, {"Name": join_pascal(api.name)})
        text = f'module {title} {{\n  header "{api.name}.h"\n  export *\n}}\n'
        yield Path("Headers", f"{api.name}.h"), header
        yield Path("Headers", "module.modulemap"), text
    elif language.has_header:
        yield Path(f"{api.name}.h"), header


def select_lines(text: str, functions: Collection[str]) -> str:
    """Return a text without the lines that are for other functions of C than a library has.

    Lines between `@if train_step@` and `@end@` stay if it has that function; both may stand in a
    comment of their own.  `@if infer !train_step@` asks for one without the other, and
    `@if train_step or infer@` for either.  Conditions can be nested.

    Raises:
        InternalError: a condition has no end, or an end no condition.
    """
    lines, holds = list[str](), [True]
    for line in text.splitlines(keepends=True):
        mark = _CONDITION.fullmatch(line)
        if mark is None:
            lines += [line] * holds[-1]
        elif mark[1] is not None:
            any_of = (words.split() for words in mark[1].split(" or "))
            fits = any(all(_is_so(word, functions) for word in words) for words in any_of)
            holds.append(holds[-1] and fits)
        else:
            holds.pop()
            if not holds:
                raise InternalError("a template has an end of no condition")
    if len(holds) > 1:
        raise InternalError("a template has a condition without an end")
    return "".join(lines)


def _is_so(word: str, functions: Collection[str]) -> bool:
    return (word.removeprefix("!") in functions) != word.startswith("!")


def replace_marks(text: str, marks: Mapping[str, str]) -> str:
    """Return a text with its marks, as `@name@` or in a comment `/*@name@*/`, replaced.

    Text for a mark may have marks of its own.
    """
    known = "|".join(map(re.escape, marks))
    pattern = re.compile(rf"/\*@({known})@\*/|@({known})@")
    while pattern.search(text):
        text = pattern.sub(lambda m: marks[m[1] or m[2]], text)
    return text


def join_parts(parts: Iterable[str]) -> str:
    """Return texts that end with a line each as the text for one mark, with empty lines between."""
    return "\n".join(parts).rstrip()


def join_camel(name: str) -> str:
    """Return `trainStep` for `train_step`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def list_passed(function: ApiFunction, passed: Mapping[str, str]) -> list[str]:
    """Return the arguments of a call of C from a language where & gives a result's address.

    passed: by kind of argument, how a given one is passed, with `{0}` for its name.
    """
    return [
        f"&{join_camel(a.name)}" if a.returned else passed[a.kind].format(join_camel(a.name))
        for a in function.arguments
    ]


def describe(
    function: ApiFunction | Whole,
    rename: Callable[[str], str],
    prefix: str,
    null: str = "null",
    name_member: Callable[[str], str] = str,
    subject: str = "",
) -> str:
    """Return the contract of a function as lines with a prefix.

    rename: makes the names of functions.
    null: the word of the language for NULL.
    name_member: makes the names of members of enumerations, of C's without the prefix.
    subject: what the first sentence says what it does; without it, the sentence asks for it.
    """
    text = re.sub(r"\s*\bIn C,\s.*", "", function.comment, flags=re.DOTALL)
    if subject and text:
        verb, rest = text.split(" ", 1)
        does = "reports" if rest.startswith("whether") else add_s(verb.lower())
        text = f"{subject} {does} {rest}"
    text = re.sub(r"@name@_(\w+)", lambda m: rename(m[1]), text)
    text = re.sub(r"@NAME@_(\w+)(?=:)", lambda m: name_member(m[1]), text)
    text = text.replace("@NAME@_", "").replace("*/", "* /").replace("NULL", null)
    wrapped = "\n\n".join(
        textwrap.fill(" ".join(part.split()), 100 - len(prefix), break_on_hyphens=False)
        for part in text.split("\n\n")
        if part
    )
    return "".join(f"{prefix}{line}".rstrip() + "\n" for line in wrapped.splitlines())


def add_s(verb: str) -> str:
    """Return a verb as it follows a name: `copies` for `copy`."""
    if verb.endswith(("s", "x", "ch", "sh")):
        return f"{verb}es"
    return f"{verb[:-1]}ies" if re.search("[^aeiou]y$", verb) else f"{verb}s"


def indent(text: str, spaces: int) -> str:
    """Return a text with every line that is not empty moved to the right."""
    return re.sub(r"(?m)^(?=.)", " " * spaces, text)
