"""The `edgegrad` command: its first word names a tool, and only that tool is imported."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata

from engine import __version__
from engine.errors import EngineError, InternalError
from engine.runtime.config import PREFIX, SWITCHES, switch


@dataclass(frozen=True)
class Command:
    """A subcommand; `target`, `module:function` under engine.tools, takes the remaining words."""

    target: str
    summary: str

    def load(self) -> Callable[[Sequence[str]], int]:
        """Import the tool; it parses its own words and returns the exit status."""
        module, _, function = self.target.partition(":")
        entry: Callable[[Sequence[str]], int]
        entry = getattr(import_module(f"engine.tools.{module}"), function)
        return entry


COMMANDS = {
    "build": Command("build:main", "make a small library that trains one model on a device"),
    "demo": Command("demo:main", "train, export and check a digit classifier"),
    "ops": Command("ops:main", "say which nodes of a model can be trained; write an op list"),
    "plan": Command("build:main_plan", "write plans for a library of `build --ops`, as a file"),
    "prepare": Command(
        "prepare:main", "write plans beside artifacts, so that training starts at once"
    ),
    "show": Command("show:main", "print the plan of a model and draw its work arena"),
    "switches": Command(
        "cli:print_switches", "the EDGEGRAD_* environment variables and their values"
    ),
    "targets": Command("targets:main", "devices that `edgegrad build` knows by name"),
    "version": Command("cli:print_versions", "versions of this package and of what it builds on"),
}

_REPORTED = ("numpy", "numba", "llvmlite", "onnx", "onnxruntime", "ziglang")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool that the first word names; an EngineError becomes one line, exit status 1."""
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = COMMANDS[_parser().parse_args(words[:1]).command]
    try:
        return chosen.load()(words[1:])
    except InternalError:
        raise  # a defect of ours: with its traceback
    except EngineError as error:
        print(f"edgegrad {words[0]}: {error}", file=sys.stderr)
        return 1


def print_versions(argv: Sequence[str]) -> int:
    """Print what a bug report needs, reading metadata only: nothing heavy is imported."""
    argparse.ArgumentParser("edgegrad version").parse_args(argv)
    print(f"edgegrad {__version__}")
    print(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in _REPORTED:
        try:
            print(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            print(name, "not installed")
    return 0


def print_switches(argv: Sequence[str]) -> int:
    """Print the table of switches; one that is set shows its value."""
    argparse.ArgumentParser("edgegrad switches").parse_args(argv)
    for name, meaning in SWITCHES.items():
        value = switch(name)
        print(f"{PREFIX}{name}{'=' + value if value else ''}\n    {meaning}")
    return 0


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    rows = (f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        "edgegrad",
        description="Train ONNX models on the device.",
        epilog="\n".join(["commands:", *rows, "", "edgegrad COMMAND --help tells more."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="edgegrad [-h] COMMAND ...",
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
