"""Wheels with the kernels of some models, as pip installs them, for benchmarks and tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.kernels.machine.levels import Level
from engine.plan.plan import Plan
from engine.tools.dev import wheels, zoo


def make(
    plans: Iterable[Plan], name: str, folder: Path, levels: Sequence[Level] | None = None
) -> Path:
    """Make the wheel of a platform, a name of `wheels.PLATFORMS`, with the kernels of plans alone.

    levels: by default all of the platform.
    """
    sdist = wheels.make_sdist(folder)
    return wheels.make_wheel(
        wheels.PLATFORMS[name], sdist, folder, zoo.list_kernels(plans), levels=levels, jobs=2
    )


def install(wheel: Path, site: Path) -> Path:
    """Install a wheel, without what it depends on, into a folder for PYTHONPATH; returns that.

    Bytecode is compiled, as it is wherever pip installs.  The wheel may be for another platform.
    """
    tags = wheel.stem.split("-")[-1].split(".")
    chosen = [word for tag in tags for word in ("--platform", tag)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*command, "--only-binary=:all:", *chosen, "--target", str(site), str(wheel)], check=True
    )
    return site
