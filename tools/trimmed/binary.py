"""Binaries: facts about an object, library or program in ELF, Mach-O, PE or WebAssembly.

A linker makes what it takes the platform to be, which need not be what was asked for.  These are
the facts by which `link` and tests tell.

Sources: System V ABI, Tool Interface Standard ELF 1.2; Apple's <mach-o/loader.h> and <nlist.h>; PE
Format, Microsoft Learn; WebAssembly Core Specification 2.0, 5.5.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.base.errors import EngineError, FileError
from engine.kernels.binaries.object_files import COFF_MACHINES, MACHO_MACHINES, name_elf_machine


@dataclass(frozen=True, slots=True)
class Binary:
    """Facts about a binary.

    form: `elf`, `macho`, `pe` or `wasm`.
    machine: the architecture: aarch64, arm, x86_64, riscv64, riscv32 or wasm32.
    system: the operating system; empty for ELF and WebAssembly, which do not record it.
    oldest: the oldest supported version of the system for Mach-O; otherwise empty.
    exports: the symbols it offers to others.
    needs: the symbols it takes from others.  Weak ones are left out: they are zero if nothing
        defines them.
    libraries: the names of the libraries it takes symbols from; for WebAssembly the modules.
    pages: the least size of the memory that a WebAssembly module takes, in pages of 64 KiB.
    """

    form: str
    machine: str
    system: str = ""
    oldest: str = ""
    exports: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    libraries: tuple[str, ...] = ()
    pages: int = 0


def read(path: Path) -> Binary:
    """Return the facts of a file.

    Raises:
        FileError: the file cannot be read.
        EngineError: it is not a binary of these forms, or its tables reach beyond its end.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error}") from None
    return parse(data, str(path))


def parse(data: bytes, name: str = "binary") -> Binary:
    """Return the facts of the bytes of a file, which messages call `name`.

    Raises:
        EngineError: they are not a binary of these forms, or its tables reach beyond its end.
    """
    readers = {
        b"\x7fELF": _read_elf, b"\xcf\xfa\xed\xfe": _read_macho, b"MZ": _read_pe,
        b"\x64\x86": _read_coff, b"\0asm": _read_wasm,
    }  # fmt: skip
    for magic, reader in readers.items():
        if data.startswith(magic):
            try:
                return reader(data)
            except (struct.error, IndexError, KeyError, ValueError) as error:
                raise EngineError(f"{name}: a damaged binary: {error}") from None
    raise EngineError(f"{name}: neither ELF, 64-bit Mach-O, PE nor WebAssembly")


def count_loaded(archive: bytes, roots: Collection[str] = ()) -> int:
    """Return the bytes that the ELF objects of an archive put into memory: code and constants.

    roots: the functions that a program calls.  Sections that these do not reach are left out, as
        linkers leave them out with --gc-sections.  So are tables for unwinding the stack, because
        linkers join equal entries, and all of C are equal.  Without roots, everything counts.

    Raises:
        EngineError: it is not an archive of ELF objects, or lacks one of the functions.
    """
    if not archive.startswith(_ARCHIVE):
        raise EngineError("archive: it does not begin as one")
    try:
        objects = list(map(_read_object, _list_members(archive)))
        kept = _find_reached(objects, roots) if roots else None
        return sum(
            section.size
            for i, each in enumerate(objects)
            for j, section in enumerate(each.sections)
            if section.flags & _ALLOCATED and section.kind != _NOBITS
            if kept is None or (i, j) in kept
        )
    except (struct.error, IndexError, ValueError) as error:
        raise EngineError(f"archive: damaged: {error}") from None


def _list_members(archive: bytes) -> Iterator[bytes]:
    """Yield the ELF objects of an archive."""
    at = len(_ARCHIVE)
    while at < len(archive):
        size = int(archive[at + 48 : at + 58])
        member = archive[at + 60 : at + 60 + size]
        if member.startswith(b"\x7fELF"):
            yield member
        at += 60 + size + size % 2


def _find_reached(objects: Sequence[_ElfObject], roots: Collection[str]) -> set[tuple[int, int]]:
    """Return the sections that functions reach, as numbers of objects and of their sections.

    Raises:
        EngineError: no object defines one of the functions.
    """
    homes: dict[str, tuple[int, int]] = {}
    for weak in (False, True):  # a strong definition, or else the first weak one
        for i, each in enumerate(objects):
            for symbol in each.symbols:
                if symbol.section and symbol.binding and (symbol.binding == _WEAK) == weak:
                    homes.setdefault(symbol.name, (i, symbol.section))
    if missing := sorted(set(roots) - homes.keys()):
        raise EngineError(f"archive: it defines no {', '.join(missing)}")
    kept, left = set[tuple[int, int]](), [homes[name] for name in roots]
    while left:
        if (at := left.pop()) in kept:
            continue
        kept.add(at)
        for symbol in objects[at[0]].uses.get(at[1], ()):
            if not symbol.binding:
                left.append((at[0], symbol.section))
            elif symbol.name in homes:
                left.append(homes[symbol.name])
    return kept


def list_function_sizes(data: bytes) -> dict[str, int]:
    """Return the bytes of each function in an ELF object, by its symbol; none of other forms.

    Raises:
        EngineError: its tables reach beyond its end.
    """
    if not data.startswith(b"\x7fELF"):
        return {}
    try:
        wide, sections = _list_elf_sections(data)
        sizes = {}
        for section in sections:
            if section.kind == _ALL_SYMBOLS:
                for symbol in _list_elf_symbols(data, wide, section, sections[section.link].begin):
                    if symbol.kind == _FUNCTION:
                        sizes[symbol.name] = symbol.size
        return sizes
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise EngineError(f"object of kernels: a damaged binary: {error}") from None


def list_symbols(data: bytes) -> tuple[set[str], set[str]]:
    """Return the symbols that an ELF object defines for others, and those that it needs.

    Raises:
        EngineError: it is not an ELF object, or its tables reach beyond its end.
    """
    if not data.startswith(b"\x7fELF"):
        raise EngineError("object: it is not of ELF")
    try:
        wide, sections = _list_elf_sections(data)
        defined, needed = set[str](), set[str]()
        for section in sections:
            if section.kind == _ALL_SYMBOLS:
                for symbol in _list_elf_symbols(data, wide, section, sections[section.link].begin):
                    if symbol.binding and symbol.name:
                        (defined if symbol.section else needed).add(symbol.name)
        return defined, needed
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise EngineError(f"object: a damaged binary: {error}") from None


_ARCHIVE = b"!<arch>\n"


def _read_text(data: bytes, at: int) -> str:
    """Return the text that ends at the next zero byte."""
    return data[at : data.index(0, at)].decode()


# --- ELF

# types of sections: SHT_SYMTAB, SHT_RELA, SHT_DYNAMIC, SHT_NOBITS, SHT_REL, SHT_DYNSYM
_ALL_SYMBOLS, _ADDENDS, _DYNAMIC, _NOBITS, _RELOCATIONS, _SYMBOLS = 2, 4, 6, 8, 9, 11
_ALLOCATED = 2  # flag of a section: SHF_ALLOC
_GLOBAL, _WEAK = 1, 2  # bindings of a symbol: STB_GLOBAL, STB_WEAK
_FUNCTION = 2  # type of a symbol: STT_FUNC


class _Section(NamedTuple):
    """A section of an ELF file.

    link: the number of the section with its names.
    info: of relocations, the number of the section that they change.
    """

    kind: int
    flags: int
    begin: int
    size: int
    link: int
    info: int


class _Symbol(NamedTuple):
    """A symbol of an ELF file; `section` is 0 if others define it."""

    name: str
    kind: int
    binding: int
    size: int
    section: int


def _list_elf_symbols(data: bytes, wide: bool, section: _Section, names: int) -> Iterator[_Symbol]:
    """Yield the symbols of a section, whose names begin at `names`."""
    entry, step = ("<IBBHQQ", 24) if wide else ("<IIIBBH", 16)
    for at in range(section.begin + step, section.begin + section.size, step):
        fields = struct.unpack_from(entry, data, at)
        if wide:
            name, info, _, place, _, size = fields
        else:
            name, _, size, info, _, place = fields
        yield _Symbol(_read_text(data, names + name), info & 15, info >> 4, size, place)


def _list_elf_sections(data: bytes) -> tuple[bool, list[_Section]]:
    """Return whether an ELF file is of 64 bits, and its sections."""
    wide = data[4] == 2
    table = struct.unpack_from("<Q", data, 40)[0] if wide else struct.unpack_from("<I", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 58 if wide else 46)
    form = "<IIQQQQII" if wide else "<IIIIIIII"
    rows = [struct.unpack_from(form, data, table + i * size) for i in range(count)]
    return wide, [_Section(row[1], row[2], *row[4:8]) for row in rows]


class _ElfObject(NamedTuple):
    """An ELF object; `uses` has the symbols that each section refers to, by its number."""

    sections: Sequence[_Section]
    symbols: Sequence[_Symbol]
    uses: Mapping[int, Sequence[_Symbol]]


def _read_object(data: bytes) -> _ElfObject:
    """Read an ELF object that is not linked yet."""
    wide, sections = _list_elf_sections(data)
    symbols: list[_Symbol] = []
    for section in sections:
        if section.kind == _ALL_SYMBOLS:
            symbols += _list_elf_symbols(data, wide, section, sections[section.link].begin)
    uses: dict[int, list[_Symbol]] = {}
    entry, shift = ("<QQ", 32) if wide else ("<II", 8)
    for section in sections:
        if section.kind in (_ADDENDS, _RELOCATIONS):
            step = struct.calcsize(entry) // 2 * (3 if section.kind == _ADDENDS else 2)
            for at in range(section.begin, section.begin + section.size, step):
                _, word = struct.unpack_from(entry, data, at)
                if word >> shift:  # symbol 0, which the list lacks, stands for none
                    uses.setdefault(section.info, []).append(symbols[(word >> shift) - 1])
    return _ElfObject(sections, symbols, uses)


def _read_elf(data: bytes) -> Binary:
    """Read an ELF file; all forms here are little-endian.  Names come from the dynamic symbols."""
    wide, sections = _list_elf_sections(data)
    machine = name_elf_machine(struct.unpack_from("<H", data, 18)[0], 64 if wide else 32)
    exports, needs, libraries = set(), set(), []
    for section in sections:
        kind, _, begin, length, link, _ = section
        if kind == _SYMBOLS:
            for symbol in _list_elf_symbols(data, wide, section, sections[link].begin):
                if symbol.section:
                    exports.add(symbol.name)
                elif symbol.binding == _GLOBAL:
                    needs.add(symbol.name)
        elif kind == _DYNAMIC:
            entry, step = ("<QQ", 16) if wide else ("<II", 8)
            tags = [
                struct.unpack_from(entry, data, at) for at in range(begin, begin + length, step)
            ]
            libraries += [
                _read_text(data, sections[link].begin + value) for tag, value in tags if tag == 1
            ]
    return Binary(
        "elf", machine, "", "", frozenset(exports), frozenset(needs), tuple(libraries)
    )  # fmt: skip


# --- Mach-O

_PLATFORMS = {1: "macos", 2: "ios", 3: "tvos", 4: "watchos", 6: "maccatalyst", 7: "ios-simulator"}
_SYMTAB, _LOAD_DYLIB, _BUILD_VERSION = 0x2, 0xC, 0x32  # load commands
_OF_LINKERS = {"_mh_dylib_header", "_mh_execute_header", "__dso_handle"}  # of every file


def _read_macho(data: bytes) -> Binary:
    """Read a Mach-O file; symbols lose the leading underscore of C's names."""
    machine = MACHO_MACHINES[struct.unpack_from("<I", data, 4)[0]]
    system = oldest = ""
    exports, needs, libraries = set(), set(), []
    at = 32
    for _ in range(struct.unpack_from("<I", data, 16)[0]):
        command, size = struct.unpack_from("<II", data, at)
        if command == _BUILD_VERSION:
            platform, version = struct.unpack_from("<II", data, at + 8)
            system, oldest = _PLATFORMS[platform], f"{version >> 16}.{version >> 8 & 255}"
        elif command == _LOAD_DYLIB:
            libraries.append(_read_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        elif command == _SYMTAB:
            begin, count, names, _ = struct.unpack_from("<IIII", data, at + 8)
            for i in range(count):
                name, kind, _, flags = struct.unpack_from("<IBBH", data, begin + i * 16)
                is_debug, is_hidden = kind & 0xE0, kind & 0x10
                if not kind & 1 or is_debug or is_hidden:
                    continue
                symbol = _read_text(data, names + name).removeprefix("_")
                if kind & 0x0E and symbol not in _OF_LINKERS:
                    exports.add(symbol)
                elif kind & 0x0E:
                    continue
                elif not flags & 0x40:  # N_WEAK_REF
                    needs.add(symbol)
        at += size
    return Binary(
        "macho", machine, system, oldest, frozenset(exports), frozenset(needs), tuple(libraries)
    )  # fmt: skip


# --- PE


def _read_coff(data: bytes) -> Binary:
    """Return an object; its symbols are not read."""
    return Binary("pe", COFF_MACHINES[struct.unpack_from("<H", data)[0]], "windows")


def _read_pe(data: bytes) -> Binary:
    """Return a library or program of 64 bits."""
    head = struct.unpack_from("<I", data, 60)[0]
    if data[head : head + 4] != b"PE\0\0":
        raise ValueError("no PE header")
    machine, sections = struct.unpack_from("<HH", data, head + 4)
    optional, size = head + 24, struct.unpack_from("<H", data, head + 20)[0]
    # virtual address, bytes in the file, offset in the file
    spans = [
        struct.unpack_from("<III", data, optional + size + 40 * i + 12) for i in range(sections)
    ]

    def place(address: int) -> int:
        for begin, length, offset in spans:
            if begin <= address < begin + length:
                return int(offset + address - begin)
        raise ValueError(f"address {address:#x} is in no section")

    exported, _, imported, _ = struct.unpack_from("<IIII", data, optional + 112)
    exports, needs, libraries = set(), set(), []
    if exported:
        table = place(exported)
        count = struct.unpack_from("<I", data, table + 24)[0]
        names = place(struct.unpack_from("<I", data, table + 32)[0]) if count else 0
        pointers = struct.unpack_from(f"<{count}I", data, names)
        exports = {_read_text(data, place(pointer)) for pointer in pointers}
    at = place(imported) if imported else 0
    while imported and (row := struct.unpack_from("<IIIII", data, at))[3]:
        libraries.append(_read_text(data, place(row[3])))
        lookup = place(row[0])
        while entry := struct.unpack_from("<Q", data, lookup)[0]:
            by_number = entry >> 63
            needs.add(f"#{entry & 0xFFFF}" if by_number else _read_text(data, place(entry) + 2))
            lookup += 8
        at += 20
    return Binary(
        "pe", COFF_MACHINES[machine], "windows", "", frozenset(exports), frozenset(needs),
        tuple(libraries),
    )  # fmt: skip


# --- WebAssembly

_IMPORTS, _EXPORTS = 2, 7  # sections


class _Leb:
    """Reader of unsigned LEB128 numbers and names."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def read_number(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def name(self) -> str:
        length = self.read_number()
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def read_limits(self) -> int:
        """Return the lower limit, and leave out the upper one."""
        flags = self.read_number()
        least, *_ = [self.read_number() for _ in range(1 + (flags & 1))]
        return least


def _read_wasm(data: bytes) -> Binary:
    exports, needs, modules, pages = set(), set(), {}, 0
    at = _Leb(data, 8)
    while at.at < len(data):
        section, length = at.read_number(), at.read_number()
        end = at.at + length
        if section == _IMPORTS:
            for _ in range(at.read_number()):
                module, name = at.name(), at.name()
                needs.add(name)
                modules[module] = True
                match at.read_number():
                    case 0:  # function: its type
                        at.read_number()
                    case 1:  # table: type of elements, limits
                        at.read_number()
                        at.read_limits()
                    case 2:
                        pages = at.read_limits()
                    case _:  # global: type, mutability
                        at.read_number()
                        at.read_number()
        elif section == _EXPORTS:
            for _ in range(at.read_number()):
                exports.add(at.name())
                at.read_number()
                at.read_number()
        at.at = end
    libraries = tuple(modules)
    return Binary("wasm", "wasm32", "", "", frozenset(exports), frozenset(needs), libraries, pages)
