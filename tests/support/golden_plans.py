"""Training plans of the golden models."""

from __future__ import annotations

from engine.api import CheckpointState
from engine.graphs.io import onnx_io
from engine.graphs.planner.draft import Place
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import Target, make
from engine.plan.plan import Plan
from engine.training.model_file import BUFFER, UPDATED
from tests.support.places import GOLDENS

TARGET = make("x86_64-unknown-linux-gnu", "x86-64-v3", "", "avx2")


def make_golden_plan(case: str, batch: int, threads: int, target: Target = TARGET) -> Plan:
    """Return the training plan of a golden model, for any target."""
    folder = GOLDENS / case
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    graph = onnx_io.load(folder / "training_model.onnx")
    places, shapes = {}, {}
    for name, t in graph.inputs.items():
        owner = name.removesuffix(BUFFER)
        if owner in state.slots:
            region = "grad" if name.endswith(BUFFER) else "param"
            places[name] = Place(region, state.slots[owner].offset)
        else:
            shapes[name] = tuple(d if isinstance(d, int) else batch for d in t.shape)
    return make_plan(
        graph, shapes, target=target, threads=threads, places=places,
        region_bytes={r: state.region_bytes(r) for r in ("param", "grad")},
        outputs=[o for o in graph.outputs if not o.endswith(UPDATED)], name=case,
    )  # fmt: skip
