"""C source of a trimmed build: the files of `runtime/` in one, and a header with its sizes.

The files of `runtime/` are text with few changes to make.  The files for users (the header, the
examples) have the marks `@name@` and `@NAME@`, which the name of the build replaces.  The rest says
`model_` wherever a name is public, and macros at the top of the source give these words the names
of the build (see `Source._write_words`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from engine.base.element_types import ELEMENT_TYPES, ElementType
from engine.base.errors import ModelError
from engine.base.proximal import ANCHOR, MU
from engine.checkpoint.safetensors import TYPE_NAMES
from engine.kernels.compiler.calls import UNIT
from engine.kernels.machine.target import Target
from engine.plan.context import write_c_header
from engine.plan.file_schema import HEAD, MAGIC, SEALED, STRIPPED, VERSION, Rule, make_schema
from engine.plan.plan import REGIONS
from engine.plan.states import FORMS, MOST_STATES
from engine.runtime.arena import HUGE_BYTES, HUGE_PAGE
from engine.runtime.team import LAUNCH
from engine.tools.trimmed.api import (
    ApiFunction,
    Only,
    list_enumerations,
    list_functions,
    write_cpp,
    write_ctypes,
)
from engine.tools.trimmed.bindings.package import Api, select_lines
from engine.tools.trimmed.bundle import (
    MOST_MEMORY,
    OWN_PROPERTY_ROOM,
    PARAMETER_ROOM,
    PLAN_ROOM,
    PORT_ROOM,
    PROPERTY_HEAD,
    Bundle,
    count_handle_bytes,
    count_property_bytes,
    describe_target,
    digest_kernels,
)
from engine.tools.trimmed.cpu import list_needs, write_needs, write_questions
from engine.tools.trimmed.export import GraphTemplate
from engine.tools.trimmed.plans import PHASES
from engine.tools.trimmed.records import ALONE, BARRIER, GROUP, KINDS, REPEAT, TILED
from engine.tools.trimmed.targets import Platform
from engine.training.loss_scale import FACTOR, GROWTH_INTERVAL, INITIAL, LEAST, MOST
from engine.training.state import PROGRESS

RUNTIME = Path(__file__).parent / "runtime"
PARTS = ("bytes.c", "helpers.c", "tables.c", "cpu.c", "threads.c", "plan_read.c", "runtime.c",
         "run.c", "create.c", "steps.c", "decoder.c", "parameters.c", "checkpoint_read.c",
         "pieces.c", "checkpoint_write.c", "export.c", "message.c", "federated.c",
         "files.c")  # fmt: skip
MESSAGE_BYTES = 256
MOST_PARAMETERS = 1 << 31  # bytes, of models whose plans are files
PER_LEVEL = 3  # blocks of data that plans have: tables, steps, constants
LINKED = {
    "kernel_names": "names",
    "own_graph": "graph",
}  # words of the source for data of the object of kernels, and the ends of its symbols

_HEAD = """\
/* Training made by `edgegrad build`: compile it with its object of kernels. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifndef EDGEGRAD_FREESTANDING
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <io.h>
#include <process.h>
#include <windows.h>
#define getpid _getpid
#else
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
#endif
#endif
"""

_SELFTEST_HEAD = """\
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
"""

# Differences between a build, whose plans are part of it, and a library of kernels.
_BUILD = {
    "@title@": "Training of one model on fixed shapes; it needs only the C library.",
    "@plan@": "",
    "/*@create@*/": """\
/* Make a model with the values of a checkpoint file; without one (NULL) the parameters have no
 * values until @name@_set_parameters sets them all.  In C, *out is NULL on error, and `message`
 * (NULL, or a buffer of @NAME@_MESSAGE_BYTES) gets the reason. */
#ifndef EDGEGRAD_FREESTANDING
@NAME@_API int @name@_create(@name@ **out, const char *path, char *message);

/* Make a model with the values of a checkpoint in memory; without one (NULL) the parameters have no
 * values until @name@_set_parameters sets them all. */
@NAME@_API int @name@_create_from(@name@ **out, const void *checkpoint, size_t bytes,
                                char *message);
#endif

/* Make a model in the caller's memory: @NAME@_MEMORY_BYTES, aligned to 64 bytes.  The caller may
 * reuse it after @name@_destroy. */
@NAME@_API int @name@_create_in(@name@ **out, void *memory, size_t size, const void *checkpoint,
                              size_t bytes, char *message);""",
}
_LIBRARY = {
    "@title@": "Training of models whose plans are files; it needs only the C library.",
    "@plan@": '"plan", ',
    "/*@create@*/": """\
/* Make a model from a plan and a checkpoint, as files or in memory; without a checkpoint (NULL) the
 * parameters have no values until @name@_set_parameters sets them all.
 * @NAME@_BAD_PLAN: the plan is damaged, was made for another target, number of threads or version,
 * or needs a kernel that this library lacks; the message names the op to add.
 *
 * Plan files are as dangerous as code: use only your own, or ones from people whose libraries you
 * would run.  In C, *out is NULL on error, and `message` (NULL, or a buffer of
 * @NAME@_MESSAGE_BYTES) gets the reason. */
#ifndef EDGEGRAD_FREESTANDING
@NAME@_API int @name@_create(@name@ **out, const char *plan, const char *checkpoint, char *message);
@NAME@_API int @name@_create_from_plan(@name@ **out, const void *plan, size_t plan_bytes,
                                     const void *checkpoint, size_t bytes, char *message);
#endif

/* Get the size of the memory that a model with this plan needs. */
@NAME@_API int @name@_plan_memory(const void *plan, size_t plan_bytes, size_t *size, char *message);

/* Make a model in the caller's memory: the size from @name@_plan_memory, aligned to 64 bytes.  The
 * caller may reuse it after @name@_destroy, and may free plan and checkpoint after this call. */
@NAME@_API int @name@_create_in(@name@ **out, void *memory, size_t size, const void *plan,
                              size_t plan_bytes, const void *checkpoint, size_t bytes,
                              char *message);""",
}
_EXPORT = """\
/* --- the inference model, as an ONNX file with the parameters' values, for onnxruntime and others
 *
 * Builds by `edgegrad build --export` have these functions.  @NAME@_BAD_STATE: the parameters have
 * no values.  No file has changed. */

/* Return the size of the inference model's file in bytes; on error 0, with a message. */
@NAME@_API size_t @name@_export_model_size(@name@ *m);

/* Write the inference model to a buffer of exactly @name@_export_model_size bytes. */
@NAME@_API int @name@_export_model_to(@name@ *m, void *buffer, size_t size);

/* Write the bytes of the inference model's file that begin at `offset`, as many as the buffer has,
 * as @name@_save_part does. */
@NAME@_API int @name@_export_model_part(@name@ *m, size_t offset, void *buffer, size_t size);
#ifndef EDGEGRAD_FREESTANDING
/* Write the inference model to a file, as @name@_save writes a checkpoint. */
@NAME@_API int @name@_export_model(@name@ *m, const char *path);
#endif"""
_EXAMPLE = (
    ("@name@_create(&m, argv[1], why)", "@name@_create(&m, argv[3], argv[1], why)"),
    ("argc != 3", "argc != 4"),
    ("CHECKPOINT NEW_CHECKPOINT", "CHECKPOINT NEW_CHECKPOINT PLAN"),
)  # what the C example of a library does otherwise


def quote(text: str) -> str:
    """Return text as a C string literal.

    Other characters than plain ASCII become octal escapes of their UTF-8 bytes.  An octal escape
    ends after three digits; a hexadecimal one would swallow digits that follow.
    """
    plain = "".join(
        chr(c) if 0x20 <= c < 0x7F and chr(c) not in '"\\?' else f"\\{c:03o}" for c in text.encode()
    )
    return f'"{plain}"'


def _clean_comment(text: str) -> str:
    """Return text that cannot end its C comment, of at most 60 characters."""
    return quote(text)[1:-1].replace("*/", "* /").replace("//", "/ /")[:60]


@dataclass(frozen=True, slots=True)
class CpuLevel:
    """The code of a library for a CPU, and for all that have its features.

    symbols: of all kernels in the order of the table, those that run plans last.
    bundle: the plans of a build; a library of kernels has none, because its plans come as files.
    """

    target: Target
    symbols: Sequence[str]
    bundle: Bundle | None = None


class Source:
    """Generated text of a build, or of a library of kernels."""

    def __init__(
        self,
        name: str,
        levels: Sequence[CpuLevel],
        threads: int,
        build: str,
        graph: GraphTemplate | None = None,
        federated: bool = False,
    ) -> None:
        """Take the code for one CPU or for several, the best first; all can run the last.

        graph: the inference model that the library exports; None if it exports none.
        federated: whether it has the functions of federations.

        Raises:
            ModelError: the name would give a word of the source two meanings.
        """
        self.name, self.levels, self.threads, self.build = name, levels, threads, build
        self.target, self.bundle, self.graph = levels[-1].target, levels[-1].bundle, graph
        self.federated = federated
        self.only: Only = self.bundle.planned.only if self.bundle else ""
        self.decoder = self.bundle.planned.decoder if self.bundle else None
        aliases = self._list_aliases()
        twice = sorted(made for made in aliases.values() if aliases.get(made, made) != made)
        if twice:
            raise ModelError(f"name {name!r}: {twice[0]} would have two meanings; choose another")

    def write_header(self) -> str:
        """Return the public header."""
        rows = [
            f"#define {'@NAME@_' + k:26s} {v} /* {what} */" for k, v, what in self._list_constants()
        ]
        return self.fill_names(self.read_header().replace("/*@constants@*/", "\n".join(rows)))

    def write_cpp_header(self) -> str:
        """Return the header of the C++ class, made from the declarations of the public header."""
        text = _read_template("model.hpp").replace("@plan@", "" if self.bundle else '"plan", ')
        members = write_cpp(list_functions(self.read_header()))
        return self.fill_names(text.replace("/*@members@*/", members))

    def write_python(self, file: str) -> str:
        """Return a file of the interface for Python; `file` is its name in `runtime/`."""
        functions = self.list_api(freestanding=False)
        text = select_lines(_read_template(file), {function.name for function in functions})
        text = text.replace('"model"', f'"{self.name}"', 1)
        dtypes = (np.dtype(t.numpy).name if t else "" for t in _list_types())
        text = text.replace("@dtypes@", ",".join(dtypes))
        return text.replace("@functions@", write_ctypes(functions))

    def read_header(self) -> str:
        """Return the public header with the marks of names and constants, which describes the
        API.
        """
        text = _read_template("model.h")
        for mark, own in (_BUILD if self.bundle else _LIBRARY).items():
            text = text.replace(mark, own)
        return text.replace("/*@export@*/\n\n", _EXPORT + "\n\n" if self.graph else "")

    def describe_api(
        self, version: str, platforms: Sequence[Platform], *, freestanding: bool
    ) -> Api:
        """Return what the bindings of a library are written from.

        version: the version of packages.
        platforms: those that packages have a library for.
        """
        header = self.read_header()
        functions = self.list_api(freestanding=freestanding)
        constants = {key: value for key, value, _ in self._list_constants()}
        enumerations = tuple(list_enumerations(header))
        return Api(self.name, version, functions, enumerations, constants, platforms)

    def list_api(self, *, freestanding: bool) -> list[ApiFunction]:
        """Return the functions that the library has."""
        return [
            function
            for function in list_functions(self.read_header())
            if function.exists(
                freestanding=freestanding,
                threads=self.threads,
                only=self.only,
                federated=self.federated,
                decodes=self.decoder is not None,
            )
        ]

    def write_source(self) -> str:
        """Return everything in the library except its kernels, as one C file."""
        rows = "\n".join(self._write_declarations()) + "\n"
        parts = "\n".join(map(_read_template, PARTS))
        levels = "\n".join(self._write_levels())
        return "\n".join([_HEAD, self._write_words(), rows, parts.replace("/*@levels@*/", levels)])

    def write_example(self, file: str) -> str:
        """Return the text of an example program; `file` is its name in `runtime/`."""
        functions = {function.name for function in self.list_api(freestanding=False)}
        text = select_lines(_read_template(file), functions)
        for old, new in () if self.bundle else _EXAMPLE:
            text = text.replace(old, new)
        return self.fill_names(text)

    def write_selftest(self, recorded: str) -> str:
        """Return the self-test of a build; `recorded` is C that declares the values it compares
        with.
        """
        text = _read_template("selftest.c").replace("/*@recorded@*/", recorded)
        return "\n".join([_SELFTEST_HEAD, self._write_words(), text])

    def fill_names(self, text: str) -> str:
        """Return a text with the marks `@name@` and `@NAME@` replaced by the name of the build."""
        return text.replace("@name@", self.name).replace("@NAME@", self.name.upper())

    def link_name(self, word: str) -> str:
        """Return the symbol of a piece of data that the C source takes from the object file of
        kernels.
        """
        return f"{self.name}_edgegrad_{word}"

    def _write_words(self) -> str:
        """Return the lines that include the header and give the runtime's words the build's names.

            #define mnist model
            #include "mnist.h"
            #undef mnist
            #define model_create mnist_create
            #define MODEL_OK MNIST_OK

        The header makes the bare name of the build a type, here `mnist`.  The runtime's source
        calls this type `model` and never has the bare name.  The name of a build may therefore be
        any word that the source uses for something else.  Only longer words could clash;
        tests/base/test_names.py checks that no word of the source ends as a public name does.
        """
        rows = [f"#define {self.name} model", f'#include "{self.name}.h"', f"#undef {self.name}"]
        rows += [
            f"#define {word} {name}" for word, name in self._list_aliases().items() if word != name
        ]
        return "\n".join(rows) + "\n"

    def _list_aliases(self) -> dict[str, str]:
        """Return the public names of this build, by the words that the runtime's source has for
        them.
        """
        text = _read_template("model.h") + "".join((_BUILD if self.bundle else _LIBRARY).values())
        text += _EXPORT
        text += "".join(f"@NAME@_{key} " for key, _, _ in self._list_constants())
        names = {}
        for mark, word in (("@name@", "model"), ("@NAME@", "MODEL")):
            for rest in sorted(set(re.findall(rf"{mark}(_\w+)", text))):
                names[word + rest] = self.fill_names(mark) + rest
        for word, rest in LINKED.items():
            names[word] = self.link_name(rest)
        return names

    def _list_constants(self) -> Iterator[tuple[str, int, str]]:
        bundles = [level.bundle for level in self.levels if level.bundle]
        if bundles:
            yield from self._list_sizes(max(bundles, key=Bundle.count_memory))
        yield "TRAINS", int(self.only in ("", "train")), "whether there are training steps"
        answers = int(self.only in ("", "inference"))
        yield "ANSWERS", answers, "whether there are steps of inference"
        yield "FEDERATED", int(self.federated), "whether there are functions of federations"
        yield "DECODES", int(self.decoder is not None), "whether there is a decoder"
        yield "THREADS", self.threads, "threads of a step, the caller's included"
        parameters = self.bundle.count_region("param") if self.bundle else MOST_PARAMETERS
        yield "PROPERTY_BYTES", count_property_bytes(self.target, parameters), "user properties"
        yield "MESSAGE_BYTES", MESSAGE_BYTES, "an error message"

    def _list_sizes(self, bundle: Bundle) -> Iterator[tuple[str, int, str]]:
        planned = bundle.planned
        yield "PARAMETERS", len(planned.parameters), "number of parameter tensors"
        yield (
            "MEMORY_BYTES",
            bundle.count_memory(),
            "all memory of a model, the sum of what follows",
        )
        yield "PARAMETER_BYTES", bundle.count_region("param"), "parameters"
        yield "GRADIENT_BYTES", bundle.count_region("grad"), "gradients"
        yield "STATE_BYTES", bundle.state, "optimizer"
        kept = bundle.kept * bundle.copies
        yield "KEPT_BYTES", kept, "running statistics from before steps that may be refused"
        yield "WORK_BYTES", bundle.work, "work memory of a step, shared by all phases"
        yield "IO_BYTES", sum(bundle.io), "inputs, outputs"
        if planned.decoder:
            yield "POSITIONS", planned.decoder.options.positions, "tokens that the caches hold"
            yield "CACHE_BYTES", planned.decoder.cache_bytes, "caches, a part of IO_BYTES"
        yield "HANDLE_BYTES", count_handle_bytes(self.threads), "bookkeeping; the rest is tables"
        for phase in PHASES[:3]:
            for what, names in (("inputs", planned.inputs), ("outputs", planned.outputs)):
                listed = names.get(phase, ())
                meaning = ", ".join(listed) or "no such phase"
                yield f"{phase}_{what}".upper(), len(listed), _clean_comment(meaning)

    def _write_declarations(self) -> Iterator[str]:
        yield f"#define BUILD {quote(self.build)}"
        yield f"#define KERNELS {quote(digest_kernels())}"
        yield f"#define TARGET {quote(describe_target(self.target))}"
        yield from define_types()
        yield f"enum {{ HUGE_PAGE = {HUGE_PAGE}, HUGE_BYTES = {HUGE_BYTES} }}; /* of memory */"
        handle = count_handle_bytes(self.threads, has_plans=self.bundle is not None)
        yield f"enum {{ HANDLE_BYTES = {handle} }}; /* of struct model */"
        rooms = {"PARAMETER": PARAMETER_ROOM, "PORT": PORT_ROOM, "PLAN": PLAN_ROOM}
        yield f"enum {{ {', '.join(f'{word}_ROOM = {size}' for word, size in rooms.items())} }};"
        for width, most in MOST_MEMORY.items():
            yield f"#define LARGEST_OF_{width}_BITS {most}u"
        yield f"#define OWN_PROPERTY_ROOM {OWN_PROPERTY_ROOM}"
        yield f"#define PROPERTY_HEAD {PROPERTY_HEAD}"
        own = [f"OWN_{name.partition('.')[2].upper()}" for name in PROGRESS]
        yield f"enum {{ {', '.join(own)}, OWN_PROPERTIES }}; /* properties of own_names */"
        names = ", ".join(map(quote, PROGRESS))
        yield f"static const char own_names[][{max(map(len, PROGRESS)) + 1}] = {{{names}}};"
        scales = self.bundle is None or self.bundle.planned.scales_loss
        yield f"#define SCALES_LOSS {int(scales)}"
        numbers = {"FIRST": INITIAL, "LEAST": LEAST, "MOST": MOST, "GROWTH": FACTOR}
        for word, number in numbers.items():
            yield f"#define {word}_SCALE {number}f"
        yield f"#define GROWTH_INTERVAL {GROWTH_INTERVAL}"
        yield f"#define PROXIMAL_WEIGHT {quote(MU)}"
        yield f"#define ANCHOR {quote(ANCHOR)}"
        yield f"#define LEVELS {len(self.levels)}"
        yield f"#define KERNEL_DISTANCES {int(self.target.is_elf)}"
        yield f"#define NEEDS {sum(len(list_needs(level.target)) for level in self.levels)}"
        if self.target.arch == "aarch64" and "apple" in self.target.triple:
            yield f"#define QUESTIONS {write_questions(each.target for each in self.levels)}"
        has_tiles = any(level.target.has_tile_registers for level in self.levels)
        yield f"#define TILE_REGISTERS {int(has_tiles)}"
        yield write_c_header()
        if self.bundle:
            yield "#define OWN_PLANS"
            bits = {"BARRIER": BARRIER, "ALONE": ALONE, "TILED": TILED, "GROUP": GROUP}
            yield f"enum {{ KIND = {(1 << KINDS) - 1}, UNIT = {UNIT} }}; /* of heads of steps */"
            yield f"enum {{ {', '.join(f'IS_{name} = {bit}' for name, bit in bits.items())} }};"
            yield f"enum {{ PLANS = {len(self.bundle.entries)}, REPEAT = {REPEAT} }};"
            repeats = any(level.bundle and level.bundle.steps.repeats for level in self.levels)
            yield f"#define HAS_REPEATS {int(repeats)}"
            yield f"#define PACKED_PLANS {int(self.bundle.packs)}"
        else:
            yield f"#define KERNEL_COUNT {len(self.levels[0].symbols)}u"
        if self.decoder:
            places = {f"IN_{word}": at for word, at in self.decoder.places.items()}
            places["PROMPT_TOKENS"] = self.decoder.options.prompt
            yield f"enum {{ {', '.join(f'{word} = {at}' for word, at in places.items())} }};"
        if self.graph:
            yield f"#define GRAPH_BYTES {len(self.graph.content)}u"
            yield f"#define HOLES {self.graph.write_holes()}"
        yield from _format(rules=self.bundle is None)

    def list_data(self) -> list[dict[str, bytes]]:
        """Return the constant data in the object file of kernels of each level, by symbol.

        Tables or constants that levels share are there once, for the first of these.
        """
        if not self.bundle:
            (level,) = self.levels
            names = level.symbols[: level.symbols.index(LAUNCH.symbol)]
            text = "".join(f"{symbol}\0" for symbol in names) + "\0"
            return [{self.link_name("names"): text.encode()}]
        blocks: list[dict[str, bytes]] = [{} for _ in self.levels]
        for content, number, name in self._place_plans():
            blocks[number].setdefault(name, content)
        if self.graph:
            blocks[0][self.link_name("graph")] = self.graph.content
        return blocks

    def name_table(self, number: int) -> str:
        """Return the symbol of the table of kernels of a level."""
        return self.link_name(f"kernels_{number}")

    def find_constants(self, number: int) -> tuple[str, int]:
        """Return the symbol and the size of the constants of a level's plans; a library of kernels
        has none.
        """
        if not self.bundle:
            return "", 0
        content, _, name = list(self._place_plans())[PER_LEVEL * number + 2]
        return name, len(content)

    def _place_plans(self) -> Iterator[tuple[bytes, int, str]]:
        """Yield, for the tables, the steps and then the constants of each level in turn, the
        content, the level whose object file has it, and its symbol there.
        """
        places: dict[bytes, tuple[int, str]] = {}
        for number, level in enumerate(self.levels):
            assert level.bundle is not None
            for word, content in level.bundle.contents.items():
                own = number, self.link_name(f"{word}_{number}")
                yield content, *places.setdefault(content, own)

    def _write_levels(self) -> Iterator[str]:
        """Yield C declarations of the levels and of all that they point to, for tables.c."""
        plans = [name for _, _, name in self._place_plans()] if self.bundle else []
        for name in dict.fromkeys(plans):
            yield f"extern const uint8_t {name}[] HIDDEN;"
        rows = []
        for number, level in enumerate(self.levels):
            table, needs = self.name_table(number), write_needs(level.target)
            yield f"extern const kernel_row {table}[] HIDDEN;"
            if needs:
                yield f"static const struct need needs_{number}[] = {{{needs}}};"
            count = len(list_needs(level.target))
            steps = level.bundle.steps if level.bundle else None
            runners = steps.kinds if steps else level.symbols.index(LAUNCH.symbol)
            row = [
                quote(level.target.cpu), f"needs_{number}" if needs else "NULL", str(count), table,
            ]  # fmt: skip
            if not steps or self.threads > 1:
                row.append(str(runners))
            if level.bundle:
                b = level.bundle
                row += plans[PER_LEVEL * number : PER_LEVEL * (number + 1)]
                sizes = len(b.tables), len(b.steps.content), len(b.constants), b.count_memory()
                row += map(str, sizes)
            rows.append(f"    {{{', '.join(row)}}},")
        yield "\n".join(["static const struct level levels[] = {", *rows, "};"])


def _list_types() -> list[ElementType | None]:
    """Return the types of the elements of tensors by their number, which is ONNX's.

    None stands for a number of other types.
    """
    tensors = {t.onnx: t for t in ELEMENT_TYPES.values() if t.kind != "half"}
    return [tensors.get(number) for number in range(max(tensors) + 1)]


def define_types() -> Iterator[str]:
    """Yield the lines that list bytes and names of element types: by number, and of messages."""
    types, messages = _list_types(), list(ELEMENT_TYPES.values())
    for word, values in {
        "TYPE_BYTES": [str(t.itemsize if t else 0) for t in types],
        "TYPE_NAMES": [quote(TYPE_NAMES[t.name] if t else "") for t in types],
        "MESSAGE_TYPE_BYTES": [str(t.itemsize) for t in messages],
        "MESSAGE_TYPES": [quote(TYPE_NAMES[t.name]) for t in messages],
    }.items():
        yield f"#define {word} {', '.join(values)}"


def _read_template(file: str) -> str:
    return (RUNTIME / file).read_text("utf-8")


def _format(*, rules: bool) -> Iterator[str]:
    """Yield C declarations of the plan file's format: its tables, columns and regions.

    rules: whether to declare also the rules that the numbers of each column obey.  A library needs
        them to check the files it is given; the plans inside a build need no check.
    """
    tables = make_schema(stripped=True)
    columns = [column for group in tables.values() for column in group]
    numbers = {table: i for i, table in enumerate(tables)}
    yield f"#define PLAN_MAGIC {int.from_bytes(MAGIC, 'little')}u"
    yield f"enum {{ PLAN_VERSION = {VERSION}, PLAN_STRIPPED = {STRIPPED} }};"
    yield f"enum {{ HEAD_BYTES = {HEAD.size}, SEALED = {SEALED}, MOST_STATES = {MOST_STATES} }};"
    yield f"enum form {{ {', '.join(f'F_{name.upper()}' for name in FORMS)}, FORMS }};"
    yield f"enum {{ {', '.join(f'R_{name.upper()}' for name in REGIONS)}, REGIONS }};"
    yield f"enum {{ {', '.join(f'T_{name.upper()}' for name in tables)}, TABLES }};"
    names = ", ".join(f"C_{c.table.upper()}_{c.name.upper()}" for c in columns)
    yield f"enum {{ {names}, COLUMNS }};"
    yield _write_bytes("column_table", [numbers[c.table] for c in columns])
    if rules:
        yield "enum { PLAIN, ROW, ROW_OR_NONE, ROW_COUNT }; /* of the numbers of a column */"
        yield _write_bytes("column_rule", [get_args(Rule).index(c.rule) for c in columns])
        yield _write_bytes("column_of", [numbers[c.of] if c.of else 0 for c in columns])


def _write_bytes(name: str, values: Sequence[int]) -> str:
    return f"static const uint8_t {name}[] = {{{', '.join(map(str, values))}}};"
