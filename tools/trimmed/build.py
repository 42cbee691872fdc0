"""Build: make a small library for a target that trains one model, from C, C++ and Python."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine.base.errors import CheckpointError, InputError
from engine.checkpoint.storage import has_external_data
from engine.system import files as files_io
from engine.tools.trimmed.bindings.languages import LANGUAGES, check_languages
from engine.tools.trimmed.compilation import (
    compile_kernels,
    compile_library,
    digest_build,
    list_targets,
)
from engine.tools.trimmed.decoders import find_decoder
from engine.tools.trimmed.generate import CpuLevel, Source
from engine.tools.trimmed.kernel_set import find_kernel_set
from engine.tools.trimmed.library import (
    choose_kind,
    describe_ingredients,
    describe_linking,
    find_linker,
    link_library,
    make_selftest,
    write_bindings,
    write_sources,
)
from engine.tools.trimmed.manifest import MANIFEST, describe_contents, make_manifest
from engine.tools.trimmed.names import check_name
from engine.tools.trimmed.opset import OpSet
from engine.tools.trimmed.options import Options
from engine.tools.trimmed.plan_file import make_closed_plans
from engine.tools.trimmed.plans import list_artifacts, list_runners
from engine.tools.trimmed.progress import SILENT, Part, StagePrinter
from engine.tools.trimmed.project_files import write_board_libraries
from engine.tools.trimmed.report import make_report
from engine.tools.trimmed.selftest import CheckpointStamp, keep_trained, record
from engine.tools.trimmed.staging import staged
from engine.training.artifact_set import CHECKPOINT


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
        build=options.name, archive=options.static or options.freestanding,
        freestanding=options.freestanding,
    )  # fmt: skip
    _check_shared_memory(options)
    find_linker(options.each[0])
    for language in map(LANGUAGES.__getitem__, options.bindings):
        for each in options.each:
            find_linker(each, language)
    files = {} if folder is None else list_artifacts(folder)
    if options.plans.decoder is not None:
        files["decoder"] = find_decoder(folder, options.plans.decoder)
    if not files:
        raise InputError("there is nothing to build: give artifacts, or a decoder")
    content, checkpoint = b"", None
    if "checkpoint" in files:
        content = _read_first_values(files["checkpoint"])
        checkpoint = CheckpointStamp.of(content)
        keep_trained(out, checkpoint)
    else:
        options = replace(options, plans=replace(options.plans, only="decoder"))
    with staged(out) as made:
        if checkpoint is not None:
            (made / CHECKPOINT).write_bytes(content)
        del content  # it is as large as all parameters
        return _build(files, made, options.each, checkpoint, progress)


def _check_shared_memory(options: Options) -> None:
    """Check that modules with shared memory are for several threads, beside one for all pages.

    Raises:
        InputError: they are not.
    """
    sharing = [p.name for p in (options.platform, *options.also) if p.shares_memory]
    if sharing and options.plans.threads == 1:
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


def _count_parts(each: Sequence[Options], *, has_test: bool) -> Counter[Part]:
    """Return the parts of a build by their kind, as `StagePrinter.expect` takes them.

    A library is linked for the build, and in the package of each language for every platform,
    unless one of them is the same.
    """
    cpus = sum(len(list_targets(options)) for options in each)
    links = 1 + len(each[0].bindings) * len(each) + has_test
    return Counter[Part]({"planning": cpus, "kernels": cpus, "linking": links})


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
    has_test = not options.freestanding and find_linker(options).programs
    progress.expect(_count_parts(each, has_test=has_test))
    own = compile_library(files, options, progress)
    name, source, codes = options.name, own.source, own.codes
    planned = own.bundles[-1].planned
    write_sources(out, source, codes, options)
    for file in ("example.c", "example.cpp", *["device.c"] * options.federated):
        (out / "src" / file).write_text(source.write_example(file), "utf-8")
    with ThreadPoolExecutor(1) as linker:  # a process of its own: this one trains meanwhile
        progress.begin("linking", describe_linking(options))
        linked = linker.submit(link_library, out, codes, options)
        recorded = ""
        if has_test:
            progress.say("recording the self-test on this machine")
            recorded = record(
                files, planned, options.plans.threads, checkpoint, options.plans.planning
            )
    library = linked.result()
    write_board_libraries(out, name, options.platform, library)
    manifest = make_manifest(source, options, library)
    manifest |= describe_contents(own.bundles[-1], name)
    libraries = [own]
    libraries += [compile_library(files, other, progress) for other in others]
    own_kind = choose_kind(options)
    made = {describe_ingredients(options.platform, own_kind, options.freestanding): library}
    for language in options.bindings:
        write_bindings(out, libraries, LANGUAGES[language], options, progress, made)
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
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    if recorded:
        progress.begin("linking", "linking the self-test")
        make_selftest(out, codes, source, recorded, options)
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
    find_linker(options)
    wanted = {spec.symbol: spec for spec in find_kernel_set(config)}
    progress.expect(Counter[Part]({"planning": len(models), "kernels": 1, "linking": 1}))
    for folder in models:
        progress.begin("planning", f"planning {folder}")
        planned = make_closed_plans(folder, platform.target, options.plans, progress)
        wanted |= {spec.symbol: spec for spec in planned.list_kernels()}
    runtime = list_runners(options.plans.threads)
    specs = [*(wanted[s] for s in sorted(wanted.keys() - {k.symbol for k in runtime})), *runtime]
    symbols = [spec.symbol for spec in specs]
    if platform.better:
        progress.say(f"a library of ops has code for one CPU: {platform.target.cpu}")
    level = CpuLevel(platform.target, symbols)
    source = Source(name, [level], options.plans.threads, digest_build(options, symbols))
    with staged(out) as made:
        codes = [compile_kernels(source, 0, specs, options, progress)]
        write_sources(made, source, codes, options)
        (made / "src" / "example.c").write_text(source.write_example("example.c"), "utf-8")
        progress.begin("linking", describe_linking(options))
        library = link_library(made, codes, options)
        (made / "required_operators.config").write_text(str(config), "utf-8")
        manifest = make_manifest(source, options, library)
        (made / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest
