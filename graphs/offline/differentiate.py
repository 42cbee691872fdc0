"""Reverse-mode differentiation of a graph, by the gradient rules of its ops.

    differentiate(graph, loss, wrt): walk the nodes backwards from the loss; each rule turns the
    gradients of a node's outputs into ONNX nodes that make the gradients of its inputs.

Names follow onnxruntime-training: the gradient of `x` is `x_grad`, the nodes made for node
`n` are called `n_Grad/<op>_<count>`, and the loss's own gradient is the initializer `<loss>_grad`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS, NUMPY
from engine.base.errors import (
    DTypeError,
    NameNotFoundError,
    NoInfluenceError,
    ShapeError,
    UnsupportedOpError,
    join_names,
    suggest_nearest,
)
from engine.graphs.ir.graph import Graph, Names, Node, Subgraph, find_type
from engine.graphs.ir.sites import get_declaration, make_site, run_rule
from engine.graphs.ir.symbols import Inferred
from engine.graphs.offline.quantize import join_quantizers
from engine.graphs.offline.user_gradients import ToldGradient, note
from engine.graphs.passes.expand import expand
from engine.kernels.vocabulary.op import MS, Dim, Op, Site, TensorType


def differentiate(
    graph: Graph, loss: str, wrt: Sequence[str], types: Mapping[str, TensorType]
) -> dict[str, str]:
    """Append the nodes that compute d loss / d x for every x of `wrt`; return x -> gradient name.

    Only the nodes between `wrt` and the loss are differentiated.  No gradient flows through inputs
    that an op declares as `no_gradient`, or through values of other types than floats.  Every node
    of the graph must have a name of its own.  Optional outputs that gradient rules need are added
    to the nodes.

    wrt: the names of the values with respect to which the loss is differentiated.
    types: the types of all values of the graph.

    Before   y = Mul(x, w);  z = Add(y, w);  loss = ReduceMean(z);  wrt = [w]
    After    ...  loss_grad = 1.0
             z_grad      = ...
             y_grad      = Identity(z_grad)                 # z's node_Grad/Identity_0
             w_grad_0    = Identity(z_grad)
             w_grad_1    = Mul(y_grad, x)                   # y's node_Grad/Mul_0
             w_grad      = Sum(w_grad_0, w_grad_1)          # AccumulateGrad_w_grad

    Raises:
        NameNotFoundError: the graph has no value with the name of the loss or a name of `wrt`.
        ShapeError, DTypeError: the loss is not a floating-point scalar, or a value of `wrt` is not
            of floats.
        NoInfluenceError: the loss does not depend on a name of `wrt`, or only through inputs that
            have no gradient.
        UnsupportedOpError: ops between `wrt` and the loss have no gradient rule; the message lists
            them all.
    """
    types = _expand(graph, wrt, types)
    job = _Backward(graph, loss, wrt, types)
    job.check()
    job.walk()
    return job.finish()


def find_reached(graph: Graph, ends: Sequence[str], types: Mapping[str, TensorType]) -> set[str]:
    """Return the values that have a gradient if `ends` have one, including `ends`.

    types: the types of all values of the graph.
    """
    values = {name for name in ends if _is_float(types, name)}
    for node in reversed(graph.nodes):
        if not values.isdisjoint(node.outputs):
            values.update(_list_edges(graph, node, types))
    return values


def _list_edges(graph: Graph, node: Node, types: Mapping[str, TensorType]) -> list[str]:
    """Return the inputs of a node to which a gradient can flow."""
    stop = get_declaration(graph, node).no_gradient
    return [i for k, i in enumerate(node.inputs) if i and k not in stop and _is_float(types, i)]


def _is_float(types: Mapping[str, TensorType], name: str) -> bool:
    """Return whether a value is of a floating-point type."""
    return name in types and types[name].dtype in (*FLOATS, "f16")


def find_dependent(graph: Graph, wrt: Sequence[str]) -> set[str]:
    """Return the values that depend on `wrt`."""
    values = set(wrt)
    for node in graph.nodes:
        if any(i in values for i in node.inputs):
            values.update(o for o in node.outputs if o)
    return values


def _expand(
    graph: Graph, wrt: Sequence[str], types: Mapping[str, TensorType]
) -> Mapping[str, TensorType]:
    """Expand the nodes that depend on `wrt` and whose ops have no gradient rule; return all types.

    A node whose op stops the gradient stays, as its expansion would let the gradient through.

    Pairs of a quantiser and a dequantiser are joined first, see `join_quantizers`.
    """
    types = {**types, **join_quantizers(graph, find_dependent(graph, wrt), types)}
    needed, nodes = find_dependent(graph, wrt), graph.nodes

    def is_chosen(node: Node, op: Op) -> bool:
        nonlocal needed, nodes
        if nodes is not graph.nodes:  # the types before the expansions
            needed, nodes = find_dependent(graph, wrt), graph.nodes
        flows = (i for k, i in enumerate(node.inputs) if k not in op.no_gradient)
        return op.grad is None and any(i in needed for i in flows)

    return expand(graph, Inferred(dict(types), dict(graph.initializers)), is_chosen).types


class _Backward:
    """State of one differentiation.

    Gradients are made under temporary names, and renamed at the end.
    """

    def __init__(
        self, graph: Graph, loss: str, wrt: Sequence[str], types: Mapping[str, TensorType]
    ) -> None:
        self.graph, self.loss, self.wrt = graph, loss, list(wrt)
        self.types = {**types, **{n: find_type(a) for n, a in graph.initializers.items()}}
        self.names = Names(graph)
        self.parts: dict[
            str, list[str]
        ] = {}  # value -> temporary names of the terms of its gradient
        self.final: dict[str, str] = {}  # temporary name -> the name it gets
        self.gradients: dict[str, str] = {}  # value -> name of its gradient
        self.nodes: list[Node] = []
        self.told: list[ToldGradient] = []
        self.shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}  # constants by contents
        self.needed = self._find_needed()
        self.active = self._list_active()

    # --- the nodes between

    def list_edges(self, node: Node) -> list[str]:
        """Return the inputs of a node to which a gradient can flow."""
        return _list_edges(self.graph, node, self.types)

    def is_float(self, name: str) -> bool:
        """Return whether a value is of a floating-point type."""
        return _is_float(self.types, name)

    def _find_needed(self) -> set[str]:
        """Return the values that depend on `wrt`."""
        values = set(self.wrt)
        for node in self.graph.nodes:
            if any(i in values for i in self.list_edges(node)):
                values.update(o for o in node.outputs if o and self.is_float(o))
        return values

    def _list_active(self) -> list[Node]:
        """Return the nodes between `wrt` and the loss, in reverse order."""
        reached, nodes = {self.loss}, []
        for node in reversed(self.graph.nodes):
            inputs = [i for i in self.list_edges(node) if i in self.needed]
            if inputs and any(o in reached for o in node.outputs):
                reached.update(inputs)
                nodes.append(node)
        self.reached = reached
        return nodes

    def check(self) -> None:
        """Refuse impossible differentiations before anything is added to the graph."""
        known = set(self.graph.list_values())
        for name in (self.loss, *self.wrt):
            if name not in known:
                raise NameNotFoundError(
                    f"{self.graph.name}: no value is named {name!r}{suggest_nearest(name, known)}"
                )
        t = self.types[self.loss]
        if not self.is_float(self.loss):
            raise DTypeError(f"the loss {self.loss!r} is {t}; expected a floating-point scalar")
        if any(d != 1 for d in t.shape):
            raise ShapeError(
                f"the loss {self.loss!r} is {t}; training needs a scalar: use reduction='mean' or "
                f"'sum', or reduce it in the model"
            )
        for name in self.wrt:
            if not self.is_float(name):
                raise DTypeError(f"{name!r} is {self.types[name]}: only floats have gradients")
        lost = [name for name in self.wrt if name not in self.reached]
        if lost:
            raise NoInfluenceError(
                f"{self.graph.name}: cannot compute the partial derivative of {self.loss!r} with "
                f"respect to {join_names(lost)}: it does not depend on them, or only "
                f"through inputs that have no gradient",
                tuple(lost),
            )
        self.refuse(
            [
                self.make_site(n).where()
                for n in self.active
                if get_declaration(self.graph, n).grad is None
            ]
        )

    def refuse(self, faults: Sequence[str]) -> None:
        """Raise UnsupportedOpError if there are nodes that cannot be differentiated."""
        if faults:
            raise UnsupportedOpError(
                f"{self.graph.name}: no gradient for\n  " + "\n  ".join(faults)
            )

    def make_site(self, node: Node) -> Site:
        return make_site(self.graph, node, self.types, self.graph.initializers)

    # --- the walk

    def walk(self) -> None:
        """Run the rule of every active node."""
        seed = self.types[self.loss]
        name = self.names.take_fresh(f"{self.loss}_grad")
        self.graph.initializers[name] = np.ones(seed.dims, NUMPY[seed.dtype])
        self.gradients[self.loss] = name
        faults = []
        for node in self.active:
            dys = [self.find_gradient(o) if o else None for o in node.outputs]
            while len(dys) > 1 and dys[-1] is None:
                dys.pop()  # most gradient rules take the gradient of the first output only
            if not any(dys):
                continue
            try:
                self.apply(node, get_declaration(self.graph, node), dys)
            except UnsupportedOpError as error:
                faults.append(str(error))
        self.refuse(faults)

    def apply(self, node: Node, op: Op, dys: list[str | None]) -> None:
        """Run the gradient rule of a node, given the gradients of those outputs that have one."""
        assert op.grad is not None
        rule = _Rule(self, node)
        with run_rule(op, "the gradient rule", rule.site, node):
            gradients = op.grad(rule, *dys)
        made: dict[str, str] = {}
        for i, dx in enumerate(gradients):
            if dx is None or not rule.wants(i):
                continue
            if dx not in rule.made or dx in self.final:
                dx = rule.op(
                    "Identity", dx
                )  # it already names another value, so it needs a name of its own
            self.final[dx] = dx
            self.parts.setdefault(node.inputs[i], []).append(dx)
            made[dx] = node.inputs[i]
        if op.tells_gradient:
            given = {dy: y for dy, y in zip(dys, node.outputs, strict=False) if dy}
            self.told.append(ToldGradient(node.name, given, made))

    def find_gradient(self, name: str) -> str | None:
        """Return the gradient of a value whose readers have all been visited, or None."""
        if name in self.gradients:
            return self.gradients[name]
        parts = self.parts.get(name)
        if not parts:
            return None
        whole = self.names.take_fresh(f"{name}_grad")
        if len(parts) == 1:
            self.final[parts[0]] = whole
            made = parts[0]
        else:
            for k, part in enumerate(parts):
                self.final[part] = self.names.take_fresh(f"{name}_grad_{k}")
                self.graph.types[self.final[part]] = self.types[name]
            made = whole
            title = self.names.take_fresh(f"AccumulateGrad_{name}_grad")
            self.nodes.append(Node("Sum", tuple(parts), (whole,), {}, "", title))
        self.gradients[name] = made
        self.graph.types[whole] = self.types[name]
        return made

    def finish(self) -> dict[str, str]:
        """Append the nodes that something reads to the graph, under their final names.

        Returns the name of the gradient of each value of `wrt`.
        """
        every = {name: self.find_gradient(name) for name in self.wrt}
        gradients = {name: dx for name, dx in every.items() if dx is not None}
        lost = [name for name in self.wrt if name not in gradients]
        if lost:
            raise NoInfluenceError(
                f"{self.graph.name}: the gradient of {self.loss!r} with respect to "
                f"{join_names(lost)} is zero everywhere",
                tuple(lost),
            )
        wanted, kept = set(gradients.values()), []
        for node in reversed(self.nodes):
            if any(o in wanted for o in node.outputs):
                wanted.update(node.inputs)
                kept.append(node)
        for node in reversed(kept):
            whole = get_declaration(self.graph, node).names_all_outputs
            outputs = [o if whole or o in wanted else "" for o in node.outputs]
            while not outputs[-1]:
                outputs.pop()
            node.inputs = tuple(self.final.get(i, i) for i in node.inputs)
            node.outputs = tuple(self.final.get(o, o) for o in outputs)
            self.graph.nodes.append(node)
        note(self.graph, (told.rename_gradients(self.final) for told in self.told))
        unread = {n for n in self.shared.values() if n not in wanted}
        self.graph.initializers = {
            n: a for n, a in self.graph.initializers.items() if n not in unread
        }
        return {name: self.final.get(dx, dx) for name, dx in gradients.items()}

    def list_between(self, starts: Iterable[str], end: str) -> list[Node]:
        """Return the nodes of the graph that need one of `starts` and that `end` needs, in
        order.
        """
        after, nodes = set(starts), []
        for node in self.graph.nodes:
            if not after.isdisjoint(node.list_reads()):
                after.update(filter(None, node.outputs))
                nodes.append(node)
        wanted, kept = {end}, []
        for node in reversed(nodes):
            if not wanted.isdisjoint(node.outputs):
                wanted.update(node.list_reads())
                kept.append(node)
        return kept[::-1]

    def add_constant(self, value: Array, dtype: str) -> str:
        """Return the name of a constant; equal constants are added once."""
        key = (dtype, value.shape, value.tobytes())
        if key not in self.shared:
            shape = "x".join(map(str, value.shape)) or "scalar"
            name = self.names.take_fresh(f"grad_{dtype}_{shape}")
            self.graph.initializers[name] = value
            self.types[name] = find_type(value)
            self.shared[key] = name
        return self.shared[key]


class _Rule:
    """Interface for the gradient rule of one node (`kernels.vocabulary.op.Grad`)."""

    def __init__(self, job: _Backward, node: Node) -> None:
        self.job, self.node = job, node
        self.site = job.make_site(node)
        self.made: set[str] = set()
        self.count = 0

    def x(self, i: int) -> str:
        if i >= len(self.node.inputs):
            self.site.fail(f"input {i} is missing")
        return self.node.inputs[i]

    def y(self, i: int, suffix: str = "") -> str:
        outputs = list(self.node.outputs)
        outputs += [""] * (i + 1 - len(outputs))
        if not outputs[i]:
            outputs[i] = self.job.names.take_fresh(f"{outputs[0]}{suffix or f'_{i}'}")
            self.node.outputs = tuple(outputs)
        return outputs[i]

    def wants(self, i: int) -> bool:
        inputs = self.node.inputs
        stop = get_declaration(self.job.graph, self.node).no_gradient
        return i < len(inputs) and i not in stop and inputs[i] in self.job.needed

    def op(self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attrs: Any) -> Any:
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        title = self.job.names.take_fresh(f"{self.node.name}_Grad/{op}_{self.count}")
        self.count += 1
        results = tuple(
            self.job.names.take_fresh(f"{title}_output_{k}" if outputs > 1 else f"{title}_output")
            for k in range(outputs)
        )
        self.job.nodes.append(Node(op, inputs, results, attrs, domain, title))
        self.made.update(results)
        return results if outputs > 1 else results[0]

    def const(self, value: Any, dtype: str) -> str:
        return self.job.add_constant(np.array(value, NUMPY[dtype]), dtype)

    def like(self, value: float, i: int) -> str:
        return self.const(value, self.site.type(i).dtype)

    def sized(self, value: float, i: int) -> str:
        return self.like(value, i)

    def reduce_to(self, dy: str, i: int, shape: tuple[Dim, ...] | None = None) -> str:
        """Sum `dy` over the axes along which input i was broadcast to `shape`.

        x: f32[3,1], shape [batch,3,4]:  r = ReduceSum(dy, [0,2], keepdims=1); Squeeze(r, [0])
        x: f32[n],   shape [m]:          n may be 1 at run time, so nodes compute the axes then

        shape: by default the shape of the first output.
        """
        mine = self.site.type(i).shape
        whole = self.job.types[self.node.outputs[0]].shape if shape is None else shape
        lead = list(range(len(whole) - len(mine)))
        inner, is_open = [], False
        for axis, (d, full) in enumerate(zip(mine, whole[len(lead) :], strict=True), len(lead)):
            if d == 1 and full != 1:
                inner.append(axis)
            elif isinstance(d, str):
                from_end = axis - len(whole)
                is_open |= d != full or (shape is None and not self.agrees(d, from_end))
        if is_open:
            return self._reduce_open(dy, i, shape)
        if not lead and not inner:
            return dy
        axes = self.const([*lead, *inner], "i64")
        out = self.op("ReduceSum", dy, axes, keepdims=int(bool(inner)))
        if lead and inner:
            out = self.op("Squeeze", out, self.const(lead, "i64"))
        return str(out)

    def agrees(self, d: str, axis: int) -> bool:
        """Return whether every input has the size `d` or 1 on an axis, counted from the end."""
        shapes = [t.shape for t in self.site.ins if t is not None and t.rank >= -axis]
        return all(shape[axis] in (d, 1) for shape in shapes)

    def replay(self, value: str, instead: Mapping[str, str]) -> str:
        """Copy the nodes between the values `instead` and `value`, after the gradients so far."""
        job, now = self.job, dict(instead)
        for node in job.list_between(instead, value):
            title = job.names.take_fresh(f"{self.node.name}_Grad/{node.op}_{self.count}")
            self.count += 1
            attrs = {
                k: a.rename_values(now) if isinstance(a, Subgraph) else a
                for k, a in node.attrs.items()
            }
            for k, old in enumerate(filter(None, node.outputs)):
                now[old] = job.names.take_fresh(f"{title}_output_{k}" if k else f"{title}_output")
                if old in job.types:
                    job.types[now[old]] = job.types[old]
            inputs = tuple(now.get(i, i) for i in node.inputs)
            outputs = tuple(now.get(o, o) for o in node.outputs)
            job.nodes.append(Node(node.op, inputs, outputs, attrs, node.domain, title))
            self.made.update(filter(None, outputs))
        return now.get(value, value)

    def _reduce_open(self, dy: str, i: int, shape: tuple[Dim, ...] | None) -> str:
        """Do as `reduce_to`, with nodes that compute the axes in every run, as onnxruntime-training
        does.
        """
        mine = self.op("Shape", self.x(i))
        whole = self.op("Shape", self.y(0) if shape is None else dy)
        axes, _ = self.op("BroadcastGradientArgs", mine, whole, domain=MS, outputs=2)
        out = self.op("ReduceSumTraining", dy, axes, domain=MS, keepdims=1, noop_with_empty_axes=1)
        return str(self.op("Reshape", out, mine))
