"""Validation of object files before anything is linked from them.

A linker believes what an object says of itself: where its sections begin, which symbol a distance
goes to, at which byte of a section it is to be written.  Files from a disk are therefore read here
first, field by field, and refused if a field points out of the part that it is for.  The readers
take any bytes and touch nothing besides.

Sources: System V ABI, gABI, chapter 4, with the supplements of the processors; Apple's
<mach-o/loader.h>, <mach-o/nlist.h> and <mach-o/reloc.h>; PE Format, Microsoft Learn; WebAssembly
Core Specification 2.0, 5.5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.kernels.machine.target import Target


class Damaged(Exception):
    """Bytes are not an object of the kind they seem to be."""


def fits(code: bytes, symbol: str, target: Target) -> bool:
    """Return whether bytes are a whole object for the processor of a target that defines a symbol.

    code: any bytes.  The form is ELF, Mach-O, COFF or WebAssembly, as its first bytes say.
    """
    arch = target.machine
    try:
        if code.startswith(b"\x7fELF"):
            parsed = read_elf(code)
            named = name_elf_machine(parsed.machine, parsed.bits)
            return arch == named and parsed.place(symbol) is not None
        if code.startswith(_MACHO):
            return (arch, f"_{symbol}".encode()) in _read_macho(code)
        if code.startswith(_WASM):
            _check_wasm(code)
            return arch == "wasm32" and symbol.encode() in code
        return (arch, symbol.encode()) in _read_coff(code)
    except Damaged:
        return False


def _require(condition: bool, what: str) -> None:
    """Raise Damaged unless the condition holds."""
    if not condition:
        raise Damaged(what)


def _read_rows(form: struct.Struct, code: bytes, at: int, count: int, what: str) -> list[Any]:
    """Return the rows of a table.

    Raises:
        Damaged: it reaches beyond the end.
    """
    end = at + count * form.size
    _require(end <= len(code), f"{what} beyond the end")
    return list(form.iter_unpack(code[at:end]))


def _name(texts: bytes, at: int) -> bytes:
    """Return the text of a table that ends at the next zero byte.

    Raises:
        Damaged: it does not end inside.
    """
    end = texts.find(b"\0", at)
    _require(end >= 0, "a name beyond its table")
    return texts[at:end]


# --- machines, by the numbers in headers


class _ElfMachine(NamedTuple):
    """A machine of ELF files: its architecture, and what relocations write.

    eight: the kinds that write 8 bytes.  others: the least bytes that any other kind writes.
    """

    name: str
    eight: tuple[int, ...]
    others: int


X86_64 = 62
_ELF_MACHINES = {
    40: _ElfMachine("arm", (), 4),
    X86_64: _ElfMachine("x86_64", (1, 24), 4),
    183: _ElfMachine("aarch64", (257, 260), 4),
    243: _ElfMachine("riscv64", (2, 18, 19), 1),
}
MACHO_MACHINES = {0x01000007: "x86_64", 0x0100000C: "aarch64"}
COFF_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}


def name_elf_machine(number: int, bits: int) -> str:
    """Return the architecture of an ELF file, as in `Target.machine`.

    Raises:
        KeyError: the number is unknown.
    """
    name = _ELF_MACHINES[number].name
    return name if bits == 64 else name.replace("64", "32")


# --- ELF


class ObjectSection(NamedTuple):
    """A section: `at` and `length` are bytes of the file; the other fields are as in gABI."""

    kind: int
    flags: int
    at: int
    length: int
    link: int
    info: int
    align: int


class Symbol(NamedTuple):
    """A symbol; the number of its section is 0 if it is not defined, from 0xFF00 on it is none."""

    name: bytes
    section: int
    value: int


class Relocation(NamedTuple):
    """A number that a linker writes at a byte of a section; addend: None if it stands there."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int | None


@dataclass(frozen=True, slots=True)
class Elf:
    """A relocatable file.  Sections, symbols and relocations point at nothing that is not there."""

    bits: int
    machine: int
    sections: list[ObjectSection]
    symbols: list[Symbol]
    relocations: list[Relocation]

    def place(self, symbol: str) -> tuple[int, int] | None:
        """Return a symbol's section of instructions and its place there; None if it has none."""
        name = symbol.encode()
        for each, number, value in self.symbols:
            if each == name and 0 < number < RESERVED:
                section = self.sections[number]
                if section.flags & EXECUTE and section.kind == BITS and value < section.length:
                    return number, value
        return None


BITS, SYMBOLS, TEXTS, ADDENDS, ZEROS, RELOCATIONS = 1, 2, 3, 4, 8, 9  # kinds of sections
WRITE, ALLOCATE, EXECUTE = 1, 2, 4  # flags of sections
RESERVED = 0xFF00  # from here on numbers of sections mean something else
_RELOCATABLE = 1
_LARGEST_ALIGNMENT = 4096  # a page: no more is known of memory before it is there


class _Class(NamedTuple):
    """The structures of ELF for 32 or 64 bits, and where a relocation has its symbol."""

    bits: int
    header: struct.Struct
    section: struct.Struct
    symbol: struct.Struct
    relocation: struct.Struct
    addend: struct.Struct
    shift: int


def _make_class(bits: int, shift: int, *forms: str) -> _Class:
    header, section, symbol, relocation, addend = map(struct.Struct, forms)
    return _Class(bits, header, section, symbol, relocation, addend, shift)


_CLASSES = {
    1: _make_class(32, 8, "<16s2HI3II6H", "<10I", "<3I2BH", "<2I", "<2Ii"),
    2: _make_class(64, 32, "<16s2HI3QI6H", "<2I4Q2I2Q", "<I2BH2Q", "<2Q", "<2Qq"),
}


def read_elf(code: bytes) -> Elf:
    """Return the parts of a relocatable file of System V, the low byte first.

    Raises:
        Damaged: it is none, or a part points at what is not there.
    """
    form = _CLASSES.get(code[4] if len(code) > 6 else 0)
    if form is None or code[:4] != b"\x7fELF" or code[5:7] != b"\x01\x01":
        raise Damaged("no ELF, the low byte first")
    (header,) = _read_rows(form.header, code, 0, 1, "the header")
    _, kind, machine, _, _, _, begin, _, _, _, _, size, count, _ = header
    _require(kind == _RELOCATABLE and machine in _ELF_MACHINES, "another kind of file")
    _require(size == form.section.size and 0 < count < RESERVED, "no table of sections")
    rows = _read_rows(form.section, code, begin, count, "the table of sections")
    sections = [ObjectSection(r[1], r[2], r[4], r[5], r[6], r[7], r[8]) for r in rows]
    stored = [each for each in sections if each.kind not in (0, ZEROS)]
    _require(sum(each.length for each in stored) <= len(code), "sections that overlap")
    for each in sections:
        inside = each.kind in (0, ZEROS) or each.at + each.length <= len(code)
        _require(inside, "a section beyond the end")
        power = each.align & (each.align - 1) == 0
        _require(power and each.align <= _LARGEST_ALIGNMENT, "an alignment that is none")
    tables = [i for i, each in enumerate(sections) if each.kind == SYMBOLS]
    _require(len(tables) == 1, "not one table of symbols")
    symbols = _read_elf_symbols(code, form, sections, sections[tables[0]])
    relocations: list[Relocation] = []
    for each in sections:
        if each.kind in (ADDENDS, RELOCATIONS):
            _require(each.info < count and each.link == tables[0], "relocations of no section")
            relocations += _read_elf_relocations(code, form, each)
    for one in relocations:
        width = 8 if one.kind in _ELF_MACHINES[machine].eight else _ELF_MACHINES[machine].others
        _require(
            one.offset + width <= sections[one.section].length, "a distance beyond its section"
        )
        _require(one.symbol < len(symbols), "a distance to no symbol")
    return Elf(form.bits, machine, sections, symbols, relocations)


def _read_elf_symbols(
    code: bytes, form: _Class, sections: list[ObjectSection], table: ObjectSection
) -> list[Symbol]:
    _require(table.link < len(sections), "symbols without names")
    names = sections[table.link]
    _require(names.kind == TEXTS and table.length % form.symbol.size == 0, "symbols without names")
    texts = code[names.at : names.at + names.length]
    symbols = []
    for row in form.symbol.iter_unpack(code[table.at : table.at + table.length]):
        name = row[0]
        section, value = (row[3], row[4]) if form.bits == 64 else (row[5], row[1])
        _require(section < len(sections) or section >= RESERVED, "a symbol of no section")
        if 0 < section < RESERVED:
            _require(value <= sections[section].length + 1, "a symbol beyond its section")
        symbols.append(Symbol(_name(texts, name), section, value))
    return symbols


def _read_elf_relocations(code: bytes, form: _Class, table: ObjectSection) -> list[Relocation]:
    row = form.addend if table.kind == ADDENDS else form.relocation
    _require(table.length % row.size == 0, "relocations cut short")
    mask = (1 << form.shift) - 1
    rows = row.iter_unpack(code[table.at : table.at + table.length])
    return [
        Relocation(table.info, at, info & mask, info >> form.shift, *(addend or (None,)))
        for at, info, *addend in rows
    ]


# --- Mach-O, of 64 bits

_MACHO = b"\xcf\xfa\xed\xfe"
_MACHO_OBJECT = 1
_MACHO_HEADER = struct.Struct("<8I")
_COMMAND = struct.Struct("<2I")
_SEGMENT = struct.Struct("<2I16s4Q4I")
_MACHO_SECTION = struct.Struct("<16s16s2Q8I")
_SYMTAB = struct.Struct("<6I")
_NLIST = struct.Struct("<I2BHQ")
_MACHO_RELOCATION = struct.Struct("<2I")
_OF_SEGMENT, _OF_SYMBOLS = 0x19, 0x2  # load commands: LC_SEGMENT_64, LC_SYMTAB
_ZERO_FILL = 1  # type of a section
_INSTRUCTIONS = 0x80000000  # attribute of a section that has nothing else
_IN_SECTION, _STAB = 0x0E, 0xE0  # of a symbol's type
_SCATTERED, _EXTERNAL, _ADDEND = 1 << 31, 1 << 27, 10  # of relocations; the last of ARM


def _read_macho(code: bytes) -> set[tuple[str, bytes]]:
    """Return the machine with each symbol that is in a section of instructions.

    Raises:
        Damaged: it is not an object, or a part points at what is not there.
    """
    (header,) = _read_rows(_MACHO_HEADER, code, 0, 1, "the header")
    machine = MACHO_MACHINES.get(header[1])
    _require(machine is not None and header[3] == _MACHO_OBJECT, "another kind of file")
    sections: list[Any] = []
    tables: list[Any] = []
    at = _MACHO_HEADER.size
    for _ in range(header[4]):
        ((kind, size),) = _read_rows(_COMMAND, code, at, 1, "a command")
        _require(size >= _COMMAND.size and at + size <= len(code), "a command beyond the end")
        if kind == _OF_SEGMENT:
            (segment,) = _read_rows(_SEGMENT, code[: at + size], at, 1, "a segment")
            begin = at + _SEGMENT.size
            sections += _read_rows(
                _MACHO_SECTION, code[: at + size], begin, segment[9], "its sections"
            )
        elif kind == _OF_SYMBOLS:
            tables += _read_rows(_SYMTAB, code[: at + size], at, 1, "a table of symbols")
        at += size
    _require(len(tables) == 1, "not one table of symbols")
    _, _, begin, count, names, length = tables[0]
    _require(names + length <= len(code), "names beyond the end")
    texts = code[names : names + length]
    defined = set()
    for name, kind, number, _, value in _read_rows(_NLIST, code, begin, count, "symbols"):
        text = _name(texts, name)
        if kind & _STAB or kind & _IN_SECTION != _IN_SECTION:
            continue
        _require(0 < number <= len(sections), "a symbol of no section")
        _, _, first, size, *_, flags, _, _, _ = sections[number - 1]
        _require(first <= value <= first + size, "a symbol beyond its section")
        if flags & _INSTRUCTIONS and value < first + size:
            defined.add((str(machine), text))
    for _, _, _, size, offset, _, begin, number, flags, *_ in sections:
        stored = flags & 0xFF != _ZERO_FILL
        _require(not stored or offset + size <= len(code), "a section beyond the end")
        for place, info in _read_rows(_MACHO_RELOCATION, code, begin, number, "relocations"):
            _require(not place & _SCATTERED, "a relocation of another machine")
            _require(place + (1 << (info >> 25 & 3)) <= size, "a distance beyond its section")
            index, kind = info & 0xFFFFFF, info >> 28
            if machine == "aarch64" and kind == _ADDEND:
                continue
            limit = count if info & _EXTERNAL else len(sections) + 1
            _require(index < limit, "a distance to no symbol")
    return defined


# --- COFF

_COFF_HEADER = struct.Struct("<2H3I2H")
_COFF_SECTION = struct.Struct("<8s6I2HI")
_COFF_SYMBOL = struct.Struct("<8sIhH2B")
_COFF_RELOCATION = struct.Struct("<2IH")
_NO_BYTES, _CODE, _MORE = 0x80, 0x20, 0x01000000  # characteristics of sections
_COFF_EIGHT = {"x86_64": 1, "aarch64": 14}  # the relocation that writes 8 bytes: ADDR64


def _read_coff(code: bytes) -> set[tuple[str, bytes]]:
    """Return the machine with each symbol in a section of instructions; Damaged as `_read_elf`."""
    ((number, count, _, begin, symbols, optional, _),) = _read_rows(
        _COFF_HEADER, code, 0, 1, "the header"
    )
    machine = COFF_MACHINES.get(number)
    _require(machine is not None and not optional, "another kind of file")
    sections = _read_rows(_COFF_SECTION, code, _COFF_HEADER.size, count, "the table of sections")
    rows = _read_rows(_COFF_SYMBOL, code, begin, symbols, "symbols")
    end = begin + symbols * _COFF_SYMBOL.size
    ((length,),) = _read_rows(struct.Struct("<I"), code, end, 1, "names")
    _require(length >= 4 and end + length <= len(code), "names beyond the end")
    texts = code[end : end + length]
    defined, i = set(), 0
    while i < symbols:
        raw, value, section, _, _, more = rows[i]
        i += 1 + more
        _require(i <= symbols, "a symbol cut short")
        far = raw[:4] == bytes(4)
        text = _name(texts, int.from_bytes(raw[4:], "little")) if far else raw.rstrip(b"\0")
        if section <= 0:
            continue
        _require(section <= count, "a symbol of no section")
        size, flags = sections[section - 1][3], sections[section - 1][9]
        _require(value <= size, "a symbol beyond its section")
        if flags & _CODE and value < size:
            defined.add((str(machine), text))
    for _, _, _, size, at, first, _, number, _, flags in sections:
        stored = not flags & _NO_BYTES
        _require(not stored or at + size <= len(code), "a section beyond the end")
        _require(not flags & _MORE, "more relocations than an object of a kernel has")
        for place, symbol, kind in _read_rows(_COFF_RELOCATION, code, first, number, "relocations"):
            width = 8 if kind == _COFF_EIGHT[str(machine)] else 4
            _require(place + width <= size, "a distance beyond its section")
            _require(symbol < symbols, "a distance to no symbol")
    return defined


# --- WebAssembly

_WASM = b"\0asm\1\0\0\0"


def _check_wasm(code: bytes) -> None:
    """Raise Damaged unless sections, each with its size before it, fill the file to its end."""
    at = len(_WASM)
    while at < len(code):
        at, size, shift = at + 1, 0, 0
        while True:  # a number in groups of seven bits, the low ones first
            _require(at < len(code) and shift < 35, "a size that is none")
            byte = code[at]
            at, size, shift = at + 1, size | (byte & 0x7F) << shift, shift + 7
            if not byte & 0x80:
                break
        at += size
    _require(at == len(code), "a section beyond the end")
