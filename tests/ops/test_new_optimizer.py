"""A new optimizer is three texts: its family, its cases, and a row; all else follows from them.

The texts are put into a copy of the sources, where a process of its own trains with the optimizer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("engine", "kernels", "graphs", "tools")

FAMILY = '''"""Signum: the sign of a mean of gradients.

Signum    m = mu m + (1 - mu) g;  p = p (1 - r wd) - r sign(m)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.base import arguments
from engine.kernels.ops.optimizer.method import FIRST, Group, Method, below_1
from engine.kernels.ops.optimizer.step import optimizer
from engine.kernels.ops.optimizer.update import Formula, update_kernel
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.kernel import inline
from engine.plan.states import State


@dataclass(frozen=True)
class Signum(Method):
    """The sign of a mean of gradients."""

    op = "SignumOptimizer"

    momentum: float = 0.875
    weight_decay: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        return {
            "momentum": below_1("momentum", self.momentum),
            "weight_decay": arguments.real("weight_decay", self.weight_decay),
        }

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        return (State(FIRST),)


@inline
def _values(call, rate):
    return rate, 1.0 - rate * call.decay, 1.0 - call.mu


@update_kernel(states=("m",), numbers={"mu": "momentum", "decay": "weight_decay"})
def signum(target: Target, T: str) -> Formula:
    """One step of Signum in place of p, m from g; nothing where the signal is false."""
    text = "rate keep rest -> m = mu * m + rest * g; p = p * keep - rate * sign(m)"
    return Formula(text, _values)


OPS = (optimizer(Signum, signum),)
KERNELS = (signum.template,)
'''
CASES = '''"""Signum."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.graphs.offline.optim_types import Signum
from engine.tools.dev.cases.optimizer.case import DECAY, Case, Options, State


def signum(t: int, p: Any, g: Any, s: State, lr: float, o: Options) -> Any:
    s["m"] = o["momentum"] * s.get("m", 0) + (1 - o["momentum"]) * g
    return p * (1 - lr * o["weight_decay"]) - lr * np.sign(s["m"])


CASES = [Case(Signum(momentum=0.75, weight_decay=DECAY), signum, 1)]
'''
ROW = """@_optimizer
class Signum(signum.Signum, Method): ...


"""
TRAINS = """
import json, sys
from dataclasses import replace
import numpy as np, onnx.parser
import engine.onnxblock as onnxblock
from engine import Trainer, artifacts
from engine.graphs.offline import optim_types
from engine.tools.dev import operators
from engine.tools.commands import page
from engine.tools.dev import optimizer_plans
from engine.tools.dev.cases.optimizer.case import all_cases
from engine.trainer import names

(case,) = [c for c in all_cases() if type(c.method) is optim_types.Signum]
model = onnx.parser.parse_model('''
<ir_version: 8, opset_import: ["" : 17]>
linear (float[2, 3] x) => (float[2, 1] y) <float[3, 1] w = {0.5, -0.25, 1.0}> {y = MatMul(x, w)}
''')
x = np.array([[1.0, -2.0, 0.5], [0.25, 1.0, -1.5]], np.float32)
w, state, losses = np.array([[0.5], [-0.25], [1.0]]), {}, []
trainer = Trainer.from_onnx(model, loss="mse", optimizer=replace(case.method, lr=0.125), threads=1)
for t in range(1, 4):
    gradient = x.T.astype(float) @ (2 * (x @ w - 1)) / 2
    w = case.update(t, w, gradient, state, 0.125, vars(case.method))
    losses.append(trainer.step(x, np.ones((2, 1), np.float32)))
json.dump({
    "error": float(abs(trainer.state.parameters["w"].data - w).max()),
    "losses": [float(l) for l in losses],
    "member": repr(artifacts.OptimType.Signum), "by_name": names.optimizers()["signum"].__name__,
    "block": onnxblock.optim.Signum.__doc__, "row": repr(optimizer_plans.ROWS["signum"]),
    "operators": "SignumOptimizer" in operators.table(),
    "commands": "`signum`" in page.configuration(),
}, sys.stdout)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources with the new optimizer."""
    for folder in FOLDERS:
        skipped = shutil.ignore_patterns("__pycache__", "shipped", "*.so")
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=skipped)
    (tmp_path / "kernels/ops/optimizer/signum.py").write_text(FAMILY)
    (tmp_path / "tools/dev/cases/optimizer/signum.py").write_text(CASES)
    rows = tmp_path / "graphs/offline/optim_types.py"
    text = rows.read_text()
    assert text.count("rmsprop, sgd\n") == text.count("_ROWS = ") == 1
    text = text.replace("rmsprop, sgd\n", "rmsprop, sgd, signum\n")
    rows.write_text(text.replace("_ROWS = ", ROW + "_ROWS = "))
    return tmp_path


def test_a_family_its_cases_and_a_row_make_an_optimizer(copy: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINS], cwd=copy, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(copy)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("error") < 1e-6
    losses = found.pop("losses")
    assert losses == sorted(losses, reverse=True)
    assert found == {
        "member": "<OptimType.Signum: 9>", "by_name": "Signum",
        "block": "The sign of a mean of gradients.",
        "row": "Signum(lr=None, skip_nonfinite=False, momentum=0.875, weight_decay=0.0, "
        "clip_grad=None, groups=())",
        "operators": True, "commands": True,
    }  # fmt: skip
