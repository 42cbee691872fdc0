"""The table of training steps, with other libraries beside it where a Python has them.

    python -m bench [WORKLOAD ...] [--threads N ...] [--time S] [--json FILE]
                    [--peers PYTHON ...] [--kinds KIND ...]

It is `edgegrad bench`, and adds for each peer its step and its ratio: the median of its turns over
that of ours, of processes that take turns.  A PYTHON has onnxruntime-training-cpu, torch or both,
and is asked which; by default it is that of EDGEGRAD_BENCH_PEERS.  bench/peer.py says what the
kinds are; ort and torch are the usual ones.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from engine.errors import EngineError, InputError
from engine.runtime import config
from engine.tools.benchmark import measure
from engine.tools.trimmed.progress import Progress
from engine.tools.workloads import USUAL, WORKLOADS

SCRIPT = Path(__file__).with_name("peer.py")
KINDS = {  # by the module that a Python must have
    "ort": "onnxruntime.training", "torch": "torch", "torch-plain": "torch",
    "torch-compiled": "torch",
}  # fmt: skip
USUAL_KINDS = ("ort", "torch")
_ASK = """
import importlib.util, sys
for kind, module in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        print(kind) if importlib.util.find_spec(module) else None
    except ImportError:
        pass
"""


class Peer:
    """A process of another library that trains."""

    def __init__(self, name: str, ask: IO[str], answers: IO[str]) -> None:
        self._name, self._ask, self._answers = name, ask, answers

    def train(self, steps: int) -> list[float]:
        """Take so many steps; the seconds of all divided among them.

        Raises:
            EngineError: the process has ended.
        """
        begin = time.perf_counter()
        try:
            print(steps, file=self._ask, flush=True)
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = ""
        if answer != "done\n":
            raise EngineError(f"the process of {self._name} ended before its steps did")
        return [(time.perf_counter() - begin) / steps] * steps


def opener(
    python: str, kind: str
) -> Callable[[str, Path, int], AbstractContextManager[measure.Runner]]:
    """What opens a runner of a kind by a Python."""

    @contextmanager
    def open_(workload: str, folder: Path, threads: int) -> Iterator[measure.Runner]:
        command = [python, str(SCRIPT), kind, workload, str(folder), str(threads)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            yield Peer(kind, process.stdin, process.stdout)
            process.stdin.close()

    return open_


def peers(pythons: Sequence[str], kinds: Sequence[str] = USUAL_KINDS) -> measure.Peers:
    """The kinds of peers that some Pythons have, each by the first that has it.

    Raises:
        InputError: one cannot run, or has none.
    """
    found: dict[str, str] = {}
    for python in pythons:
        words = [word for kind in kinds for word in (kind, KINDS[kind])]
        try:
            done = subprocess.run(
                [python, "-c", _ASK, *words], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise InputError(f"--peers {python}: cannot run it ({error})") from error
        has = done.stdout.split()
        if not has:
            wanted = " nor ".join(dict.fromkeys(KINDS[kind] for kind in kinds))
            raise InputError(f"--peers {python}: has no {wanted}")
        for kind in has:
            found.setdefault(kind, python)
    return [(kind, opener(found[kind], kind)) for kind in kinds if kind in found]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser("python -m bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--time", type=float, default=measure.SECONDS, metavar="S")
    parser.add_argument("--batch", type=int, default=0, metavar="N")
    parser.add_argument("--peers", nargs="*", metavar="PYTHON")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=USUAL_KINDS, metavar="KIND",
                        help=", ".join(KINDS))  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    named = [config.switch("BENCH_PEERS")] if args.peers is None else args.peers
    try:
        found = measure.measure(
            args.workloads or USUAL,
            args.threads,
            args.time,
            args.batch,
            peers(list(filter(None, named)), args.kinds),
            Progress(),
        )
        if args.json is not None:
            found.write(args.json)
    except EngineError as error:
        raise SystemExit(f"python -m bench: {error}") from None
    print(found, end="")


if __name__ == "__main__":
    main()
