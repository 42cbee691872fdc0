"""Object code into this process: compile what the cache lacks, link in memory, hand out addresses."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

import llvmlite.binding as llvm

from engine.config import switch
from engine.errors import EngineError
from engine.kernels import templates
from engine.kernels._target import Target, host
from engine.plan import KernelSpec

_lock = threading.Lock()
_addresses: dict[str, int] = {}


@functools.cache
def _engine() -> llvm.ExecutionEngine:
    """The one in-process linker; it lives as long as the process, as do the kernels."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@functools.cache
def _fingerprint() -> bytes:
    """Digest of all that decides the code of a kernel besides its spec and target."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    for name in ("numba", "llvmlite"):
        digest.update(f"{name} {importlib.metadata.version(name)}".encode())
    digest.update(sys.version.encode())
    return digest.digest()


def cache_dir() -> Path:
    """Where object code is kept: EDGEGRAD_CACHE_DIR, else the user's cache folder."""
    chosen = switch("CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "edgegrad"


def compile_kernel(spec: KernelSpec, target: Target) -> bytes:
    """Compile one kernel for any target; the only way to machine code in this project."""
    from engine.kernels import _emit, _lower  # numba is loaded only when something must be compiled

    template = templates().get(spec.template)
    if template is None:
        raise EngineError(f"unknown kernel template {spec.template!r}")
    texts = _lower.lower(template, spec.params, spec.symbol, target)
    return _emit.emit(texts, spec.symbol, target)


def object_code(spec: KernelSpec, target: Target) -> bytes:
    """The object of a kernel, from the disk cache or compiled and then cached.

    A cache that cannot be read or written costs time, never a result: its files are checked by the
    digest they start with, and written under a temporary name first.
    """
    key = hashlib.sha256(_fingerprint() + repr((spec, target)).encode()).hexdigest()
    path = cache_dir() / key[:2] / f"{key[2:]}.o"
    try:
        raw = path.read_bytes()
        if len(raw) > 32 and hashlib.sha256(raw[32:]).digest() == raw[:32]:
            return raw[32:]
    except OSError:
        pass
    code = compile_kernel(spec, target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(file.name, path)
    except OSError:
        pass
    return code


def addresses(specs: Iterable[KernelSpec]) -> dict[str, int]:
    """Addresses of kernels in this process by symbol, compiling and linking what is new."""
    with _lock:
        wanted = {s.symbol: s for s in specs}
        new = [s for symbol, s in wanted.items() if symbol not in _addresses]
        linker = _engine()
        for spec in new:
            linker.add_object_file(llvm.ObjectFileRef.from_data(object_code(spec, host())))
        if new:
            linker.finalize_object()
        for spec in new:
            address = linker.get_function_address(spec.symbol)
            if not address:
                raise EngineError(f"kernel {spec.symbol}: not found in its own object")
            _addresses[spec.symbol] = address
        return {symbol: _addresses[symbol] for symbol in wanted}
