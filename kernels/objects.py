"""Objects: the machine code of kernels is put into memory here, without LLVM.

A kernel needs nothing from outside, so that its object asks for little: its sections, and within
them the distances from instructions to constants and functions of the same object.  LLVM's linker
does that and more, and takes 55 MB of memory for its library alone.

`link` knows the relocatable files of System V for x86-64, and of their relocations the distances of
32 bits.  What holds anything else it leaves to its caller.

Source: System V ABI, AMD64 supplement, 4.4 (relocation); gABI, chapter 4 (ELF header to symbols).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import EngineError
from engine.runtime.plan import ALIGN

_HEADER = struct.Struct("<16s2HI3QI6H")
_SECTION = struct.Struct("<2I4Q2I2Q")
_SYMBOL = struct.Struct("<I2BH2Q")
_RELOCATION = struct.Struct("<2Qq")
_DISTANCE = struct.Struct("<i")

_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, the low byte first
_RELOCATABLE, _X86_64 = 1, 62
_BITS, _SYMBOLS, _ADDENDS, _ZEROS, _RELOCATIONS = 1, 2, 4, 8, 9  # types of sections
_WRITE, _ALLOCATE = 1, 2  # flags of sections
_PC32, _PLT32 = 2, 4  # both are S + A - P, as there is no table of procedures

_pages: list[mmap.mmap] = []  # live as long as the process, as does the code in them


@dataclass(slots=True)
class _Object:
    """The parts of an object that go into memory.

    sections: by their numbers, where their bytes are in the file, or None for zeros; and how many.
    places: by their numbers, where they begin in the memory of all objects.
    symbols: of each its name, the number of its section, and where it is in that.
    distances: number of the section, offset in it, symbol and addend of every distance.
    """

    code: bytes
    sections: dict[int, tuple[int | None, int, int]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    symbols: list[tuple[bytes, int, int]] = field(default_factory=list)
    distances: list[tuple[int, int, int, int]] = field(default_factory=list)


def link(codes: Mapping[str, bytes]) -> dict[str, int]:
    """Put objects into memory that can be run; returns the addresses of their symbols.

    codes: objects by the symbol that each of them defines.  Those that this file does not know
        enough of are not in the result.

    Raises:
        EngineError: the system gives no memory that can be run.
    """
    if not sys.platform.startswith("linux"):
        return {}
    parsed = ((symbol, _parse(code)) for symbol, code in codes.items())
    objects = {symbol: found for symbol, found in parsed if found is not None}
    end = 0
    for each in objects.values():
        end = _place(each, -(-end // ALIGN) * ALIGN)
    if not objects:
        return {}
    try:
        pages = mmap.mmap(-1, end, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise EngineError(f"{end} bytes for kernels cannot be allocated: {error}") from None
    for each in objects.values():
        _write(each, pages)
    base = _protect(pages)
    _pages.append(pages)
    return {symbol: base + _find(each, symbol) for symbol, each in objects.items()}


def _parse(code: bytes) -> _Object | None:
    """The parts of an object; None if it needs what is not known here."""
    if len(code) < _HEADER.size or not code.startswith(_MAGIC):
        return None
    _, kind, machine, _, _, _, begin, _, _, _, _, size, count, _ = _HEADER.unpack_from(code)
    if (kind, machine, size) != (_RELOCATABLE, _X86_64, _SECTION.size):
        return None
    found = _Object(code)
    headers = [_SECTION.unpack_from(code, begin + i * size) for i in range(count)]
    for i, (_, kind, flags, _, at, length, *_, align, _) in enumerate(headers):
        if not flags & _ALLOCATE or not length:
            continue
        if flags & _WRITE or kind not in (_BITS, _ZEROS):
            return None
        found.sections[i] = (at if kind == _BITS else None, length, max(align, 1))
    for _, kind, _, _, at, length, names, _, _, _ in headers:
        if kind == _SYMBOLS:
            texts = headers[names][4]
            for name, _, _, section, value, _ in _SYMBOL.iter_unpack(code[at : at + length]):
                end = code.index(b"\0", texts + name)
                found.symbols.append((code[texts + name : end], section, value))
    for _, kind, _, _, at, length, _, section, _, _ in headers:
        if section not in found.sections or kind not in (_ADDENDS, _RELOCATIONS):
            continue
        if kind == _RELOCATIONS:
            return None
        for offset, info, addend in _RELOCATION.iter_unpack(code[at : at + length]):
            symbol, what = info >> 32, info & 0xFFFFFFFF
            home = found.symbols[symbol][1]
            if what not in (_PC32, _PLT32) or home not in found.sections:
                return None
            found.distances.append((section, offset, symbol, addend))
    return found


def _place(found: _Object, begin: int) -> int:
    """Give the sections of an object places from `begin` on; returns where the last one ends."""
    for i, (_, length, align) in found.sections.items():
        begin = -(-begin // align) * align
        found.places[i] = begin
        begin += length
    return begin


def _write(found: _Object, pages: mmap.mmap) -> None:
    """Copy the sections of an object to their places, and fill in the distances."""
    for i, (at, length, _) in found.sections.items():
        if at is not None:
            pages[found.places[i] : found.places[i] + length] = found.code[at : at + length]
    for section, offset, symbol, addend in found.distances:
        _, home, value = found.symbols[symbol]
        at = found.places[section] + offset
        _DISTANCE.pack_into(pages, at, found.places[home] + value + addend - at)


def _find(found: _Object, symbol: str) -> int:
    """Where a symbol of an object is.

    Raises:
        EngineError: the object does not define it.
    """
    name = symbol.encode()
    for each, section, value in found.symbols:
        if each == name and section in found.places:
            return found.places[section] + value
    raise EngineError(f"{symbol}: not found in its own object")


def _protect(pages: mmap.mmap) -> int:
    """Let memory be run and no longer be written; returns its address.

    Raises:
        EngineError: the system does not allow it.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(address, len(pages), mmap.PROT_READ | mmap.PROT_EXEC):
        reason = os.strerror(ctypes.get_errno())
        raise EngineError(f"the system gives no memory that kernels can run in: {reason}")
    return address
