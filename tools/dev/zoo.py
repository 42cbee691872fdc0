"""Kernels of the plans of all known models, which wheels ship in addition to the ones of every op.

python -m engine.tools.dev.zoo [--families FOLDER | --ops NAME ...]

It plans, for float32, every case row of the tests and its gradient, the golden models, the models
and optimizers of the benchmarks, and the exports of all model families that FOLDER has (`python -m
bench families --models FOLDER` leaves them there).  Golden models and models of the benchmarks are
planned for 16 bits, too.  The kernels of these plans go to zoo.txt, a JSON list a line.
Without FOLDER, kernels that are already in the file stay in it.  With --ops, only the case rows of
these ops are planned, which takes seconds.  The kernels of a plan depend on its shapes and on the
16-bit types that its target multiplies.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx

from engine.base.aliases import Shapes
from engine.base.errors import EngineError, InputError
from engine.base.plan_options import DEFAULTS, PRECISIONS, PlanOptions, Precision
from engine.data.tokens import ByteTokenizer
from engine.graphs.ir.graph import Graph
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.levels import LEVELS
from engine.kernels.machine.target import Target
from engine.models.catalog import find_architecture
from engine.models.layers import CLASSES
from engine.models.named_model import make
from engine.models.recurrent import build_gru
from engine.plan.plan import KernelSpec, Plan
from engine.tools.actions.plans import plan_training_steps
from engine.tools.benchmark.workload import Workload
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.dev import optimizer_plans, ship
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases
from engine.tools.dev.cases.case import Case
from engine.tools.dev.cases.optimizer.case import list_cases as optimizer_cases
from engine.tools.dev.export_artifacts import cut_first_line, list_inputs, write_artifacts
from engine.tools.dev.exports import split_tag
from engine.tools.trimmed import plans
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.progress import SILENT

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "data" / "goldens"
_EACH = [level.make_target(level.systems[0]) for level in LEVELS]
# By precision, the target of the first level that multiplies this type.
TARGETS: dict[Precision, Target] = {
    p: next(t for t in _EACH if p == DEFAULTS.precision or t.multiplies(p)) for p in PRECISIONS
}
THREADS = (1, 2)
# Of models by name that are not workloads, with the shapes of samples as in their data.
SAMPLES = {
    "mlp": (20,), "cnn": (3, 32, 32), "textcnn": (128,), "text_transformer": (128,),
    "gru_tagger": (32,), "ds_cnn": (1, 40, 98), "unet_small": (3, 64, 64),
}  # fmt: skip
_DOUBLE = re.compile(r"\bf64\b")


def find_named(name: str, shape: tuple[int, ...]) -> Workload:
    """Return a model by name as a workload, with what is random in its training."""
    kind = find_architecture(name)
    words = ByteTokenizer.size if kind.takes("words") else 0

    def build() -> Graph:
        return make(kind, classes=CLASSES, input_shape=shape, words=words or None).graph

    return Workload(name, (32, *shape), build, words)


MODELS = (
    *WORKLOADS.values(),
    Workload("gru", (8, 24, 12), build_gru),
    *(find_named(name, shape) for name, shape in SAMPLES.items()),
)


def of_case(case: Case) -> Iterator[Plan]:
    """Yield the plans of a case row, and of its gradient if it has one."""
    one = OneNode(case)
    for graph in [one.graph, *([backward_of(one)[0]] if case.grad else [])]:
        for threads in THREADS:
            yield make_plan(graph.copy(), {}, target=TARGETS["f32"], threads=threads)


def of_folder(
    folder: Path,
    batch: int,
    shapes: Shapes | None = None,
    precision: Precision = "f32",
) -> Iterator[Plan]:
    """Yield the plans of artifacts: of each model, and of training steps in one."""
    files, target = plans.list_artifacts(folder), TARGETS[precision]
    planning = PlanOptions(precision=precision)
    for threads in THREADS:
        asked = PlanRequest([batch], threads, shapes=shapes or {}, planning=planning)
        yield from plans.make_plans(files, target, asked).list_plans()
        yield from plan_training_steps(files, target, asked, SILENT).values()


def of_export(path: Path) -> Iterator[Plan]:
    """Yield the plans of one export of a model family, which has its data beside it."""
    with np.load(path.with_suffix(".npz")) as file:
        data = dict(file)
    with tempfile.TemporaryDirectory() as folder:
        write_artifacts(
            onnx.load(path), data, Path(folder), is_training=split_tag(path.stem)[1].trains
        )
        shapes = {f"in{i}": a.shape for i, a in enumerate(list_inputs(data))}
        if "target" in data:
            shapes |= dict.fromkeys(("labels", "target"), data["target"].shape)
        yield from of_folder(Path(folder), len(data["in0"]), shapes)


def list_goldens() -> list[Path]:
    """Return the folders of golden models."""
    return sorted(path.parent for path in GOLDENS.glob("*/training_model.onnx"))


def of_golden(folder: Path, precision: Precision = "f32") -> Iterator[Plan]:
    """Yield the plans of a golden model, for the batch size of its trace."""
    yield from of_folder(folder, find_batch(folder), precision=precision)


def find_batch(golden: Path) -> int:
    """Return the batch size of the trace of a golden model."""
    with np.load(golden / "trace.npz") as trace:
        return len(trace["y"][0])


def of_ops(names: Collection[str]) -> Iterator[Plan]:
    """Return the plans of the case rows of some ops, optimizers included.

    Raises:
        InputError: an op has no case row.
    """
    rows, updates = list_cases(), [case.method for case in optimizer_cases()]
    known = {case.op for case in rows} | {method.op for method in updates}
    if missing := sorted(set(names) - known):
        raise InputError(f"no case row is of {', '.join(missing)}")
    for case in rows:
        if case.op in names:
            yield from of_case(case)
    for method in updates:
        if method.op in names:
            yield from optimizer_plans.make_plans_of(method)


def plan_everything(families: Path | None) -> Iterator[Plan]:
    """Yield every plan of the zoo; what cannot be planned is named and left out."""
    for case in list_cases():
        yield from of_case(case)
    yield from optimizer_plans.make_plans()
    for golden in list_goldens():
        for precision in TARGETS:
            yield from of_golden(golden, precision)
    for work in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            written = work.write(Path(folder))
            for precision in TARGETS:
                yield from of_folder(written, work.x[0], precision=precision)
    for path in sorted(families.glob("*.onnx")) if families else ():
        try:
            yield from of_export(path)
        except EngineError as error:
            print(f"{path.stem}: {cut_first_line(error)}", flush=True)


def list_kernels(made: Iterable[Plan]) -> set[KernelSpec]:
    """Return the kernels of plans, without those that compute with float64."""
    specs = {spec for plan in made for spec in plan.specs}
    return {spec for spec in specs if not _DOUBLE.search(repr(spec.params))}


def main(argv: Sequence[str] | None = None) -> int:
    """Write tools/dev/zoo.txt."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.tools.dev.zoo", description=main.__doc__
    )
    parser.add_argument("--families", type=Path, metavar="FOLDER", help="exports of all families")
    parser.add_argument(
        "--ops", nargs="+", metavar="NAME", help="plan the case rows of these alone"
    )
    args = parser.parse_args(argv)
    made = of_ops(args.ops) if args.ops else plan_everything(args.families)
    chosen = list_kernels(made) | set(() if args.families else ship.read_zoo())
    rows = sorted(json.dumps([spec.template, *spec.params]) for spec in chosen)
    ship.ZOO.write_text("".join(f"{row}\n" for row in rows), "utf-8")
    print(f"{len(rows)} kernels in {ship.ZOO.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
