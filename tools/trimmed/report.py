"""Reports of builds: where the bytes of a library go, and the memory of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.tools.trimmed.binary import list_function_sizes
from engine.tools.trimmed.bundle import Bundle

_SHARED = "shared by kernels"  # functions that several call


def make_report(
    library: int, codes: Sequence[bytes], bundles: Sequence[Bundle], graph: int
) -> dict[str, Any]:
    """Return the bytes of a library and of a model's memory, by what takes them.

    library: the size of the library's file.
    codes: the objects of kernels, one for each CPU that the library has code for.  Only ELF has the
        sizes of its functions; kernels of other forms are a part of the rest.
    bundles: the plans for these CPUs.
    graph: the bytes of the inference model in the library.
    """
    kernels: dict[str, int] = {}
    for code, bundle in zip(codes, bundles, strict=True):
        symbols = {spec.symbol for spec in bundle.planned.list_kernels()}
        more = f", {bundle.target.cpu}" if len(codes) > 1 else ""
        for symbol, size in list_function_sizes(code).items():
            name = symbol.partition(".called")[0]
            name = (name if name in symbols else _SHARED) + more
            kernels[name] = kernels.get(name, 0) + size
    parts = {
        "kernels": sum(kernels.values()),
        "plans": sum(map(len, {b.contents[name] for b in bundles for name in ("tables", "steps")})),
        "constants": sum(map(len, {b.constants for b in bundles})),
        "inference model": graph,
    }
    largest = max(bundles, key=Bundle.count_memory)
    rest = library - sum(parts.values())
    return {
        "library": library,
        "parts": parts | {"runtime, alignment and format": rest},
        "kernels": dict(sorted(kernels.items(), key=lambda pair: (-pair[1], pair[0]))),
        "memory": largest.count_memory(),
        "areas": largest.list_areas(),
    }


def write_report(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a report for people."""
    for title, key, inner in (("library", "parts", "kernels"), ("memory", "areas", "")):
        yield f"{title:44s}{report[title]:>12,} bytes"
        for name, size in report[key].items():
            if size:
                yield f"  {name:42s}{size:>12,} {100 * size / report[title]:5.1f} %"
            for kernel, own in report[inner].items() if name == inner else ():
                yield f"    {kernel:40s}{own:>12,}"
