"""Eight things that newcomers add, each in a copy of the tree: the files it takes, and no more.

An `Addition` has what a person writes and the commands that CONTRIBUTING.md names.  A copy of the
tree gets both.  The files that differ then are those that were written and those that the commands
make, and what was added works: tests of the tree meet it, and a probe uses it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support.places import ROOT

TABLES = "python -m engine.tools.dev.tables"
TREE = (
    "CHANGELOG.md", "README.md", "docs", "engine", "graphs", "kernels", "tests", "tools",
    "pyproject.toml",
)  # fmt: skip
LEFT_OUT = ("*.so", "shipped", "goldens")  # bytecode stays: it is as old as its sources


@dataclass(frozen=True, slots=True)
class Edit:
    """A text that goes before another one in a file."""

    before: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A change that a newcomer makes.

    row: the row of CONTRIBUTING.md that says which files to change.
    files: by path, the text of a new file or the edits of one that is there.
    commands: what is run then, as CONTRIBUTING.md names it.
    made: the files that the commands write.
    tests: tests of the tree that must meet what was added, as arguments of pytest.
    probe: a program that uses it.
    """

    row: str
    files: Mapping[str, str | Sequence[Edit]]
    commands: Sequence[str] = ()
    made: Sequence[str] = ()
    tests: Sequence[str] = ()
    probe: str = ""


FAMILY = '''"""SquaredRelu: y = max(x, 0)^2.

Forward   y = max(x, 0)^2
Backward  dx = 2 max(x, 0) dy
"""

from __future__ import annotations

from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.kernel import Body, kernel, share
from engine.kernels.vocabulary.op import MS, Grad, Lowering, Op
from engine.kernels.vocabulary.shape_rules import same_as


@kernel("x: T[n]  y: out T[n] may alias x  n: i64")
def squared_relu(target: Target, T: str) -> Body:
    """y = max(x, 0)^2."""

    def body(x, y, n, tid, nthreads):
        begin, end = share(n, tid, nthreads)
        for i in range(begin, end):
            y[i] = x[i] * x[i] if x[i] > 0 else 0

    return body


def _lower(s: Lowering) -> None:
    x, y = s.x(0), s.y(0)
    s.call(squared_relu(x.type.dtype), x=x, y=y, n=x.type.size)


def _gradient(grad: Grad, dy: str) -> tuple[str | None, ...]:
    return (grad.op("Mul", dy, grad.op("Mul", grad.op("Relu", grad.x(0)), grad.like(2.0, 0))),)


OPS = (
    Op(
        name="SquaredRelu",
        domain=MS,
        inputs=(1, 1),
        outputs=1,
        infer=same_as(0),
        lower=_lower,
        calls=(squared_relu,),
        grad=_gradient,
    ),
)
KERNELS = (squared_relu,)
'''
CASES = '''"""SquaredRelu."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, f32


def squared_relu(x: Any) -> Any:
    return [np.maximum(x, 0) ** 2]


CASES = [
    Case("SquaredRelu", (f32(3, 5),), domain="com.microsoft", grad=(0,), reference=squared_relu)
]
'''
# Training of a model with the new op; the loss falls.
TRAIN = """
import numpy as np
import onnx
from engine import Trainer
from engine.artifacts import {optimizer}, MSELoss
model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[N,4] x, float[4,3] w) => (float[N,3] y) {{ h = MatMul(x, w)  y = {op}(h) }}''')
del model.graph.input[1]
rng = np.random.default_rng(0)
model.graph.initializer.append(onnx.numpy_helper.from_array(rng.random((4, 3), "f4"), "w"))
trainer = Trainer.from_onnx(model, MSELoss(), optimizer={optimizer}(lr=0.01), threads=1)
x = rng.random((8, 4), "f4")
losses = [float(trainer.step(x, np.ones((8, 3), "f4"))) for _ in range(10)]
assert losses[-1] < losses[0], losses
"""
OPERATOR = Addition(
    row="add an operator",
    files={
        "kernels/ops/squared_relu.py": FAMILY,
        "tools/dev/cases/squared_relu.py": CASES,
    },
    commands=(TABLES, "python -m engine.tools.dev.zoo --ops SquaredRelu"),
    made=("docs/operators.md", "engine/base/declared_homes.py", "tools/dev/zoo.txt"),
    tests=(
        "tests/ops/test_forward.py", "tests/ops/test_gradient.py",
        "tests/kernels/test_op_tables.py", "tests/kernels/test_registry.py",
        "tests/kernels/test_declarations.py", "tests/docs/test_readme.py",
        "-k", "SquaredRelu or op_tables or case or unique or readme",
    ),
    probe=TRAIN.format(op="com.microsoft.SquaredRelu", optimizer="AdamW"),
)  # fmt: skip

OPTIMIZER = Addition(
    row="add an optimizer",
    files={
        "kernels/ops/optimizer/signum.py": '''"""Signum: the sign of a moving average of gradients.

Signum    m = b m + (1 - b) g;  p = p (1 - r wd) - r sign(m)
Error     a step: 3 roundings of float
Source    Bernstein et al., arXiv 1802.04434, Algorithm 2

The letters are those of node.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.base import arguments
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.method import FIRST, Group, Method
from engine.kernels.ops.optimizer.node import optimizer
from engine.kernels.ops.optimizer.update import Formula, update_kernel
from engine.kernels.vocabulary.kernel import inline
from engine.plan.states import State


@dataclass(frozen=True)
class Signum(Method):
    """The sign of a moving average of gradients (Bernstein et al., arXiv 1802.04434).

    momentum: the decay of the average.
    """

    op = "SignumOptimizer"

    momentum: float = 0.9
    weight_decay: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        names = ("momentum", "weight_decay")
        return {name: arguments.check_real(name, getattr(self, name)) for name in names}

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        return (State(FIRST),)


@inline
def _values(call, rate):
    return rate, 1.0 - rate * call.decay, 1.0 - call.b


@update_kernel(states=("m",), numbers={"b": "momentum", "decay": "weight_decay"})
def signum(target: Target, T: str) -> Formula:
    """One step of Signum in place of p, m from g; nothing where the signal is false."""
    text = "rate keep b1 -> m = b * m + b1 * g; p = p * keep - rate * sign(m)"
    return Formula(text, _values)


OPS = (optimizer(Signum, signum),)
KERNELS = (signum.template,)
''',
        "tools/dev/cases/optimizer/signum.py": '''"""Signum, arXiv 1802.04434, Algorithm 2."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.graphs.offline.optim_types import Signum
from engine.tools.dev.cases.optimizer.case import OptimizerCase, Options, State


def signum(t: int, p: Any, g: Any, s: State, lr: float, o: Options) -> Any:
    s["m"] = o["momentum"] * s.get("m", 0) + (1 - o["momentum"]) * g
    return p * (1 - lr * o["weight_decay"]) - lr * np.sign(s["m"])


CASES = [OptimizerCase(Signum(momentum=0.8), signum, 1)]
''',
        "graphs/offline/optim_types.py": (
            Edit(
                "from engine.kernels.ops.optimizer import adafactor",
                "from engine.kernels.ops.optimizer import signum\n",
            ),
            Edit("_ROWS = {", "@_optimizer\nclass Signum(signum.Signum, Method): ...\n\n\n"),
        ),
    },
    commands=(TABLES, "python -m engine.tools.dev.zoo --ops SignumOptimizer"),
    made=(
        "docs/operators.md", "docs/commands.md", "engine/base/public_names.py",
        "engine/base/declared_homes.py", "tools/dev/zoo.txt",
    ),
    tests=(
        "tests/ops/test_optimizer_rules.py", "tests/kernels/test_op_tables.py",
        "tests/docs/test_readme.py", "-k", "Signum or op_tables or readme",
    ),
    probe=TRAIN.format(op="Relu", optimizer="Signum")
    + """
import engine
from engine import artifacts, onnxblock
from engine.tools.dev import optimizer_plans
assert engine.Signum is artifacts.Signum
from engine.trainer import names
assert artifacts.OptimType.Signum.value == len(artifacts.OptimType)
assert names.list_optimizers()["signum"] is artifacts.Signum
assert onnxblock.optim.Signum.__doc__
assert "signum" in optimizer_plans.ROWS
""",
)  # fmt: skip

FUSION = Addition(
    row="add a fusion",
    files={
        "graphs/passes/patterns.py": [
            Edit(
                '    Rule("HardSwish", "Mul(x, h := HardSigmoid(x))"',
                '    Rule("Softsign", "Div(x, Add(Abs(x), 1))"),\n',
            )
        ]
    },
    tests=("tests/passes/test_patterns.py", "-k", "Div and Add and Abs"),
    probe="""
import onnx
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
g (float[3] x) => (float[3] y) <float one = {1}> { a = Abs(x)  b = Add(a, one)  y = Div(x, b) }''')
model.graph.node[2].name = "last"
plan = make_plan(onnx_io.load(model), {}, target=detect_host(), threads=1)
assert ["last/Softsign" in step.source for step in plan.steps] == [True], str(plan)
""",
)

OPTION = Addition(
    row="add a training option",
    files={
        "engine/training/settings.py": [
            Edit(
                "    unfreeze: Mapping[str, int] | None = declare_option(\n",
                '    most_steps: int | None = declare_option(None, "Stop then.", AT_LEAST_1)\n',
            )
        ],
        "engine/trainer/loop.py": [
            Edit(
                "                elif clock() > deadline:\n",
                "                elif self.asked.most_steps == fit.step:\n"
                '                    fit.stop("all steps are made")\n',
            )
        ],
    },
    commands=(TABLES,),
    made=("engine/training/keywords.py", "docs/commands.md"),
    tests=("tests/docs/test_readme.py", "tests/trainer/test_option_tables.py"),
    probe="""
from pathlib import Path
from click.testing import CliRunner
from engine.errors import InputError
from engine.tools.actions import run_config
from engine.tools.commands.train import command
from tests.support import tiny
trainer = tiny.make_trainer()
history = trainer.fit((tiny.X, tiny.LABELS), batch_size=tiny.BATCH, most_steps=2, progress=False)
assert (trainer.steps, history.stop_reason) == (2, "all steps are made")
try:
    trainer.fit((tiny.X, tiny.LABELS), most_steps=0)
except InputError as error:
    assert "most_steps=0: expected 1 or more" in str(error)
config = run_config.make_config({"fit": {"most_steps": 3}}, "run.toml")
assert config.fit.most_steps == 3 and "most_steps = 3" in run_config.to_toml(config)
told = CliRunner().invoke(command, ["--help"]).output
assert "--most-steps" in told and "Stop then." in told
assert "| `most_steps` |" in Path("docs/commands.md").read_text("utf-8")
""",
)

METRIC = Addition(
    row="add a metric",
    files={
        "engine/trainer/metrics/values.py": [
            Edit('"MAE", "MSE"', '"LogCosh", '),
            Edit(
                "class RMSE(MSE):",
                '''class LogCosh(_Means):
    """The mean of log cosh(y - t) over all elements."""

    declared = _declare("log_cosh")

    def total(self, differences: Array) -> float:
        return float(np.log(np.cosh(differences)).sum())


''',
            )
        ],
        "tests/trainer/test_metric_references.py": [
            Edit(
                "def test_determination_needs_two_samples",
                """def test_log_cosh() -> None:
    (made,) = metrics_of("log_cosh")
    y, t = RNG.standard_normal((2, 60, 3))
    assert take(made, y, t, SPLITS[1]).result() == pytest.approx(np.log(np.cosh(y - t)).mean())


""",
            )
        ],
    },
    commands=(TABLES,),
    made=("docs/metrics.md", "engine/base/public_names.py"),
    tests=(
        "tests/trainer/test_metric_references.py", "tests/docs/test_readme.py",
        "-k", "log_cosh or every_name or page_lists or every_table",
    ),
    probe="""
import engine
from engine.errors import InputError
from engine.trainer.history import direction
assert "LogCosh" in dir(engine) and engine.LogCosh().name == "log_cosh"
assert direction("val_log_cosh") == "min"
try:
    engine.trainer.metrics.metrics_of("log_cos")
except InputError as error:
    assert "'log_cosh'" in str(error)
""",
)  # fmt: skip

DISTANCES = np.array([[0.5, -2.0, 0.0]])
ROW = {  # `python -m tests.support.make_losses` writes such rows; it needs torch
    "loss": "LogCoshLoss",
    "options": {},
    "inputs": [DISTANCES.tolist()],
    "targets": [np.zeros((1, 3)).tolist()],
    "value": np.log(np.cosh(DISTANCES)).mean(),
    "gradients": [(np.tanh(DISTANCES) / 3).tolist()],
}
LOSS = Addition(
    row="add a loss",
    files={
        "engine/loss_types/elementwise.py": [
            Edit('"MSELoss", "SmoothL1Loss"]', '"LogCoshLoss", '),
            Edit(
                "@check_arguments\n@dataclass(frozen=True)\nclass L1Loss",
                '''@check_arguments
@dataclass(frozen=True)
class LogCoshLoss(NamedLoss):
    """log cosh of the error against the input `target`, which is shaped like the output."""

    reduction: str = "mean"

    def _append(self, nodes: LossNodes, x: str, target: str) -> str:
        difference = nodes.add("Sub", x, nodes.add_target(target, nodes.find_type(x)))
        return nodes.reduce(nodes.add("Log", nodes.add("Cosh", difference)), self.reduction)


''',
            ),
        ],
        "engine/loss_types/__init__.py": [
            Edit("\n\nLOSSES: dict[LossType", "    LogCoshLoss = 18\n")
        ],
        "tests/support/make_losses.py": [
            Edit(
                '    "TripletMarginLoss": functional',
                '    "LogCoshLoss": lambda x, t: torch.log(torch.cosh(x - t)).mean(),\n',
            ),
            Edit(
                '        ("FocalLoss", {}, [x], [truth]),\n',
                '        ("LogCoshLoss", {}, [x], [soft]),\n',
            ),
        ],
        "tests/data/torch_losses.json": [
            Edit('{"loss": "FocalLoss", "options": {}, ', json.dumps(ROW) + ",\n")
        ],
    },
    commands=(TABLES,),
    made=("engine/base/public_names.py", "docs/commands.md", "docs/losses.md"),
    tests=(
        "tests/offline/test_losses.py", "tests/docs/test_readme.py",
        "-k", "LogCosh or every_loss or readme",
    ),
    probe="""
import numpy as np
import engine
from engine import Trainer, artifacts, onnxblock
assert engine.LogCoshLoss is artifacts.LogCoshLoss and artifacts.LossType.LogCoshLoss == 18
assert onnxblock.loss.LogCoshLoss.__doc__
x = np.random.default_rng(0).random((8, 4), "f4")
y = x.sum(1, keepdims=True)
trainer = Trainer.from_model("mlp", data=(x, y), loss="log_cosh", threads=1)
losses = [float(trainer.step(x, y)) for _ in range(9)]
assert losses[-1] < losses[0], losses
""",
)  # fmt: skip

ARCHITECTURE = Addition(
    row="add an architecture",
    files={
        "engine/models/images.py": [
            Edit(
                "def build_cnn(",
                '''def build_shallow(
    shape: tuple[int, ...] = (20,), outputs: int = CLASSES, *, seed: int = 0
) -> Graph:
    """Return a wide hidden layer with tanh and a linear layer."""
    to = Layers(seed)
    hidden = to.add_op("Tanh", to.add_dense("x", "0", *shape, 512))
    to.add_scores(hidden, "2", 512, outputs)
    return to.make_graph("shallow", TensorType("f32", ("batch", *shape)), ("batch", outputs))


''',
            )
        ],
        "engine/models/catalog.py": [
            Edit(
                "        Architecture(\n            images.build_cnn",
                """        Architecture(
            images.build_shallow, ("features",), "rows of few numbers", "a CSV", "", ("2.",),
            needs_shape=True,
        ),
""",
            )
        ],
        "tests/torch/model_twins.py": [
            Edit(
                '        "cnn": Cnn,',
                """        "shallow": lambda: nn.Sequential(
            nn.Linear(width, 512), nn.Tanh(), nn.Linear(512, CLASSES)
        ),
""",
            )
        ],
    },
    commands=(TABLES,),
    made=("docs/models.md",),
    tests=(
        "tests/models/test_models.py", "tests/docs/test_readme.py",
        "-k", "shallow or refused or every_table",
    ),
    probe="""
from click.testing import CliRunner
import numpy as np
from engine import Trainer
from engine.tools.commands.train import command
x = np.random.default_rng(0).random((8, 4), "f4")
trainer = Trainer.from_model("shallow", data=(x, np.arange(8) % 2), threads=1)
losses = [float(trainer.step(x, np.arange(8) % 2)) for _ in range(9)]
assert losses[-1] < losses[0], losses
done = CliRunner().invoke(command, ["--model", "shalow", "--data", "none.csv"])
assert "'shallow'" in done.output + str(done.exception), done.output
""",
)  # fmt: skip

CORE = Addition(
    row="add a target",
    files={
        "tools/trimmed/targets.py": [
            Edit(
                '    "aarch64": NamedTarget(',
                '    "cortex-a78": NamedTarget(f"aarch64-{_LINUX}", "cortex-a78", "neon"),\n',
            )
        ]
    },
    tests=("tests/kernels/test_link.py", "-k", "cortex-a78"),
    probe="""
import re
from click.testing import CliRunner
from engine.kernels.binaries.load import get_object
from engine.plan.plan import KernelSpec
from engine.tools.commands.targets import command
from engine.tools.dev.emulators import find_emulator
from engine.tools.trimmed.targets import resolve
told = CliRunner().invoke(command).output
assert re.search(r"(?m)^cortex-a78 +aarch64-", told), told
code = get_object(KernelSpec("gemm", ("f32", 0, 0)), resolve("cortex-a78").target)
assert code[:4] == b"\\x7fELF"
assert find_emulator("cortex-a78").command[0] == "qemu-aarch64-static"
""",
)
ADDITIONS = (OPERATOR, OPTIMIZER, FUSION, OPTION, LOSS, METRIC, ARCHITECTURE, CORE)


class Tree:
    """A copy of the tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in TREE:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns(*LEFT_OUT)
                shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
            else:
                shutil.copy(ROOT / name, folder / name)

    def write(self, path: str, content: str | Sequence[Edit]) -> None:
        """Write a new file, or edit one that is there."""
        file = self.folder / path
        if isinstance(content, str):
            assert not file.exists()
            file.write_text(content, "utf-8")
            return
        text = file.read_text("utf-8")
        for edit in content:
            assert text.count(edit.before) == 1, edit.before
            text = text.replace(edit.before, edit.text + edit.before)
        file.write_text(text, "utf-8")

    def run(self, *words: str) -> None:
        """Run Python with some words in the folder of the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=environment, capture_output=True,
            text=True,
        )  # fmt: skip
        assert not done.returncode, done.stdout[-2000:] + done.stderr[-2000:]

    def changed(self) -> set[str]:
        """Return the files that are new here, or have another content than in the tree."""
        return {
            name
            for path in self.folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and not path.is_symlink()
            for name in [path.relative_to(self.folder).as_posix()]
            if not (ROOT / name).is_file() or path.read_bytes() != (ROOT / name).read_bytes()
        }


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda a: a.row.split()[-1])
def test_an_addition_takes_these_files_and_works(addition: Addition, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for path, content in addition.files.items():
        tree.write(path, content)
    for command in addition.commands:
        tree.run(*command.split()[1:])
    assert tree.changed() == {*addition.files, *addition.made}
    tree.run("-c", f"import engine; assert engine.__file__.startswith({str(tmp_path)!r})")
    tree.run("-c", addition.probe)
    tree.run("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *addition.tests)


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda a: a.row.split()[-1])
def test_contributing_names_the_files_and_the_commands(addition: Addition) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith(f"| [{addition.row}]("))
    named = re.findall(r"`((?:docs|engine|graphs|kernels|tests|tools)/[\w/<>.]*)`", row)
    rules = [re.sub("<[a-z]+>", r"\\w+", re.escape(name)) for name in named]
    for path in addition.files:
        acts = addition is OPTION and path == "engine/trainer/loop.py"  # "the code that acts on it"
        assert acts or any(re.fullmatch(rule, path) for rule in rules), path
    assert len(rules) == len(addition.files) - (addition is OPTION)
    for command in addition.commands:
        assert f"`{command.split(' --ops')[0]}" in text
