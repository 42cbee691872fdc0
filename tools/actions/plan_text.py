"""Plans as text: the arena as a picture, kept values, words of steps by name; a table for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from engine.kernels.ops.registry import list_templates
from engine.plan.plan import Plan, format_bytes


def draw_arena(plan: Plan, width: int = 72) -> str:
    """Return the work arena over time, as text.

    One line is one step.  Bytes run from left to right; a letter stands for the buffer that holds
    them, `.` for bytes that are free.

    0 aaaaaaaaaaaabbbbbb......
    1 ............bbbbbbcccccc
    """
    total = max(plan.compute_region_bytes("work"), 1)
    lines = []
    for n, step in enumerate(plan.steps):
        row = ["."] * width
        for i, b in enumerate(plan.buffers):
            if b.region != "work" or not b.first <= n <= b.last:
                continue
            begin = b.offset * width // total
            end = max(begin + 1, (b.offset + b.nbytes) * width // total)
            row[begin:end] = [chr(ord("a") + i % 26)] * (min(end, width) - begin)
        lines.append(f"{n:4d} {''.join(row)} {step.source}")
    return "\n".join(lines) + "\n"


def format_kept(plan: Plan) -> str:
    """Return the values that the forward pass keeps for the backward pass, a line each, largest
    first.

    kept for backward: 1.4 MiB in 3
       1.3 MiB  r2  f32[8,64,24,24]  conv2 -> relu2_Grad/ReluGrad_0
    """
    values = plan.kept()
    lines = (
        [f"kept for backward: {format_bytes(plan.kept_bytes)} in {len(values)}"] if values else []
    )
    for k in values:
        b = plan.buffers[k.buffer]
        shape = ",".join(map(str, b.shape))
        lines.append(
            f"{format_bytes(b.nbytes):>11s}  {b.name}  {b.dtype}[{shape}]  "
            f"{' '.join(k.made)} -> {' '.join(k.read)}"
        )
    return "".join(f"{line}\n" for line in lines)


def list_words(plan: Plan) -> list[dict[str, Any]]:
    """Return the numbers that each step passes to its kernel, by the names the kernel has for
    them.
    """
    specs = {spec.symbol: spec for spec in plan.specs}
    return [
        list_templates()[specs[step.kernel].template].named(specs[step.kernel].params, step.consts)
        for step in plan.steps
    ]


def format_words(plan: Plan) -> str:
    """Return the same as text: one line is one step; an array is in parentheses.

    0 softmax_rows_f32_1: rows=8 n=10
    """
    lines = []
    for n, (step, named) in enumerate(zip(plan.steps, list_words(plan), strict=True)):
        texts = (f"{k}={_format_value(v)}" for k, v in named.items())
        lines.append(f"{n:4d} {step.kernel}: {' '.join(texts)}".rstrip(" :"))
    return "\n".join(lines) + "\n"


def _format_value(value: int | float | tuple[int, ...]) -> str:
    """Return a number, or the numbers of an array in parentheses."""
    return f"({','.join(map(str, value))})" if isinstance(value, tuple) else str(value)


def make_table(plan: Plan) -> dict[str, Any]:
    """Return a plan as dictionaries and lists: all that its text has, and the words of steps by
    name.
    """
    ports = {
        kind: [{"name": p.name, "shape": p.shape, "buffer": p.buffer} for p in of]
        for kind, of in (("inputs", plan.inputs), ("outputs", plan.outputs))
    }
    steps = [
        {
            "kernel": step.kernel,
            "phase": step.phase,
            "source": step.source,
            "barrier": step.barrier,
            "arguments": [asdict(arg) for arg in step.args],
            "words": named,
        }
        for step, named in zip(plan.steps, list_words(plan), strict=True)
    ]
    return {
        "name": plan.name,
        "target": plan.target,
        "threads": plan.threads,
        "regions": dict(plan.regions),
        "lower_bound": plan.lower_bound,
        **ports,
        "buffers": [asdict(buffer) for buffer in plan.buffers],
        "steps": steps,
        "kept": [
            {"buffer": k.buffer, "made": list(k.made), "read": list(k.read)} for k in plan.kept()
        ],
        "kernels": {spec.symbol: [spec.template, *spec.params] for spec in plan.specs},
    }
