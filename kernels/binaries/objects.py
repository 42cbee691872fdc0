"""Objects: the machine code of kernels is put into memory here, without LLVM.

A kernel needs nothing from outside, so that its object asks for little: its sections, and within
them the distances from instructions to constants and functions of the same object.  LLVM's linker
does that and more, and takes 55 MB of memory for its library alone.

`link` knows the relocatable files of System V for x86-64, and of their relocations the distances of
32 bits.  Files with anything else it leaves to its caller.

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

from engine.base.errors import EngineError
from engine.kernels.binaries import object_files
from engine.plan.plan import ALIGN

_DISTANCE = struct.Struct("<i")
_FARTHEST = 1 << 31  # what a distance is smaller than
_PC32, _PLT32 = 2, 4  # both are S + A - P, as there is no table of procedures

_pages: list[mmap.mmap] = []  # live as long as the process, as does the code in them


@dataclass(slots=True)
class _Object:
    """The parts of an object that go into memory.

    sections: by their numbers, where their bytes are in the file, how many, and their alignment.
    places: by their numbers, where they begin in the memory of all objects.
    symbols: of each the number of its section, and where it is in that.
    distances: number of the section, offset in it, symbol and addend of every distance.
    entry: the section of the symbol that the object is for, and where it is in that.
    """

    code: bytes
    entry: tuple[int, int]
    sections: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    symbols: list[tuple[int, int]] = field(default_factory=list)
    distances: list[tuple[int, int, int, int]] = field(default_factory=list)


def link(codes: Mapping[str, bytes]) -> dict[str, int]:
    """Put objects into memory that can be run; returns the addresses of their symbols.

    codes: objects by the symbol that each of them defines.  Those that this file does not know
        enough of, and damaged ones, are not in the result.

    Raises:
        EngineError: an object does not define its symbol or has distances that cannot be, or the
            system gives no memory that can be run.
    """
    if not sys.platform.startswith("linux"):
        return {}
    parsed = ((symbol, _parse(code, symbol)) for symbol, code in codes.items())
    objects = {symbol: item for symbol, item in parsed if item is not None}
    end = 0
    for each in objects.values():
        end = _place(each, -(-end // ALIGN) * ALIGN)
    if not objects:
        return {}
    try:
        pages = mmap.mmap(-1, end, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise EngineError(f"{end} bytes for kernels cannot be allocated: {error}") from None
    for symbol, each in objects.items():
        _write(each, symbol, pages)
    base = _protect(pages)
    _pages.append(pages)
    return {s: base + each.places[each.entry[0]] + each.entry[1] for s, each in objects.items()}


def _parse(code: bytes, symbol: str) -> _Object | None:
    """Return the parts of an object; None if it is damaged or needs what is not known here.

    Raises:
        EngineError: it is whole, and does not define the symbol.
    """
    try:
        read = object_files.read_elf(code)
    except object_files.Damaged:
        return None
    if read.machine != object_files.X86_64 or read.bits != 64:
        return None
    sections = {}
    for i, each in enumerate(read.sections):
        if not each.flags & object_files.ALLOCATE or not each.length:
            continue
        if each.flags & object_files.WRITE or each.kind != object_files.BITS:
            return None
        sections[i] = (each.at, each.length, max(each.align, 1))
    distances = []
    for one in read.relocations:
        if one.section not in sections:
            continue
        home = read.symbols[one.symbol].section
        if one.kind not in (_PC32, _PLT32) or home not in sections or one.addend is None:
            return None
        distances.append((one.section, one.offset, one.symbol, one.addend))
    entry = read.place(symbol)
    if entry is None or entry[0] not in sections:
        raise EngineError(f"{symbol}: not found in its own object")
    places = [(each.section, each.value) for each in read.symbols]
    return _Object(code, entry, sections, {}, places, distances)


def _place(found: _Object, begin: int) -> int:
    """Give the sections of an object places from `begin` on; returns where the last one ends."""
    for i, (_, length, align) in found.sections.items():
        begin = -(-begin // align) * align
        found.places[i] = begin
        begin += length
    return begin


def _write(found: _Object, symbol: str, pages: mmap.mmap) -> None:
    """Copy the sections of an object to their places, and fill in the distances.

    Raises:
        EngineError: a distance is too far for its 32 bits.
    """
    for i, (at, length, _) in found.sections.items():
        pages[found.places[i] : found.places[i] + length] = found.code[at : at + length]
    for section, offset, number, addend in found.distances:
        home, value = found.symbols[number]
        at = found.places[section] + offset
        distance = found.places[home] + value + addend - at
        if not -_FARTHEST <= distance < _FARTHEST:
            raise EngineError(f"{symbol}: its object has a distance of {distance} bytes")
        _DISTANCE.pack_into(pages, at, distance)


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
        raise EngineError(f"the system provides no memory that kernels can run in: {reason}")
    return address
