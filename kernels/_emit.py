"""LLVM IR to object code for any target, through llvmlite alone."""

from __future__ import annotations

import functools
import re

import llvmlite.binding as llvm

from engine.errors import EngineError
from engine.kernels._target import Target


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def machine(target: Target) -> llvm.TargetMachine:
    """An LLVM target machine that emits position-independent code, optimisation level 3."""
    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="default"
    )


def emit(texts: tuple[str, ...], symbol: str, target: Target) -> bytes:
    """Link IR modules, keep only `symbol` visible, optimise for the target, return the object.

    Raises:
        EngineError: the object would need a symbol from outside: a kernel must be self-contained.
    """
    tm = machine(target)
    context = llvm.create_context()
    module = None
    for text in texts:
        part = llvm.parse_assembly(_neutral(text), context)
        if module is None:
            module = part
        else:
            module.link_in(part)
    assert module is not None
    module.triple, module.data_layout = target.triple, str(tm.target_data)
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration and value.name != symbol:
            value.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(tm, options)
    builder.getModulePassManager().run(module, builder)
    outside = [f.name for f in module.functions if f.is_declaration]
    outside = [name for name in outside if not name.startswith("llvm.")]
    if outside:
        raise EngineError(f"kernel {symbol} for {target.name} needs outside symbols {outside}")
    return bytes(tm.emit_object(module))


def _neutral(text: str) -> str:
    """Drop the host's triple and data layout; forbid loops from turning into calls of libc."""
    text = re.sub(r"^target (triple|datalayout).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"^(define .*?)( \{)$", r'\1 "no-builtins"\2', text, flags=re.MULTILINE)
