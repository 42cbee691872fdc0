"""Benches: subjects, measurements, and the machine.

    python -m bench                                  the list of benches
    python -m bench NAME --list                      the subjects and options of one
    python -m bench NAME [SUBJECT ...] [NAME ...]    measure; a pattern such as "resnet*" is several
                    [--format text|markdown|json] [--page] [options of the bench]

Without a subject a bench measures the usual ones.  The exit status is 1 where something is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.rows import WRONG, Bench, find, find_benches, list_modules
from bench.running import COMMAND, choose_benches, make_parser, measure
from bench.tables import describe_machine, write_json
from engine.base.errors import EngineError


def show(given: Sequence[Bench]) -> None:
    """Print what there is: all benches, or the subjects and options of some."""
    every = {each.name: each for each in given} or find_benches()
    width = max(map(len, every))
    for name, each in every.items():
        print(f"{name:{width}}  {each.what}")
        if given:
            print(*(f"    {subject}" for subject in each.list_subjects()), sep="\n")
            print(*(f"    --{o.name:18} {o.what}" for o in each.options), sep="\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        modules = set(list_modules())
        named = [find(word) for word in words if word.partition(".")[0] in modules]
        options = make_parser(named, __doc__ or "").parse_args(words)
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
