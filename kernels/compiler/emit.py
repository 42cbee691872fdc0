"""Code generation: LLVM IR to object code for any target, with llvmlite alone."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence

import llvmlite.binding as llvm

from engine.base.errors import EngineError, InternalError
from engine.kernels.compiler.calls import Calls, write_caller
from engine.kernels.compiler.results import fix_results
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.vectors import SHARED

_VECTOR = re.compile(r"<\d+ x ")  # the type of a vector in LLVM IR


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def make_machine(target: Target) -> llvm.TargetMachine:
    """Return an LLVM target machine that emits position-independent code, optimisation level 3."""
    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=3,
        reloc="pic",
        codemodel="default",
        abiname=target.abi,
    )


def emit(texts: tuple[str, ...], symbol: str, target: Target) -> bytes:
    """Link IR modules, keep only `symbol` visible, optimise for the target, return the object.

    Raises:
        EngineError: the object would need a symbol from outside: a kernel must be self-contained.
    """
    return emit_object(optimize(texts, symbol, target), target)


def optimize(texts: tuple[str, ...], symbol: str, target: Target, *, small: bool = False) -> bytes:
    """Return bitcode optimised for the target or, if `small`, for few bytes.

    Raises:
        EngineError: see `emit`.
    """
    context = llvm.create_context()
    own = [text for text in texts if not _is_shared(text)]
    module = _optimize([_drop_host(text, small) for text in own], symbol, target, context, small)
    for text in texts:
        if text not in own:
            module.link_in(llvm.parse_bitcode(_optimize_shared(text, target, small), context))
    outside = [f.name for f in module.functions if f.is_declaration]
    outside = [name for name in outside if not name.startswith("llvm.")]
    if outside:
        raise EngineError(f"kernel {symbol} for {target.name} needs outside symbols {outside}")
    return bytes(module.as_bitcode())


def _is_shared(text: str) -> bool:
    """Return whether a module has a function that means the same in all kernels."""
    return f"\ndefine {SHARED} " in text


@functools.lru_cache(maxsize=256)
def _optimize_shared(text: str, target: Target, small: bool) -> bytes:
    """Return the optimised bitcode of a module whose function kernels share."""
    text = _drop_host(text, small).replace(f"\ndefine {SHARED} ", "\ndefine weak_odr ", 1)
    (symbol,) = re.findall(r"^define weak_odr .*?@\"?([^\"(]+)", text, re.MULTILINE)
    module = _optimize([text], symbol, target, llvm.create_context(), small)
    module.get_function(symbol).linkage = SHARED
    return bytes(module.as_bitcode())


def _optimize(
    texts: Sequence[str], symbol: str, target: Target, context: llvm.ContextRef, small: bool
) -> llvm.ModuleRef:
    """Return IR modules as one, optimised; only `symbol` is seen from outside.

    Code of scalar loops gets all that LLVM has.  Code in vectors gets its level 1, once for each
    function: see `_simplify`.
    """
    tm = make_machine(target)
    module = llvm.parse_assembly(texts[0], context)
    for text in texts[1:]:
        module.link_in(llvm.parse_assembly(text, context))
    module.verify()
    module.triple, module.data_layout = target.triple, str(tm.target_data)
    names = 0
    for value in [*module.functions, *module.global_variables]:
        if value.is_declaration or value.name == symbol:
            continue
        # An intrinsic has one meaning by its name.  Seen from outside it is not specialised
        # for this kernel, so that a library of many kernels holds it once.
        shared = value.linkage == llvm.Linkage.internal and value.is_function
        value.linkage = SHARED if shared else "internal"
        if not shared:
            names += 1
            value.name = f"{symbol}.{names}"  # numba's own counts what the process has compiled
    is_scalar = not any(map(_VECTOR.search, texts))
    options = llvm.create_pipeline_tuning_options(speed_level=3 if is_scalar else 1)
    options.loop_vectorization = options.slp_vectorization = is_scalar
    options.loop_unrolling = target.unroll
    builder = llvm.create_pass_builder(tm, options)
    if is_scalar:
        builder.getModulePassManager().run(module, builder)
    else:
        _simplify(module, builder)
    return llvm.parse_assembly(fix_results(str(module), target.fused), context)


def _simplify(module: llvm.ModuleRef, builder: llvm.PassBuilder) -> None:
    """Optimise a module of code in vectors, which leaves LLVM little to improve.

    Its scalar loops are the ends of others, too short for vectors.  Each function is simplified
    once, at level 1, with what it inlines in its place.  LLVM's passes for modules would do so
    three times: alone, where it is inlined, and with its loops unrolled, which are written out
    already.  They take half as long again, for code as fast and a tenth longer, or where it is to
    be small, of the same size.
    """
    dropping = llvm.create_new_module_pass_manager()
    dropping.add_global_dead_code_eliminate_pass()
    inlining = llvm.create_new_module_pass_manager()
    inlining.add_always_inliner_pass()
    inlining.run(module, builder)
    dropping.run(module, builder)
    simplifying = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            simplifying.run(function, builder)
    # Numba's descriptions of exceptions are read no more.  Their addresses are what a linker would
    # have to write, and the one of a process without LLVM cannot (`binaries/objects.py`).
    dropping.run(module, builder)


def emit_object(bitcode: bytes, target: Target) -> bytes:
    """Return the second part of `emit`: machine code of optimised bitcode."""
    module = llvm.parse_bitcode(bitcode, llvm.create_context())
    for function in module.functions:
        if function.linkage == llvm.Linkage.linkonce_odr:
            function.linkage = "internal"
    return bytes(make_machine(target).emit_object(module))


def emit_library(
    parts: Mapping[str, bytes],
    table: str,
    data: Mapping[str, bytes],
    target: Target,
    *,
    calls: Sequence[Calls] = (),
    constants: tuple[str, int] = ("", 0),
    small: bool = False,
    has_threads: bool = True,
    distances: bool = False,
) -> bytes:
    """Return one object of many kernels, given as bitcode by symbol; equal functions are kept once.

    The object exports, to the library it is linked into, `table`, the addresses of the kernels, or
    of the `calls` if there are any, in the order given, and blocks of constant data by name,
    aligned to 64 bytes; for example

        @table = hidden constant [2 x ptr] [ptr @gemm_f32_0_0, ptr @softmax_rows_f32_1]
        @data = hidden externally_initialized constant [3 x i8] c"\\01\\02\\03", align 64

    calls: how the kernels are called, if no other library calls them.  Their code then has the
        words that all calls share as constants, and nothing that no call needs: register tiles,
        kinds of operands, the shares of other threads.
    constants: the symbol and the size of the block in which calls find constants; an object for
        another CPU may have it.
    small: as of `optimize`.
    has_threads: False if one thread alone runs the kernels of a model, which needs no atomics.
    distances: whether the table has, instead of addresses, the bytes from its start to each kernel,
        of 32 bits: a library is shorter by 28 bytes for each, as no loader has to fill them in.

    A large block passes through LLVM as a mark and zeros, and its bytes replace them in the object:
    written out as text it would take a hundred times its size.
    """
    tm = make_machine(target)
    context = llvm.create_context()
    block, size = constants
    blocks = [
        _define_block(name, content, UNIT_BLOCK if calls and name != block else BLOCK)
        for name, content in data.items()
    ]
    if parts:
        names = [each.name for each in calls] or list(parts)
        blocks.append(_define_table(table, names, str(tm.target_data) if distances else ""))
        blocks += [f'declare void @"{symbol}"(ptr, i64, i64)' for symbol in parts]
        if size and block not in data:
            blocks.append(f'@"{block}" = external hidden constant [{size} x i8], align 64')
        for each in calls:
            blocks += write_caller(each, block)
    module = llvm.parse_assembly(_drop_host("\n".join(blocks), small), context)
    module.triple, module.data_layout = target.triple, str(tm.target_data)
    for bitcode in parts.values():
        module.link_in(llvm.parse_bitcode(bitcode, context))
    for function in module.functions:
        if not function.is_declaration:
            function.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    if not has_threads:
        passes.add_lower_atomic_pass()
    if calls:
        _reduce_to_calls(passes)
    passes.add_merge_functions_pass()
    passes.add_constant_merge_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(tm, llvm.create_pipeline_tuning_options()))
    return _fill(tm.emit_object(module), data)


def _reduce_to_calls(passes: llvm.ModulePassManager) -> None:
    """Add passes that carry known words through kernels; `fix_results` settled all sums.

    LLVM's new value numbering is not among them: on some kernels it ends the process, and it saves
    no bytes.
    """
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_ipsccp_pass()
    for _ in range(2):
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_jump_threading_pass()
        passes.add_sccp_pass()
        passes.add_loop_deletion_pass()
        passes.add_aggressive_dce_pass()
        passes.add_simplify_cfg_pass()
        passes.add_global_dead_code_eliminate_pass()
        passes.add_ipsccp_pass()
    passes.add_dead_arg_elimination_pass()


BLOCK, UNIT_BLOCK = 64, 8  # alignment of blocks of data: for registers of kernels, and for words
LARGE = 4096  # bytes of a block from which on it is put into the finished object


def _mark(name: str) -> bytes:
    """Return the mark at the start of a large block until its bytes are there."""
    return hashlib.sha512(name.encode()).digest()


def _define_table(table: str, names: Sequence[str], layout: str) -> str:
    """Return the definition of the table of kernels, see `emit_library`.

    layout: of data, for a table of distances; empty: of addresses.
    """
    rows, kind = [f'ptr @"{name}"' for name in names], "ptr"
    if layout:
        word = "i32" if "-p:32:" in layout else "i64"
        places = [f'{word} ptrtoint (ptr @"{each}" to {word})' for each in (table, *names)]
        rows, kind = [f"{word} sub ({place}, {places[0]})" for place in places[1:]], "i32"
        if word == "i64":
            rows = [f"i32 trunc ({row} to i32)" for row in rows]
    return f'@"{table}" = hidden constant [{len(names)} x {kind}] [{", ".join(rows)}], align 16'


def _define_block(name: str, content: bytes, alignment: int) -> str:
    """Return the definition of a block of constant data, see `emit_library`.

    Kernels read it, but LLVM is not to take its values for theirs: it may be filled in later.
    """
    if len(content) < LARGE:
        kind, value = f"[{len(content)} x i8]", f'c"{_quote(content)}"'
    else:
        mark = _mark(name)
        first, rest = f"[{len(mark)} x i8]", f"[{len(content) - len(mark)} x i8]"
        kind = f"<{{ {first}, {rest} }}>"
        value = f'<{{ {first} c"{_quote(mark)}", {rest} zeroinitializer }}>'
    return f'@"{name}" = hidden externally_initialized constant {kind} {value}, align {alignment}'


def _fill(code: bytes, data: Mapping[str, bytes]) -> bytes:
    """Return the object with the bytes of the large blocks in their places.

    Raises:
        InternalError: a block is not there exactly once.
    """
    places = []
    for name, content in data.items():
        if len(content) >= LARGE:
            at = code.find(_mark(name))
            if at < 0 or code.find(_mark(name), at + 1) >= 0:
                raise InternalError(f"block {name} has no place of its own in the object")
            places.append((at, content))
    pieces, end, view = list[bytes | memoryview](), 0, memoryview(code)
    for at, content in sorted(places):
        pieces += [view[end:at], content]
        end = at + len(content)
    return b"".join([*pieces, view[end:]])


def _quote(content: bytes) -> str:
    """Return the bytes as a text of LLVM assembly: `\\` and two hexadecimal digits each."""
    return re.sub(r"(..)", r"\\\1", content.hex())


def _drop_host(text: str, small: bool) -> str:
    """Drop the host's triple and data layout; forbid loops from turning into calls of libc."""
    attributes = '"no-builtins" nounwind' + (" minsize optsize" if small else "")
    text = re.sub(r"^target (triple|datalayout).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"^(define .*?)(\s*\{)$", rf"\1 {attributes}\2", text, flags=re.MULTILINE)
