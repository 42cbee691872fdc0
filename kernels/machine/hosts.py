"""The CPU of this machine, as LLVM tells it once: what it said is kept in the cache folder.

To ask LLVM is to load its library, which takes 40 MB.  A process that compiles nothing, since all
its kernels are in the cache, does without.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict, astuple, fields

from engine.kernels.machine.target import Target, detect_host, make
from engine.system import cache
from engine.system.installation import find_version

_NAME = "host"  # how names of these files begin
_FACTS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
CPUINFO = "/proc/cpuinfo"


@functools.cache
def find_host() -> Target:
    """Return the target of this process's CPU, as `detect_host` makes it.

    Raises:
        EngineError: as `detect_host`.
    """
    name = _name()
    folder = cache.find_cache_dir()
    if name is None or folder is None:
        return detect_host()
    entry = cache.Entry(folder / name, _NAME, name)
    known = _read_target(cache.read(entry))
    if known is None:
        known = detect_host()
        cache.write(entry, json.dumps(asdict(known)).encode())
    return known


def _read_target(raw: bytes | None) -> Target | None:
    """Return the target that an entry holds; None if it holds none, as one of another version."""
    try:
        target = Target(**json.loads(raw or b""))
    except (ValueError, TypeError, RecursionError):
        return None
    kinds = [type(value).__name__ for value in astuple(target)]
    return target if kinds == [each.type for each in fields(Target)] else None


def _name() -> str | None:
    """Return the name of the file for this CPU, LLVM and package; None for a CPU without a name."""
    try:
        with open(CPUINFO, "rb") as file:
            first = file.read().partition(b"\n\n")[0].decode(errors="replace")
    except OSError:
        return None
    lines = [line.partition(":") for line in first.splitlines()]
    facts = {key.strip(): value.strip() for key, _, value in lines}
    if not all(name in facts for name in _FACTS):
        return None
    with open(make.__code__.co_filename, "rb") as file:
        source = file.read()
    told = [*(facts[name] for name in _FACTS), find_version("llvmlite")]
    key = hashlib.sha256(cache.MAGIC + repr(told).encode() + source).hexdigest()
    return f"{_NAME}-{key[:32]}"
