"""Runs graphs through the whole path (plan, compile, execute) for tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from engine.api import CheckpointState
from engine.base.plan_options import PlanOptions, Precision
from engine.graphs.ir.graph import Graph
from engine.graphs.planner.planner import make_plan
from engine.kernels.binaries.load import get_linker
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.registry import list_ops
from engine.plan.plan import Plan
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram
from engine.tools.dev.case_graphs import OneNode, widen


def drop_type(value: object) -> Any:
    """Return the value, untyped for type checkers: for arguments that must be refused."""
    return value


def evaluate(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[Any]:
    """The outputs of a model by onnx's reference."""
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, dict(inputs)))


def make_identity(inputs: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Compute y<i> = x<i> + w<i>, w<i> zero: the gradient by w<i> is the gradient of the loss by
    y<i>.
    """
    nodes = [helper.make_node("Add", [x, f"w{x}"], [f"y{x}"], f"add{x}") for x in inputs]
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in inputs.items()}
    infos = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in inputs.items()]
    outs = [helper.make_tensor_value_info(f"y{n}", kinds[n], None) for n in inputs]
    tensors = [numpy_helper.from_array(np.zeros_like(a), f"w{n}") for n, a in inputs.items()]
    graph = helper.make_graph(nodes, "identity", infos, outs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def copy_parameters(trainer: Any) -> dict[str, np.ndarray]:
    """Return copies of the values of all parameters, of whatever has a state."""
    return {name: parameter.data.copy() for name, parameter in trainer.state.parameters}


def get_gradient(state: CheckpointState, name: str) -> np.ndarray:
    """The gradient of a parameter that is trained, as a view."""
    grad = state.parameters[name].grad
    assert grad is not None, f"{name} is not trained"
    return grad


def run(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    *,
    threads: int = 1,
    target: Target | None = None,
    closed: bool = False,
    without: Collection[str] = (),
    changes: bool = False,
    precision: Precision = "f32",
) -> dict[str, np.ndarray]:
    """Plan and run a graph; returns its outputs and checks that the inputs are unchanged.

    without: passes to leave out.  changes: the inputs may change, and are returned too.
    """
    shapes = {n: a.shape for n, a in inputs.items()}
    target = target or detect_host()
    plan = make_plan(
        graph, shapes, target=target, threads=threads, closed=closed, without=without,
        options=PlanOptions(precision=precision),
    )  # fmt: skip
    ops = list_ops()
    acted = [n.inputs[0] for n in graph.nodes if (op := ops.get((n.domain, n.op))) and op.is_acting]
    return execute(plan, inputs, target=target, changes=changes, acted=acted)


def execute(
    plan: Plan,
    inputs: Mapping[str, np.ndarray],
    *,
    target: Target | None = None,
    changes: bool = False,
    acted: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Run a plan; returns its outputs and checks that the inputs are unchanged.

    target: the one that the plan is for.  changes: the inputs may change, and are returned too.
    acted: the names of inputs that an op writes to by its meaning.
    """
    return make_runner(plan, target, acted)(inputs, changes)


def make_runner(
    plan: Plan, target: Target | None = None, acted: Collection[str] = ()
) -> Callable[[Mapping[str, np.ndarray], bool], dict[str, np.ndarray]]:
    """Return a function that runs a plan repeatedly: it takes inputs, and whether they may
    change.

    acted: as of `execute`.
    """
    work = allocate(plan.compute_region_bytes("work"), zero=False)
    program = BoundProgram(plan, get_linker(target or detect_host()).get_addresses, {"work": work})

    def run_once(inputs: Mapping[str, np.ndarray], changes: bool) -> dict[str, np.ndarray]:
        work.view(np.uint8)[...] = 0xFF  # NaN: whatever is read before it is written shows
        for name, array in inputs.items():
            np.copyto(program.inputs[name], array)
        program.run()
        if changes:
            return {n: a.copy() for n, a in {**program.inputs, **program.outputs}.items()}
        for name in inputs.keys() - {*acted}:
            array = inputs[name]
            np.testing.assert_array_equal(
                program.inputs[name], array, err_msg=f"{name} was changed"
            )
        return {n: a.copy() for n, a in program.outputs.items()}

    return run_once


@np.errstate(all="ignore")
def compute_reference(one: OneNode) -> list[Any]:
    """The outputs in float64 by onnx.reference, or by the case's own reference."""
    values = {n: widen(a) for n, a in {**one.inputs, **one.graph.initializers}.items()}
    if one.case.reference is not None:
        ins = [values[n] if n else None for n in one.node.inputs]
        out = one.case.reference(*ins, **one.case.attrs)
        return list(out) if isinstance(out, Sequence) else [out]
    from onnx.reference import ReferenceEvaluator

    node = helper.make_node(one.case.op, list(one.node.inputs), list(one.node.outputs),
                            domain=one.case.domain, **one.case.attrs)  # fmt: skip
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in values.items()]  # fmt: skip
    outs = [helper.make_empty_tensor_value_info(o) for o in one.outputs]
    graph = helper.make_graph([node], "one", infos, outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", one.case.opset)])
    return list(ReferenceEvaluator(model).run(None, values))
