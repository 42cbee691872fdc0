"""Plan files: the plans of a model for a library that has the kernels of a set of ops."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from engine.base.errors import UnsupportedOpError
from engine.kernels.machine.target import Target
from engine.runtime.team import LAUNCH, WORKER
from engine.system import files as files_io
from engine.tools.trimmed.bundle import Bundle
from engine.tools.trimmed.kernel_set import find_kernel_set
from engine.tools.trimmed.opset import OpSet
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.plans import Planned, list_artifacts, make_plans
from engine.tools.trimmed.progress import SILENT, StagePrinter


def write_plans(
    folder: Path,
    out: Path,
    target: Target,
    asked: PlanRequest,
    config: OpSet | None = None,
    progress: StagePrinter = SILENT,
) -> int:
    """Write the plans of artifacts for a library of kernels, as one file; returns its bytes.

    config: what the library was made for; plans that need other kernels are refused.

    Raises:
        EngineError: an artifact cannot be read or planned, or the file cannot be written.
        UnsupportedOpError: the library lacks a kernel.
    """
    planned = make_closed_plans(folder, target, asked, progress)
    if config is not None:
        check_kernels(planned, config)
    content = Bundle(planned, target, asked.threads, is_file=True).write_file()
    files_io.write(os.fspath(out), [content])
    return len(content)


def make_closed_plans(
    folder: Path, target: Target, asked: PlanRequest, progress: StagePrinter
) -> Planned:
    """Make the plans of artifacts for a library with the kernels of a set of ops.

    Raises:
        EngineError: an artifact cannot be read or planned.
    """
    return make_plans(
        list_artifacts(folder), target, replace(asked, closed=True, size=False), progress
    )


def check_kernels(planned: Planned, config: OpSet) -> None:
    """Check that a library for a config contains all kernels of closed plans.

    Raises:
        UnsupportedOpError: a kernel is missing; the message names the op to add to the config.
    """
    known = {spec.symbol for spec in (*find_kernel_set(config), LAUNCH, WORKER)}
    for spec in planned.list_kernels():
        if spec.symbol not in known:
            raise UnsupportedOpError(
                f"the plan needs kernel {spec.symbol}, made for {planned.makers[spec.symbol]}: "
                f"rebuild the library with this op, or its element types, in the config"
            )
