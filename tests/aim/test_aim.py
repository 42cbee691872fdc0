"""Aim by its real package, in a folder."""

from __future__ import annotations

from pathlib import Path

from tests.support.programs import COLUMNS, run_code


def test_aim_in_a_folder(tmp_path: Path) -> None:
    code = f"""
from aim import Run
from engine.reports import AimLog
from tests.support.fits import make_fit, resume_fit, train
options = dict(repo={str(tmp_path)!r}, system_tracking_interval=None, capture_terminal_logs=False)
fit, log = make_fit(), AimLog(seconds=0, **options)
train(fit, [log])
again = AimLog(seconds=0, **options)
again.restore(log.state())
train(resume_fit(fit, 2), [again], 1)
run = Run(log.state()["run"], **options)
assert run["edgegrad"]["epochs"] == 3
values = {{metric.name: metric.values.sparse_numpy()[1] for metric in run.metrics()}}
assert {COLUMNS!r} <= set(values)
assert sorted(values["step/loss"]) == sorted(3 * [4.0, 3.0, 2.0, 1.0]), "steps done again replace"
"""
    run_code(code, tmp_path)
