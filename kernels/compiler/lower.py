"""Kernel templates to LLVM IR: numba's front end, without its runtime, wrappers or optimiser.

The module that comes out is unoptimised, has no Python symbols, and exports one function a kernel:
`void symbol(const word *args, i64 tid, i64 nthreads)` (see `kernel.py`).
"""

from __future__ import annotations

import types as pytypes
from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.core import codegen, compiler, registry
from numba.core.compiler_lock import global_compiler_lock

from engine.kernels.compiler import natives
from engine.kernels.compiler.words import WordsPointer
from engine.kernels.target import Target
from engine.kernels.vector_ir.vectors import I64, LLVM, NUMBA
from engine.kernels.vocabulary.kernel import Native, Template

# Never nnan or ninf: NaN and infinity keep their meaning.
FASTMATH = {"contract", "nsz", "arcp", "reassoc"}


class _RawLibrary(codegen.AOTCodeLibrary):
    """Leaves IR as the front end wrote it: it is optimised once, for the real target."""

    def _optimize_functions(self, ll_module: Any) -> None: ...
    def _optimize_final_module(self) -> None: ...


class _RawCodegen(codegen.AOTCPUCodegen):
    _library_class = _RawLibrary


def numba_type(name: str, params: tuple[str | int, ...]) -> Any:
    """The numba type of a signature field: `T*`, `f32*`, `i64`, `i64[]`, ..."""
    if name.startswith("T"):
        name = f"{params[0]}{name[1:]}"
    if name.endswith("[]"):
        return types.CPointer(NUMBA[name[:-2]])
    return types.CPointer(NUMBA[name[:-1]]) if name.endswith("*") else NUMBA[name]


def bind(fn: Callable[..., Any], target: Target) -> Any:
    """Copy a kernel function, `Native`s and inline functions replaced by what numba compiles."""

    def real(value: Any) -> Any:
        if isinstance(value, Native):
            return natives.build(value, target)
        if getattr(value, "__kernel_inline__", False):
            return numba.jit(inline="always", nopython=True)(bind(value, target))
        return value

    names = fn.__code__.co_names
    space = {k: real(v) if k in names else v for k, v in fn.__globals__.items()}
    cells = tuple(pytypes.CellType(real(c.cell_contents)) for c in fn.__closure__ or ())
    return pytypes.FunctionType(fn.__code__, space, fn.__name__, fn.__defaults__, cells)


def lower(
    template: Template, params: tuple[str | int, ...], symbol: str, target: Target
) -> tuple[str, str]:
    """Lower one kernel; returns the IR texts of its body and of its entry point `symbol`."""
    flags = compiler.Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.nrt = False
    flags.error_model = "numpy"
    flags.fastmath = FASTMATH
    body = bind(template.build(target, *params), target)
    layouts = template.layouts(params)
    fields = [
        WordsPointer(layouts[name]) if name in layouts else numba_type(kind, params)
        for name, kind in template.signature
    ]
    signature = types.void(*fields, types.int64, types.int64)
    cpu = registry.cpu_target
    context = cpu.target_context.subtarget(_internal_codegen=_RawCodegen(symbol), aot_mode=True)
    library = context.codegen().create_library(symbol)
    with global_compiler_lock:
        result = compiler.compile_extra(
            cpu.typing_context,
            context,
            body,
            signature.args,
            signature.return_type,
            flags,
            {},
            library=library,
        )
        inner = f"{symbol}.body"
        library.get_function(result.fndesc.llvm_func_name).name = inner
        library.finalize()
    return library.get_llvm_str(), _entry(symbol, inner, [k for _, k in template.signature])


def _entry(symbol: str, inner: str, kinds: list[str]) -> str:
    """The exported function, e.g. for `x:T* n:i64`:

    define void @sym(ptr %args, i64 %tid, i64 %n) {
      %p0 = getelementptr i64, ptr %args, i64 0
      %a0 = load ptr, ptr %p0
      %p1 = getelementptr i64, ptr %args, i64 1
      %a1 = load i64, ptr %p1
      %s = call i32 @"sym.body"(ptr %ret, ptr %exc, ptr %a0, i64 %a1, i64 %tid, i64 %n)
      ret void
    }
    """
    lines, call, types_ = [], [], []
    for i, kind in enumerate(kinds):
        lines.append(f"  %p{i} = getelementptr i64, ptr %args, i64 {i}")
        if kind.endswith("[]"):
            call.append(f"ptr %p{i}")
            types_.append("ptr")
            continue
        ty = "ptr" if kind.endswith("*") else str(LLVM.get(kind, I64))
        lines.append(f"  %a{i} = load {ty}, ptr %p{i}")
        call.append(f"{ty} %a{i}")
        types_.append(ty)
    params = ", ".join(["ptr", "ptr", *types_, "i64", "i64"])
    args = ", ".join(["ptr %ret", "ptr %exc", *call, "i64 %tid", "i64 %n"])
    return "\n".join(
        [
            f'declare i32 @"{inner}"({params})',
            f'define void @"{symbol}"(ptr %args, i64 %tid, i64 %n) {{',
            "  %ret = alloca ptr",
            "  %exc = alloca ptr",
            *lines,
            f'  %s = call i32 @"{inner}"({args})',
            "  ret void",
            "}",
        ]
    )
