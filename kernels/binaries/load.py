"""Loading: compile the kernels that the cache lacks, and link all of them into this process.

The processes of `workers.py` compile many kernels in parallel.  Kernels that they do not know, or
fail at, are compiled here.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.base.errors import EngineError, InternalError, PlanError
from engine.kernels.binaries import fingerprint, object_files, objects
from engine.kernels.loops import executor
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.registry import find_home, list_templates
from engine.plan.plan import Kernel, KernelSpec
from engine.runtime.team import LAUNCH, WORKER
from engine.system import cache
from engine.system.config import PREFIX
from engine.system.progress import WorkProgress

if TYPE_CHECKING:  # a process that compiles nothing does not import them
    from concurrent.futures import Future

    from engine.kernels.binaries import workers
    from engine.kernels.compiler.calls import Calls

OBJECT, BITCODE, SMALL_BITCODE = "o", "bc", "small.bc"  # kinds of code, as the cache names them
_BITCODE_MAGIC = b"BC\xc0\xde"
USUAL = 32  # kernels of a plan, before it is known
LONG = 6  # times as long as others that kernels take to compile which multiply; `bench compiling`


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

    template = list_templates().get(spec.template)
    if template is None:
        raise EngineError(f"unknown kernel template {spec.template!r}")
    try:
        texts = lower.lower(template, spec.params, spec.symbol, target)
        return emit.optimize(texts, spec.symbol, target, small=small)
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise InternalError(
            f"kernel {spec.template}{spec.params} cannot be compiled for {target.name}: "
            f"{type(error).__name__}: {reason}; this is a defect of the kernel"
        ) from error


def get_bitcode(spec: KernelSpec, target: Target, *, small: bool = False) -> bytes:
    """Return the optimised bitcode of a kernel, from the disk cache or compiled and then cached."""
    kind = SMALL_BITCODE if small else BITCODE
    return _get_cached(spec, target, kind, lambda: compile_kernel(spec, target, small=small))


def get_object(spec: KernelSpec, target: Target) -> bytes:
    """Return the object of a kernel, from the disk cache or compiled and then cached."""

    def make() -> bytes:
        from engine.kernels.compiler import emit

        return emit.emit_object(get_bitcode(spec, target), target)

    return _get_cached(spec, target, OBJECT, make)


def get_library(
    specs: Iterable[KernelSpec],
    target: Target,
    *,
    table: str,
    data: Mapping[str, bytes],
    small: bool = False,
    calls: Sequence[Calls] = (),
    constants: tuple[str, int] = ("", 0),
    has_threads: bool = True,
    distances: bool = False,
) -> bytes:
    """Return one object of many kernels and constant data; see `emit.emit_library`."""
    from engine.kernels.compiler import emit

    parts = get_codes(specs, target, SMALL_BITCODE if small else BITCODE)
    return emit.emit_library(
        parts, table, data, target,
        calls=calls, constants=constants, small=small, has_threads=has_threads,
        distances=distances,
    )  # fmt: skip


def get_codes(specs: Iterable[KernelSpec], target: Target, kind: str) -> dict[str, bytes]:
    """Return the code of kernels by symbol, in order; those not cached are compiled in parallel.

    Raises:
        EngineError, InternalError: see `compile_kernel`.
    """
    wanted = {spec.symbol: spec for spec in specs}
    cached = {symbol: _read(spec, target, kind) for symbol, spec in wanted.items()}
    lacking = [spec for symbol, spec in wanted.items() if cached[symbol] is None]
    made = _compile(lacking, target, kind) if lacking else {}
    return {symbol: code or made[symbol] for symbol, code in cached.items()}


def start_early(target: Target) -> None:
    """Begin to compile the executor, which every plan needs, if the cache lacks it.

    This returns at once.  A cache without the executor lacks most of what a plan needs besides, so
    that the processes which compile that may as well start while a model is read and planned.
    """
    specs = (LAUNCH, WORKER)
    if any(_read(spec, target, OBJECT) is not None for spec in specs):
        return
    from engine.kernels.binaries import workers

    if (count := workers.count_useful(USUAL)) < 2 or not _linking.acquire(blocking=False):
        return  # one core, or another thread compiles already
    try:
        if not _coming:
            home = executor.__name__
            jobs = [
                workers.CompileJob(home, s, target, small=False, machine_code=True) for s in specs
            ]
            futures = workers.pool().submit(jobs, count)
            _coming.update({(target, s): f for s, f in zip(specs, futures, strict=True)})
    finally:
        _linking.release()


def compile_ahead(specs: Iterable[KernelSpec], target: Target) -> None:
    """Begin to compile kernels that a plan will need, after `start_early`; returns at once.

    They are known before its calls are in order and its values have places, half-way to a plan.
    Where nothing was started early, the cache has most of them.
    """
    if not _coming or not _linking.acquire(blocking=False):
        return
    try:
        new = [spec for spec in dict.fromkeys(specs) if (target, spec) not in _coming]
        lacking = [spec for spec in new if _read(spec, target, OBJECT) is None]
        begun = _submit(lacking, target, OBJECT)
        _coming.update({(target, spec): future for spec, future in begun.items()})
    finally:
        _linking.release()


def _compile(specs: Sequence[KernelSpec], target: Target, kind: str) -> dict[str, bytes]:
    """Compile kernels that the cache lacks, and keep their code there; returns it by symbol."""
    from concurrent.futures import FIRST_COMPLETED, wait

    from engine.kernels.binaries import workers

    made: dict[str, bytes] = {}
    times = {spec: LONG if _multiplies(spec) else 1 for spec in specs}
    shares = {spec: time / sum(times.values()) for spec, time in times.items()}
    of = "this CPU" if kind == OBJECT else target.name
    text = f"compiling {{count}} kernels for {of}"
    with WorkProgress(text, len(specs), _say_where()) as progress:
        coming = _submit(specs, target, kind)
        try:
            for spec in specs:
                if spec not in coming:
                    made[spec.symbol] = _compile_here(spec, target, kind)
                    progress.count(1, shares[spec])
            by_future = {future: spec for spec, future in coming.items()}
            pending = set(by_future)
            while pending:
                done, pending = wait(pending, 0.1, FIRST_COMPLETED)
                for future in done:
                    if future.exception() is None:
                        spec = by_future[future]
                        made[spec.symbol] = _keep_answer(spec, target, kind, future.result())
                        progress.count(1, shares[spec])
                progress.count()
            for spec in specs:
                if spec.symbol not in made:  # a process has failed at it
                    made[spec.symbol] = _compile_here(spec, target, kind)
                    progress.count(1, shares[spec])
        except BaseException:
            workers.stop()
            raise
    return made


def _submit(
    specs: Sequence[KernelSpec], target: Target, kind: str
) -> dict[KernelSpec, Future[workers.Code]]:
    """Give to other processes what they can compile, if they can do so sooner than this one."""
    from engine.kernels.binaries import workers

    coming = {}
    if kind == OBJECT:
        begun = [spec for spec in specs if (target, spec) in _coming]
        coming = {spec: _coming.pop((target, spec)) for spec in begun}
    templates = list_templates()
    homes = {s: find_home(templates[s.template]) for s in specs if s.template in templates}
    able = [spec for spec in specs if spec not in coming and homes.get(spec) is not None]
    # Slow ones begun last would leave cores idle; similar ones lie side by side.
    able.sort(key=lambda spec: (not _multiplies(spec), spec.template, str(spec.params)))
    count, pool = workers.count_useful(len(able)), workers.pool()
    if able and (count > 1 or pool.running):
        small, machine_code = kind == SMALL_BITCODE, kind == OBJECT
        jobs = [workers.CompileJob(homes[s] or "", s, target, small, machine_code) for s in able]
        coming |= dict(zip(able, pool.submit(jobs, count), strict=True))
    return coming


def _multiplies(spec: KernelSpec) -> bool:
    """Return whether a kernel is one of those that take several times as long as the others."""
    template = list_templates().get(spec.template)
    return template is not None and bool(template.multiply_adds)


def _compile_here(spec: KernelSpec, target: Target, kind: str) -> bytes:
    """Compile a kernel in this process, and keep its code in the cache."""
    if kind == OBJECT:
        return get_object(spec, target)
    return get_bitcode(spec, target, small=kind == SMALL_BITCODE)


def _keep_answer(spec: KernelSpec, target: Target, kind: str, answer: workers.Code) -> bytes:
    """Keep in the cache what another process has compiled; returns the code of this kind."""
    bitcode, machine_code = answer
    if machine_code is None:
        _keep(spec, target, kind, bitcode)
        return bitcode
    _keep(spec, target, BITCODE, bitcode)
    _keep(spec, target, OBJECT, machine_code)
    return machine_code


def _say_where() -> str:
    """Return where compiled code is kept, as the end of a progress message."""
    folder = cache.find_cache_dir()
    if folder is not None and cache.can_write(folder):
        return f"once, kept in {folder}"
    reason = "there is no home folder" if folder is None else f"{folder} cannot be written"
    return f"not kept for the next start: {reason}; {PREFIX}CACHE_DIR chooses another folder"


def _get_cached(spec: KernelSpec, target: Target, kind: str, make: Callable[[], bytes]) -> bytes:
    """Return the code of a kernel from the cache, or what `make` returns.

    A cache that cannot be read or written, or is not trusted, costs time, never a result.
    """
    code = _read(spec, target, kind)
    if code is None:
        code = make()
        _keep(spec, target, kind, code)
    return code


def _find_entry(spec: KernelSpec, target: Target, kind: str) -> cache.Entry | None:
    """Return where the cache keeps the code of a kernel, if it does."""
    folder = cache.find_cache_dir()
    own = (t for t in executor.KERNELS if t.name == spec.template)  # sooner found than all others
    template = next(own, None) or list_templates().get(spec.template)
    if folder is None or template is None:
        return None
    try:
        origin = fingerprint.digest_origin(template.build)
    except OSError:  # typed at a prompt
        return None
    key = hashlib.sha256(cache.MAGIC + origin + repr((spec, target)).encode()).hexdigest()
    return cache.Entry(folder / key[:2] / f"{key[2:]}.{kind}", kind, key)


def _read(spec: KernelSpec, target: Target, kind: str) -> bytes | None:
    """Return the code that the cache holds of a kernel, if it is whole.

    Code is validated before LLVM or this process gets it: their readers believe a damaged file.
    """
    entry = _find_entry(spec, target, kind)
    code = None if entry is None else cache.read(entry)
    if code is None:
        return None
    if kind == OBJECT:
        return code if object_files.fits(code, spec.symbol, target) else None
    return code if code.startswith(_BITCODE_MAGIC) else None


def _keep(spec: KernelSpec, target: Target, kind: str, code: bytes) -> None:
    """Put the code of a kernel into the cache, if it can be written."""
    entry = _find_entry(spec, target, kind)
    if entry is not None:
        cache.write(entry, code)


_linking = threading.RLock()  # held by whoever compiles or links
_coming: dict[tuple[Target, KernelSpec], Future[workers.Code]] = {}  # objects, by a head start


def _renew_lock() -> None:
    """Renew the lock in a forked child, where the thread that held it is gone.

    Waiting for it before the fork would be worse: other packages' hooks hold locks meanwhile, such
    as logging's, which the import of numba needs.
    """
    global _linking
    _linking = threading.RLock()
    _coming.clear()  # from processes that work for the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class Linker:
    """Kernels of one target in this process; it lives as long as the process, as do they.

    Their objects are put into memory by `objects.link`, and those that it does not know by LLVM,
    which is loaded for that.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._engine: Any = None  # LLVM's linker, once it is needed
        self._known: dict[str, int] = {}

    def add(self, symbol: str, code: bytes) -> int:
        """Link one object and return the address of its symbol."""
        return self._link({symbol: code})[symbol]

    def _link(self, codes: Mapping[str, bytes]) -> dict[str, int]:
        """Link objects by the symbols that they define; returns the addresses of these."""
        linked = objects.link(codes)
        return linked | {s: self._link_by_llvm(s, codes[s]) for s in codes if s not in linked}

    def _link_by_llvm(self, symbol: str, code: bytes) -> int:
        """Return the address of a symbol; the object is checked first, since LLVM does not."""
        if not object_files.fits(code, symbol, self.target):
            raise EngineError(f"{symbol}: not found in its own object")
        import llvmlite.binding as llvm

        if self._engine is None:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            native = llvm.Target.from_triple(llvm.get_process_triple())
            self._engine = llvm.create_mcjit_compiler(
                llvm.parse_assembly(""), native.create_target_machine(jit=True)
            )
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        address = self._engine.get_function_address(symbol)
        if not address:
            raise EngineError(f"{symbol}: not found in its own object")
        return int(address)

    def get_addresses(self, kernels: Iterable[KernelSpec | Kernel]) -> dict[str, int]:
        """Return the addresses of kernels by symbol, compiling and linking what is new.

        Raises:
            PlanError: a kernel of a plan, which passes it something else than its template takes.
            EngineError: a kernel cannot be compiled.
        """
        with _linking:
            wanted = {k.symbol: _check_kernel(k) if isinstance(k, Kernel) else k for k in kernels}
            new = [spec for symbol, spec in wanted.items() if symbol not in self._known]
            self._known |= self._link(get_codes(new, self.target, OBJECT))
            return {symbol: self._known[symbol] for symbol in wanted}


def _check_kernel(k: Kernel) -> KernelSpec:
    """Return the spec to compile for a kernel of a plan, which may be older than its template."""
    template = list_templates().get(k.spec.template)
    if template is not None and (takes := template.takes(*k.spec.params)) != k.takes:
        raise PlanError(
            f"kernel {k.symbol} takes {' '.join(takes)}; the plan passes {' '.join(k.takes)}"
        )
    return k.spec


@functools.cache
def get_linker(target: Target) -> Linker:
    """Return the process's linker for a target that this CPU can run."""
    return Linker(target)


def get_addresses(kernels: Iterable[KernelSpec | Kernel]) -> dict[str, int]:
    """Return the addresses of kernels compiled for this CPU; raises as `Linker.get_addresses`."""
    return get_linker(detect_host()).get_addresses(kernels)
