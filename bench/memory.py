"""Peak memory of whole processes that train five steps, of this engine and of its peers.

With a budget, as 150MB, our training keeps to it.  EDGEGRAD_BENCH_PEERS adds the peers.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from bench.measuring import MIB, call_fresh, run
from bench.processes import SCRIPTS
from bench.rows import Bench, Cells, Option
from bench.steps import USUAL_KINDS, find_peers
from engine.system.config import switch
from engine.tools.benchmark.workloads import USUAL, WORKLOADS

STEPS = 5


def write(name: str, folder: Path) -> None:
    """Write the artifacts of a workload."""
    WORKLOADS[name].write(folder)


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload."""
    with tempfile.TemporaryDirectory() as folder:
        call_fresh(write, name, Path(folder))
        ours = [sys.executable, SCRIPTS / "first_step.py", folder, STEPS]
        ours += [options.budget] if options.budget else []
        run(ours)  # fills the kernel cache: compiling needs memory too, once
        row: list[float | None] = [run(ours).peak / MIB]
        python = switch("BENCH_PEERS")
        there = {kind for kind, _ in find_peers([python])} if python else set()
        for who in USUAL_KINDS:
            peer = [python, SCRIPTS / "peer.py", who, name, folder, 2]
            row.append(run(peer, f"{STEPS}\n").peak / MIB if who in there else None)
        yield row


BENCHES = (
    Bench(
        "memory",
        "peak memory of whole processes that train five steps, in MiB",
        {name: name for name in WORKLOADS},
        ("edgegrad:.0f", *(f"{kind}:.0f" for kind in USUAL_KINDS)),
        measure,
        usual=tuple(USUAL),
        options=(Option("budget", "", "of our plans, as 150MB"),),
        small="mlp",
    ),
)
