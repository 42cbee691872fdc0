"""Peak memory of whole processes that train five steps: this engine's, and the peers' beside it.

python -m bench.memory [--budget BYTES] [WORKLOAD ...]

With a budget, as 150MB, our training keeps to it.

EDGEGRAD_BENCH_PEERS adds the peers, as in bench_models.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from engine.runtime.config import switch
from engine.tools.workloads import USUAL

HERE = Path(__file__).parent
ENV = {**os.environ, "PYTHONPATH": str(HERE.parent)}
STEPS = "5"
# Artifacts are made in a process of their own: Linux counts what this one holds as the peak of
# those that it starts.
WRITE = """
import pathlib, sys
from engine.tools.workloads import WORKLOADS
WORKLOADS[sys.argv[1]].write(pathlib.Path(sys.argv[2]))
"""


def peak(command: list[str]) -> int:
    """Peak resident memory, in MiB, of a command that reads `STEPS` from standard input."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENV,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{STEPS}\n".encode())
        process.stdin.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
    return usage.ru_maxrss // 1024


def main() -> None:
    """Print a row a model."""
    peers = switch("BENCH_PEERS")
    parser = argparse.ArgumentParser("python -m bench.memory", description=main.__doc__)
    parser.add_argument("--budget", help="of our plans, as 150MB")
    parser.add_argument("workloads", nargs="*", default=USUAL)
    options = parser.parse_args()
    for name in options.workloads:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-c", WRITE, name, folder], check=True, env=ENV)
            ours = [sys.executable, str(HERE / "first_step.py"), folder, STEPS]
            ours += [options.budget] if options.budget else []
            peak(ours)  # fills the kernel cache: compiling needs memory too, once
            row = {"edgegrad": peak(ours)}
            for who in ("ort", "torch") if peers else ():
                row[who] = peak([peers, str(HERE / "peer.py"), who, name, folder, "2"])
        print(name, "  ".join(f"{who} {size} MiB" for who, size in row.items()))


if __name__ == "__main__":
    main()
