"""Kinds of models: nodes of the case rows, whole forward models, and the bytes of their files."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
from onnx import ModelProto

from engine.base.element_types import NUMPY
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_ops
from engine.tools.dev import case_graphs
from engine.tools.dev.cases.case import Case
from tests.fuzz import octets
from tests.fuzz.kind import Kind
from tests.fuzz.models import models
from tests.fuzz.protobuf import Changes
from tests.support import harness, malformed

RUN_SHARE = 1 / 40  # of the models that can be planned are compiled and run
MOST_ELEMENTS = 1 << 20  # of all inputs, and of all bytes of a plan, so that a run is short
SIZES = (0, 1, 2, 3)  # that symbolic dimensions get


def use(model: ModelProto | bytes, rng: random.Random) -> str:
    """Load a model, plan it and the gradients of its outputs, and for a share run it."""
    graph = onnx_io.load(model)
    bound = {d: rng.choice(SIZES) for t in graph.inputs.values() for d in t.shape}
    for name, t in graph.inputs.items():
        shape = tuple(d if isinstance(d, int) else bound[d] for d in t.shape)
        graph.inputs[name] = t.but(shape)
    if sum(t.size for t in graph.inputs.values()) > malformed.LARGE:
        return "large"
    plan = make_plan(graph, {}, target=detect_host(), threads=2)
    malformed.plan_gradient(graph)
    is_small = sum(b.nbytes for b in plan.buffers) <= MOST_ELEMENTS
    if is_small and rng.random() < RUN_SHARE:
        _run(graph, rng)
        return "ran"
    return "planned"


def _run(graph: Graph, rng: random.Random) -> None:
    made = np.random.default_rng(rng.randrange(1 << 32))
    inputs = {}
    for name, t in graph.inputs.items():
        values = made.standard_normal(t.dims) * rng.choice((1, 1, 1, 100))
        inputs[name] = values.astype(NUMPY[t.dtype])
    with np.errstate(all="ignore"):
        harness.run(graph, inputs, threads=2, changes=True)


class _Models(Kind):
    suffix = ".onnx"

    def content(self, subject: Any) -> bytes:
        return bytes(subject if isinstance(subject, bytearray) else subject.SerializeToString())

    def run(self, subject: Any, rng: random.Random) -> str:
        return use(bytes(subject) if isinstance(subject, bytearray) else subject, rng)


class Nodes(_Models):
    """Case rows: of one node attributes, operands, types, constants and the opset."""

    name = "nodes"

    def prepare(self) -> None:
        rows()

    def begin(self, rng: random.Random) -> ModelProto:
        actual_rows = rows()
        return malformed.make_model(rng.choice(actual_rows[rng.choice(list(actual_rows))]))

    def change(self, subject: ModelProto, rng: random.Random) -> ModelProto:
        rng.choice(malformed.MUTATIONS)(subject, rng)
        return subject


class Structures(_Models):
    """Whole models: any field of any message, and how nodes hang together."""

    name = "models"

    def prepare(self) -> None:
        changes()

    def begin(self, rng: random.Random) -> ModelProto:
        return copy(rng.choice(models()))

    def change(self, subject: ModelProto, rng: random.Random) -> ModelProto:
        changes().change(subject, rng)
        return subject


class Bytes(_Models):
    """Files of models: their bytes."""

    name = "bytes"

    def begin(self, rng: random.Random) -> bytearray:
        return bytearray(rng.choice(models()).SerializeToString())

    def change(self, subject: bytearray, rng: random.Random) -> bytearray:
        octets.change(subject, rng)
        return subject


def copy(model: ModelProto) -> ModelProto:
    """A model that may be changed."""
    made = ModelProto()
    made.CopyFrom(model)
    return made


@functools.cache
def changes() -> Changes:
    """Return changes that insert parts of all models, and of some case rows."""
    some = [malformed.make_model(cases[0]) for cases in list(rows().values())]
    return Changes([*models(), *some])


@functools.cache
def rows() -> dict[str, list[Case]]:
    """The case rows of each op that a file may hold."""
    actual: dict[str, list[Case]] = {}
    for case in case_graphs.list_cases():
        declared = list_ops().get((case.domain, case.op))
        if declared is None or not declared.internal:
            actual.setdefault(f"{case.domain}::{case.op}".removeprefix("::"), []).append(case)
    return actual
