"""Show: print the plan of a model, and a picture of its work arena over time."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from engine.errors import InputError
from engine.runtime.plan import Plan
from engine.tools import extensions


def picture(plan: Plan, width: int = 72) -> str:
    """The work arena over time, as text.

    One line is one step.  Bytes run from left to right; a letter stands for the buffer that holds
    them, `.` for bytes that are free.

    0 aaaaaaaaaaaabbbbbb......
    1 ............bbbbbbcccccc
    """
    total = max(plan.region_bytes("work"), 1)
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


def words(plan: Plan) -> str:
    """The numbers that each step passes to its kernel, by the names the kernel has for them.

    One line is one step; an array is in parentheses.

    0 softmax_rows_f32_1: rows=8 n=10
    """
    from engine.kernels.registry import templates

    specs = {spec.symbol: spec for spec in plan.specs}
    lines = []
    for n, step in enumerate(plan.steps):
        spec, rest = specs[step.kernel], list(step.consts)
        template, named = templates()[spec.template], dict[str, Any]()
        layouts = template.layouts(spec.params)
        for name, kind in template.signature:
            if kind == "i64[]":
                named |= layouts[name].unpack(rest) if name in layouts else {name: tuple(rest)}
            elif not kind.endswith("*"):
                named[name] = rest.pop(0)
        texts = (f"{k}={_text(v)}" for k, v in named.items())
        lines.append(f"{n:4d} {step.kernel}: {' '.join(texts)}".rstrip(" :"))
    return "\n".join(lines) + "\n"


def _text(value: int | float | tuple[int, ...]) -> str:
    """A number, or the numbers of an array in parentheses."""
    return f"({','.join(map(str, value))})" if isinstance(value, tuple) else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Plan a model for the given shapes of its inputs, and print the plan."""
    from engine.graphs.io import onnx_io
    from engine.graphs.planner.pipeline import make_plan
    from engine.kernels.target import host
    from engine.runtime.config import threads

    parser = argparse.ArgumentParser(prog="edgegrad show", description=__doc__)
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=D,D,...",
        help="shape of an input; repeat for each input with symbolic dimensions",
    )
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--arena", action="store_true", help="also draw the work arena over time")
    parser.add_argument("--words", action="store_true", help="also name the numbers of each step")
    extensions.add_option(parser)
    args = parser.parse_args(argv)
    extensions.load(args.imports)
    graph = onnx_io.load(args.model)
    shapes: dict[str, tuple[int, ...]] = {}
    for text in args.shape:
        name, _, dims = text.rpartition("=")
        try:
            shapes[name] = tuple(int(d) for d in dims.split(",") if d)
        except ValueError:
            raise InputError(f"--shape {text!r}: expected NAME=D,D,...") from None
    for name, t in graph.inputs.items():
        if name not in shapes and all(isinstance(d, int) for d in t.shape):
            shapes[name] = t.dims
    plan = make_plan(graph, shapes, target=host(), threads=threads(args.threads))
    print(plan, end="")
    if args.words:
        print(words(plan), end="")
    if args.arena:
        print(picture(plan), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
