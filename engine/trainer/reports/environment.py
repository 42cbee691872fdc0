"""The environment of a training: versions, processor, threads, kernels, switches."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from functools import cache

from engine.base.package import VERSION
from engine.plan.plan import Plan
from engine.system.config import PREFIX, SWITCHES, count_cores, switch

_PACKAGES = ("numpy", "numba", "llvmlite", "onnx")


def describe(plans: Sequence[Plan]) -> dict[str, str]:
    """Return names and values for people; read what is installed without importing it.

    plans: include the threads and the set of kernels that they use.
    """
    facts = {
        "edgegrad": VERSION,
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}",
        "processor": _find_processor(),
        "cores": f"{count_cores()} usable of {os.cpu_count() or 'an unknown number'}",
    }
    if plans:
        facts["threads"] = ", ".join(sorted({str(plan.threads) for plan in plans}))
        facts["kernels"] = ", ".join(sorted({plan.target for plan in plans}))
    return {**facts, **_list_versions(), **{PREFIX + n: v for n in SWITCHES if (v := switch(n))}}


@cache
def _list_versions() -> dict[str, str]:
    from importlib import metadata  # here and in page.py: no training without a page pays for it

    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


@cache
def _find_processor() -> str:
    """Return the system's name of the processor, and its architecture."""
    name = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            rows = dict(line.split(":", 1) for line in file if ":" in line)
        names = {key.strip(): value.strip() for key, value in rows.items()}
        name = names.get("model name") or names.get("Model") or names.get("Hardware") or ""
    except OSError:
        name = platform.processor()
    return f"{name} ({platform.machine()})" if name else platform.machine()
