"""Files by which CMake, pkg-config, make, PlatformIO and Arduino find a build, where it lies.

All name every path relative to themselves, so a build can be moved.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import engine
from engine.tools.trimmed.targets import Platform

_CMAKE = """\
# Where this build is, for CMake 3.10 or newer:
#
#     find_package({name} CONFIG REQUIRED)
#     target_link_libraries(app PRIVATE {name}::{name})
#
# with this folder in CMAKE_PREFIX_PATH, or as {name}_DIR.
if(CMAKE_SYSTEM_NAME AND NOT CMAKE_SYSTEM_NAME MATCHES "^({systems})$")
  set({name}_FOUND FALSE)
  set({name}_NOT_FOUND_MESSAGE
    "the library is for {target}, and this project for ${{CMAKE_SYSTEM_NAME}}")
  return()
endif()
if(NOT TARGET {name}::{name})
{threads}  add_library({name}::{name} {kind} IMPORTED)
  set_target_properties({name}::{name} PROPERTIES
{properties})
endif()
"""
_PKG_CONFIG = """\
prefix=${{pcfiledir}}

Name: {name}
Description: training of one model, built for {target} by edgegrad
Version: {version}
Cflags: {cflags}
Libs: {libs}
"""
_MAKEFILE = """\
# The examples of this folder, made with `make`, or for another system `make CC=... CXX=...`.
CFLAGS += -O2 -I..
LDLIBS += -L.. -l{name} -Wl,-rpath,'{beside}/..'{threads}

all: $(patsubst %.c,%,$(wildcard example.c device.c)) $(if $(wildcard example.cpp),example-cpp)

example device: %: %.c
\t$(CC) $(CFLAGS) $< $(LDLIBS) -o $@

example-cpp: example.cpp
\t$(CXX) -std=c++17 $(CFLAGS) $< $(LDLIBS) -o $@

.PHONY: all
"""
_ARDUINO = """\
name={name}
version={version}
author=edgegrad
maintainer=edgegrad
sentence=Training of one model on the board.
paragraph={paragraph}
category=Data Processing
url=
architectures=*
includes={name}.h
precompiled=full
ldflags=-l{name}
"""
_PARAGRAPH = "Made by edgegrad build for {target}, with floats passed in its registers for floats."
_FREESTANDING = "#ifndef EDGEGRAD_FREESTANDING\n#define EDGEGRAD_FREESTANDING\n#endif\n"
_SKETCH = """\
// A model without values yet, in memory of the sketch; {name}.h describes the calls.
#include <{name}.h>

alignas(64) static unsigned char memory[{NAME}_MEMORY_BYTES];
static {name} *model;

void setup()
{{
    char why[{NAME}_MESSAGE_BYTES];
    Serial.begin(115200);
    if ({name}_create_in(&model, memory, sizeof memory, nullptr, 0, why))
        Serial.println(why);
    else
        Serial.println({name}_build());
}}

void loop() {{}}
"""
# Where Arduino looks for an archive: by core, and by the units and registers for floats.
_BOARDS = {
    "cortex-m4": "cortex-m4/fpv4-sp-d16-hard", "cortex-m7": "cortex-m7/fpv5-d16-hard",
}  # fmt: skip
# CMake's names of systems; a project without a system of its own is Generic.
_SYSTEMS = {
    "linux": "Linux", "android": "Android", "macos": "Darwin", "ios": "iOS",
    "ios-simulator": "iOS", "windows": "Windows", "wasi": "WASI|Generic", "none": "Generic",
}  # fmt: skip


def write_project_files(
    out: Path, name: str, platform: Platform, library: str, *, threads: bool, freestanding: bool
) -> None:
    """Write the files beside a library.

    library: its file name; an archive if that ends in `.a`.
    threads: whether the C code calls pthread.
    freestanding: whether users of the header define EDGEGRAD_FREESTANDING.
    """
    is_archive = library.endswith(".a")
    needs_threads = threads and is_archive and not freestanding
    here = "${CMAKE_CURRENT_LIST_DIR}"
    rows = {"INTERFACE_INCLUDE_DIRECTORIES": here, "IMPORTED_LOCATION": f"{here}/{library}"}
    if platform.system == "windows" and not is_archive:
        rows["IMPORTED_IMPLIB"] = f"{here}/{Path(library).stem}.lib"
    if freestanding:
        rows["INTERFACE_COMPILE_DEFINITIONS"] = "EDGEGRAD_FREESTANDING"
    if needs_threads:
        rows["INTERFACE_LINK_LIBRARIES"] = "Threads::Threads"
    systems = _SYSTEMS[platform.system] + ("|Generic" if freestanding else "")
    cmake = _CMAKE.format(
        name=name,
        systems="|".join(dict.fromkeys(systems.split("|"))),
        target=platform.name,
        kind="STATIC" if is_archive else "SHARED",
        threads="  find_package(Threads REQUIRED)\n" if needs_threads else "",
        properties="\n".join(f'    {key} "{value}"' for key, value in rows.items()),
    )
    (out / f"{name}-config.cmake").write_text(cmake, "utf-8")
    cflags = "-I${prefix}" + " -DEDGEGRAD_FREESTANDING" * freestanding
    libs = f"-L${{prefix}} -l{name}" + " -pthread" * needs_threads
    text = _PKG_CONFIG.format(
        name=name, target=platform.name, version=engine.__version__, cflags=cflags, libs=libs
    )
    (out / f"{name}.pc").write_text(text, "utf-8")
    if platform.form in ("elf", "macho") and not freestanding:
        makefile = _MAKEFILE.format(
            name=name,
            beside="$$ORIGIN" if platform.is_elf else "@loader_path",  # the program's folder
            threads=" -pthread" * needs_threads,
        )
        (out / "src/Makefile").write_text(makefile, "utf-8")


def write_board_libraries(out: Path, name: str, platform: Platform, library: Path) -> None:
    """Write the folder `platformio`, a library for its projects, if the target is bare metal; and
    `arduino`, one for sketches, if there are boards with the core.

    library: the archive.
    """
    if not platform.is_bare:
        return
    about = {"name": name, "version": engine.__version__, "target": platform.name}
    header = _FREESTANDING + (out / f"{name}.h").read_text("utf-8")
    flags = ["-DEDGEGRAD_FREESTANDING", "-Llib", f"-l{name}"]
    manifest = {
        "name": name,
        "version": engine.__version__,
        "description": _PARAGRAPH.format(**about),
        "frameworks": "*",
        "platforms": "*",
        "headers": f"{name}.h",
        "build": {"flags": flags},
    }
    files = {"library.json": json.dumps(manifest, indent=2) + "\n", f"include/{name}.h": header}
    _write_library(out / "platformio" / name, files, library, "lib")
    if platform.target.cpu in _BOARDS:
        files = {
            "library.properties": _ARDUINO.format(paragraph=_PARAGRAPH.format(**about), **about),
            f"src/{name}.h": header,
            "examples/Begin/Begin.ino": _SKETCH.format(name=name, NAME=name.upper()),
        }
        place = f"src/{_BOARDS[platform.target.cpu]}"
        _write_library(out / "arduino" / name, files, library, place)


def _write_library(folder: Path, files: Mapping[str, str], archive: Path, place: str) -> None:
    """Write the files of a library, by their paths in its folder, and its archive to `place`."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    (folder / place).mkdir(parents=True)
    shutil.copyfile(archive, folder / place / archive.name)
