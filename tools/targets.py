"""Targets: print the devices that `edgegrad build` knows by name, and what would link for them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from engine.errors import EngineError
from engine.tools.trimmed.link import find_compiler
from engine.tools.trimmed.targets import ALIASES, TARGETS, resolve


def main(argv: Sequence[str] | None = None) -> int:
    """Print the targets, what they are tuned for, and what would link for them."""
    argparse.ArgumentParser("edgegrad targets", description=main.__doc__).parse_args(argv)
    print(f"{'name':18} {'triple':28} {'cpu':14} {'vectors':8} linked by")
    for name in ("native", *TARGETS):
        found = resolve(name)
        try:
            compiler = find_compiler(found)
            by = "ziglang" if compiler.zig else compiler.command[0]
        except EngineError as error:
            by = str(error).partition(": ")[2]
        t = found.target
        print(f"{name:18} {t.triple:28} {t.cpu:14} {t.vector:2} bytes {by}")
    print("other names: " + ", ".join(f"{a} = {b}" for a, b in ALIASES.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
