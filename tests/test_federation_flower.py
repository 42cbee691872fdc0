"""The template of a federation, run by Flower itself with simulated clients."""

from __future__ import annotations

import csv
from pathlib import Path

from engine.tools import templates
from tests import federation


def test_flower_runs_the_template(tmp_path: Path) -> None:
    """In processes of Flower, without network, from a folder that `edgegrad new` has made."""
    federation.flower(simulation=True)
    app = tmp_path / "digits"
    templates.copy("federated", app)
    told = federation.run_app(app, clients=20, config="num-server-rounds=2 fraction-evaluate=0.5")
    assert "Wrote" in told, told
    rows = list(csv.DictReader((app / "runs/1/history.csv").read_text().splitlines()))
    assert [(row["round"], row["results"], row["failures"]) for row in rows] == [
        ("1", "20", "0"),
        ("2", "20", "0"),
    ]
    assert float(rows[1]["server_loss"]) < float(rows[0]["server_loss"])
    made = {path.name for path in (app / "runs/1").iterdir()}
    assert {"checkpoint", "inference.onnx", "history.csv"} <= made
