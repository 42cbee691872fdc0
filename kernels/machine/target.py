"""Facts about a CPU that kernels depend on: vector width, register tile, cache blocks.

One row per instruction-set level; a `Target` is a row bound to a triple, CPU name and features.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

from engine.system.config import require_64_bit


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU to compile for.

    `vector` is the register width in bytes.  `mr` rows times `nv` vectors is the register tile of
    the GEMM micro-kernel; `kc`, `mc`, `nc` (elements) are its largest cache blocks: a `kc` x `nv`
    panel of B stays in L1, an `mc` x `kc` block of A and a `kc` x `nc` block of B in L2.
    `masks`: parts of vectors are loaded and stored by masks.  `by_lane`: one lane of a vector can
    be a factor of a multiply-add, so that A is loaded by vectors.  `prefetch`: tiles ask early for
    what they will read and write, which caches would not guess.  `in_order`: instructions wait for
    those before them, so that loads stand together and not between products.  `unroll`: LLVM may
    unroll loops; hot ones are written out already, on ARM it gains no instruction for a third more
    code.
    `tile_bytes`: what a tile of rows may take that several kernels work on one after another; it
    stays in a cache of this order.
    """

    triple: str
    cpu: str
    features: str
    vector: int
    mr: int
    nv: int
    kc: int = 256
    mc: int = 96
    nc: int = 512
    fma: bool = True
    masks: bool = True
    by_lane: bool = False
    prefetch: bool = False
    in_order: bool = False
    unroll: bool = True
    tile_bytes: int = 1 << 19
    abi: str = ""  # LLVM's name of the calling convention, where the triple does not decide it

    @property
    def arch(self) -> str:
        """First part of the triple: x86_64, aarch64, riscv64, ..."""
        return self.triple.split("-")[0].replace("arm64", "aarch64")

    @property
    def name(self) -> str:
        """Short name that plans print."""
        return f"{self.arch}/{self.cpu}/v{self.vector}"

    @property
    def fused(self) -> tuple[str, ...]:
        """The element types whose multiply-add is one instruction: RV32F has none of f64."""
        types = ("f32",) if self.arch == "riscv32" else ("f32", "f64")
        return types if self.fma else ()

    @property
    def has_pairs(self) -> bool:
        """Return whether an instruction sums products of pairs of bf16 in float32."""
        wanted = BF16_PRODUCTS.get(self.arch, "")
        whole = self.arch != "x86_64" or self.vector == 64
        return whole and f"+{wanted}" in self.features.split(",")

    @property
    def products(self) -> tuple[str, ...]:
        """The types of 16 bits that plans multiply in, and sum in float32."""
        return ("bf16",) if self.has_pairs else ()

    @property
    def dots(self) -> str:
        """The instruction that sums four products of 8-bit integers in each lane; "" for none.

        "vpdpbusd" multiplies unsigned by signed integers, "sdot" signed ones.
        """
        name, wanted = DOTS.get((self.arch, self.vector), ("", ""))
        return name if f"+{wanted}" in self.features.split(",") else ""

    @property
    def casts(self) -> tuple[str, ...]:
        """The types of 16 bits that it has instructions to convert to."""
        half = self.arch == "aarch64" or (self.arch == "x86_64" and self.vector >= 32)
        own = ("bf16",) if self.has_pairs else ()
        return (*own, "f16") if half else own

    def lanes(self, itemsize: int) -> int:
        """Return the elements of `itemsize` bytes in one vector register."""
        return self.vector // itemsize


# level -> (vector bytes, mr, nv, kc).  Accumulators mr*nv, plus nv for B and 1 for A, fit the
# register file: 32 registers on AVX-512 and NEON, 16 on AVX2, SSE and 32-bit NEON.  rv64, rv32 and
# vfp have no vectors: LLVM keeps each lane in one of 32 scalar registers.  How many wasm has is the
# engine's secret, 16 at least.  Where a row of the tile is four vectors of 64 bytes, a panel of B
# comes from L2 anyhow, and deeper blocks spare passes over C.
TILES = {
    "avx512": (64, 6, 4, 384), "avx2": (32, 6, 2, 256), "sse": (16, 6, 2, 256),
    "neon": (16, 8, 2, 256), "neon32": (16, 6, 2, 256), "vfp": (16, 4, 1, 256),
    "rv64": (16, 6, 1, 256), "rv32": (16, 6, 1, 256), "wasm": (16, 4, 2, 256),
}  # fmt: skip
# By LLVM's names.  By its models loads together gain half on Cortex-A53, and lose on Cortex-A55.
IN_ORDER = {"cortex-a53"}
BF16_PRODUCTS = {"x86_64": "avx512bf16", "aarch64": "bf16"}  # LLVM's features, by architecture
# Instructions that sum four products of 8-bit integers in a lane, and LLVM's features, by
# architecture and bytes of a vector.
DOTS = {
    ("x86_64", 64): ("vpdpbusd", "avx512vnni"), ("x86_64", 32): ("vpdpbusd", "avxvnni"),
    ("aarch64", 16): ("sdot", "dotprod"),
}  # fmt: skip
# The features of products that kernels use where a target says that it has them, by architecture.
PRODUCTS = {
    arch: (bf16, *(feature for (of, _), (_, feature) in DOTS.items() if of == arch))
    for arch, bf16 in BF16_PRODUCTS.items()
}
# The features that decide a target, by architecture.
TELLING = {
    "x86_64": ("avx2", "fma", "avx512f", "avx512vl", "avx512dq", *PRODUCTS["x86_64"]),
    "aarch64": PRODUCTS["aarch64"],
}
_ABI = {"rv64": "lp64d", "rv32": "ilp32f"}


def make(triple: str, cpu: str, features: str, level: str, *, fma: bool = True) -> Target:
    """Return a target of the given instruction-set level, a key of `TILES`."""
    vector, mr, nv, kc = TILES[level]
    return Target(
        triple,
        cpu,
        features,
        vector,
        mr,
        nv,
        kc,
        fma=fma,
        abi=_ABI.get(level, ""),
        masks=level in ("avx512", "avx2"),
        by_lane=level == "neon",
        in_order=cpu in IN_ORDER,
        prefetch=level in ("avx512", "avx2", "sse"),
        unroll=level in ("avx512", "avx2", "sse"),
    )


@functools.cache
def detect_host() -> Target:
    """Return the CPU this process runs on.

    Raises:
        EngineError: it is a 32-bit process.
    """
    require_64_bit()
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    features = llvm.get_host_cpu_features()
    flags = features.flatten()
    cpu = llvm.get_host_cpu_name()
    if not triple.startswith("x86_64"):
        return make(triple, cpu, flags, "neon")
    has = {name for name, present in features.items() if present}
    return make(triple, cpu, flags, choose_x86_level(has), fma="fma" in has)


def choose_x86_level(has: Collection[str]) -> str:
    """Return the key of `TILES` for an x86-64 CPU with these features, by LLVM's names."""
    if {"avx512f", "avx512vl", "avx512dq"} <= set(has):
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= set(has) else "sse"
