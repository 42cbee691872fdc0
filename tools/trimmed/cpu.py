"""CPU features that the kernels of a target may use, and how a library finds out whether a CPU has
them.

A library checks them when a model is made (`runtime/cpu.c`), because a CPU that meets an
instruction that it does not have stops the program; with code for several CPUs it takes the best
that this one can run.  Listed are the features that LLVM makes
arithmetic of; it never makes instructions of others, such as AES, from code like ours.

Sources of the bits: Intel's and AMD's manuals for CPUID; Linux's hwcap.h and, for the permission,
Documentation/arch/x86/xstate.rst.  Sources of Apple's names: "Determining Instruction Set
Characteristics" of its documentation, and xnu's bsd/kern/kern_mib.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.kernels.machine.features import find_features
from engine.kernels.machine.target import Target
from engine.tools.trimmed.targets import Platform

# LLVM's name of a feature -> the word of `ask_features` and the bit in it
_X86: dict[str, tuple[int, int]] = {
    "sse3": (0, 0), "ssse3": (0, 9), "fma": (0, 12), "sse4.1": (0, 19), "sse4.2": (0, 20),
    "movbe": (0, 22), "popcnt": (0, 23), "avx": (0, 28), "f16c": (0, 29), "bmi": (1, 3),
    "avx2": (1, 5), "bmi2": (1, 8), "avx512f": (1, 16), "avx512dq": (1, 17), "adx": (1, 19),
    "avx512ifma": (1, 21), "avx512cd": (1, 28), "avx512bw": (1, 30), "avx512vl": (1, 31),
    "avx512vbmi": (2, 1), "avx512vbmi2": (2, 6), "gfni": (2, 8), "avx512vnni": (2, 11),
    "avx512bitalg": (2, 12), "avx512vpopcntdq": (2, 14), "avx512fp16": (3, 23),
    "avxvnni": (4, 4), "avx512bf16": (4, 5), "avxifma": (4, 23), "lzcnt": (5, 5),
    "sse4a": (5, 6), "xop": (5, 11), "fma4": (5, 16), "tbm": (5, 21),
}  # fmt: skip
_AARCH64 = {
    "lse": (0, 8), "fullfp16": (0, 10), "rdm": (0, 12), "jsconv": (0, 13),
    "complxnum": (0, 14), "rcpc": (0, 15), "sha3": (0, 17), "dotprod": (0, 20),
    "sve": (0, 22), "fp16fml": (0, 23), "sve2": (1, 1), "i8mm": (1, 13), "bf16": (1, 14),
}  # fmt: skip
# Apple's systems are asked for one feature at a time; the answers take the same bits.
_APPLE = {
    "lse": "LSE", "fullfp16": "FP16", "rdm": "RDM", "jsconv": "JSCVT", "complxnum": "FCMA",
    "rcpc": "LRCPC", "sha3": "SHA3", "dotprod": "DotProd", "fp16fml": "FHM", "i8mm": "I8MM",
    "bf16": "BF16",
}  # fmt: skip
# Systems whose first CPU has features that their first versions, up to macOS 11, do not tell.
_FIRST_CPUS = {"macosx": "apple-m1", "simulator": "apple-m1"}
_ARM = {"neon": (0, 12), "vfp4": (0, 16), "hwdiv-arm": (0, 17)}
_BITS: dict[str, dict[str, tuple[int, int]]] = {
    "x86_64": _X86, "aarch64": _AARCH64, "armv7": _ARM, "armv7a": _ARM,
}  # fmt: skip
# Registers that the system must keep, in bits of XCR0: the lower 32 bytes, and all of AVX-512.
_KEPT = {"avx": (0x6, "saved ymm registers"), "avx512f": (0xE6, "saved zmm registers")}

# Tile registers: two features, two bits of XCR0, and the answer of the system for this process.
_TILES = {
    "amx-bf16": (3, 1 << 22), "amx-tile": (3, 1 << 24), "saved tile registers": (6, 0x60000),
    "permission for tiles": (7, 1),
}  # fmt: skip


def list_needs(target: Target) -> dict[str, tuple[int, int]]:
    """Return the features that the kernels of a target may use: the word of each and its mask."""
    bits = _BITS.get(target.arch, {})
    wanted = find_features(target.triple, target.cpu, target.features, tuple(bits))
    for system, cpu in _FIRST_CPUS.items() if target.arch == "aarch64" else ():
        if system in target.triple:
            wanted -= find_features(target.triple, cpu, "", tuple(bits))
    needs = {name: (word, 1 << bit) for name, (word, bit) in bits.items() if name in wanted}
    for name, (mask, meaning) in _KEPT.items():
        if name in needs:
            needs[meaning] = (6, mask)
    return needs | (_TILES if target.has_tile_registers else {})


def can_choose(platform: Platform, *, freestanding: bool) -> bool:
    """Return whether a library can ask which features a CPU has: x86 itself, or the system."""
    return platform.target.arch == "x86_64" or (platform.tells_features and not freestanding)


def write_needs(target: Target) -> str:
    """Return the rows of `struct need` that `runtime/cpu.c` reads for the code of a target."""
    return _write_rows(list_needs(target))


def write_questions(targets: Iterable[Target]) -> str:
    """Return the rows of `struct need`, with Apple's names, of what its systems are asked for the
    code of all targets.
    """
    needs = {name: row for target in targets for name, row in list_needs(target).items()}
    return _write_rows({f"hw.optional.arm.FEAT_{_APPLE[n]}": row for n, row in needs.items()})


def _write_rows(needs: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f'{{{word}, {mask}u, "{name}"}}' for name, (word, mask) in needs.items())
