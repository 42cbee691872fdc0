"""A federation of real processes on this machine: one of its three nodes is killed in a round."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from engine.tools.dev import flower_apps
from tests.support.needs import require_flower

NODES, ROUNDS, KILLED = 3, 2, 2
LIMIT = 150.0  # seconds for each of two parts; on an idle machine both together take 30
APP = f"""
[project]
name = "deployed"
version = "1.0.0"
description = "A tiny model of the tests"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
num-server-rounds = {ROUNDS}
min-available-nodes = {NODES}
fraction-evaluate = 0.0
round-timeout = 60
output = "runs"
"""


def test_a_deployed_federation_outlives_a_node_that_is_killed(tmp_path: Path) -> None:
    require_flower()
    from engine.federated.flower import simulate
    from tests.support import tiny_federation

    app, home, runs = tmp_path / "app", tmp_path / "home", tmp_path / "runs"
    app.mkdir()
    home.mkdir()
    (app / "pyproject.toml").write_text(APP.replace('"runs"', f'"{runs}"'))
    (app / "app.py").write_text(
        "from tests.support import tiny_federation as app\n"
        "server = app.server\nclient = app.client\n"
    )
    # A round here compiles all kernels, for which those with a limit of time have none to spare.
    config = {"num-server-rounds": 1, "fraction-evaluate": 0.0, "output": str(tmp_path / "here")}
    simulate(tiny_federation.server, tiny_federation.client, NODES, config)
    port = flower_apps.free_port()
    link = f"127.0.0.1:{port}"
    (home / "config.toml").write_text(f'[superlink.test]\naddress = "{link}"\ninsecure = true\n')
    logs = {name: tmp_path / f"{name}.log" for name in ("link", "run", "0", "1", "2")}
    with contextlib.ExitStack() as all_processes:
        began = time.monotonic()
        superlink = "flower-superlink --insecure --disable-runtime-dependency-installation"
        started = all_processes.enter_context(
            flower_apps.process([*superlink.split(), "--port", str(port)], home, logs["link"])
        )
        flower_apps.wait_for(port, started, logs["link"])
        # A client of a round is a process, too, and Flower looks for replies every 3 s.
        patience = int(6 + 4 * (time.monotonic() - began))
        for number in range(NODES):
            supernode = f"flower-supernode --insecure --superlink {link} --port"
            words = [*supernode.split(), str(flower_apps.free_port()), "--node-config"]
            node = all_processes.enter_context(
                flower_apps.process([*words, f"partition-id={number}"], home, logs[str(number)])
            )
        command = ["flwr", "run", str(app), "test", "--stream", "--run-config"]
        run = all_processes.enter_context(
            flower_apps.process([*command, f"round-timeout={patience}"], home, logs["run"])
        )
        received = "Receiving: train message"

        def is_training() -> bool:
            assert run.poll() is None, logs["run"].read_text("utf-8", "replace")
            return logs["2"].read_text("utf-8", "replace").count(received) == KILLED

        wait(logs, is_training)
        os.killpg(node.pid, signal.SIGKILL)
        wait(logs, lambda: run.poll() is not None)
    text = re.sub(r"\x1b\[\d+m", "", logs["run"].read_text("utf-8", "replace"))
    (identity,) = re.findall(r"SuperNode ID: (\d+)", logs["2"].read_text("utf-8", "replace"))
    assert f"round {KILLED}: node {identity} is left out of train: it has not replied" in text
    with open(runs / "1" / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    results = [int(row["results"]) for row in rows]
    assert len(rows) == ROUNDS
    assert 1 <= sum(results) <= 2 * NODES - 1  # on a busy machine another one can be late, too
    assert text.count("is left out of train") == 2 * NODES - sum(results)
    onnx.checker.check_model(str(runs / "1" / "inference.onnx"))


def wait(logs: dict[str, Path], done: Callable[[], bool]) -> None:
    """Wait until something is so; if it takes too long, the test fails with all logs."""
    end = time.monotonic() + LIMIT
    while not done():
        if time.monotonic() > end:
            ends = [f"--- {name}\n{log.read_text()[-3000:]}" for name, log in logs.items()]
            pytest.fail("\n".join(ends))
        time.sleep(0.1)
