"""Running of benches: the ones that words name, their options, and their measurements."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from bench.measuring import ROOT
from bench.rows import Bench, Cells, find, list_modules
from bench.tables import FORMATS, Table
from engine.base.errors import InputError, suggest_nearest

COMMAND = "python -m bench"


def choose_benches(words: Sequence[str]) -> list[tuple[Bench, list[str]]]:
    """Return the benches that words name, each with the subjects after its name.

    Raises:
        InputError: there is no such bench, or no such subject.
    """
    pairs: list[tuple[Bench, list[str]]] = []
    modules = set(list_modules())
    for word in words:
        if not pairs or word.partition(".")[0] in modules:
            pairs.append((find(word), []))
            continue
        bench, names = pairs[-1]
        names += [word] if bench.subjects is None else match_subjects(bench, word)
    return [(bench, names or list_usual(bench)) for bench, names in pairs]


def match_subjects(bench: Bench, word: str) -> list[str]:
    """Return the subjects of a bench that a word names, or as a pattern fits.

    Raises:
        InputError: there is none.
    """
    known = bench.list_subjects()
    if word in known:
        return [word]
    if names := fnmatch.filter(known, word):
        return names
    raise InputError(f"bench {bench.name} has no subject {word!r}{suggest_nearest(word, known)}")


def list_usual(bench: Bench) -> list[str]:
    """Return the subjects that are measured where none is named.

    Raises:
        InputError: the bench has none of its own.
    """
    if bench.subjects is None and not bench.usual:
        raise InputError(f"bench {bench.name} needs a subject: {bench.what}")
    return list(bench.usual or bench.list_subjects())


def make_parser(given: Sequence[Bench], text: str = "") -> argparse.ArgumentParser:
    """Return the parser of all that benches take.

    text: the description where there are none; benches are described by their modules.
    """
    if given:
        text = "\n\n".join(
            dict.fromkeys(sys.modules[each.measure.__module__].__doc__ or "" for each in given)
        )
    parser = argparse.ArgumentParser(
        COMMAND, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="NAME", help="benches, and subjects of each")
    parser.add_argument("--list", action="store_true", help="what there is; measure nothing")
    parser.add_argument("--format", choices=FORMATS, default="text")
    if any(each.page for each in given):
        parser.add_argument("--page", action="store_true", help="write the page of the bench")
        parser.add_argument("--document", type=Path, help="write the page to this file")
    options = {option.name: option for each in given for option in each.options}
    for option in options.values():
        parser.add_argument(f"--{option.name}", **option.words)
    return parser


def measure(bench: Bench, names: Sequence[str], options: Namespace) -> Table:
    """Measure subjects of a bench, printing each row as soon as it is known."""
    subjects = bench.list_subjects()
    cells_by_name: dict[str, list[Cells]] = {name: [] for name in names}
    with Table(bench.name, bench.list_titles(options), names, options.format) as table:
        for name in names:
            for cells in bench.measure(subjects.get(name, name), options):
                table.add(name, cells)
                cells_by_name[name].append(cells)
                if bench.page is not None and (options.page or options.document):
                    bench.page(cells_by_name, options.document or ROOT / bench.document)
    return table
