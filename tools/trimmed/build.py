"""Build: make a small library for a target that trains one model, from C, C++ and Python."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import engine
from engine.base.element_types import ITEMSIZE, NUMPY
from engine.base.errors import CheckpointError, InputError, UnsupportedOpError
from engine.base.plan_options import DEFAULTS, PlanOptions
from engine.checkpoint.storage import has_external_data
from engine.kernels.analysis.flops import find_factors
from engine.kernels.binaries import load
from engine.kernels.machine.target import Target
from engine.kernels.ops.registry import list_templates
from engine.plan.plan import KernelSpec, Plan
from engine.runtime.program import LAUNCH, WORKER
from engine.system import files as files_io
from engine.tools.trimmed import federated
from engine.tools.trimmed.api import Only
from engine.tools.trimmed.bindings.languages import LANGUAGES, check_languages
from engine.tools.trimmed.bindings.package import Language, write_headers, write_package
from engine.tools.trimmed.bundle import Bundle, describe_inference
from engine.tools.trimmed.cpu import can_choose
from engine.tools.trimmed.decoders import DecoderOptions, find_decoder
from engine.tools.trimmed.export import make_graph
from engine.tools.trimmed.generate import MESSAGE_BYTES, CpuLevel, Source
from engine.tools.trimmed.kernel_set import find_kernel_set
from engine.tools.trimmed.link import Compiler, Kind, find_compiler, link
from engine.tools.trimmed.names import check_name
from engine.tools.trimmed.opset import OpSet
from engine.tools.trimmed.plans import Planned, list_artifacts, list_runners, make_plans
from engine.tools.trimmed.progress import SILENT, Part, StagePrinter
from engine.tools.trimmed.project_files import write_board_libraries, write_project_files
from engine.tools.trimmed.report import make_report
from engine.tools.trimmed.selftest import CheckpointStamp, keep_trained, record_steps
from engine.tools.trimmed.staging import staged
from engine.tools.trimmed.targets import Platform


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a build.

    name: the prefix of all functions, and the name of the files.
    batches: the batch sizes to plan for; none if the model fixes its number of samples.
    threads: how many threads a step uses, the caller's included.
    shapes: the shapes of inputs by name, where the batch size does not determine them.
    outputs: the tensors that inference computes; empty: what the loss reads of the forward model.
    static: make an archive instead of a shared library.
    size: prefer small code to fast code in the kernels.
    freestanding: make an archive that needs no C library; bare metal has nothing else.
    compiler: a command, or `zig`; empty: the first that fits the target.
    joined: let training steps update the parameters, so that no memory is taken for gradients.
    planning: options of the plans.
    federated: add the functions of a device of a federation, an example, and Python's package.
    bindings: languages, by their names in `LANGUAGES`, that get a package in a folder of that name.
    also: platforms for which these packages have the library, too.
    export: put the graph of the inference model into the library, which then writes ONNX files.
    only: leave out the plans, kernels and functions that inference, training, or a decoder does not
        use.
    decoder: add a decoder, which continues texts.
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
    joined: bool = False
    planning: PlanOptions = DEFAULTS
    federated: bool = False
    bindings: Sequence[str] = ()
    also: Sequence[Platform] = ()
    export: bool = False
    only: Only = ""
    decoder: DecoderOptions | None = None

    @property
    def each(self) -> list[Options]:
        """The same options for each platform alone, the build's own first.

        A module of WebAssembly has one thread beside others that share memory.
        """
        platforms = (self.platform, *self.also)
        shared = any(p.shares_memory for p in platforms)
        alone = [shared and p.is_wasm and not p.shares_memory for p in platforms]
        return [
            replace(self, platform=p, also=(), threads=1 if is_alone else self.threads)
            for p, is_alone in zip(platforms, alone, strict=True)
        ]

    def __post_init__(self) -> None:
        if self.platform.is_bare:  # there are no other builds
            object.__setattr__(self, "freestanding", True)
        for wish, chosen, reason in (
            ("--joined", self.joined and self.only != "train", "updates in training steps"),
            ("--federated", self.federated, "trains and evaluates"),
            ("--export", self.export and self.only != "inference", "writes the inference model"),
        ):
            if chosen and self.only:
                raise InputError(f"{wish} {reason}: leave out --only {self.only}")
        if self.only == "decoder" and self.decoder is None:
            raise InputError("--only decoder: give --positions, the tokens that its caches hold")


def build(
    folder: Path | None, out: Path, options: Options, progress: StagePrinter = SILENT
) -> dict[str, Any]:
    """Build a library that trains the model whose artifacts are in `folder`; returns its manifest.

    folder: None if the library has a decoder alone, whose parameters are then constants.
    out: the folder to write to.  Nothing in it changes unless the whole build succeeds.

    Raises:
        EngineError: an artifact cannot be read or planned, or compiling or linking fails.
        StateError: `out` holds a checkpoint that was trained, which a build would overwrite.
    """
    check_name(options.name)
    check_languages(
        options.bindings, (options.platform, *options.also),
        archive=options.static or options.freestanding, freestanding=options.freestanding,
    )  # fmt: skip
    _check_shared_memory(options)
    _find_compiler(options.each[0])
    for language in map(LANGUAGES.__getitem__, options.bindings):
        for each in options.each:
            _find_compiler(each, language)
    files = {} if folder is None else list_artifacts(folder)
    if options.decoder is not None:
        files["decoder"] = find_decoder(folder, options.decoder)
    if not files:
        raise InputError("there is nothing to build: give artifacts, or a decoder")
    content, checkpoint = b"", None
    if "checkpoint" in files:
        content = _read_first_values(files["checkpoint"])
        checkpoint = CheckpointStamp.of(content)
        keep_trained(out, checkpoint)
    else:
        options = replace(options, only="decoder")
    with staged(out) as made:
        if checkpoint is not None:
            (made / "checkpoint").write_bytes(content)
        del content  # it is as large as all parameters
        return _build(files, made, options.each, checkpoint, progress)


def _check_shared_memory(options: Options) -> None:
    """Check that modules with shared memory are for several threads, beside one for all pages.

    Raises:
        InputError: they are not.
    """
    sharing = [p.name for p in (options.platform, *options.also) if p.shares_memory]
    if sharing and options.threads == 1:
        raise InputError(f"target {sharing[0]} is for several threads: give --threads")
    if options.platform.shares_memory:
        raise InputError(
            f"target {sharing[0]} is for packages, beside a module for pages that cannot share "
            f"memory: --target wasm32,{sharing[0]} --bindings js"
        )


def _read_first_values(path: Path) -> bytes:
    """Return the content of the checkpoint that a build is given.

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


@dataclass(frozen=True, slots=True)
class _Compiled:
    """All that a library of one platform is linked of: its source, and an object file of kernels
    for each CPU that it has code for, the best first.
    """

    options: Options
    source: Source
    bundles: Sequence[Bundle]
    codes: Sequence[bytes]


def _compile(files: Mapping[str, Path], options: Options, progress: StagePrinter) -> _Compiled:
    """Plan a model for the CPUs of a platform, and compile its kernels.

    A CPU is left out if the next one has the same plans and kernels: its instructions gain nothing.
    """
    platform, targets = options.platform, _list_targets(options)
    if len(targets) < len(platform.targets):
        progress.say(
            f"code for {platform.target.cpu} alone: this library could not ask which CPU runs it"
        )
    plans = []
    for target in targets:
        more = f": code for {target.cpu}" if len(targets) > 1 else ""
        progress.begin("planning", f"planning for {platform.name}{more}")
        plans.append(
            make_plans(
                files,
                target,
                options.threads,
                options.batches,
                options.shapes or {},
                options.outputs,
                progress=progress,
                joined=options.joined,
                planning=options.planning,
                only=options.only,
                small=options.size,
                decoder=options.decoder,
            )
        )
    digest = _digest(options, (str(plan) for planned in plans for plan in planned.list_plans()))
    bundles, levels = list[Bundle](), list[CpuLevel]()
    for target, planned in zip(reversed(targets), reversed(plans), strict=True):
        if bundles and _is_like(target, planned, bundles[0]):
            progress.drop("kernels")
            continue
        symbols = [spec.symbol for spec in planned.list_kernels()]
        packs = bundles[0].packs if bundles else None
        bundle = Bundle(planned, target, options.threads, packs=packs)
        bundles.insert(0, bundle)
        levels.insert(0, CpuLevel(target, symbols, bundle))
    graph = make_graph(plans[-1]) if options.export else None
    source = Source(options.name, levels, options.threads, digest, graph, options.federated)
    codes = [
        _compile_kernels(source, number, bundle.planned.list_kernels(), options, progress)
        for number, bundle in enumerate(bundles)
    ]
    return _Compiled(options, source, bundles, codes)


def _list_targets(options: Options) -> Sequence[Target]:
    """Return the CPUs of a platform that a library can have code for, the best first."""
    platform = options.platform
    is_told = can_choose(platform, freestanding=options.freestanding)
    return platform.targets if is_told else (platform.target,)


def _count_parts(each: Sequence[Options], *, has_test: bool) -> Counter[Part]:
    """Return the parts of a build by their kind, as `StagePrinter.expect` takes them.

    A library is linked for the build, and in the package of each language for every platform.
    """
    cpus = sum(len(_list_targets(options)) for options in each)
    links = 1 + len(each[0].bindings) * len(each) + has_test
    return Counter[Part]({"planning": cpus, "kernels": cpus, "linking": links})


def _is_like(target: Target, planned: Planned, other: Bundle) -> bool:
    """Return whether another CPU has the same plans and kernels, except for tuning.

    Plans of integers may be the same where kernels are not: these sum products by what a CPU has.
    """
    if target.dots != other.target.dots:
        specs = (spec for spec in planned.list_kernels() if spec.template in list_templates())
        if any(ITEMSIZE.get(find_factors(spec)) == 1 for spec in specs):
            return False
    kernels = [replace(each, cpu="", features="") for each in (target, other.target)]
    return kernels[0] == kernels[1] and planned.is_like(other.planned)


def _build(
    files: Mapping[str, Path],
    out: Path,
    each: Sequence[Options],
    checkpoint: CheckpointStamp | None,
    progress: StagePrinter,
) -> dict[str, Any]:
    """Build into a folder that has the checkpoint already; returns the manifest.

    each: the options for each platform, the build's own first.
    checkpoint: None for a decoder alone, which has none.
    """
    options, *others = each
    has_program = not options.freestanding and _find_compiler(options).programs
    has_test = has_program and "train" in files and options.only in ("", "train")
    progress.expect(_count_parts(each, has_test=has_test))
    own = _compile(files, options, progress)
    name, source, codes = options.name, own.source, own.codes
    planned = own.bundles[-1].planned
    _write(out, source, codes, options)
    for file in ("example.c", "example.cpp", *["device.c"] * options.federated):
        (out / "src" / file).write_text(source.write_example(file), "utf-8")
    with ThreadPoolExecutor(1) as linker:  # a process of its own: this one trains meanwhile
        progress.begin("linking", _describe_linking(options))
        linked = linker.submit(_link, out, codes, options)
        recorded = ""
        if has_test and checkpoint is not None:
            progress.say("recording the self-test: a few steps on this machine")
            precision = options.planning.precision
            recorded = record_steps(files, planned, options.threads, checkpoint, precision)
    library = linked.result()
    write_board_libraries(out, name, options.platform, library)
    manifest = _make_manifest(source, options, library)
    manifest |= _describe_contents(own.bundles[-1], name)
    libraries = [own]
    libraries += [_compile(files, other, progress) for other in others]
    for language in options.bindings:
        _write_bindings(out, libraries, LANGUAGES[language], options, progress)
    if checkpoint is not None:
        manifest["checkpoint"] = asdict(checkpoint)
    api = source.list_api(freestanding=options.freestanding)
    manifest["functions"] = [f"{name}_{function.name}" for function in api]
    if planned.inference is not None:
        (out / f"{name}.onnx").write_bytes(planned.inference)
    graph = len(source.graph.content) if source.graph else 0
    report = make_report(manifest["sizes"]["library"], codes, own.bundles, graph)
    manifest["report"] = report
    manifest["sizes"] |= {
        "memory": report["memory"], "plans": report["parts"]["plans"],
        "constants": report["parts"]["constants"],
    }  # fmt: skip
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    if recorded:
        progress.begin("linking", "linking the self-test")
        _make_selftest(out, codes, source, recorded, options)
    return manifest


def build_library(
    config: OpSet,
    models: Sequence[Path],
    out: Path,
    options: Options,
    progress: StagePrinter = SILENT,
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
    wanted = {spec.symbol: spec for spec in find_kernel_set(config)}
    progress.expect(Counter[Part]({"planning": len(models), "kernels": 1, "linking": 1}))
    for folder in models:
        progress.begin("planning", f"planning {folder}")
        planned = make_plans(
            list_artifacts(folder),
            platform.target,
            options.threads,
            options.batches,
            options.shapes or {},
            options.outputs,
            closed=True,
            progress=progress,
            joined=options.joined,
            planning=options.planning,
        )
        wanted |= {spec.symbol: spec for spec in planned.list_kernels()}
    runtime = list_runners(options.threads)
    specs = [*(wanted[s] for s in sorted(wanted.keys() - {k.symbol for k in runtime})), *runtime]
    symbols = [spec.symbol for spec in specs]
    if platform.better:
        progress.say(f"a library of ops has code for one CPU: {platform.target.cpu}")
    level = CpuLevel(platform.target, symbols)
    source = Source(name, [level], options.threads, _digest(options, symbols))
    with staged(out) as made:
        codes = [_compile_kernels(source, 0, specs, options, progress)]
        _write(made, source, codes, options)
        (made / "src" / "example.c").write_text(source.write_example("example.c"), "utf-8")
        progress.begin("linking", _describe_linking(options))
        library = _link(made, codes, options)
        (made / "required_operators.config").write_text(str(config), "utf-8")
        manifest = _make_manifest(source, options, library)
        (made / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest


def _compile_kernels(
    source: Source,
    number: int,
    specs: Sequence[KernelSpec],
    options: Options,
    progress: StagePrinter,
) -> bytes:
    """Return the object file of the kernels of a library for one of its CPUs."""
    level = source.levels[number]
    return load.get_library(
        progress.count_each("compiling kernels, or reading them from the cache", specs),
        level.target,
        table=source.name_table(number),
        data=source.list_data()[number],
        small=options.size,
        calls=level.bundle.steps.calls if level.bundle else (),
        constants=source.find_constants(number),
        has_threads=options.threads > 1,
        distances=level.target.is_elf,
    )


def _write(out: Path, source: Source, codes: Sequence[bytes], options: Options) -> None:
    """Write all sources of a library, and the object files of its kernels."""
    name, made = options.name, out / "src"
    made.mkdir(parents=True, exist_ok=True)
    (made / f"{name}.c").write_text(source.write_source(), "utf-8")
    for level, code in zip(source.levels, codes, strict=True):
        more = f"-{level.target.cpu}" if len(codes) > 1 else ""
        (made / f"kernels{more}.o").write_bytes(code)
    (out / f"{name}.h").write_text(source.write_header(), "utf-8")
    (out / f"{name}.hpp").write_text(source.write_cpp_header(), "utf-8")
    if not (options.static or options.freestanding):
        files = {"device.py": f"{name}.py", "library.py": f"{name}_library.py"}
        if options.decoder is not None:
            files["decoder.py"] = f"{name}_decoder.py"
        for file, named in files.items():
            (out / named).write_text(source.write_python(file), "utf-8")
        if options.federated:
            federated.write_package(out, name)


def _digest(options: Options, contents: Iterable[str]) -> str:
    """Return a digest that two builds share only if all that went into them is equal."""
    parts = [engine.__version__, repr(options), *contents]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _needs_posix_threads(options: Options) -> bool:
    """Return whether the runtime calls pthread; on Windows it calls the system's own functions."""
    platform = options.platform
    return options.threads > 1 and not (platform.system == "windows" or platform.shares_memory)


def _describe_linking(options: Options) -> str:
    """Return what linking does, for people who wait."""
    done = f"linking for {options.platform.name}"
    compiler = _find_compiler(options)
    if compiler.zig and not (compiler.bionic or options.freestanding):
        done += "; ziglang builds the C library of a target when it first links for it"
    return done


def _find_compiler(options: Options, language: Language | None = None) -> Compiler:
    """Return the compiler to link with; called first before any kernel is compiled.

    language: whose package has the library; None: the build itself.

    Raises:
        EngineError: there is none, or it cannot make what was asked for.
    """
    is_static = options.static and not options.freestanding
    return find_compiler(
        options.platform,
        options.compiler,
        threads=_needs_posix_threads(options),
        freestanding=language.freestanding if language else options.freestanding,
        archive=language.kind == "static" if language else is_static,
    )


def _link(out: Path, codes: Sequence[bytes], options: Options) -> Path:
    """Link the library; returns its path."""
    kind: Kind = "static" if options.static or options.freestanding else "shared"
    library = options.platform.file_name(kind, options.name)
    threads = _needs_posix_threads(options)
    if not (options.platform.is_wasm and kind == "shared"):  # nothing links with a module
        write_project_files(
            out, options.name, options.platform, library,
            threads=threads, freestanding=options.freestanding,
        )  # fmt: skip
    return link(
        codes,
        [out / "src" / f"{options.name}.c"],
        options.platform,
        out / library,
        kind=kind,
        defines={"EDGEGRAD_FREESTANDING": ""} if options.freestanding else {},
        include=[out],
        size=True,  # the C code is not hot
        threads=threads,
        freestanding=options.freestanding,
        compiler=options.compiler,
    )


def _write_bindings(
    out: Path,
    libraries: Sequence[_Compiled],
    language: Language,
    options: Options,
    progress: StagePrinter,
) -> None:
    """Write the package of a language, with a library for each platform."""
    name, package = options.name, out / language.name
    platforms = [library.options.platform for library in libraries]
    apis = [
        library.source.describe_api(
            engine.__version__, platforms, freestanding=language.freestanding
        )
        for library in libraries
    ]  # fmt: skip
    constants = {key: max(each.constants[key] for each in apis) for key in apis[0].constants}
    api = replace(apis[0], constants=constants)  # memory is enough for each library
    for path, text in write_package(language, api):
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, "utf-8")
    for library, platform in zip(libraries, platforms, strict=True):
        progress.begin("linking", f"the package for {language.title}: linking for {platform.name}")
        place = package / language.place(name, platform)
        header = library.source.write_header()
        for path, text in write_headers(language, api, header):
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text, "utf-8")
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder)
            (made / f"{name}.h").write_text(header, "utf-8")
            (made / f"{name}.c").write_text(library.source.write_source(), "utf-8")
            link(
                library.codes,
                [made / f"{name}.c", *(package / source for source in language.sources)],
                platform,
                place / platform.file_name(language.kind, name),
                kind=language.kind,
                defines={"EDGEGRAD_FREESTANDING": ""} if language.freestanding else {},
                include=[made],
                size=True,  # the C code is not hot
                threads=_needs_posix_threads(library.options),
                freestanding=language.freestanding,
                compiler=options.compiler,
            )


def _make_selftest(
    out: Path, codes: Sequence[bytes], source: Source, recorded: str, options: Options
) -> None:
    """Make the self-test, a program that needs the checkpoint and nothing else of the build.

    recorded: C that declares what it compares with, see tools/trimmed/selftest.py.
    """
    platform, made = options.platform, out / "src"
    (made / "selftest.c").write_text(source.write_selftest(recorded), "utf-8")
    link(
        codes,
        [made / f"{options.name}.c", made / "selftest.c"],
        platform,
        out / platform.file_name("executable", "selftest"),
        kind="executable",
        include=[out],
        size=True,  # the C code is not hot
        threads=_needs_posix_threads(options),
        compiler=options.compiler,
    )


# --- manifest


def _make_manifest(source: Source, options: Options, library: Path) -> dict[str, Any]:
    target, symbols = source.target, (s for level in source.levels for s in level.symbols)
    return {
        "name": options.name,
        "build": source.build,
        "edgegrad": engine.__version__,
        "target": options.platform.name,
        "triple": target.triple,
        "cpu": target.cpu,
        "cpus": [level.target.cpu for level in source.levels],
        "threads": options.threads,
        "library": library.name,
        "kernels": list(dict.fromkeys(symbols)),
        "sizes": {"message": MESSAGE_BYTES, "library": library.stat().st_size},
    }


def _describe_contents(bundle: Bundle, name: str) -> dict[str, Any]:
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


# --- plans for a library


def write_plans(
    folder: Path,
    out: Path,
    options: Options,
    config: OpSet | None = None,
    progress: StagePrinter = SILENT,
) -> int:
    """Write the plans of artifacts for a library of kernels, as one file; returns its bytes.

    options: its name and how to link are not used.
    config: what the library was made for; plans that need other kernels are refused.

    Raises:
        EngineError: an artifact cannot be read or planned, or the file cannot be written.
        UnsupportedOpError: the library lacks a kernel.
    """
    target = options.platform.target
    planned = make_plans(
        list_artifacts(folder),
        target,
        options.threads,
        options.batches,
        options.shapes or {},
        options.outputs,
        closed=True,
        progress=progress,
        joined=options.joined,
        planning=options.planning,
    )
    if config is not None:
        check_kernels(planned, config)
    content = Bundle(planned, target, options.threads, is_file=True).write_file()
    files_io.write(os.fspath(out), [content])
    return len(content)


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
