"""The environment of a training run: versions, processor, threads, kernels, switches."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from engine.base.package import VERSION
from engine.plan.plan import Plan
from engine.system.config import PREFIX, SWITCHES, switch
from engine.system.installation import (
    describe_cores,
    describe_versions,
    find_board,
    find_processor,
)


def describe(plans: Sequence[Plan]) -> dict[str, str]:
    """Return names and values for people; read what is installed without importing it.

    plans: include the threads and the set of kernels that they use.
    """
    facts = {
        "edgegrad": VERSION,
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}",
        "machine": find_board() or "not known",
        "processor": f"{find_processor()} ({platform.machine()})".strip(),
        "cores": describe_cores(),
    }
    if plans:
        facts["threads"] = ", ".join(sorted({str(plan.threads) for plan in plans}))
        facts["kernels"] = ", ".join(sorted({plan.target for plan in plans}))
    return {**facts, **describe_versions(), **{PREFIX + n: v for n in SWITCHES if (v := switch(n))}}
