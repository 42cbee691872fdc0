"""Applications of examples/ in full: new projects, made and run as in their READMEs, and builds.

Of each example `edgegrad new` makes a project in build/examples/.  The commands that its README
begins with are run there: they make data, train, and check what has been reached.  Then an epoch is
trained by its run.toml, the model that was exported is compared in onnxruntime with the trainer,
and a trimmed build of the artifacts for this machine makes one step, which is compared with the
engine's.  A federation is run by Flower, on a server of its own, and then its tests are.  A row
whose last cell is WRONG says what does not hold.  --page puts the rows into examples/README.md.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring import ROOT
from bench.rows import WRONG, Bench, Cells
from bench.tables import format_cell
from engine import Trainer
from engine.api import CheckpointState
from engine.base.aliases import Array
from engine.tools import cli
from engine.tools.actions import templates
from engine.tools.dev import flower_apps
from engine.tools.trimmed.selftest import make_input

WORK = ROOT / "build" / "examples"
FEDERATION = "federation.toml"  # which a project that Flower runs has
BATCH = 8  # of the comparisons
RELATIVE, ABSOLUTE = 1e-3, 1e-4  # of the model in onnxruntime, whose kernels are others


@dataclass(frozen=True, slots=True)
class Result:
    """Results of an example.

    said: the last line that its training has printed.
    training: seconds of the README's commands, by the clock.
    whole: seconds of all, the comparisons and the build included.
    processor: seconds of processor time of all, which other load on the machine hardly changes;
        None if processes contribute that are not waited for, such as ray's.
    """

    name: str
    parameters: int
    said: str
    training: float
    whole: float
    processor: float | None

    @property
    def cells(self) -> Cells:
        """The cells of its row."""
        return self.parameters, self.said, self.training, self.whole, self.processor


def run(name: str, work: Path = WORK) -> Result:
    """Make a project of an example in a folder, and do all that its README begins with.

    Raises:
        RuntimeError: a command fails, or what is compared differs.
    """
    begin, used = time.perf_counter(), measure_processor_time()
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    if cli.main(["new", name, str(folder)]):
        raise RuntimeError(f"edgegrad new {name}: failed")
    if (folder / FEDERATION).exists():
        return run_federation(name, folder, begin)
    said = ""
    for command in templates.list_first_commands(name):
        said = execute(command, folder)
    training = time.perf_counter() - begin
    execute("edgegrad train --config run.toml --set fit.epochs=1", folder)
    trainer = Trainer(folder / "artifacts", threads=1)
    compare_export(trainer, folder / "inference.onnx")
    compare_build(trainer, folder)
    values = sum(p.data.size for _, p in trainer.state.parameters if p.requires_grad)
    whole = time.perf_counter() - begin
    return Result(name, values, said, training, whole, measure_processor_time() - used)


def run_federation(name: str, folder: Path, begin: float) -> Result:
    """Run a federation as its README begins, and the tests of the project.

    Raises:
        RuntimeError: a command fails, or leaves no model, or the README begins with another one.
    """
    (command,) = templates.list_first_commands(name)
    if command != f"flwr run . --federation-config {FEDERATION} --stream":
        raise RuntimeError(f"{command!r}: expected a run of Flower with {FEDERATION}")
    shutil.rmtree(folder.parent / f"{folder.name}-flower", ignore_errors=True)
    print(f"{folder.name}$ {command}", flush=True)
    told = flower_apps.run_app(folder, limit=900)
    if not (folder / "runs/1/inference.onnx").exists():
        raise RuntimeError(f"{folder.name}$ {command}: has left no model\n{told}")
    training = time.perf_counter() - begin
    *_, last = csv.DictReader((folder / "runs/1/history.csv").read_text().splitlines())
    said = f"{float(last['server_accuracy']):.1%} of the test digits are classified correctly, by "
    said += f"{last['results']} clients together"
    print(said, flush=True)
    execute("python -m pytest -q -c pyproject.toml -p no:cacheprovider", folder)
    state = CheckpointState.load_checkpoint(folder / "runs/1/checkpoint")
    values = sum(p.data.size for _, p in state.parameters if p.requires_grad)
    return Result(name, values, said, training, time.perf_counter() - begin, None)


def measure_processor_time() -> float:
    """Return the seconds that this process, and the ones it has waited for, have computed."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def execute(command: str, folder: Path) -> str:
    """Run a command as it stands in a README; returns the last line that it prints.

    Raises:
        RuntimeError: its status is not 0.
    """
    program, *words = command.split()
    if program == "edgegrad":
        words = ["-m", "engine.tools.cli", *words]
    elif program != "python":
        raise RuntimeError(f"{command!r}: expected a command of python or edgegrad")
    print(f"{folder.name}$ {command}", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise RuntimeError(f"{folder.name}$ {command}: status {done.returncode}")
    return done.stdout.strip().splitlines()[-1]


def invent_batch(trainer: Trainer) -> dict[str, Array]:
    """Return a batch of invented values for the training model, by the names of its inputs."""
    batch, seed = {}, 1
    for name in trainer.inputs:
        declared = trainer.learner.session.training.interface.inputs[name]
        shape = (BATCH, *(d for d in declared.shape[1:] if isinstance(d, int)))
        batch[name], seed = make_input(declared.dtype, shape, seed)
    return batch


def compare_export(trainer: Trainer, path: Path) -> None:
    """Compare the exported model in onnxruntime, where that is installed, with the trainer.

    Raises:
        AssertionError: the outputs differ by more than that.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        print("onnxruntime is not installed: the exported model is not compared")
        return
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    batch = {name: invent_batch(trainer)[name] for name in trainer.features}
    expected = trainer.predict_batch(batch)
    outputs = session.run(list(expected), batch)
    for name, values in zip(expected, outputs, strict=True):
        np.testing.assert_allclose(values, expected[name], RELATIVE, ABSOLUTE, err_msg=name)
    print(f"{path.name}: onnxruntime computes what the trainer does")


def compare_build(trainer: Trainer, folder: Path) -> None:
    """Compare a step of a trimmed build for this machine with one of the engine, to the last bit.

    Raises:
        RuntimeError: the build fails.
        AssertionError: the losses or the parameters differ.
    """
    out = folder / "build"
    words = ["build", folder / "artifacts", "--batch", BATCH, "--name", "device", "-o", out]
    if cli.main([str(word) for word in words]):
        raise RuntimeError(f"{folder.name}: edgegrad build failed")
    spec: Any = importlib.util.spec_from_file_location("device", out / "device.py")
    face = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(out))  # the face imports its neighbour
    try:
        spec.loader.exec_module(face)
    finally:
        sys.path.remove(str(out))
        sys.modules.pop("device_library", None)
    built = face.Trainer(out / "checkpoint")
    batch = invent_batch(trainer)
    returned = built.step(*batch.values())
    loss = returned[0] if isinstance(returned, tuple) else returned  # a model has other outputs
    np.testing.assert_array_equal(loss, np.float32(trainer.step(batch)), err_msg="loss")
    for name, parameter in trainer.state.parameters:
        if parameter.requires_grad:
            values = built.state.parameters[name].data
            np.testing.assert_array_equal(values, parameter.data, err_msg=name)
    print("a step of the build is the engine's, to the last bit")


def measure(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield the row of an example."""
    try:
        yield run(name).cells
    except (RuntimeError, AssertionError) as error:
        yield None, f"{WRONG}: {error}", None, None, None


def write_page(found: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Replace the rows of these examples in a page."""
    lines = path.read_text("utf-8").splitlines()
    for name, ((parameters, said, *times),) in found.items():
        cells = [f"[{name}]({name}/README.md)", format_cell(parameters, ","), str(said)]
        cells += ["" if took is None else f"{format_cell(took, '.0f')} s" for took in times]
        row = f"| {' | '.join(cells)} |"
        lines = [row if line.startswith(f"| [{name}]") else line for line in lines]
    path.write_text("\n".join(lines) + "\n", "utf-8")


BENCHES = (
    Bench(
        "examples",
        "the applications of examples/, whole",
        lambda: {name: name for name in templates.list_templates()},
        ("parameters:,", "reaches", "data and training, s:.0f", "with checks and build, s:.0f",
         "processor, s:.0f"),
        measure,
        page=write_page,
        document="examples/README.md",
    ),
)  # fmt: skip
