"""Facts about a CPU that kernels depend on: vector width, register tile, cache blocks.

One row per instruction set; a `Target` is a row bound to a triple, CPU name and features.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Set
from dataclasses import dataclass

from engine.kernels.machine.features import find_features
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
    def machine(self) -> str:
        """The architecture as its binaries name it: all 32-bit Arm cores are `arm`."""
        return "arm" if self.arch.startswith(("armv", "thumb")) else self.arch

    @property
    def name(self) -> str:
        """Short name that plans print."""
        return f"{self.arch}/{self.cpu}/v{self.vector}"

    @property
    def fused(self) -> tuple[str, ...]:
        """The element types whose multiply-add is one instruction: RV32F has none of f64."""
        types = ("f32",) if self.arch == "riscv32" else ("f32", "f64")
        return types if self.fma else ()

    def multiplies(self, P: str) -> bool:
        """Return whether it has an instruction for products of factors P, a key of `FACTORS`.

        It sums products of pairs of bf16 in float32, or adds a product of f16 to a sum of f16.
        """
        wanted = HALF_PRODUCTS.get(self.arch, {}).get(P, "")
        whole = self.arch != "x86_64" or self.vector == 64
        return whole and f"+{wanted}" in self.features.split(",")

    @property
    def address_bits(self) -> int:
        """The bits of an address: 32 or 64."""
        return 32 if self.machine in ("arm", "riscv32", "wasm32") else 64

    @property
    def is_elf(self) -> bool:
        """True if its object files are of ELF, as everywhere but with Apple, Microsoft and Wasm."""
        return not any(word in self.triple for word in ("apple", "windows", "wasm"))

    @property
    def has_tile_registers(self) -> bool:
        """True if it multiplies bf16 by tile registers (AMX), which a process asks Linux for.

        Libraries ask (`tools/trimmed/runtime/cpu.c`).  Python does not: see `detect_host`.
        """
        named = f"+{TILE_PRODUCTS}" in self.features.split(",")
        return named and self.multiplies("bf16") and "linux" in self.triple.split("-")

    @property
    def products(self) -> tuple[str, ...]:
        """The types of 16 bits that plans multiply in, and sum in float32."""
        return tuple(P for P in FACTORS if self.multiplies(P))

    @property
    def dots(self) -> str:
        """The best instruction that sums products of 8-bit integers in each lane; "" for none.

        "vpdpbusd" multiplies four unsigned by signed integers, "sdot" four signed ones.  "smmla"
        multiplies eight, of two rows by two columns, and stands for all that comes with it: for
        activations of either sign, and for dot products of them.
        """
        return next(reversed(self.list_dots()), "")

    def list_dots(self) -> list[str]:
        """Return the instructions that sum products of 8-bit integers, the best last.

        A better one is used beside those before it, so a target without these has none of it.
        """
        told = self.features.split(",")
        rows = DOTS.get((self.arch, self.vector), ())
        return [name for name, _ in itertools.takewhile(lambda row: f"+{row[1]}" in told, rows)]

    @property
    def casts(self) -> tuple[str, ...]:
        """The types of 16 bits that it has instructions to convert to."""
        half = self.arch == "aarch64" or (self.arch == "x86_64" and self.vector >= 32)
        own = ("bf16",) if self.multiplies("bf16") else ()
        return (*own, "f16") if half else own

    @property
    def keeps_order(self) -> bool:
        """True if instructions stay as LLVM orders them: an engine compiles WebAssembly so."""
        return self.arch == "wasm32"

    def lanes(self, itemsize: int) -> int:
        """Return the elements of `itemsize` bytes in one vector register."""
        return self.vector // itemsize


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """A family of instructions that many CPUs share, and the choices that kernels make for it.

    architectures: the first parts of the triples that have these instructions.
    needs: LLVM's features without which a CPU of these architectures has another set.
    vector, mr, nv, kc, fma, masks, by_lane, prefetch, unroll, abi: as in `Target`.
    features: LLVM's features of a target that names neither its own nor a CPU that has them.

    The accumulators, mr * nv, plus nv vectors of B and one of A fit the registers: 32 on AVX-512
    and NEON, 16 on AVX2, SSE and 32-bit NEON.  rv64, rv32 and vfp have no vectors: LLVM keeps each
    lane in one of 32 scalar registers.  WebAssembly does not say how many an engine has: V8 has 15
    on x86, and without relaxed SIMD a product takes one of them before it is added.  Where a row of
    the tile is four vectors of 64 bytes, a panel of B comes from L2 anyhow, and deeper blocks save
    passes over C.
    """

    architectures: tuple[str, ...]
    vector: int
    mr: int
    nv: int
    kc: int = 256
    fma: bool = True
    masks: bool = False
    by_lane: bool = False
    prefetch: bool = False
    unroll: bool = False
    abi: str = ""
    features: str = ""
    needs: tuple[str, ...] = ()


_X86 = ("x86_64",)
# The best of an architecture first; every CPU of it has the last.
INSTRUCTION_SETS = {
    "avx512": InstructionSet(
        _X86, 64, 6, 4, 384, masks=True, prefetch=True, unroll=True,
        needs=("avx512f", "avx512vl", "avx512dq"),
    ),
    "avx2": InstructionSet(
        _X86, 32, 6, 2, masks=True, prefetch=True, unroll=True, needs=("avx2", "fma")
    ),
    "sse": InstructionSet(_X86, 16, 6, 2, fma=False, prefetch=True, unroll=True),
    "neon": InstructionSet(("aarch64", "arm64"), 16, 8, 2, by_lane=True),
    "neon32": InstructionSet(("armv7", "armv7a"), 16, 6, 2, features="+neon,+vfp4"),
    "vfp": InstructionSet(
        ("armv6", "thumbv7em", "thumbv8m.main", "thumbv8.1m.main"), 16, 4, 1, fma=False
    ),
    "rv64": InstructionSet(("riscv64",), 16, 6, 1, abi="lp64d", features="+m,+a,+f,+d,+c"),
    "rv32": InstructionSet(("riscv32",), 16, 6, 1, abi="ilp32f", features="+m,+a,+f,+c"),
    "wasm_relaxed": InstructionSet(
        ("wasm32",), 16, 6, 2, fma=False, features="+simd128,+relaxed-simd",
        needs=("relaxed-simd",),
    ),
    "wasm": InstructionSet(("wasm32",), 16, 5, 2, fma=False, features="+simd128"),
}  # fmt: skip
# The one that a triple alone stands for, by architecture.
BASELINES = {a: name for name, row in INSTRUCTION_SETS.items() for a in row.architectures}
# By LLVM's names.  By its models loads together gain half on Cortex-A53, and lose on Cortex-A55.
IN_ORDER = {"cortex-a53"}
# The types of factors of 16 bits -> factors that lie together as one element of a panel.
FACTORS = {"bf16": 2, "f16": 1}
# LLVM's features of instructions that multiply them, by architecture.
HALF_PRODUCTS = {
    "x86_64": {"bf16": "avx512bf16"},
    "aarch64": {"bf16": "bf16", "f16": "fullfp16"},
}
# LLVM's feature of products of bf16 by tile registers.  The name of a CPU alone does not stand for
# it: Linux may refuse a process these registers.
TILE_PRODUCTS = "amx-bf16"
# Instructions that sum products of 8-bit integers in a lane, and LLVM's features, the best last, by
# architecture and bytes of a vector.
DOTS = {
    ("x86_64", 64): (("vpdpbusd", "avx512vnni"),), ("x86_64", 32): (("vpdpbusd", "avxvnni"),),
    ("aarch64", 16): (("sdot", "dotprod"), ("smmla", "i8mm")),
}  # fmt: skip
# The features of products that kernels use where a target says that it has them, by architecture.
PRODUCTS = {
    arch: (
        *own.values(),
        *(feature for (of, _), rows in DOTS.items() if of == arch for _, feature in rows),
    )
    for arch, own in HALF_PRODUCTS.items()
}
# The features that decide a target, by architecture.
TELLING = {
    arch: (
        *(name for row in INSTRUCTION_SETS.values() if arch in row.architectures
          for name in row.needs),
        *products,
    )
    for arch, products in PRODUCTS.items()
}  # fmt: skip


def explain_storage(target: Target, P: str) -> str:
    """Return why factors P, a key of `FACTORS`, are only stored on a target; "" if it multiplies
    them.

    The text says what products of P take, and what a planner that may choose does instead.
    """
    if P in target.products:
        return ""
    wanted = " or ".join(f"{row[P]} on {arch}" for arch, row in HALF_PRODUCTS.items() if P in row)
    chosen = "takes f32, or bf16 where only that keeps to a budget"
    if target.products:
        chosen = f"chooses between f32 and {', '.join(target.products)}"
    return (
        f"{P} in memory alone, as {target.name} multiplies it in float32; products of {P} take "
        f"{wanted}; auto {chosen}"
    )


def make(
    triple: str, cpu: str, features: str, instructions: str, *, fma: bool | None = None
) -> Target:
    """Return a target with instructions of a set.

    instructions: a key of `INSTRUCTION_SETS`.
    fma: whether the CPU multiplies and adds in one instruction; None: as CPUs of the set do.
    """
    row = INSTRUCTION_SETS[instructions]
    return Target(
        triple,
        cpu,
        features,
        row.vector,
        row.mr,
        row.nv,
        row.kc,
        fma=row.fma if fma is None else fma,
        abi=row.abi,
        masks=row.masks,
        by_lane=row.by_lane,
        in_order=cpu in IN_ORDER,
        prefetch=row.prefetch,
        unroll=row.unroll,
    )


@functools.cache
def detect_host() -> Target:
    """Return the CPU this process runs on, without tile registers: nothing here asks for them.

    Raises:
        EngineError: it is a 32-bit process.
    """
    require_64_bit()
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    features = llvm.get_host_cpu_features()
    features.update({name: False for name in features if name.startswith("amx-")})
    flags = features.flatten()
    cpu = llvm.get_host_cpu_name()
    if not triple.startswith("x86_64"):
        # LLVM tells few features of this system, but knows what the CPU has by its name.
        implied = find_features(triple, cpu, flags, PRODUCTS["aarch64"])
        return make(triple, cpu, tell_products("aarch64", flags, implied), "neon")
    has = {name for name, present in features.items() if present}
    return make(triple, cpu, flags, choose_instructions("x86_64", has), fma="fma" in has)


def tell_products(arch: str, features: str, has: Set[str]) -> str:
    """Return features of a CPU that also name the products of small numbers that it has.

    features: LLVM's, with commas.  has: what the CPU has, also by its name.
    """
    told = features.split(",") if features else []
    products = [f"+{name}" for name in PRODUCTS[arch] if name in has]
    return ",".join([*told, *(name for name in products if name not in told)])


def choose_instructions(arch: str, has: Set[str]) -> str:
    """Return the key of the best instruction set for a CPU with these features of LLVM."""
    return next(
        name
        for name, row in INSTRUCTION_SETS.items()
        if arch in row.architectures and has >= {*row.needs}
    )
