"""Loading: compile the kernels that the cache lacks, and link all of them into this process."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping

import llvmlite.binding as llvm

from engine.errors import EngineError, InternalError, PlanError
from engine.kernels.compiler import fingerprint
from engine.kernels.registry import templates
from engine.kernels.target import Target, host
from engine.runtime import cache
from engine.runtime.plan import Kernel, KernelSpec


def compile_kernel(spec: KernelSpec, target: Target, *, small: bool = False) -> bytes:
    """Compile one kernel for any target to optimised bitcode; the only way to machine code.

    Raises:
        EngineError: no such template.
        InternalError: the compiler was stopped; it names the kernel and the target.
    """
    from engine.kernels.compiler import (  # numba is loaded only when something must be compiled
        emit,
        lower,
    )

    template = templates().get(spec.template)
    if template is None:
        raise EngineError(f"unknown kernel template {spec.template!r}")
    try:
        texts = lower.lower(template, spec.params, spec.symbol, target)
        return emit.optimize(texts, spec.symbol, target, small=small)
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise InternalError(
            f"kernel {spec.template}{spec.params} cannot be compiled for {target.name}: "
            f"{type(error).__name__}: {reason}; a defect of who wrote the kernel"
        ) from error


def bitcode(spec: KernelSpec, target: Target, *, small: bool = False) -> bytes:
    """The optimised bitcode of a kernel, from the disk cache or compiled and then cached."""
    kind = "small.bc" if small else "bc"
    return _cached(spec, target, kind, lambda: compile_kernel(spec, target, small=small))


def object_code(spec: KernelSpec, target: Target) -> bytes:
    """The object of a kernel, from the disk cache or compiled and then cached."""

    def make() -> bytes:
        from engine.kernels.compiler import emit

        return emit.emit_object(bitcode(spec, target), target)

    return _cached(spec, target, "o", make)


def library_code(
    specs: Iterable[KernelSpec],
    target: Target,
    *,
    table: str,
    data: Mapping[str, bytes],
    small: bool = False,
) -> bytes:
    """One object of many kernels and constant data for a library, see `emit.emit_library`."""
    from engine.kernels.compiler import emit

    parts = {s.symbol: bitcode(s, target, small=small) for s in specs}
    return emit.emit_library(parts, table, data, target)


def _cached(spec: KernelSpec, target: Target, kind: str, make: Callable[[], bytes]) -> bytes:
    """The cached file of a kernel, or what `make` returns.

    A cache that cannot be read or written, or is not trusted, costs time, never a result.
    """
    folder = cache.cache_dir()
    template = templates().get(spec.template)
    if folder is None or template is None:
        return make()
    try:
        origin = fingerprint.origin(template.build)
    except OSError:  # typed at a prompt
        return make()
    key = hashlib.sha256(origin + repr((spec, target)).encode()).hexdigest()
    path = folder / key[:2] / f"{key[2:]}.{kind}"
    if not cache.trusted(folder, path.parent):
        return make()
    kept = cache.read(path)
    if kept is None:
        kept = make()
        cache.write(path, kept)
    return kept


_linking = threading.RLock()  # held by whoever compiles or links


def _renew_lock() -> None:
    """In a forked child: whoever held the lock is gone.

    Waiting for it before the fork would be worse: other packages' hooks hold locks meanwhile, such
    as logging's, which the import of numba needs.
    """
    global _linking
    _linking = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class Linker:
    """Kernels of one target in this process; it lives as long as the process, as do they."""

    def __init__(self, target: Target) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        native = llvm.Target.from_triple(llvm.get_process_triple())
        self.target = target
        self._engine = llvm.create_mcjit_compiler(
            llvm.parse_assembly(""), native.create_target_machine(jit=True)
        )
        self._known: dict[str, int] = {}

    def add(self, symbol: str, code: bytes) -> int:
        """Link one object and return the address of its symbol."""
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        address = self._engine.get_function_address(symbol)
        if not address:
            raise EngineError(f"{symbol}: not found in its own object")
        return int(address)

    def addresses(self, kernels: Iterable[KernelSpec | Kernel]) -> dict[str, int]:
        """Addresses of kernels by symbol, compiling and linking what is new.

        Raises:
            PlanError: a kernel of a plan, which passes it something else than its template takes.
            EngineError: a kernel cannot be compiled.
        """
        with _linking:
            wanted = {k.symbol: _checked(k) if isinstance(k, Kernel) else k for k in kernels}
            for symbol, spec in wanted.items():
                if symbol not in self._known:
                    self._known[symbol] = self.add(symbol, object_code(spec, self.target))
            return {symbol: self._known[symbol] for symbol in wanted}


def _checked(k: Kernel) -> KernelSpec:
    """What to compile for a kernel of a plan, which may be older than its template."""
    template = templates().get(k.spec.template)
    if template is not None and (takes := template.takes(*k.spec.params)) != k.takes:
        raise PlanError(
            f"kernel {k.symbol} takes {' '.join(takes)}; the plan passes {' '.join(k.takes)}"
        )
    return k.spec


@functools.cache
def linker(target: Target) -> Linker:
    """The process's linker for a target that this CPU can run."""
    return Linker(target)


def addresses(kernels: Iterable[KernelSpec | Kernel]) -> dict[str, int]:
    """Addresses of kernels compiled for this CPU; raises as `Linker.addresses`."""
    return linker(host()).addresses(kernels)
