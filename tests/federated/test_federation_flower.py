"""The template of a federation, run by Flower itself with simulated clients."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

from engine.tools.actions import templates
from engine.tools.dev import flower_apps
from tests.support.needs import require_flower

HERE = """
import sys, tomllib
from flwr.common.config import flatten_dict
from engine.federated.flower import simulate
import client_app, server_app

with open("pyproject.toml", "rb") as file:
    config = flatten_dict(tomllib.load(file)["tool"]["flwr"]["app"]["config"])
config |= {"num-server-rounds": 2, "fraction-train": 0.5, "fraction-evaluate": 0.2}
simulate(server_app.app, client_app.app, 20, {**config, "output": "here"})
"""


def test_flower_runs_the_template_and_it_is_the_same_in_one_process(tmp_path: Path) -> None:
    """In processes of Flower, without network, from a folder that `edgegrad new` has made.

    Ten of twenty clients train in a round, whose nodes have other ids in each of the two.
    """
    require_flower(simulation=True)
    app = tmp_path / "digits"
    templates.copy("federated", app)
    changed = "num-server-rounds=2 fraction-train=0.5 fraction-evaluate=0.2"
    told = flower_apps.run_app(app, config=changed)
    assert "Wrote" in told, told
    assert "do not say which client they are" not in told, told
    rows = list(csv.DictReader((app / "runs/1/history.csv").read_text().splitlines()))
    assert [(row["round"], row["results"], row["failures"]) for row in rows] == [
        ("1", "10", "0"),
        ("2", "10", "0"),
    ]
    assert float(rows[1]["server_loss"]) < float(rows[0]["server_loss"])
    made = {path.name for path in (app / "runs/1").iterdir()}
    assert {"checkpoint", "inference.onnx", "history.csv"} <= made

    done = subprocess.run(
        [sys.executable, "-c", HERE],
        cwd=app,
        env=flower_apps.make_environment(app),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout
    assert (app / "here/1/checkpoint").read_bytes() == (app / "runs/1/checkpoint").read_bytes()
