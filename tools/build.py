"""Build: make a small library for a target that trains one model, from C, C++ and Python."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import engine
from engine.checkpoint.storage import has_external_data
from engine.element_types import NUMPY
from engine.errors import (
    CheckpointError,
    FileError,
    InputError,
    StateError,
    UnsupportedOpError,
)
from engine.kernels.compiler import load
from engine.runtime import files as files_io
from engine.runtime.plan import KernelSpec, Plan
from engine.runtime.program import LAUNCH, WORKER
from engine.tools import extensions
from engine.tools.trimmed import opset
from engine.tools.trimmed.bundle import Bundle, inference_info
from engine.tools.trimmed.generate import MESSAGE_BYTES, RUNTIME, Source
from engine.tools.trimmed.kernel_set import kernel_set
from engine.tools.trimmed.link import find_compiler, link
from engine.tools.trimmed.names import check_name
from engine.tools.trimmed.opset import OpSet
from engine.tools.trimmed.plans import Planned, artifacts, make_plans
from engine.tools.trimmed.progress import SILENT, Progress
from engine.tools.trimmed.selftest import Checkpoint, record
from engine.tools.trimmed.targets import Platform, resolve


@dataclass(frozen=True, slots=True)
class Options:
    """What a build is asked for.

    name: the prefix of all functions, and the name of the files.
    batches: the batch sizes to plan for.
    threads: how many threads a step uses, the caller's included.
    shapes: the shapes of inputs by name, where the batch size does not determine them.
    outputs: the tensors that inference computes; empty: what the loss reads of the forward model.
    static: make an archive instead of a shared library.
    size: prefer small code to fast code in the kernels.
    freestanding: make an archive that needs no C library.
    compiler: a command, or `zig`; empty: the first that fits the target.
    """

    name: str
    platform: Platform
    batches: Sequence[int]
    threads: int = 1
    shapes: Mapping[str, tuple[int, ...]] | None = None
    outputs: Sequence[str] = ()
    static: bool = False
    size: bool = False
    freestanding: bool = False
    compiler: str = ""


def build(folder: Path, out: Path, options: Options, progress: Progress = SILENT) -> dict[str, Any]:
    """Build a library that trains the model whose artifacts are in `folder`; returns its manifest.

    out: the folder to write to.  Nothing in it changes unless the whole build succeeds.

    Raises:
        EngineError: an artifact cannot be read or planned, or compiling or linking fails.
        StateError: `out` holds a checkpoint that was trained, which a build would overwrite.
    """
    check_name(options.name)
    _find_compiler(options)
    files = artifacts(folder)
    content = _first_values(files["checkpoint"])
    checkpoint = Checkpoint.of(content)
    _keep_trained(out, checkpoint)
    with _staged(out) as made:
        (made / "checkpoint").write_bytes(content)
        del content  # it is as large as all parameters
        return _build(files, made, options, checkpoint, progress)


def _first_values(path: Path) -> bytes:
    """The content of the checkpoint that a build is given.

    Raises:
        FileError: it cannot be read.
        CheckpointError: it is damaged, or its values are in a second file.
    """
    content = files_io.read(os.fspath(path), "checkpoint")
    if has_external_data(content, os.fspath(path)):
        raise CheckpointError(
            f"{path}: its values are in a second file; a build takes a checkpoint in one file, "
            "that is of up to 1800 MiB"
        )
    return content


def _keep_trained(out: Path, checkpoint: Checkpoint) -> None:
    """Check that a build into a folder overwrites no checkpoint but one that a build made.

    Raises:
        StateError: it would.
    """
    path = out / "checkpoint"
    if not path.exists():
        return
    there = Checkpoint.of(files_io.read(os.fspath(path), "checkpoint"))
    try:
        made = json.loads((out / "manifest.json").read_text("utf-8"))["checkpoint"]
    except (OSError, ValueError, LookupError, TypeError):
        made = None
    if there != checkpoint and asdict(there) != made:
        raise StateError(
            f"{path} is not what the last build into this folder wrote: it was trained since, or "
            "is another file. Move it away, or build into another folder"
        )


@contextlib.contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A new folder inside `out`; at the end its files take the places of those in `out`.

    If an error leaves the body, `out` is as it was, and is gone if it did not exist.

    Raises:
        FileError: the folder, or a file in it, cannot be written.
    """
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = files_io.reason(error)
        raise FileError(f"cannot write into the folder {out}: {reason}") from error
    try:
        with files_io.staging(os.fspath(out)) as folder:
            made = Path(folder)
            yield made
            for path in sorted(made.rglob("*")):
                place = out / path.relative_to(made)
                if path.is_dir():
                    place.mkdir(exist_ok=True)
                else:
                    files_io.move(os.fspath(path), os.fspath(place))
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it has files, as it should
                out.rmdir()


def _build(
    files: Mapping[str, Path],
    out: Path,
    options: Options,
    checkpoint: Checkpoint,
    progress: Progress,
) -> dict[str, Any]:
    """Build into a folder that has the checkpoint already; returns the manifest."""
    name, platform = options.name, options.platform
    planned = make_plans(
        files,
        platform.target,
        options.threads,
        options.batches,
        options.shapes or {},
        options.outputs,
        progress=progress,
    )
    specs = planned.kernels()
    digest = _digest(options, map(str, planned.every()))
    numbers = {spec.symbol: i for i, spec in enumerate(specs)}
    bundle = Bundle(planned, platform.target, options.threads, digest, numbers)
    source = Source(
        name, platform.target, options.threads, digest, [s.symbol for s in specs], bundle
    )
    code = _write(out, source, specs, options, progress)
    text = source.example("example.cpp")
    (out / "src" / "example.cpp").write_text(text, "utf-8")
    with ThreadPoolExecutor(1) as linker:  # a process of its own: this one trains meanwhile
        progress.say(f"linking for {platform.name}")
        linked = linker.submit(_link, out, code, options)
        recorded = ""
        if not options.freestanding:
            progress.say("recording the self-test: a few steps on this machine")
            recorded = record(files, planned, options.threads, checkpoint)
    manifest = _manifest(source, specs, options, linked.result()) | _contents(bundle, name)
    manifest["checkpoint"] = asdict(checkpoint)
    if planned.inference is not None:
        (out / f"{name}.onnx").write_bytes(planned.inference)
    manifest["sizes"] |= {
        "memory": bundle.memory(), "plans": len(bundle.tables),
        "constants": len(bundle.constants),
    }  # fmt: skip
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    if recorded:
        progress.say("linking the self-test")
        _selftest(out, code, source, recorded, options)
    return manifest


def build_library(
    config: OpSet,
    models: Sequence[Path],
    out: Path,
    options: Options,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Build a library with the kernels for a set of ops; returns its manifest.

    models: folders of artifacts.  The library contains also those kernels that only the plans of
        these models use, made for constants of the models.
    out: the folder to write to.  Nothing in it changes unless the whole build succeeds.

    Raises:
        EngineError: an op is unknown, a model cannot be planned, or compiling or linking fails.
    """
    name, platform = check_name(options.name), options.platform
    _find_compiler(options)
    wanted = {spec.symbol: spec for spec in kernel_set(config)}
    for folder in models:
        planned = make_plans(
            artifacts(folder),
            platform.target,
            options.threads,
            options.batches,
            options.shapes or {},
            options.outputs,
            closed=True,
            progress=progress,
        )
        wanted |= {spec.symbol: spec for spec in planned.kernels()}
    runtime = [LAUNCH, WORKER]
    specs = [*(wanted[s] for s in sorted(wanted.keys() - {k.symbol for k in runtime})), *runtime]
    symbols = [spec.symbol for spec in specs]
    source = Source(name, platform.target, options.threads, _digest(options, symbols), symbols)
    with _staged(out) as made:
        code = _write(made, source, specs, options, progress)
        progress.say(f"linking for {options.platform.name}")
        library = _link(made, code, options)
        (made / "required_operators.config").write_text(str(config), "utf-8")
        manifest = _manifest(source, specs, options, library)
        (made / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest


def _write(
    out: Path,
    source: Source,
    specs: Sequence[KernelSpec],
    options: Options,
    progress: Progress,
) -> bytes:
    """Compile the kernels and write all sources to `out`; returns the object file of kernels."""
    name, made = options.name, out / "src"
    code = load.library_code(
        progress.each("compiling kernels, or reading them from the cache", specs),
        options.platform.target,
        table=source.link_name("kernels"),
        data=source.data(),
        small=options.size,
    )
    made.mkdir(parents=True, exist_ok=True)
    (made / f"{name}.c").write_text(source.source(), "utf-8")
    (made / "kernels.o").write_bytes(code)
    (out / f"{name}.h").write_text(source.header(), "utf-8")
    (made / "example.c").write_text(source.example("example.c"), "utf-8")
    if not (options.static or options.freestanding):  # Python loads shared libraries
        for file, named in (("device.py", f"{name}.py"), ("library.py", f"{name}_library.py")):
            python = (RUNTIME / file).read_text("utf-8").replace('"model"', f'"{name}"', 1)
            (out / named).write_text(python, "utf-8")
    return code


def _digest(options: Options, contents: Iterable[str]) -> str:
    """A digest that two builds share only if all that went into them is equal."""
    parts = [engine.__version__, repr(options), *contents]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _posix_threads(options: Options) -> bool:
    """Whether the runtime calls pthread; on Windows it calls the system's own functions."""
    return options.threads > 1 and "windows" not in options.platform.target.triple


def _find_compiler(options: Options) -> None:
    """Check that there is a compiler to link with, before any kernel is compiled.

    Raises:
        EngineError: there is none, or it cannot make what was asked for.
    """
    find_compiler(
        options.platform,
        options.compiler,
        threads=_posix_threads(options),
        freestanding=options.freestanding,
    )


def _link(out: Path, code: bytes, options: Options) -> Path:
    """Link the library; returns its path."""
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
        freestanding=options.freestanding,
        compiler=options.compiler,
    )


def _selftest(out: Path, code: bytes, source: Source, recorded: str, options: Options) -> None:
    """Make the self-test, a program that needs the checkpoint and nothing else of the build.

    recorded: C that declares what it compares with, see tools/trimmed/selftest.py.
    """
    platform, made = options.platform, out / "src"
    (made / "selftest.c").write_text(source.selftest(recorded), "utf-8")
    link(
        [code],
        [made / f"{options.name}.c", made / "selftest.c"],
        platform,
        out / platform.file_name("executable", "selftest"),
        kind="executable",
        include=[out],
        size=True,  # the C code is no hot code
        threads=_posix_threads(options),
        compiler=options.compiler,
    )


# --- manifest


def _manifest(
    source: Source, specs: Sequence[KernelSpec], options: Options, library: Path
) -> dict[str, Any]:
    target = options.platform.target
    return {
        "name": options.name,
        "build": source.build,
        "edgegrad": engine.__version__,
        "target": options.platform.name,
        "triple": target.triple,
        "cpu": target.cpu,
        "threads": options.threads,
        "library": library.name,
        "kernels": [spec.symbol for spec in specs],
        "sizes": {"message": MESSAGE_BYTES, "library": library.stat().st_size},
    }


def _contents(bundle: Bundle, name: str) -> dict[str, Any]:
    """The part of a manifest that describes the model: batches, phases, inference and plans."""
    planned = bundle.planned
    phases = {
        phase: {
            "inputs": _ports(plan, planned.inputs[phase]),
            "outputs": _ports(plan, planned.outputs[phase]),
        }
        for phase, plan in planned.plans.items()
        if phase in planned.inputs
    }
    return {
        "batches": list(planned.batches),
        "phases": phases,
        "inference": inference_info(planned),
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
        },
    }


def _ports(plan: Plan, names: Sequence[str]) -> list[dict[str, Any]]:
    ports = {p.name: p for p in (*plan.inputs, *plan.outputs)}
    found = [(ports[n], plan.buffers[ports[n].buffer]) for n in names]
    return [
        {"name": p.name, "dtype": np.dtype(NUMPY[b.dtype]).name, "shape": list(p.shape)}
        for p, b in found
    ]


# --- command line


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs by name, from words `NAME=D,D,...`.

    Raises:
        InputError: a dimension is not a whole number.
    """
    shapes = {}
    for text in texts:
        name, _, dims = text.rpartition("=")
        try:
            shapes[name] = tuple(int(d) for d in dims.split(",") if d)
        except ValueError:
            raise InputError(f"--shape {text!r}: expected NAME=D,D,...") from None
    return shapes


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all commands share which plan models for devices."""
    parser.add_argument("--target", default="native", help="see edgegrad targets; default: native")
    parser.add_argument("--triple", default="", help="an LLVM triple in place of a target's name")
    parser.add_argument("--cpu", default="", help="LLVM's name of the CPU")
    parser.add_argument("--features", default=None, help="LLVM features, as +dotprod,-sve")
    parser.add_argument(
        "--batch",
        action="append",
        default=[],
        metavar="N,...",
        help="samples of a step; several, by repetition or commas, share all memory",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=D,D,...",
        help="shape of an input; repeat for each input with other symbolic dimensions",
    )
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="NAME",
        help="tensor that inference computes; repeat; default: what the loss reads",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of a step; default 1")
    extensions.add_option(parser)


def parse_batches(texts: Sequence[str]) -> list[int]:
    """The batch sizes from words `N,...`, each once.

    Raises:
        InputError: one is not a positive number, or there is none.
    """
    words = [word.strip() for text in texts for word in text.split(",")]
    if not words or not all(w.isdecimal() and int(w) > 0 for w in words):
        raise InputError(f"--batch {','.join(words)}: expected numbers of at least 1")
    return list(dict.fromkeys(map(int, words)))


def main(argv: Sequence[str] | None = None) -> int:
    """Build artifacts, or kernels for a set of ops, for a target and print what came out."""
    parser = argparse.ArgumentParser(prog="edgegrad build", description=__doc__)
    parser.add_argument("artifacts", type=Path, nargs="?", help="folder of generate_artifacts")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder to write to")
    add_model_options(parser)
    parser.add_argument(
        "--ops",
        type=Path,
        metavar="CONFIG",
        help="a library of kernels for the ops of a config, for plans of `edgegrad plan`",
    )
    parser.add_argument(
        "--models",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="with --ops: artifacts whose kernels the library has whatever their constants are",
    )
    parser.add_argument("--name", default="", help="prefix of all names; default: the folder's")
    parser.add_argument("--static", action="store_true", help="an archive, not a shared library")
    parser.add_argument("--size", action="store_true", help="prefer small code to fast code")
    parser.add_argument(
        "--freestanding",
        action="store_true",
        help="an archive that needs no C library: the caller gives memory and threads",
    )
    parser.add_argument("--compiler", default="", help="C compiler to link with, or zig")
    args = parser.parse_args(argv)
    extensions.load(args.imports)
    if (args.artifacts is None) == (args.ops is None):
        raise InputError("give a folder of artifacts, or --ops CONFIG")
    if args.threads < 1:
        raise InputError("--threads: expected at least 1")
    batches = parse_batches(args.batch or ["1"] if args.ops else args.batch)
    source = args.ops.parent if args.ops else args.artifacts
    options = Options(
        args.name or source.resolve().name.replace("-", "_"),
        resolve(args.target, triple=args.triple, cpu=args.cpu, features=args.features),
        batches,
        args.threads,
        parse_shapes(args.shape),
        args.output,
        args.static,
        args.size,
        args.freestanding,
        args.compiler,
    )
    if args.ops:
        config = opset.read(args.ops)
        manifest = build_library(config, args.models, args.out, options, Progress())
        print(f"{len(manifest['kernels'])} kernels")
    else:
        manifest = build(args.artifacts, args.out, options, Progress())
    for key in ("library", "memory", "plans", "constants"):
        if key in manifest["sizes"]:
            print(f"{key:10s}{manifest['sizes'][key]:>12,} bytes")
    print(*manifest.get("plans", {}).values(), sep="\n")
    return 0


def main_plan(argv: Sequence[str] | None = None) -> int:
    """Plan artifacts for a library of kernels that `edgegrad build --ops` made for a target."""
    parser = argparse.ArgumentParser(prog="edgegrad plan", description=main_plan.__doc__)
    parser.add_argument("artifacts", type=Path, help="folder of generate_artifacts")
    parser.add_argument("-o", "--out", type=Path, required=True, help="file to write")
    add_model_options(parser)
    parser.add_argument(
        "--ops", type=Path, metavar="CONFIG", help="refuse what a library of this config lacks"
    )
    args = parser.parse_args(argv)
    extensions.load(args.imports)
    platform = resolve(args.target, triple=args.triple, cpu=args.cpu, features=args.features)
    planned = make_plans(
        artifacts(args.artifacts),
        platform.target,
        args.threads,
        parse_batches(args.batch),
        parse_shapes(args.shape),
        args.output,
        closed=True,
        progress=Progress(),
    )
    if args.ops:
        check_kernels(planned, opset.read(args.ops))
    digest = hashlib.sha256("\n".join(map(str, planned.every())).encode()).hexdigest()[:16]
    content = Bundle(planned, platform.target, args.threads, digest).file()
    files_io.write(os.fspath(args.out), [content])
    print(f"{args.out}: {len(content):,} bytes")
    return 0


def check_kernels(planned: Planned, config: OpSet) -> None:
    """Check that a library for a config contains all kernels of closed plans.

    Raises:
        UnsupportedOpError: a kernel is missing; the message names the op to add to the config.
    """
    known = {spec.symbol for spec in (*kernel_set(config), LAUNCH, WORKER)}
    for spec in planned.kernels():
        if spec.symbol not in known:
            raise UnsupportedOpError(
                f"the plan needs kernel {spec.symbol}, made for {planned.makers[spec.symbol]}: "
                f"rebuild the library with this op, or its element types, in the config"
            )
