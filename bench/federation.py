"""Federations of twenty clients: accuracy, bytes and time, for similar and different clients.

Every row of `federation` is the app of
examples/federated with other options, its clients one after another in this process: messages,
client, server and results match `flwr run` (tests/federated/).  `train_centrally` trains on all
that the clients train on, for as many epochs as a federation has rounds.

Accuracies are on data that no client has, after the last round: the mean over seeds, and their
spread.  A seed decides the weights, the partition and the order of the samples.  Bytes count all
records in the messages to and from all clients; seconds are processor time of all clients together.
The picture has the accuracy over rounds, for digits.

`federation.attacks` has federations with malicious clients; see federation_attacks.py.
"""

from __future__ import annotations

import csv
import importlib
import logging
import math
import sys
import tempfile
import time
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from bench.federation_attacks import ATTACKS, Attacked, make_cells, make_client
from bench.federation_attacks import CLIENTS as ATTACKED_CLIENTS
from bench.federation_attacks import STRATEGIES as STRATEGIES_ATTACKED
from bench.federation_attacks import list_rows as attacked_rows
from bench.measuring import MB
from bench.rows import Bench, Cells, Option
from engine.drawing.axes import make_axis
from engine.drawing.charts import draw_frame, format_coordinate
from engine.drawing.page import escape
from engine.tools.actions import templates

CLIENTS = 20
APP = templates.FOLDER / "federated"
COMMON = {"fraction-evaluate": 0.0, "min-evaluate-nodes": 0, "keep-rounds": 1}
DATASETS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits"},
    "keywords": {"dataset": "keywords", "learning-rate": 0.005},
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "IID": {"partition": "iid"},
    "Dirichlet, alpha 1": {"partition": "dirichlet", "alpha": 1.0},
    "Dirichlet, alpha 0.3": {"partition": "dirichlet", "alpha": 0.3},
    "Dirichlet, alpha 0.1": {"partition": "dirichlet", "alpha": 0.1},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "FedAvg": {"strategy": "FedAvg"},
    "FedAdam": {"strategy": "FedAdam", "FedAdam.eta": 0.1, "FedAdam.tau": 0.01},
    "FedProx": {"strategy": "FedProx", "FedProx.proximal-mu": 0.1},
}
EXTRAS: dict[str, dict[str, Any]] = {
    "16-bit updates": {"update-values": "float16"},
    "a tenth of each update": {"update-fraction": 0.1},
    "a hundredth of each update in 16 bits": {"update-fraction": 0.01, "update-values": "float16"},
    "secure aggregation": {"secure-range": 4.0},
    "clipped to the median norm, noise multiplier 0.1": {
        "privacy": "client-adaptive", "clients-per-round": 20, "noise-multiplier": 0.1,
    },
    "clipped to norm 2, noise multiplier 0.1": {
        "privacy": "server-fixed", "clipping-norm": 2.0, "noise-multiplier": 0.1,
        "clients-per-round": 20,
    },
    "clipped to norm 2, noise multiplier 1": {
        "privacy": "server-fixed", "clipping-norm": 2.0, "noise-multiplier": 1.0,
        "clients-per-round": 20,
    },
    "local privacy, epsilon 8 a message": {
        "privacy": "local", "clipping-norm": 2.0, "epsilon": 8.0,
    },
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Row:
    """Federation, or central training.

    config: options beside those that all rows have.
    """

    dataset: str
    partition: str
    strategy: str
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.dataset}, {self.partition}, {self.strategy}"


ROWS = (
    Row("digits", "central", "AdamW"),
    *(
        Row("digits", where, by, {**PARTITIONS[where], **STRATEGIES[by]})
        for where in PARTITIONS
        for by in STRATEGIES
    ),
    *(
        Row("digits", "IID", f"{how}, FedAvg", {**PARTITIONS["IID"], **config})
        for how, config in EXTRAS.items()
    ),
    Row("keywords", "central", "AdamW"),
    Row("keywords", "IID", "FedAvg", PARTITIONS["IID"]),
    Row("keywords", "by user", "FedAvg", {"partition": "user"}),
    Row("keywords", "by user", "FedProx", {"partition": "user", **STRATEGIES["FedProx"]}),
)


@dataclass(frozen=True)
class Outcome:
    """Result of a row with one seed.

    accuracies: after each round.  sent, received: bytes of the last round.  seconds: time of a
        round.
    failures: the failures of clients, in all rounds.
    """

    accuracies: list[float]
    seconds: float
    sent: int = 0
    received: int = 0
    failures: int = 0


def make_options(dataset: str, rounds: int, seed: int) -> dict[str, Any]:
    """Return the options of all rows; afterwards the modules of the app can be imported."""
    if str(APP) not in sys.path:
        sys.path.insert(0, str(APP))
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    flat = {key: value for key, value in config.items() if not isinstance(value, dict)}
    return flat | {**COMMON, **DATASETS[dataset], "seed": seed, "num-server-rounds": rounds}


def run(row: Row, rounds: int, seed: int) -> Outcome:
    """Train as a row says."""
    flat, begun = make_options(row.dataset, rounds, seed), time.process_time()
    if row.partition == "central":
        accuracies = train_centrally(flat, rounds)
        return Outcome(accuracies, (time.process_time() - begun) / rounds)
    from engine.federated.flower import simulate

    logging.getLogger("flwr").setLevel(logging.ERROR)
    server, client = (importlib.import_module(f"{side}_app").app for side in ("server", "client"))
    with tempfile.TemporaryDirectory() as folder:
        simulate(server, client, CLIENTS, {**flat, **row.config, "output": folder})
        path = Path(folder) / "1/history.csv"
        history = list(csv.DictReader(path.read_text().splitlines()))
    return Outcome(
        [float(done["server_accuracy"]) for done in history],
        (time.process_time() - begun) / rounds,
        int(history[-1]["sent_bytes"]),
        int(history[-1]["received_bytes"]),
        sum(int(done["failures"]) for done in history),
    )


def measure_attacked(row: Attacked, rounds: int) -> float:
    """Return the accuracy after the last round of a federation with malicious clients."""
    from engine.federated.flower import simulate

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    config = {
        **make_options("digits", rounds, 0),
        **PARTITIONS["IID"],
        **STRATEGIES_ATTACKED[row.strategy],
    }
    server = importlib.import_module("server_app").app
    with tempfile.TemporaryDirectory() as folder:
        simulate(server, make_client(row), ATTACKED_CLIENTS, {**config, "output": folder})
        path = Path(folder) / "1/history.csv"
        history = list(csv.DictReader(path.read_text().splitlines()))
    return float(history[-1]["server_accuracy"]) if history else math.nan


def train_centrally(config: Mapping[str, Any], epochs: int) -> list[float]:
    """Train on the samples of all clients together; return the accuracy after each epoch."""
    data, model = map(importlib.import_module, ("data", "model"))
    parts = [data.of_client(number, CLIENTS, config)[0] for number in range(CLIENTS)]
    samples = tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    trainer, accuracies = model.make_trainer(config), []
    for epoch in range(epochs):
        trainer.fit(samples, batch_size=config["batch-size"], seed=epoch, progress=False)
        test = data.of_server(config)
        accuracies.append(trainer.evaluate(test, metrics="accuracy")["accuracy"])
    return accuracies


WIDTH, HEIGHT, TOP, LEFT, BOTTOM = 440, 250, 34, 58, 46
COLOURS = ("#2563c9", "#c2570c", "#0b8457")
STYLE = """text{font:12px system-ui,sans-serif;fill:#333}
.tick.y{text-anchor:end;dominant-baseline:middle}
.tick.x,.title{text-anchor:middle}.head{font-weight:600}.grid{stroke:#ddd}.axis{stroke:#888}
path{fill:none;stroke-width:1.8}"""


def draw_curves(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Accuracies over rounds as SVG: a chart for each partition, a line for each strategy."""
    parts, low = [], min(min(c) for chart in curves.values() for c in chart.values())
    for number, (partition, chart) in enumerate(curves.items()):
        rounds = max(map(len, chart.values()))
        y = make_axis([low, 1.0], HEIGHT - BOTTOM, TOP, kind="share")
        x = make_axis([0, rounds], LEFT, WIDTH - 16, kind="count", is_tight=True)
        lines, names = [], []
        for place, (strategy, values) in enumerate(chart.items()):
            colour = COLOURS[place % len(COLOURS)]
            points = (
                f"{format_coordinate(x.place(at))},{format_coordinate(y.place(value))}"
                for at, value in enumerate(values, 1)
            )
            lines.append(f'<path stroke="{colour}" d="M{"L".join(points)}"/>')
            left = LEFT + 190 + 66 * place
            names.append(f'<text x="{left}" y="20" style="fill:{colour}">{escape(strategy)}</text>')
        parts.append(
            f'<g transform="translate({number % 2 * WIDTH} {number // 2 * HEIGHT})">'
            f'<text class="head" x="{LEFT}" y="20">{escape(partition)}</text>{"".join(names)}'
            f"{draw_frame(x, y, 'round')}{''.join(lines)}</g>"
        )
    size = f"{2 * WIDTH} {-(-len(curves) // 2) * HEIGHT}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" '
        f'aria-label="Accuracy over rounds"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def run_in_processes(
    jobs: int, call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Return the results of calls in new processes, so many at the same time."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        return [future.result() for future in [pool.submit(call, *each) for each in arguments]]


def measure(row: Row, options: Namespace) -> Iterator[Cells]:
    """Yield the row of a federation, over its seeds."""
    seeds = [(row, options.rounds, seed) for seed in range(options.seeds)]
    outcomes: list[Outcome] = run_in_processes(options.jobs, run, seeds)
    last = [outcome.accuracies[-1] for outcome in outcomes]
    sent, received = (
        mean(getattr(o, side) for o in outcomes) / MB for side in ("sent", "received")
    )
    took, failures = mean(o.seconds for o in outcomes), sum(o.failures for o in outcomes)
    yield mean(last), f"{min(last):.1%} to {max(last):.1%}", sent, received, took, failures
    if options.picture and row.dataset == "digits" and row.strategy in STRATEGIES:
        curves = options.__dict__.setdefault("curves", {})
        accuracies = np.mean([outcome.accuracies for outcome in outcomes], axis=0)
        curves.setdefault(row.partition, {})[row.strategy] = accuracies.tolist()
        options.picture.write_text(draw_curves(curves))


def measure_attacks(strategy: str, options: Namespace) -> Iterator[Cells]:
    """Yield the accuracies of a strategy, one and two clients of ten being malicious."""
    rows = [row for row in attacked_rows() if row.strategy == strategy]
    accuracies = run_in_processes(
        options.jobs, measure_attacked, [(row, options.rounds) for row in rows]
    )
    yield make_cells(strategy, dict(zip(rows, accuracies, strict=True)))


JOBS = Option("jobs", 1, "runs at the same time")
ROUNDS = Option("rounds", 30, "of a federation")
BENCHES = (
    Bench(
        "federation",
        "federations of twenty clients: accuracy, bytes and time",
        {row.title: row for row in ROWS},
        ("accuracy:.1%", "over seeds", "MB out in a round:.2f", "MB in:.2f", "s a round:.2f",
         "failures"),
        measure,
        options=(ROUNDS, JOBS, Option("seeds", 3, "of weights, partition and order"),
                 Option("picture", None, "an SVG of the accuracy over rounds, for digits", Path)),
    ),
    Bench(
        "federation.attacks",
        "what malicious clients do to the accuracy of a federation",
        {strategy: strategy for strategy in STRATEGIES_ATTACKED},
        ("none", *ATTACKS),
        measure_attacks,
        options=(ROUNDS, JOBS),
    ),
)  # fmt: skip
