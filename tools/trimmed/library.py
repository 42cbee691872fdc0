"""Files of a library: its sources, the library itself, the packages of languages, the self-test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import engine
from engine.tools.trimmed import federated
from engine.tools.trimmed.bindings.package import Language, write_headers, write_package
from engine.tools.trimmed.compilation import CompiledLibrary
from engine.tools.trimmed.generate import Source
from engine.tools.trimmed.link import Compiler, Kind, find_compiler, link
from engine.tools.trimmed.options import Options
from engine.tools.trimmed.progress import StagePrinter
from engine.tools.trimmed.project_files import write_project_files
from engine.tools.trimmed.targets import Platform

Ingredients = tuple[str | bool | bytes, ...]


def find_linker(options: Options, language: Language | None = None) -> Compiler:
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


def describe_linking(options: Options) -> str:
    """Return what linking does, for people who wait."""
    done = f"linking for {options.platform.name}"
    compiler = find_linker(options)
    if compiler.zig and not (compiler.bionic or options.freestanding):
        done += "; ziglang builds the C library of a target when it first links for it"
    return done


def write_sources(out: Path, source: Source, codes: Sequence[bytes], options: Options) -> None:
    """Write all sources of a library, and the object files of its kernels."""
    name, made = options.name, out / "src"
    made.mkdir(parents=True, exist_ok=True)
    (made / f"{name}.c").write_text(source.write_source(), "utf-8")
    for level, code in zip(source.levels, codes, strict=True):
        more = f"-{level.target.cpu}" if len(codes) > 1 else ""
        (made / f"kernels{more}.o").write_bytes(code)
    (out / f"{name}.h").write_text(source.write_header(), "utf-8")
    (out / f"{name}.hpp").write_text(source.write_cpp_header(), "utf-8")
    if choose_kind(options) == "shared" and not options.platform.is_wasm:  # Python loads no modules
        files = {"device.py": f"{name}.py", "library.py": f"{name}_library.py"}
        if options.plans.decoder is not None:
            files["decoder.py"] = f"{name}_decoder.py"
        for file, named in files.items():
            (out / named).write_text(source.write_python(file), "utf-8")
        if options.federated:
            federated.write_package(out, name)


def choose_kind(options: Options) -> Kind:
    """Return the kind of the library of a build."""
    return "static" if options.static or options.freestanding else "shared"


def link_library(out: Path, codes: Sequence[bytes], options: Options) -> Path:
    """Link the library; returns its path."""
    kind = choose_kind(options)
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


def write_bindings(
    out: Path,
    libraries: Sequence[CompiledLibrary],
    language: Language,
    options: Options,
    progress: StagePrinter,
    made: dict[Ingredients, Path],
) -> None:
    """Write the package of a language, with a library for each platform.

    made: the libraries of this build by what they are linked of, which several packages share.
    """
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
        place = package / language.place(name, platform)
        header = library.source.write_header()
        for path, text in write_headers(language, api, header):
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text, "utf-8")
        sources = [package / source for source in language.sources]
        key = describe_ingredients(platform, language.kind, language.freestanding, sources)
        out_path = place / platform.file_name(language.kind, name)
        if key in made:
            progress.drop("linking")
            _copy(made[key], out_path)
            continue
        progress.begin("linking", f"the package for {language.title}: linking for {platform.name}")
        with tempfile.TemporaryDirectory() as folder:
            inputs = Path(folder)
            (inputs / f"{name}.h").write_text(header, "utf-8")
            (inputs / f"{name}.c").write_text(library.source.write_source(), "utf-8")
            made[key] = link(
                library.codes,
                [inputs / f"{name}.c", *sources],
                platform,
                out_path,
                kind=language.kind,
                defines={"EDGEGRAD_FREESTANDING": ""} if language.freestanding else {},
                include=[inputs],
                size=True,  # the C code is not hot
                threads=_needs_posix_threads(library.options),
                freestanding=language.freestanding,
                compiler=options.compiler,
            )


def describe_ingredients(
    platform: Platform, kind: Kind, freestanding: bool, sources: Sequence[Path] = ()
) -> Ingredients:
    """Return what decides the bytes of a library of a build.

    sources: the C that it has besides the runtime, such as the native methods of Java.
    """
    return platform.name, kind, freestanding, *(path.read_bytes() for path in sources)


def _copy(library: Path, to: Path) -> None:
    """Copy a library, and on Windows what compilers link with instead of it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(library, to)
    if (imports := library.with_suffix(".lib")).exists():
        shutil.copyfile(imports, to.with_suffix(".lib"))


def make_selftest(
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


def _needs_posix_threads(options: Options) -> bool:
    """Return whether the runtime calls pthread; on Windows it calls the system's own functions."""
    platform = options.platform
    return options.plans.threads > 1 and not (
        platform.system == "windows" or platform.shares_memory
    )
