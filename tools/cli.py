"""The `edgegrad` command: errors become one line and an exit status, as `STATUSES` lists them."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence

from engine.base.errors import EngineError, InternalError
from engine.base.foreign_text import escape
from engine.base.other_names import suggest_in_command
from engine.distributed import world
from engine.distributed.launchers import find_launcher, is_joined
from engine.tools.commands.table import COMMANDS

_PROGRAM = "edgegrad"
_TOGETHER = "train"  # the command that several processes do together
_COMPLETE = "_EDGEGRAD_COMPLETE"  # set by the scripts of `edgegrad completion`
# Packages that small devices do without, by the modules that are theirs.
_PACKAGES = {name: name for name in ("onnx", "numba", "llvmlite", "tqdm")} | {"google": "onnx"}
# Errors of a path that a user has named.
_BAD_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP)
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)  # what an output ends with
_INTERRUPTED, _NO_READER = 130, 141  # 128 + the number of the signal, as in shells


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    title = " ".join([_PROGRAM, *words[:1]]) if words[:1] and words[0] in COMMANDS else _PROGRAM
    launcher = find_launcher() if words[:1] == [_TOGETHER] else None
    if launcher is None:
        return _run(words, title)
    status = _run(words, f"{title} (rank {'?' if launcher.rank is None else launcher.rank})")
    if status and not is_joined():  # the others are about to wait for this rank
        with contextlib.suppress(EngineError):
            group = world()
            if group is not None:
                group.abort(f"{title}: ended with the status {status}")
    return status


def _run(words: Sequence[str], title: str) -> int:
    """Do as `main`; title: the name in messages."""
    try:
        import click
    except ModuleNotFoundError:
        print("edgegrad: the command needs the package click: pip install click", file=sys.stderr)
        return 1
    try:
        with _told_in_a_line(title):
            status = invoke(words)
            if sys.stdout is not None:  # as it is where it was closed before the start
                sys.stdout.flush()
            return status
    except ModuleNotFoundError as error:
        package = _PACKAGES.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        needs = f"{title}: needs the package {package}, which is not installed"
        print(f"{needs}: pip install edgegrad, without --no-deps", file=sys.stderr)
        return 1
    except InternalError:
        raise  # a defect of ours: with its traceback
    except EngineError as error:
        print(escape(f"{title}: {error}"), file=sys.stderr)
        return 1
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and words[:1] == [_TOGETHER]:
            hint = suggest_in_command(error.option_name)
            if hint:
                click.echo(hint, err=True)
        return error.exit_code
    except MemoryError as error:
        text = str(error) or "Python cannot allocate an object"
        print(escape(f"{title}: not enough memory: {text}"), file=sys.stderr)
        return 1
    except (KeyboardInterrupt, click.Abort):
        print(f"\n{title}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _NO_READER
    except OSError as error:
        if error.errno in _BAD_PATH and error.filename is not None:
            print(escape(f"{title}: {error.filename}: {error.strerror}"), file=sys.stderr)
            return 1
        if error.errno not in _FULL or error.filename is not None:
            raise
        _drop_output()
        print(f"{title}: cannot write the output: {error.strerror}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Let what is left in the buffer of the output go, which is flushed once more at the end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def invoke(words: Sequence[str]) -> int:
    """Run a command and let its errors through; return the exit status.

    Raises:
        EngineError: any error of the command.  click.ClickException: the words do not form a
        command.
    """
    import click
    from click import shell_completion

    from engine.tools.commands.root import root

    asked = os.environ.get(_COMPLETE)
    if asked:
        return shell_completion.shell_complete(root, {}, _PROGRAM, _COMPLETE, asked)
    try:
        with root.make_context(_PROGRAM, list(words)) as context:
            return root.invoke(context) or 0
    except click.exceptions.Exit as done:  # after --help, for one
        return done.exit_code


@contextlib.contextmanager
def _told_in_a_line(title: str) -> Iterator[None]:
    """Print warnings without the place in the code where they come from."""
    before = warnings.formatwarning

    def format_line(message: Warning | str, category: type[Warning], *place: object) -> str:
        return escape(f"{title}: warning: {message}\n")

    warnings.formatwarning = format_line  # type: ignore[assignment]  # the place may be named otherwise
    try:
        yield
    finally:
        warnings.formatwarning = before


if __name__ == "__main__":
    sys.exit(main())
