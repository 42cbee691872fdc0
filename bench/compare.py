"""Training steps of this checkout and another one, side by side: the effect of a change.

Two processes a row, one of each checkout, take turns of `STEPS` steps on the same artifacts, so
that a machine whose speed drifts slows both.  A row gives the medians of a step, of this checkout
and of the other, and the median of their ratio over the turns: below 1 this checkout is faster.

--other is the other checkout.  --kernels are values of EDGEGRAD_KERNELS for the two: with
`--other . --kernels shipped native` shipped kernels, if this checkout has some, are compared with
those compiled for this CPU.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from bench.measuring import ROOT, compare_medians, time_in_turns
from bench.processes import SCRIPTS, worker
from bench.programs import written
from bench.rows import THREADS, Bench, Cells, Option
from engine.errors import InputError
from engine.tools.benchmark.workloads import USUAL, WORKLOADS

STEPS = {"mlp": 200, "cnn": 10, "mobilenet": 3, "transformer": 5}


def list_checkouts(options: Namespace) -> dict[str, dict[str, str]]:
    """Return the variables of the processes of both checkouts.

    Raises:
        InputError: --other is not a checkout, or --kernels are not two.
    """
    other = options.other
    if other is None or not (other / "engine/api.py").is_file():
        raise InputError(f"--other {other}: expected a checkout of this project")
    if len(options.kernels) not in (0, 2):
        raise InputError("--kernels: expected two values of EDGEGRAD_KERNELS")
    paths = {"this": ROOT, "other": other.resolve()}
    made = {side: {"PYTHONPATH": str(path)} for side, path in paths.items()}
    for side, kernels in zip(made, options.kernels, strict=False):
        made[side]["EDGEGRAD_KERNELS"] = kernels
    return made


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    sides, steps = list_checkouts(options), STEPS.get(name, 5)
    with written(name) as folder:
        for threads in options.threads:
            with ExitStack() as stack:
                command = [sys.executable, SCRIPTS / "steps.py", folder, threads]
                runs = {
                    side: partial(
                        stack.enter_context(worker(command, side, folder, **env)).run, steps
                    )
                    for side, env in sides.items()
                }
                times_of = time_in_turns(runs, options.turns, warm_up=3)
            took = [1e3 * median(times) / steps for times in times_of.values()]
            yield threads, *took, compare_medians(times_of["this"], times_of["other"])


BENCHES = (
    Bench(
        "compare",
        "training steps of this checkout against another one, in turns",
        {name: name for name in WORKLOADS},
        ("threads", "this ms:.3f", "other ms:.3f", "this / other:.3f"),
        measure,
        usual=tuple(USUAL),
        options=(
            THREADS,
            Option("other", None, "the other checkout", Path),
            Option("kernels", (), "EDGEGRAD_KERNELS of this one and of the other"),
            Option("turns", 15, "turns of each"),
        ),
        small="mlp --other . --turns 1 --threads 1",
    ),
)
