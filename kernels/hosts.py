"""The CPU of this machine, as LLVM tells it once: what it said is kept in the cache folder.

To ask LLVM is to load its library, which takes 40 MB.  A process that compiles nothing, since all
its kernels are in the cache, does without.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from dataclasses import asdict

from engine.kernels.target import Target, host, make
from engine.runtime import cache

_NAME = "host"  # how names of these files begin
_FACTS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
_CPUINFO = "/proc/cpuinfo"


@functools.cache
def known_host() -> Target:
    """The target of this process's CPU, as `host` makes it.

    Raises:
        EngineError: as `host`.
    """
    name = _name()
    folder = cache.cache_dir()
    if name is None or folder is None or not cache.trusted(folder):
        return host()
    raw = cache.read(folder / name)
    if raw is not None:
        try:
            return Target(**json.loads(raw))
        except (ValueError, TypeError):  # of another version
            pass
    found = host()
    cache.write(folder / name, json.dumps(asdict(found)).encode())
    return found


def _name() -> str | None:
    """The name of the file for this CPU, LLVM and package; None where the system tells no CPU."""
    try:
        with open(_CPUINFO, "rb") as file:
            first = file.read().partition(b"\n\n")[0].decode(errors="replace")
    except OSError:
        return None
    lines = [line.partition(":") for line in first.splitlines()]
    facts = {key.strip(): value.strip() for key, _, value in lines}
    if not all(name in facts for name in _FACTS):
        return None
    with open(make.__code__.co_filename, "rb") as file:
        source = file.read()
    told = [*(facts[name] for name in _FACTS), importlib.metadata.version("llvmlite")]
    return f"{_NAME}-{hashlib.sha256(repr(told).encode() + source).hexdigest()[:32]}"
