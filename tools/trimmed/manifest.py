"""Manifest of a build: its parts, its sizes, and what its model takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import engine
from engine.base.element_types import NUMPY
from engine.plan.plan import Plan
from engine.tools.trimmed.bundle import Bundle, describe_inference
from engine.tools.trimmed.generate import MESSAGE_BYTES, Source
from engine.tools.trimmed.options import Options

MANIFEST = "manifest.json"  # in the folder of a build; its Python interface reads it, too


def make_manifest(source: Source, options: Options, library: Path) -> dict[str, Any]:
    """Return the part of a manifest that libraries of a model and of a set of ops have."""
    target, symbols = source.target, (s for level in source.levels for s in level.symbols)
    return {
        "name": options.name,
        "build": source.build,
        "edgegrad": engine.__version__,
        "target": options.platform.name,
        "triple": target.triple,
        "cpu": target.cpu,
        "cpus": [level.target.cpu for level in source.levels],
        "threads": options.plans.threads,
        "library": library.name,
        "kernels": list(dict.fromkeys(symbols)),
        "sizes": {"message": MESSAGE_BYTES, "library": library.stat().st_size},
    }


def describe_contents(bundle: Bundle, name: str) -> dict[str, Any]:
    """Return the part of a manifest that describes the model: batches, phases, inference and
    plans.
    """
    planned = bundle.planned
    phases = {
        phase: {
            "inputs": _list_ports(plan, planned.inputs[phase]),
            "outputs": _list_ports(plan, planned.outputs[phase]),
        }
        for phase, plan in planned.plans.items()
        if phase in planned.inputs
    }
    writing = planned.decoder
    sizes = writing and writing.options
    more = {"decoder": {"positions": sizes.positions, "prompt": sizes.prompt}} if sizes else {}
    return more | {
        "batches": list(planned.batches),
        "phases": phases,
        "inference": describe_inference(planned),
        "plans": {
            **{
                f"{phase}, batch {batch}": plan.summary()
                for batch, plans in planned.batches.items()
                for phase, plan in plans.items()
            },
            **{
                phase: planned.plans[phase].summary()
                for phase in ("optimizer",)
                if phase in planned.plans
            },
            **{
                f"decoder, {use}": plan.summary()
                for use, plan in (writing.plans.items() if writing else ())
            },
        },
    }


def _list_ports(plan: Plan, names: Sequence[str]) -> list[dict[str, Any]]:
    ports = {p.name: p for p in (*plan.inputs, *plan.outputs)}
    pairs = [(ports[n], plan.buffers[ports[n].buffer]) for n in names]
    return [
        {"name": p.name, "dtype": np.dtype(NUMPY[b.dtype]).name, "shape": list(p.shape)}
        for p, b in pairs
    ]
