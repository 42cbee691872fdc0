"""Lowering of kernel templates to LLVM IR with numba's front end, without its runtime or optimiser.

The resulting module is unoptimised, has no Python symbols, and exports one function per kernel:
`void symbol(const word *args, i64 tid, i64 nthreads)` (see `kernel.py`).
"""

from __future__ import annotations

import types as pytypes
from collections.abc import Callable, Hashable
from typing import Any

from numba import types
from numba.core.compiler_lock import global_compiler_lock

from engine.kernels.compiler import frontend, intrinsics
from engine.kernels.compiler.arguments import Arguments
from engine.kernels.compiler.words import WordsPointer
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.vectors import I64, LLVM, NUMBA
from engine.kernels.vocabulary.kernel import BY_NAME, Intrinsic, Template

_INLINE: dict[Hashable, frontend.Callee] = {}  # by code, what it closes over, and target


def find_numba_type(name: str) -> Any:
    """Return the numba type of a resolved signature field: `f32*`, `i64`, `i64[]`, ...

    Code takes a pointer to one of several types, `u8|i8*`, as one to the first.
    """
    if "|" in name:
        name = f"{name.partition('|')[0]}*"
    if name.endswith("[]"):
        return types.CPointer(NUMBA[name[:-2]])
    return types.CPointer(NUMBA[name[:-1]]) if name.endswith("*") else NUMBA[name]


def bind(fn: Callable[..., Any], target: Target) -> Any:
    """Copy a kernel function, `Intrinsic`s and inline functions replaced by what numba compiles."""

    def make_real(value: Any) -> Any:
        if isinstance(value, Intrinsic):
            return intrinsics.build(value, target)
        inlined = getattr(value, "__kernel_inline__", None)
        if inlined is not None:
            key = (target, frontend.make_key(value))
            if key not in _INLINE:
                _INLINE[key] = frontend.get_callee(bind(value, target), inline=inlined)
            return _INLINE[key]
        return value

    names = fn.__code__.co_names
    space = intrinsics.BUILTINS | {
        k: make_real(v) if k in names else v for k, v in fn.__globals__.items()
    }
    cells = tuple(pytypes.CellType(make_real(c.cell_contents)) for c in fn.__closure__ or ())
    return pytypes.FunctionType(fn.__code__, space, fn.__name__, fn.__defaults__, cells)


@global_compiler_lock
def lower(
    template: Template, params: tuple[str | int, ...], symbol: str, target: Target
) -> tuple[str, ...]:
    """Lower one kernel; returns the IR texts of its body, of what that calls, and of `symbol`."""
    body = bind(template.build(target, *params), target)
    layouts = template.layouts(params)
    fields = [
        WordsPointer(layouts[name])
        if name in layouts
        else find_numba_type(template.resolved(kind, params))
        for name, kind in template.signature
    ]
    if body.__code__.co_varnames[0] == BY_NAME:
        names = [p.name for p in template.parameters]
        fields = [Arguments(tuple(zip(names, fields, strict=True)))]
    args = (*fields, types.int64, types.int64)
    # The body has one caller, the entry: inlined first, it goes through LLVM's passes once only.
    result = frontend.compile_function(body, args, symbol, types.void, inline=True)
    entry = _write_entry(symbol, result.fndesc.llvm_func_name, [k for _, k in template.signature])
    return *result.library.list_texts(), entry


def _write_entry(symbol: str, inner: str, kinds: list[str]) -> str:
    """Return the exported function, e.g. for `x:T* n:i64`:

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
