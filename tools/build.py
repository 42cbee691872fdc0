"""Build: the training of one model as a small library for a target, with C and Python faces."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import engine
from engine.arena import DTYPES
from engine.errors import InputError
from engine.kernels import _load
from engine.plan import Plan
from engine.tools.generate import RUNTIME, Source
from engine.tools.link import link
from engine.tools.plans import Planned, artifacts, check_name, make_plans
from engine.tools.protobuf import initializer_places
from engine.tools.selftest import record
from engine.tools.targets import Platform, resolve


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for; shapes of inputs by name, and outputs of inference if not the default."""

    name: str
    platform: Platform
    batch: int
    threads: int = 1
    shapes: Mapping[str, tuple[int, ...]] | None = None
    outputs: Sequence[str] = ()
    static: bool = False
    size: bool = False
    freestanding: bool = False
    compiler: str = ""  # a command, or zig; default: what fits the target


def build(folder: Path, out: Path, options: Options) -> dict[str, Any]:
    """Build the artifacts in a folder into `out`; returns the manifest.

    Raises:
        EngineError: an artifact, the planner, the compiler or the linker refuses.
    """
    name, platform = check_name(options.name), options.platform
    files = artifacts(folder)
    planned = make_plans(
        files, platform.target, options.threads, options.batch, options.shapes or {},
        options.outputs,
    )  # fmt: skip
    source = Source(name, planned, options.threads, _digest(planned, options))
    code = _load.library_code(
        source.kernels,
        platform.target,
        table=f"{name}_kernels",
        data={f"{name}_constants": bytes(source.constants.data)},
        small=options.size,
    )
    made = out / "src"
    made.mkdir(parents=True, exist_ok=True)
    (made / f"{name}.c").write_text(source.source(), "utf-8")
    (made / "kernels.o").write_bytes(code)
    (out / f"{name}.h").write_text(source.header(), "utf-8")
    for example in ("example.c", "example.cpp"):
        text = source.rename((RUNTIME / example).read_text("utf-8"))
        (made / example).write_text(text.replace("-lmodel", f"-l{name}"), "utf-8")
    shutil.copyfile(files["checkpoint"], out / "checkpoint")
    if not (options.static or options.freestanding):  # Python loads shared libraries
        python = (RUNTIME / "device.py").read_text("utf-8").replace('"model"', f'"{name}"', 1)
        (out / f"{name}.py").write_text(python, "utf-8")
    library = _link(out, code, options)
    manifest = _manifest(source, planned, options, library)
    if planned.inference is not None:
        (out / f"{name}.onnx").write_bytes(planned.inference)
    manifest["sizes"]["library"] = library.stat().st_size
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    if not options.freestanding:
        _selftest(files, out, code, planned, source, options)
    return manifest


def _digest(planned: Planned, options: Options) -> str:
    """What tells builds apart."""
    parts = [engine.__version__, repr(options), *map(str, planned.plans.values())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _posix_threads(options: Options) -> bool:
    """Whether the runtime calls pthread; on Windows it calls the system's own functions."""
    return options.threads > 1 and "windows" not in options.platform.target.triple


def _link(out: Path, code: bytes, options: Options) -> Path:
    """The library itself."""
    kind = "static" if options.static or options.freestanding else "shared"
    return link(
        [code],
        [out / "src" / f"{options.name}.c"],
        options.platform,
        out / options.platform.file_name(kind, options.name),
        kind="static" if kind == "static" else "shared",
        defines={"EDGEGRAD_FREESTANDING": ""} if options.freestanding else {},
        include=[out],
        size=True,  # the C code is no hot code
        threads=_posix_threads(options),
        compiler=options.compiler,
        flags=["-ffreestanding", "-fno-builtin"] if options.freestanding else [],
    )


def _selftest(
    files: Mapping[str, Path],
    out: Path,
    code: bytes,
    planned: Planned,
    source: Source,
    options: Options,
) -> None:
    """A program that trains as was recorded here, with all it needs inside."""
    platform, name = options.platform, options.name
    text, data = record(files, planned, options.threads)
    made = out / "src"
    (made / "selftest.c").write_text(source.rename(text), "utf-8")
    checkpoint = _load.library_code(
        [], platform.target, table="", data={f"{name}_selftest_checkpoint": data}
    )
    link(
        [code, checkpoint],
        [made / f"{name}.c", made / "selftest.c"],
        platform,
        out / platform.file_name("executable", "selftest"),
        kind="executable",
        include=[out],
        size=True,  # the C code is no hot code
        threads=_posix_threads(options),
        compiler=options.compiler,
    )


# --- manifest


def _tensor(name: str, dtype: str, shape: Sequence[int]) -> dict[str, Any]:
    return {"name": name, "dtype": np.dtype(DTYPES[dtype]).name, "shape": list(shape)}


def _phases(planned: Planned) -> Iterator[tuple[str, dict[str, Any]]]:
    for phase, plan in planned.plans.items():
        if phase in planned.inputs:
            yield (
                phase,
                {
                    "inputs": _ports(plan, planned.inputs[phase]),
                    "outputs": _ports(plan, planned.outputs[phase]),
                },
            )


def _ports(plan: Plan, names: Sequence[str]) -> list[dict[str, Any]]:
    ports = {p.name: p for p in (*plan.inputs, *plan.outputs)}
    return [_tensor(n, plan.buffers[ports[n].buffer].dtype, ports[n].shape) for n in names]


def _manifest(source: Source, planned: Planned, options: Options, library: Path) -> dict[str, Any]:
    target, state = options.platform.target, planned.state
    inference = None
    if planned.inference is not None:
        inference = {
            "file": f"{options.name}.onnx",
            "outputs": list(planned.outputs["infer"]),
            "places": initializer_places(planned.inference, set(state.slots)),
        }
    return {
        "name": options.name,
        "build": source.build,
        "edgegrad": engine.__version__,
        "target": options.platform.name,
        "triple": target.triple,
        "cpu": target.cpu,
        "threads": options.threads,
        "library": library.name,
        "phases": dict(_phases(planned)),
        "parameters": [
            {**_tensor(n, state.slots[n].dtype, state.slots[n].shape),
             "trainable": state.slots[n].trainable}
            for n in planned.parameters
        ],
        "inference": inference,
        "kernels": [spec.symbol for spec in source.kernels],
        "plans": {phase: plan.summary() for phase, plan in planned.plans.items()},
        "sizes": {
            "message": 256,
            "memory": source.layout.total,
            "plans": source.plan_bytes(),
            "constants": len(source.constants.data),
        },
    }  # fmt: skip


# --- command line


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes by input name from `NAME=D,D,...`."""
    shapes = {}
    for text in texts:
        name, _, dims = text.rpartition("=")
        try:
            shapes[name] = tuple(int(d) for d in dims.split(",") if d)
        except ValueError:
            raise InputError(f"--shape {text!r}: expected NAME=D,D,...") from None
    return shapes


def main(argv: Sequence[str] | None = None) -> int:
    """Build artifacts for a target and print what came out."""
    parser = argparse.ArgumentParser(prog="edgegrad build", description=__doc__)
    parser.add_argument("artifacts", type=Path, help="folder of generate_artifacts")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--target", default="native", help="see edgegrad targets; default: native")
    parser.add_argument("--triple", default="", help="an LLVM triple in place of a target's name")
    parser.add_argument("--cpu", default="", help="LLVM's name of the CPU")
    parser.add_argument("--features", default=None, help="LLVM features, as +dotprod,-sve")
    parser.add_argument("--batch", type=int, required=True, help="samples of a step")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=D,D,...",
        help="shape of an input; repeat for each input with other symbolic dimensions",
    )  # fmt: skip
    parser.add_argument(
        "--output", action="append", default=[], metavar="NAME",
        help="tensor that inference computes; repeat; default: what the loss reads",
    )  # fmt: skip
    parser.add_argument("--name", default="", help="prefix of all names; default: the folder's")
    parser.add_argument("--threads", type=int, default=1, help="threads of a step; default 1")
    parser.add_argument("--static", action="store_true", help="an archive, not a shared library")
    parser.add_argument("--size", action="store_true", help="prefer small code to fast code")
    parser.add_argument(
        "--freestanding", action="store_true",
        help="an archive that needs no C library: the caller gives memory and threads",
    )  # fmt: skip
    parser.add_argument("--compiler", default="", help="C compiler to link with, or zig")
    args = parser.parse_args(argv)
    if args.batch < 1 or args.threads < 1:
        raise InputError("--batch and --threads: expected at least 1")
    name = args.name or args.artifacts.resolve().name.replace("-", "_")
    platform = resolve(args.target, triple=args.triple, cpu=args.cpu, features=args.features)
    options = Options(
        name, platform, args.batch, args.threads, parse_shapes(args.shape), args.output,
        args.static, args.size, args.freestanding, args.compiler,
    )  # fmt: skip
    manifest = build(args.artifacts, args.out, options)
    for key in ("library", "memory", "plans", "constants"):
        print(f"{key:10s}{manifest['sizes'][key]:>12,} bytes")
    print(*manifest["plans"].values(), sep="\n")
    return 0
