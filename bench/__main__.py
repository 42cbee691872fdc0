"""Benches: subjects, measurements, and the machine.

    python -m bench                                  the list of benches
    python -m bench NAME --list                      the subjects and options of one
    python -m bench NAME [SUBJECT ...] [NAME ...]    measure; a pattern such as "resnet*" is several
                    [--format text|markdown|json] [--page] [options of the bench]

Without a subject a bench measures the usual ones.  The exit status is 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from bench.measuring import ROOT
from bench.rows import WRONG, Bench, Cells, find, find_benches, list_modules
from bench.tables import FORMATS, Table, describe_machine, write_json
from engine.base.errors import EngineError, InputError, suggest_nearest

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


def make_parser(given: Sequence[Bench]) -> argparse.ArgumentParser:
    """Return the parser of all that benches take."""
    text = __doc__ or ""
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


def show(given: Sequence[Bench]) -> None:
    """Print what there is: all benches, or the subjects and options of some."""
    every = {each.name: each for each in given} or find_benches()
    width = max(map(len, every))
    for name, each in every.items():
        print(f"{name:{width}}  {each.what}")
        if given:
            print(*(f"    {subject}" for subject in each.list_subjects()), sep="\n")
            print(*(f"    --{o.name:18} {o.what}" for o in each.options), sep="\n")


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        modules = set(list_modules())
        named = [find(word) for word in words if word.partition(".")[0] in modules]
        options = make_parser(named).parse_args(words)
        if options.list or not options.words:
            show(named)
            return 0
        runs = choose_benches(options.words)
        if options.format != "json":
            print(f"{describe_machine()}\n")
        tables = [measure(bench, names, options) for bench, names in runs]
    except EngineError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 1
    if options.format == "json":
        print(write_json(tables))
    cells = (cell for table in tables for row in table.rows for cell in row)
    return int(any(isinstance(cell, str) and cell.startswith(WRONG) for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
